"""How a request is split into constants and arrays of a compiled program, and seeds of 64 bits into pairs of words."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from diffclust.noise import Draws
from diffclust.solvers.base import Request


class Arrays(NamedTuple):
    """The arrays of a request; what says which noise has one row for all problems or one for each."""

    similarity: Any
    n_clusters: Any
    labels: Any
    relation: Any
    seed: Any  # (rows, 2) words, or (rows, 1) int32
    first_draw: Any  # the same
    epsilon: Any  # (rows, 1)

    @property
    def words(self) -> Any:
        """(rows, 4) seed and first draw."""
        return _join_words(self.seed, self.first_draw)

    @property
    def noise(self) -> dict[str, Any]:
        """What says which noise, by name."""
        return {"seed": self.seed, "first_draw": self.first_draw, "epsilon": self.epsilon}


def split(request: Request) -> tuple[Request, Arrays]:
    """A request without its arrays, which can be hashed and is a constant of a compiled program; and the arrays."""
    draws, n_problems = request.draws, len(request.similarity)
    clusters = request.n_clusters
    arrays = Arrays(
        request.similarity,
        jnp.full((n_problems,), clusters, jnp.int32) if isinstance(clusters, int) else clusters,
        request.labels,
        request.relation,
        as_row(draws.seed),
        as_row(draws.first),
        draws.epsilon if isinstance(draws.epsilon, Array) else np.full((1, 1), draws.epsilon, np.float32),
    )
    draws = draws._replace(seed=None, first=None, epsilon=None)
    return request._replace(similarity=None, n_clusters=None, labels=None, relation=None, draws=draws), arrays


def join(settings: Request, arrays: Arrays) -> Request:
    """The inverse of :func:`split`."""
    draws = settings.draws._replace(seed=arrays.seed, first=arrays.first_draw, epsilon=arrays.epsilon)
    return settings._replace(**dict(zip(Request._fields, arrays[:4], strict=False)), draws=draws)


def symmetric(similarity: Any) -> Any:
    """The mean of entries (i, j) and (j, i)."""
    return 0.5 * similarity + 0.5 * similarity.swapaxes(-1, -2)


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


def as_row(value: Any) -> Any:
    """An integer, which counts modulo 2^64, as a row: low and high word, (1, 2) uint32; such rows pass.

    One of 32 bits with a sign stays as it is, (1, 1) int32: on a GPU, kernels then read it without another kernel
    before them, which XLA would have for an array of words.
    """
    if not isinstance(value, Array):
        number = int(value)
        if -(1 << 31) <= number < 1 << 31:
            return np.array([[number]], np.int32)
        return np.array([[number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF]], np.uint32)
    if value.ndim == 2:
        return value
    if value.dtype == jnp.int32:
        return value.reshape(1, 1)
    high = value >> 32 if value.dtype.itemsize == 8 else jnp.where(value < 0, -1, 0)
    return jnp.stack([value.astype(jnp.uint32), high.astype(jnp.uint32)])[None]


def _as_words(rows: Any) -> Any:
    """(rows, 2) words of rows as :func:`as_row` makes them."""
    if rows.shape[-1] == 2:
        return rows
    xp = np if isinstance(rows, np.ndarray) else jnp
    return xp.concatenate([rows, xp.where(rows < 0, -1, 0)], 1).astype(xp.uint32)


def words_of(draws: Draws) -> Any:
    """(rows, 4) words of seed and first draw: one row, or one for every problem."""
    return _join_words(as_row(draws.seed), as_row(draws.first))


def _join_words(seed: Any, first_draw: Any) -> Any:
    rows = max(len(seed), len(first_draw))
    xp = np if isinstance(seed, np.ndarray) and isinstance(first_draw, np.ndarray) else jnp
    return xp.concatenate([xp.broadcast_to(_as_words(each), (rows, 2)) for each in (seed, first_draw)], 1)
