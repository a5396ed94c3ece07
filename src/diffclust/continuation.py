"""Names that stay: which cluster of an earlier fit each cluster continues.

Rows of both fits are matched first (:func:`match_rows`): by their ids, else by equal features. Clusters are then
matched so that as many common rows as possible keep their cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.labels import new_names

LEAST_SHARE = 0.5  # of the common rows of the smaller of two clusters, for one to continue or to absorb the other
LEAST_PART = 0.1  # of a cluster's common rows that its part has, at least, for the cluster to count as split

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Continuation:
    """How the clusters of a fit go on from those of an earlier one.

    Attributes:
        continues: (k,) number of the old cluster that each new one continues, -1 where it continues none.
        split: pairs (old, new): a part of old cluster ``old`` became the new cluster ``new``.
        merged: pairs (old, new): old cluster ``old`` is now a part of cluster ``new``.
    """

    continues: Ints
    split: list[tuple[int, int]]
    merged: list[tuple[int, int]]

    def numbers(self) -> Ints:
        """(k,) numbers from 0 to k - 1 for the new clusters: the old ones where these are below k, else free ones."""
        k = len(self.continues)
        numbers = np.where(self.continues < k, self.continues, -1)
        numbers[numbers < 0] = np.setdiff1d(np.arange(k), numbers)
        return numbers

    def sentences(self, old_names: Sequence[str], new_names: Sequence[str]) -> list[str]:
        """A sentence for each split and each merge."""
        return [
            *(f"Cluster {old_names[old]} was split: a part of it is now {new_names[new]}." for old, new in self.split),
            *(f"Cluster {old_names[old]} is now a part of {new_names[new]}." for old, new in self.merged),
        ]

    def names(self, given: Sequence[str], classes: NDArray[Any], old_names: Sequence[str]) -> list[str]:
        """The name of each new cluster.

        Args:
            given: names without regard to the old ones.
            classes: (k,) the labelled class that a cluster holds, -1 where none: with a class, the given name stays.
            old_names: of the old clusters.

        Returns:
            The old name where a cluster without labels continues an old one, and else a name that no old cluster had.
        """
        names = [name if code >= 0 else "" for name, code in zip(given, classes, strict=True)]
        for new, old in enumerate(self.continues):
            if not names[new] and old >= 0 and old_names[old] not in names:
                names[new] = old_names[old]
        free = new_names([*names, *old_names])
        return [name or next(free) for name in names]


def continue_clusters(clusters: NDArray[Any], old: NDArray[Any]) -> Continuation:
    """Matches clusters with those of an earlier fit by the rows that they have in common.

    Args:
        clusters: (n,) numbers from 0.
        old: (n,) the number of the cluster that each row was in before, -1 for new rows.

    Returns:
        Which cluster continues which, and splits and merges.

    Example:
        >>> found = continue_clusters(np.array([0, 0, 0, 1, 1, 2]), np.array([1, 1, 1, 0, 0, -1]))
        >>> found.continues.tolist(), found.numbers().tolist()
        ([1, 0, -1], [1, 0, 2])
    """
    from scipy.optimize import linear_sum_assignment

    common = old >= 0
    table = np.zeros((int(old.max(initial=0)) + 1, int(clusters.max()) + 1), np.int64)
    np.add.at(table, (old[common], clusters[common]), 1)
    smaller = np.minimum(table.sum(1)[:, None], table.sum(0))
    belongs = (table > 0) & (table >= LEAST_SHARE * smaller)
    rows, columns = linear_sum_assignment(np.where(belongs, table, 0), maximize=True)
    matched = belongs[rows, columns]
    continues = np.full(table.shape[1], -1)
    continues[columns[matched]] = rows[matched]
    sizes = table.sum(1)
    split = [
        (int(table[:, new].argmax()), int(new))
        for new in np.flatnonzero((continues < 0) & (table.sum(0) > 0))
        if table[:, new].max() >= LEAST_PART * sizes[table[:, new].argmax()]
    ]
    gone = np.setdiff1d(np.flatnonzero(sizes), continues)
    merged = [(int(lost), int(table[lost].argmax())) for lost in gone if table[lost].max() >= LEAST_SHARE * sizes[lost]]
    return Continuation(continues, split, merged)


def continue_colours(continues: Ints, old_colours: Sequence[int]) -> list[int]:
    """The colour number of each cluster: that of the cluster it continues, else one that no old cluster has."""
    free = (colour for colour in range(10**9) if colour not in set(old_colours))
    return [int(old_colours[old]) if old >= 0 else next(free) for old in continues]


def row_keys(features: NDArray[Any]) -> NDArray[np.uint64]:
    """(n,) the first 64 bits of a hash of each row (n, ...): the same for equal rows."""
    rows = np.ascontiguousarray(features).reshape(len(features), -1)
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def match_rows(keys: NDArray[Any], old_keys: NDArray[Any]) -> Ints:
    """The old row that each row is, by hashes or ids; of equal rows the first is the first, and so on.

    Returns:
        (n,) numbers of old rows, -1 where there is none.

    >>> match_rows(np.array([7, 5, 5, 9]), np.array([5, 7])).tolist()
    [1, 0, -1, -1]
    """
    places = {key: position for position, key in enumerate(_with_repeats(old_keys))}
    return np.array([places.get(key, -1) for key in _with_repeats(keys)], np.int64)


def _with_repeats(keys: NDArray[Any]) -> list[tuple[Any, int]]:
    """Each key, and how often it has occurred before."""
    seen: dict[Any, int] = {}
    found = []
    for key in keys.tolist():
        seen[key] = seen.get(key, -1) + 1
        found.append((key, seen[key]))
    return found
