"""The clusters at every position of the page's sliders: one finest clustering, and the splits that lead to it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust.forest import Hierarchy
from diffclust.stability import default_guard

LAST = 30  # the slider goes up to at least this many clusters
SPAN = 100  # the slider has at most this many positions


class Split(NamedTuple):
    """One more cluster: ``child`` is cut off ``parent``, which is the larger part and keeps its number."""

    child: int
    parent: int
    height: float  # minus the similarity of the cut edge


class Cuts(NamedTuple):
    """The clusterings of a hierarchy for k = ``first`` ... ``last`` under one size guard.

    The clusters at k are ``finest`` with the splits from number k - first on undone, last one first. Clusters keep
    their number (and so their colour) from one k to the next.
    """

    guard: int
    lowest: int  # smallest number of clusters of the hierarchy under this guard
    highest: int
    first: int
    last: int
    finest: NDArray[np.int32]
    splits: list[Split]

    def labels(self, n_clusters: int) -> NDArray[np.int32]:
        """The clusters (n,) at a number of clusters.

        >>> h = Hierarchy.from_similarity(-np.abs(np.subtract.outer([0.0, 1, 2.5, 9], [0.0, 1, 2.5, 9])))
        >>> [cut(h, 1, 1, 3).labels(k).tolist() for k in (1, 2, 3)]
        [[0, 0, 0, 0], [0, 0, 0, 2], [0, 0, 1, 2]]
        """
        number = np.arange(self.finest.max() + 1, dtype=np.int32)
        for split in reversed(self.splits[max(0, n_clusters - self.first) :]):
            number[number == split.child] = split.parent
        return number[self.finest]


def slider_range(hierarchy: Hierarchy, n_clusters: int) -> tuple[int, int]:
    """The numbers of clusters that the page offers."""
    lowest, highest = hierarchy.feasible_clusters()
    last = min(highest, max(LAST, lowest + LAST, n_clusters + 10))
    return max(lowest, last - SPAN + 1), last


def guards(n_points: int, chosen: int) -> list[int]:
    """A handful of size guards around the chosen one."""
    middle = chosen if chosen > 1 else default_guard(n_points)
    values = {1, max(2, middle // 4), max(2, middle // 2), middle, 2 * middle, 4 * middle}
    return sorted({value for value in values if value <= max(1, n_points // 2)} | {chosen})


def cut(hierarchy: Hierarchy, guard: int, first: int, last: int) -> Cuts:
    """The clusterings from ``first`` to ``last`` clusters, as far as the guard allows."""
    lowest, highest = hierarchy.feasible_clusters(guard)
    last = min(last, highest)
    first = min(first, last)
    finest = hierarchy.labels(last, guard)
    size = np.bincount(finest)
    leader = np.arange(last)
    splits = []
    for position in hierarchy.guarded_cuts(guard)[first - lowest : last - lowest][::-1]:
        a, b = (leader[finest[end]] for end in hierarchy.edges[position])
        parent, child = (a, b) if (size[a], -a) > (size[b], -b) else (b, a)
        leader[leader == child] = parent
        size[parent] += size[child]
        splits.append(Split(int(child), int(parent), -float(hierarchy.weights[position])))
    return Cuts(guard, lowest, highest, first, last, finest, splits[::-1])


def renumber(cuts: Cuts, clusters: NDArray[np.int64], n_clusters: int) -> Cuts:
    """The cuts with the numbers that clusters have in the run's files; clusters that appear later get free numbers."""
    reference = cuts.labels(min(max(n_clusters, cuts.first), cuts.last))
    pairs, overlap = np.unique(np.stack([reference, clusters]), axis=1, return_counts=True)
    number: dict[int, int] = {}
    taken: set[int] = set()
    for pair in np.argsort(-overlap, kind="stable"):
        old, new = int(pairs[0, pair]), int(pairs[1, pair])
        if old not in number and new not in taken:
            number[old] = new
            taken.add(new)
    free = iter(sorted(set(range(cuts.last + int(clusters.max()) + 1)) - taken))
    for old in [*np.unique(reference).tolist(), *(split.child for split in cuts.splits), *range(cuts.last)]:
        if old not in number:
            number[old] = next(free)
    table = np.array([number[old] for old in range(cuts.last)], np.int32)
    splits = [Split(number[s.child], number[s.parent], s.height) for s in cuts.splits]
    return cuts._replace(finest=table[cuts.finest], splits=splits)
