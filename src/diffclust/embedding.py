"""The trainable scikit-learn estimator: data and some labels in, an embedding and clusters out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from diffclust import training
from diffclust.cluster import SpanningForestClustering, lower_guard
from diffclust.constraints import Constraints
from diffclust.frameworks import fill_unknown, is_integer, refuse_masked, to_numpy


class ForestEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """An embedding trained on the labels of some points, and the clusters of all points in it.

    A network is trained so that the spanning forest of its embeddings agrees with the labels
    (:class:`diffclust.nn.PartialFenchelYoungLoss`; unlabelled points take part). Then all training points are
    embedded and clustered, the known labels as constraints. With ``n_clusters`` above the number of labelled classes,
    the other clusters are classes that nobody labelled. A class with fewer than five labels lends its label, in
    training only, to rows in its middle (``options={"least_labels": 1}`` switches that off).

    Args:
        n_clusters: number of clusters, at least the number of labelled classes. Where the labels leave room for fewer
            (all points are labelled, say), there are fewer, with a warning.
        backbone: "linear", "mlp", "residual", "cnn" (images), "package.module:attribute", a torch module, or a function
            ``input_shape -> module``.
        embedding_dim: width of the embedding, for the named backbones.
        epsilon, n_draws: size of the perturbation, and number of draws; see :func:`diffclust.perturbed_value`. "auto"
            is 0.5, and for images a perturbation that grows from 0.5 to 2.
        must_link_first: True is the paper's loss, which draws labelled points to each other directly and costs a third
            of the time; False lets unlabelled points stand between them, which finds much better clusters.
        batch_size, labelled_fraction: rows of a batch, and the share of them that is labelled, as far as it goes.
        max_steps, learning_rate, weight_decay: of AdamW.
        min_cluster_size: a new cluster is cut off only where so many points stay on both sides, and labelled classes
            get so many as far as the tree allows; "auto" is a third of an average cluster, n / (3 n_clusters), or less
            where ``n_clusters`` cannot be reached with it.
        reachability: None, or a number of neighbours for robust linkage of the embeddings; see
            :class:`SpanningForestClustering`.
        validation_fraction: share of the labelled points that is held out of training, to measure it.
        patience: stop after so many validations without a better one, and take the weights of the best; None trains to
            the end. Needs a ``validation_fraction``.
        device: "auto" (CUDA, or else the CPU), "cpu" or "cuda".
        progress: show a progress bar.
        options: further settings of :class:`diffclust.training.TrainingConfig`, e.g. ``{"schedule": "cosine"}``.
        random_state: an integer makes the fit repeatable.

    Attributes:
        classes_: the labelled classes.
        labels_: (n,) cluster of each training point: its class where the cluster holds a labelled class, and numbers
            above the largest class for new clusters.
        embedding_: (n, d) embedding of the training points.
        n_clusters_: the number of clusters.
        clustering_: the fitted :class:`SpanningForestClustering`; its ``hierarchy_`` has the clusters for other k.
        module_: the trained :class:`diffclust.training.ForestModule`.
        loss_curve_: the loss of every training step.

    >>> X = np.concatenate([np.zeros((20, 2)), np.ones((20, 2))]) + np.linspace(0, 0.3, 40)[:, None]
    >>> y = np.full(40, -1)
    >>> y[[0, 5, 39]] = 3, 3, 7
    >>> model = ForestEmbedding(n_clusters=2, max_steps=20, random_state=0).fit(X, y)
    >>> model.predict([[0.1, 0.1], [1.1, 1.1]]).tolist()
    [3, 7]
    """

    def __init__(
        self, n_clusters: int = 8, *, backbone: Any = "residual", embedding_dim: int = 16,
        epsilon: float | str = "auto", n_draws: int = 10, must_link_first: bool = False, batch_size: int = 256,
        labelled_fraction: float = 0.2, max_steps: int = 300, learning_rate: float = 1e-3, weight_decay: float = 0.0,
        min_cluster_size: int | str = "auto", reachability: int | None = None, validation_fraction: float = 0.0,
        patience: int | None = None, device: str = "auto", progress: bool = False,
        options: Mapping[str, Any] | None = None, random_state: Any = None,
    ) -> None:  # fmt: skip
        self.n_clusters = n_clusters
        self.backbone = backbone
        self.embedding_dim = embedding_dim
        self.epsilon = epsilon
        self.n_draws = n_draws
        self.must_link_first = must_link_first
        self.batch_size = batch_size
        self.labelled_fraction = labelled_fraction
        self.max_steps = max_steps
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.min_cluster_size = min_cluster_size
        self.reachability = reachability
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.device = device
        self.progress = progress
        self.options = options
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    # ------------------------------------------------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any = None) -> ForestEmbedding:
        """Train.

        Args:
            X: features (n, d), or images (n, H, W), (n, H, W, C), (n, C, H, W); bytes stay bytes in memory.
            y: integer classes (n,), -1 (or another negative number, nan, or masked) where unknown.
        """
        X = self._validate(X, reset=True)
        labels = _check_labels(y, len(X))
        self._check_n_clusters(labels)
        self.classes_, codes = np.unique(labels[labels >= 0], return_inverse=True)
        known = np.full(len(X), -1)
        known[labels >= 0] = codes
        self.module_ = training.fit(self._config(X.shape[1:]), X, known, progress=self.progress)
        self.loss_curve_ = self.module_.loss_curve
        self.embedding_ = training.embed(self.module_, X, device=self.device)
        self._n_features_out = self.embedding_.shape[1]
        constraints = Constraints.from_labels(known)
        self.n_clusters_ = self._feasible(constraints)
        self.clustering_ = self._cluster(self.embedding_, constraints)
        self._names = _name_clusters(self.clustering_.labels_, known, self.classes_)
        self.labels_ = self._names[self.clustering_.labels_]
        return self

    def _validate(self, X: Any, reset: bool) -> NDArray[Any]:
        """float32, or bytes as they are."""
        refuse_masked("X", X)
        return validate_data(
            self, X, reset=reset, dtype=[np.float32, np.uint8], allow_nd=True, ensure_min_samples=2 if reset else 1
        )

    def _check_n_clusters(self, labels: NDArray[np.int64]) -> None:
        k, n, n_classes = self.n_clusters, len(labels), len(np.unique(labels[labels >= 0]))
        if not is_integer(k):
            raise TypeError(f"n_clusters must be an integer, got {k!r}.")
        if not 1 <= k <= n:
            raise ValueError(f"n_clusters={k} must be from 1 to the number of points, n_samples={n}.")
        if k < n_classes:
            raise ValueError(
                f"n_clusters={k} is below the number of labelled classes, {n_classes}: set n_clusters to at least "
                f"{n_classes}, and higher where some classes are not labelled."
            )

    def _config(self, row_shape: tuple[int, ...]) -> training.TrainingConfig:
        names = (
            "backbone", "embedding_dim", "n_draws", "must_link_first", "batch_size", "labelled_fraction", "max_steps",
            "learning_rate", "weight_decay", "validation_fraction", "patience",
        )  # fmt: skip
        settings = {name: getattr(self, name) for name in names}
        settings |= training.noise_for(row_shape) if self.epsilon == "auto" else {"epsilon": self.epsilon}
        settings["seed"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        return training.TrainingConfig(
            n_clusters=int(self.n_clusters), accelerator=self.device, **{**settings, **(self.options or {})}
        )

    def _feasible(self, known: Constraints) -> int:
        if self.n_clusters > known.max_clusters:
            warnings.warn(
                f"n_clusters={self.n_clusters}, but the labels leave room for {known.max_clusters} clusters only.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return min(int(self.n_clusters), known.max_clusters)

    def _cluster(self, embedding: NDArray[np.float32], known: Constraints) -> SpanningForestClustering:
        """One tree; a guard of "auto" that does not leave enough clusters is halved until it does."""
        k, guard = self.n_clusters_, self.min_cluster_size
        clustering = SpanningForestClustering(
            k, min_cluster_size=1 if guard == "auto" else guard, reachability=self.reachability
        ).fit(embedding, constraints=known)
        if guard == "auto":
            tree, size = lower_guard(
                k, max(1, len(embedding) // (3 * k)), clustering.hierarchy_, clustering.free_hierarchy_, *known.groups()
            )
            clustering.hierarchy_ = tree
            clustering.min_cluster_size = clustering.min_cluster_size_ = size
            clustering.labels_ = tree.labels(k, size)
        return clustering

    def fit_predict(self, X: Any, y: Any = None, **parameters: Any) -> NDArray[np.int64]:
        """The clusters of the training points, ``labels_``."""
        return self.fit(X, y, **parameters).labels_

    # ----------------------------------------------------------------------------------------------------- new points

    def transform(self, X: Any) -> NDArray[np.float32]:
        """The embeddings of points."""
        check_is_fitted(self)
        return training.embed(self.module_, self._validate(X, reset=False), device=self.device)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """The cluster of the training point whose embedding is nearest."""
        check_is_fitted(self)
        embedding = training.embed(self.module_, self._validate(X, reset=False), device=self.device)
        return self._names[self.clustering_.predict(embedding)]

    def score(self, X: Any, y: Any) -> float:
        """Adjusted Rand index of ``predict(X)`` and y, over the rows whose label is known."""
        found = self.predict(X)
        labels = _check_labels(y, len(found))
        return float(adjusted_rand_score(labels[labels >= 0], found[labels >= 0]))


def _check_labels(y: Any, n_samples: int) -> NDArray[np.int64]:
    """Integer labels, negative where unknown, at least one known."""
    advice = "Give the classes of some points as integers from 0, and -1 where unknown."
    if y is None:
        raise ValueError(f"ForestEmbedding requires y to be passed, but the target y is None. {advice}")
    labels = to_numpy(fill_unknown(y, np.int64(-1)))
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), -1, labels)
    if labels.dtype.kind not in "iuf" or not np.isfinite(labels).all() or not np.array_equal(labels, np.floor(labels)):
        raise ValueError(
            f"Unknown label type {labels.dtype}: y must be integers. {advice} "
            "pandas.factorize numbers classes, -1 where one is missing."
        )
    if labels.shape != (n_samples,):
        raise ValueError(f"y must have one label for each of the {n_samples} points, got shape {labels.shape}.")
    if (labels < 0).all():
        raise ValueError(f"y has no known label, all are negative. {advice} Without any, use SpanningForestClustering.")
    return labels.astype(np.int64)


def _name_clusters(
    clusters: NDArray[np.int32], known: NDArray[np.int64], classes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The name of each cluster: the class it holds, or, for new ones, numbers above the largest class."""
    names = np.full(clusters.max() + 1, -1)
    names[clusters[known >= 0]] = classes[known[known >= 0]]
    names[names < 0] = classes.max() + 1 + np.arange((names < 0).sum())
    return names
