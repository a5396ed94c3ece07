"""Nearest others → minimum spanning tree: Borůvka's rounds, which look again only where the lists have run out.

In each round every component whose best edge outwards is certain joins along it. An edge is certain if no point of the
component may have a better one beyond the end of its list. When too few are, the points in doubt search the tree for an
edge better than the best known one. The largest component never has to: the others come to it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diffclust.solvers.compiled import jit
from diffclust.solvers.points.progress import Progress
from diffclust.solvers.points.search import FAR, LISTED, Neighbours, comes_before, edge_code, improve
from diffclust.solvers.points.tiles import Tree, places
from diffclust.solvers.tree import find

NO_EDGE = np.iinfo(np.int64).max
ENOUGH = 0.25  # share of components whose best edge is certain, from which on a round goes on without a search


@jit
def _gather(near, near_places, order, component, slot, floor, floor_code, best, best_code, doubt, doubt_code):
    """The best known edge out of each component, and the best one that points with an exhausted list may still have.

    ``slot`` is where a point's list goes on. Beyond its end, a point has no edge before ``floor``.
    """
    for p in range(order.shape[0]):
        if order[p] < 0:
            continue
        own = component[p]
        if slot[p] < LISTED:
            while slot[p] < LISTED and near_places[p, slot[p]] >= 0 and component[near_places[p, slot[p]]] == own:
                slot[p] += 1
            if slot[p] == LISTED:
                floor[p] = near[p, LISTED - 1]
                floor_code[p] = edge_code(order[p], order[near_places[p, LISTED - 1]])
            elif near_places[p, slot[p]] >= 0:
                distance = near[p, slot[p]]
                if distance <= best[own]:
                    code = edge_code(order[p], order[near_places[p, slot[p]]])
                    if comes_before(distance, code, best[own], best_code[own]):
                        best[own], best_code[own] = distance, code
        if slot[p] == LISTED and comes_before(floor[p], floor_code[p], doubt[own], doubt_code[own]):
            doubt[own], doubt_code[own] = floor[p], floor_code[p]


@jit
def _in_doubt(order, component, slot, floor, floor_code, best, best_code, spared, queries):
    """Places whose next edge may be better than the best known one of their component; returns how many."""
    n_queries = 0
    for p in range(order.shape[0]):
        own = component[p]
        if order[p] < 0 or slot[p] < LISTED or own == spared:
            continue
        if comes_before(floor[p], floor_code[p], best[own], best_code[own]):
            queries[n_queries] = p
            n_queries += 1
    return n_queries


@jit
def _raise_floors(queries, component, floor, floor_code, best, best_code):
    for p in queries:
        floor[p], floor_code[p] = best[component[p]], best_code[component[p]]


@jit(allocates=True)
def join(best, best_code, certain, place, component, leader, sizes, codes, lengths, n_edges):
    """Join components along their certain edges; returns the number of edges, of components and the largest one."""
    n_components = best.shape[0]
    number = np.empty(n_components, np.int32)
    for c in range(n_components):
        leader[c] = c
    for c in range(n_components):
        if not certain[c]:
            continue
        a = find(leader, component[place[best_code[c] >> 32]])
        b = find(leader, component[place[best_code[c] & 0xFFFFFFFF]])
        if a != b:
            leader[max(a, b)] = min(a, b)
            codes[n_edges], lengths[n_edges] = best_code[c], best[c]
            n_edges += 1
    n_left = 0
    for c in range(n_components):  # leaders come before those they lead
        if leader[c] == c:
            number[c] = n_left
            n_left += 1
        else:
            number[c] = number[find(leader, c)]
    sizes[:n_left] = 0
    for p in range(component.shape[0]):
        if component[p] >= 0:
            component[p] = number[component[p]]
            sizes[component[p]] += 1
    return n_edges, n_left, np.argmax(sizes[:n_left])


def minimum_spanning_tree(
    tree: Tree, kind: int, near: Neighbours, n_points: int, report: Progress
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The edges, as (smaller point << 32 | larger point), and their lengths, in no order."""
    n_places = len(tree.order)
    place = places(tree)
    component = np.full(n_places, -1, np.int32)
    component[tree.order >= 0] = np.arange(n_points)
    slot, queries = np.zeros(n_places, np.int32), np.empty(n_places, np.int32)
    floor, floor_code = np.empty(n_places), np.empty(n_places, np.int64)
    codes, lengths = np.empty(n_points - 1, np.int64), np.empty(n_points - 1)
    leader, sizes = np.empty(n_points, np.int32), np.empty(n_points, np.int64)
    n_edges, n_components, largest = 0, n_points, 0
    report.stage("tree", n_points - 1, "edges")
    while n_components > 1:
        best, best_code = np.full(n_components, FAR), np.full(n_components, NO_EDGE)
        doubt, doubt_code = best.copy(), best_code.copy()
        _gather(
            near.distances, near.places, tree.order, component, slot, floor, floor_code, best, best_code, doubt,
            doubt_code,
        )  # fmt: skip
        certain = (best < doubt) | ((best == doubt) & (best_code <= doubt_code))
        if certain.sum() < n_components * ENOUGH:
            spared = -1 if certain[largest] else largest
            n_queries = _in_doubt(tree.order, component, slot, floor, floor_code, best, best_code, spared, queries)
            asked = queries[:n_queries]
            improve(tree, kind, component, asked, best, best_code)
            _raise_floors(asked, component, floor, floor_code, best, best_code)
            certain[:] = True
            if spared >= 0:
                certain[spared] = False
        before = n_edges
        n_edges, n_components, largest = join(
            best, best_code, certain, place, component, leader, sizes, codes, lengths, n_edges
        )
        report.advance(n_edges - before)
    return codes, lengths
