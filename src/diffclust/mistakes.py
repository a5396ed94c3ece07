"""Labels and pairs that look wrong.

A label looks wrong if another class is likely for its row when the label itself is hidden. Two classifiers say how
likely each class is: one of the embeddings that were trained without some labels, where there are such
(:mod:`diffclust.evidence`), and one of the input. Neither has seen the label that it judges. An embedding that was
trained on a wrong label is no witness: it has made the row look right.

A must-link looks wrong if the two rows have neighbours in different clusters, a cannot-link if they have neighbours in
the same one. These are clusters of the input by k-means, which is not told the pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust.confidence import neighbour_shares
from diffclust.cuts import kmeans
from diffclust.evidence import hidden_chances, mean_chances
from diffclust.knowledge import Knowledge
from diffclust.partition import Partition
from diffclust.threads import small_in_one_thread

N_FOLDS = 3
FILES = {"label": "suspects.csv", "pair": "suspect_pairs.csv"}  # of a run
FACTOR = 5  # a label looks wrong where another class is so many times as likely
UNLIKELY = 0.2  # the probability below which a pair looks wrong

Floats = NDArray[np.float64]


class Suspect(NamedTuple):
    """A label that looks wrong."""

    row: int
    given: str  # the class that it names
    instead: str  # the class that is more likely
    probability: float  # of the given class
    why: str


class SuspectPair(NamedTuple):
    """A pair that looks wrong."""

    row: int
    other: int
    given: str  # "same" (a must-link) or "different" (a cannot-link)
    same: float  # the probability that both rows are in one cluster
    why: str


class Suspects(NamedTuple):
    """All that looks wrong."""

    labels: list[Suspect]
    pairs: list[SuspectPair]

    def sentences(self) -> list[str]:
        """How many there are, for a person."""
        found = ((len(each), word) for each, word in ((self.labels, "label"), (self.pairs, "pair")))
        return [
            f"{number} {word}{'s look' if number > 1 else ' looks'} wrong: see {FILES[word]}."
            for number, word in found
            if number
        ]


def suspect_labels(found: Partition, class_names: list[str], rows: Any = None) -> list[Suspect]:
    """The labels that look wrong, the most doubtful first.

    A label is listed where another class is more than five times as likely.

    Args:
        found: the clusters, with the labels that they were told.
        class_names: of the classes.
        rows: the input (n, d) of which the embedding was made; None takes the points of ``found``.

    Returns:
        Suspects; none where labels are too few to judge.

    Example:
        >>> from diffclust.partition import partition
        >>> x = np.repeat([[0.0], [9.0]], 20, axis=0) + np.linspace(0, 1, 40)[:, None]
        >>> labels = np.repeat([0, 1], 20)
        >>> labels[5] = 1
        >>> found = partition(x, Knowledge.join(labels), 2)
        >>> [(each.row, each.given, each.instead) for each in suspect_labels(found, ["cat", "dog"])]
        [(5, 'dog', 'cat')]
    """
    labels = found.knowledge.labels
    chances = label_chances(found, rows)
    told = np.flatnonzero((labels >= 0) & ~np.isnan(chances).any(1))
    if not len(told):
        return []
    own, best = chances[told, labels[told]], chances[told].max(1)
    wrong = np.flatnonzero(best > FACTOR * own)
    suspects = []
    for i in wrong[np.argsort((own / best)[wrong], kind="stable")]:
        given, instead = class_names[labels[told[i]]], class_names[chances[told[i]].argmax()]
        why = f"labelled {given}, but {instead} is more likely"
        suspects.append(Suspect(int(told[i]), given, instead, float(own[i]), why))
    return suspects


@small_in_one_thread
def label_chances(found: Partition, rows: Any = None) -> Floats:
    """How likely each class is for each labelled row whose label is hidden; ``rows`` as in :func:`suspect_labels`.

    Returns:
        (n, classes), NaN for rows without a label, and for those whose class has no other label.
    """
    labels = found.knowledge.labels
    n_classes = int(labels.max(initial=-1)) + 1
    points = np.asarray(found.points if rows is None else rows, np.float64)
    folds = np.full(len(labels), -1)
    for code in range(n_classes):
        members = np.flatnonzero(labels == code)
        folds[np.random.default_rng(code).permutation(members)] = np.arange(len(members)) % N_FOLDS
    judged = [hidden_chances(points, np.where(folds == fold, -1, labels), labels) for fold in range(N_FOLDS)]
    if found.evidence.hidden_chances is not None:
        judged.append(found.evidence.hidden_chances)
    return mean_chances(judged)


def suspect_pairs(found: Partition, rows: Any = None) -> list[SuspectPair]:
    """The pairs that look wrong, the most doubtful first.

    Args:
        found: the clusters, with the pairs that they were told.
        rows: as in :func:`suspect_labels`.

    Returns:
        Suspects.
    """
    known = found.knowledge
    points = found.points if rows is None else np.asarray(rows, np.float64)
    if not known.has_pairs or (rows is None and found.metric == "precomputed"):
        return []
    free = kmeans(points, Knowledge.from_constraints(None, len(points)), found.n_clusters)
    shares = neighbour_shares(points, free, found.n_clusters)
    suspects = []
    for given, pairs in (("same", known.must_link), ("different", known.cannot_link)):
        same = (shares[pairs[:, 0]] * shares[pairs[:, 1]]).sum(1)
        for (i, j), chance in zip(pairs.tolist(), same.tolist(), strict=True):
            right = chance if given == "same" else 1 - chance
            if right < UNLIKELY:
                where = "different clusters" if given == "same" else "the same cluster"
                suspects.append(
                    (right, SuspectPair(i, j, given, chance, f"said to be {given}, but neighbours are in {where}"))
                )
    return [suspect for _, suspect in sorted(suspects)]
