"""The trainable scikit-learn estimator: data and some labels in, an embedding and clusters out."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.utils import ClassifierTags, assert_all_finite, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from diffclust import training
from diffclust.cluster import FittedPartition, SpanningForestClustering, warn_of_another_number
from diffclust.constraints import Constraints
from diffclust.frameworks import explain_words, is_integer, refuse_masked, to_dense
from diffclust.knowledge import Knowledge
from diffclust.labels import ADVICE, ClassLabels, parse_labels
from diffclust.partition import partition, what_retrain_is_told
from diffclust.placing import joined_rows
from diffclust.training.data import warn_of_lost_digits
from diffclust.training.loop import with_own_backbone

# Arguments that are settings of TrainingConfig.
SHARED_SETTINGS = (
    "n_clusters",
    "backbone",
    "embedding_dim",
    "epsilon",
    "n_draws",
    "must_link_first",
    "batch_size",
    "labelled_fraction",
    "n_steps",
    "learning_rate",
    "weight_decay",
    "validation_fraction",
    "patience",
    "device",
)


class ForestEmbedding(FittedPartition, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """An embedding trained on the labels of some points, and the clusters of all points in it.

    A network is trained so that the spanning forest of its embeddings agrees with the labels
    (:class:`diffclust.nn.PartialFenchelYoungLoss`; unlabelled points take part). Then all training points are
    embedded and clustered, the known labels as constraints. With ``n_clusters`` above the number of labelled classes,
    the other clusters are classes that nobody labelled. A class with fewer than five labels lends its label, in
    training only, to rows in its middle (``options={"least_labels": 1}`` switches that off).

    Args:
        n_clusters: number of clusters, at least the number of labelled classes. Where the labels leave room for fewer
            (all points are labelled, say), there are fewer, with a warning. "auto" trains with room for half as many
            again as are labelled, and takes the number with which hidden classes are found again and which fits the
            share of the rows that are near labels (``partition_.evidence.candidates`` and ``.interval``). Where no
            class seems to be new, three more short trainings choose the cut.
        backbone: "linear", "mlp", "residual", "committee" (the mean of four of those), "cnn" (images),
            "package.module:attribute", a torch module, of which a copy is trained, or a function
            ``input_shape -> module``. "auto" is "cnn" for images of at least 8 x 8, "committee" for more than 20
            clusters, and else "residual".
        embedding_dim: width of the embedding, for the named backbones; "auto" is 16, and 64 for more than 20 clusters.
        epsilon, n_draws: size of the perturbation, and number of draws; see :func:`diffclust.perturbed_value`. "auto"
            is 0.5, and for images a perturbation that grows from 0.5 to 2.
        must_link_first: True is the paper's loss, which draws labelled points to each other directly; False
            lets unlabelled points stand between them, which finds much better clusters.
        batch_size, labelled_fraction: rows of a batch, and the share of them that is labelled, as far as it goes.
            "auto" is 256 rows, and 512 for more than 20 clusters.
        n_steps, learning_rate, weight_decay: of AdamW.
        cut: how clusters are made: "forest", "robust forest", "k-means", "gaussian" (a mixture that starts at the
            forest), "gaussian of k-means", "spectral", or "classifier" (for labels of all classes) of the embedding.
            "auto" makes all of them, and some of the input, of tables of categories latent classes as well. It takes
            the one that agrees best with others and with labels that were hidden, at the cost of three shorter
            trainings where there are two labels a class or more. With room for new classes it also looks where rows of
            a table have labels near them, as if labels had been given at random within their classes. If labels were
            hidden and every cluster is a labelled class, all cuts and two classifiers of the input vote about each row.
            With settings of the forest (the next two) it is the forest.
        min_cluster_size: a new cluster is cut off only where so many points stay on both sides, and labelled classes
            get so many as far as the tree allows; "auto" is a third of an average cluster, n / (3 n_clusters), or less
            where ``n_clusters`` cannot be reached with it.
        reachability: None, or a number of neighbours for robust linkage of the embeddings; see
            :class:`SpanningForestClustering`.
        outliers: True gives points that lie less than half as densely in the embedding as their neighbours do the label
            -1 ("" where classes are names).
        validation_fraction: share of the labelled points that is held out of training, to measure it.
        patience: stop after so many validations without a better one, and take the weights of the best; None trains to
            the end. Needs a ``validation_fraction``.
        device: "auto" (CUDA, or else the CPU), "cpu" or "cuda".
        progress: show a progress bar.
        options: further settings of :class:`diffclust.training.TrainingConfig`, e.g. ``{"schedule": "cosine"}``.
        random_state: an integer makes the fit repeatable.
        max_steps: the old name of ``n_steps``.

    Attributes:
        classes_: the labelled classes.
        labels_: (n,) cluster of each training point: its class where the cluster holds a labelled class. New clusters
            are "new 1", "new 2", ... where classes are names, and else numbers above the largest class.
        probabilities_: (n,) the probability that each point is in its cluster.
        novelty_: (n,) the probability that a point is of none of the labelled classes.
        cluster_numbers_: the clusters as in ``labels_``, in the order of the columns of ``predict_proba``.
        embedding_: (n, d) embedding of the training points.
        n_clusters_: the number of clusters.
        min_cluster_size_: the size guard that was used.
        hierarchy_: :class:`diffclust.Hierarchy`, the clusters of the embedding for every other k.
        partition_: the clusters, numbered from 0, as a :class:`diffclust.partition.Partition`.
        module_: the trained :class:`diffclust.training.ForestModule`.
        loss_curve_: the loss of every training step.

    >>> X = np.concatenate([np.zeros((20, 2)), np.ones((20, 2))]) + np.linspace(0, 0.3, 40)[:, None]
    >>> y = np.full(40, -1)
    >>> y[[0, 5, 39]] = 3, 3, 7
    >>> model = ForestEmbedding(n_clusters=2, n_steps=20, random_state=0).fit(X, y)
    >>> model.predict([[0.1, 0.1], [1.1, 1.1]]).tolist()
    [3, 7]
    """

    def __init__(
        self,
        n_clusters: int | str = 8,
        *,
        backbone: Any = "auto",
        embedding_dim: int | str = "auto",
        epsilon: float | str = "auto",
        n_draws: int = 10,
        must_link_first: bool = False,
        batch_size: int | str = "auto",
        labelled_fraction: float = 0.2,
        n_steps: int = 300,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        cut: str = "auto",
        min_cluster_size: int | str = "auto",
        reachability: int | None = None,
        outliers: bool = False,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        device: str = "auto",
        progress: bool = False,
        options: Mapping[str, Any] | None = None,
        random_state: Any = None,
        max_steps: int | str = "deprecated",
    ) -> None:
        self.n_clusters = n_clusters
        self.backbone = backbone
        self.embedding_dim = embedding_dim
        self.epsilon = epsilon
        self.n_draws = n_draws
        self.must_link_first = must_link_first
        self.batch_size = batch_size
        self.labelled_fraction = labelled_fraction
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.cut = cut
        self.min_cluster_size = min_cluster_size
        self.reachability = reachability
        self.outliers = outliers
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.device = device
        self.progress = progress
        self.options = options
        self.random_state = random_state
        self.max_steps = max_steps

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.three_d_array = True
        tags.input_tags.sparse = True
        tags.classifier_tags = ClassifierTags()  # scikit-learn's checks of predict_proba read them
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    # ------------------------------------------------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any = None, *, constraints: Constraints | Knowledge | None = None) -> ForestEmbedding:
        """Train, embed all points and cluster them.

        Args:
            X: features (n, d), or images (n, H, W), (n, H, W, C), (n, C, H, W); bytes stay bytes in memory.
                Sparse features are made dense, up to 2 GB.
            y: classes (n,), integers or names: -1 (or another negative number, nan, None, "", or masked) where unknown;
                see :func:`diffclust.labels.parse_labels`. It may be None where there are constraints.
            constraints: what else is known, e.g. ``Constraints.from_pairs(len(X), must_link, cannot_link)``, as in
                :meth:`SpanningForestClustering.fit`. Pairs that labels cannot express need memory for an (n, n) matrix
                of bytes there; ``Knowledge.join(y, must_link, cannot_link)`` does not.

        Returns:
            The estimator.

        Raises:
            ValueError: nothing is known, labels and pairs contradict each other, or they do not allow ``n_clusters``.
        """
        X = self._validate(X, reset=True)
        known, labels = self._join(y, constraints, len(X))
        wanted = self._wanted(known)
        config = self._config()
        if not known.is_soft:  # otherwise training decides them by what it believes
            config = training.resolve(config, X, known)
        cutting: dict[str, Any] = {
            "min_cluster_size": self.min_cluster_size,
            "reachability": self.reachability,
            "cut": self.cut,
            "seed": config.seed,
        }
        told = what_retrain_is_told(known, wanted, **cutting)
        with training.retrained_beside(config, X, told) as retrain:
            self.module_ = training.fit(with_own_backbone(config), X, known, progress=self.progress)
            if known.is_soft:
                backbone = self.module_.config.backbone if config.backbone == "auto" else config.backbone
                retrain = training.retrainer(dataclasses.replace(self.module_.config, backbone=backbone), X)
            self.loss_curve_ = self.module_.loss_curve
            self.embedding_ = training.embed(self.module_, X, device=self.device)
            self._n_features_out = self.embedding_.shape[1]
            rows = training.scaled_rows(self.module_, X)
            found = partition(self.embedding_, known, wanted, rows=rows, retrain=retrain, **cutting)
        warn_of_another_number(found, wanted)
        self._set_fitted(found, labels)
        return self

    def _validate(self, X: Any, reset: bool) -> NDArray[Any]:
        """float32, or bytes as they are."""
        refuse_masked("X", X)
        with explain_words():
            checked = validate_data(
                self,
                X,
                reset=reset,
                dtype=[np.float32, np.uint8, np.float64, np.int64, np.int32, np.uint64, np.uint32],
                accept_sparse=("csr", "csc"),
                allow_nd=True,
                ensure_min_samples=2 if reset else 1,
            )
        if checked.dtype not in (np.float32, np.uint8):
            if reset:
                warn_of_lost_digits(checked)
            with np.errstate(over="ignore"):
                checked = checked.astype(np.float32)
            assert_all_finite(checked, estimator_name=type(self).__name__, input_name="X")
        return to_dense(checked)

    def _join(
        self, y: Any, constraints: Constraints | Knowledge | None, n_samples: int
    ) -> tuple[Knowledge, ClassLabels]:
        """Labels and constraints together, and the labels."""
        other = Knowledge.from_constraints(constraints, n_samples)
        if y is None and not other.is_empty:
            y = other.labels
        labels = _check_labels(y, n_samples, needed=other.is_empty)
        return other.with_labels(labels.codes), labels

    def _wanted(self, known: Knowledge) -> int | None:
        """``n_clusters``, or fewer where the labels leave no room for so many; None chooses them."""
        if self.n_clusters == "auto":
            return None
        if not is_integer(self.n_clusters):
            raise TypeError(f"n_clusters must be an integer or 'auto', got {self.n_clusters!r}.")
        k, n, lowest, highest = int(self.n_clusters), known.n_points, known.min_clusters, known.max_clusters
        if not 1 <= k <= n:
            raise ValueError(f"n_clusters={k} must be from 1 to the number of points, n_samples={n}.")
        if k < lowest:
            raise ValueError(
                f"n_clusters={k} is below the number of clusters that the labels and constraints need: set n_clusters "
                f"to at least {lowest}, and higher where some classes are not labelled."
            )
        if k > highest:
            message = f"n_clusters={k}, but the labels leave room for {highest} clusters only."
            warnings.warn(message, ConvergenceWarning, stacklevel=3)
        return min(k, highest)

    def _config(self) -> training.TrainingConfig:
        settings = {name: getattr(self, name) for name in SHARED_SETTINGS}
        if self.max_steps != "deprecated":
            message = "ForestEmbedding's max_steps is now n_steps; the old name goes in the next version."
            warnings.warn(message, DeprecationWarning, stacklevel=3)
            settings["n_steps"] = self.max_steps
        # Not NumPy's integers: a checkpoint notes it.
        settings["n_clusters"] = None if self.n_clusters == "auto" else int(self.n_clusters)
        settings["seed"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        options = dict(self.options or {})
        valid = inspect.signature(training.TrainingConfig).parameters
        if unknown := sorted(set(options) - set(valid)):
            raise TypeError(
                f"options has no setting {', '.join(unknown)}. The settings are {', '.join(sorted(valid))}."
            )
        return training.TrainingConfig(**{**settings, **options})

    def __getattr__(self, name: str) -> Any:
        """``clustering_``, the old form of ``partition_``. It is no property, because displays read all of these."""
        if name != "clustering_":
            return object.__getattribute__(self, name)  # raises what it raised before
        return self._clustering()

    def _clustering(self) -> SpanningForestClustering:
        """The clusters of the embedding as a fitted estimator."""
        check_is_fitted(self)
        message = "ForestEmbedding.clustering_ is now partition_, hierarchy_ and min_cluster_size_."
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        model = SpanningForestClustering(
            self.n_clusters_, min_cluster_size=self.min_cluster_size_, reachability=self.reachability
        )
        return model.fit(self.embedding_, constraints=self.partition_.knowledge)

    # ----------------------------------------------------------------------------------------------------- new points

    def transform(self, X: Any) -> NDArray[np.float32]:
        """The embeddings of points."""
        check_is_fitted(self)
        return training.embed(self.module_, self._validate(X, reset=False), device=self.device)

    def _joined(self, X: Any) -> NDArray[np.int64]:
        return joined_rows(self.embedding_, self.partition_.clusters, self.transform(X))

    def score(self, X: Any, y: Any) -> float:
        """Adjusted Rand index of ``predict(X)`` and y, over the rows whose label is known."""
        found = self.predict(X)
        codes = _check_labels(y, len(found), needed=True).codes
        return float(adjusted_rand_score(codes[codes >= 0], found[codes >= 0]))


def _check_labels(y: Any, n_samples: int, needed: bool) -> ClassLabels:
    """The labels, at least one of them known where they are needed."""
    without = "Without any, use SpanningForestClustering."
    if y is None:
        raise ValueError(f"ForestEmbedding requires y to be passed, but the target y is None. {ADVICE} {without}")
    labels = parse_labels(y, n_samples)
    if needed and len(labels.classes) == 0:
        raise ValueError(f"y has no known label. {ADVICE} {without}")
    return labels
