"""How sure a clustering is, and how many clusters there are: the same tree, cut at every k and grown again with noise.

Everything here works on a :class:`diffclust.Hierarchy` and cuts it as :meth:`diffclust.Hierarchy.labels` does, size
guard and constraints included.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust._typing import Array
from diffclust.constraints import Constraints
from diffclust.forest import Hierarchy
from diffclust.frameworks import fill_unknown, is_integer, to_numpy
from diffclust.similarity import standardize
from diffclust.solvers import Request, solver_for
from diffclust.validation import check_choice, check_constraints, check_draws, check_similarity

CRITERIA = ("gap", "stability", "labels")


def soft_memberships(
    similarity: Array,
    labels: Array,
    *,
    n_clusters: int | None = None,
    min_cluster_size: int = 1,
    constraints: Constraints | None = None,
    epsilon: float = 0.1,
    n_draws: int = 50,
    seed: int = 0,
) -> NDArray[np.float64]:
    """(n, k) shares: how often, over perturbed similarities, a point is together with each of the clusters.

    A draw clusters ``similarity + epsilon * noise`` in the same way; a point's share in cluster c is the part of its
    companions in that draw that are in c. Rows sum to one. The similarity is standardised first, so that epsilon means
    the same for all data.

    Args:
        similarity: (n, n).
        labels: (n,) clusters of the unperturbed similarity, numbered from 0.
        n_clusters: k, if not all of them occur in ``labels``.
        min_cluster_size: the size guard with which the labels were found.
        constraints: those with which the labels were found.
        epsilon: scale of the noise.
        n_draws: number of draws.
        seed: of the noise.

    Returns:
        The shares.

    Raises:
        TypeError: ``n_clusters`` is no integer, or ``constraints`` are no :class:`diffclust.Constraints`.
        ValueError: labels are not (n,) numbers from 0, or another argument is out of its range.

    Example:
        >>> s = -np.abs(np.subtract.outer([0.0, 0.1, 5.0, 5.1], [0.0, 0.1, 5.0, 5.1]))
        >>> soft_memberships(s, [0, 0, 1, 1]).tolist()
        [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """
    matrix, constraints = _check_problem(similarity, constraints)
    labels, n_clusters = _check_clusters(labels, n_clusters, len(matrix))
    shares = np.zeros((len(labels), n_clusters))
    for hierarchy in _perturbed_hierarchies(matrix, constraints, min_cluster_size, epsilon, n_draws, seed):
        found = _labels(hierarchy, n_clusters, min_cluster_size)
        table = np.zeros((found.max() + 1, n_clusters))
        np.add.at(table, (found, labels), 1)
        shares += (table / table.sum(1, keepdims=True))[found]
    return shares / n_draws


def _check_problem(similarity: Array, constraints: Any) -> tuple[NDArray[Any], Constraints | None]:
    """One standardised similarity (n, n), and what is known about its points."""
    matrix = check_similarity(similarity)
    if matrix.ndim != 2:
        raise ValueError(f"similarity must be of one problem, shape (n, n), got shape {matrix.shape}.")
    return standardize(matrix), check_constraints(constraints, len(matrix), ())


def _check_integer(name: str, value: Any) -> int:
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    return int(value)


def _check_clusters(labels: Array, n_clusters: int | None, n: int) -> tuple[NDArray[Any], int]:
    labels = to_numpy(labels, "labels")
    if labels.shape != (n,) or labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be {n} integers, shape ({n},), got {labels.dtype} of shape {labels.shape}.")
    k = int(labels.max()) + 1 if n_clusters is None else _check_integer("n_clusters", n_clusters)
    outside = labels[(labels < 0) | (labels >= k)]
    if len(outside):
        raise ValueError(f"labels must be numbered from 0 to {k - 1}, got {outside[0]}.")
    if n_clusters is None and len(np.unique(labels)) < k:
        raise ValueError(f"n_clusters is needed where not all of the clusters 0 to {k - 1} occur in labels.")
    return labels, k


def soft_connectivity(
    similarity: Array,
    n_clusters: int,
    *,
    min_cluster_size: int = 1,
    constraints: Constraints | None = None,
    epsilon: float = 0.1,
    n_draws: int = 100,
    seed: int = 0,
) -> NDArray[np.float64]:
    """(n, n) shares of draws in which two points are in one cluster, under a size guard.

    As :func:`diffclust.perturbed_connectivity`, but of the standardised similarity. Where a draw does not reach k, the
    nearest number counts.

    Args:
        similarity: (n, n).
        n_clusters: k.
        min_cluster_size: the size guard.
        constraints: what is known.
        epsilon: scale of the noise.
        n_draws: number of draws.
        seed: of the noise.

    Returns:
        The shares.

    Raises:
        TypeError: ``n_clusters`` is no integer, or ``constraints`` are no :class:`diffclust.Constraints`.
        ValueError: an argument is out of its range.

    Example:
        >>> s = -np.abs(np.subtract.outer([0.0, 0.1, 5.0, 5.1], [0.0, 0.1, 5.0, 5.1]))
        >>> soft_connectivity(s, 2)[0].tolist()
        [1.0, 1.0, 0.0, 0.0]
    """
    matrix, constraints = _check_problem(similarity, constraints)
    _check_integer("n_clusters", n_clusters)
    together = np.zeros(matrix.shape)
    for hierarchy in _perturbed_hierarchies(matrix, constraints, min_cluster_size, epsilon, n_draws, seed):
        found = _labels(hierarchy, n_clusters, min_cluster_size)
        together += found[:, None] == found[None]
    return together / n_draws


def _labels(hierarchy: Hierarchy, n_clusters: int, min_cluster_size: int) -> NDArray[np.int32]:
    """The clusters for k, or for the nearest number that can be reached."""
    lowest, highest = hierarchy.feasible_clusters(min_cluster_size)
    return hierarchy.labels(min(max(n_clusters, lowest), highest), min_cluster_size)


def _perturbed_hierarchies(
    matrix: NDArray[Any],
    constraints: Constraints | None,
    min_cluster_size: int,
    epsilon: float,
    n_draws: int,
    seed: int,
) -> list[Hierarchy]:
    """The hierarchies of all draws; label constraints are put on each tree, other ones go into the solver."""
    draws = check_draws(matrix, epsilon, n_draws, "normal", seed, 0, False)
    n = len(matrix)
    relation = None if constraints is None or constraints.relation is None else constraints.relation[None]
    request = Request(matrix[None], 1, relation=relation, draws=draws, free=relation is None, detail="forests")
    hierarchies = []
    for edges in solver_for(matrix).solve(request).edges[0, 0]:
        edges = edges[edges[:, 0] >= 0]
        tree = Hierarchy(n, edges, np.zeros(len(edges)))  # in order; the weights themselves are not needed
        hierarchies.append(tree if constraints is None else tree.constrained(constraints, min_cluster_size))
    return hierarchies


class ClusterCount(NamedTuple):
    """What :func:`choose_n_clusters` found.

    Attributes:
        n_clusters: the best-scoring number.
        candidates: the numbers that were compared.
        scores: of each candidate, higher is better.
    """

    n_clusters: int
    candidates: NDArray[np.int64]
    scores: NDArray[np.float64]


def choose_n_clusters(
    hierarchy: Hierarchy,
    criterion: str = "gap",
    *,
    min_cluster_size: int | None = None,
    max_clusters: int = 20,
    labels: Array = None,
    similarity: Array = None,
    epsilon: float = 0.1,
    n_draws: int = 20,
    seed: int = 0,
) -> ClusterCount:
    """The best-scoring number of clusters among those that the size guard allows, from 2 to ``max_clusters``.

    Args:
        hierarchy: the tree to cut.
        criterion: how k is scored. Between equal scores the gap decides.

            - "gap": the relative drop 1 - h' / h from the height h of the last cut that k clusters need to the height
              h' of the first that they do not; the height of a cut is how far its similarity is below the strongest
              edge's, and where the guard allows no further one, that of the median edge. Needs only the tree.
            - "stability": mean adjusted Rand index between the clusters and those of perturbed similarities. Needs
              ``similarity``, the (n, n) matrix. Favours few, coarse clusters.
            - "labels": adjusted Rand index with the known ``labels`` (-1 unknown) on the labelled points. A class
              without labels is not seen.
        min_cluster_size: of the guard; default n // 50, at least 2, because without a guard outliers decide.
        max_clusters: the largest candidate.
        labels: (n,) known labels, -1 unknown, for "labels".
        similarity: (n, n), for "stability".
        epsilon: scale of the noise, for "stability".
        n_draws: number of draws, for "stability".
        seed: of the noise, for "stability".

    Returns:
        The number of clusters, and the score of each candidate.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: there is no such criterion, or what it needs is missing or of a wrong shape.

    Example:
        >>> points = np.array([0.0, 0.1, 5.0, 5.2, 9.0, 9.1])
        >>> h = Hierarchy.from_similarity(-np.abs(np.subtract.outer(points, points)))
        >>> choose_n_clusters(h, min_cluster_size=2).n_clusters
        3
    """
    check_choice("criterion", criterion, CRITERIA)
    if not isinstance(hierarchy, Hierarchy):
        raise TypeError(
            f"hierarchy must be a Hierarchy, got {type(hierarchy).__name__}. Make one with Hierarchy.from_points or "
            ".from_similarity."
        )
    _check_integer("max_clusters", max_clusters)
    n = hierarchy.n_points
    guard = default_guard(n) if min_cluster_size is None else min_cluster_size
    lowest, highest = hierarchy.feasible_clusters(guard)
    candidates = np.arange(max(lowest, 2), min(highest, max_clusters) + 1)
    if len(candidates) == 0:  # nothing to cut
        return ClusterCount(lowest, np.array([lowest]), np.zeros(1))
    gaps = _relative_gaps(hierarchy, candidates, guard)
    if criterion == "gap":
        scores = gaps
    elif criterion == "labels":
        scores = _agreements(hierarchy, candidates, guard, labels)
    else:
        scores = _stabilities(hierarchy, candidates, guard, similarity, epsilon, n_draws, seed)
    best = np.lexsort((gaps, scores))[-1]
    return ClusterCount(int(candidates[best]), candidates, scores)


def default_guard(n_points: int) -> int:
    """The size guard under which a number of clusters is looked for."""
    return min(max(2, n_points // 50), n_points)


def _relative_gaps(hierarchy: Hierarchy, candidates: NDArray[np.int64], guard: int) -> NDArray[np.float64]:
    weights = hierarchy.weights[hierarchy.guarded_cuts(guard)].astype(np.float64)
    free = hierarchy.weights[hierarchy.n_fixed :].astype(np.float64)
    strongest = free.max(initial=-np.inf)
    middle = np.median(free) if len(free) else strongest
    with np.errstate(over="ignore", invalid="ignore"):
        heights = np.append(strongest - weights, strongest - middle)  # where the guard allows no further cut
    lowest, _ = hierarchy.feasible_clusters(guard)
    last = candidates - lowest - 1  # position of the last cut that k clusters need; -1: none
    needed = np.where(last >= 0, heights[last], np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        gaps = 1 - heights[last + 1] / needed
    return np.where(last < 0, 0.0, np.nan_to_num(gaps))


def _agreements(hierarchy: Hierarchy, candidates: NDArray[np.int64], guard: int, labels: Array) -> NDArray[np.float64]:
    from sklearn.metrics import adjusted_rand_score

    if labels is None:
        raise ValueError("criterion='labels' needs labels=, one for each point, -1 where unknown.")
    labels = to_numpy(fill_unknown(labels, -1), "labels")
    if labels.dtype.kind not in "iubf":
        raise TypeError(
            f"labels must be numbers, -1 where unknown, got {labels.dtype}. Of names, "
            "diffclust.labels.parse_labels(labels, n).codes are such numbers."
        )
    known = labels >= 0
    if labels.shape != (hierarchy.n_points,) or not known.any():
        raise ValueError(
            f"labels must have shape ({hierarchy.n_points},) with at least one known label, got shape {labels.shape}, "
            f"{int(known.sum())} known."
        )
    return np.array([adjusted_rand_score(labels[known], hierarchy.labels(int(k), guard)[known]) for k in candidates])


def _stabilities(
    hierarchy: Hierarchy,
    candidates: NDArray[np.int64],
    guard: int,
    similarity: Array,
    epsilon: float,
    n_draws: int,
    seed: int,
) -> NDArray[np.float64]:
    from sklearn.metrics import adjusted_rand_score

    if similarity is None:
        raise ValueError("criterion='stability' needs similarity=, the (n, n) matrix that the tree comes from.")
    matrix = standardize(check_similarity(similarity))
    if matrix.shape != (hierarchy.n_points,) * 2:
        raise ValueError(f"similarity must have shape ({hierarchy.n_points},) * 2, got {matrix.shape}.")
    drawn = _perturbed_hierarchies(matrix, None, guard, epsilon, n_draws, seed)
    scores = np.zeros(len(candidates))
    for position, k in enumerate(candidates):
        labels = hierarchy.labels(int(k), guard)
        for tree in drawn:
            scores[position] += adjusted_rand_score(labels, _labels(tree, int(k), guard))
    return scores / n_draws
