"""Clusters of very many rows: those of a sample, and every other row goes where its neighbours in the sample go.

:func:`diffclust.partition.partition` takes a sample of more than 20,000 rows, chooses a cut for it, and calls
:func:`spread`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.knowledge import Knowledge
from diffclust.placing import VOTERS, count_votes
from diffclust.solvers.points import nearest_of_each

SAMPLE = 10_000  # rows
LEAST_OF_CLASS = 20  # labelled rows of a class that are in the sample, as far as there are so many
MOST_LABELLED = 0.5  # share of the sample that labelled rows may take

Ints = NDArray[np.int64]


def can_sample(knowledge: Knowledge) -> bool:
    """Whether a sample knows enough: there are labels only, and not of very many classes."""
    n_classes = len(knowledge.apart)
    return not knowledge.has_pairs and n_classes * LEAST_OF_CLASS <= MOST_LABELLED * SAMPLE


def choose_rows(labels: Ints, seed: int, size: int) -> Ints:
    """The numbers (size,) of the rows of a sample, in order: labelled rows, up to half of it, and others.

    If there are more labelled rows, random ones are taken, but some of each class in any case.
    """
    order = np.random.default_rng([seed, 4]).random(len(labels))
    labelled = np.flatnonzero(labels >= 0)
    for label in np.unique(labels[labelled]):
        rows = np.flatnonzero(labels == label)
        order[rows[np.argsort(order[rows])[:LEAST_OF_CLASS]]] = -1
    labelled = labelled[np.argsort(order[labelled])[: int(MOST_LABELLED * size)]]
    others = np.flatnonzero(labels < 0)
    others = others[np.argsort(order[others])[: size - len(labelled)]]
    return np.sort(np.concatenate([labelled, others]))


def hide_alike(knowledge: Knowledge, sample: Ints, rest: Knowledge) -> Knowledge:
    """Hides the labels among all rows that were hidden in a sample, of which ``rest`` is still known.

    A class that has lost all labels in the sample has none.
    """
    told = knowledge.labels[sample]
    hidden = np.isin(knowledge.labels, np.setdiff1d(told[told >= 0], rest.labels))
    hidden[sample[(told >= 0) & (rest.labels < 0)]] = True
    return knowledge.forget(hidden)


def spread(points: NDArray[Any], sample: Ints, partitions: Iterable[Ints], labels: Ints) -> list[Ints]:
    """Partitions of all rows: those of a sample, and every other row goes where most of its 15 nearest rows there go.

    The partitions (m,) of the sample agree with ``labels`` (n,), and each class has a labelled row in it. So those of
    all rows agree, too.

    >>> points, labels = np.array([[0.0], [0.1], [5.0], [0.2], [5.2]]), np.array([0, -1, -1, -1, -1])
    >>> [found.tolist() for found in spread(points, np.array([0, 2]), [np.array([1, 0])], labels)]
    [[1, 1, 0, 1, 0]]
    """
    near = nearest_of_each(points[sample], points, min(VOTERS, len(sample)))[1]
    classes, first = np.unique(labels[sample], return_index=True)
    spread_out = []
    for clusters in partitions:
        names = clusters[near]
        found = names[np.arange(len(names)), count_votes(names).argmax(1)]  # of equal votes the first, the nearest
        found[sample] = clusters
        for label, row in zip(classes.tolist(), first.tolist(), strict=True):
            if label >= 0:
                found[labels == label] = clusters[row]
        spread_out.append(found.astype(np.int64))
    return spread_out
