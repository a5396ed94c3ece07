"""How sure a row's cluster is: the probability of each cluster, from four witnesses.

The witnesses are other partitions of the same rows (*votes*), the clusters of a row's neighbours (*shares*), the
density of each cluster where the row is, and for new clusters the distance from the labelled rows. A softmax of their
weighted logarithms is the probability. The weights are fitted to rows whose labels were hidden
(:mod:`diffclust.evidence`), so that of the rows with probability 0.8 about four in five are right. Without such rows
they are :func:`expected_weights`, and ``ALONE`` where there is one partition only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.cuts import GAUSSIAN_DIMENSIONS, leading_components, log_densities
from diffclust.threads import small_in_one_thread

NEIGHBOURS = 15  # at most, whose clusters count
# Weights of votes, shares, densities, of being a new cluster, and of a new cluster's distance from labelled rows.
WEIGHTS = (0.8, 0.11, 0.04, 0.0, 0.3)  # where cuts of the input agree with those of the embedding
ALONE = (0.0, 1.0, 0.0, 0.0, 0.0)  # where no other partition votes
SPREADS = (0.5, 0.5, 0.05, 1.0, 0.5)  # how far fitted weights may easily be from the expected ones
USUAL_AGREEMENT = 0.6  # of input and embedding, where it is not known
LEAST_LOG_DENSITY = -50.0

Floats = NDArray[np.float64]


@small_in_one_thread
def witnesses(
    embedding: Any,
    clusters: NDArray[Any],
    others: Iterable[NDArray[Any]],
    new: NDArray[np.bool_],
    known: NDArray[np.bool_],
    metric: str = "sqeuclidean",
) -> Floats:
    """What speaks for each cluster of each row.

    Args:
        embedding: (n, d) the rows, or a matrix (n, n) of distances with metric "precomputed".
        clusters: (n,) their clusters, from 0 to k - 1.
        others: other partitions (n,) of the same rows.
        new: (k,) which clusters hold no labelled class.
        known: (n,) which rows are labelled.
        metric: of neighbours. Densities and distances are Euclidean, and left out with other metrics.

    Returns:
        (5, n, k) logarithms of votes, shares and densities, ``new``, and :func:`remoteness` for new clusters.
    """
    n, k = len(clusters), len(new)
    partitions = [clusters, *others]
    votes = sum(_votes(clusters, other, k) for other in partitions) / len(partitions)
    density, remote = np.zeros((n, k)), np.zeros(n)
    if metric in ("sqeuclidean", "euclidean"):
        own = np.zeros((n, k))
        own[np.arange(n), clusters] = 1
        density = log_densities(leading_components(np.asarray(embedding, np.float64), GAUSSIAN_DIMENSIONS), own)
        density -= np.logaddexp.reduce(density, axis=1)[:, None]
        remote = remoteness(embedding, known) if new.any() else remote
    return np.stack(
        [
            np.log(votes + 0.5 / (len(partitions) * k)),
            np.log(neighbour_shares(embedding, clusters, k, metric) + 1 / (NEIGHBOURS * k)),
            np.maximum(density, LEAST_LOG_DENSITY),
            np.broadcast_to(new, (n, k)),
            remote[:, None] * new,
        ]
    )


def probabilities(speaking: Floats, weights: Sequence[float] = WEIGHTS) -> Floats:
    """(n, k) the probability of each cluster, from :func:`witnesses`; rows sum to one."""
    from scipy.special import softmax

    return np.asarray(softmax(np.tensordot(weights, speaking, 1), axis=1))


def expected_weights(agreement: float) -> tuple[float, ...]:
    """The weights before any row says how far to trust the witnesses.

    Cuts of one embedding may agree because the training has made up its clusters. Then cuts of the input find others.

    Args:
        agreement: the mean adjusted Rand index of cuts of the input with cuts of the embedding.

    Returns:
        Five numbers.
    """
    votes, shares, densities, *of_new = WEIGHTS
    sure = max(agreement, 0.0)
    return votes * sure, shares * sure, densities * sure, *of_new


def fit_weights(speaking: Floats, right: NDArray[np.int64], expected: Sequence[float]) -> tuple[float, ...]:
    """The weights under which the right clusters of some rows are most probable, and near the expected ones.

    Args:
        speaking: (5, m, k) of :func:`witnesses`.
        right: (m,) the cluster that each row belongs to.
        expected: of :func:`expected_weights`.

    Returns:
        Five numbers.
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    rows = np.arange(len(right))

    def cost(weights: Floats) -> float:
        likelihood = log_softmax(np.tensordot(weights, speaking, 1), axis=1)[rows, right].sum()
        return float(0.5 * (((weights - expected) / SPREADS) ** 2).sum() - likelihood)

    bounds = [(0, None), (0, None), (0, None), (None, None), (0, None)]
    return tuple(float(each) for each in minimize(cost, expected, method="L-BFGS-B", bounds=bounds).x)


def remoteness(embedding: Any, known: NDArray[np.bool_]) -> Floats:
    """How far each row is from the labelled ones, beside how far it is from its neighbours.

    Args:
        embedding: (n, d) the rows.
        known: (n,) which rows are labelled.

    Returns:
        (n,) the logarithm of the distance to the nearest other labelled row over that to the 15th neighbour, with
        median 0 and deviation 1; zeros where there are fewer than two labelled rows.

    >>> points = np.concatenate([np.linspace(0, 1, 20), np.linspace(9, 10, 20)])[:, None]
    >>> found = remoteness(points, np.arange(40) < 3)
    >>> bool(found[20:].min() > found[:20].max())
    True
    """
    from sklearn.neighbors import NearestNeighbors

    points = np.asarray(embedding, np.float64)
    labelled = np.flatnonzero(known)
    if len(labelled) < 2:
        return np.zeros(len(points))
    around = NearestNeighbors(n_neighbors=min(NEIGHBOURS, len(points) - 1)).fit(points).kneighbors()[0][:, -1]
    found = NearestNeighbors(n_neighbors=1).fit(points[labelled])
    distance = found.kneighbors(points)[0][:, 0]
    distance[labelled] = found.kneighbors()[0][:, 0]  # to another one
    tiny = 1e-9 * max(float(around.max()), np.finfo(np.float64).tiny)  # equal rows
    ratio = np.log((distance + tiny) / (around + tiny))
    return np.asarray((ratio - np.median(ratio)) / max(float(ratio.std()), 1e-9))


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
