"""Scores of the clusters and of simple methods on the same rows and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust import training
from diffclust.backbones import is_image
from diffclust.cuts import free_kmeans
from diffclust.forest import Hierarchy
from diffclust.metrics import clustering_scores
from diffclust.tables import Table
from diffclust.threads import small_in_one_thread

BASELINE_ROWS = 5000  # methods on the raw data cluster at most this many rows


def score_methods(
    table: Table,
    truth: NDArray[np.int64],
    clusters: NDArray[np.int32],
    n_clusters: int,
    baseline: training.ForestModule | None,
    seed: int,
) -> list[dict[str, Any]]:
    """A row of scores for our clusters and for each simple method, which makes as many.

    Every method clusters all rows. It is scored on the rows whose class it was not told: ``truth`` (n,) is -1 for the
    others. Where fewer than two classes can be scored there are no rows, because one class alone has ARI 1 or 0.
    ``baseline`` is the same network, trained with cross-entropy on the same labels. Each row has the name of the
    method, whether it is ours, and :func:`diffclust.metrics.clustering_scores`.
    """
    scored = np.flatnonzero(truth >= 0)
    if len(np.unique(truth[scored])) < 2:
        return []
    rows = _baseline_rows(truth, seed)
    raw = table.features[rows].reshape(len(rows), -1).astype(np.float64)
    if not is_image(table.features.shape[1:]):
        raw = (raw - raw.mean(0)) / np.where(raw.std(0) > 0, raw.std(0), 1.0)
    few = "" if len(rows) == len(table) else f" ({len(rows)} rows)"
    k = min(n_clusters, len(rows))
    found: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {
        "diffclust": (scored, clusters[scored]),
        f"k-means on raw data{few}": (rows, _kmeans(raw, k, seed)),
        f"single linkage on raw data{few}": (rows, Hierarchy.from_points(raw).labels(k)),
    }
    if baseline is not None:
        found["cross-entropy, same labels"] = scored, training.classify(baseline, table.features[scored])
        embedded = training.embed(baseline, table.features[rows])
        found[f"cross-entropy, k-means of its embedding{few}"] = rows, _kmeans(embedded, k, seed)

    def score(of: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
        known = truth[of] >= 0
        return clustering_scores(truth[of][known], labels[known])

    return [{"method": method, "ours": method == "diffclust", **score(*labelled)} for method, labelled in found.items()]


@small_in_one_thread
def _kmeans(points: NDArray[Any], n_clusters: int, seed: int) -> NDArray[np.int32]:
    # scikit-learn accepts only seeds of 32 bits.
    small_seed = seed if seed < 2**32 else int(np.random.SeedSequence(seed).generate_state(1)[0])
    return free_kmeans(points, n_clusters, small_seed, restarts=10).labels_


def _baseline_rows(truth: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """The numbers of all rows, or of a sample that prefers the rows that are scored."""
    order = np.random.default_rng(seed).permutation(len(truth))
    return np.sort(order[np.argsort(truth[order] < 0, kind="stable")][:BASELINE_ROWS])
