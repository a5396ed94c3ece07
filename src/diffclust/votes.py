"""Where every cluster is a labelled class, no cut is chosen: all of them vote, and two more classifiers of the input.

Labels that were hidden from a cut say how often it is right, and so does its agreement with others, where few were
hidden. So these say how much its vote counts. Cuts follow the shape of all rows and are better with few labels.
Classifiers of the columns see labelled rows only and are better with many. The weights find out which case this is.
Where columns are categories, these classifiers vote a second time, with a 0 or 1 for each value, and cuts of the
embedding count less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from diffclust.cuts import are_classes, by_first_row
from diffclust.evidence import OF_INPUT, Labels, Split, agreements
from diffclust.knowledge import Knowledge

AGREEMENT_ROWS = 6  # hidden rows that count as much as the agreement of a cut with others
SHARPNESS = 4  # power of the logarithm of the odds that is the weight of a vote
CATEGORIES_WEIGHT = 1 / 3  # of cuts of the embedding where columns are categories: few labels mislead all alike
SUREST = 0.98  # share of right rows above which a vote counts no more


def can_vote(knowledge: Knowledge, n_clusters: int) -> bool:
    """Whether every cluster is a labelled class, so that cuts can be compared row by row."""
    return n_clusters > 1 and are_classes(knowledge, n_clusters)


def count_votes(
    partitions: Mapping[str, Labels],
    splits: Sequence[Split],
    of_splits: Sequence[Mapping[str, Labels]],
    labels: Labels,
    embedding_weight: float = 1.0,
) -> tuple[Labels, list[Labels]]:
    """The class that most votes are for, of each row.

    A vote's weight is the logarithm of the odds that it is right, beside those of a guess, to a power that lets the
    best ones decide. Where few labels were hidden, the cut's agreement with others says more about these odds.

    Args:
        partitions: (n,) the clusters by each cut, as many as there are classes.
        splits: what was known without some labels.
        of_splits: such partitions of each split.
        labels: (n,) all labels, -1 unknown.
        embedding_weight: factor of the votes of cuts of the embedding.

    Returns:
        Clusters (n,) from 0 by the vote, and those of each split, with the same weights.
    """
    n_classes = int(labels.max()) + 1
    told = [labels, *(each.known.labels for each in splits)]
    hidden = [(labels >= 0) & (each < 0) for each in told]
    n_hidden = sum(int(rows.sum()) for rows in hidden)
    agreement = agreements(partitions)
    classes, weights = [], []
    for name in partitions:
        if all(name in each for each in of_splits):
            found = [_classes_of(each[name], known) for each, known in zip([partitions, *of_splits], told, strict=True)]
            n_right = sum(int((each == labels)[rows].sum()) for each, rows in zip(found, hidden, strict=True))
            classes.append(found)
            prior = AGREEMENT_ROWS * max(0.0, agreement[name])
            factor = 1.0 if name.endswith(OF_INPUT) else embedding_weight
            weights.append(factor * _weight((n_right + prior + 1) / (n_hidden + AGREEMENT_ROWS + 2), n_classes))
    if not any(weights):  # none is better than a guess
        weights = [1.0] * len(weights)
    clusters, *of_each = (by_first_row(_majority(found, weights, n_classes)) for found in zip(*classes, strict=True))
    return clusters, of_each


def _majority(found: Sequence[Labels], weights: Sequence[float], n_classes: int) -> Labels:
    """(n,) the class with the largest sum of weights, of equal ones the first."""
    total = np.zeros((len(found[0]), n_classes))
    for each, weight in zip(found, weights, strict=True):
        total[np.arange(len(each)), each] += weight
    return total.argmax(1)


def _weight(share_right: float, n_classes: int) -> float:
    share = min(share_right, SUREST)
    return max(0.0, float(np.log((n_classes - 1) * (share / (1 - share))))) ** SHARPNESS


def _classes_of(clusters: Labels, told: Labels) -> Labels:
    """(n,) the class that the cluster of each row holds."""
    classes = np.zeros(int(clusters.max()) + 1, np.int64)
    classes[clusters[told >= 0]] = told[told >= 0]
    return classes[clusters]
