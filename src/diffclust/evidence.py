"""What hiding known labels says: which cut to take, and how sure its clusters are.

Some labels are hidden, the embedding is trained without them, and it is cut in every way. Hidden rows then show which
cut finds their classes again, and how often a row is where it belongs. Where there is room for new clusters, whole
classes are hidden as well: they stand for the classes that nobody labelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.knowledge import Knowledge
from diffclust.threads import small_in_one_thread

DEFAULT_CUT = "forest"
MARGIN = 0.02  # by which another cut must be better
LABELS_A_CLASS = 5  # in the mean: with fewer, hiding some says little
MOST_POINTS = 20_000  # of which cuts are compared
N_SPLITS = 2
NEIGHBOURS = 15  # at most, whose clusters say how sure a row's is
SUREST = 31 / 32  # what neighbours that all agree say


@dataclass(frozen=True)
class Evidence:
    """What was found out.

    Attributes:
        cut: the cut that was chosen.
        scores: of each cut, the mean adjusted Rand index with all labels when some were hidden; empty if none were.
        new_classes: that of the chosen cut; None where no class was hidden.
        slope, intercept: of the calibration, log odds of being right = slope * log odds of the neighbours + intercept.
        n_hidden: rows that the calibration comes from.
        n_clusters: the number of clusters that was chosen; None where it was given, or nothing could be hidden.
        candidates: numbers of clusters, and how well the forest found hidden classes with each.
    """

    cut: str = DEFAULT_CUT
    scores: Mapping[str, float] = field(default_factory=dict)
    new_classes: float | None = None
    slope: float = 1.0
    intercept: float = 0.0
    n_hidden: int = 0
    n_clusters: int | None = None
    candidates: Mapping[int, float] = field(default_factory=dict)

    @property
    def interval(self) -> tuple[int, int] | None:
        """The smallest and largest number of clusters that is nearly as good as the best one."""
        good = _nearly_best(self.candidates)
        return (good[0], good[-1]) if good else None

    def calibrate(self, share: NDArray[np.float64]) -> NDArray[np.float64]:
        """The probability that a row is in its cluster, by the share of its neighbours that are."""
        return _sigmoid(self.slope * _log_odds(share) + self.intercept)


def gather_evidence(
    retrain: Callable[[Knowledge], NDArray[Any]],
    knowledge: Knowledge,
    n_clusters: int | None,
    cuts: Mapping[str, Callable[[NDArray[Any], Knowledge, int], NDArray[Any]]],
    seed: int = 0,
) -> Evidence:
    """Hides labels twice, and compares what each cut makes of the rest.

    Args:
        retrain: the embedding (n, d) of all rows that other knowledge gives.
        knowledge: labels. Of pairs, of fewer than three classes and of fewer than five labels a class nothing is
            hidden: then it is the forest, uncalibrated.
        n_clusters: k; None chooses it as well: the middle one of those with which the forest finds hidden
            classes about best.
        cuts: the cuts to choose from by their names, the forest among them.
        seed: which labels are hidden.
    """
    from sklearn.metrics import adjusted_rand_score

    labels = knowledge.labels
    labelled = np.flatnonzero(labels >= 0)
    classes = np.unique(labels[labelled])
    enough = len(classes) >= 3 and len(labelled) >= LABELS_A_CLASS * len(classes)
    if not enough or len(knowledge.must_link) or len(knowledge.cannot_link) or len(labels) > MOST_POINTS:
        return Evidence()
    rng = np.random.default_rng([seed, 3])
    room = n_clusters is None or n_clusters > len(classes)
    thirds = np.array_split(rng.permutation(classes), 3)
    splits = []
    for split in range(N_SPLITS):
        hidden_classes = thirds[split] if room else classes[:0]
        rest = knowledge.forget(np.isin(labels, hidden_classes) | _a_third(labels, rng))
        splits.append((retrain(rest), rest))

    def cut_splits(cut: Callable[..., NDArray[Any]], k: int) -> list[NDArray[Any]]:
        return [cut(embedding, rest, k) for embedding, rest in splits]

    def score(found: list[NDArray[Any]]) -> float:
        return float(np.mean([adjusted_rand_score(labels[labelled], each[labelled]) for each in found]))

    candidates: dict[int, float] = {}
    chosen_k = None
    if n_clusters is None:
        tried = _numbers_to_try(len(classes), knowledge.max_clusters)
        candidates = {k: score(cut_splits(cuts[DEFAULT_CUT], k)) for k in tried}
        good = _nearly_best(candidates)
        chosen_k = n_clusters = good[len(good) // 2]
    partitions = {name: cut_splits(cut, n_clusters) for name, cut in cuts.items()}
    scores = {name: score(found) for name, found in partitions.items()}
    best = max(scores, key=scores.__getitem__)
    chosen = best if scores[best] > scores[DEFAULT_CUT] + MARGIN else DEFAULT_CUT
    shares, right = [], []
    for (embedding, rest), found in zip(splits, partitions[chosen], strict=True):
        hidden = (labels >= 0) & (rest.labels < 0)
        shares.append(neighbour_shares(embedding, found)[np.arange(len(found)), found][hidden])
        right.append(_right(found, labels, rest.labels)[hidden])
    slope, intercept = _fit_calibration(np.concatenate(shares), np.concatenate(right))
    return Evidence(
        cut=chosen,
        scores=scores,
        new_classes=scores[chosen] if room else None,
        slope=slope,
        intercept=intercept,
        n_hidden=sum(map(len, right)),
        n_clusters=chosen_k,
        candidates=candidates,
    )


def _nearly_best(candidates: Mapping[int, float]) -> list[int]:
    """The numbers of clusters whose score is within the margin of the best, in order."""
    best = max(candidates.values(), default=0.0)
    return sorted(k for k, score in candidates.items() if score >= best - MARGIN)


def _numbers_to_try(n_classes: int, highest: int) -> list[int]:
    """From the labelled classes to three times as many, about twenty of them."""
    step = max(1, n_classes // 10)
    return [k for k in range(n_classes, 3 * n_classes + 1, step) if k <= highest]


def _a_third(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.bool_]:
    """A third of the labelled rows of each class, rounded down."""
    chosen = np.zeros(len(labels), bool)
    for label in np.unique(labels[labels >= 0]):
        rows = np.flatnonzero(labels == label)
        chosen[rng.choice(rows, len(rows) // 3, replace=False)] = True
    return chosen


def _right(found: NDArray[Any], labels: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each labelled row is in the cluster of its class.

    The cluster of a class is the one that holds its known rows. Classes of which no row was known get the clusters
    that are left, so that as many rows as possible are right.
    """
    from scipy.optimize import linear_sum_assignment

    names = np.unique(labels[labels >= 0])
    table = np.zeros((len(names), int(found.max()) + 1))
    rows = labels >= 0
    np.add.at(table, (np.searchsorted(names, labels[rows]), found[rows]), 1)
    held = np.zeros_like(table)
    rows = known >= 0
    np.add.at(held, (np.searchsorted(names, known[rows]), found[rows]), len(labels))
    matched = np.full(len(names), -1)
    position, cluster = linear_sum_assignment(-(table + held))
    matched[position] = cluster
    return np.where(labels >= 0, matched[np.searchsorted(names, np.maximum(labels, names[0]))] == found, False)


@small_in_one_thread
def neighbour_shares(embedding: NDArray[Any], clusters: NDArray[Any]) -> NDArray[np.float64]:
    """(n, clusters) the share of each row's nearest others that are in each cluster.

    >>> neighbour_shares(np.array([[0.0], [0.1], [5.0], [5.1]]), np.array([0, 0, 1, 1]))[0].round(2).tolist()
    [0.33, 0.67]
    """
    from sklearn.neighbors import NearestNeighbors

    n, k = len(clusters), int(clusters.max()) + 1
    n_neighbours = min(NEIGHBOURS, max(3, n // (3 * k)), n - 1)  # not many more than a small cluster has
    if n_neighbours < 1:
        return np.ones((n, k))
    nearest = NearestNeighbors(n_neighbors=n_neighbours).fit(embedding).kneighbors(return_distance=False)
    shares = np.zeros((n, k))
    np.add.at(shares, (np.repeat(np.arange(n), n_neighbours), clusters[nearest].ravel()), 1 / n_neighbours)
    return shares


def _fit_calibration(shares: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[float, float]:
    """Slope and intercept of the log odds by maximum likelihood, with a weak pull towards 1 and 0."""
    from scipy.optimize import minimize

    x = _log_odds(shares)

    def cost(parameters: NDArray[np.float64]) -> float:
        slope, intercept = parameters
        z = slope * x + intercept
        return float(np.logaddexp(0, np.where(right, -z, z)).sum() + 0.5 * ((slope - 1) ** 2 + intercept**2))

    slope, intercept = minimize(cost, [1.0, 0.0], method="L-BFGS-B", bounds=[(0.0, None), (None, None)]).x
    return float(slope), float(intercept)


def _log_odds(share: NDArray[np.float64]) -> NDArray[np.float64]:
    share = np.clip(share, 1 - SUREST, SUREST)
    return np.log(share / (1 - share))


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))
