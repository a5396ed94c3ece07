"""Points → a maximum spanning tree of their complete graph, without the n × n matrix.

The way of the data: ``metrics.py`` places points in a geometry that the kernels know, and turns lengths back into
similarities; ``tiles.py`` sorts the points into tiles, to which ``vectors.py`` measures distances; ``search.py`` lists
each one's nearest others; ``boruvka.py`` joins them to a tree; ``cpu.py`` calls these in turn. ``neighbours.py`` is the
other way, for millions of points: an approximate neighbour graph, joined to one tree. ``cuda.py`` is the exact tree on
a GPU, ``reachability.py`` that of robust single linkage.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.frameworks import framework_of, to_numpy

ALGORITHMS = ("auto", "complete", "kdtree")


def spanning_tree(
    points: Any, metric: str, n_neighbors: int | None, reachability: int | None, algorithm: str, progress: bool
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Edges (n - 1, 2) and similarities (n - 1,) by decreasing similarity, equal ones by smaller (i, j).

    Exact where the points are: an array, or a tensor on a GPU. With ``n_neighbors`` of an approximate neighbour graph,
    and with ``reachability`` of the mutual reachability of all pairs, on the host.
    """
    if n_neighbors is not None:
        from diffclust.solvers.points import neighbours

        return neighbours.spanning_tree(to_numpy(points), metric, n_neighbors, progress)
    if reachability is not None:
        from diffclust.solvers.points import reachability as robust

        return robust.spanning_tree(to_numpy(points), metric, reachability)
    if framework_of(points) == "torch":
        from diffclust.solvers.points import cuda

        return cuda.spanning_tree(points, metric, progress)
    from diffclust.solvers.points import cpu

    return cpu.spanning_tree(points, metric, algorithm, progress)


def nearest_points(points: NDArray[Any], others: NDArray[Any], metric: str) -> NDArray[np.int64]:
    """For each of ``others`` (m, d) the number of the point (n, d) nearest to it, of equal ones the first; exact."""
    from diffclust.solvers.points.cpu import first_equal
    from diffclust.solvers.points.metrics import METRICS, place_both
    from diffclust.solvers.points.search import nearest_points as search

    placed, queries = place_both(points, others, METRICS[metric])
    numbers = np.arange(len(placed))
    first = first_equal(placed)
    if first is not None:  # copies of a point make the search slow and are never the answer
        numbers = np.flatnonzero(first == numbers)
    return numbers[search(placed[numbers], queries, METRICS[metric].kind)[1][:, 0]]


def nearest_of_each(
    points: NDArray[Any], others: NDArray[Any], n_neighbors: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Squared distances and numbers (m, n_neighbors) of the points (n, d) nearest to each of ``others`` (m, d); exact.

    The nearest is first, and of equal ones that with the lowest number.
    """
    from diffclust.solvers.points.metrics import METRICS, place_both
    from diffclust.solvers.points.search import nearest_points as search

    placed, queries = place_both(points, others, METRICS["sqeuclidean"])
    distance, near = search(placed, queries, METRICS["sqeuclidean"].kind, n_neighbors)
    order = np.lexsort((near, distance))
    return np.take_along_axis(distance, order, 1), np.take_along_axis(near, order, 1).astype(np.int64)
