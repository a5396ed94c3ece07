"""Noise that has no kernel, on JAX arrays: a compiled program calls back to the host, where NumPy makes and solves it.

Seeds and numbers of draws travel as words with one row, or one for every problem, as everywhere in this folder.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import Array

from diffclust.noise import Draws
from diffclust.solvers import sampled, xla
from diffclust.solvers.base import Answer, Request
from diffclust.solvers.xla.calls import Arrays, join, split, words_of
from diffclust.solvers.xla.sums import adjacency_counts, adjacency_products, connectivity_counts, connectivity_products

__all__ = [
    "adjacency_counts",
    "adjacency_products",
    "connectivity_counts",
    "connectivity_products",
    "noise_sum",
    "solve",
]


def solve(request: Request) -> Answer:
    """Solve all problems and draws; see :func:`diffclust.solvers.xla.solve`."""
    settings, arrays = split(request)
    shapes = jax.eval_shape(functools.partial(_solve_with_kernel, settings), arrays)
    return jax.pure_callback(functools.partial(_solve, settings, shapes), shapes, arrays)


def noise_sum(weights: Array, n: int, draws: Draws) -> Array:
    """See :meth:`diffclust.solvers.base.Solver.noise_sum`."""
    shape = jax.ShapeDtypeStruct((len(weights), n, n), weights.dtype)
    constants = draws._replace(seed=None, first=None, epsilon=None)
    return jax.pure_callback(functools.partial(_noise_sum, constants, shape), shape, weights, words_of(draws))


def _solve_with_kernel(settings: Request, arrays: Arrays) -> Answer:
    """An answer of the same shapes, of which nothing is computed."""
    request = join(settings, arrays)
    return xla.solve(request._replace(draws=request.draws._replace(noise="normal")))


def _solve(settings: Request, shapes: Answer, arrays: Arrays) -> Answer:
    arrays = jax.tree.map(np.asarray, arrays)
    similarity = 0.5 * arrays.similarity + 0.5 * arrays.similarity.swapaxes(-1, -2)
    # As in a compiled program, whether k is reached is the caller's to check.
    settings = settings._replace(if_infeasible="clamp" if settings.if_infeasible == "clamp" else "continue")
    parts = []
    for rows, seed, first in _streams(arrays.words, len(similarity)):
        clusters, labels, relation = (None if array is None else array[rows] for array in arrays[1:4])
        draws = settings.draws._replace(seed=seed, first=first, epsilon=arrays.epsilon[0, 0])
        request = settings._replace(similarity=similarity[rows], n_clusters=clusters, labels=labels, relation=relation)
        parts.append(sampled.solve(request._replace(draws=draws)))
    return jax.tree.map(lambda shape, *each: np.concatenate(each).astype(shape.dtype), shapes, *parts)


def _noise_sum(draws: Draws, shape: Any, weights: Any, words: Any) -> Any:
    weights = np.asarray(weights)
    parts = [
        sampled.noise_sum(weights[rows], shape.shape[-1], draws._replace(seed=seed, first=first))
        for rows, seed, first in _streams(np.asarray(words), len(weights))
    ]
    return np.concatenate(parts).astype(shape.dtype)


def _streams(words: Any, n_problems: int) -> Iterator[tuple[slice, int, int]]:
    """Seed and first draw of all problems, or of one after the other where each has its own."""
    for row, (seed_low, seed_high, first_low, first_high) in enumerate(words.tolist()):
        rows = slice(0, n_problems) if len(words) == 1 else slice(row, row + 1)
        yield rows, seed_low | seed_high << 32, first_low | first_high << 32
