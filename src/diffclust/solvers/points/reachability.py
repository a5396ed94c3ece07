"""The exact tree of mutual reachability: Prim over all pairs, the n × n matrix never stored.

A point is no closer to any other than its m-th nearest is to it (its core distance), so the distance of a pair is the
largest of its own and both core distances. Lists of nearest points say little about that order, so this is Prim's
algorithm, n rounds over the points that are left, in O(n) memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.solvers.compiled import jit
from diffclust.solvers.points.cpu import Tree, in_order
from diffclust.solvers.points.metrics import METRICS, place
from diffclust.solvers.points.search import nearest_points
from diffclust.solvers.points.tiles import CHEBYSHEV, MANHATTAN

BLOCK = 256  # points whose distances are held at a time

_any_order = jit(inner=True, fastmath={"nnan", "nsz", "reassoc"})  # vectors of minima and maxima; there is no NaN


@jit(inner=True)
def _distances(kind, columns, start, stop, point, out):
    """out[:stop - start] = distances of columns start..stop-1 to the point.

    Slices, because the compiler makes vectors only where it knows that no index is negative.
    """
    out = out[: stop - start]
    out[:] = 0.0
    for k in range(columns.shape[0]):
        x, column = point[k], columns[k, start:stop]
        if kind == MANHATTAN:
            for j in range(out.shape[0]):
                out[j] += abs(column[j] - x)
        elif kind == CHEBYSHEV:
            for j in range(out.shape[0]):
                out[j] = max(out[j], abs(column[j] - x))
        else:
            for j in range(out.shape[0]):
                out[j] += (column[j] - x) ** 2


@_any_order
def _any_as_near(distances, own_core, core, length):
    """Whether the point is as near to any of these as the tree is. Hardly ever: one branch for all of them."""
    found = False
    for j in range(core.shape[0]):
        found |= max(distances[j], max(own_core, core[j])) <= length[j]
    return found


@_any_order
def _smallest(values):
    smallest = np.inf
    for j in range(values.shape[0]):
        smallest = min(smallest, values[j])
    return smallest


@jit(allocates=True)
def _prim(kind, columns, core):
    """Codes (smaller point << 32 | larger point) and lengths of the tree's edges. ``columns`` (d, n) is overwritten."""
    d, n = columns.shape
    number = np.arange(n)  # of the points that are left, in the first columns
    core = core.copy()
    length, code = np.full(n, np.inf), np.full(n, np.iinfo(np.int64).max)
    codes, lengths = np.empty(n - 1, np.int64), np.empty(n - 1)
    point, block = np.empty(d), np.empty(BLOCK)
    chosen, n_left = 0, n
    for step in range(n - 1):
        u, own_core = number[chosen], core[chosen]
        n_left -= 1
        for k in range(d):
            point[k] = columns[k, chosen]
            columns[k, chosen] = columns[k, n_left]
        number[chosen], core[chosen] = number[n_left], core[n_left]
        length[chosen], code[chosen] = length[n_left], code[n_left]
        chosen, best, best_code = 0, np.inf, np.iinfo(np.int64).max
        for start in range(0, n_left, BLOCK):
            stop = min(start + BLOCK, n_left)
            _distances(kind, columns, start, stop, point, block)
            if _any_as_near(block, own_core, core[start:stop], length[start:stop]):
                for j in range(start, stop):
                    distance = max(block[j - start], max(own_core, core[j]))
                    if distance <= length[j]:
                        edge = (min(u, number[j]) << 32) | max(u, number[j])
                        if distance < length[j] or edge < code[j]:
                            length[j], code[j] = distance, edge
            if _smallest(length[start:stop]) <= best:
                for j in range(start, stop):
                    if length[j] < best or (length[j] == best and code[j] < best_code):
                        chosen, best, best_code = j, length[j], code[j]
        codes[step], lengths[step] = best_code, best
    return codes, lengths


def core_distances(points: NDArray[np.float64], kind: int, n_neighbors: int) -> NDArray[np.float64]:
    """Distance of each point to its ``n_neighbors``-th nearest other."""
    indices = nearest_points(points, points, kind, n_neighbors + 1)[1][:, 0]  # one more: a point finds itself, too
    # Measured again as the tree measures: so that equal numbers are equal.
    gaps = np.abs(points - points[indices])
    return gaps.sum(1) if kind == MANHATTAN else gaps.max(1) if kind == CHEBYSHEV else (gaps * gaps).sum(1)


def spanning_tree(points: Any, metric: str, n_neighbors: int) -> Tree:
    """The maximum spanning tree of ``mutual_reachability`` of all pairs of points (n, d)."""
    kind = METRICS[metric].kind
    placed = place(points, METRICS[metric])
    codes, lengths = _prim(kind, np.ascontiguousarray(placed.T), core_distances(placed, kind, n_neighbors))
    return in_order(codes, METRICS[metric].similarity(lengths))
