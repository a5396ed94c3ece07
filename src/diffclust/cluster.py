"""scikit-learn estimators: exact single linkage with a size guard and constraints, and a trainable embedding.

``SpanningForestClustering`` needs nothing but scikit-learn; ``ForestEmbedding`` needs PyTorch and Lightning, and is
loaded when it is first asked for. Both take what is known as ``fit(..., constraints=...)``; ``ForestEmbedding`` also
takes labels as y. The clusters are made in :mod:`diffclust.partition`.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from diffclust.constraints import Constraints
from diffclust.frameworks import is_integer, refuse_masked
from diffclust.knowledge import Knowledge
from diffclust.partition import Partition, partition

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
            the labels where ``constraints`` come from labels, else by the largest gap.
        metric: "sqeuclidean", "euclidean", "cosine", "manhattan", "chebyshev", or "precomputed": X is then the matrix
            of distances (zero diagonal, nothing negative) or else of similarities (larger is closer).
        min_cluster_size: only cuts that leave this many points on both sides are made, so that outliers do not use up
            the cuts. "auto" is a third of an average cluster, n / (3 n_clusters), halved until ``n_clusters`` can be
            reached with it; 1 is plain single linkage, which mostly cuts off single points. Labelled classes get so
            many points, too, as far as the tree allows (:meth:`diffclust.Hierarchy.constrained`); other clusters that
            constraints keep apart may be smaller.
        reachability: None for plain single linkage; m for robust single linkage, in which a point is no closer to any
            other than its m-th nearest (:func:`diffclust.mutual_reachability`).
        n_neighbors: None for the exact tree; else the tree of a graph with so many neighbours of each point,
            approximate, for millions of points (see :meth:`diffclust.Hierarchy.from_points`).

    Attributes:
        labels_: (n,) cluster of each point; clusters are numbered by their first point.
        n_clusters_: their number.
        min_cluster_size_: the size guard that was used.
        hierarchy_: :class:`diffclust.Hierarchy`, the clusters for every other k.
        free_hierarchy_: the same without constraints.
        partition_: all of this as one :class:`diffclust.partition.Partition`.

    >>> X = np.array([[0.0], [0.1], [5.0], [5.1]])
    >>> SpanningForestClustering(n_clusters=2).fit(X).predict([[0.3], [4.0]]).tolist()
    [0, 1]
    """

    def __init__(
        self,
        n_clusters: int | str = 8,
        *,
        metric: str = "sqeuclidean",
        min_cluster_size: int | str = "auto",
        reachability: int | None = None,
        n_neighbors: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.metric = metric
        self.min_cluster_size = min_cluster_size
        self.reachability = reachability
        self.n_neighbors = n_neighbors

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.metric == "precomputed"
        return tags

    def fit(
        self, X: Any, y: Any = None, *, constraints: Constraints | Knowledge | None = None
    ) -> SpanningForestClustering:
        """Cluster the points X (n, d), or the matrix X (n, n) if the metric is "precomputed".

        Args:
            X: points, or a matrix.
            y: ignored, as by all clusterers; what is known goes into ``constraints``.
            constraints: must-links and cannot-links that the clusters respect, e.g. ``Constraints.from_labels(labels)``
                with -1 for unknown, ``Constraints.from_pairs(len(X), must_link, cannot_link)``, or labels and pairs
                together, ``Knowledge.join(labels, must_link, cannot_link)``. With more clusters than labelled groups,
                the others are new ones.

        Returns:
            The estimator.

        Raises:
            ValueError: constraints or size guard do not allow ``n_clusters`` clusters.
        """
        refuse_masked("X", X)
        X = validate_data(self, X, dtype=np.float64)
        self._check_parameters(X)
        wanted = None if self.n_clusters == "auto" else int(self.n_clusters)
        self.partition_ = found = partition(
            X,
            Knowledge.from_constraints(constraints, len(X)),
            wanted,
            min_cluster_size=self.min_cluster_size,
            metric=self.metric,
            reachability=self.reachability,
            n_neighbors=self.n_neighbors,
        )
        warn_of_more_clusters(found, wanted)
        self.labels_ = found.clusters
        self.n_clusters_ = found.n_clusters
        self.min_cluster_size_ = found.min_cluster_size
        self.hierarchy_ = found.hierarchy
        self.free_hierarchy_ = found.free_hierarchy
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

    def predict(self, X: Any) -> NDArray[np.int32]:
        """The cluster of the fitted point that each new one is most similar to.

        With metric "precomputed", X is (new points, fitted points), of the kind that was fitted.
        """
        nearest = self._nearest(X)  # first: it says so where nothing was fitted
        return self.labels_[nearest]

    def _nearest(self, X: Any) -> NDArray[np.int64]:
        check_is_fitted(self)
        refuse_masked("X", X)
        return self.partition_.nearest(validate_data(self, X, dtype=np.float64, reset=False))

    def soft_predict(
        self, X: Any = None, *, epsilon: float = 0.1, n_draws: int = 50, random_state: Any = 0
    ) -> NDArray[np.float64]:
        """(points, clusters) shares of the clusters over perturbed similarities: how sure each point's cluster is.

        See :func:`diffclust.stability.soft_memberships`. New points take the shares of the fitted point they are most
        similar to. Of more than 4,096 fitted points a random 4,096 are perturbed, the others take the nearest one's.

        Args:
            X: new points; None for the fitted ones.
            epsilon, n_draws: size of the perturbation, and number of draws.
            random_state: of the draws.
        """
        check_is_fitted(self)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        shares = self.partition_.memberships(epsilon=epsilon, n_draws=n_draws, seed=seed)
        return shares if X is None else shares[self._nearest(X)]


def warn_of_more_clusters(found: Partition, asked: int | None) -> None:
    """General cannot-links may leave the greedy with more clusters than were asked for."""
    if asked is not None and found.n_clusters > asked:
        message = f"n_clusters={asked}, but with these pairs {found.n_clusters} clusters were found."
        warnings.warn(message, ConvergenceWarning, stacklevel=3)


def _check_count(name: str, value: Any, highest: int, n_samples: int) -> None:
    """In scikit-learn's words, which its checks look for."""
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    if not 1 <= value <= highest:
        raise ValueError(f"{name}={value} must be from 1 to {highest}, got n_samples={n_samples}.")
