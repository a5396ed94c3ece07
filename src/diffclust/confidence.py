"""How sure a row's cluster is: the probability of each cluster, from five witnesses.

The witnesses are other partitions of the same rows (*votes*), the clusters of a row's neighbours (*shares*), the
density of each cluster where the row is, and for new clusters the distance from the labelled rows and what trees say
(:mod:`diffclust.novelty`). A softmax of their weighted logarithms is the probability. How sharp it is follows from the
share of rows that is expected to be right (:func:`expected_share` and :mod:`diffclust.evidence`): the mean probability
of a row's own cluster is that share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.cuts import GAUSSIAN_DIMENSIONS, leading_components, log_densities
from diffclust.threads import small_in_one_thread

NEIGHBOURS = 15  # at most, whose clusters count
# Weights of votes, shares, densities, a new cluster's distance from labelled rows and of trees, but for a factor.
WEIGHTS = (0.8, 0.11, 0.15, 0.3, 0.8)
ALONE = (0.0, 1.0, 0.0, 0.0, 0.0)  # where no other partition votes
# Coefficients of the numbers of :func:`clues` in the logit of the share that is right, fitted by
# `python benchmarks/trust_confidence.py results/trust_development.csv`.
SHARE_RIGHT = (-1.23, 0.82, 0.95, 1.42, -0.34, 1.02)
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
    log_odds_new: Floats | None = None,
) -> Floats:
    """What speaks for each cluster of each row.

    Args:
        embedding: (n, d) the rows, or a matrix (n, n) of distances with metric "precomputed".
        clusters: (n,) their clusters, from 0 to k - 1.
        others: other partitions (n,) of the same rows.
        new: (k,) which clusters hold no labelled class.
        known: (n,) which rows are labelled.
        metric: of neighbours. Densities and distances are Euclidean, and left out with other metrics.
        log_odds_new: (n,) the logarithm of the odds that a row is of no labelled class, by trees, if they were asked.

    Returns:
        (5, n, k) logarithms of votes, shares and densities, and for new clusters :func:`remoteness` and these odds.
    """
    n, k = len(clusters), len(new)
    partitions = [clusters, *others]
    votes = sum(_votes(clusters, other, k) for other in partitions) / len(partitions)
    density, remote = np.zeros((n, k)), np.zeros(n)
    odds = np.zeros(n) if log_odds_new is None else log_odds_new
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
            remote[:, None] * new,
            odds[:, None] * new,
        ]
    )


def probabilities(speaking: Floats, clusters: NDArray[Any], rows: NDArray[np.bool_], share: float | None) -> Floats:
    """The probability of each cluster.

    Args:
        speaking: (5, n, k) of :func:`witnesses`.
        clusters: (n,) the clusters.
        rows: (n,) which rows have no label.
        share: of these rows, how many are expected to be right. Their clusters have this mean probability, as far as
            the witnesses allow. None where no other partition votes: shares of neighbours.

    Returns:
        (n, k); rows sum to one.
    """
    from scipy.special import softmax

    if share is None or not rows.any():
        return np.asarray(softmax(np.tensordot(ALONE, speaking, 1), axis=1))
    logits = np.tensordot(WEIGHTS, speaking, 1)
    some, own = logits[rows], clusters[rows]
    low, high = -5.0, 3.0  # of the logarithm of the factor
    for _ in range(12):
        middle = (low + high) / 2
        mean = softmax(np.exp(middle) * some, axis=1)[np.arange(len(some)), own].mean()
        low, high = (middle, high) if mean < share else (low, middle)
    return np.asarray(softmax(np.exp(low) * logits, axis=1))


def mean_vote(clusters: NDArray[Any], others: Sequence[NDArray[Any]]) -> float:
    """The share of rows that other partitions put into the same cluster, in the mean.

    >>> mean_vote(np.array([0, 0, 1, 1]), [np.array([5, 5, 3, 3]), np.array([0, 0, 0, 1])])
    0.875
    """
    rows, k = np.arange(len(clusters)), int(clusters.max()) + 1
    return float(np.mean([_votes(clusters, other, k)[rows, clusters].mean() for other in others]))


def clues(vote: float, agreement: float, score: float | None, one_class: bool) -> tuple[float, ...]:
    """What the share of right rows is expected from: numbers that are known without the truth.

    Args:
        vote: of :func:`mean_vote`.
        agreement: of the chosen cut, of the embedding with those of the input or the other way round.
        score: how well the chosen cut finds hidden labels (:class:`diffclust.evidence.Evidence`), None if none were.
        one_class: whether labels are of one class. Then that score is a lift, which is smaller than an index.

    Returns:
        One, the logit of the vote, the agreement, the score or 0, and whether there is one, and whether of one class.
    """
    logit = float(np.log((vote + 0.02) / (1.02 - vote)))
    if score is None:
        return 1.0, logit, agreement, 0.0, 0.0, 0.0
    return 1.0, logit, agreement, score, 1.0, float(one_class)


def expected_share(vote: float, agreement: float, score: float | None, one_class: bool) -> float:
    """The share of rows that is expected to be right; arguments are those of :func:`clues`.

    Where cuts of the input and of the embedding find the same clusters, more rows are right, and where hidden labels
    are found again as well. How much more was learnt on the development sets of benchmarks/trust_sets.py.

    >>> [round(expected_share(vote, 0.5, None, False), 2) for vote in (0.5, 0.8, 1.0)]
    [0.32, 0.58, 0.92]
    >>> [round(expected_share(0.8, 0.5, score, False), 2) for score in (0.2, 0.9)]
    [0.57, 0.78]
    """
    logit = float(np.dot(SHARE_RIGHT, clues(vote, agreement, score, one_class)))
    return float(1 / (1 + np.exp(-logit)))


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
