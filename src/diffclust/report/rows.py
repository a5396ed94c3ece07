"""The rows that a page shows, and the forest between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.forest import Hierarchy

LEAST_SHOWN = 3  # rows that are shown, at least, of every cluster at any position of the sliders


def choose_rows(
    limit: int,
    clusters: NDArray[Any],
    labelled: NDArray[np.bool_],
    others: Sequence[NDArray[Any]] = (),
    always: Sequence[int] = (),
) -> NDArray[np.int64]:
    """At most ``limit`` row numbers, in order, in proportion to the sizes of clusters. Labelled rows count four times.

    The rows ``always`` are taken first, then a few rows of each cluster of the clusterings ``others``.
    """
    random = np.random.default_rng(0)
    rank, size = _ranks(2 * clusters + labelled, random)
    priority = (rank + 0.5) / size * np.where(labelled, 0.25, 1.0)
    for groups in others:
        priority[_ranks(groups, random)[0] < LEAST_SHOWN] = 0
    priority[list(always)] = -1
    return np.sort(np.argsort(priority, kind="stable")[:limit])


def _ranks(groups: NDArray[Any], random: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row its position in a random order of its group, and the size of the group."""
    group, size = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    shuffled = random.permutation(len(group))
    order = shuffled[np.argsort(group[shuffled], kind="stable")]
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(np.cumsum(size) - size, size)
    return rank, size[group]


def edges_between(hierarchy: Hierarchy, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The forest between the shown rows: edges as positions in ``rows``, and which of them are must-links.

    Each hidden row is merged into the shown row that is nearest along the forest.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    n, edges = hierarchy.n_points, hierarchy.edges
    piece = np.full(n, -1)
    piece[rows] = np.arange(len(rows))
    if len(rows) < n:
        graph = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n)).tocsr()
        sources = dijkstra(graph, False, rows, unweighted=True, min_only=True, return_predecessors=True)[2]
        reached = sources >= 0
        piece[reached] = piece[sources[reached]]
    ends = piece[edges]
    between = (ends[:, 0] != ends[:, 1]) & (ends >= 0).all(1)
    must_link = np.arange(len(edges)) < hierarchy.n_fixed
    return ends[between], must_link[between]
