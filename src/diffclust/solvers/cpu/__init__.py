"""The forest solver for CPUs: Numba, threads over draws, noise made inside the kernel.

A draw costs one pass that writes ``similarity + epsilon * noise`` into a scratch matrix of its thread, and one Prim on
that matrix, for the forest without constraints. With labels and must-link groups the constrained forest comes out of
the same tree (``walk.py``); other constraints go through ``greedy.agglomerate``. Memory is O(threads * n^2 + n_draws *
n). The scratch matrix holds *ordered integers*, floats mapped to integers of the same order and size: comparisons and
maxima of integers run in vectors.
"""

from __future__ import annotations

import numpy as np

from diffclust import noise as noise_definition
from diffclust.solvers.base import Answer, Request, host_answer
from diffclust.solvers.checks import check_reached, requested_clusters, symmetrise
from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.greedy import agglomerate
from diffclust.solvers.cpu.philox import PAD, noise_scratch, ordered, perturb
from diffclust.solvers.cpu.sums import adjacency_counts, noise_sum
from diffclust.solvers.cpu.threads import contiguous, in_threads
from diffclust.solvers.cpu.trees import grow, sort_edges, write_forest
from diffclust.solvers.cpu.walk import closures_of_labels, closures_of_relation, label_forest, relation_of_closures

__all__ = ["noise_sum", "solve"]


@jit(allocates=True)
def _solve_items(
    similarity, lowest, n_clusters, labels, order, relation, form, must_link_first, free, complete, key_0, key_1,
    first_draw, antithetic, epsilon, kind, start, stop, edges_out, labels_out, values_out, needs_greedy,
):  # fmt: skip
    """Solve items start..stop-1 of ``problems x draws``. ``form``: NO_CONSTRAINTS, LABELS or RELATION.

    ``lowest`` is an array of the ordered integers' type, with one entry below all of them. ``order`` sorts the labels.
    Constrained forests that only the greedy finds are left to :func:`_solve_by_greedy`: ``needs_greedy[item]``.
    """
    n_draws, n = edges_out.shape[2], similarity.shape[1]
    blocks, words, z = noise_scratch()
    weights = np.empty((n, n + PAD), lowest.dtype)
    missing = lowest.dtype.type(ordered(similarity.dtype.type(-np.inf)))
    codes, spare_codes = np.empty(n, np.int64), np.empty(n, np.int64)
    edge_weights, spare_weights = np.empty(n, lowest.dtype), np.empty(n, lowest.dtype)
    key, parent, cap = np.empty(n, lowest.dtype), np.empty(n, np.int32), np.empty(n, lowest.dtype)
    closure, labelled = np.empty(n, np.int32), np.empty(n, np.bool_)
    leader, has_label, ends = np.empty(n, np.int32), np.empty(n, np.bool_), np.empty(n, np.int32)
    members, n_inside = np.empty(n, np.int32), np.empty(n, np.int32)
    part = np.empty((n if form != NO_CONSTRAINTS else 0, n + PAD), lowest.dtype)
    n_closures, problem_of_closures = -1, -1

    for item in range(start, stop):
        problem, draw = item // n_draws, item % n_draws
        k = n_clusters[problem]
        edges, trees, values = edges_out[problem, :, draw], labels_out[problem, :, draw], values_out[problem, :, draw]
        if k < 0:  # the problem has a NaN: see solve()
            edges[:] = -1
            trees[:] = 0
            values[:] = np.nan
            continue
        number = first_draw + np.uint64(draw)
        perturb(similarity[problem], key_0, key_1, number, antithetic, epsilon, kind, blocks, words, z, weights)
        if form != NO_CONSTRAINTS and problem_of_closures != problem:
            problem_of_closures = problem
            if form == LABELS:
                n_closures = closures_of_labels(labels[problem], order[problem], closure, labelled)
            else:
                n_closures = closures_of_relation(relation[problem], closure, labelled)
        n_edges = 0
        if free or n_closures >= 0:
            n_edges = grow(weights, n, key, parent, cap, lowest[0], codes, edge_weights, np.int64(0))
            sort_edges(codes, edge_weights, n_edges, spare_codes, spare_weights)
            while n_edges > 0 and edge_weights[n_edges - 1] <= missing:
                n_edges -= 1
        if free:
            n_kept = min(n_edges, max(n - k, 0))
            values[0] = write_forest(codes, edge_weights, n_kept, complete, leader, edges[0], trees[0])
        if form == NO_CONSTRAINTS:
            continue
        if n_closures >= 0:
            n_edges = label_forest(
                weights, codes, edge_weights, n_edges, (closure, labelled, n_closures), k, must_link_first, lowest[0],
                missing, part, (key, parent, cap), (leader, has_label, members, ends, n_inside),
            )  # fmt: skip
        if n_closures < 0 or n_edges < 0:  # general cannot-links, or a closure that missing edges cut into pieces
            needs_greedy[item] = True
            continue
        if complete:
            sort_edges(codes, edge_weights, n_edges, spare_codes, spare_weights)
        values[-1] = write_forest(codes, edge_weights, n_edges, complete, leader, edges[-1], trees[-1])


@jit(allocates=True)
def _solve_by_greedy(
    similarity, lowest, n_clusters, labels, order, relation, form, must_link_first, free, complete, key_0, key_1,
    first_draw, antithetic, epsilon, kind, items, start, stop, edges_out, labels_out, values_out,
):  # fmt: skip
    """The constrained forests of ``items[start:stop]``: general cannot-links, or a closure in pieces."""
    n_draws, n = edges_out.shape[2], similarity.shape[1]
    blocks, words, z = noise_scratch()
    weights = np.empty((n, n + PAD), lowest.dtype)
    missing = lowest.dtype.type(ordered(similarity.dtype.type(-np.inf)))
    codes, spare_codes = np.empty(n, np.int64), np.empty(n, np.int64)
    edge_weights, spare_weights = np.empty(n, lowest.dtype), np.empty(n, lowest.dtype)
    leader, members, ends = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    closure, labelled = np.empty(n, np.int32), np.empty(n, np.bool_)
    between, apart = np.empty((n, n), np.int64), np.empty((n, n), np.bool_)
    own_relation = np.empty((n, n), np.int8)
    for position in range(start, stop):
        problem, draw = items[position] // n_draws, items[position] % n_draws
        number = first_draw + np.uint64(draw)
        perturb(similarity[problem], key_0, key_1, number, antithetic, epsilon, kind, blocks, words, z, weights)
        if form == LABELS:
            closures_of_labels(labels[problem], order[problem], closure, labelled)
            relation_of_closures(closure, labelled, own_relation)
        n_edges = agglomerate(
            weights, own_relation if form == LABELS else relation[problem], n_clusters[problem], must_link_first,
            missing, between, apart, leader, members, ends, codes, edge_weights,
        )  # fmt: skip
        if complete:
            sort_edges(codes, edge_weights, n_edges, spare_codes, spare_weights)
        values_out[problem, -1, draw] = write_forest(
            codes, edge_weights, n_edges, complete, leader, edges_out[problem, -1, draw], labels_out[problem, -1, draw]
        )


NO_CONSTRAINTS, LABELS, RELATION = range(3)
GRAIN = 2**16  # entries of weight matrices that are worth a thread's time


def solve(request: Request) -> Answer:
    """Solve all problems and draws; see :class:`diffclust.solvers.base.Request`."""
    similarity, draws = symmetrise(request.similarity), request.draws
    labels, relation = request.labels, request.relation
    n_problems, n, _ = similarity.shape
    form = NO_CONSTRAINTS if not request.is_constrained else LABELS if relation is None else RELATION
    free = request.free or form == NO_CONSTRAINTS
    complete = request.detail == "forests"
    clusters = requested_clusters(request)
    shape = (n_problems, request.n_solves, draws.n_draws)
    edges = np.empty((*shape, max(n - 1, 0), 2), np.int32)
    trees = np.empty((*shape, n if complete else 0), np.int32)
    values = np.empty(shape, np.float64)
    is_broken = np.isnan(similarity).any(axis=(1, 2))
    key_0, key_1 = noise_definition.split_seed(draws.seed)
    known = np.empty((0, 0), np.int64) if labels is None else contiguous(labels, np.int64)
    needs_greedy = np.zeros(n_problems * draws.n_draws, np.bool_)
    integer = np.int32 if similarity.dtype == np.float32 else np.int64
    arguments = (
        contiguous(similarity), np.array([np.iinfo(integer).min], integer),
        np.where(is_broken, -1, clusters).astype(np.int32),
        known, np.argsort(known, axis=-1, kind="stable"),
        np.empty((0, 0, 0), np.int8) if relation is None else contiguous(relation, np.int8),
        form, request.must_link_first, free, complete, key_0, key_1, np.uint64(int(draws.first) % 2**64),
        draws.antithetic, np.float32(draws.epsilon), noise_definition.kernel_of(draws.noise),
    )  # fmt: skip
    in_threads(
        lambda start, stop: _solve_items(*arguments, start, stop, edges, trees, values, needs_greedy),
        n_problems * draws.n_draws,
        grain=GRAIN // max(n * n, 1),
    )
    if needs_greedy.any():
        items = np.flatnonzero(needs_greedy)
        in_threads(
            lambda start, stop: _solve_by_greedy(*arguments, items, start, stop, edges, trees, values), len(items)
        )
    if request.if_infeasible == "raise":
        check_reached((edges[~is_broken, -1, ..., 0] >= 0).sum(-1), clusters[~is_broken], n, request.is_constrained)
    return host_answer(request, values, edges, trees, adjacency_counts)
