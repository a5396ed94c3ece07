"""Similarity → forest: the exact clustering operators, and the hierarchy that answers every k at once."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust import validation
from diffclust._typing import Array, Integers
from diffclust.bindings import backend_of
from diffclust.constraints import Constraints
from diffclust.frameworks import is_integer, to_numpy
from diffclust.groups import all_apart
from diffclust.noise import Draws
from diffclust.solvers import Request, solver_for


@dataclass(frozen=True, eq=False)
class Forest:
    """A maximum k-spanning forest, or a batch of them.

    Attributes:
        edges: (..., n - 1, 2) int32, by decreasing similarity; rows past the n - k edges of the forest are (-1, -1).
        labels: (..., n) int32, the tree of each point; trees are numbered by their smallest point.
        n_clusters: k, an int, or an array for a batch with one k per problem.
        value: F_k = ⟨A, Σ⟩, every edge counted twice. On tensors and JAX arrays it is differentiable: A.
    """

    edges: Array
    labels: Array
    n_clusters: Integers
    value: Array

    def adjacency(self) -> Array:
        """A: 1 where the forest has an edge, symmetric, zero diagonal; shape (..., n, n)."""
        *batch_shape, n = self.labels.shape
        edges = self.edges.reshape(math.prod(batch_shape), 1, 1, n - 1, 2)
        counts = backend_of(self.edges).adjacency_counts(edges, n)
        return (counts * 1.0).reshape(*batch_shape, n, n)

    def connectivity(self) -> Array:
        """M: 1 where two points share a tree, unit diagonal; shape (..., n, n)."""
        return (self.labels[..., :, None] == self.labels[..., None, :]) * 1.0


def spanning_forest(
    similarity: Array, n_clusters: Integers, *, constraints: Constraints | None = None, must_link_first: bool = True
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
        constraints: what is known, see :class:`diffclust.Constraints`.
        must_link_first: which greedy, see above.

    Returns:
        The forest, or a batch of forests.

    Raises:
        ValueError: k cannot be: the constraints forbid it, or missing (-inf) edges or cannot-links stop the greedy. On
            tensors of a GPU, and where JAX traces, the second is not noticed.

    Example:
        >>> points = np.array([[0.0], [0.1], [1.0], [1.2]])
        >>> spanning_forest(-np.abs(points - points.T), n_clusters=2).labels.tolist()
        [0, 0, 1, 1]
    """
    validation.check_flag("must_link_first", must_link_first)
    problem = validation.prepare(similarity, n_clusters, constraints)
    request = problem.request(
        Draws(), must_link_first=must_link_first, free=False, if_infeasible="raise", detail="forests"
    )
    value, answer = backend_of(problem.given).value(problem.given, request)
    return Forest(
        edges=problem.unflatten(answer.edges[:, 0, 0]),
        labels=problem.unflatten(answer.labels[:, 0, 0]),
        n_clusters=n_clusters,
        value=value,
    )


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """The maximum spanning tree of all points: single linkage for every number of clusters.

    Attributes:
        n_points: number of points.
        edges: (n - 1, 2) int32, by decreasing similarity. Where -inf edges or constraints leave the graph in c pieces
            there are n - c.
        weights: their similarities.
        n_fixed: number of leading edges that no cut may take, must-links, with weight inf; see :meth:`constrained`.
    """

    n_points: int
    edges: NDArray[np.int32]
    weights: NDArray[Any]
    n_fixed: int = 0
    _cuts: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_similarity(cls, similarity: Array, constraints: Constraints | None = None) -> Hierarchy:
        """From one similarity matrix.

        Args:
            similarity: (n, n), symmetric.
            constraints: what is known, see :meth:`constrained`; here by the greedy over all pairs, of which soft ones
                are added to the similarity.

        Returns:
            The hierarchy.

        Raises:
            ValueError: the similarity is not symmetric, or a batch.

        Example:
            >>> points = np.array([[0.0], [0.1], [1.0], [1.2]])
            >>> hierarchy = Hierarchy.from_similarity(-np.abs(points - points.T))
            >>> [hierarchy.labels(k).tolist() for k in (1, 2, 3)]
            [[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 2]]
        """
        matrix = validation.check_similarity(to_numpy(similarity, "similarity"))
        if matrix.ndim != 2:
            raise ValueError(f"A hierarchy is of one problem: similarity must have shape (n, n), got {matrix.shape}.")
        known = validation.check_constraints(constraints, len(matrix), ())
        if known is not None and known.soft is not None:
            matrix = matrix + validation.place_soft(known, matrix)
            known = replace(known, soft=None)
        relation = None if known is None or known.relation is None else known.relation[None]
        # Where constraints forbid one cluster, the greedy goes on until nothing can be joined.
        request = Request(matrix[None], 1, relation=relation, free=relation is None, detail="forests")
        edges = solver_for(matrix).solve(request).edges[0, 0, 0]
        edges = edges[edges[:, 0] >= 0]
        weights = matrix[edges[:, 0], edges[:, 1]]
        if known is None:
            return cls(len(matrix), edges, weights)
        if known.relation is None:
            return cls(len(matrix), edges, weights).constrained(known)
        must_link = known.relation[edges[:, 0], edges[:, 1]] == 1
        order = np.argsort(~must_link, kind="stable")
        return cls(len(matrix), edges[order], np.where(must_link, np.inf, weights)[order], int(must_link.sum()))

    @classmethod
    def from_points(
        cls,
        x: Array,
        metric: str = "sqeuclidean",
        n_neighbors: int | None = None,
        *,
        reachability: int | None = None,
        algorithm: str = "auto",
        progress: bool = False,
    ) -> Hierarchy:
        """From points (n, d), in O(n) memory: the n × n similarities are never stored.

        The tree is exact: a maximum spanning tree of the similarities computed in float64 from differences of
        coordinates (equal points are at distance 0 exactly), equal ones by smaller (i, j). With ``n_neighbors`` it is
        approximate, for millions of points: the tree of a graph that joins each point to about that many of its
        nearest others, whose pieces are then joined by short edges. Each of its edges is at most as similar as the
        exact tree's edge at the same position; ``results/README.md`` says by how much on data.

        Args:
            x: points (n, d), finite.
            metric: "sqeuclidean" (similarity -|x - y|²), "euclidean" (-|x - y|), "cosine" (the cosine), "manhattan" or
                "chebyshev" (minus the distance).
            n_neighbors: None for the exact tree, else neighbours of each point in the graph, e.g. 15.
            reachability: m for robust single linkage, the exact tree of :func:`diffclust.mutual_reachability` with m
                neighbours, by Prim's algorithm on the host: n² distances.
            algorithm: how the exact tree is found. "kdtree" leaves out pairs that are too far apart, which pays in
                few dimensions or tight clusters; "complete" looks at all pairs; "auto" tries which is faster.
            progress: show progress bars (needs tqdm).

        Returns:
            The hierarchy.

        Raises:
            ValueError: an argument is out of its range, points are not finite, or ``reachability`` goes with
                ``n_neighbors``.

        Example:
            >>> hierarchy = Hierarchy.from_points([[0.0], [0.1], [1.0], [1.2]], metric="euclidean")
            >>> hierarchy.labels(2).tolist()
            [0, 0, 1, 1]
        """
        from diffclust.solvers import points as solvers
        from diffclust.solvers.points.metrics import METRICS

        validation.check_choice("metric", metric, METRICS)
        validation.check_choice("algorithm", algorithm, solvers.ALGORITHMS)
        validation.check_flag("progress", progress)
        x = validation.check_points(x)
        for number in (n_neighbors, reachability):
            if number is not None:
                validation.check_neighbors(number, len(x))
        if None not in (n_neighbors, reachability):
            raise ValueError("reachability needs the exact tree: it does not go with n_neighbors.")
        return cls(len(x), *solvers.spanning_tree(x, metric, n_neighbors, reachability, algorithm, progress))

    @classmethod
    def from_edges(
        cls, edges: Array, weights: Array, n_points: int, constraints: Constraints | None = None
    ) -> Hierarchy:
        """From the edges of a graph: links between records, or neighbours that you have found yourself.

        A pair without an edge has similarity -inf. So pieces of the graph that no edge connects are never in one
        cluster: :meth:`labels` starts at the number of pieces, and :meth:`linkage_matrix` joins them at height inf.

        Args:
            edges: (m, 2) integers, pairs of points from 0 to ``n_points`` - 1, in any order and direction. Of several
                edges between two points the most similar counts. An edge from a point to itself is left out.
            weights: (m,) similarities, larger is closer. -inf means "no such edge". Of distances, give the negative.
            n_points: number of points.
            constraints: what is known, see :meth:`constrained`; here by the greedy over all edges.

        Returns:
            The hierarchy.

        Raises:
            TypeError: edges are not integers, or weights not real numbers.
            ValueError: shapes do not fit, a point is out of range, a weight is NaN or +inf, or constraints are soft.

        Example:
            >>> hierarchy = Hierarchy.from_edges([(0, 1), (2, 1), (3, 4)], [0.9, 0.2, 0.5], n_points=5)
            >>> [hierarchy.labels(k).tolist() for k in (2, 3)]
            [[0, 0, 0, 1, 1], [0, 0, 1, 2, 2]]
            >>> hierarchy.labels_at(0.4).tolist()
            [0, 0, 1, 2, 2]
        """
        from diffclust.solvers.edges import by_similarity, maximum_spanning_tree
        from diffclust.solvers.tree import constrain

        pairs, strength = validation.check_edges(edges, weights, n_points)
        known = validation.check_constraints(constraints, n_points, ())
        validation.check_hard(known, "Hierarchy.from_edges")
        if known is None or all_apart(known.groups()[1]):
            tree = maximum_spanning_tree(pairs, strength, n_points)
            free = cls(n_points, pairs[tree], strength[tree])
            return free if known is None else free.constrained(known)
        group, apart = known.groups()
        order = by_similarity(pairs, strength)
        everything = cls(n_points, pairs[order], strength[order])
        return everything._glued(group, constrain(everything.edges, group, apart.copy()))

    def labels(self, n_clusters: int, min_cluster_size: int = 1) -> NDArray[np.int32]:
        """The clusters for k = ``n_clusters``, numbered by their smallest point.

        Cuts the k - 1 weakest edges; with ``min_cluster_size`` above 1, the k - 1 weakest edges that leave at
        least that many points on both sides, one after the other, so that outliers do not use up the cuts.

        Args:
            n_clusters: k.
            min_cluster_size: the size guard.

        Returns:
            (n,) numbers of clusters.

        Raises:
            ValueError: the tree cannot be cut into k clusters; the message names the range.
        """
        from diffclust.solvers.tree import number_trees

        n_clusters = validation.check_count("n_clusters", n_clusters, self.n_points)
        lowest, highest = self.feasible_clusters(min_cluster_size)
        if not lowest <= n_clusters <= highest:
            guard = f" with min_cluster_size={min_cluster_size}" if min_cluster_size > 1 else ""
            reason = "Missing (-inf) edges or constraints forbid fewer"
            if n_clusters > highest:
                reason = "Ask for fewer clusters" + " or a smaller min_cluster_size" * bool(guard)
            raise ValueError(
                f"n_clusters={n_clusters} cannot be reached{guard}: this tree can be cut into {lowest} to {highest} "
                f"clusters. {reason}."
            )
        cuts = self.guarded_cuts(min_cluster_size)[: n_clusters - lowest]
        kept = np.delete(self.edges, cuts, axis=0)
        labels = np.empty(self.n_points, np.int32)
        number_trees(kept, len(kept), np.empty(self.n_points, np.int32), labels)
        return labels

    def labels_at(self, threshold: float, min_cluster_size: int = 1) -> NDArray[np.int32]:
        """The clusters that edges of at least this similarity hold together, numbered by their smallest point.

        Args:
            threshold: edges with a smaller similarity are cut; must-links are not.
            min_cluster_size: the size guard, see :meth:`labels`. A cut that leaves fewer points is not made.

        Returns:
            (n,) numbers of clusters.

        Raises:
            ValueError: the threshold is NaN.

        Example:
            >>> Hierarchy.from_edges([(0, 1), (1, 2)], [0.9, 0.2], n_points=3).labels_at(0.5).tolist()
            [0, 0, 1]
        """
        if math.isnan(threshold):
            raise ValueError("threshold is NaN. Give a similarity.")
        cut = self.weights[self.guarded_cuts(min_cluster_size)] < threshold
        return self.labels(self.feasible_clusters()[0] + int(cut.sum()), min_cluster_size)

    def path(self, i: int, j: int) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """The edges of the tree between two points, from i to j: what holds them together.

        The two are in one cluster as long as none of these edges is cut.

        Args:
            i: a point.
            j: another.

        Returns:
            (m, 2) edges, each from the point that is nearer to i; and their (m,) similarities, inf for must-links.

        Raises:
            TypeError: a point is not an integer.
            ValueError: a point is out of range, or nothing connects the two.

        Example:
            >>> edges, weights = Hierarchy.from_edges([(0, 2), (1, 2), (0, 1)], [0.9, 0.2, 0.1], n_points=3).path(0, 1)
            >>> edges.tolist(), weights.tolist()
            ([[0, 2], [2, 1]], [0.9, 0.2])
        """
        for point in (i, j):
            if not is_integer(point):
                raise TypeError(f"a point must be an integer, got {point!r}.")
            if not 0 <= point < self.n_points:
                raise ValueError(f"point {point} is out of range: points are numbered 0 to {self.n_points - 1}.")
        parent, edge_above = self._rooted
        above_i = [int(i)]
        while parent[above_i[-1]] >= 0:
            above_i.append(int(parent[above_i[-1]]))
        position = {point: number for number, point in enumerate(above_i)}
        above_j = [int(j)]
        while above_j[-1] not in position:
            if parent[above_j[-1]] < 0:
                raise ValueError(f"nothing connects points {i} and {j}: they are never in one cluster.")
            above_j.append(int(parent[above_j[-1]]))
        up, down = above_i[: position[above_j[-1]]], above_j[-2::-1]
        points = [*up, above_j[-1], *down]
        edges = np.array([points[:-1], points[1:]], np.int32).T
        return edges, self.weights[edge_above[up + down]]

    @functools.cached_property
    def _rooted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The neighbour of each point towards the first point of its tree, and the position of the edge to it."""
        from diffclust.solvers.tree import root_forest

        parent = root_forest(self.edges, self.n_points).parent
        i, j = self.edges.T
        edge_above = np.full(self.n_points, -1)
        edge_above[np.where(parent[i] == j, i, j)] = np.arange(len(self.edges))
        return parent, edge_above

    def feasible_clusters(self, min_cluster_size: int = 1) -> tuple[int, int]:
        """The smallest and the largest number of clusters that :meth:`labels` can give."""
        lowest = self.n_points - len(self.edges)
        return lowest, lowest + len(self.guarded_cuts(min_cluster_size))

    def reachable_guard(self, n_clusters: int, min_cluster_size: int) -> int:
        """The size guard, halved until ``n_clusters`` can be reached with it."""
        while min_cluster_size > 1 and self.feasible_clusters(min_cluster_size)[1] < n_clusters:
            min_cluster_size //= 2
        return min_cluster_size

    def guarded_cuts(self, min_cluster_size: int) -> NDArray[np.int64]:
        """Positions in ``edges`` of all cuts that leave ``min_cluster_size`` points on both sides, weakest first."""
        min_cluster_size = validation.check_count("min_cluster_size", min_cluster_size, self.n_points)
        if min_cluster_size == 1:
            return np.arange(len(self.edges) - 1, self.n_fixed - 1, -1)
        if min_cluster_size not in self._cuts:
            from diffclust.solvers.tree import guarded_cuts

            cuts = guarded_cuts(self.edges, self.n_points, min_cluster_size, self.n_fixed)
            cuts.flags.writeable = False  # it is given again at the next call
            self._cuts[min_cluster_size] = cuts
        return self._cuts[min_cluster_size]

    def constrained(self, constraints: Constraints, min_cluster_size: int = 1) -> Hierarchy:
        """The hierarchy in which must-links are joined first and what must stay apart never meets.

        With labels it has a cluster for every labelled group at its smallest k; a larger k cuts off new clusters of
        unlabelled points. The forests are those of :func:`spanning_forest` with these constraints: an edge that is not
        in the maximum spanning tree is the weakest of a cycle, and gluing points together does not change that.
        Cannot-links that labels cannot express may need edges that this tree does not have; then it ends with more
        clusters than the greedy over all pairs would.

        Args:
            constraints: what is known about these points.
            min_cluster_size: a size guard for the cuts between labelled groups: of these the weakest that leave every
                group with so many points, or with half as many where that cannot be, and so on. Where the groups
                have so many points anyway, nothing changes. Of no effect on cannot-links that labels cannot express.

        Returns:
            Another hierarchy of the same points.

        Raises:
            TypeError: ``constraints`` are no :class:`diffclust.Constraints`.
            ValueError: they are about another number of points or have weights, or this hierarchy is constrained
                already.

        Example:
            >>> h = Hierarchy.from_similarity(-np.abs(np.subtract.outer([0.0, 1, 2, 9], [0.0, 1, 2, 9])))
            >>> [h.constrained(Constraints.from_labels([0, 1, -1, 0])).labels(k).tolist() for k in (2, 3)]
            [[0, 1, 1, 0], [0, 1, 2, 0]]
            >>> x = np.array([0.0, 2, 3, 4, 5.5, 6.5, 7.5])
            >>> h = Hierarchy.from_similarity(-np.abs(np.subtract.outer(x, x)))
            >>> known = Constraints.from_labels([0, -1, -1, -1, -1, -1, 1])
            >>> [h.constrained(known, size).labels(2).tolist() for size in (1, 2)]
            [[0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1]]
        """
        known = validation.check_constraints(constraints, self.n_points, ())
        if known is None:
            raise TypeError("constraints must be a Constraints object, got None.")
        validation.check_hard(known, "Hierarchy.constrained")
        return self.joined(*known.groups(), min_cluster_size)

    def joined(self, group: NDArray[np.int64], apart: NDArray[np.bool_], min_cluster_size: int = 1) -> Hierarchy:
        """:meth:`constrained` by :meth:`Constraints.groups`, for which no matrix of all points is needed."""
        from diffclust.solvers.tree import constrain, separate

        group, apart = validation.check_groups(group, apart, self.n_points)
        if self.n_fixed:
            raise ValueError("This hierarchy is constrained already. Join the constraints and start from the free one.")
        min_cluster_size = validation.check_count("min_cluster_size", min_cluster_size, self.n_points)
        plain = self._glued(group, constrain(self.edges, group, apart.copy()))
        if min_cluster_size == 1 or not all_apart(apart) or len(apart) == 0:
            return plain
        clusters = plain.labels(plain.feasible_clusters()[0])
        if np.bincount(clusters)[clusters[group >= 0]].min() >= min_cluster_size:
            return plain
        return self._glued(group, separate(self.edges, group, len(apart), min_cluster_size))

    def _glued(self, group: NDArray[np.int64], kept: NDArray[np.bool_]) -> Hierarchy:
        """The edges that are kept, and a star for each group, from its first point."""
        _, first, inverse = np.unique(group, return_index=True, return_inverse=True)
        centre = first[inverse]
        others = np.flatnonzero((group >= 0) & (centre != np.arange(self.n_points)))
        star = np.stack([centre[others], others], axis=1).astype(np.int32)
        return Hierarchy(
            self.n_points,
            np.concatenate([star, self.edges[kept]]),
            np.concatenate([np.full(len(star), np.inf, self.weights.dtype), self.weights[kept]]),
            n_fixed=len(star),
        )

    def linkage_matrix(self) -> NDArray[np.float64]:
        """SciPy's linkage matrix Z, for ``scipy.cluster.hierarchy``; heights are -similarity, pieces meet at inf.

        Must-links are merged at the height of the strongest other edge.

        Returns:
            (n - 1, 4) merges.
        """
        from diffclust.solvers.tree import linkage

        strongest = self.weights[self.n_fixed] if len(self.weights) > self.n_fixed else 0.0
        heights = -np.minimum(self.weights.astype(np.float64), strongest)
        return linkage(self.edges, heights, self.n_points)
