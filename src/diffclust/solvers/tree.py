"""One pass over a maximum spanning tree: its clusters for any k, its dendrogram, its size-guarded cuts (Numba)."""

from __future__ import annotations

import numba
import numpy as np

_jit = numba.njit(nogil=True, cache=True, boundscheck=False)


@_jit
def find(leader, i):
    """The leader of i's set, halving the path to it."""
    while leader[i] != i:
        leader[i] = leader[leader[i]]
        i = leader[i]
    return i


@_jit
def number_trees(edges, n_edges, leader, labels):
    """labels[i] = number of i's tree, by first appearance: the leader of a tree is its smallest point."""
    n = labels.shape[0]
    for i in range(n):
        leader[i] = i
    for e in range(n_edges):
        a, b = find(leader, edges[e, 0]), find(leader, edges[e, 1])
        leader[max(a, b)] = min(a, b)
    n_trees = 0
    for i in range(n):
        if leader[i] == i:
            labels[i] = n_trees
            n_trees += 1
        else:
            labels[i] = labels[find(leader, i)]
    return n_trees


@_jit
def linkage(edges, heights, n):
    """SciPy's linkage matrix from the edges in the order of merging; what stays apart is merged last, at infinity."""
    result = np.empty((n - 1, 4), np.float64)
    leader = np.arange(n)
    cluster = np.arange(n)  # SciPy's number of the cluster that a leader stands for
    size = np.ones(n, np.int64)
    n_edges = edges.shape[0]
    for step in range(n - 1):
        if step < n_edges:
            a, b = find(leader, edges[step, 0]), find(leader, edges[step, 1])
            height = heights[step]
        else:
            a, b, height = find(leader, 0), 0, np.inf
            while find(leader, b) == a:
                b += 1
            b = find(leader, b)
        result[step, 0] = min(cluster[a], cluster[b])
        result[step, 1] = max(cluster[a], cluster[b])
        result[step, 2] = height
        a, b = min(a, b), max(a, b)
        leader[b] = a
        size[a] += size[b]
        cluster[a] = n + step
        result[step, 3] = size[a]
    return result


@_jit
def constrain(edges, group, apart):
    """Which of a tree's edges (by decreasing similarity) stay, if groups are joined beforehand and some kept apart.

    ``group[i]`` is the number of i's group or -1, ``apart[g, h]`` whether groups g and h must not meet. An edge goes if
    it closes a cycle with what was joined, or joins what must stay apart. ``apart`` is overwritten.
    """
    n = group.shape[0]
    leader = np.arange(n)
    own = np.full(n, -1, np.int64)  # of a leader: a group that stands for all in its tree
    first = np.full(apart.shape[0], -1, np.int64)
    for i in range(n):
        g = group[i]
        if g >= 0:
            if first[g] < 0:
                first[g] = i
                own[i] = g
            leader[i] = first[g]
    kept = np.zeros(edges.shape[0], np.bool_)
    for e in range(edges.shape[0]):
        a, b = find(leader, edges[e, 0]), find(leader, edges[e, 1])
        if a == b or (own[a] >= 0 and own[b] >= 0 and apart[own[a], own[b]]):
            continue
        kept[e] = True
        leader[b] = a
        if own[a] < 0:
            own[a] = own[b]
        elif own[b] >= 0:
            g, h = own[a], own[b]
            for other in range(apart.shape[0]):
                if apart[h, other]:
                    apart[g, other] = apart[other, g] = True
    return kept


@_jit
def guarded_cuts(edges, n, min_size, n_fixed=0):
    """Edges to cut, weakest first, each of which leaves at least ``min_size`` points on both of its sides.

    The first ``n_fixed`` edges are never cut. A skipped edge stays skipped, because sides only get smaller; so one pass
    is enough, and the first k - 1 cuts are the cuts for k clusters. Costs O(n) and, for each cut, the size of what it
    cuts off.
    """
    n_edges = edges.shape[0]
    degree = np.zeros(n + 1, np.int64)
    for e in range(n_edges):
        degree[edges[e, 0] + 1] += 1
        degree[edges[e, 1] + 1] += 1
    starts = np.cumsum(degree)
    fill = starts[:-1].copy()
    neighbours = np.empty(2 * n_edges, np.int64)
    for e in range(n_edges):
        i, j = edges[e, 0], edges[e, 1]
        neighbours[fill[i]] = j
        neighbours[fill[j]] = i
        fill[i] += 1
        fill[j] += 1

    parent = np.full(n, -1, np.int64)
    top = np.full(n, -1, np.int64)  # the topmost point of one's cluster
    order = np.empty(n, np.int64)  # parents before children
    n_seen = 0
    for start in range(n):
        if top[start] >= 0:
            continue
        top[start] = start
        order[n_seen] = start
        n_seen += 1
        position = n_seen - 1
        while position < n_seen:
            v = order[position]
            position += 1
            for slot in range(starts[v], starts[v + 1]):
                u = neighbours[slot]
                if top[u] < 0:
                    top[u] = start
                    parent[u] = v
                    order[n_seen] = u
                    n_seen += 1
    below = np.ones(n, np.int64)  # points of one's cluster from here down
    for position in range(n - 1, -1, -1):
        v = order[position]
        if parent[v] >= 0:
            below[parent[v]] += below[v]

    cuts = np.empty(n_edges, np.int64)
    stack = np.empty(n, np.int64)
    n_cuts = 0
    for e in range(n_edges - 1, n_fixed - 1, -1):
        i, j = edges[e, 0], edges[e, 1]
        child = i if parent[i] == j else j
        if below[child] < min_size or below[top[child]] - below[child] < min_size:
            continue
        cuts[n_cuts] = e
        n_cuts += 1
        ancestor, old_top = child, top[child]
        while ancestor != old_top:
            ancestor = parent[ancestor]
            below[ancestor] -= below[child]
        stack[0], height = child, 1
        while height > 0:
            height -= 1
            v = stack[height]
            top[v] = child
            for slot in range(starts[v], starts[v + 1]):
                u = neighbours[slot]
                if parent[u] == v and top[u] == old_top:
                    stack[height] = u
                    height += 1
    return cuts[:n_cuts]
