"""Passes over a maximum spanning tree: its clusters for any k, its dendrogram, its size-guarded cuts (Numba)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from diffclust.solvers.compiled import jit

_jit = jit(error_model="python")
_allocating = jit(error_model="python", allocates=True)


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
        a, b = find(leader, np.int64(edges[e, 0])), find(leader, np.int64(edges[e, 1]))
        if a < b:
            leader[b] = a
        else:
            leader[a] = b
    n_trees = 0
    for i in range(n):
        if leader[i] == i:
            labels[i] = n_trees
            n_trees += 1
        else:
            labels[i] = labels[find(leader, i)]
    return n_trees


@_allocating
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


@_allocating
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


class RootedForest(NamedTuple):
    """Trees, each with one of its points as root.

    Attributes:
        starts, neighbours: those of point i are ``neighbours[starts[i] : starts[i + 1]]``.
        parent: the neighbour above, -1 for a topmost point.
        top: the topmost point of one's tree; cuts change it.
        order: all points, parents before children.
    """

    starts: Any
    neighbours: Any
    parent: Any
    top: Any
    order: Any


@_allocating
def root_forest(edges, n):
    """The trees of these edges, each rooted at its smallest point."""
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
    top = np.full(n, -1, np.int64)
    order = np.empty(n, np.int64)
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
    return RootedForest(starts, neighbours, parent, top, order)


@jit(error_model="python", inner=True)
def add_up(counts, tree):
    """counts[v] becomes the sum from v down."""
    for position in range(counts.shape[0] - 1, -1, -1):
        v = tree.order[position]
        if tree.parent[v] >= 0:
            counts[tree.parent[v]] += counts[v]


@_jit
def remove(counts, child, tree):
    """What is below ``child`` is no longer below the points above it."""
    ancestor = child
    while ancestor != tree.top[child]:
        ancestor = tree.parent[ancestor]
        counts[ancestor] -= counts[child]


@jit(error_model="python", inner=True)
def cut_off(child, tree, stack):
    """``child`` and what is below it become a tree of their own."""
    starts, neighbours, parent, top = tree.starts, tree.neighbours, tree.parent, tree.top
    old_top = top[child]
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


@_allocating
def guarded_cuts(edges, n, min_size, n_fixed=0):
    """Edges to cut, weakest first, each of which leaves at least ``min_size`` points on both of its sides.

    The first ``n_fixed`` edges are never cut. A skipped edge stays skipped, because sides only get smaller; so one pass
    is enough, and the first k - 1 cuts are the cuts for k clusters. Costs O(n) and, for each cut, the size of what it
    cuts off.
    """
    n_edges = edges.shape[0]
    tree = root_forest(edges, n)
    below = np.ones(n, np.int64)  # points of one's cluster from here down
    add_up(below, tree)
    cuts = np.empty(n_edges, np.int64)
    stack = np.empty(n, np.int64)
    n_cuts = 0
    for e in range(n_edges - 1, n_fixed - 1, -1):
        i, j = edges[e, 0], edges[e, 1]
        child = i if tree.parent[i] == j else j
        if below[child] < min_size or below[tree.top[child]] - below[child] < min_size:
            continue
        cuts[n_cuts] = e
        n_cuts += 1
        remove(below, child, tree)
        cut_off(child, tree, stack)
    return cuts[:n_cuts]


@_allocating
def separate(edges, group, n_groups, min_size):
    """Which of a tree's edges (by decreasing similarity) stay, if each labelled point is to have a tree of its own.

    ``group[i]`` is the class of i or -1; a class has the points of all trees that hold a labelled point of it. Of the
    edges between labelled points the weakest goes, then the next, except where a class would be left with fewer
    than ``min_size`` points. What a pass over all edges does not separate is left to a pass with half the size, and so
    on down to 1. With ``min_size`` 1, and wherever all classes get that many points anyway, the edges that stay are
    those of :func:`constrain`. A cut costs the size of what it cuts off and the depth of the tree, a question whether
    a class would be too small a visit of less than ``min_size`` points, and of the labelled ones of their classes.
    """
    n, n_edges = group.shape[0], edges.shape[0]
    tree = root_forest(edges, n)
    below = np.ones(n, np.int64)  # points of one's tree from here down
    labelled = (group >= 0).astype(np.int64)  # how many of them are labelled
    add_up(below, tree)
    add_up(labelled, tree)
    members = np.argsort(group)
    classes = group, members, np.searchsorted(group[members], np.arange(n_groups + 1))
    stack = np.empty(n, np.int64)
    scratch = stack, np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(1, np.int64)
    kept = np.ones(n_edges, np.bool_)
    while True:
        for e in range(n_edges - 1, -1, -1):
            i, j = edges[e, 0], edges[e, 1]
            child, above = (i, j) if tree.parent[i] == j else (j, i)
            whole = tree.top[child]
            if not kept[e] or labelled[child] == 0 or labelled[child] == labelled[whole]:
                continue
            rest = below[whole] - below[child]
            if below[child] < min_size and would_be_too_small(child, above, min_size, classes, tree, below, scratch):
                continue
            if rest < min_size and would_be_too_small(above, child, min_size, classes, tree, below, scratch):
                continue
            kept[e] = False
            remove(below, child, tree)
            remove(labelled, child, tree)
            cut_off(child, tree, stack)
        if min_size == 1:
            return kept
        min_size //= 2


@jit(error_model="python", inner=True)
def would_be_too_small(near, far, min_size, classes, tree, below, scratch):
    """Whether a cut between two neighbours leaves a class on the side of ``near`` with fewer than ``min_size`` points.

    Visits that side, and the labelled points of its classes. Marks are growing numbers, so old ones need no clearing.
    """
    group, members, first = classes  # members[first[c] : first[c + 1]] have class c
    stack, visited, counted, clock = scratch
    clock[0] += 1
    here, whole = clock[0], tree.top[near]
    stack[0], size, position = near, 1, 0
    visited[near] = here
    while position < size:
        v = stack[position]
        position += 1
        for slot in range(tree.starts[v], tree.starts[v + 1]):
            u = tree.neighbours[slot]
            if tree.top[u] == whole and visited[u] != here and not (v == near and u == far):
                visited[u] = here
                stack[size] = u
                size += 1
    for position in range(size):
        c = group[stack[position]]
        if c < 0:
            continue
        clock[0] += 1
        total = size
        for slot in range(first[c], first[c + 1]):
            top = tree.top[members[slot]]
            if total >= min_size:
                break
            if visited[members[slot]] != here and counted[top] != clock[0]:
                counted[top] = clock[0]
                total += below[top] - (size if top == whole else 0)
        if total < min_size:
            return True
    return False
