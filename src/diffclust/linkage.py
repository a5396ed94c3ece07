"""Single linkage under what is known: points → tree, and the tree → clusters under a size guard."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.cuts import kmeans
from diffclust.forest import Hierarchy
from diffclust.frameworks import is_integer
from diffclust.knowledge import Knowledge
from diffclust.similarity import cosine_similarities, mutual_reachability
from diffclust.stability import choose_n_clusters
from diffclust.validation import check_count

ROUNDING = 1e-6  # share of the largest entry of a matrix, up to which another one is zero
DENSE_POINTS = 4096  # up to which an n x n matrix is made
ROBUST_NEIGHBOURS = 5  # of the robust forest


def forest(
    points: NDArray[Any],
    knowledge: Knowledge,
    n_clusters: int,
    *,
    tree: Hierarchy | None = None,
    reachability: int | None = None,
) -> NDArray[Any]:
    """Clusters (n,) from 0 by single linkage under the size guard "auto". ``tree`` is that of the points, if known."""
    check_n_clusters(n_clusters, knowledge)
    tree = spanning_tree(points, "sqeuclidean", reachability) if tree is None else tree
    hierarchy, k, guard = cut_tree(
        tree, knowledge, n_clusters, "auto", lambda: similarities(points, "sqeuclidean", reachability)
    )
    return kmeans_if_too_many(hierarchy.labels(k, guard), points, knowledge, n_clusters)


def robust_forest(points: NDArray[Any], knowledge: Knowledge, n_clusters: int) -> NDArray[Any]:
    """Clusters (n,) from 0 by robust linkage, in which a point is no closer to any other than its fifth nearest one."""
    return forest(points, knowledge, n_clusters, reachability=robust_reachability(len(points)))


def robust_reachability(n_points: int) -> int | None:
    """The number of neighbours of the robust forest; None where there is one point."""
    return min(ROBUST_NEIGHBOURS, n_points - 1) or None


def kmeans_if_too_many(
    clusters: NDArray[Any], points: NDArray[Any], knowledge: Knowledge, n_clusters: int
) -> NDArray[Any]:
    """The clusters or, where pairs left the greedy with more than ``n_clusters``, those of k-means if it finds some."""
    if clusters.max() >= n_clusters:
        with contextlib.suppress(ValueError):
            return kmeans(points, knowledge, n_clusters)
    return clusters


def check_n_clusters(n_clusters: int, knowledge: Knowledge) -> None:
    """An error if this is no integer, or the knowledge does not allow so many clusters."""
    if not is_integer(n_clusters):
        raise TypeError(f"n_clusters must be an integer, got {n_clusters!r}.")
    lowest, highest = knowledge.min_clusters, knowledge.max_clusters
    if not lowest <= n_clusters <= highest:
        raise ValueError(
            f"n_clusters={n_clusters} is outside what the known labels and pairs allow, {lowest} to {highest}."
        )


def auto_min_cluster_size(n_points: int, n_clusters: int) -> int:
    """The size guard "auto": a third of an average cluster."""
    return max(1, n_points // (3 * n_clusters))


def _choose_n_clusters(free: Hierarchy, knowledge: Knowledge) -> int:
    """The number of clusters that the labels, or else the largest gap of the tree, ask for."""
    # Labels tell too many clusters from enough only where two rows have the same one.
    repeated = (np.unique(knowledge.labels[knowledge.labels >= 0], return_counts=True)[1] > 1).any()
    return choose_n_clusters(free, "labels" if repeated else "gap", labels=knowledge.labels).n_clusters


def guess_n_clusters(points: NDArray[Any], knowledge: Knowledge) -> int:
    """The number of clusters that the labels, or else the largest gap of the tree, ask for, as far as is feasible."""
    number = _choose_n_clusters(spanning_tree(points, "sqeuclidean"), knowledge)
    return max(knowledge.min_clusters, min(number, knowledge.max_clusters))


def cut_tree(
    free: Hierarchy,
    knowledge: Knowledge,
    n_clusters: int | None,
    min_cluster_size: int | str,
    similarity: Callable[[], NDArray[Any]],
) -> tuple[Hierarchy, int, int]:
    """The tree under what is known and its cut. ``similarity`` makes the (n, n) similarities for general pairs.

    General cannot-links may leave the greedy with more clusters than were asked for.

    Returns:
        The tree, the number of clusters, and the size guard with which the tree reaches that number.

    Raises:
        ValueError: ``n_clusters`` cannot be reached with the size guard.
    """
    given = 1 if min_cluster_size == "auto" else check_count("min_cluster_size", min_cluster_size, free.n_points)
    hierarchy = _constrain(free, knowledge, given, similarity)
    lowest, highest = hierarchy.feasible_clusters(given)
    if n_clusters is None:
        n_clusters = min(_choose_n_clusters(free, knowledge), highest)
    n_clusters = max(n_clusters, lowest)
    if n_clusters > highest:
        raise ValueError(
            f"n_clusters={n_clusters} cannot be reached with min_cluster_size={given}: the tree falls into "
            f"{lowest} to {highest} clusters. Ask for fewer clusters or a smaller min_cluster_size."
        )
    if min_cluster_size != "auto":
        return hierarchy, n_clusters, given
    guard = auto_min_cluster_size(free.n_points, n_clusters)
    if not knowledge.all_apart:  # the guard does not change this tree
        return hierarchy, n_clusters, hierarchy.reachable_guard(n_clusters, guard)
    while guard > 1:
        guarded = _constrain(free, knowledge, guard, similarity)
        if guarded.feasible_clusters(guard)[1] >= n_clusters:
            return guarded, n_clusters, guard
        guard //= 2
    return hierarchy, n_clusters, 1


def _constrain(
    free: Hierarchy, knowledge: Knowledge, min_cluster_size: int, similarity: Callable[[], NDArray[Any]]
) -> Hierarchy:
    """Labels need only the tree. The greedy for general pairs is better with all pairs, where their matrix fits."""
    if knowledge.is_empty:
        return free
    if knowledge.all_apart or free.n_points > DENSE_POINTS:
        return free.joined(knowledge.group, knowledge.apart, min_cluster_size)
    return Hierarchy.from_similarity(similarity(), knowledge.constraints())


def tree_of_clusters(points: NDArray[Any], clusters: NDArray[Any], free: Hierarchy, metric: str) -> Hierarchy:
    """The tree in which given clusters come apart first: a tree of each, then the free tree's edges between them.

    Returns:
        The tree. Edges between clusters are at most as similar as the weakest inside, so that similarities decrease.
    """
    from diffclust.solvers.tree import constrain

    edges, weights = [np.empty((0, 2), np.int32)], [np.empty(0)]
    for number in range(int(clusters.max()) + 1):
        rows = np.flatnonzero(clusters == number)
        if len(rows) > 1:
            tree = Hierarchy.from_points(points[rows], metric)
            edges.append(rows[tree.edges].astype(np.int32))
            weights.append(tree.weights)
    inside, strength = np.concatenate(edges), np.concatenate(weights)
    order = np.argsort(-strength, kind="stable")
    ends = clusters[free.edges]
    between = np.flatnonzero(ends[:, 0] != ends[:, 1])
    n_clusters = int(clusters.max()) + 1
    joins = constrain(ends[between].astype(np.int32), np.full(n_clusters, -1), np.zeros((0, 0), bool))
    weakest = strength.min(initial=np.inf)
    return Hierarchy(
        len(points),
        np.sort(np.concatenate([inside[order], free.edges[between[joins]]]), axis=1),
        np.concatenate([strength[order], np.minimum(free.weights[between[joins]], weakest)]),
    )


# --------------------------------------------------------------------------------------------------------------- Points


def spanning_tree(
    points: NDArray[Any], metric: str, reachability: int | None = None, n_neighbors: int | None = None
) -> Hierarchy:
    """The hierarchy of points (n, d), or of a matrix (n, n) with metric "precomputed", without constraints."""
    if metric == "precomputed":
        return Hierarchy.from_similarity(similarities(points, metric, reachability))
    return Hierarchy.from_points(points, metric, n_neighbors, reachability=reachability)


def similarities(points: NDArray[Any], metric: str, reachability: int | None = None) -> NDArray[Any]:
    """The (n, n) similarities of points."""
    from scipy.spatial.distance import cdist

    if metric == "precomputed":
        similarity = -points if are_distances(points) else points
    elif metric == "cosine":
        similarity = cosine_similarities(points)
    else:
        # Not scikit-learn's distances, of which "euclidean" are not computed from differences.
        similarity = -cdist(points, points, "cityblock" if metric == "manhattan" else metric)
    return similarity if reachability is None else mutual_reachability(similarity, reachability)


def are_distances(matrix: NDArray[Any]) -> bool:
    """Whether a matrix (n, n) is of distances: zero diagonal, nothing negative, but for rounding, as of 1 - cosine."""
    rounding = ROUNDING * np.abs(matrix).max(initial=0)
    return bool(matrix.min(initial=0) >= -rounding and np.abs(np.diagonal(matrix)).max(initial=0) <= rounding)
