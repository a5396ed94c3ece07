"""Which of the clustered rows a new row joins."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.cuts import MANY_CLUSTERS
from diffclust.solvers import points as solvers_of_points

VOTERS = 15  # rows around a new one that say which of many clusters it is in


def joined_rows(points: NDArray[Any], clusters: NDArray[Any], others: NDArray[Any]) -> NDArray[np.int64]:
    """The number of the clustered row, of ``points`` (n, d), that each of ``others`` (m, d) joins: the nearest one.

    Of more than 20 clusters it is the nearest one in the cluster that most of the 15 nearest rows are in, because there
    are many borders to be on the wrong side of. A new row that equals a clustered one joins that.

    >>> points = np.append(np.arange(30.0), 3.6)[:, None]
    >>> clusters = np.append(np.arange(30) // 6, 9) + 20  # the last one is a stray
    >>> joined_rows(points, clusters, np.array([[3.5], [3.6]])).tolist()
    [3, 30]
    """
    points, others = np.asarray(points, np.float64), np.asarray(others, np.float64)
    if clusters.max() < MANY_CLUSTERS:
        return solvers_of_points.nearest_points(points, others, "sqeuclidean")
    distance, near = solvers_of_points.nearest_of_each(points, others, min(VOTERS, len(points)))
    votes = count_votes(clusters[near])
    votes[distance == 0] = near.shape[1] + 1
    return near[np.arange(len(near)), votes.argmax(1)]  # of equal votes the first, the nearest


def count_votes(clusters: NDArray[Any]) -> NDArray[np.int64]:
    """How many neighbours of a row are in the cluster of each of them, (m, neighbours).

    >>> count_votes(np.array([[4, 7, 4]])).tolist()
    [[2, 1, 2]]
    """
    return np.stack([(clusters == each[:, None]).sum(1) for each in clusters.T], axis=1)
