"""Weights, similarity and noise, as ordered integers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from diffclust.noise import Noise
from diffclust.solvers.xla.philox import bits_of, make_noise, opaque_zero, rounded


def _flip(bits: Array) -> Array:
    last = bits.dtype.itemsize * 8 - 1
    return bits ^ ((bits >> last) & np.array((1 << last) - 1, bits.dtype))


def _ordered(weight: Array) -> Array:
    """A float as an integer of the same order and size. -0.0 is 0.0, and -inf (no edge) is the lowest integer."""
    integer = jnp.int32 if weight.dtype == jnp.float32 else jnp.int64
    bits = bits_of(jnp.where(weight == 0, 0.0, weight), integer)
    return jnp.where(weight == -jnp.inf, lowest_of(integer), _flip(bits))


def number_of(weight: Array) -> Array:
    """The float of an ordered integer."""
    return bits_of(_flip(weight), jnp.float32 if weight.dtype == jnp.int32 else jnp.float64)


def lowest_of(dtype: Any) -> Any:
    """The lowest integer of a type, which stands for no edge."""
    return np.array(np.iinfo(dtype).min, dtype)


def perturbed_weights(
    similarity: Array, words: Array, epsilon: Any, position: Array, noise: str | Noise, antithetic: bool
) -> Array:
    """(problems, draws, n, n) ordered similarity + epsilon * noise, symmetric, no edges on the diagonal."""
    n = similarity.shape[-1]
    zero = opaque_zero(similarity, words)
    z, sign = make_noise(words, position, n, noise, antithetic, zero)
    scaled = rounded((sign * epsilon)[..., None, None] * z, zero)
    ordered = _ordered(similarity[:, None] + scaled)
    return jnp.where(jnp.eye(n, dtype=bool), lowest_of(ordered.dtype), ordered)
