"""How good a clustering is, against known labels. The names of the clusters never matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust._typing import Array
from diffclust.frameworks import to_numpy
from diffclust.labels import is_missing


def _check_labels(labels_true: Array, labels_pred: Array) -> tuple[NDArray[Any], NDArray[Any]]:
    true, pred = to_numpy(labels_true, "labels_true"), to_numpy(labels_pred, "labels_pred")
    if true.ndim != 1 or pred.ndim != 1:
        raise ValueError(f"labels must have shape (n,), got shapes {true.shape} and {pred.shape}.")
    if len(true) != len(pred):
        raise ValueError(f"labels_true has {len(true)} points, labels_pred has {len(pred)}: they must be equal.")
    if len(true) == 0:
        raise ValueError("labels are empty: at least one point is needed.")
    for name, labels in (("labels_true", true), ("labels_pred", pred)):
        if labels.dtype.kind == "O":
            missing = np.array([is_missing(label) for label in labels])
        else:
            missing = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(1, bool)
        if missing.any():
            raise ValueError(
                f"{name} has no label at {int(missing.argmax())}. Score the points whose label is known, or give the "
                "others a label of their own."
            )
    return true, pred


def connectivity_error(labels_true: Array, labels_pred: Array) -> float:
    """The paper's clustering error: the mean of |M - M̂| over all n^2 pairs, the diagonal included.

    It is a weak measure: all singletons have an error of 0.10 on ten balanced classes. Read it beside
    :func:`clustering_scores`.

    Args:
        labels_true: (n,) known labels.
        labels_pred: (n,) clusters.

    Returns:
        The error, from 0 to 1.

    Raises:
        ValueError: labels are empty, or not of one shape (n,).

    Example:
        >>> connectivity_error([0, 0, 1, 1], [5, 5, 5, 7])
        0.375
    """
    from sklearn.metrics.cluster import pair_confusion_matrix

    true, pred = _check_labels(labels_true, labels_pred)
    (_, joined), (separated, _) = pair_confusion_matrix(true, pred)
    return float(joined + separated) / len(true) ** 2


def matched_accuracy(labels_true: Array, labels_pred: Array) -> float:
    """The share of points that are right under the best one-to-one naming of the clusters (Hungarian matching).

    Args:
        labels_true: (n,) known labels.
        labels_pred: (n,) clusters.

    Returns:
        The share, from 0 to 1.

    Raises:
        ValueError: labels are empty, or not of one shape (n,).

    Example:
        >>> matched_accuracy([0, 0, 1, 1], [5, 5, 5, 7])
        0.75
    """
    from scipy.sparse import hstack, identity
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching
    from sklearn.metrics.cluster import contingency_matrix

    # Sparse, because records have about as many clusters as points.
    table = contingency_matrix(*_check_labels(labels_true, labels_pred), sparse=True)
    n_classes, n_clusters = table.shape
    # Each class may also stay alone. That counts half a point for all classes together, so it never pays.
    wide = hstack([table.astype(np.float64), identity(n_classes) * (0.5 / n_classes)], format="csr")
    classes, clusters = min_weight_full_bipartite_matching(wide, maximize=True)
    matched = clusters < n_clusters
    return float(table[classes[matched], clusters[matched]].sum() / table.sum())


def _of_sklearn(name: str) -> Callable[[Array, Array], float]:
    """A score of ``sklearn.metrics``, which is imported when it is first used."""

    def score(labels_true: Array, labels_pred: Array) -> float:
        from sklearn import metrics

        return float(getattr(metrics, name)(labels_true, labels_pred))

    return score


class Score(NamedTuple):
    """One row of the table of scores."""

    title: str
    function: Callable[[Array, Array], float]  # (labels_true, labels_pred) -> the score
    best: str = "max"  # "max" or "min": which of two values is the better one
    in_terminal: bool = True  # whether ``diffclust fit`` prints it; report and metrics.json have all


# A new score is a row here: metrics.json, the report and the command line then have it.
SCORES = {
    "error": Score("error", connectivity_error, best="min"),
    "ari": Score("ARI", _of_sklearn("adjusted_rand_score")),
    "nmi": Score("NMI", _of_sklearn("normalized_mutual_info_score")),
    "ami": Score("AMI", _of_sklearn("adjusted_mutual_info_score"), in_terminal=False),
    "accuracy": Score("accuracy", matched_accuracy),
}


def clustering_scores(labels_true: Array, labels_pred: Array) -> dict[str, float]:
    """The scores of a clustering: all rows of ``SCORES``. Higher is better for all but ``error``.

    Args:
        labels_true: (n,) known labels.
        labels_pred: (n,) clusters.

    Returns:
        ``error`` (:func:`connectivity_error`), ``ari`` and ``nmi`` and ``ami`` (scikit-learn's adjusted Rand index,
        normalised and adjusted mutual information), and ``accuracy`` under the best one-to-one naming of clusters.

    Raises:
        ValueError: labels are empty, or not of one shape (n,).

    Example:
        >>> scores = clustering_scores([0, 0, 1, 1], [1, 1, 0, 0])
        >>> scores["error"], scores["accuracy"]
        (0.0, 1.0)
    """
    true, pred = _check_labels(labels_true, labels_pred)
    return {name: score.function(true, pred) for name, score in SCORES.items()}
