"""What is known about the clustering: labels of some points, pairs that belong together or apart, or both.

Notation: the paper's M_Ω, see ``docs/notation.md``. Two forms are kept. The *label form* is a vector of labels, -1 or
another negative number for unknown; solvers have a fast path for it. The *relation form* is an (n, n) int8 matrix, 1
same, 0 different, -1 unknown, transitively closed. Pairs and matrices that say no more than labels do are turned into
labels.

Pairs and labels may be weighted. Those of infinite weight, the default, are hard, and have one of the two forms. All
others are the *soft term* W, a matrix that is added to the similarity wherever constraints count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust import groups
from diffclust._typing import Array
from diffclust.frameworks import (
    check_at_least,
    fill_unknown,
    framework_of,
    identity_mask,
    is_traced,
    namespace_of,
    sort,
    to_numpy,
)
from diffclust.groups import DIFFERENT, SAME, UNKNOWN, all_apart, check_pairs


@dataclass(frozen=True, eq=False)
class Constraints:
    """Knowledge about ``n_points`` points, or a batch of it. Build it with one of the three ``from_...``.

    Attributes:
        labels: the label form, integers (..., n), negative where unknown; or None.
        relation: the relation form, int8 (..., n, n), 1 same, 0 different, -1 unknown; or None.
        soft: W (..., n, n), above 0 for pairs that are rather the same, below 0 for pairs that are rather different; or
            None. A constrained solve is the best forest of Σ + W under the hard constraints.

    Example:
        >>> c = Constraints.from_pairs(4, must_link=[(0, 1), (1, 2)], cannot_link=[(2, 3)])
        >>> c.matrix()[0].tolist(), c.min_clusters, c.max_clusters
        ([1.0, 1.0, 1.0, 0.0], 2, 2)
    """

    labels: Array = None
    relation: Array = None
    soft: Array = None

    # ---------------------------------------------------------------------------------------------- constructors

    @classmethod
    def from_labels(cls, labels: Array, weights: Array = None) -> Constraints:
        """Points with the same label belong together, with different labels apart; -1 is unknown, as in scikit-learn.

        Args:
            labels: integers of shape (n,), or (..., n) for a batch of problems. Every negative one is unknown, so
                torch's -100, too, and so is what a NumPy array masks. Torch tensors and JAX arrays stay where they are,
                unread.
            weights: how much each label counts, in units of the similarity: a number for all, or of the labels' shape;
                inf is hard, None is hard for all. A pair of labels of which one is soft has the smaller of their
                weights.

        Returns:
            The constraints, in the label form.

        Raises:
            TypeError: labels are not integers.
            ValueError: labels are empty, of a wrong shape, or need more than 64 bits; weights have another shape.

        Example:
            >>> Constraints.from_labels([0, 0, 1, -1]).max_clusters
            3
        """
        on_host = framework_of(labels) == "numpy"
        if on_host:
            labels = np.asarray(fill_unknown(labels, np.int64(UNKNOWN)))
            if labels.size == 0:
                raise ValueError(f"labels are empty (shape {labels.shape}): at least one point is needed.")
        groups.check_integers("labels", labels.dtype)
        if on_host:
            if labels.max() > np.iinfo(np.int64).max:
                raise ValueError(f"labels must fit into int64, got {labels.max()}. Number the classes from 0.")
            labels = np.maximum(labels.astype(np.int64), UNKNOWN)
        if labels.ndim < 1 or labels.shape[-1] < 1:
            raise ValueError(f"labels must have shape (n,) or (..., n) with n >= 1, got shape {tuple(labels.shape)}.")
        if weights is None:
            return cls(labels=labels)
        weights = check_weights("weights", weights, tuple(labels.shape)) if on_host else _beside(labels, weights)
        if tuple(weights.shape) != tuple(labels.shape):
            raise ValueError(f"weights must have the labels' shape {tuple(labels.shape)}, got {tuple(weights.shape)}.")
        where, hard = namespace_of(labels).where, weights == float("inf")
        return cls(labels=where(hard, labels, UNKNOWN), soft=_soft_labels(labels, weights))

    @classmethod
    def from_pairs(
        cls,
        n_points: int,
        must_link: Iterable[tuple[int, int]] | None = (),
        cannot_link: Iterable[tuple[int, int]] | None = (),
        *,
        must_weights: Array = None,
        cannot_weights: Array = None,
    ) -> Constraints:
        """Pairs of points that belong to the same cluster, and pairs that belong to different clusters.

        What follows from hard pairs is added (if 0-1 and 1-2 must link, so must 0-2). A soft pair counts for each pair
        of what hard must-links tie to its two points, and weights of several soft pairs add up. Soft pairs may
        contradict each other. What hard pairs decide anyway, soft ones do not change.

        Args:
            n_points: number of points.
            must_link: pairs (i, j) of points of one cluster, or an array (m, 2).
            cannot_link: pairs (i, j) of points of different clusters, or an array (m, 2).
            must_weights: how much each must-link counts, in units of the similarity: a number for all, or (m,) numbers
                from 0; inf is hard. None is hard for all.
            cannot_weights: the same of the cannot-links.

        Returns:
            The constraints, hard ones in the label form where labels say as much.

        Raises:
            TypeError: ``n_points`` or the numbers of points are not integers.
            ValueError: a number is out of its range, or hard pairs contradict each other; the message names the chain
                of must-links and the cannot-link that it runs into.

        Example:
            >>> Constraints.from_pairs(3, must_link=[(0, 2)]).matrix()[0].tolist()
            [1.0, nan, 1.0]
            >>> Constraints.from_pairs(3, [(0, 1)], [(1, 2)], cannot_weights=2.0).soft[2].tolist()
            [-2.0, -2.0, 0.0]
        """
        n_points = check_at_least("n_points", n_points)
        must = check_pairs("must_link", must_link, n_points)
        cannot = check_pairs("cannot_link", cannot_link, n_points)
        if must_weights is None and cannot_weights is None:
            return _from_hard_pairs(n_points, must, cannot)
        weight = {
            name: check_weights(name, np.inf if given is None else given, (len(pairs),))
            for name, given, pairs in (("must_weights", must_weights, must), ("cannot_weights", cannot_weights, cannot))
        }
        hard_must, hard_cannot = np.isinf(weight["must_weights"]), np.isinf(weight["cannot_weights"])
        relation = groups.close_relation(n_points, must[hard_must], cannot[hard_cannot])
        if hard_must.all() and hard_cannot.all():
            return _from_closed_relation(relation)
        pairs = np.concatenate([must[~hard_must], cannot[~hard_cannot]])
        signed = np.concatenate([weight["must_weights"][~hard_must], -weight["cannot_weights"][~hard_cannot]])
        return replace(_from_closed_relation(relation), soft=_soft_pairs(relation, pairs, signed))

    @classmethod
    def from_matrix(cls, matrix: Array) -> Constraints:
        """The paper's M_Ω, with all that follows from it.

        Args:
            matrix: (n, n), or (..., n, n) for a batch: 1 same cluster, 0 different, nan or masked unknown.

        Returns:
            The constraints, in the label form where labels say as much.

        Raises:
            TypeError: the matrix does not consist of real numbers, or JAX traces it.
            ValueError: it has a wrong shape, other entries, is not symmetric, or contradicts itself.

        Example:
            >>> Constraints.from_matrix([[1, 0], [0, 1]]).min_clusters
            2
        """
        groups.check_readable("matrix", matrix)
        given = to_numpy(fill_unknown(matrix, np.nan))
        if given.dtype.kind not in "iubf":
            raise TypeError(f"matrix must be real numbers, got dtype {given.dtype}.")
        values = given.astype(np.float64)
        if values.ndim < 2 or values.shape[-1] != values.shape[-2] or values.size < 1:
            raise ValueError(f"matrix must have shape (n, n) or (..., n, n) with n >= 1, got shape {values.shape}.")
        known = ~np.isnan(values)
        if not np.isin(values[known], (0.0, 1.0)).all():
            wrong = values[known & ~np.isin(values, (0.0, 1.0))][0]
            raise ValueError(f"matrix entries must be 1 (same), 0 (different) or nan (unknown), got {wrong}.")
        if not np.array_equal(values, values.swapaxes(-1, -2), equal_nan=True):
            raise ValueError(
                "matrix must be symmetric: entries (i, j) and (j, i) differ. Give each pair once, both ways."
            )
        n = values.shape[-1]
        if (values[..., range(n), range(n)] == 0).any():
            raise ValueError("matrix has a 0 on its diagonal: a point cannot be apart from itself. Use 1 or nan there.")
        relations = []
        for problem in values.reshape(-1, n, n):
            pairs = np.triu(np.ones((n, n), bool), 1)
            relations.append(
                groups.close_relation(n, np.argwhere(pairs & (problem == 1)), np.argwhere(pairs & (problem == 0)))
            )
        return _from_closed_relation(np.stack(relations).reshape(values.shape))

    # ------------------------------------------------------------------------------------------------ properties

    @property
    def n_points(self) -> int:
        """Number of points."""
        return self._array.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch of problems; () for one problem."""
        return tuple(self.labels.shape)[:-1] if self.relation is None else tuple(self.relation.shape)[:-2]

    @property
    def _array(self) -> Array:
        return self.labels if self.relation is None else self.relation

    @property
    def min_clusters(self) -> Array:
        """The smallest feasible number of clusters, an int, or an array for a batch.

        Exact for labels. For general cannot-links it is a lower bound (the exact number is the chromatic number of a
        graph): exact where it is 1 or 2, and otherwise the size of a clique found greedily, at least 3.
        """
        if self.relation is None:
            return self.label_range()[0]
        relations = to_numpy(self.relation).reshape(-1, self.n_points, self.n_points)
        bounds = [groups.bound_of_groups(Constraints(relation=relation).groups()[1]) for relation in relations]
        return _scalar(np.array(bounds).reshape(self.batch_shape))

    @property
    def max_clusters(self) -> Array:
        """The largest feasible number of clusters, exact: the number of groups that must-links leave."""
        if self.relation is None:
            return self.label_range()[1]
        leaders = (to_numpy(self.relation) == SAME).argmax(-1) == np.arange(self.n_points)
        return _scalar(leaders.sum(-1))

    def label_range(self) -> tuple[Array, Array]:
        """``min_clusters`` and ``max_clusters`` of the label form, in one go."""
        ordered, xp = sort(self.labels), namespace_of(self.labels)
        # Compared in a circle, because a program with slices of n - 1 entries, which torch traces for any n, would not
        # hold for n = 2. So the first label counts as new unless all are the same.
        new = (ordered != xp.roll(ordered, 1, -1)) & (ordered >= 0)
        n_groups, n_known = xp.maximum(new.sum(-1), (ordered[..., -1] >= 0) * 1), (self.labels >= 0).sum(-1)
        return _scalar(n_groups.clip(min=1)), _scalar(self.n_points - n_known + n_groups)

    def matrix(self) -> Array:
        """The paper's M_Ω with all that follows from it: 1 same, 0 different, nan unknown, unit diagonal."""
        if self.relation is not None:
            where = namespace_of(self.relation).where
            return where(self.relation == UNKNOWN, float("nan"), self.relation * 1.0)
        labels = self.labels
        known = (labels >= 0)[..., :, None] & (labels >= 0)[..., None, :]
        same = labels[..., :, None] == labels[..., None, :]
        where = namespace_of(labels).where
        return where(identity_mask(self.n_points, labels), 1.0, where(known, where(same, 1.0, 0.0), float("nan")))

    @classmethod
    def from_groups(cls, group: NDArray[np.int64], apart: NDArray[np.bool_]) -> Constraints:
        """The inverse of :meth:`groups`: the label form where all groups are apart."""
        if all_apart(apart):
            return cls(labels=group)
        free = group < 0  # each of these points is a group of its own, which may join any other
        wide = np.pad(apart, (0, int(free.sum())))
        return cls(relation=groups.relation_of(np.where(free, len(apart) - 1 + np.cumsum(free), group), wide))

    def groups(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The must-link groups of one problem.

        Returns:
            For each point the number of its group, (n,), -1 where nothing is known of it; and for each pair of groups
            whether they must stay apart.

        Raises:
            ValueError: these are constraints of a batch.
        """
        if self.batch_shape:
            raise ValueError(f"groups are those of one problem, got constraints of batch shape {self.batch_shape}.")
        if self.relation is None:
            labels = to_numpy(self.labels)
            names, group = np.unique(labels, return_inverse=True)
            group = np.where(labels < 0, -1, group - (names < 0).sum())
            return group, ~np.eye(int((names >= 0).sum()), dtype=bool)
        relation = to_numpy(self.relation)
        leader = (relation == SAME).argmax(1)
        involved = (relation != UNKNOWN).sum(1) > 1  # a point is related to itself
        leaders = np.unique(leader[involved])
        group = np.where(involved, np.searchsorted(leaders, leader), -1)
        return group, relation[np.ix_(leaders, leaders)] == DIFFERENT

    def restrict(self, points: Array) -> Constraints:
        """What is known about some of the points, given by their numbers."""
        known = self._array
        if is_traced(points):
            known = namespace_of(points).asarray(known)  # NumPy arrays take no traced numbers
        soft = None if self.soft is None else namespace_of(known).asarray(self.soft)[..., points, :][..., points]
        if self.relation is None:
            return Constraints(labels=known[..., points], soft=soft)
        return Constraints(relation=known[..., points, :][..., points], soft=soft)

    def agree(self, clustering: Array) -> Array:
        """Whether clusterings agree with everything that is known and hard.

        Args:
            clustering: labels of shape (..., n).

        Returns:
            A bool, or an array of them for a batch.

        Raises:
            ValueError: the labels are for another number of points.
        """
        clustering = to_numpy(clustering, "clustering")
        if clustering.ndim < 1 or clustering.shape[-1] != self.n_points:
            raise ValueError(f"clusterings must have shape (..., {self.n_points}), got shape {clustering.shape}.")
        together = clustering[..., :, None] == clustering[..., None, :]
        # On the host first: inside jit, JAX would trace the matrix of labels that were made outside.
        labels, relation = (None if known is None else to_numpy(known) for known in (self.labels, self.relation))
        matrix = Constraints(labels, relation).matrix()
        return _scalar((np.isnan(matrix) | (together == (matrix == 1))).all((-1, -2)))


def _scalar(value: Any) -> Array:
    """A plain Python number for a single NumPy problem; batches and other frameworks keep their arrays."""
    return value.item() if framework_of(value) == "numpy" and np.ndim(value) == 0 else value


# -------------------------------------------------------------------------------------------------------------- Weights


def check_weights(name: str, weights: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Weights from 0 to inf of this shape; one number stands for all."""
    given = np.asarray(to_numpy(weights, name) if hasattr(weights, "shape") else weights)
    if given.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be numbers from 0 to inf, got {given.dtype}.")
    if given.shape not in ((), shape):
        raise ValueError(f"{name} must be one number or have shape {shape}, got shape {given.shape}.")
    if not (given >= 0).all():
        raise ValueError(f"{name} must be from 0 to inf, got {given[~(given >= 0)].min()}.")
    return np.broadcast_to(given.astype(np.float64), shape)


def _soft_pairs(
    relation: NDArray[np.int8], pairs: NDArray[np.intp], signed: NDArray[np.float64]
) -> NDArray[np.float64]:
    """W: the sum of signed weights between two closures, for each pair of their points; 0 where hard pairs decide."""
    n, leader = len(relation), (relation == SAME).argmax(-1)
    between = np.zeros((n, n))
    np.add.at(between, tuple(leader[pairs].T), signed)
    between += between.T
    return np.where(relation == UNKNOWN, between[leader][:, leader], 0.0)


def _beside(labels: Array, weights: Any) -> Array:
    """Weights of a torch tensor or JAX array as one; a number stands for all."""
    xp = namespace_of(labels)
    if framework_of(weights) == "numpy":
        placed = {"device": labels.device} if framework_of(labels) == "torch" else {}
        weights = xp.asarray(check_weights("weights", weights, tuple(labels.shape)).copy(), **placed)
    return xp.broadcast_to(weights, labels.shape) if weights.ndim == 0 else weights


def _soft_labels(labels: Array, weights: Array) -> Array:
    """W: plus or minus the smaller weight of two labels of which one is soft; nothing is read."""
    xp = namespace_of(labels)
    one, other = weights[..., :, None], weights[..., None, :]
    least, known = xp.where(one < other, one, other), (labels >= 0)[..., :, None] & (labels >= 0)[..., None, :]
    counts = known & (least < float("inf")) & ~identity_mask(labels.shape[-1], labels)
    return xp.where(counts, xp.where(labels[..., :, None] == labels[..., None, :], least, -least), 0.0)


def _from_hard_pairs(n: int, must: NDArray[np.intp], cannot: NDArray[np.intp]) -> Constraints:
    """Label form if pairs say no more than labels; then no matrix of all points is made."""
    group, apart = groups.join_knowledge(np.full(n, UNKNOWN), must[must[:, 0] != must[:, 1]], cannot)
    if not all_apart(apart):
        return Constraints.from_groups(group, apart)
    points = np.flatnonzero(group >= 0)
    _, first = np.unique(group[points], return_index=True)
    labels = np.full(n, UNKNOWN, np.int64)
    labels[points] = points[first][group[points]]  # the smallest point of one's group
    return Constraints(labels=labels)


def _from_closed_relation(relation: NDArray[np.int8]) -> Constraints:
    """Label form if everything known is of that form: any two groups that are constrained at all stay apart."""
    n = relation.shape[-1]
    group = (relation == SAME).argmax(-1)  # the smallest point of one's group
    size = (relation == SAME).sum(-1)
    constrained = (size > 1) | (relation == DIFFERENT).any(-1)
    both = constrained[..., :, None] & constrained[..., None, :]
    if ((relation != UNKNOWN) | ~both).all():
        return Constraints(labels=np.where(constrained, group, -1).astype(np.int64).reshape(*relation.shape[:-2], n))
    return Constraints(relation=relation)
