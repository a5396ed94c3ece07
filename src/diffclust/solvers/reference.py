"""Plain Kruskal on one similarity matrix, straight from the definition: slow and obviously right.

Every other solver is tested against this one, edge for edge. It is pure Python on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    """Edges of the (constrained) greedy forest, by decreasing similarity.

    ``relation[i][j]`` is 1 (same cluster), 0 (different clusters) or -1 (unknown), transitively closed; None when
    nothing is known. Fewer edges than ``n - n_clusters`` come back where the greedy got stuck above ``n_clusters``
    trees.

    Two partitions are kept. ``tree[i]`` is the tree of point i so far. ``block[i]`` is what i's cluster must at least
    become: trees that must-links will still join are one block already. An edge between two trees of one block is
    always welcome. An edge between two blocks joins the blocks, so it is forbidden if some pair across them must stay
    apart, or if only ``n_clusters`` blocks are left.
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
