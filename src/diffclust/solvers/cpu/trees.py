"""Prim on a matrix of ordered integers, and what is made of its edges."""

from __future__ import annotations

import numpy as np

from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.philox import PAD, number
from diffclust.solvers.tree import number_trees

CODE = np.int64(2**32)  # the edge (low, high) is one integer, low * CODE + high, in the order of (low, high)
SPAN = 2**15  # points whose numbers can be summed up in 32 bits, with a count of them above


@jit(inner=True)
def grow(weights, n, key, parent, lowest, codes, edge_weights, n_edges):
    """Prim from point 0: append the n - 1 edges of the spanning tree of the first n points; return their new number.

    ``lowest`` is below all weights, and its complement above them. Edges are compared by (weight, smaller pair). Loops
    over all points, the rare ties aside, are without branches and run in whole vectors; so ``key`` and ``parent`` have
    ``PAD`` entries more than points. The key of a point in the tree is the highest number, which no weight replaces;
    one more than that is the lowest.
    """
    n_padded = (n + PAD - 1) // PAD * PAD if n > PAD // 2 else n
    key, parent = key[:n_padded], parent[:n_padded]
    highest = key.dtype.type(~lowest)
    for i in range(n_padded):  # a loop for each array: Numba takes longer to compile key[:] = lowest, or one for both
        key[i] = lowest if i < n else highest
    for i in range(n_padded):
        parent[i] = n
    u = np.int32(0)
    for _ in range(n - 1):
        row = weights[u]
        largest = lowest
        for j in range(n_padded):  # among edges to one point, the smaller pair is the one with the smaller other end
            old = key[j]
            parent[j] = u if (row[j] > old) | ((row[j] == old) & (u < parent[j])) else parent[j]
            best = row[j] if row[j] > old else old
            best = highest if np.int32(j) == u else best
            key[j] = best
            # Unsigned: the largest signed number has none that follows.
            following = key.dtype.type(np.uint64(best) + np.uint64(1))
            largest = following if following > largest else largest
        largest = key.dtype.type(np.uint64(largest) - np.uint64(1))
        n_best = 0
        for start in range(0, n_padded, SPAN):
            total = np.int32(0)
            span = key[start : start + SPAN]
            for j in range(span.shape[0]):
                total += np.int32(span[j] == largest) * np.int32(j + SPAN)
            if total > 0:
                u = np.int32(start + total % SPAN)  # if it is the only one
                n_best += int(total) // SPAN
        if n_best > 1:
            u = _first_of_ties(n, key, parent, largest)
        other = parent[u]
        codes[n_edges] = u * CODE + other if u < other else other * CODE + u
        edge_weights[n_edges] = largest
        n_edges += 1
    return n_edges


@jit(inner=True)
def _first_of_ties(n, key, parent, largest):
    """The point outside the tree whose edge has the weight ``largest`` and the smallest pair."""
    u, first = np.int32(0), np.int64(n) * CODE
    for j in range(n):
        if key[j] == largest:
            edge = j * CODE + parent[j] if j < parent[j] else parent[j] * CODE + j
            if edge < first:
                u, first = np.int32(j), edge
    return u


@jit(inner=True)
def sort_edges(codes, edge_weights, n_edges, lowest, spare_codes, spare_weights):
    """Sort the edges by the total order. Runs of edges are sorted by counting, for each, those before it; then merged.

    Counting runs in whole vectors, so that few edges are sorted much faster than by comparisons and branches. So
    ``spare_weights`` has ``PAD`` entries more than there may be edges.
    """
    run = 256
    for e in range(n_edges):
        spare_codes[e] = codes[e]
        spare_weights[e] = edge_weights[e]
    n_padded = (n_edges + PAD - 1) // PAD * PAD
    for e in range(n_edges, n_padded):
        spare_weights[e] = lowest
    for low in range(0, n_edges, run):
        high = low + run if low + run < n_edges else n_edges
        weights = spare_weights[low:n_padded][:run]
        for e in range(low, high):
            weight = spare_weights[e]
            n_larger, n_equal = np.int32(0), np.int32(0)
            for other in range(weights.shape[0]):
                n_larger = np.int32(n_larger + (weights[other] > weight))  # += would count in 64 bits
                n_equal = np.int32(n_equal + (weights[other] == weight))
            position = low + n_larger
            if n_equal > 1:
                for other in range(low, high):
                    position += spare_weights[other] == weight and spare_codes[other] < spare_codes[e]
            codes[position] = spare_codes[e]
            edge_weights[position] = weight
    while run < n_edges:
        for low in range(0, n_edges - run, 2 * run):
            middle = low + run
            high = middle + run if middle + run < n_edges else n_edges
            for e in range(low, middle):
                spare_codes[e] = codes[e]
                spare_weights[e] = edge_weights[e]
            left, right, out = low, middle, low
            while left < middle:
                weight = spare_weights[left]
                if right < high and (
                    edge_weights[right] > weight or (edge_weights[right] == weight and codes[right] < spare_codes[left])
                ):
                    edge_weights[out] = edge_weights[right]
                    codes[out] = codes[right]
                    right += 1
                else:
                    edge_weights[out] = weight
                    codes[out] = spare_codes[left]
                    left += 1
                out += 1
        run *= 2


@jit(inner=True)
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
