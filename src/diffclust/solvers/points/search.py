"""Tiles → each point's nearest others, in two ways; any point's nearest; and each component's nearest point outside it.

The order of everything is that of edges: smaller distance first, equal ones by smaller pair of points. Among the edges
of one point that is (distance, other point), whichever way they are computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.threads import in_threads, max_threads
from diffclust.solvers.points.progress import Progress
from diffclust.solvers.points.tiles import (
    Tree,
    box_distance,
    build_tree,
    distances,
    lane_bounds,
    lane_box_distances,
    measure_balls,
    places,
    push_children,
)
from diffclust.solvers.points.vectors import ROWS, WIDTH

LISTED = 8  # nearest others that are listed for each point. More cost more than they save, fewer run out.
ALWAYS_DESCEND = 4  # dimensions up to which the tree always leaves out most pairs
WORTH_DESCENDING = 0.4  # share of points looked at, below which descending beats looking at each pair once for both
REPORTED = 64  # leaves after which progress is reported
BLOCK = 256  # leaves that meet others together, a few of which fit into a cache
FAR = np.finfo(np.float64).max


class Neighbours(NamedTuple):
    """The nearest others of each place of a tree, best first."""

    distances: NDArray[np.float64]  # (places, LISTED), FAR past the last of all others
    places: NDArray[np.int32]  # (places, LISTED), -1 past the last of all others


@jit(inner=True)
def _insert(near, near_places, order, i, distance, j):
    """Offer place j at ``distance`` to place i; returns the distance of its last neighbour then."""
    slot = 0
    for s in range(LISTED):
        slot += near[i, s] < distance
    while slot < LISTED and near[i, slot] == distance and order[near_places[i, slot]] < order[j]:
        slot += 1
    for s in range(LISTED - 1, 0, -1):
        near[i, s] = near[i, s - 1] if s > slot else near[i, s]
        near_places[i, s] = near_places[i, s - 1] if s > slot else near_places[i, s]
    if slot < LISTED:
        near[i, slot] = distance
        near_places[i, slot] = j
    return near[i, LISTED - 1]


@jit(inner=True)
def _any_hit(out, worst, a, row, b, both):
    """Whether any of the distances just computed matters to a point. Most do not: one branch for all of them."""
    limit_0, limit_1, limit_2, limit_3 = worst[a, row], worst[a, row + 1], worst[a, row + 2], worst[a, row + 3]
    hit = False
    for lane in range(WIDTH):
        limit = worst[b, lane] if both else -1.0
        d0, d1, d2, d3 = out[lane], out[WIDTH + lane], out[2 * WIDTH + lane], out[3 * WIDTH + lane]
        hit |= (d0 <= limit_0) | (d1 <= limit_1) | (d2 <= limit_2) | (d3 <= limit_3)
        hit |= (d0 <= limit) | (d1 <= limit) | (d2 <= limit) | (d3 <= limit)
    return hit


@jit(inner=True)
def _compare(kind, tiles, order, a, b, near, near_places, worst, out):
    """Offer leaf b's points to those of leaf a and the other way round."""
    both = a != b
    for row in range(0, WIDTH, ROWS):
        distances(kind, tiles, a, row, tiles, b, out)
        if not _any_hit(out, worst, a, row, b, both):
            continue
        for r in range(ROWS):
            i = a * WIDTH + row + r
            for lane in range(WIDTH):
                distance, j = out[r * WIDTH + lane], b * WIDTH + lane
                if distance <= worst[a, row + r] and j != i:
                    worst[a, row + r] = _insert(near, near_places, order, i, distance, j)
                if both and distance <= worst[b, lane]:
                    worst[b, lane] = _insert(near, near_places, order, j, distance, i)


@jit(inner=True)
def _largest(worst, row, n_lanes):
    largest = worst[row, 0]
    for lane in range(n_lanes):
        largest = max(largest, worst[row, lane])
    return largest


@jit(inner=True)
def _offer(near, near_points, rows, r, point):
    """Offer a point to all lanes of a leaf, from which it is ``rows[r]`` away: no branch, the same for each lane.

    ``near`` and ``near_points`` are (LISTED * WIDTH,): the compiler makes vectors of the lanes if it knows how far
    apart the rows are, and only if it does not know how many lanes there are.
    """
    for lane in range(rows.shape[1]):
        distance = rows[r, lane]
        before, before_point, was_first = distance, point, False
        for s in range(LISTED):
            other, other_point = near[s * WIDTH + lane], near_points[s * WIDTH + lane]
            first = (distance < other) | ((distance == other) & (point < other_point))
            near[s * WIDTH + lane] = (before if was_first else distance) if first else other
            near_points[s * WIDTH + lane] = (before_point if was_first else point) if first else other_point
            before, before_point, was_first = other, other_point, first


@jit(inner=True)
def _hits(lists, rows, r):
    """Whether any lane would list the point that is ``rows[r]`` away."""
    hit = False
    for lane in range(rows.shape[1]):
        hit |= rows[r, lane] <= lists[LISTED - 1, lane]
    return hit


@jit(inner=True)
def _start_lists(kind, tiles, order, a, size, own, own_points, out, rows):
    """Fill the lists of leaf a with the nearest of its own points."""
    own[:] = FAR
    own_points[:] = -1
    for row in range(0, size, ROWS):
        distances(kind, tiles, a, row, tiles, a, out)
        for r in range(min(ROWS, size - row)):
            rows[r, row + r] = np.inf
            _offer(own, own_points, rows, r, order[a * WIDTH + row + r])


@jit(inner=True)
def _write_lists(own, own_points, place, a, size, near, near_places):
    for lane in range(size):
        for s in range(LISTED):
            point = own_points[s * WIDTH + lane]
            near[a * WIDTH + lane, s] = own[s * WIDTH + lane]
            near_places[a * WIDTH + lane, s] = place[point] if point >= 0 else -1


@jit(allocates=True)
def _from_leaves(kind, tiles, order, boxes, leaf_nodes, place, near, near_places, start, stop):
    """List the nearest others of the points of leaves start..stop-1, by descending the tree from each leaf.

    Returns how many points were compared with a leaf.
    """
    stack, bounds = np.empty((128, 3), np.int64), np.empty(128)
    out, lanes = np.empty(ROWS * WIDTH), np.empty(WIDTH)
    rows = out.reshape(ROWS, WIDTH)
    x, chosen = np.empty((1, tiles.shape[1], ROWS)), np.zeros(WIDTH + ROWS, np.int64)
    own, own_points = np.empty(LISTED * WIDTH), np.empty(LISTED * WIDTH, np.int32)
    lists = own.reshape(LISTED, WIDTH)
    n_compared = 0
    for a in range(start, stop):
        size = min(WIDTH, place.shape[0] - a * WIDTH)
        _start_lists(kind, tiles, order, a, size, own, own_points, out, rows)
        limit = _largest(lists, LISTED - 1, size)
        stack[0, 0], stack[0, 1], stack[0, 2], bounds[0] = 0, 0, tiles.shape[0], 0.0
        height = 1
        while height > 0:
            height -= 1
            node, low, high = stack[height, 0], stack[height, 1], stack[height, 2]
            if bounds[height] > limit or low == a == high - 1:
                continue
            if high - low > 1:
                height = push_children(kind, boxes, node, low, high, boxes, leaf_nodes[a], stack, bounds, height)
                continue
            lane_box_distances(kind, tiles, low, boxes, leaf_nodes[a], lanes)
            n_chosen = 0
            for lane in range(WIDTH):
                chosen[n_chosen] = lane
                n_chosen += lanes[lane] <= limit
            n_compared += n_chosen
            for c in range(0, n_chosen, ROWS):
                for r in range(ROWS):
                    for k in range(tiles.shape[1]):
                        x[0, k, r] = tiles[low, k, chosen[c + r]]
                distances(kind, x, 0, 0, tiles, a, out)
                for r in range(min(ROWS, n_chosen - c)):
                    if _hits(lists, rows, r):
                        _offer(own, own_points, rows, r, order[low * WIDTH + chosen[c + r]])
            limit = _largest(lists, LISTED - 1, size)
        _write_lists(own, own_points, place, a, size, near, near_places)
    return n_compared


@jit(allocates=True)
def _between_blocks(kind, tiles, order, boxes, leaf_nodes, near, near_places, worst, starts, a_block, b_block):
    """Compare all leaves of one block with all of another; of a block with itself, each pair once."""
    out = np.empty(ROWS * WIDTH)
    for a in range(starts[a_block], starts[a_block + 1]):
        limit = _largest(worst, a, WIDTH)
        for b in range(a if a_block == b_block else starts[b_block], starts[b_block + 1]):
            bound = box_distance(kind, boxes, leaf_nodes[a], boxes, leaf_nodes[b])
            if bound <= limit or bound <= _largest(worst, b, WIDTH):
                _compare(kind, tiles, order, a, b, near, near_places, worst, out)
                limit = _largest(worst, a, WIDTH)


def nearest(tree: Tree, kind: int, algorithm: str, report: Progress) -> Neighbours:
    """The nearest others of every point, by descending the tree ("kdtree") or looking at all pairs ("complete").

    "auto" descends from a few leaves, and goes on so if that left out most of the others.
    """
    n_places, n_leaves = len(tree.order), len(tree.leaf_nodes)
    found = Neighbours(np.full((n_places, LISTED), FAR), np.full((n_places, LISTED), -1, np.int32))
    report.stage("neighbours", n_leaves, "leaves")
    if algorithm == "complete" or (algorithm == "auto" and not worth_descending(tree, kind)):
        _all_pairs(tree, kind, found, report)
        return found
    place = places(tree)

    def descend(start: int, stop: int) -> None:
        for first in range(start, stop, REPORTED):
            last = min(first + REPORTED, stop)
            _from_leaves(kind, *tree, place, *found, first, last)
            report.advance(last - first)

    in_threads(descend, n_leaves)
    return found


def worth_descending(tree: Tree, kind: int) -> bool:
    """Whether descending the tree is faster than looking at all pairs, by descending from a few leaves."""
    n_leaves = len(tree.leaf_nodes)
    if tree.tiles.shape[1] <= ALWAYS_DESCEND:
        return True
    place, found = places(tree), (np.empty((len(tree.order), LISTED)), np.empty((len(tree.order), LISTED), np.int32))
    probes = np.unique(np.linspace(0, n_leaves - 1, 8).astype(np.int64)).tolist()
    left = WORTH_DESCENDING * len(probes) * len(place)
    for leaf in probes:
        left -= _from_leaves(kind, *tree, place, *found, leaf, leaf + 1)
        if left <= 0:
            return False
    return True


def _all_pairs(tree: Tree, kind: int, found: Neighbours, report: Progress) -> None:
    """Look at each pair of leaves once, for both.

    Blocks of leaves meet in the rounds of a tournament, in which no block plays twice: so no two threads write to a
    list at the same time.
    """
    n_leaves = len(tree.leaf_nodes)
    worst = np.where(tree.order < 0, -1.0, FAR).reshape(-1, WIDTH)  # the last of a place's list
    n_blocks = 2 * max_threads() * -(-n_leaves // (2 * max_threads() * BLOCK))
    starts = np.linspace(0, n_leaves, n_blocks + 1).astype(np.int64)
    rounds = [[(block, block) for block in range(n_blocks)], *_tournament(n_blocks)]  # as many as blocks
    for number, games in enumerate(rounds):

        def play(start: int, stop: int, games: list[tuple[int, int]] = games) -> None:
            for a, b in games[start:stop]:
                _between_blocks(kind, *tree, *found, worst, starts, a, b)

        in_threads(play, len(games))
        report.advance(int(starts[number + 1] - starts[number]))


def _tournament(n_players: int) -> list[list[tuple[int, int]]]:
    """Rounds of games of an even number of players, in which everybody plays everybody once."""
    ring = list(range(1, n_players))
    rounds = []
    for _ in ring:
        table = [0, *ring]
        rounds.append([(table[i], table[-1 - i]) for i in range(n_players // 2)])
        ring = ring[1:] + ring[:1]
    return rounds


@jit(inner=True)
def comes_before(distance, number, other_distance, other_number):
    """Whether a distance is smaller than another or, where they are equal, the number (of a point, of an edge) is."""
    return distance < other_distance or (distance == other_distance and number < other_number)


@jit(inner=True)
def replace_last(near, near_points, distance, point):
    """Put a point in the place of the last one of a heap, whose last one is at its root."""
    size, slot = near.shape[0], 0
    while 2 * slot + 1 < size:
        child = 2 * slot + 1
        if child + 1 < size and comes_before(near[child], near_points[child], near[child + 1], near_points[child + 1]):
            child += 1
        if not comes_before(distance, point, near[child], near_points[child]):
            break
        near[slot], near_points[slot] = near[child], near_points[child]
        slot = child
    near[slot], near_points[slot] = distance, point


@jit(allocates=True)
def _from_queries(kind, query_tree, tree, near, near_points, start, stop):
    """Fill the heaps of the queries in leaves start..stop-1 of their tree, by descending the tree of the points."""
    queries, query_order, query_boxes, query_leaf_nodes = query_tree
    tiles, order, boxes, _ = tree
    stack, bounds = np.empty((128, 3), np.int64), np.empty(128)
    out, worst = np.empty(ROWS * WIDTH), np.empty((1, WIDTH))
    for a in range(start, stop):
        n_lanes = 0
        for lane in range(WIDTH):
            worst[0, lane] = FAR if query_order[a * WIDTH + lane] >= 0 else -1.0
            n_lanes += query_order[a * WIDTH + lane] >= 0
        stack[0, 0], stack[0, 1], stack[0, 2], bounds[0] = 0, 0, tiles.shape[0], 0.0
        height = 1
        while height > 0:
            height -= 1
            node, low, high = stack[height, 0], stack[height, 1], stack[height, 2]
            if bounds[height] > _largest(worst, 0, WIDTH):
                continue
            if high - low > 1:
                node_of_a = query_leaf_nodes[a]
                height = push_children(kind, boxes, node, low, high, query_boxes, node_of_a, stack, bounds, height)
                continue
            for row in range(0, n_lanes, ROWS):
                distances(kind, queries, a, row, tiles, low, out)
                if not _any_hit(out, worst, 0, row, 0, False):
                    continue
                for r in range(ROWS):
                    i = query_order[a * WIDTH + row + r]
                    for lane in range(WIDTH):
                        distance, point = out[r * WIDTH + lane], order[low * WIDTH + lane]
                        if distance <= worst[0, row + r] and comes_before(
                            distance, point, near[i, 0], near_points[i, 0]
                        ):
                            replace_last(near[i], near_points[i], distance, point)
                            worst[0, row + r] = near[i, 0]


def nearest_points(
    points: NDArray[np.float64], queries: NDArray[np.float64], kind: int, n_neighbors: int = 1
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Distances (queries, n_neighbors) and numbers of the points nearest to each query, the farthest of them first.

    The others are in no order. A query that is one of the points finds itself, too. Of points that are equally far the
    first ones are found. No distance may overflow.
    """
    tree, query_tree = build_tree(points), build_tree(queries)
    near = np.full((len(queries), n_neighbors), FAR)
    near_points = np.full((len(queries), n_neighbors), len(points), np.int32)

    def look(start: int, stop: int) -> None:
        _from_queries(kind, tuple(query_tree), tuple(tree), near, near_points, start, stop)

    in_threads(look, len(query_tree.leaf_nodes))
    return near, near_points


@jit
def _node_components(component, order, low, high, node, node_component):
    """The component that all points of a node share, or -1; for the node and all below it."""
    if high - low == 1:
        shared = component[low * WIDTH]
        for p in range(low * WIDTH, (low + 1) * WIDTH):
            if order[p] >= 0 and component[p] != shared:
                shared = np.int32(-1)
    else:
        middle = (low + high) // 2
        shared = _node_components(component, order, low, middle, node + 1, node_component)
        other = _node_components(component, order, middle, high, node + 2 * (middle - low), node_component)
        if shared != other:
            shared = np.int32(-1)
    node_component[node] = shared
    return shared


@jit(inner=True)
def edge_code(i, j):
    """An edge as one integer, in the order of (smaller point, larger point)."""
    return (np.int64(min(i, j)) << 32) | np.int64(max(i, j))


@jit(allocates=True)
def _outside(
    kind, tiles, order, boxes, leaf_nodes, centres, radii, component, node_component, queries, start, stop,
    best, best_code,
):  # fmt: skip
    """Look for edges out of the components of queries start..stop-1, better than the ``best`` of each component."""
    d = tiles.shape[1]
    stack, bounds = np.empty((128, 3), np.int64), np.empty(128)
    out = np.empty(ROWS * WIDTH)
    lanes, limits = np.empty(WIDTH), np.empty((1, WIDTH))
    x, box = np.empty((1, d, WIDTH)), np.empty((1, 2, d))
    n_lanes, first = 0, start
    while first < stop:  # a tile of queries or, where close ones share most of their way, those of one leaf
        n_lanes = 1
        while n_lanes < min(WIDTH, stop - first) and (
            d > ALWAYS_DESCEND or queries[first + n_lanes] // WIDTH == queries[first] // WIDTH
        ):
            n_lanes += 1
        box[0, 0], box[0, 1] = np.inf, -np.inf
        x[:] = np.inf
        limits[:] = -1.0
        shared = component[queries[first]]
        for lane in range(n_lanes):
            p = queries[first + lane]
            if component[p] != shared:
                shared = np.int32(-1)
            for k in range(d):
                x[0, k, lane] = tiles[p // WIDTH, k, p % WIDTH]
                box[0, 0, k] = min(box[0, 0, k], x[0, k, lane])
                box[0, 1, k] = max(box[0, 1, k], x[0, k, lane])
        stack[0, 0], stack[0, 1], stack[0, 2], bounds[0] = 0, 0, tiles.shape[0], 0.0
        height = 1
        while height > 0:
            height -= 1
            node, low, high = stack[height, 0], stack[height, 1], stack[height, 2]
            if shared >= 0 and node_component[node] == shared:
                continue
            for lane in range(n_lanes):
                limits[0, lane] = best[component[queries[first + lane]]]
            if bounds[height] > _largest(limits, 0, WIDTH):
                continue
            if high - low > 1:
                height = push_children(kind, boxes, node, low, high, box, 0, stack, bounds, height)
                continue
            lane_bounds(kind, x, 0, centres, radii, low, lanes)
            for row in range(0, n_lanes, ROWS):
                near_enough = False
                for lane in range(row, row + ROWS):
                    near_enough |= lanes[lane] <= limits[0, lane]
                if not near_enough:
                    continue
                distances(kind, x, 0, row, tiles, low, out)
                if not _any_hit(out, limits, 0, row, 0, False):
                    continue
                for r in range(min(ROWS, n_lanes - row)):
                    p = queries[first + row + r]
                    own = component[p]
                    for lane in range(WIDTH):
                        distance, other = out[r * WIDTH + lane], low * WIDTH + lane
                        if distance <= best[own] and component[other] != own:
                            code = edge_code(order[p], order[other])
                            if distance < best[own] or code < best_code[own]:
                                best[own], best_code[own] = distance, code
        first += n_lanes


def improve(
    tree: Tree,
    kind: int,
    component: NDArray[np.int32],
    queries: NDArray[np.int32],
    best: NDArray[np.float64],
    best_code: NDArray[np.int64],
) -> None:
    """Make ``best`` the best edge out of each component from one of the ``queries``, if that is better than it is."""
    balls = measure_balls(tree, kind)
    node_component = np.empty(len(tree.boxes), np.int32)
    _node_components(component, tree.order, 0, len(tree.leaf_nodes), 0, node_component)
    parts: list[tuple[NDArray[np.float64], NDArray[np.int64]]] = []

    def look(start: int, stop: int) -> None:
        own, own_code = best.copy(), best_code.copy()
        _outside(kind, *tree, *balls, component, node_component, queries, start, stop, own, own_code)
        parts.append((own, own_code))

    in_threads(look, len(queries))
    for own, own_code in parts:
        better = (own < best) | ((own == best) & (own_code < best_code))
        best[better], best_code[better] = own[better], own_code[better]
