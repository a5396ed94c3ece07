"""Prim on a matrix of ordered integers, and what is made of its edges."""

from __future__ import annotations

import numpy as np

from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.philox import number
from diffclust.solvers.tree import number_trees


@jit
def code(low, high):
    """An edge as one integer, in the order of (low, high)."""
    return (np.int64(low) << 32) | np.int64(high)


@jit
def grow(weights, n, key, parent, cap, lowest, codes, edge_weights, n_edges):
    """Prim from point 0: append the n - 1 edges of the spanning tree of the first n points; return their new number.

    ``lowest`` is below all weights. Edges are compared by (weight, smaller pair). Loops over all points, the rare ties
    aside, are without branches and run in vectors: ``cap`` hides the points that are in the tree.
    """
    key, parent, cap = key[:n], parent[:n], cap[:n]
    for i in range(n):  # a loop for each array: Numba takes longer to compile key[:] = lowest, or one loop for all
        key[i] = lowest
    for i in range(n):
        parent[i] = n
    for i in range(n):
        cap[i] = ~lowest
    u = np.int32(0)
    for _ in range(n - 1):
        cap[u] = lowest
        row = weights[u]
        largest = lowest
        for j in range(n):  # among edges to one point, the smaller pair is the one with the smaller other end
            better = (row[j] > key[j]) | ((row[j] == key[j]) & (u < parent[j]))
            key[j] = row[j] if better else key[j]
            parent[j] = u if better else parent[j]
            largest = max(largest, min(key[j], cap[j]))
        n_best, total = np.int32(0), np.int32(0)
        for j in range(n):
            is_best = np.int32(min(key[j], cap[j]) == largest)
            n_best += is_best
            total += is_best * np.int32(j)
        u = total if n_best == 1 else _first_of_ties(n, key, parent, cap, largest)
        codes[n_edges] = code(min(u, parent[u]), max(u, parent[u]))
        edge_weights[n_edges] = largest
        n_edges += 1
    return n_edges


@jit
def _first_of_ties(n, key, parent, cap, largest):
    """The point outside the tree whose edge has the weight ``largest`` and the smallest pair."""
    u, low, high = np.int32(0), n, n
    for j in range(n):
        a, b = min(j, parent[j]), max(j, parent[j])
        if min(key[j], cap[j]) == largest and (a < low or (a == low and b < high)):
            u, low, high = np.int32(j), a, b
    return u


@jit
def _before(weight, code, other_weight, other_code):
    """Whether an edge stands before another in the total order."""
    return weight > other_weight or (weight == other_weight and code < other_code)


@jit
def sort_edges(codes, edge_weights, n_edges, spare_codes, spare_weights):
    """Sort the edges by the total order. Runs of edges are sorted by counting, for each, those before it; then merged.

    Counting runs in vectors, so that few edges are sorted much faster than by comparisons and branches.
    """
    run = 256
    for e in range(n_edges):
        spare_codes[e] = codes[e]
        spare_weights[e] = edge_weights[e]
    for low in range(0, n_edges, run):
        high = min(low + run, n_edges)
        weights = spare_weights[low:high]
        for e in range(low, high):
            weight = spare_weights[e]
            n_larger, n_equal = np.int32(0), np.int32(0)
            for other in range(weights.shape[0]):
                n_larger += np.int32(weights[other] > weight)
                n_equal += np.int32(weights[other] == weight)
            position = low + n_larger
            if n_equal > 1:
                for other in range(low, high):
                    position += spare_weights[other] == weight and spare_codes[other] < spare_codes[e]
            codes[position] = spare_codes[e]
            edge_weights[position] = weight
    while run < n_edges:
        for low in range(0, n_edges - run, 2 * run):
            middle, high = low + run, min(low + 2 * run, n_edges)
            for e in range(low, middle):
                spare_codes[e] = codes[e]
                spare_weights[e] = edge_weights[e]
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
