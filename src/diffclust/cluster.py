"""scikit-learn estimators: exact single linkage with a size guard and constraints, and a trainable embedding.

``SpanningForestClustering`` needs nothing but scikit-learn; ``ForestEmbedding`` needs PyTorch and Lightning, and is
loaded when it is first asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from diffclust.constraints import Constraints, all_apart
from diffclust.forest import Hierarchy
from diffclust.frameworks import is_integer, refuse_masked
from diffclust.similarity import cosine_similarities, mutual_reachability
from diffclust.solvers import points as solvers_of_points
from diffclust.stability import DENSE_POINTS, choose_n_clusters, default_guard, memberships_of_points, soft_memberships
from diffclust.validation import check_constraints

if TYPE_CHECKING:
    from diffclust.embedding import ForestEmbedding

__all__ = ["ForestEmbedding", "SpanningForestClustering"]


def __getattr__(name: str) -> Any:
    if name == "ForestEmbedding":
        return import_module("diffclust.embedding").ForestEmbedding
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class SpanningForestClustering(ClusterMixin, BaseEstimator):
    """Single linkage by a maximum spanning forest: exact, for every k, with a size guard and constraints.

    Args:
        n_clusters: number of clusters, or "auto": see :func:`diffclust.stability.choose_n_clusters`, by agreement with
            the labels where ``constraints`` come from labels, else by the largest gap. With "auto" the size guard is at
            least its default there.
        metric: "sqeuclidean", "euclidean", "cosine", "manhattan", "chebyshev", or "precomputed": X is then the matrix
            of distances (zero diagonal, nothing negative) or else of similarities (larger is closer).
        min_cluster_size: only cuts that leave this many points on both sides are made, so that outliers do not use up
            the cuts; "auto" is a fifth of an average cluster, n / (5 n_clusters). Labelled classes get so many points,
            too, as far as the tree allows (:meth:`diffclust.Hierarchy.constrained`); other clusters that constraints
            keep apart may be smaller.
        reachability: None for plain single linkage; m for robust single linkage, in which a point is no closer to any
            other than its m-th nearest (:func:`diffclust.mutual_reachability`).
        n_neighbors: None for the exact tree; else the tree of a graph with so many neighbours of each point,
            approximate, for millions of points (see :meth:`diffclust.Hierarchy.from_points`).

    Attributes:
        labels_: (n,) cluster of each point; clusters are numbered by their first point.
        hierarchy_: :class:`diffclust.Hierarchy`, the clusters for every other k.
        free_hierarchy_: the same without constraints.
        n_clusters_: their number.

    >>> X = np.array([[0.0], [0.1], [5.0], [5.1]])
    >>> SpanningForestClustering(n_clusters=2).fit(X).predict([[0.3], [4.0]]).tolist()
    [0, 1]
    """

    def __init__(
        self, n_clusters: int | str = 8, *, metric: str = "sqeuclidean", min_cluster_size: int | str = 1,
        reachability: int | None = None, n_neighbors: int | None = None,
    ) -> None:  # fmt: skip
        self.n_clusters = n_clusters
        self.metric = metric
        self.min_cluster_size = min_cluster_size
        self.reachability = reachability
        self.n_neighbors = n_neighbors

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.metric == "precomputed"
        return tags

    # ------------------------------------------------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any = None, *, constraints: Constraints | None = None) -> SpanningForestClustering:
        """Cluster the points X (n, d), or the matrix X (n, n) if the metric is "precomputed".

        Args:
            y: ignored, as by all clusterers; what is known goes into ``constraints``.
            constraints: must-links and cannot-links that the clusters respect, e.g. ``Constraints.from_labels(labels)``
                with -1 for unknown. With more clusters than labelled groups, the others are new ones.
        """
        refuse_masked("X", X)
        X = validate_data(self, X, dtype=np.float64)
        self._check_parameters(X)
        known = check_constraints(constraints, len(X), ())
        free = self.free_hierarchy_ = self._tree(X)
        similarity = functools.partial(self._similarity, X)
        self.min_cluster_size_ = self._guard(len(X))
        self.hierarchy_ = free
        if known is not None:
            self.hierarchy_ = constrain(free, *known.groups(), similarity, self.min_cluster_size_)
        self.n_clusters_ = self._count(free, known)
        self.labels_ = self.hierarchy_.labels(self.n_clusters_, self.min_cluster_size_)
        self._points = X
        self._constraints = known
        return self

    def _check_parameters(self, X: NDArray[Any]) -> None:
        n = len(X)
        if self.metric == "precomputed" and X.shape[0] != X.shape[1]:
            raise ValueError(f"metric='precomputed' needs a square matrix, got shape {X.shape}.")
        for name in ("n_clusters", "min_cluster_size"):
            if getattr(self, name) != "auto":
                _check_count(name, getattr(self, name), n, n)
        if self.reachability is not None:
            _check_count("reachability", self.reachability, n - 1, n)

    def _tree(self, X: NDArray[Any]) -> Hierarchy:
        """The hierarchy without constraints."""
        if self.metric == "precomputed":
            return Hierarchy.from_similarity(self._similarity(X))
        return Hierarchy.from_points(X, self.metric, self.n_neighbors, reachability=self.reachability)

    def _guard(self, n: int) -> int:
        """The size guard."""
        k, guard = self.n_clusters, self.min_cluster_size
        if k == "auto":
            return max(default_guard(n), 1 if guard == "auto" else int(guard))
        return max(1, n // (5 * int(k))) if guard == "auto" else int(guard)

    def _count(self, free: Hierarchy, known: Constraints | None) -> int:
        """The number of clusters."""
        if self.n_clusters != "auto":
            return int(self.n_clusters)
        size = self.min_cluster_size_
        labels = None if known is None or known.relation is not None else known.labels
        criterion = "gap" if labels is None or (labels < 0).all() else "labels"
        found = choose_n_clusters(free, criterion, labels=labels, min_cluster_size=size).n_clusters
        lowest, highest = self.hierarchy_.feasible_clusters(size)
        return min(max(found, lowest), highest)

    def _similarity(self, X: NDArray[Any]) -> NDArray[Any]:
        """The (n, n) similarities of the points X."""
        if self.metric == "precomputed":
            similarity = -X if _are_distances(X) else X
        elif self.metric == "cosine":
            similarity = cosine_similarities(X)
        else:
            # Not scikit-learn's distances, of which "euclidean" are not computed from differences.
            similarity = -cdist(X, X, "cityblock" if self.metric == "manhattan" else self.metric)
        return similarity if self.reachability is None else mutual_reachability(similarity, self.reachability)

    # -------------------------------------------------------------------------------------------------------- predict

    def predict(self, X: Any) -> NDArray[np.int32]:
        """The cluster of the fitted point that each new one is most similar to.

        With metric "precomputed", X is (new points, fitted points), of the kind that was fitted.
        """
        nearest = self._nearest(X)  # first: it says so where nothing was fitted
        return self.labels_[nearest]

    def _nearest(self, X: Any) -> NDArray[np.intp]:
        check_is_fitted(self)
        refuse_masked("X", X)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        if self.metric == "precomputed":
            return X.argmin(1) if _are_distances(self._points) else X.argmax(1)
        return nearest_points(self._points, X, self.metric)

    def soft_predict(
        self, X: Any = None, *, epsilon: float = 0.1, n_draws: int = 50, random_state: Any = 0
    ) -> NDArray[np.float64]:
        """(points, clusters) shares of the clusters over perturbed similarities: how sure each point's cluster is.

        See :func:`diffclust.stability.soft_memberships`. New points take the shares of the fitted point they are most
        similar to. Of more than 4,096 fitted points a random 4,096 are perturbed, the others take the nearest one's.

        Args:
            X: new points; None for the fitted ones.
        """
        check_is_fitted(self)
        options: dict[str, Any] = {
            "n_clusters": self.n_clusters_, "min_cluster_size": self.min_cluster_size_,
            "constraints": self._constraints, "epsilon": epsilon, "n_draws": n_draws,
            "seed": int(check_random_state(random_state).randint(2**31 - 1)),
        }  # fmt: skip
        if self.metric == "precomputed":
            shares = soft_memberships(self._similarity(self._points), self.labels_, **options)
        else:
            shares = memberships_of_points(self._points, self.labels_, self._similarity, self._nearest_of, **options)
        return shares if X is None else shares[self._nearest(X)]

    def _nearest_of(self, fitted: NDArray[Any], X: NDArray[Any]) -> NDArray[np.intp]:
        return nearest_points(fitted, X, self.metric)


def constrain(
    free: Hierarchy, group: NDArray[np.int64], apart: NDArray[np.bool_], similarity: Callable[[], NDArray[Any]],
    min_cluster_size: int = 1,
) -> Hierarchy:  # fmt: skip
    """The hierarchy under what is known, see :meth:`Constraints.groups`.

    Labels need only the tree; the greedy for general pairs is better with all pairs, where their matrix fits.
    """
    if all_apart(apart) or free.n_points > DENSE_POINTS:
        return free.joined(group, apart, min_cluster_size)
    return Hierarchy.from_similarity(similarity(), Constraints.from_groups(group, apart))


def lower_guard(
    n_clusters: int, min_cluster_size: int, hierarchy: Hierarchy, free: Hierarchy, group: NDArray[np.int64],
    apart: NDArray[np.bool_],
) -> tuple[Hierarchy, int]:  # fmt: skip
    """The hierarchy under what is known, and the size guard, halved until ``n_clusters`` can be reached with it.

    Args:
        hierarchy: the one without a guard; only that of labels depends on it.
    """
    if not all_apart(apart):
        return hierarchy, hierarchy.reachable_guard(n_clusters, min_cluster_size)
    while min_cluster_size > 1:
        guarded = free.joined(group, apart, min_cluster_size)
        if guarded.feasible_clusters(min_cluster_size)[1] >= n_clusters:
            return guarded, min_cluster_size
        min_cluster_size //= 2
    return hierarchy, 1


def _check_count(name: str, value: Any, highest: int, n_samples: int) -> None:
    """In scikit-learn's words, which its checks look for."""
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    if not 1 <= value <= highest:
        raise ValueError(f"{name}={value} must be from 1 to {highest}, got n_samples={n_samples}.")


def _are_distances(matrix: NDArray[Any]) -> bool:
    return bool((matrix >= 0).all() and (np.diagonal(matrix) == 0).all())


def nearest_points(fitted: NDArray[Any], X: NDArray[Any], metric: str) -> NDArray[np.int64]:
    """For each row of X the number of the fitted point nearest to it, of equally near ones the first."""
    return solvers_of_points.nearest_points(fitted, X, metric)
