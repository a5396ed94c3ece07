"""The Triton kernels of ``solvers/kernels`` inside a JAX program, where the only device is one NVIDIA GPU.

XLA's own rounds are launches of kernels, a few for each; these kernels make a round without leaving the GPU. JAX calls
them as custom calls (``launches.py``). Such a call takes arrays and returns others. So what one kernel leaves behind
for the next is an output of the first and an input of the second, in the same memory. Each kernel here hands its
arguments on in the order that the real one wants.

A relation, noise or seeds of its own for each problem, other types than float32, and several devices are left to XLA.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import triton
import triton.language as tl
from jax import Array

from diffclust.solvers import xla
from diffclust.solvers.base import Answer, Request, mean_values
from diffclust.solvers.kernels.closures import LABELLED
from diffclust.solvers.kernels.draws import N_NUMBERS, N_ROWS, solve_draws, write_constrained
from diffclust.solvers.kernels.inside import PARTS, grow_units
from diffclust.solvers.kernels.launches import MAX_GRID, MAX_POINTS, by_rounds, warps_for, warps_inside
from diffclust.solvers.kernels.small import N_OWN, PROGRAMS, SMALL, solve_and_mean
from diffclust.solvers.kernels.weights import DRAWS_AT_ONCE, TILE, grid_of, perturb, pitch_of
from diffclust.solvers.xla.calls import Arrays, join, split, symmetric
from diffclust.solvers.xla.forests import leaders
from diffclust.solvers.xla.launches import as_keys, call, empty, integer, multiprocessors
from diffclust.solvers.xla.sums import noise_sum

__all__ = ["noise_sum", "solve"]

WITHOUT_LIMIT = 1 << 31  # bytes for words where the device does not say how much memory it has


def fit(settings: Request, arrays: Arrays) -> bool:
    """Whether these kernels answer such a request."""
    similarity, n = arrays.similarity, arrays.similarity.shape[-1]
    return (
        arrays.relation is None
        and similarity.dtype == np.float32
        and 1 < n <= MAX_POINTS
        and len(similarity) * settings.draws.n_draws > 0
        and len(similarity) <= MAX_GRID
        and max(len(arrays.seed), len(arrays.first_draw), len(arrays.epsilon)) == 1
    )


def solve(request: Request) -> Answer:
    """Solve all problems and draws; see :func:`diffclust.solvers.xla.solve`."""
    settings, arrays = split(request)
    return _solve(settings, arrays)


@functools.partial(jax.jit, static_argnums=0)
def _solve(settings: Request, arrays: Arrays) -> Answer:
    """By these kernels, or by XLA's if the program is for another device after all."""
    return jax.lax.platform_dependent(
        arrays, cuda=functools.partial(find, settings), default=lambda arrays: xla.solve(join(settings, arrays))
    )


def find(settings: Request, arrays: Arrays) -> Answer:
    """The answer, by kernels."""
    arrays = arrays._replace(n_clusters=arrays.n_clusters.astype(jnp.int32))
    if settings.detail == "mean" and arrays.similarity.shape[-1] <= SMALL:
        return _mean_in_one_launch(settings, arrays)
    similarity = symmetric(arrays.similarity)
    closures = jnp.zeros(4, jnp.int32) if arrays.labels is None else _closures(arrays.labels)
    n_draws, at_once = settings.draws.n_draws, _draws_at_once(*similarity.shape[:2])
    chunks = [
        _find_chunk(settings, arrays._replace(similarity=similarity), closures, first, min(at_once, n_draws - first))
        for first in range(0, n_draws, at_once)
    ]
    values = jnp.concatenate([chunk.values for chunk in chunks], 2)
    adjacency = None
    if settings.adjacency:
        adjacency = functools.reduce(jnp.add, [chunk.counts for chunk in chunks]).astype(jnp.float32) / n_draws
    if settings.detail == "mean":
        return Answer(mean_values(values), adjacency)
    edges = jnp.concatenate([chunk.edges for chunk in chunks], 2)
    labels = jnp.concatenate([chunk.labels for chunk in chunks], 2) if settings.detail == "forests" else None
    return Answer(mean_values(values), adjacency, values, edges, labels)


def _closures(labels: Array) -> Array:
    """(problems, n) the closure of each point, see ``kernels/closures.py``."""
    return leaders(labels) | jnp.where(labels >= 0, LABELLED.value, 0)


def _draws_at_once(n_problems: int, n: int) -> int:
    """Of how many draws the words fit into an eighth of the device's memory."""
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 8 * WITHOUT_LIMIT)
    return max(1, min(limit // 8 // (4 * n_problems * n * pitch_of(n)), MAX_GRID))


def _kind(settings: Request, arrays: Arrays) -> dict[str, bool]:
    """What kernels are compiled for, as in ``cuda/``."""
    constrained = arrays.labels is not None
    return {
        "CONSTRAINED": constrained,
        "RELATION": False,
        "FREE": settings.free or not constrained,
        "FIRST": settings.must_link_first,
        "CLAMP": constrained and settings.if_infeasible == "clamp",
        "COUNTS": settings.adjacency,
    }


def _noise(settings: Request) -> dict[str, bool]:
    # Noise times an epsilon of zero, which a compiled program cannot know, is no noise.
    return {"NOISY": True, "GUMBEL": settings.draws.noise == "gumbel", "ANTITHETIC": settings.draws.antithetic}


# --------------------------------------------------------------------------------------------- Everything in one launch


@triton.jit
def _one_launch(
    similarity, known, n_clusters, seed, first_draw, epsilon, n, pitch, n_draws, n_items,
    means, adjacency, zeros, values, words, keys, rows,
    BLOCK: tl.constexpr, COUNTS: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr, ANTITHETIC: tl.constexpr,
    CONSTRAINED: tl.constexpr, RELATION: tl.constexpr, FREE: tl.constexpr, FIRST: tl.constexpr, CLAMP: tl.constexpr,
    SIZE: tl.constexpr, ROUNDS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    ended = zeros  # one array, because each costs a launch of its own to clear
    if COUNTS:
        ended += (n_items // n_draws) * n * n
    solve_and_mean(
        similarity, known, known, means, adjacency, n_clusters, integer(seed), integer(first_draw),
        tl.load(epsilon), ended, zeros, values, words, as_keys(keys), rows, n, pitch, n_draws, n_items,
        BLOCK, COUNTS, NOISY, GUMBEL, ANTITHETIC, CONSTRAINED, RELATION, FREE, FIRST, CLAMP, SIZE, ROUNDS, WARPS,
    )  # fmt: skip


def _mean_in_one_launch(settings: Request, arrays: Arrays) -> Answer:
    n_problems, n, _ = arrays.similarity.shape
    n_draws, n_solves = settings.draws.n_draws, join(settings, arrays).n_solves
    n_items, warps, f32, i32 = n_problems * n_draws, warps_for(n), np.float32, np.int32
    programs = min(n_items, PROGRAMS)
    shares = (n_problems, n, n) if settings.adjacency else (4,)
    known = arrays.similarity if arrays.labels is None else arrays.labels
    noise = (arrays.seed, arrays.first_draw, arrays.epsilon)
    mean, adjacency, *_ = call(
        _one_launch,
        (programs,),
        warps,
        [arrays.similarity, known, arrays.n_clusters, *noise, n, pitch_of(n), n_draws, n_items],
        [
            empty(f32, n_problems),
            empty(f32, *shares),
            empty(i32, math.prod(shares) + n_problems),
            empty(f32, n_problems, n_solves, n_draws),
            empty(i32, programs, n, pitch_of(n)),
            empty(i32, programs, 2 * n, 2),
            empty(i32, programs, N_OWN.value, n),
        ],
        {
            "BLOCK": triton.next_power_of_2(n),
            **_kind(settings, arrays),
            **_noise(settings),
            "SIZE": TILE,
            "ROUNDS": by_rounds(n, n_items, multiprocessors()),
            "WARPS": warps,
        },
        zeroed=(2,),
    )
    return Answer(mean, adjacency if settings.adjacency else None)


# ----------------------------------------------------------------------------------- A chunk of draws, in four launches


class Forests(NamedTuple):
    """Of a chunk of draws, as in :class:`Answer`; how often each edge is in them; what is not wanted has no meaning."""

    counts: Array
    edges: Array
    labels: Array
    values: Array


@triton.jit
def _perturb(
    similarity, seed, first_draw, epsilon, n, pitch, first, n_chunk, words,
    NOISY: tl.constexpr, GUMBEL: tl.constexpr, ANTITHETIC: tl.constexpr, SIZE: tl.constexpr, DRAWS: tl.constexpr,
):  # fmt: skip
    perturb(
        similarity, words, integer(seed), integer(first_draw), tl.load(epsilon), n, pitch, first, n_chunk,
        NOISY, GUMBEL, ANTITHETIC, SIZE, DRAWS,
    )  # fmt: skip


@triton.jit
def _solve_draws(
    words, n_clusters, closures, n, pitch, n_chunk, n_solves, counts, edges, labels, values, keys, rows, numbers,
    BLOCK: tl.constexpr, JUMPS: tl.constexpr, CONSTRAINED: tl.constexpr, RELATION: tl.constexpr, FREE: tl.constexpr,
    FIRST: tl.constexpr, CLAMP: tl.constexpr, COUNTS: tl.constexpr, EDGES: tl.constexpr, WITH_LABELS: tl.constexpr,
    ROUNDS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    solve_draws(
        words, n_clusters, closures, closures, counts, edges, labels, values, as_keys(keys), rows, numbers,
        n, pitch, n_chunk, n_solves, 0, n_chunk, BLOCK, JUMPS, CONSTRAINED, RELATION, FREE, FIRST, CLAMP, COUNTS,
        EDGES, WITH_LABELS, ROUNDS, WARPS,
    )  # fmt: skip


@triton.jit
def _grow_units(
    words, n, pitch, old_keys, old_rows, old_numbers, keys, rows, numbers,
    FIRST: tl.constexpr, BLOCK: tl.constexpr, NARROW: tl.constexpr, N_PARTS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    grow_units(words, as_keys(keys), rows, numbers, n, pitch, FIRST, BLOCK, NARROW, N_PARTS, WARPS)


@triton.jit
def _write_constrained(
    words, closures, n, pitch, n_chunk, n_solves,
    old_counts, old_edges, old_labels, old_values, old_keys, old_rows, old_numbers,
    counts, edges, labels, values, keys, rows, numbers,
    BLOCK: tl.constexpr, JUMPS: tl.constexpr, RELATION: tl.constexpr, FIRST: tl.constexpr, COUNTS: tl.constexpr,
    EDGES: tl.constexpr, WITH_LABELS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    write_constrained(
        words, closures, closures, counts, edges, labels, values, as_keys(keys), rows, numbers,
        n, pitch, n_chunk, n_solves, 0, n_chunk, BLOCK, JUMPS, RELATION, FIRST, COUNTS, EDGES, WITH_LABELS, WARPS,
    )  # fmt: skip


def _find_chunk(settings: Request, arrays: Arrays, closures: Array, first: int, n_chunk: int) -> Forests:
    """The forests of draws ``first`` to ``first + n_chunk`` of symmetric similarities."""
    n_problems, n, _ = arrays.similarity.shape
    n_solves, items = join(settings, arrays).n_solves, n_problems * n_chunk
    pitch, block, warps, i32 = pitch_of(n), triton.next_power_of_2(n), warps_for(n), np.int32
    with_edges, with_labels = settings.detail != "mean", settings.detail == "forests"
    nothing, shape = empty(i32, 4), (n_problems, n_solves, n_chunk)
    forests = [
        empty(i32, n_problems, n, n) if settings.adjacency else nothing,
        empty(i32, *shape, n - 1, 2) if with_edges else nothing,
        empty(i32, *shape, n) if with_labels else nothing,
        empty(np.float32, *shape),
    ]
    scratch = [empty(i32, items, 2 * n, 2), empty(i32, items, N_ROWS.value, n), empty(i32, items, N_NUMBERS.value)]
    kind = _kind(settings, arrays)
    shared = {
        "BLOCK": block, "JUMPS": (n - 1).bit_length(), "RELATION": False, "FIRST": kind["FIRST"],
        "COUNTS": kind["COUNTS"], "EDGES": with_edges, "WITH_LABELS": with_labels, "WARPS": warps,
    }  # fmt: skip
    (words,) = call(
        _perturb,
        grid_of(n, n_problems, n_chunk),
        4,
        [arrays.similarity, arrays.seed, arrays.first_draw, arrays.epsilon, n, pitch, first, n_chunk],
        [empty(i32, items, n, pitch)],
        {**_noise(settings), "SIZE": TILE, "DRAWS": DRAWS_AT_ONCE},
    )
    rounds = not with_labels and by_rounds(n, items, multiprocessors())
    left = call(
        _solve_draws,
        (items,),
        warps,
        [words, arrays.n_clusters, closures, n, pitch, n_chunk, n_solves],
        [*forests, *scratch],
        {**kind, **shared, "ROUNDS": rounds},
        zeroed=(0,),
    )
    if kind["CONSTRAINED"]:
        if not with_labels:
            narrow, few = warps_inside(block)
            left[4:] = call(
                _grow_units,
                (PARTS * items,),
                few,
                [words, n, pitch, *left[4:]],
                scratch,
                {"FIRST": kind["FIRST"], "BLOCK": block, "NARROW": narrow, "N_PARTS": PARTS, "WARPS": few},
                reused=3,
            )
        inputs = [words, closures, n, pitch, n_chunk, n_solves, *left]
        left = call(_write_constrained, (items,), warps, inputs, [*forests, *scratch], shared, reused=7)
    return Forests(*left[:4])
