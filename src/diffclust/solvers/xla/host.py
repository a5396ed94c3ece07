"""A compiled program calls back to the host, where the CPU solver, or NumPy for noise that has no kernel, solves.

Seeds and numbers of draws travel as words with one row, or one for every problem, as everywhere in this folder.

``jax.pure_callback`` puts its arguments on a device once more, before the callback begins. Large ones are copied by a
thread of the pool whose threads wait for callbacks: with one core that never ends. So arrays travel in small pieces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import Array

from diffclust.noise import Draws
from diffclust.solvers import cpu, sampled, xla
from diffclust.solvers.base import Answer, Request
from diffclust.solvers.xla.calls import Arrays, join, split, symmetric, words_of

PIECE = 2**16  # bytes; JAX copies up to 100 kB itself, where it stands
MAX_PIECES = 64
ENOUGH = 2**14  # entries of weight matrices from which on the CPU solver beats XLA, the way to it included


def is_faster(settings: Request, arrays: Arrays) -> bool:
    """Whether to solve noise that has a kernel by a callback, too: on one CPU, unless the problem is small or huge.

    Inside ``shard_map`` it is not: there the type of an array names the axes over which it varies, and what a callback
    returns has no such names.
    """
    similarity, n_draws = arrays.similarity, settings.draws.n_draws
    if hasattr(jax.sharding, "get_abstract_mesh") and jax.sharding.get_abstract_mesh().manual_axes:  # since JAX 0.6
        return False
    one_cpu = jax.default_backend() == "cpu" and jax.device_count() == 1
    fits = similarity.size * similarity.dtype.itemsize <= MAX_PIECES * PIECE
    return one_cpu and fits and similarity.size * n_draws >= ENOUGH and similarity.dtype in (np.float32, np.float64)


def solve(request: Request) -> Answer:
    """Solve all problems and draws; see :func:`diffclust.solvers.xla.solve`."""
    settings, arrays = split(request)
    shapes = jax.eval_shape(functools.partial(_solve_with_kernel, settings), arrays)
    return _call(functools.partial(_solve, settings, shapes), shapes, arrays)


def noise_sum(weights: Array, n: int, draws: Draws) -> Array:
    """See :meth:`diffclust.solvers.base.Solver.noise_sum`."""
    shape = jax.ShapeDtypeStruct((len(weights), n, n), weights.dtype)
    constants = draws._replace(seed=None, first=None, epsilon=None)
    return _call(functools.partial(_noise_sum, constants, shape), shape, (weights, words_of(draws)))


def _call(function: Callable[[Any], Any], shapes: Any, arrays: Any) -> Any:
    """``jax.pure_callback`` of a function of NumPy arrays."""
    leaves, structure = jax.tree.flatten(arrays)

    def on_host(pieces: Any) -> Any:
        wholes = [
            np.concatenate([np.ravel(np.asarray(piece)) for piece in of_leaf]).reshape(leaf_shape)
            for of_leaf, leaf_shape in zip(pieces, leaf_shapes, strict=True)
        ]
        return function(jax.tree.unflatten(structure, wholes))

    leaf_shapes = [leaf.shape for leaf in leaves]
    return jax.pure_callback(on_host, shapes, [_in_pieces(leaf) for leaf in leaves])


def _in_pieces(array: Any) -> list[Any]:
    length = PIECE // array.dtype.itemsize
    if array.size <= length:
        return [array]
    # The barrier keeps XLA from computing the array in another way because of the slices: that may change its last bit.
    flat = jax.lax.optimization_barrier(array).reshape(-1)
    return [flat[start : start + length] for start in range(0, flat.size, length)]


def _solve_with_kernel(settings: Request, arrays: Arrays) -> Answer:
    """An answer of the same shapes, of which nothing is computed."""
    request = join(settings, arrays)
    return xla.solve(request._replace(draws=request.draws._replace(noise="normal")))


def _solve(settings: Request, shapes: Answer, arrays: Arrays) -> Answer:
    solver = cpu if isinstance(settings.draws.noise, str) else sampled
    similarity = symmetric(arrays.similarity)
    # As in a compiled program, whether k is reached is the caller's to check.
    settings = settings._replace(if_infeasible="clamp" if settings.if_infeasible == "clamp" else "continue")
    parts = []
    for rows, seed, first, epsilon in _streams(arrays.words, arrays.epsilon, len(similarity)):
        clusters, labels, relation = (None if array is None else array[rows] for array in arrays[1:4])
        draws = settings.draws._replace(seed=seed, first=first, epsilon=epsilon)
        request = settings._replace(similarity=similarity[rows], n_clusters=clusters, labels=labels, relation=relation)
        parts.append(solver.solve(request._replace(draws=draws)))
    return jax.tree.map(lambda shape, *each: np.concatenate(each).astype(shape.dtype), shapes, *parts)


def _noise_sum(draws: Draws, shape: Any, arrays: Any) -> Any:
    weights, words = arrays
    parts = [
        sampled.noise_sum(weights[rows], shape.shape[-1], draws._replace(seed=seed, first=first))
        for rows, seed, first, _ in _streams(words, np.zeros((1, 1)), len(weights))
    ]
    return np.concatenate(parts).astype(shape.dtype)


def _streams(words: Any, epsilon: Any, n_problems: int) -> Iterator[tuple[slice, int, int, float]]:
    """Seed, first draw and epsilon of all problems, or of one after the other where each has its own."""
    n_rows = max(len(words), len(epsilon))
    each_words, each_epsilon = np.broadcast_to(words, (n_rows, 4)), np.broadcast_to(epsilon, (n_rows, 1))
    for row, (seed_low, seed_high, first_low, first_high) in enumerate(each_words.tolist()):
        rows = slice(0, n_problems) if n_rows == 1 else slice(row, row + 1)
        yield rows, seed_low | seed_high << 32, first_low | first_high << 32, float(each_epsilon[row, 0])
