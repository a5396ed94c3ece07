"""What is known about the rows of a data set: labels and pairs, joined into groups.

:class:`Constraints` is about one problem of a solver, and stores general pairs as an (n, n) matrix. :class:`Knowledge`
is about a whole data set and needs memory for the groups only. Training, cuts, runs and estimators take it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.constraints import Constraints, all_apart, join_knowledge

Pairs = Iterable[tuple[int, int]] | NDArray[Any] | None


@dataclass(frozen=True, eq=False)
class Knowledge:
    """Labels and pairs of n rows, and the groups that follow from them. Build it with :meth:`join`.

    Attributes:
        labels: (n,) class of each row, -1 where unknown.
        must_link, cannot_link: (m, 2) pairs of row numbers, as given.
        group: (n,) group of each row, -1 where nothing is known. Rows of one group must be in one cluster: they have
            the same label, or must-links connect them.
        apart: (groups, groups) whether two groups must be in different clusters.

    >>> known = Knowledge.join([0, -1, 1, -1], must_link=[(0, 1)])
    >>> known.group.tolist(), known.min_clusters, known.max_clusters
    ([0, 0, 1, -1], 2, 3)
    """

    labels: NDArray[np.int64]
    must_link: NDArray[np.int64]
    cannot_link: NDArray[np.int64]
    group: NDArray[np.int64]
    apart: NDArray[np.bool_]

    @classmethod
    def join(cls, labels: Any, must_link: Pairs = (), cannot_link: Pairs = ()) -> Knowledge:
        """Labels and pairs together.

        Args:
            labels: (n,) integers, negative where unknown.
            must_link: pairs of rows of one cluster.
            cannot_link: pairs of rows of different clusters.

        Returns:
            What is known.

        Raises:
            ValueError: labels and pairs contradict each other. The message names the chain of pairs.
        """
        known = np.maximum(np.asarray(labels, np.int64), -1)
        must, cannot = (pairs if hasattr(pairs, "shape") else list(pairs or ()) for pairs in (must_link, cannot_link))
        group, apart = join_knowledge(known, must, cannot)
        return cls(known, _as_array(must), _as_array(cannot), group, apart)

    @classmethod
    def from_constraints(cls, constraints: Constraints | Knowledge | None, n_points: int) -> Knowledge:
        """What is known about ``n_points`` rows by the :class:`Constraints` of one problem; None knows nothing."""
        unknown, no_pairs = np.full(n_points, -1, np.int64), np.empty((0, 2), np.int64)
        if constraints is None:
            return cls(unknown, no_pairs, no_pairs, unknown, np.zeros((0, 0), bool))
        if not isinstance(constraints, (Constraints, Knowledge)):
            raise TypeError(f"constraints must be a Constraints object or Knowledge, got {type(constraints).__name__}.")
        if constraints.n_points != n_points:
            raise ValueError(f"constraints are about {constraints.n_points} points, but there are {n_points}.")
        if isinstance(constraints, Knowledge):
            return constraints
        group, apart = constraints.groups()
        if constraints.relation is None:
            return cls(np.maximum(np.asarray(constraints.labels, np.int64), -1), no_pairs, no_pairs, group, apart)
        return cls(unknown, *_pairs_of_groups(group, apart), group, apart)

    def with_labels(self, labels: Any) -> Knowledge:
        """These labels and all that is known here, whose own labels become pairs."""
        return Knowledge.join(labels, *_pairs_of_groups(self.group, self.apart))

    def forget(self, rows: Any) -> Knowledge:
        """The same without the labels of some rows, given by their numbers or by a mask. Pairs stay."""
        labels = self.labels.copy()
        labels[rows] = -1
        return Knowledge.join(labels, self.must_link, self.cannot_link)

    @property
    def n_points(self) -> int:
        """The number of rows."""
        return len(self.group)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known."""
        return len(self.apart) == 0

    @property
    def all_apart(self) -> bool:
        """Whether every two groups must stay apart. Then the groups are the classes of labels."""
        return all_apart(self.apart)

    @property
    def min_clusters(self) -> int:
        """A lower bound on the number of clusters; exact where all groups are apart."""
        if self.all_apart:
            return max(1, len(self.apart))
        return int(Constraints.from_groups(np.arange(len(self.apart)), self.apart).min_clusters)

    @property
    def max_clusters(self) -> int:
        """The largest possible number of clusters."""
        return int((self.group < 0).sum()) + len(self.apart)

    def constraints(self, rows: Any = None) -> Constraints | None:
        """The constraints of one problem. Pairs that labels cannot express become a matrix of rows times rows.

        Args:
            rows: numbers of rows; None takes all.

        Returns:
            The constraints, None where nothing is known about these rows.
        """
        group = self.group if rows is None else self.group[rows]
        return Constraints.from_groups(group, self.apart) if (group >= 0).any() else None


def _as_array(pairs: Any) -> NDArray[np.int64]:
    return np.asarray(pairs, np.int64).reshape(-1, 2)


def _pairs_of_groups(group: NDArray[np.int64], apart: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Must-links from the first row of a group to the others, and cannot-links between first rows."""
    rows = np.flatnonzero(group >= 0)
    numbers, first = np.unique(group[rows], return_index=True)
    leader = np.zeros(len(apart), np.int64)
    leader[numbers] = rows[first]
    star = np.stack([leader[group[rows]], rows], axis=1)
    return star[star[:, 0] != star[:, 1]], leader[np.argwhere(np.triu(apart))]
