"""All draws, chunk after chunk."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

# Of the n x n matrices of weights of a chunk of draws: what stays in the caches of a CPU, or keeps a GPU busy.
CHUNK_BYTES = {"cpu": 8 << 20, "gpu": 256 << 20}


def _n_chunks(n_problems: int, n: int, n_draws: int) -> int:
    budget = CHUNK_BYTES.get(jax.default_backend(), CHUNK_BYTES["gpu"])
    return min(n_draws, math.ceil(4 * n_problems * n * n * n_draws / budget)) or 1


def over_chunks(function: Callable[[Array], tuple[Any, Any]], n_problems: int, n: int, n_draws: int) -> tuple[Any, Any]:
    """Apply a function of positions of draws (chunk,) to all draws: (arrays over draws, sums over draws).

    Arrays have the draws in dimension 2. The function masks draws past the last one, of which there can be some in the
    last chunk, in its sums.
    """
    n_chunks = _n_chunks(n_problems, n, n_draws)
    size = math.ceil(n_draws / n_chunks)
    positions = jnp.arange(n_chunks * size, dtype=jnp.int32).reshape(n_chunks, size)
    if n_chunks == 1:
        return function(positions[0])

    def step(total: Any, position: Array) -> tuple[Any, Any]:
        each, summed = function(position)
        return jax.tree.map(jnp.add, total, summed), each

    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(function, positions[0])[1])
    total, each = lax.scan(step, zeros, positions)

    def in_one_row(array: Array) -> Array:
        array = jnp.moveaxis(array, 0, 2)
        return array.reshape(*array.shape[:2], -1, *array.shape[4:])[:, :, :n_draws]

    return jax.tree.map(in_one_row, each), total
