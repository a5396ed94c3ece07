"""Prim on a matrix of ordered integers, and the forests without constraints and with labels."""

from __future__ import annotations

import numpy as np

from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.noise import number
from diffclust.solvers.tree import number_trees


@jit
def code(low, high):
    """An edge as one integer, in the order of (low, high)."""
    return (np.int64(low) << 32) | np.int64(high)


@jit
def _offer(row, u, key, parent):
    """Offer u's edges, whose weights are ``row``, to all points: the larger counts, of equal ones the smaller u."""
    for j in range(row.shape[0]):
        better = (row[j] > key[j]) | ((row[j] == key[j]) & (u < parent[j]))
        key[j] = row[j] if better else key[j]
        parent[j] = u if better else parent[j]


@jit
def _largest(key, is_open, lowest):
    largest = lowest
    for j in range(key.shape[0]):
        largest = max(largest, key[j] if is_open[j] else lowest)
    return largest


@jit
def grow(weights, roots, is_open, n_open, key, parent, lowest, codes, edge_weights, n_edges):
    """Prim: connect the ``n_open`` open points to ``roots``, which count as one tree; the open ones get closed.

    Appends to ``codes`` and ``edge_weights`` and returns their new number. ``lowest`` is below all weights. Edges are
    compared by (weight, smaller pair); among edges to one point the smaller pair is the one with the smaller other end.
    """
    n = weights.shape[0]
    key[:] = lowest
    parent[:] = n
    for r in range(roots.shape[0] - 1):
        _offer(weights[roots[r]], roots[r], key, parent)
    u = roots[roots.shape[0] - 1]
    for _ in range(n_open):
        _offer(weights[u], u, key, parent)
        best_key = _largest(key, is_open, lowest)
        best_low, best_high = n, n
        for j in range(n):
            if key[j] == best_key and is_open[j]:
                low, high = min(j, parent[j]), max(j, parent[j])
                if low < best_low or (low == best_low and high < best_high):
                    u, best_low, best_high = np.int32(j), low, high
        codes[n_edges] = code(best_low, best_high)
        edge_weights[n_edges] = best_key
        n_edges += 1
        is_open[u] = 0
    return n_edges


@jit
def _before(weight, code, other_weight, other_code):
    """Whether an edge stands before another in the total order."""
    return weight > other_weight or (weight == other_weight and code < other_code)


@jit
def sort_edges(codes, edge_weights, start, stop, spare_codes, spare_weights):
    """Sort edges start..stop-1 by the total order: insertion sort in runs, then merges."""
    run = 16
    for low in range(start, stop, run):
        for e in range(low + 1, min(low + run, stop)):
            weight, code, position = edge_weights[e], codes[e], e
            while position > low and _before(weight, code, edge_weights[position - 1], codes[position - 1]):
                edge_weights[position] = edge_weights[position - 1]
                codes[position] = codes[position - 1]
                position -= 1
            edge_weights[position] = weight
            codes[position] = code
    while run < stop - start:
        for low in range(start, stop - run, 2 * run):
            middle, high = low + run, min(low + 2 * run, stop)
            spare_codes[low:middle] = codes[low:middle]
            spare_weights[low:middle] = edge_weights[low:middle]
            left, right, out = low, middle, low
            while left < middle:
                if right < high and _before(edge_weights[right], codes[right], spare_weights[left], spare_codes[left]):
                    edge_weights[out] = edge_weights[right]
                    codes[out] = codes[right]
                    right += 1
                else:
                    edge_weights[out] = spare_weights[left]
                    codes[out] = spare_codes[left]
                    left += 1
                out += 1
        run *= 2


@jit
def _keep_strongest(codes, edge_weights, start, stop, n_keep, missing, in_order, spare_codes, spare_weights):
    """Move the ``n_keep`` strongest edges of start..stop-1, as far as they exist, to the front; return how many.

    Few weak ones are dropped one by one, if the order of the others does not matter: that is faster than sorting.
    """
    n_drop = max(stop - start - max(n_keep, 0), 0)
    if in_order or n_drop > 16:
        sort_edges(codes, edge_weights, start, stop, spare_codes, spare_weights)
        stop -= n_drop
    else:
        for _ in range(n_drop):
            weakest = start
            for e in range(start + 1, stop):
                if _before(edge_weights[weakest], codes[weakest], edge_weights[e], codes[e]):
                    weakest = e
            stop -= 1
            edge_weights[weakest] = edge_weights[stop]
            codes[weakest] = codes[stop]
    n_kept = 0
    for e in range(start, stop):
        if edge_weights[e] > missing:
            edge_weights[start + n_kept] = edge_weights[e]
            codes[start + n_kept] = codes[e]
            n_kept += 1
    return n_kept


@jit
def write_forest(codes, edge_weights, n_edges, complete, leader, edges_out, labels_out):
    """Write the edges and, if ``complete``, their trees; return <A, weights>."""
    total = 0.0
    for e in range(n_edges):
        edges_out[e, 0] = codes[e] >> 32
        edges_out[e, 1] = codes[e] & 0xFFFFFFFF
        total += number(edge_weights[e])
    for e in range(n_edges, edges_out.shape[0]):
        edges_out[e, 0] = -1
        edges_out[e, 1] = -1
    if complete:
        number_trees(edges_out, n_edges, leader, labels_out)
    return 2.0 * total


@jit
def free_forest(weights, k, lowest, missing, in_order, scratch):
    """The k-forest without constraints: the maximum spanning tree less its k - 1 weakest edges."""
    members, is_open, key, parent, codes, edge_weights, spare_codes, spare_weights = scratch
    n = weights.shape[0]
    is_open[:] = 1
    is_open[0] = 0
    members[0] = 0
    n_edges = grow(weights, members[:1], is_open, n - 1, key, parent, lowest, codes, edge_weights, 0)
    return _keep_strongest(codes, edge_weights, 0, n_edges, n - k, missing, in_order, spare_codes, spare_weights)


@jit
def label_forest(weights, by_group, group_ends, n_groups, k, lowest, missing, in_order, scratch):
    """The constrained k-forest for labels, must-links first; -1 when some group is not connected by itself.

    ``by_group`` lists the points group after group, the unlabelled ones last.
    """
    _, is_open, key, parent, codes, edge_weights, spare_codes, spare_weights = scratch
    n = weights.shape[0]
    n_edges = 0
    start = 0
    is_open[:] = 0
    for group in range(n_groups):
        stop = group_ends[group]
        for c in range(start + 1, stop):
            is_open[by_group[c]] = 1
        n_edges = grow(
            weights, by_group[start : start + 1], is_open, stop - start - 1, key, parent, lowest, codes, edge_weights,
            n_edges,
        )  # fmt: skip
        start = stop
    for e in range(n_edges):
        if edge_weights[e] <= missing:
            return -1
    n_roots = max(start, 1)
    for c in range(n_roots, n):
        is_open[by_group[c]] = 1
    stop = grow(weights, by_group[:n_roots], is_open, n - n_roots, key, parent, lowest, codes, edge_weights, n_edges)
    n_keep = n_groups + (n - start) - k
    n_edges += _keep_strongest(codes, edge_weights, n_edges, stop, n_keep, missing, False, spare_codes, spare_weights)
    if in_order:
        sort_edges(codes, edge_weights, 0, n_edges, spare_codes, spare_weights)
    return n_edges
