"""Similarity → forest: the exact clustering operators, and the hierarchy that answers every k at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.bindings import backend_of
from diffclust.constraints import Constraints
from diffclust.frameworks import to_numpy
from diffclust.noise import Draws
from diffclust.problems import check_count, check_flag, prepare
from diffclust.similarity import check_similarity
from diffclust.solvers import solver_for


@dataclass(frozen=True, eq=False)
class Forest:
    """A maximum k-spanning forest, or a batch of them.

    Attributes:
        edges: (..., n - 1, 2) int32, by decreasing similarity; rows past the n - k edges of the forest are (-1, -1).
        labels: (..., n) int32, the tree of each point; trees are numbered by their smallest point.
        n_clusters: k, an int, or an array for a batch with one k per problem.
        value: F_k = ⟨A, Σ⟩, every edge counted twice. On tensors and JAX arrays it is differentiable: A.
    """

    edges: Any
    labels: Any
    n_clusters: Any
    value: Any

    def adjacency(self) -> Any:
        """A: 1 where the forest has an edge, symmetric, zero diagonal; shape (..., n, n)."""
        *batch_shape, n = self.labels.shape
        edges = self.edges.reshape(math.prod(batch_shape), 1, 1, n - 1, 2)
        counts = backend_of(self.edges).adjacency_counts(edges, n)
        return (counts * 1.0).reshape(*batch_shape, n, n)

    def connectivity(self) -> Any:
        """M: 1 where two points share a tree, unit diagonal; shape (..., n, n)."""
        return (self.labels[..., :, None] == self.labels[..., None, :]) * 1.0


def spanning_forest(
    similarity: Any, n_clusters: Any, *, constraints: Constraints | None = None, must_link_first: bool = True
) -> Forest:
    r"""The maximum k-spanning forest, ``argmax <A, similarity>`` over forests with k trees: single linkage.

    Larger similarity means closer, -inf means "no such edge"; equal similarities go by smaller (i, j).

    With ``constraints`` it is the best forest that the greedy finds among those that agree with them: must-link pairs
    first, by decreasing similarity, then all other edges except those that join what must stay apart.
    ``must_link_first=False`` takes all edges by decreasing similarity, must-links at their place, and keeps enough
    joins back to satisfy them at k clusters. Both are heuristics (see ``docs/design.md`` for where they are exact).

    Args:
        similarity: (n, n), or (..., n, n) for a batch of problems, symmetric.
        n_clusters: k, an integer, or one per problem.

    >>> points = np.array([[0.0], [0.1], [1.0], [1.2]])
    >>> spanning_forest(-np.abs(points - points.T), n_clusters=2).labels.tolist()
    [0, 0, 1, 1]
    """
    check_flag("must_link_first", must_link_first)
    problem = prepare(similarity, n_clusters, constraints)
    values, forests = backend_of(problem.similarity).values(
        problem, Draws(), must_link_first=must_link_first, strict=True, with_labels=True
    )
    return Forest(
        edges=problem.unflatten(forests.edges[:, 0, 0]),
        labels=problem.unflatten(forests.labels[:, 0, 0]),
        n_clusters=n_clusters,
        value=problem.unflatten(values),
    )


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """The maximum spanning tree of all points: single linkage for every number of clusters.

    Attributes:
        edges: (n - 1, 2) int32, by decreasing similarity. Where -inf edges leave the graph in c pieces there are n - c.
        weights: their similarities.
    """

    n_points: int
    edges: NDArray[np.int32]
    weights: NDArray[Any]
    _cuts: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False)

    @classmethod
    def from_similarity(cls, similarity: Any) -> Hierarchy:
        """From one (n, n) similarity matrix.

        >>> points = np.array([[0.0], [0.1], [1.0], [1.2]])
        >>> hierarchy = Hierarchy.from_similarity(-np.abs(points - points.T))
        >>> [hierarchy.labels(k).tolist() for k in (1, 2, 3)]
        [[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 2]]
        """
        matrix = check_similarity(to_numpy(similarity))
        if matrix.ndim != 2:
            raise ValueError(f"A hierarchy is of one problem: similarity must have shape (n, n), got {matrix.shape}.")
        forests = solver_for(matrix).solve(matrix[None], np.array([1]))
        edges = forests.edges[0, 0, 0]
        edges = edges[edges[:, 0] >= 0]
        return cls(len(matrix), edges, matrix[edges[:, 0], edges[:, 1]])

    def labels(self, n_clusters: int, min_cluster_size: int = 1) -> NDArray[np.int32]:
        """The clusters for k = ``n_clusters``, numbered by their smallest point.

        Cuts the k - 1 weakest edges; with ``min_cluster_size`` above 1, the k - 1 weakest edges that leave at
        least that many points on both sides, one after the other, so that outliers do not use up the cuts.
        """
        from diffclust.solvers.tree import number_trees

        n_clusters = check_count("n_clusters", n_clusters, self.n_points)
        min_cluster_size = check_count("min_cluster_size", min_cluster_size, self.n_points)
        n_pieces = self.n_points - len(self.edges)
        if n_clusters < n_pieces:
            raise ValueError(
                f"n_clusters={n_clusters} cannot be reached: without its -inf edges the graph has {n_pieces} "
                "components."
            )
        n_cuts = n_clusters - n_pieces
        if min_cluster_size == 1:
            kept = self.edges[: len(self.edges) - n_cuts]
        else:
            cuts = self.guarded_cuts(min_cluster_size)
            if n_cuts > len(cuts):
                raise ValueError(
                    f"n_clusters={n_clusters} cannot be reached with min_cluster_size={min_cluster_size}: at most "
                    f"{n_pieces + len(cuts)} clusters of that size can be cut from this tree. Lower one of the two."
                )
            kept = np.delete(self.edges, cuts[:n_cuts], axis=0)
        labels = np.empty(self.n_points, np.int32)
        number_trees(kept, len(kept), np.empty(self.n_points, np.int32), labels)
        return labels

    def guarded_cuts(self, min_cluster_size: int) -> NDArray[np.int64]:
        """Positions in ``edges`` of all cuts that leave ``min_cluster_size`` points on both sides, weakest first."""
        min_cluster_size = check_count("min_cluster_size", min_cluster_size, self.n_points)
        if min_cluster_size not in self._cuts:
            from diffclust.solvers.tree import guarded_cuts

            self._cuts[min_cluster_size] = guarded_cuts(self.edges, self.n_points, min_cluster_size)
        return self._cuts[min_cluster_size]

    def linkage_matrix(self) -> NDArray[np.float64]:
        """SciPy's linkage matrix Z, for ``scipy.cluster.hierarchy``; heights are -similarity, pieces meet at inf."""
        from diffclust.solvers.tree import linkage

        return linkage(self.edges, -self.weights.astype(np.float64), self.n_points)
