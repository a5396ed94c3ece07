"""A list of edges → the maximum spanning tree of its graph, in O(edges) memory (Kruskal, with a filter)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.solvers.compiled import jit
from diffclust.solvers.tree import find

_allocating = jit(error_model="python", allocates=True)
LEAST_BATCH = 1 << 16  # so many edges are sorted at once, or two for each point


def by_similarity(edges: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.int64]:
    """The order of edges (i, j), i < j: larger weights first, equal ones by smaller (i, j)."""
    return np.lexsort((edges[:, 1], edges[:, 0], -weights))


def maximum_spanning_tree(edges: NDArray[np.int32], weights: NDArray[Any], n_points: int) -> NDArray[np.int64]:
    """Positions of the edges of the maximum spanning tree, in the order of :func:`by_similarity`.

    Edges (m, 2) have i < j, and weights (m,) are finite. Where the graph has c pieces there are n_points - c positions.
    The strongest edges are sorted and joined first. Most of the others then connect points that are joined already, and
    are never sorted.
    """
    leader = np.arange(n_points, dtype=np.int32)
    size = max(2 * n_points, LEAST_BATCH)
    left = np.arange(len(edges))
    found = []
    while len(left):
        strength = weights[left]
        strong = np.ones(len(left), bool)
        if len(left) > size:
            strong = strength >= np.partition(strength, len(left) - size)[len(left) - size]
        batch = left[strong]
        batch = batch[by_similarity(edges[batch], weights[batch])]
        found.append(batch[_join(edges, batch, leader)])
        left = left[~strong]
        left = left[_apart(edges, left, leader)]
    return np.concatenate(found) if found else left


@_allocating
def _join(edges, rows, leader):
    """Which of these edges join two trees, taken one after the other."""
    joined = np.zeros(rows.shape[0], np.bool_)
    for position in range(rows.shape[0]):
        a, b = find(leader, edges[rows[position], 0]), find(leader, edges[rows[position], 1])
        if a != b:
            leader[max(a, b)] = min(a, b)
            joined[position] = True
    return joined


@_allocating
def _apart(edges, rows, leader):
    """Which of these edges have their ends in different trees."""
    apart = np.zeros(rows.shape[0], np.bool_)
    for position in range(rows.shape[0]):
        apart[position] = find(leader, edges[rows[position], 0]) != find(leader, edges[rows[position], 1])
    return apart
