"""The forest solver for CPUs: Numba, threads over draws, noise made inside the kernel.

A draw costs one pass that writes ``similarity + epsilon * noise`` into a scratch matrix of its thread, and one Prim on
that matrix, for the forest without constraints. With labels and must-link groups the constrained forest comes out of
the same tree (``walk.py``); other constraints go through ``greedy.agglomerate``. Memory is O(threads * n^2 + n_draws *
n). The scratch matrix holds *ordered integers*, floats mapped to integers of the same order and size: comparisons and
maxima of integers run in vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust import noise as noise_definition
from diffclust.solvers.base import Answer, Request, host_answer
from diffclust.solvers.checks import check_reached, requested_clusters, symmetrise
from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.greedy import agglomerate
from diffclust.solvers.cpu.philox import BLOCKS, LISTED, PAD, perturb
from diffclust.solvers.cpu.sums import adjacency_counts, noise_sum
from diffclust.solvers.cpu.threads import contiguous, in_threads
from diffclust.solvers.cpu.trees import grow, sort_edges, write_forest
from diffclust.solvers.cpu.walk import closures_of_labels, closures_of_relations, label_forest, relation_of_closures

__all__ = ["noise_sum", "solve"]


@jit
def _solve_items(
    all_weights, items, limits, n_clusters, closures, labelled, n_closures, must_link_first, free, complete, keys,
    all_codes, parent, part, points, edges_out, labels_out, values_out, needs_greedy,
):  # fmt: skip
    """Solve items of ``problems x draws``. Without constraints, there are no closures.

    ``limits`` are two ordered integers: one below all of them, and that of a missing edge. ``keys`` to ``points`` are
    scratch. Constrained forests that only the greedy finds are left to it: ``needs_greedy[item]``.
    """
    n_draws, n, lowest = edges_out.shape[2], all_weights.shape[1], limits[0]
    key, edge_weights, spare_weights = keys[0], keys[1], keys[2]
    codes, spare_codes = all_codes[0], all_codes[1]
    leader, has_label, members, ends, n_inside = points[0], points[1], points[2], points[3], points[4]
    constrained = n_closures.shape[0] > 0
    for position in range(items.shape[0]):
        problem, draw = items[position] // n_draws, items[position] % n_draws
        weights, k = all_weights[position], n_clusters[problem]
        if k < 0:  # the problem has a NaN: see solve()
            continue
        by_greedy = constrained and n_closures[problem] < 0  # general cannot-links
        n_edges = np.int64(0)  # of a plain zero Numba would compile a version of its own
        if free or not by_greedy:
            n_edges = grow(weights, n, key, parent, lowest, codes, edge_weights, n_edges)
            sort_edges(codes, edge_weights, n_edges, lowest, spare_codes, spare_weights)
            while n_edges > 0 and edge_weights[n_edges - 1] <= limits[1]:
                n_edges -= 1
        for solve in range(edges_out.shape[1]):
            if not constrained or (free and solve == 0):
                n_kept = n - k if n - k < n_edges else n_edges
            else:
                if not by_greedy:
                    n_edges = label_forest(
                        weights, codes, edge_weights, n_edges, closures[problem], labelled[problem],
                        n_closures[problem], k, must_link_first, limits, part, key, parent, leader, has_label, members,
                        ends, n_inside,
                    )  # fmt: skip
                if by_greedy or n_edges < 0:  # missing edges cut a closure into pieces
                    needs_greedy[items[position]] = True
                    continue
                if complete:
                    sort_edges(codes, edge_weights, n_edges, lowest, spare_codes, spare_weights)
                n_kept = n_edges
            values_out[problem, solve, draw] = write_forest(
                codes, edge_weights, n_kept, complete, leader, edges_out[problem, solve, draw],
                labels_out[problem, solve, draw],
            )  # fmt: skip


@jit
def _solve_by_greedy(
    all_weights, items, limits, n_clusters, closures, labelled, relations, must_link_first, complete, keys, all_codes,
    between, apart, own_relation, points, edges_out, labels_out, values_out,
):  # fmt: skip
    """The constrained forests of ``items``: general cannot-links, or a closure in pieces."""
    n_draws, last = edges_out.shape[2], edges_out.shape[1] - 1
    edge_weights, spare_weights, codes, spare_codes = keys[0], keys[1], all_codes[0], all_codes[1]
    leader, members, ends = points[0], points[1], points[2]
    for position in range(items.shape[0]):
        problem, draw = items[position] // n_draws, items[position] % n_draws
        if relations.shape[0] == 0:
            relation_of_closures(closures[problem], labelled[problem], own_relation)
        n_edges = agglomerate(
            all_weights[position], relations[problem] if relations.shape[0] else own_relation, n_clusters[problem],
            must_link_first, limits[1], between, apart, leader, members, ends, codes, edge_weights,
        )  # fmt: skip
        if complete:
            sort_edges(codes, edge_weights, n_edges, limits[0], spare_codes, spare_weights)
        values_out[problem, last, draw] = write_forest(
            codes, edge_weights, n_edges, complete, leader, edges_out[problem, last, draw],
            labels_out[problem, last, draw],
        )  # fmt: skip


GRAIN = 2**16  # entries of weight matrices that are worth a thread's time
CHUNK = 2**17  # entries of weight matrices that a thread makes before it solves them: they stay in its caches


def solve(request: Request) -> Answer:
    """Solve all problems and draws; see :class:`diffclust.solvers.base.Request`."""
    similarity, draws = contiguous(symmetrise(request.similarity)), request.draws
    n_problems, n, _ = similarity.shape
    n_items, constrained, complete = n_problems * draws.n_draws, request.is_constrained, request.detail == "forests"
    free, must_link_first = request.free or not constrained, request.must_link_first
    shape = (n_problems, request.n_solves, draws.n_draws)
    edges = np.empty((*shape, max(n - 1, 0), 2), np.int32)
    trees = np.empty((*shape, n if complete else 0), np.int32)
    values = np.empty(shape, np.float64)
    needs_greedy = np.zeros(n_items, np.bool_)
    closures = np.empty((n_problems if constrained else 0, n), np.int32)
    labelled, n_closures = np.empty(closures.shape, np.bool_), np.empty(len(closures), np.int32)
    relations, label_range = np.empty((0, 0, 0), np.int8), None
    if request.relation is not None:
        relations = contiguous(request.relation, np.int8)
        closures_of_relations(relations, closures, labelled, n_closures)
    elif request.labels is not None:
        labels, label_range = contiguous(request.labels, np.int64), (np.empty_like(n_closures), n_closures)
        order = np.argsort(labels, axis=-1, kind="stable")
        closures_of_labels(labels, order, closures, labelled, n_closures, label_range[0])
    clusters = requested_clusters(request, label_range)
    is_broken = np.isnan(similarity).any(axis=(1, 2))
    integer = np.int32 if similarity.dtype == np.float32 else np.int64
    lowest, highest = np.iinfo(integer).min, np.iinfo(integer).max
    missing = int(np.array(-np.inf, similarity.dtype).view(integer)) ^ highest
    known = (
        np.array([lowest, missing], integer), np.where(is_broken, -1, np.minimum(clusters, n)).astype(np.int32),
        closures, labelled,
    )  # fmt: skip
    noise = (
        *noise_definition.split_seed(draws.seed), np.uint64(int(draws.first) % 2**64), draws.n_draws, draws.antithetic,
        np.float32(draws.epsilon), noise_definition.kernel_of(draws.noise),
    )  # fmt: skip
    n_blocks, size = (n + 1) // 2 * ((n + 3) // 2) // 2, max(1, CHUNK // max(n * n, 1))

    # Arrays are made by NumPy: Numba takes a tenth of a second to compile the making of one.
    def for_noise() -> tuple[Any, ...]:
        words, z = np.empty((4, BLOCKS), np.uint32), np.zeros((2, 2 * BLOCKS + PAD), np.float32)
        return words, z, np.empty((2, n_blocks if n_blocks <= LISTED else BLOCKS), np.uint32)

    def for_trees() -> tuple[Any, ...]:
        weights = np.empty((min(size, n_items), n, n + PAD), integer)
        return weights, np.empty((3, n + PAD), integer), np.empty((2, n), np.int64)

    def for_walk() -> tuple[Any, ...]:
        part = np.empty((n if constrained else 0, n + PAD), integer)
        return for_noise(), *for_trees(), np.empty(n + PAD, np.int32), part, np.empty((5, n), np.int32)

    def for_greedy() -> tuple[Any, ...]:
        pairs = np.empty((n, n), np.int64), np.empty((n, n), np.bool_), np.empty((n, n), np.int8)
        return for_noise(), *for_trees(), *pairs, np.empty((3, n), np.int32)

    def perturbed(items: NDArray[np.int64], scratch: tuple[Any, ...], weights: Any) -> Iterator[NDArray[np.int64]]:
        for start in range(0, len(items), size):
            some = items[start : start + size]
            perturb(similarity, *noise, some, *scratch, weights)
            yield some

    def by_walk(start: int, stop: int, scratch: tuple[Any, ...], weights: Any, *others: Any) -> None:
        for some in perturbed(np.arange(start, stop), scratch, weights):
            _solve_items(
                weights, some, *known, n_closures, must_link_first, free, complete, *others, edges, trees, values,
                needs_greedy,
            )  # fmt: skip

    def by_greedy(start: int, stop: int, scratch: tuple[Any, ...], weights: Any, *others: Any) -> None:
        for some in perturbed(left[start:stop], scratch, weights):
            _solve_by_greedy(
                weights, some, *known, relations, must_link_first, complete, *others, edges, trees, values
            )  # fmt: skip

    in_threads(by_walk, n_items, GRAIN // max(n * n, 1), for_walk)
    if is_broken.any():
        edges[is_broken], trees[is_broken], values[is_broken] = -1, 0, np.nan
    if needs_greedy.any():
        left = np.flatnonzero(needs_greedy)
        in_threads(by_greedy, len(left), 1, for_greedy)
    if request.if_infeasible == "raise":
        check_reached((edges[~is_broken, -1, ..., 0] >= 0).sum(-1), clusters[~is_broken], n, constrained)
    return host_answer(request, values, edges, trees, adjacency_counts)
