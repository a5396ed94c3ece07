"""Plain Kruskal on one similarity matrix, straight from the definition: slow and obviously right.

Every other solver is tested against this one, edge for edge. Kruskal is pure Python on purpose, and the functions of
the contract are loops over it and plain sums of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust import noise as definition
from diffclust.noise import Draws
from diffclust.solvers.base import Answer, Request, host_answer
from diffclust.solvers.checks import check_reached, requested_clusters, symmetrise

Edge = tuple[int, int]


def ordered_edges(similarity: Sequence[Sequence[float]]) -> list[Edge]:
    """All edges that exist, larger similarity first, equal ones by smaller (i, j); -inf means "no such edge"."""
    n = len(similarity)
    edges = [(i, j) for i in range(n) for j in range(i + 1, n) if similarity[i][j] != -math.inf]
    return sorted(edges, key=lambda edge: (-similarity[edge[0]][edge[1]], edge))


def kruskal(
    similarity: Sequence[Sequence[float]],
    n_clusters: int,
    relation: Sequence[Sequence[int]] | None = None,
    must_link_first: bool = True,
) -> list[Edge]:
    """The (constrained) greedy forest.

    Two partitions are kept. ``tree[i]`` is the tree of point i so far. ``block[i]`` is what i's cluster must at least
    become: trees that must-links will still join are one block already. An edge between two trees of one block is
    always welcome. An edge between two blocks joins the blocks, so it is forbidden if some pair across them must stay
    apart, or if only ``n_clusters`` blocks are left.

    Args:
        similarity: n rows of n numbers, symmetric.
        n_clusters: k.
        relation: ``relation[i][j]`` is 1 (same cluster), 0 (different clusters) or -1 (unknown), transitively closed;
            None when nothing is known.
        must_link_first: which greedy.

    Returns:
        Edges by decreasing similarity, fewer than ``n - n_clusters`` where the greedy got stuck above ``n_clusters``
        trees.
    """
    n = len(similarity)
    tree = [{i} for i in range(n)]
    block = [{j for j in range(n) if j == i or (relation and relation[i][j] == 1)} for i in range(n)]
    n_blocks = len({min(b) for b in block})

    edges = ordered_edges(similarity)
    if relation and must_link_first:
        edges.sort(key=lambda edge: relation[edge[0]][edge[1]] != 1)  # stable: similarity still decides inside a tier

    forest = []
    for i, j in edges:
        if j in tree[i]:
            continue
        if j not in block[i]:
            if n_blocks == n_clusters or (relation and any(relation[a][b] == 0 for a in block[i] for b in block[j])):
                continue
            joined_block = block[i] | block[j]
            for member in joined_block:
                block[member] = joined_block
            n_blocks -= 1
        joined_tree = tree[i] | tree[j]
        for member in joined_tree:
            tree[member] = joined_tree
        forest.append((i, j))
    return sorted(forest, key=lambda edge: (-similarity[edge[0]][edge[1]], edge))


def labels_of(n: int, edges: Sequence[Edge]) -> list[int]:
    """Number of the tree of each point; trees are numbered by their smallest point."""
    tree = [{i} for i in range(n)]
    for i, j in edges:
        joined = tree[i] | tree[j]
        for member in joined:
            tree[member] = joined
    roots = sorted({min(t) for t in tree})
    return [roots.index(min(t)) for t in tree]


# ---------------------------------------------------------------------------------------- The contract, on NumPy arrays


def solve(request: Request) -> Answer:
    """Solve all problems and draws; see :class:`diffclust.solvers.base.Request`."""
    similarity, draws, (n_problems, n, _) = symmetrise(request.similarity), request.draws, request.similarity.shape
    shape = (n_problems, request.n_solves, draws.n_draws)
    values, edges, labels = np.zeros(shape), np.full((*shape, n - 1, 2), -1, np.int32), np.zeros((*shape, n), np.int32)
    clusters = requested_clusters(request)
    # The product is rounded to float32, then added in the similarity's precision.
    scaled = np.float32(draws.epsilon) * definition.matrices(draws, n)
    is_broken = np.isnan(similarity).any((1, 2))
    values[is_broken] = np.nan
    for p in np.flatnonzero(~is_broken).tolist():
        for b, perturbed in enumerate(similarity[p] + scaled.astype(similarity.dtype)):
            for s, relation in enumerate(_relations(request, p)):
                forest = kruskal(perturbed.tolist(), int(clusters[p]), relation, request.must_link_first)
                edges[p, s, b, : len(forest)] = np.reshape(forest, (-1, 2))
                labels[p, s, b] = labels_of(n, forest)
                values[p, s, b] = 2.0 * sum(float(perturbed[edge]) for edge in forest)
    if request.if_infeasible == "raise":
        n_edges = (edges[~is_broken, -1, ..., 0] >= 0).sum(-1)
        check_reached(n_edges, clusters[~is_broken], n, request.is_constrained)
    return host_answer(request, values, edges, labels, adjacency_counts)


def _relations(request: Request, problem: int) -> list[list[list[int]] | None]:
    """What each solve of a problem has to agree with."""
    constrained: list[list[list[int]] | None] = []
    if request.relation is not None:
        constrained = [request.relation[problem].tolist()]
    elif request.labels is not None:
        labels = request.labels[problem].tolist()
        constrained = [[[int(a == b) if a >= 0 and b >= 0 else -1 for b in labels] for a in labels]]
    return [None, *constrained] if request.free or not constrained else constrained


def _adjacency(edges: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    """(..., n, n) adjacency matrices of edges (..., n - 1, 2)."""
    result = np.zeros((*edges.shape[:-2], n, n), np.int32)
    for (*which, _), i, j in zip(np.ndindex(edges.shape[:-1]), *edges.reshape(-1, 2).T, strict=True):
        if i >= 0:
            result[(*which, i, j)] = result[(*which, j, i)] = 1
    return result


def _connectivity(labels: NDArray[np.int32]) -> NDArray[np.bool_]:
    return labels[..., :, None] == labels[..., None, :]


def adjacency_counts(edges: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    """See :meth:`diffclust.solvers.base.Sums.adjacency_counts`."""
    counts = _adjacency(edges, n).sum(2, dtype=np.int32)
    return counts[:, 0] if edges.shape[1] == 1 else counts[:, 0] - counts[:, 1]


def connectivity_counts(labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """See :meth:`diffclust.solvers.base.Sums.connectivity_counts`."""
    return _connectivity(labels).sum(1, dtype=np.int32)


def adjacency_products(cotangent: NDArray[Any], edges: NDArray[np.int32]) -> NDArray[Any]:
    """See :meth:`diffclust.solvers.base.Sums.adjacency_products`."""
    return (cotangent[:, None] * _adjacency(edges, cotangent.shape[-1])).sum((-1, -2))


def connectivity_products(cotangent: NDArray[Any], labels: NDArray[np.int32]) -> NDArray[Any]:
    """See :meth:`diffclust.solvers.base.Sums.connectivity_products`."""
    return (cotangent[:, None] * _connectivity(labels)).sum((-1, -2))


def noise_sum(weights: NDArray[Any], n: int, draws: Draws) -> NDArray[np.float64]:
    """See :meth:`diffclust.solvers.base.Solver.noise_sum`."""
    scores = definition.scores(draws._replace(n_draws=weights.shape[1]), n)
    return np.einsum("pb,bij->pij", weights, scores)
