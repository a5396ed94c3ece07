"""How many clusters there are, by hiding labelled classes.

Two things speak:

- *The curve*: cut into k clusters, how well are all labels found again, those of hidden classes included? Too few
  clusters merge hidden classes with others. Too many cost little, so the curve is often flat to the right.
- *What lies near labels*: rows of a class that nobody labelled have no label near them. How near labels are to rows of
  known and of hidden classes was seen, so the share of the rows that is of known classes follows. If other classes are
  as large, it says how many there are.

Each number of clusters k weighs what both say of it. Before that, either no class is new, or k weighs 1 / k²: any share
of the classes may be labelled.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from diffclust.evidence import WORTH_A_FORK, CutAll, Labels, Split
from diffclust.knowledge import Knowledge
from diffclust.processes import beside
from diffclust.samples import choose_rows
from diffclust.threads import is_small_set

MOST_POINTS = 2500  # of which numbers of clusters are compared
TEMPERATURE = 0.07  # a number counts for 1/e of another whose ARI is better by so much
SPREAD = 0.25  # standard deviation of the logarithm of the expected number
FAR_OFF = 0.1  # weight of a number far from the expected one, beside that of the expected one
ALL_LABELLED = 0.25  # how likely it is, before anything is looked at, that no class is new
INTERVAL = (0.1, 0.5, 0.9)
LEAST_GAP = 0.1  # between rows of known and of hidden classes, or else nearness says nothing
GOOD_GAP = 0.1  # the lowest threshold counts whose gap is smaller than the largest by at most so much


def compare_numbers(splits: Sequence[Split], cut_all: CutAll, labels: Labels) -> dict[int, float]:
    """The score of each number of clusters, from that of the labelled classes to three times it.

    It is the mean adjusted Rand index of all labels (n,) with every cut of every split that was trained without some.
    """
    n_classes, some = len(np.unique(labels[labels >= 0])), _some_rows(labels)
    tried = np.unique(np.linspace(max(2, n_classes), 3 * n_classes, 9).round().astype(int))
    tried = tried[tried <= len(some)]
    tasks = [functools.partial(_scores_of_numbers, each, some, tried.tolist(), cut_all, labels) for each in splits]
    with beside(tasks, is_small_set(splits[0].embedding) and len(some) >= WORTH_A_FORK) as results:
        return {k: float(np.mean(np.concatenate(found))) for k, *found in zip(tried.tolist(), *results(), strict=True)}


def _some_rows(labels: Labels) -> NDArray[np.int64]:
    return np.arange(len(labels)) if len(labels) <= MOST_POINTS else choose_rows(labels, 0, MOST_POINTS)


def _scores_of_numbers(
    split: Split, some: NDArray[np.int64], tried: list[int], cut_all: CutAll, labels: Labels
) -> list[list[float]]:
    """The adjusted Rand index of all labels with every cut of a split, of some rows into each number of clusters."""
    from sklearn.metrics import adjusted_rand_score

    points, known, labels = split.embedding[some], Knowledge.join(split.known.labels[some]), labels[some]
    told = labels >= 0
    return [
        [float(adjusted_rand_score(labels[told], each[told])) for each in cut_all(points, known, k).values()]
        for k in tried
    ]


def expect_number(splits: Sequence[Split], labels: Labels) -> float | None:
    """The number of clusters, if classes that nobody labelled are in the mean as large as others.

    It is the geometric mean over the splits in which classes were hidden; None if none says anything.

    >>> points = np.repeat([0.0, 5.0, 9.0, 14.0], 50)[:, None] + np.random.default_rng(0).normal(size=(200, 1)) / 10
    >>> labels = np.repeat([0, 1, 2, -1], 50)
    >>> labels[np.arange(200) % 10 > 2] = -1
    >>> known = np.where((labels == 2) | (np.arange(200) % 10 == 2), -1, labels)
    >>> round(expect_number([Split(points, Knowledge.join(known))], labels))
    4
    """
    found = [number for each in splits if (number := _expect_number_of_split(each, labels)) is not None]
    return float(np.exp(np.mean(np.log(found)))) if found else None


def _expect_number_of_split(split: Split, labels: Labels) -> float | None:
    some = _some_rows(labels)
    told = split.known.labels[some] >= 0
    classes = np.unique(split.known.labels[some][told])
    rank = _rows_nearer_than_labels(np.asarray(split.embedding[some], np.float64), told)
    of_known, labelled = np.isin(labels[some], classes), labels[some] >= 0
    known, new, others = rank[labelled & ~told & of_known], rank[labelled & ~of_known], rank[~labelled]
    if not (len(known) and len(new) and len(others)):
        return None
    steps = np.unique(np.concatenate([known, new]))
    thresholds = (steps[1:] + steps[:-1]) / 2
    above_known, above_new, above = (_shares_above(each, thresholds) for each in (known, new, others))
    gap = above_new - above_known
    if gap.max(initial=0) < LEAST_GAP:
        return None
    # The lowest of good thresholds: new classes may be nearer to labels than hidden ones are.
    first = int(np.argmax(gap >= gap.max() - GOOD_GAP))
    share_new = min(max((above[first] - above_known[first]) / gap[first], 0.0), 1.0)
    n_known = np.isin(labels, classes).sum() + (1 - share_new) * (labels < 0).sum()
    return float(len(classes) * len(labels) / n_known)


def _rows_nearer_than_labels(points: NDArray[np.float64], told: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(n,) how many rows are nearer to each row than the nearest labelled one. That needs no scale of distances."""
    from sklearn.metrics.pairwise import euclidean_distances

    distance = euclidean_distances(points, squared=True)
    nearest = distance[:, told].min(1)
    return np.asarray((distance < nearest[:, None]).sum(1))


def _shares_above(values: NDArray[np.int64], thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 - np.searchsorted(np.sort(values), thresholds) / len(values)


def likely_numbers(scores: Mapping[int, float], n_classes: int, expected: float | None = None) -> tuple[int, int, int]:
    """The numbers of clusters up to which there are 10 %, 50 % and 90 % of the weight.

    Takes what :func:`compare_numbers` and :func:`expect_number` found. Scores of numbers between are interpolated.

    >>> flat = {4: 0.7, 8: 0.7, 12: 0.7}
    >>> likely_numbers(flat, 4), likely_numbers(flat, 4, 6.0), likely_numbers({**flat, 8: 0.9}, 4, 6.0)
    ((4, 6, 10), (4, 6, 8), (5, 7, 8))
    """
    numbers = np.arange(min(scores), max(scores) + 1)
    prior = numbers**-2.0
    if numbers[0] == n_classes and len(numbers) > 1:
        prior = np.append(ALL_LABELLED, (1 - ALL_LABELLED) * prior[1:] / prior[1:].sum())
    logits = np.log(prior) + np.interp(numbers, sorted(scores), [scores[k] for k in sorted(scores)]) / TEMPERATURE
    if expected is not None:
        logits += np.log(np.exp(-(np.log(numbers / expected) ** 2) / (2 * SPREAD**2)) + FAR_OFF)
    weights = np.exp(logits - logits.max())
    low, middle, high = numbers[np.searchsorted(np.cumsum(weights) / weights.sum(), INTERVAL)].tolist()
    return low, middle, high
