"""How functions are compiled and called: which arguments are constants, and seeds of 64 bits as pairs of words."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

_STATIC = ("n", "n_draws", "noise", "antithetic", "must_link_first", "free")


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    names = inspect.signature(function).parameters
    return jax.jit(function, static_argnames=[name for name in _STATIC if name in names])


def varying(value: Array, *arrays: Array | None) -> Array:
    """The value itself; inside ``shard_map``, it varies over devices where one of the arrays does.

    ``shard_map`` checks that a loop's state varies from the start over the devices that it varies over later, and that
    a gradient varies over those that its input varies over.
    """
    mesh = jax.sharding.get_abstract_mesh() if hasattr(jax.sharding, "get_abstract_mesh") else None
    if not getattr(mesh, "manual_axes", ()):
        return value
    for array in arrays:
        if array is not None:
            never = jnp.zeros_like(array, bool, shape=())
            value = jnp.where(never, jnp.zeros_like(value), value)
    return value


def as_words(value: Any) -> Any:
    """(1, 2) uint32, the low and the high word of an integer, which counts modulo 2^64; such words pass."""
    if not isinstance(value, Array):
        return np.array([[int(value) & 0xFFFFFFFF, (int(value) >> 32) & 0xFFFFFFFF]], np.uint32)
    if value.ndim == 2:
        return value
    high = value >> 32 if value.dtype.itemsize == 8 else jnp.where(value < 0, -1, 0)
    return jnp.stack([value.astype(jnp.uint32), high.astype(jnp.uint32)])[None]


def with_words(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled, with ``words``, (rows, 4), in place of seed and first draw: one row, or one for every problem."""
    compiled = jit(function)

    @functools.wraps(function)
    def call(*arrays: Any, seed: Any = 0, first_draw: Any = 0, **options: Any) -> Any:
        seed, first_draw = as_words(seed), as_words(first_draw)
        rows = max(len(seed), len(first_draw))
        xp = np if isinstance(seed, np.ndarray) and isinstance(first_draw, np.ndarray) else jnp
        words = xp.concatenate([xp.broadcast_to(each, (rows, 2)) for each in (seed, first_draw)], 1)
        return compiled(*arrays, words=words, **options)

    return call
