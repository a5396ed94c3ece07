"""How sure a row's cluster is: the probability of each cluster, from three witnesses.

The witnesses are other partitions of the same rows (*votes*), the clusters of a row's neighbours (*shares*), and the
density of each cluster where the row is. A softmax of their weighted logarithms is the probability. The weights are
fitted to rows whose labels were hidden (:mod:`diffclust.evidence`), so that of the rows with probability 0.8 about four
in five are right. Without such rows they are ``WEIGHTS``, and ``ALONE``
where there is one partition only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.cuts import GAUSSIAN_DIMENSIONS, leading_components, log_densities
from diffclust.threads import small_in_one_thread

NEIGHBOURS = 15  # at most, whose clusters count
WEIGHTS = (0.5, 0.3, 0.03, 0.0)  # of votes, shares, densities, and of being a new cluster
ALONE = (0.0, 1.0, 0.0, 0.0)  # the weights where no other partition votes
SPREADS = (0.5, 0.5, 0.05, 1.0)  # how far fitted weights may easily be from these
LEAST_LOG_DENSITY = -50.0

Floats = NDArray[np.float64]


@small_in_one_thread
def witnesses(
    embedding: Any,
    clusters: NDArray[Any],
    others: Iterable[NDArray[Any]],
    new: NDArray[np.bool_],
    metric: str = "sqeuclidean",
) -> Floats:
    """What speaks for each cluster of each row.

    Args:
        embedding: (n, d) the rows, or a matrix (n, n) of distances with metric "precomputed".
        clusters: (n,) their clusters, from 0 to k - 1.
        others: other partitions (n,) of the same rows.
        new: (k,) which clusters hold no labelled class.
        metric: of neighbours. Densities are Euclidean, and left out with other metrics.

    Returns:
        (4, n, k) logarithms of votes, shares and densities, and ``new``.
    """
    n, k = len(clusters), len(new)
    partitions = [clusters, *others]
    votes = sum(_votes(clusters, other, k) for other in partitions) / len(partitions)
    density = np.zeros((n, k))
    if metric in ("sqeuclidean", "euclidean"):
        own = np.zeros((n, k))
        own[np.arange(n), clusters] = 1
        density = log_densities(leading_components(np.asarray(embedding, np.float64), GAUSSIAN_DIMENSIONS), own)
        density -= np.logaddexp.reduce(density, axis=1)[:, None]
    return np.stack(
        [
            np.log(votes + 0.5 / (len(partitions) * k)),
            np.log(neighbour_shares(embedding, clusters, k, metric) + 1 / (NEIGHBOURS * k)),
            np.maximum(density, LEAST_LOG_DENSITY),
            np.broadcast_to(new, (n, k)),
        ]
    )


def probabilities(speaking: Floats, weights: Sequence[float] = WEIGHTS) -> Floats:
    """(n, k) the probability of each cluster, from :func:`witnesses`; rows sum to one."""
    from scipy.special import softmax

    return np.asarray(softmax(np.tensordot(weights, speaking, 1), axis=1))


def fit_weights(speaking: Floats, right: NDArray[np.int64]) -> tuple[float, ...]:
    """The weights under which the right clusters of some rows are most probable, and near ``WEIGHTS``.

    Args:
        speaking: (4, m, k) of :func:`witnesses`.
        right: (m,) the cluster that each row belongs to.

    Returns:
        Four numbers.
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    rows = np.arange(len(right))

    def cost(weights: Floats) -> float:
        likelihood = log_softmax(np.tensordot(weights, speaking, 1), axis=1)[rows, right].sum()
        return float(0.5 * (((weights - WEIGHTS) / SPREADS) ** 2).sum() - likelihood)

    bounds = [(0, None), (0, None), (0, None), (None, None)]
    return tuple(float(each) for each in minimize(cost, WEIGHTS, method="L-BFGS-B", bounds=bounds).x)


def neighbour_shares(embedding: Any, clusters: NDArray[Any], n_clusters: int, metric: str = "sqeuclidean") -> Floats:
    """The share of each row's nearest others that are in each cluster.

    Args:
        embedding: (n, d) the rows.
        clusters: (n,) their clusters, from 0.
        n_clusters: k.
        metric: as in :func:`witnesses`.

    Returns:
        (n, k) shares; rows sum to one.

    >>> neighbour_shares(np.array([[0.0], [0.1], [5.0], [5.1]]), np.array([0, 0, 1, 1]), 2)[0].round(2).tolist()
    [0.33, 0.67]
    """
    from sklearn.neighbors import NearestNeighbors

    n = len(clusters)
    n_neighbours = min(NEIGHBOURS, max(3, n // (3 * n_clusters)), n - 1)  # not many more than a small cluster has
    if n_neighbours < 1:
        return np.ones((n, n_clusters))
    if metric == "precomputed":
        distances = np.array(embedding, np.float64)
        np.fill_diagonal(distances, np.inf)
        nearest = np.argpartition(distances, n_neighbours - 1, axis=1)[:, :n_neighbours]
    else:
        model = NearestNeighbors(n_neighbors=n_neighbours, metric=metric.replace("sq", ""))
        nearest = model.fit(embedding).kneighbors(return_distance=False)
    shares = np.zeros((n, n_clusters))
    np.add.at(shares, (np.repeat(np.arange(n), n_neighbours), clusters[nearest].ravel()), 1 / n_neighbours)
    return shares


def _votes(clusters: NDArray[Any], other: NDArray[Any], n_clusters: int) -> Floats:
    """(n, k) 1 where another partition puts a row, its clusters matched with these so that most rows agree."""
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    matched = np.full(int(other.max()) + 1, -1)
    ours, theirs = linear_sum_assignment(contingency_matrix(clusters, other), maximize=True)
    matched[np.unique(other)[theirs]] = np.unique(clusters)[ours]
    vote = matched[other]
    votes = np.zeros((len(clusters), n_clusters))
    votes[np.flatnonzero(vote >= 0), vote[vote >= 0]] = 1
    return votes
