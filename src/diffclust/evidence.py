"""What hiding known labels says: which cut to take, and how sure its clusters are.

Some labels are hidden, the embedding is trained without them, and it is cut in every way. Hidden rows then show which
cut finds their classes again, and how often a row is where it belongs. Where there is room for new clusters, whole
classes are hidden as well: they stand for the classes that nobody labelled.

Few labels say little about a cut. So other cuts are asked as well: those of the input about a cut of the embedding, and
those of the embedding about a cut of the input. Cuts of one kind agree because they see the same points, also where the
training has made up its clusters; they count little. That needs no labels at all. Where there is room for new clusters,
a third thing counts: whether rows are among the new or the known ones as trees expect (:mod:`diffclust.novelty`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust import confidence
from diffclust.cuts import CLASSIFIERS, logistic_regression
from diffclust.frameworks import plain
from diffclust.knowledge import Knowledge

LABELS_A_CLASS = 2  # in the mean: with fewer hidden ones say nothing
MOST_POINTS = 20_000  # of which cuts are compared
N_SPLITS = 3
AGREEMENT_WEIGHT = 0.5  # of the agreement of cuts beside what hidden labels say
NOVELTY_WEIGHT = 0.5  # of how well new rows are told from known ones
OWN_KIND = 0.1  # of it with cuts of the same kind, of the embedding or of the input
PRIOR_ROWS = 50  # hidden rows that count as much as what is expected without them
WORTH_A_FORK = 300  # points whose cuts take longer than to start a process

Labels = NDArray[np.int64]
OF_INPUT = " of the input"  # ends the names of cuts that look at the input instead of the embedding
VOTE = "vote"  # of all cuts and of classifiers (:mod:`diffclust.votes`)
NOT_ASKED = ("classifier", *CLASSIFIERS, VOTE)  # how names of cuts begin that others are not compared with
# (embedding (n, d), knowledge, n_clusters) -> partitions (n,) by the names of their cuts
CutAll = Callable[[NDArray[Any], Knowledge, int], dict[str, Labels]]


@dataclass(frozen=True)
class Evidence:
    """Which cut was chosen and why, and how sure its clusters are.

    Attributes:
        cut: the cut that was chosen.
        scores: of each cut, the mean adjusted Rand index with all labels when some were hidden; empty if none were. Of
            one labelled class, how many more of the hidden rows than of all others are in its cluster.
        agreement: of each cut of the embedding, the mean adjusted Rand index with cuts of the input, and the other way
            round; with those of its own kind for a tenth, or alone where there are no others. Empty if one was given.
        novelty: of each cut, the share of rows without a label that it puts among new or known clusters where trees
            expect them (:mod:`diffclust.novelty`), each row by its odds. Empty where these were not asked.
        new_classes: the mean adjusted Rand index of the chosen cut over hidden rows alone; None where no class was
            hidden.
        share_right: of the rows without a label, how many are expected to be in the right cluster; None if a cut was
            given, or no other was found.
        n_hidden: hidden rows that this share comes from, besides what is expected without them.
        n_clusters: the number of clusters that was chosen; None where it was given, or nothing could be hidden.
        candidates: numbers of clusters, and how well hidden classes were found with each.
        expected_clusters: the number that would follow from the share of the rows near labels alone, see
            :func:`diffclust.how_many.expect_number`; None where that says nothing.
        interval: the numbers of clusters between which the true one probably is.
        hidden_chances: (n, classes) how likely each class is for a row whose label was hidden; NaN for other rows. None
            if no labels were hidden.
        log_odds_new: (n,) the logarithm of the odds that a row is of no labelled class, by trees; None if these were
            not asked.
    """

    cut: str
    scores: Mapping[str, float] = field(default_factory=dict)
    agreement: Mapping[str, float] = field(default_factory=dict)
    novelty: Mapping[str, float] = field(default_factory=dict)
    new_classes: float | None = None
    share_right: float | None = None
    n_hidden: int = 0
    n_clusters: int | None = None
    candidates: Mapping[int, float] = field(default_factory=dict)
    expected_clusters: float | None = None
    interval: tuple[int, int] | None = None
    hidden_chances: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    log_odds_new: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class Split:
    """An embedding that was trained without some labels, and what was known to it."""

    embedding: NDArray[Any]
    known: Knowledge


def hide_labels(knowledge: Knowledge, n_clusters: int | None, seed: int) -> list[Knowledge]:
    """What is left in each split without a third of the labels of each class, and without some classes.

    Classes are hidden where there are at least two, and clusters for more. Empty if there are pairs, or too
    few labels.
    """
    labels = knowledge.labels
    classes, counts = np.unique(labels[labels >= 0], return_counts=True)
    if knowledge.has_pairs or len(labels) > MOST_POINTS:
        return []
    if counts.sum() < LABELS_A_CLASS * len(classes):
        return []
    rng = np.random.default_rng([seed, 3])
    parts = np.array_split(rng.permutation(classes), max(2, min(N_SPLITS, len(classes))))
    if len(classes) < 2 or (n_clusters is not None and n_clusters <= len(classes)):
        parts = []
    parts += [classes[:0]] * (N_SPLITS - len(parts))
    hidden = [np.isin(labels, each) | _a_third(labels, rng) for each in parts]
    return [knowledge.forget(rows) for rows in hidden if rows.any() and not rows[labels >= 0].all()]


def choose_cut(
    partitions: Mapping[str, Labels],
    splits: list[Split],
    of_splits: list[dict[str, Labels]],
    labels: Labels,
    log_odds_new: NDArray[np.float64] | None = None,
) -> Evidence:
    """The cut that hidden labels and the other cuts speak for, and how sure its clusters are.

    Args:
        partitions: those of the final embedding, and of the input, by the names of their cuts. Where there is a vote
            of all of them, it is taken.
        splits: trained without some labels; may be empty.
        of_splits: such partitions of each split.
        labels: (n,) all labels, -1 unknown.
        log_odds_new: (n,) the logarithm of the odds that a row is of no labelled class, if something says so.
    """
    from sklearn.metrics import adjusted_rand_score

    names = [name for name in partitions if all(name in each for each in of_splits)]
    labelled = labels >= 0
    score = _ari_of_labels if len(np.unique(labels[labelled])) > 1 else _lift_of_class
    scores = {
        name: float(np.mean([score(each[name], split, labels) for split, each in zip(splits, of_splits, strict=True)]))
        for name in (names if splits else ())
    }
    agreement = agreements(partitions)
    novelty = (
        {} if log_odds_new is None else {name: _told_apart(partitions[name], labels, log_odds_new) for name in names}
    )

    def merit(name: str) -> float:
        return scores.get(name, 0.0) + AGREEMENT_WEIGHT * agreement[name] + NOVELTY_WEIGHT * novelty.get(name, 0.0)

    chosen = max(names, key=lambda name: (name == VOTE, merit(name)))
    share_right, n_hidden = _share_right(
        chosen, partitions, splits, of_splits, labels, agreement[chosen], scores.get(chosen)
    )
    hidden_scores = [
        adjusted_rand_score(labels[hidden], found[chosen][hidden])
        for split, found in zip(splits, of_splits, strict=True)
        if (hidden := labelled & (split.known.labels < 0)).any()
        and len(np.unique(split.known.labels)) < len(np.unique(labels))
    ]
    return Evidence(
        cut=chosen,
        scores=scores,
        agreement=agreement,
        novelty=novelty,
        new_classes=float(np.mean(hidden_scores)) if hidden_scores else None,
        share_right=share_right,
        n_hidden=n_hidden,
        hidden_chances=mean_chances([hidden_chances(each.embedding, each.known.labels, labels) for each in splits])
        if splits
        else None,
        log_odds_new=log_odds_new,
    )


def agreements(partitions: Mapping[str, Labels]) -> dict[str, float]:
    """How far each cut agrees with others, see :attr:`Evidence.agreement`."""
    from sklearn.metrics import adjusted_rand_score

    names = list(partitions)
    index = {(a, b): adjusted_rand_score(partitions[a], partitions[b]) for a, b in itertools.combinations(names, 2)}

    def mean(name: str, others: list[str]) -> float:
        found = [index[name, other] if (name, other) in index else index[other, name] for other in others]
        return float(np.mean(found)) if found else 0.0

    of_input = [name for name in names if name.endswith(OF_INPUT) and is_asked(name)]
    of_embedding = [name for name in names if not name.endswith(OF_INPUT)]
    agreement = {}
    for name in names:
        by_embedding, by_input = (
            mean(name, [each for each in kind if each != name]) for kind in (of_embedding, of_input)
        )
        same, other = (by_embedding, by_input) if name in of_embedding else (by_input, by_embedding)
        agreement[name] = OWN_KIND * same + (1 - OWN_KIND) * other if of_input else by_embedding
    return agreement


def is_asked(name: str) -> bool:
    """Whether other cuts are compared with this one. With few labels a classifier agrees with nothing."""
    return not name.startswith(NOT_ASKED)


def _ari_of_labels(clusters: Labels, split: Split, labels: Labels) -> float:
    """The adjusted Rand index with all labels."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(labels[labels >= 0], clusters[labels >= 0]))


def _lift_of_class(clusters: Labels, split: Split, labels: Labels) -> float:
    """The share of hidden rows in the cluster of the one labelled class, less that of rows that never had a label.

    A cluster that holds everything finds all hidden rows, and has a lift of 0.
    """
    told = split.known.labels >= 0
    inside = clusters == clusters[told][0]
    return float(inside[(labels >= 0) & ~told].mean() - inside[labels < 0].mean()) if (labels < 0).any() else 0.0


def _told_apart(clusters: Labels, labels: Labels, log_odds_new: NDArray[np.float64]) -> float:
    """The mean probability, over rows without a label, that a row is new if its cluster is, and else that it is not."""
    labelled = labels >= 0
    known = np.isin(clusters, clusters[labelled])
    return float((1 / (1 + np.exp(np.where(known, log_odds_new, -log_odds_new)[~labelled]))).mean())


def _share_right(
    chosen: str,
    partitions: Mapping[str, Labels],
    splits: list[Split],
    of_splits: list[dict[str, Labels]],
    labels: Labels,
    agreement: float,
    score: float | None,
) -> tuple[float | None, int]:
    """The share of rows without a label that is expected to be right, and the hidden rows that speak for it.

    Where there are new clusters hidden rows are too few of too few classes: they find their clusters more often than
    other rows do, and a cluster that holds everything finds all of them. So they count where all classes have labels.
    """
    own, hidden = partitions[chosen], np.zeros(0)
    voters = [each for name, each in partitions.items() if name != chosen and is_asked(name)]
    if not voters:
        return None, 0
    one_class = len(np.unique(labels[labels >= 0])) == 1
    expected = confidence.expected_share(confidence.mean_vote(own, voters), agreement, score, one_class)
    if np.isin(own, own[labels >= 0]).all():
        right = [
            (each[chosen] == matched_clusters(each[chosen], labels, split.known.labels))[
                (labels >= 0) & (split.known.labels < 0)
            ]
            for split, each in zip(splits, of_splits, strict=True)
        ]
        hidden = np.concatenate([hidden, *right])
    return float((PRIOR_ROWS * expected + hidden.sum()) / (PRIOR_ROWS + len(hidden))), len(hidden)


def hidden_chances(points: NDArray[Any], told: Labels, labels: Labels) -> NDArray[np.float64]:
    """How likely each class is for rows with a hidden label, by a logistic regression on the labels that were told.

    Args:
        points: (n, d).
        told: (n,) labels, -1 where unknown or hidden.
        labels: (n,) all labels.

    Returns:
        (n, classes), NaN for rows whose label was not hidden, and for those whose class was not told at all.
    """
    from sklearn.preprocessing import StandardScaler

    chances = np.full((len(labels), int(labels.max(initial=-1)) + 1), np.nan)
    classes = np.unique(told[told >= 0])
    rows = np.flatnonzero((labels >= 0) & (told < 0) & np.isin(labels, classes))
    if len(classes) < 2 or not len(rows):
        return chances
    scaled = plain(StandardScaler()).fit_transform(np.asarray(points, np.float64))
    model = logistic_regression(scaled[told >= 0], told[told >= 0])
    chances[rows] = 0
    chances[np.ix_(rows, model.classes_)] = model.predict_proba(scaled[rows])
    return chances


def mean_chances(chances: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The mean of those that are not NaN."""
    counts = np.sum([~np.isnan(each) for each in chances], axis=0)
    total = np.nansum(chances, axis=0)
    return np.divide(total, counts, out=np.full_like(total, np.nan), where=counts > 0)


def matched_clusters(found: Labels, labels: Labels, known: Labels) -> Labels:
    """(n,) the cluster that each labelled row belongs to; -1 where there is none, and for rows without a label.

    The cluster of a class is the one that holds its known rows. Classes of which no row was known get the clusters
    that are left, so that as many rows as possible are right.
    """
    from scipy.optimize import linear_sum_assignment

    rows, told = labels >= 0, known >= 0
    names, codes = np.unique(labels[rows], return_inverse=True)
    table = np.zeros((len(names), int(found.max()) + 1))
    np.add.at(table, (codes, found[rows]), 1)
    np.add.at(table, (np.searchsorted(names, known[told]), found[told]), len(labels))
    cluster = np.full(len(names), -1)
    position, number = linear_sum_assignment(table, maximize=True)
    cluster[position] = number
    matched = np.full(len(labels), -1)
    matched[rows] = cluster[codes]
    return matched


def _a_third(labels: Labels, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A third of the labelled rows of each class, rounded down."""
    chosen = np.zeros(len(labels), bool)
    for label in np.unique(labels[labels >= 0]):
        rows = np.flatnonzero(labels == label)
        chosen[rng.choice(rows, len(rows) // 3, replace=False)] = True
    return chosen
