"""Points → tiles: a kd-tree whose leaves are tiles of ``WIDTH`` points, and the distances between two tiles.

A tile is a (d, WIDTH) array, so that distances to its points run in vectors. All leaves but the last are full; the last
is filled up with infinity, which is never close to anything. Nodes stand in preorder: a node over leaves lo..hi-1,
middle m = (lo + hi) // 2, has its left child at node + 1 and its right child at node + 2 * (m - lo).

Arithmetic: float64 differences, squared and added in the order of the coordinates, with fused multiply-adds where the
processor has them. So equal points are at distance 0 and d(i, j) = d(j, i), bit for bit. Never |x|^2 + |y|^2 -
2<x, y>, which cancels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.threads import in_threads
from diffclust.solvers.points import vectors
from diffclust.solvers.points.vectors import WIDTH

SQUARED_EUCLIDEAN, MANHATTAN, CHEBYSHEV = range(3)
# A lower bound is summed in another order than the distances it bounds: it must stay below them in spite of rounding.
SLACK = 1 - 1e-10

_any_order = jit(inner=True, fastmath={"contract", "reassoc", "nsz"})


class Tree(NamedTuple):
    """Places number the points in the order of the tree: point ``order[p]`` is lane p % WIDTH of leaf p // WIDTH."""

    tiles: NDArray[np.float64]  # (leaves, d, WIDTH)
    order: NDArray[np.int32]  # (leaves * WIDTH,) point at a place, -1 where the last leaf is filled up
    boxes: NDArray[np.float64]  # (nodes, 2, d) smallest and largest coordinates
    leaf_nodes: NDArray[np.int32]  # (leaves,) node of a leaf


@jit
def distances(kind, xs, a, row, ys, b, out):
    """out[r * WIDTH + j] = distance of lane row + r of xs[a] to lane j of ys[b], for r < ROWS."""
    if kind == SQUARED_EUCLIDEAN:
        vectors.squared_euclidean(xs, a, row, ys, b, out)
    elif kind == MANHATTAN:
        vectors.manhattan(xs, a, row, ys, b, out)
    else:
        vectors.chebyshev(xs, a, row, ys, b, out)


@_any_order
def box_distance(kind, boxes, a, others, b):
    """No two points of boxes[a] and others[b] are closer than this."""
    total = 0.0
    for k in range(boxes.shape[2]):
        gap = max(max(others[b, 0, k] - boxes[a, 1, k], boxes[a, 0, k] - others[b, 1, k]), 0.0)
        if kind == SQUARED_EUCLIDEAN:
            total += gap * gap
        elif kind == MANHATTAN:
            total += gap
        else:
            total = max(total, gap)
    return total * SLACK


@_any_order
def lane_box_distances(kind, tiles, a, boxes, b, bounds):
    """bounds[lane]: no point of boxes[b] is closer to that lane of tiles[a] than this."""
    for lane in range(bounds.shape[0]):
        bounds[lane] = 0.0
    for k in range(tiles.shape[1]):
        lowest, highest = boxes[b, 0, k], boxes[b, 1, k]
        for lane in range(bounds.shape[0]):
            gap = max(max(lowest - tiles[a, k, lane], tiles[a, k, lane] - highest), 0.0)
            if kind == SQUARED_EUCLIDEAN:
                bounds[lane] += gap * gap
            elif kind == MANHATTAN:
                bounds[lane] += gap
            else:
                bounds[lane] = max(bounds[lane], gap)
    for lane in range(bounds.shape[0]):
        bounds[lane] *= SLACK


@_any_order
def lane_bounds(kind, xs, a, centres, radii, b, bounds):
    """bounds[j]: no point of leaf b is closer to lane j of xs[a] than this, by the triangle inequality."""
    for j in range(WIDTH):
        bounds[j] = 0.0
    for k in range(xs.shape[1]):
        centre = centres[b, k]
        if kind == SQUARED_EUCLIDEAN:
            for j in range(WIDTH):
                bounds[j] += (xs[a, k, j] - centre) ** 2
        elif kind == MANHATTAN:
            for j in range(WIDTH):
                bounds[j] += abs(xs[a, k, j] - centre)
        else:
            for j in range(WIDTH):
                bounds[j] = max(bounds[j], abs(xs[a, k, j] - centre))
    radius = radii[b]
    for j in range(WIDTH):
        if kind == SQUARED_EUCLIDEAN:
            gap = max(np.sqrt(bounds[j]) * SLACK - radius, 0.0)
            bounds[j] = gap * gap * SLACK
        else:
            bounds[j] = bounds[j] * SLACK - radius


@jit(allocates=True)
def _measure_balls(kind, tiles, order, centres, radii, start, stop):
    """A centre of each leaf start..stop-1, and how far its farthest point is from it."""
    bounds = np.empty(WIDTH)
    for leaf in range(start, stop):
        n_lanes = 0
        while n_lanes < WIDTH and order[leaf * WIDTH + n_lanes] >= 0:
            n_lanes += 1
        for k in range(tiles.shape[1]):
            total = 0.0
            for lane in range(n_lanes):
                total += tiles[leaf, k, lane] - tiles[leaf, k, 0]
            centres[leaf, k] = tiles[leaf, k, 0] + total / n_lanes
        radii[leaf] = 0.0
        lane_bounds(kind, tiles, leaf, centres, radii, leaf, bounds)
        for lane in range(n_lanes):
            radii[leaf] = max(radii[leaf], bounds[lane])
        radii[leaf] = (np.sqrt(radii[leaf]) if kind == SQUARED_EUCLIDEAN else radii[leaf]) / SLACK**4


def measure_balls(tree: Tree, kind: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A centre of each leaf, (leaves, d), and a radius around it that holds its points, (leaves,)."""
    n_leaves, d, _ = tree.tiles.shape
    centres, radii = np.empty((n_leaves, d)), np.empty(n_leaves)
    in_threads(lambda start, stop: _measure_balls(kind, tree.tiles, tree.order, centres, radii, start, stop), n_leaves)
    return centres, radii


@jit(inner=True)
def select(keys, order, start, stop, middle):
    """Reorder start..stop-1 so that nothing before ``middle`` has a larger key than anything from there on."""
    left, right = start, stop - 1
    while left < right:
        a, b, c = keys[left], keys[(left + right) >> 1], keys[right]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = left, right
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            right = j
        elif middle >= i:
            left = i
        else:
            return


@jit(allocates=True)
def _build(points, order, keys, boxes, leaf_nodes, tiles, node, low, high, grain, todo):
    """Split the node over leaves low..high-1 and all below it, down to ``grain`` leaves; returns how many are ``todo``.

    A node of one leaf is finished: its points are copied to its tile.
    """
    n, d = points.shape
    stack = np.empty((128, 3), np.int64)
    stack[0, 0], stack[0, 1], stack[0, 2] = node, low, high
    height, n_todo = 1, 0
    while height > 0:
        height -= 1
        node, low, high = stack[height, 0], stack[height, 1], stack[height, 2]
        if high - low <= grain:
            todo[n_todo, 0], todo[n_todo, 1], todo[n_todo, 2] = node, low, high
            n_todo += 1
            continue
        start, stop = low * WIDTH, min(high * WIDTH, n)
        box = boxes[node]
        for k in range(d):
            box[0, k] = box[1, k] = points[order[start], k]
        for p in range(start + 1, stop):
            row = points[order[p]]
            for k in range(d):
                box[0, k] = min(box[0, k], row[k])
                box[1, k] = max(box[1, k], row[k])
        if high - low == 1:
            leaf_nodes[low] = node
            for p in range(start, stop):
                for k in range(d):
                    tiles[low, k, p - start] = points[order[p], k]
            for lane in range(stop - start, WIDTH):
                order[start + lane] = -1
                for k in range(d):
                    tiles[low, k, lane] = np.inf
            continue
        widest = 0
        for k in range(d):
            if box[1, k] - box[0, k] > box[1, widest] - box[0, widest]:
                widest = k
        for p in range(start, stop):
            keys[p] = points[order[p], widest]
        middle = (low + high) // 2
        select(keys, order, start, stop, middle * WIDTH)
        stack[height, 0], stack[height, 1], stack[height, 2] = node + 2 * (middle - low), middle, high
        stack[height + 1, 0], stack[height + 1, 1], stack[height + 1, 2] = node + 1, low, middle
        height += 2
    return n_todo


def build_tree(points: NDArray[np.float64]) -> Tree:
    """A balanced kd-tree, each node split across its widest dimension."""
    n, d = points.shape
    n_leaves = -(-n // WIDTH)
    order = np.arange(n_leaves * WIDTH, dtype=np.int32)
    tree = Tree(np.empty((n_leaves, d, WIDTH)), order, np.empty((2 * n_leaves - 1, 2, d)), np.empty(n_leaves, np.int32))
    shared: Any = (points, order, np.empty(n), tree.boxes, tree.leaf_nodes, tree.tiles)
    grain = -(-n_leaves // 8)  # subtrees that threads finish: a few for each
    todo = np.empty((n_leaves, 3), np.int64)
    n_todo = _build(*shared, 0, 0, n_leaves, grain, todo) if n_leaves > 1 else 0
    if n_todo == 0:
        todo[0], n_todo = (0, 0, n_leaves), 1

    def finish(start: int, stop: int) -> None:
        for node, low, high in todo[start:stop].tolist():
            _build(*shared, node, low, high, 0, todo[:0])

    in_threads(finish, n_todo)
    return tree


def places(tree: Tree) -> NDArray[np.int32]:
    """(n,) the place of each point."""
    there = np.flatnonzero(tree.order >= 0)
    place = np.empty(len(there), np.int32)
    place[tree.order[there]] = there
    return place


@jit(inner=True)
def push_children(kind, boxes, node, low, high, others, own, stack, bounds, height):
    """Put the children of a node on the stack, the one nearer to others[own] on top; returns the new height."""
    middle = (low + high) // 2
    left, right = node + 1, node + 2 * (middle - low)
    near, far = box_distance(kind, boxes, left, others, own), box_distance(kind, boxes, right, others, own)
    first = height if far <= near else height + 1  # where the left child goes
    second = 2 * height + 1 - first
    stack[first, 0], stack[first, 1], stack[first, 2] = left, low, middle
    stack[second, 0], stack[second, 1], stack[second, 2] = right, middle, high
    bounds[first], bounds[second] = near, far
    return height + 2
