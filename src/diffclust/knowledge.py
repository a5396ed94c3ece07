"""What is known about the rows of a data set: labels and pairs, joined into groups.

:class:`Constraints` is about one problem of a solver, and stores general pairs as an (n, n) matrix. :class:`Knowledge`
is about a whole data set and needs memory for the groups only. Training, cuts, runs and estimators take it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust.constraints import Constraints, check_weights
from diffclust.frameworks import fill_unknown, to_numpy
from diffclust.groups import all_apart, bound_of_groups, check_pairs, consistent, find_chain, join_knowledge

Pairs = Iterable[tuple[int, int]] | NDArray[Any] | None
Weights = float | str | Iterable[float] | NDArray[Any] | None
Floats = NDArray[np.float64]
WEIGHTS = ("must_weights", "cannot_weights", "label_weights")


class Statements(NamedTuple):
    """Pairs of rows or classes, whether they are said to be the same, and the weight of that."""

    ends: NDArray[np.int64]
    same: NDArray[np.bool_]
    weight: Floats


class Violation(NamedTuple):
    """A pair or label that is not satisfied. The pair of a label is its row and its class."""

    kind: str  # "must-link", "cannot-link" or "label"
    pair: tuple[int, int]
    weight: float


class Contradiction(NamedTuple):
    """Statements that cannot all be right: the weakest of them, and the chain of the others, pair by pair.

    The pair of a label is its row and its class. In the chain, number n + c is class c, where n is the number of rows.
    """

    kind: str
    pair: tuple[int, int]
    weight: float
    chain: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Knowledge:
    """Labels and pairs of n rows, and the groups that follow from them. Build it with :meth:`join`.

    Attributes:
        labels: (n,) class of each row, -1 where unknown.
        must_link, cannot_link: (m, 2) pairs of row numbers, as given.
        group: (n,) group of each row, -1 where nothing is known. Rows of one group must be in one cluster: they have
            the same label, or must-links connect them.
        apart: (groups, groups) whether two groups must be in different clusters.
        must_weights, cannot_weights, label_weights: (m,), (m,) and (n,) weights, log-odds of being right; inf is hard,
            nan is estimated; or None where all are hard. Groups come from what is hard.
        given: the soft knowledge that this comes from, see :meth:`decide`; else None.

    >>> known = Knowledge.join([0, -1, 1, -1], must_link=[(0, 1)])
    >>> known.group.tolist(), known.min_clusters, known.max_clusters
    ([0, 0, 1, -1], 2, 3)
    """

    labels: NDArray[np.int64]
    must_link: NDArray[np.int64]
    cannot_link: NDArray[np.int64]
    group: NDArray[np.int64]
    apart: NDArray[np.bool_]
    must_weights: NDArray[np.float64] | None = None
    cannot_weights: NDArray[np.float64] | None = None
    label_weights: NDArray[np.float64] | None = None
    given: Knowledge | None = None

    @classmethod
    def join(
        cls,
        labels: Any,
        must_link: Pairs = (),
        cannot_link: Pairs = (),
        *,
        must_weights: Weights = None,
        cannot_weights: Weights = None,
        label_weights: Weights = None,
    ) -> Knowledge:
        """Labels and pairs together.

        Args:
            labels: (n,) integers, negative or masked where unknown.
            must_link: pairs of rows of one cluster.
            cannot_link: pairs of rows of different clusters.
            must_weights: how sure each must-link is, as log-odds: 2.2 is right in 9 of 10 cases. A number, or one for
                each pair; inf is hard, and None is hard for all. "auto", or nan for some, finds one weight for these.
            cannot_weights: the same of cannot-links.
            label_weights: the same of labels, (n,).

        Returns:
            What is known.

        Raises:
            TypeError: labels are not integers.
            ValueError: hard labels and pairs contradict each other, and the message names the chain of pairs; or labels
                or weights have a wrong shape or range.
        """
        known = _as_labels(labels)
        n_points = len(known)
        must, cannot = check_pairs("must_link", must_link, n_points), check_pairs("cannot_link", cannot_link, n_points)
        weights = (
            _as_weights("must_weights", must_weights, len(must)),
            _as_weights("cannot_weights", cannot_weights, len(cannot)),
            np.where(known >= 0, _as_weights("label_weights", label_weights, n_points), np.inf),
        )
        hard_must, hard_cannot, hard_label = map(np.isinf, weights)
        group, apart = join_knowledge(np.where(hard_label, known, -1), must[hard_must], cannot[hard_cannot])
        all_hard = must_weights is None and cannot_weights is None and label_weights is None
        return cls(known, must, cannot, group, apart, *(() if all_hard else weights))

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
        if constraints.soft is not None:
            raise ValueError(
                "weights of Constraints are in units of a similarity, and a data set has none: give log-odds, as "
                "weights of Knowledge.join(labels, must_link, cannot_link, must_weights=..., cannot_weights=...)."
            )
        group, apart = constraints.groups()
        if constraints.relation is None:
            return cls(np.maximum(np.asarray(constraints.labels, np.int64), -1), no_pairs, no_pairs, group, apart)
        return cls(unknown, *_pairs_of_groups(group, apart), group, apart)

    def with_labels(self, labels: Any) -> Knowledge:
        """These labels and all that is known here, whose own labels become pairs, unless they are soft."""
        must, cannot = _pairs_of_groups(self.group, self.apart)
        if not self.is_soft:
            return Knowledge.join(labels, must, cannot)
        must_weights, cannot_weights, label_weights = self.weights
        soft_must, soft_cannot = ~np.isinf(must_weights), ~np.isinf(cannot_weights)
        return Knowledge.join(
            labels,
            np.concatenate([must, self.must_link[soft_must]]),
            np.concatenate([cannot, self.cannot_link[soft_cannot]]),
            must_weights=np.append(np.full(len(must), np.inf), must_weights[soft_must]),
            cannot_weights=np.append(np.full(len(cannot), np.inf), cannot_weights[soft_cannot]),
            label_weights=label_weights,
        )

    def forget(self, rows: Any) -> Knowledge:
        """This knowledge without the labels of some rows, given by their numbers or by a mask. Pairs stay."""
        labels = self.labels.copy()
        labels[rows] = -1
        weights = dict(zip(WEIGHTS, self.weights, strict=True)) if self.is_soft else {}
        return Knowledge.join(labels, self.must_link, self.cannot_link, **weights)

    # -------------------------------------------------------------------------------------- pairs that may be wrong

    @property
    def weights(self) -> tuple[Floats, Floats, Floats]:
        """Of must-links, cannot-links and labels; inf where they are hard."""
        given = (self.must_weights, self.cannot_weights, self.label_weights)
        lengths = (len(self.must_link), len(self.cannot_link), len(self.labels))
        must, cannot, label = (
            np.full(length, np.inf) if each is None else each for each, length in zip(given, lengths, strict=True)
        )
        return must, cannot, label

    @property
    def is_soft(self) -> bool:
        """Whether some pair or label may be wrong."""
        return not all(np.isinf(each).all() for each in self.weights)

    @property
    def has_pairs(self) -> bool:
        """Whether there are must-links or cannot-links besides labels."""
        return len(self.must_link) + len(self.cannot_link) > 0

    def statements(self) -> Statements:
        """All that is said: must-links, cannot-links and labels in turn, and at last that classes are apart.

        Returns:
            The statements. A label is a must-link to a class, and classes are numbered after the rows.
        """
        rows = np.flatnonzero(self.labels >= 0)
        classes = self.n_points + np.unique(self.labels[rows])
        apart = classes[np.argwhere(np.triu(np.ones((len(classes),) * 2), 1))]
        of_class = np.stack([rows, self.n_points + self.labels[rows]], axis=1)
        must, cannot, label = self.weights
        return Statements(
            np.concatenate([self.must_link, self.cannot_link, of_class, apart]),
            np.repeat([True, False, True, False], [len(must), len(cannot), len(rows), len(apart)]),
            np.concatenate([must, cannot, label[rows], np.full(len(apart), np.inf)]),
        )

    def decide(self, believed: NDArray[np.bool_], weight: float) -> Knowledge:
        """Hard knowledge: what is believed of :meth:`statements`, which must not contradict itself.

        Args:
            believed: (statements,).
            weight: takes the place of weights that are nan.

        Returns:
            The knowledge. Its ``given`` is this one, with weights.
        """
        n_must, n_pairs = len(self.must_link), len(self.must_link) + len(self.cannot_link)
        labels = self.labels.copy()
        rows = np.flatnonzero(labels >= 0)
        labels[rows[~believed[n_pairs : n_pairs + len(rows)]]] = -1
        must, cannot = self.must_link[believed[:n_must]], self.cannot_link[believed[n_must:n_pairs]]
        of_must, of_cannot, of_label = (np.where(np.isnan(each), weight, each) for each in self.weights)
        given = replace(self, must_weights=of_must, cannot_weights=of_cannot, label_weights=of_label)
        return replace(Knowledge.join(labels, must, cannot), given=given)

    def contradictions(self) -> list[Contradiction]:
        """What soft pairs and labels say against each other: for each contradiction its weakest statement.

        Statements are taken in the order of their weights, as far as they contradict none before. Each that is left
        closes a cycle of statements that cannot all be right, and is the weakest of it.

        Returns:
            The cycles, the strongest first; a weight that is nan counts as 1.

        Example:
            >>> weights = {"must_weights": [3.0, 1.0], "cannot_weights": 2.0}
            >>> known = Knowledge.join([-1, -1, -1], [(0, 1), (1, 2)], [(0, 2)], **weights)
            >>> known.contradictions()
            [Contradiction(kind='must-link', pair=(1, 2), weight=1.0, chain=((1, 0), (0, 2)))]
        """
        said = self.statements()
        order = np.argsort(-np.where(np.isnan(said.weight), 1.0, said.weight), kind="stable")
        taken = consistent(said.ends[order], said.same[order])
        kept, left = order[taken], order[~taken]
        found = []
        for one in left:
            i, j = said.ends[one]
            chain = find_chain(said.ends[kept], said.same[kept], i, j, together=not said.same[one])
            found.append(Contradiction(*self._describe(one), chain))
        return found

    def violated(self, clusters: Any) -> list[Violation]:
        """The pairs and labels, as they were given, that clusters do not agree with.

        Args:
            clusters: (n,) cluster of each row.

        Returns:
            The violated ones, those of the largest weight first. The cluster of a class is the one with most of its
            labels.

        Example:
            >>> known = Knowledge.join([-1] * 3, [(0, 1), (1, 2)], must_weights=2.0)
            >>> known.violated([0, 0, 1])
            [Violation(kind='must-link', pair=(1, 2), weight=2.0)]
        """
        known = self if self.given is None else self.given
        said = known.statements()
        wrong = np.flatnonzero(~known.agrees(clusters))
        wrong = wrong[(said.ends[wrong] < known.n_points).any(1)]
        return [Violation(*known._describe(each)) for each in wrong[np.argsort(-said.weight[wrong], kind="stable")]]

    def agrees(self, clusters: Any) -> NDArray[np.bool_]:
        """Which of :meth:`statements` clusters agree with.

        The cluster of a class is the one with most of its labels. Hard labels come before soft ones. Where several
        classes have most of their labels in one cluster, it is the cluster of one of them.

        Args:
            clusters: (n,) cluster of each row.

        Returns:
            (statements,).

        Raises:
            ValueError: there is not one cluster for each row.
        """
        said, clusters = self.statements(), to_numpy(clusters, "clusters")
        if clusters.shape != (self.n_points,):
            raise ValueError(f"clusters must be those of the {self.n_points} rows, got shape {clusters.shape}.")
        _, found = np.unique(clusters, return_inverse=True)
        classes = np.unique(self.labels[self.labels >= 0])
        number = self.n_points + np.searchsorted(self.n_points + classes, said.ends)
        ends = np.where(said.ends < self.n_points, said.ends, number)
        one, other = np.append(found, self._clusters_of_classes(found, classes))[ends].T
        return np.asarray((one == other) == said.same)

    def _clusters_of_classes(self, found: NDArray[Any], classes: NDArray[np.int64]) -> NDArray[np.int64]:
        """A cluster for each class, negative where no cluster is left for it."""
        from scipy.optimize import linear_sum_assignment

        rows = self.labels >= 0
        counts = np.zeros((len(classes), int(found.max(initial=-1)) + 1))
        weight = np.where(np.isinf(self.weights[2][rows]), self.n_points, 1)
        np.add.at(counts, (np.searchsorted(classes, self.labels[rows]), found[rows]), weight)
        most = np.asarray(counts.argmax(1), np.int64)
        if len(np.unique(most)) == len(classes):
            return most
        assigned = -1 - np.arange(len(classes))
        row, column = linear_sum_assignment(counts, maximize=True)
        assigned[row] = column
        return assigned

    def _describe(self, number: int) -> tuple[str, tuple[int, int], float]:
        """Kind, pair and weight of a statement; of a label, the pair is row and class."""
        said, n_must = self.statements(), len(self.must_link)
        i, j = said.ends[number].tolist()
        kind = "must-link" if number < n_must else "cannot-link" if number < n_must + len(self.cannot_link) else "label"
        return kind, (i, j - self.n_points if kind == "label" else j), float(said.weight[number])

    @property
    def n_points(self) -> int:
        """The number of rows."""
        return len(self.group)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known."""
        return len(self.apart) == 0 and not self.is_soft

    @property
    def all_apart(self) -> bool:
        """Whether every two groups must stay apart. Then the groups are the classes of labels."""
        return all_apart(self.apart)

    @property
    def min_clusters(self) -> int:
        """A lower bound on the number of clusters; exact where all groups are apart."""
        if self.all_apart:
            return max(1, len(self.apart))
        return bound_of_groups(self.apart)

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


def _as_labels(labels: Any) -> NDArray[np.int64]:
    """(n,) whole numbers, -1 where unknown."""
    given = to_numpy(fill_unknown(labels, -1), "labels")
    if given.dtype.kind == "O":  # as pandas has integers, some of them
        given = np.array(given.tolist())
    if given.ndim != 1:
        raise ValueError(f"labels must have shape (n,), one for each row, got shape {given.shape}.")
    whole = given.dtype.kind in "iub" or (given.dtype.kind == "f" and bool((given == np.floor(given)).all()))
    if len(given) and not whole:
        raise TypeError(
            f"labels must be integers, -1 where unknown, got {given.dtype}. Of names or missing values, "
            "diffclust.labels.parse_labels(labels, n).codes are such integers."
        )
    given = given.astype({"b": np.int64, "f": np.float64}.get(given.dtype.kind, given.dtype))
    if len(given) and given.max() >= 2**63:
        raise ValueError(f"labels must fit into int64, got {given.max()}. Number the classes from 0.")
    known = np.full(len(given), -1, np.int64)
    known[given >= 0] = given[given >= 0]
    return known


def _as_weights(name: str, given: Weights, length: int) -> Floats:
    if given is None:
        given = np.inf
    if isinstance(given, str):
        if given != "auto":
            raise ValueError(f"{name} must be numbers from 0 to inf, or 'auto', got {given!r}.")
        return np.full(length, np.nan)
    numbers = np.asarray(to_numpy(given, name), np.float64)
    unknown = np.isnan(numbers)
    return np.where(unknown, np.nan, check_weights(name, np.where(unknown, 0.0, numbers), (length,)))


def _pairs_of_groups(group: NDArray[np.int64], apart: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Must-links from the first row of a group to the others, and cannot-links between first rows."""
    rows = np.flatnonzero(group >= 0)
    numbers, first = np.unique(group[rows], return_index=True)
    leader = np.zeros(len(apart), np.int64)
    leader[numbers] = rows[first]
    star = np.stack([leader[group[rows]], rows], axis=1)
    return star[star[:, 0] != star[:, 1]], leader[np.argwhere(np.triu(apart))]
