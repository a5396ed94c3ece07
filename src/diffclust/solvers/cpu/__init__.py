"""The forest solver for CPUs: Numba, threads over draws, noise made inside the kernel.

A draw costs one pass that writes ``similarity + epsilon * noise`` into a scratch matrix of its thread, and one Prim per
solve on that matrix. Memory is O(threads * n^2 + n_draws * n). The scratch matrix holds *ordered integers*, floats
mapped to integers of the same order and size: comparisons and maxima of integers run in vectors.

One routine, ``trees.grow``, carries both solves. With labels and must-links first the constrained forest is again
one maximum spanning tree: it is grown inside each labelled group, then from all labelled points at once, as if they
were glued to one root, to the unlabelled ones. Constraints that are not of that form go through
``greedy.agglomerate``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust import noise as noise_definition
from diffclust.similarity import symmetrise
from diffclust.solvers.base import Answer, Request
from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.greedy import agglomerate
from diffclust.solvers.cpu.noise import BLOCKS, copy_ordered, ordered, perturb
from diffclust.solvers.cpu.sums import (
    adjacency_counts,
    adjacency_products,
    connectivity_counts,
    connectivity_products,
    mean_values,
    noise_sum,
)
from diffclust.solvers.cpu.threads import in_threads, plain
from diffclust.solvers.cpu.trees import free_forest, label_forest, sort_edges, write_forest
from diffclust.validation import check_bounds, check_reached, clamp_clusters

__all__ = [
    "adjacency_counts",
    "adjacency_products",
    "connectivity_counts",
    "connectivity_products",
    "noise_sum",
    "solve",
]


@jit
def _group_points(labels, by_group, group_ends):
    """Points sorted by label, unlabelled (negative) last; returns the number of groups."""
    n = labels.shape[0]
    order = np.argsort(labels, kind="mergesort")
    n_unknown = 0
    while n_unknown < n and labels[order[n_unknown]] < 0:
        n_unknown += 1
    n_known = n - n_unknown
    for c in range(n):
        by_group[c] = order[(c + n_unknown) % n]
    n_groups = 0
    for c in range(n_known):
        if c + 1 == n_known or labels[by_group[c]] != labels[by_group[c + 1]]:
            group_ends[n_groups] = c + 1
            n_groups += 1
    return n_groups


@jit
def _relation_of_labels(labels, relation):
    n = labels.shape[0]
    for i in range(n):
        for j in range(n):
            known = labels[i] >= 0 and labels[j] >= 0
            relation[i, j] = (1 if labels[i] == labels[j] else 0) if known else -1
        relation[i, i] = 1


@jit
def _solve_items(
    similarity, lowest, n_clusters, labels, relation, form, must_link_first, free, complete, key_0, key_1, first_draw,
    antithetic, epsilon, kind, start, stop, edges_out, labels_out, values_out,
):  # fmt: skip
    """Solve items start..stop-1 of ``problems x draws``. ``form``: NO_CONSTRAINTS, LABELS or RELATION.

    ``lowest`` is an array of the ordered integers' type, with one entry below all of them.
    """
    n_draws, n = edges_out.shape[2], similarity.shape[1]
    blocks = np.empty((2, BLOCKS), np.uint32)
    words, z = np.empty((4, BLOCKS), np.uint32), np.empty((4, BLOCKS), np.float32)
    weights = np.empty((n, n), lowest.dtype)
    missing = lowest.dtype.type(ordered(similarity.dtype.type(-np.inf)))
    key, parent = np.empty(n, lowest.dtype), np.empty(n, np.int32)
    codes, edge_weights = np.empty(n, np.int64), np.empty(n, lowest.dtype)
    spare_codes, spare_weights = np.empty(n, np.int64), np.empty(n, lowest.dtype)
    members, is_open = np.empty(n, np.int32), np.empty(n, np.int32)
    scratch = members, is_open, key, parent, codes, edge_weights, spare_codes, spare_weights
    by_group, group_ends = np.empty(n, np.int32), np.empty(n, np.int32)
    block, alive, nearest = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    between, apart = np.empty((0, 0), np.int64), np.empty((0, 0), np.bool_)
    own_relation = np.empty((0, 0), np.int8)
    n_groups, grouped = 0, -1

    for item in range(start, stop):
        problem, draw = item // n_draws, item % n_draws
        k = n_clusters[problem]
        edges, trees, values = edges_out[problem, :, draw], labels_out[problem, :, draw], values_out[problem, :, draw]
        if k < 0:  # the problem has a NaN: see solve()
            edges[:] = -1
            trees[:] = 0
            values[:] = np.nan
            continue
        if epsilon == 0:
            copy_ordered(similarity[problem], weights)
        else:
            number = first_draw + np.uint64(draw)
            perturb(similarity[problem], key_0, key_1, number, antithetic, epsilon, kind, blocks, words, z, weights)
        if free:
            n_edges = free_forest(weights, k, lowest[0], missing, complete, scratch)
            values[0] = write_forest(codes, edge_weights, n_edges, complete, parent, edges[0], trees[0])
        if form == NO_CONSTRAINTS:
            continue
        n_edges = -1
        if form == LABELS and must_link_first:
            if grouped != problem:
                n_groups = _group_points(labels[problem], by_group, group_ends)
                grouped = problem
            n_edges = label_forest(weights, by_group, group_ends, n_groups, k, lowest[0], missing, complete, scratch)
        if n_edges < 0:  # constraints of another form, or a labelled group that missing edges cut into pieces
            if between.shape[0] != n:
                between, apart = np.empty((n, n), np.int64), np.empty((n, n), np.bool_)
                own_relation = np.empty((n, n), np.int8)
            if form == LABELS:
                _relation_of_labels(labels[problem], own_relation)
            else:
                own_relation[:] = relation[problem]
            n_edges = agglomerate(
                weights, own_relation, k, must_link_first, missing, between, apart, block, alive, nearest, codes,
                edge_weights,
            )  # fmt: skip
            sort_edges(codes, edge_weights, 0, n_edges, spare_codes, spare_weights)
        values[-1] = write_forest(codes, edge_weights, n_edges, complete, parent, edges[-1], trees[-1])


NO_CONSTRAINTS, LABELS, RELATION = range(3)


def solve(request: Request) -> Answer:
    """Solve all problems and draws; see :class:`diffclust.solvers.base.Request`."""
    similarity, labels, relation, draws = (
        symmetrise(request.similarity),
        request.labels,
        request.relation,
        request.draws,
    )
    n_problems, n, _ = similarity.shape
    form = NO_CONSTRAINTS if not request.is_constrained else LABELS if relation is None else RELATION
    free = request.free or form == NO_CONSTRAINTS
    complete = request.detail == "forests"
    clusters = _clusters(request)
    shape = (n_problems, request.n_solves, draws.n_draws)
    edges = np.empty((*shape, max(n - 1, 0), 2), np.int32)
    trees = np.empty((*shape, n if complete else 0), np.int32)
    values = np.empty(shape, np.float64)
    is_broken = np.isnan(similarity).any(axis=(1, 2))
    key_0, key_1 = noise_definition.split_seed(draws.seed)
    integer = np.int32 if similarity.dtype == np.float32 else np.int64
    arguments = (
        plain(similarity), np.array([np.iinfo(integer).min], integer),
        np.where(is_broken, -1, clusters).astype(np.int32),
        np.empty((0, 0), np.int64) if labels is None else plain(labels, np.int64),
        np.empty((0, 0, 0), np.int8) if relation is None else plain(relation, np.int8),
        form, request.must_link_first, free, complete, key_0, key_1, np.uint64(int(draws.first) % 2**64),
        draws.antithetic, np.float32(draws.epsilon), noise_definition.KINDS.index(draws.noise),
    )  # fmt: skip
    in_threads(
        lambda start, stop: _solve_items(*arguments, start, stop, edges, trees, values), n_problems * draws.n_draws
    )
    if request.if_infeasible == "raise":
        check_reached((edges[~is_broken, -1, ..., 0] >= 0).sum(-1), clusters[~is_broken], n, request.is_constrained)
    mean = mean_values(values).astype(similarity.dtype)
    adjacency = adjacency_counts(edges, n).astype(similarity.dtype) / draws.n_draws if request.adjacency else None
    if request.detail == "mean":
        return Answer(mean, adjacency)
    return Answer(mean, adjacency, values, edges, trees if complete else None)


def _clusters(request: Request) -> NDArray[Any]:
    """k of every problem, (problems,), checked or moved into the range of the labels as asked."""
    (n_problems, n, _), k = request.similarity.shape, request.n_clusters
    clusters = np.full(n_problems, k) if isinstance(k, int) else k
    if request.if_infeasible == "clamp" and request.labels is not None:
        return clamp_clusters(clusters, request.labels)
    if request.if_infeasible == "raise" and n_problems:
        check_bounds(int(clusters.min()), int(clusters.max()), n)
    return clusters
