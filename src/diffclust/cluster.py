"""scikit-learn estimators: exact single linkage with a size guard and constraints, and a trainable embedding.

``SpanningForestClustering`` needs nothing but scikit-learn; ``ForestEmbedding`` needs PyTorch and Lightning, and is
loaded when it is first asked for. Both take partial labels as y (:mod:`diffclust.labels`) and what else is known as
``fit(..., constraints=...)``. The clusters are made in :mod:`diffclust.partition`.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import ClassifierTags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from diffclust.constraints import Constraints
from diffclust.frameworks import explain_words, is_integer, refuse_masked, to_dense
from diffclust.knowledge import Knowledge
from diffclust.labels import ClassLabels, parse_labels
from diffclust.linkage import are_distances
from diffclust.partition import Partition, partition

if TYPE_CHECKING:
    from diffclust.embedding import ForestEmbedding

__all__ = ["ForestEmbedding", "SpanningForestClustering"]


def __getattr__(name: str) -> Any:
    if name == "ForestEmbedding":
        return import_module("diffclust.embedding").ForestEmbedding
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class FittedPartition:
    """What both estimators make of the partition that they have fitted."""

    fit: Any
    _joined: Any
    outliers: bool
    partition_: Partition

    def _set_fitted(self, found: Partition, labels: ClassLabels | None) -> None:
        """The fitted attributes. Where there are labels, clusters have the names of their classes."""
        self.partition_ = found
        if labels is None:
            self.classes_, self.cluster_numbers_ = np.empty(0, np.int64), np.arange(found.n_clusters)
        else:
            self.classes_, self.cluster_numbers_ = labels.classes, labels.cluster_names(found.classes)
        self.labels_ = found.clusters if labels is None else self.cluster_numbers_[found.clusters]
        if self.outliers:
            unknown = "" if self.labels_.dtype.kind in "OU" else -1
            self.labels_ = np.where(found.outliers(), np.asarray(unknown, self.labels_.dtype), self.labels_)
        self.n_clusters_ = found.n_clusters
        self.min_cluster_size_ = found.min_cluster_size
        self.hierarchy_ = found.hierarchy

    def fit_predict(self, X: Any, y: Any = None, *, constraints: Constraints | Knowledge | None = None) -> NDArray[Any]:
        """The clusters of the points, ``labels_``; see :meth:`fit`."""
        return self.fit(X, y, constraints=constraints).labels_

    @property
    def probabilities_(self) -> NDArray[np.float64]:
        """(n,) the probability that each point is in its cluster."""
        check_is_fitted(self)
        clusters = self.partition_.clusters
        return self.partition_.probabilities()[np.arange(len(clusters)), clusters]

    @property
    def novelty_(self) -> NDArray[np.float64]:
        """(n,) the probability that a point is of none of the classes in y."""
        check_is_fitted(self)
        return self.partition_.novelty()

    def predict(self, X: Any) -> NDArray[Any]:
        """The cluster of the fitted point that each new one joins: the most similar one.

        In the embedding of a :class:`ForestEmbedding` with more than 20 clusters, it is the cluster that most of the 15
        nearest points are in (:mod:`diffclust.placing`).

        Args:
            X: new points; with metric "precomputed" (new points, fitted points), of the kind that was fitted.

        Returns:
            (n,) clusters as in ``labels_``.
        """
        check_is_fitted(self)
        return self.labels_[self._joined(X)]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each cluster: that of the fitted point that each new one joins, see :meth:`predict`.

        Args:
            X: new points, as in :meth:`predict`.

        Returns:
            (n, clusters), in the order of ``cluster_numbers_``.
        """
        check_is_fitted(self)
        return self.partition_.probabilities()[self._joined(X)]


class SpanningForestClustering(FittedPartition, ClusterMixin, BaseEstimator):
    """Single linkage by a maximum spanning forest: exact, for every k, with a size guard and constraints.

    Args:
        n_clusters: number of clusters, or "auto": see :func:`diffclust.stability.choose_n_clusters`, by agreement with
            the labels where ``constraints`` come from labels, else by the largest gap.
        metric: "sqeuclidean", "euclidean", "cosine", "manhattan", "chebyshev", or "precomputed": X is then the matrix
            of distances (zero diagonal, nothing negative, but for rounding) or else of similarities (larger is closer).
        min_cluster_size: only cuts that leave this many points on both sides are made, so that outliers do not use up
            the cuts. "auto" is a third of an average cluster, n / (3 n_clusters), halved until ``n_clusters`` can be
            reached with it; 1 is plain single linkage, which mostly cuts off single points. Labelled classes get so
            many points, too, as far as the tree allows (:meth:`diffclust.Hierarchy.constrained`); other clusters that
            constraints keep apart may be smaller.
        reachability: None for plain single linkage; m for robust single linkage, in which a point is no closer to any
            other than its m-th nearest (:func:`diffclust.mutual_reachability`).
        n_neighbors: None for the exact tree; else the tree of a graph with so many neighbours of each point,
            approximate, for millions of points (see :meth:`diffclust.Hierarchy.from_points`).
        outliers: True gives points that lie less than half as densely as their neighbours do the label -1 ("" where
            classes are names).

    Attributes:
        labels_: (n,) cluster of each point. Without y, clusters are numbered by their first point. With y it is the
            class that the cluster holds; new clusters are "new 1", "new 2", ... where classes are names, and else
            numbers above the largest class.
        classes_: the classes in y.
        probabilities_: (n,) the probability that each point is in its cluster, by the clusters of its neighbours. It is
            computed when it is first asked for.
        novelty_: (n,) the probability that a point is of none of the classes in y; likewise.
        cluster_numbers_: the clusters as in ``labels_``, in the order of the columns of ``predict_proba``.
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
        outliers: bool = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.metric = metric
        self.min_cluster_size = min_cluster_size
        self.reachability = reachability
        self.n_neighbors = n_neighbors
        self.outliers = outliers

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.metric == "precomputed"
        tags.input_tags.sparse = self.metric != "precomputed"
        tags.classifier_tags = ClassifierTags()  # scikit-learn's checks of predict_proba read them
        return tags

    def fit(
        self, X: Any, y: Any = None, *, constraints: Constraints | Knowledge | None = None
    ) -> SpanningForestClustering:
        """Cluster the points X (n, d), or the matrix X (n, n) if the metric is "precomputed".

        Args:
            X: points, or a matrix. Sparse points are made dense, up to 2 GB.
            y: partial labels, integers or names: -1 (or another negative number, nan, None, "", or masked) where
                unknown; see :func:`diffclust.labels.parse_labels`. Where its classes do not allow ``n_clusters``
                clusters, there are more or fewer, with a warning.
            constraints: must-links and cannot-links that the clusters respect, e.g. ``Constraints.from_labels(labels)``
                with -1 for unknown, ``Constraints.from_pairs(len(X), must_link, cannot_link)``, or labels and pairs
                together, ``Knowledge.join(labels, must_link, cannot_link)``. With more clusters than labelled groups,
                the others are new ones.

        Returns:
            The estimator.

        Raises:
            ValueError: y are no labels, constraints or size guard do not allow ``n_clusters`` clusters, or y and
                constraints contradict each other.
        """
        X = self._validate(X, reset=True)
        self._check_parameters(X)
        known = Knowledge.from_constraints(constraints, len(X))
        labels = None if y is None else parse_labels(y, len(X))
        if labels is not None:
            known = known.with_labels(labels.codes)
        wanted = self._wanted(known, labels)
        found = partition(
            X,
            known,
            wanted,
            min_cluster_size=self.min_cluster_size,
            metric=self.metric,
            reachability=self.reachability,
            n_neighbors=self.n_neighbors,
        )
        warn_of_another_number(found, wanted)
        self._set_fitted(found, labels)
        self.free_hierarchy_ = found.free_hierarchy
        return self

    def _validate(self, X: Any, reset: bool) -> NDArray[np.float64]:
        refuse_masked("X", X)
        accepted = ("csr", "csc") if self.metric != "precomputed" else False
        with explain_words():
            checked = validate_data(self, X, reset=reset, dtype=np.float64, accept_sparse=accepted)
        return to_dense(checked)

    def _wanted(self, known: Knowledge, labels: ClassLabels | None) -> int | None:
        """``n_clusters``, moved to what y allows; None chooses it."""
        # scikit-learn's tools and checks pass whatever y they have to every estimator, so this is no error here.
        if self.n_clusters == "auto":
            return None
        asked = int(self.n_clusters)
        if labels is None:
            return asked
        lowest, highest = known.min_clusters, known.max_clusters
        wanted = min(max(asked, lowest), highest)
        if wanted != asked:
            message = (
                f"n_clusters={asked}, but y and constraints allow {lowest} to {highest} clusters: {wanted} are made."
            )
            warnings.warn(message, ConvergenceWarning, stacklevel=3)
        return wanted

    def _check_parameters(self, X: NDArray[Any]) -> None:
        n = len(X)
        if self.metric == "precomputed" and X.shape[0] != X.shape[1]:
            raise ValueError(f"metric='precomputed' needs a square matrix, got shape {X.shape}.")
        if self.metric == "precomputed":
            _warn_of_similarities(X)
        for name in ("n_clusters", "min_cluster_size"):
            if getattr(self, name) != "auto":
                _check_count(name, getattr(self, name), n, n, or_else="'auto'")
        if self.reachability is not None:
            _check_count("reachability", self.reachability, n - 1, n, or_else="None")

    def _joined(self, X: Any) -> NDArray[np.int64]:
        return self.partition_.nearest(self._validate(X, reset=False))

    def soft_predict(
        self, X: Any = None, *, epsilon: float = 0.1, n_draws: int = 50, random_state: Any = 0
    ) -> NDArray[np.float64]:
        """Shares of the clusters over perturbed similarities: how sure each point's cluster is.

        See :func:`diffclust.stability.soft_memberships`. New points take the shares of the fitted point they are most
        similar to. Of more than 4,096 fitted points a random 4,096 are perturbed, the others take the nearest one's.

        Args:
            X: new points; None for the fitted ones.
            epsilon: size of the perturbation.
            n_draws: number of draws.
            random_state: of the draws.

        Returns:
            (points, clusters) shares.
        """
        check_is_fitted(self)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        shares = self.partition_.memberships(epsilon=epsilon, n_draws=n_draws, seed=seed)
        return shares if X is None else shares[self._joined(X)]


def warn_of_another_number(found: Partition, asked: int | None) -> None:
    """General cannot-links may leave the greedy with more clusters than asked for, equal rows k-means with fewer."""
    if asked is not None and found.n_clusters != asked:
        reason = "with these pairs" if found.n_clusters > asked else f"by cut {found.evidence.cut!r} of equal rows"
        message = f"n_clusters={asked}, but {reason} {found.n_clusters} clusters were found."
        warnings.warn(message, ConvergenceWarning, stacklevel=3)


def _warn_of_similarities(X: NDArray[Any]) -> None:
    """A warning about a matrix that is taken for distances and looks like the weights of a graph, 0 for no edge."""
    if not are_distances(X):
        return
    nearest = np.where(np.eye(len(X), dtype=bool), np.inf, X).argmin(1)
    rows = np.flatnonzero((X[np.arange(len(X)), nearest] == 0) & (nearest != np.arange(len(X))))
    if len(rows) and np.abs(X[rows] - X[nearest[rows]]).max() > X.max() / 2:  # points at distance 0 have equal rows
        warnings.warn(
            "X has a zero diagonal and nothing negative, so it is taken for distances, but some points at distance 0 "
            "have very different distances to others. If X are similarities, say so by np.fill_diagonal(X, X.max()).",
            stacklevel=4,
        )


def _check_count(name: str, value: Any, highest: int, n_samples: int, or_else: str) -> None:
    """In scikit-learn's words, which its checks look for."""
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer or {or_else}, got {value!r}.")
    if not 1 <= value <= highest:
        raise ValueError(f"{name}={value} must be from 1 to {highest}, got n_samples={n_samples}.")
