"""Points → an approximate tree: the spanning forest of a neighbour graph, its pieces joined to one tree.

The graph comes from a search in cells or, for few points, from an exact one. Edges get their lengths in float64 here,
so the tree's weights are true similarities; what is approximate is the choice of edges:

- the graph has about ``n_neighbors`` of the nearest others of each point. Cells are searched in float32: points whose
  neighbours are too close for that are searched exactly;
- pieces of the graph are joined by the shortest edges out of them. These are exact for pieces in which all points are
  asked for their nearest point outside. Of larger pieces a sample is asked, then the points closest to where the best
  answer leads, until that finds no shorter edge.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.threads import in_threads
from diffclust.solvers.edges import maximum_spanning_tree
from diffclust.solvers.points.boruvka import NO_EDGE, join
from diffclust.solvers.points.cells import nearest_in_cells
from diffclust.solvers.points.cpu import finish, place_distinct
from diffclust.solvers.points.metrics import METRICS
from diffclust.solvers.points.progress import Progress
from diffclust.solvers.points.search import FAR, improve, nearest_points
from diffclust.solvers.points.tiles import CHEBYSHEV, MANHATTAN, SQUARED_EUCLIDEAN, WIDTH, build_tree, places
from diffclust.solvers.points.vectors import ROWS
from diffclust.solvers.tree import number_trees

FEW = 10_000  # points up to which the neighbours are exact
BLURRED = 0.01  # rounding to float32, as a part of a neighbour's distance, from which on a point is searched exactly
PAIRS = 2_000_000_000  # of points asked and all points, in a round of joining, spread over the pieces
CLOSEST = 2 * ROWS  # points of a piece that are asked because they are the closest to the other end of its best edge


@jit
def _measure(kind, points, others, lengths, start, stop):
    """lengths[i, c] = distance of point i to others[i, c], for rows start..stop-1."""
    for i in range(start, stop):
        for c in range(others.shape[1]):
            j, total = others[i, c], 0.0
            for k in range(points.shape[1]):
                gap = abs(points[i, k] - points[j, k])
                if kind == SQUARED_EUCLIDEAN:
                    total += gap * gap
                elif kind == MANHATTAN:
                    total += gap
                else:
                    total = max(total, gap)
            lengths[i, c] = total


@jit
def _list_edges(others, lengths, edges, edge_lengths):
    """List each edge of the graph once; returns how many. Entries -1 and points themselves are no neighbours."""
    n_edges = 0
    for i in range(others.shape[0]):
        for c in range(others.shape[1]):
            j = others[i, c]
            if j < 0 or j == i:
                continue
            if j < i:
                known = False
                for back in others[j]:
                    known |= back == i
                if known:
                    continue
            edges[n_edges, 0], edges[n_edges, 1], edge_lengths[n_edges] = min(i, j), max(i, j), lengths[i, c]
            n_edges += 1
    return n_edges


def _neighbours(
    points: NDArray[np.float64], kind: int, n_neighbors: int, report: Progress
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """About the nearest others of each point, (n, n_neighbors + 1), -1 where fewer were found; and their distances.

    One more than asked for, because a point is mostly its own nearest.
    """
    n = len(points)
    report.stage("neighbours", n, "points")
    if n <= FEW:
        others = nearest_points(points, points, kind, n_neighbors + 1)[1]
        report.advance(n)
        return others, _lengths(kind, points, others)
    small, moved = _rounded(points, kind)
    others = nearest_in_cells(small, kind, n_neighbors + 1, report)
    lengths = _lengths(kind, points, others)
    farthest = np.where(others >= 0, lengths, 0.0).max(1)
    blurred = moved > BLURRED * (np.sqrt(farthest) if kind == SQUARED_EUCLIDEAN else farthest)
    if blurred.any():
        others[blurred] = nearest_points(points, points[blurred], kind, n_neighbors + 1)[1]
        lengths = _lengths(kind, points, others)
    return others, lengths


def _rounded(points: NDArray[np.float64], kind: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """The points around their mean in float32, on a scale that fits it, and how far rounding moves each at most."""
    order = {SQUARED_EUCLIDEAN: 2, MANHATTAN: 1, CHEBYSHEV: np.inf}[kind]
    centred = points - points.mean(0)
    scale = max(centred.max(), -centred.min())  # not 0, because all points differ
    centred /= scale  # squares of float32 overflow and vanish early
    small = centred.astype(np.float32)
    del centred
    return small, 0.5 * np.finfo(np.float32).eps * scale * np.linalg.norm(small, order, axis=1)


def _lengths(kind: int, points: NDArray[np.float64], others: NDArray[np.int32]) -> NDArray[np.float64]:
    """(n, m) distance of each point to each of its others (n, m)."""
    lengths = np.empty(others.shape)
    in_threads(lambda start, stop: _measure(kind, points, others, lengths, start, stop), len(points))
    return lengths


def _graph(
    points: NDArray[np.float64], kind: int, n_neighbors: int, report: Progress
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The edges of the neighbour graph, (m, 2), and their lengths."""
    others, lengths = _neighbours(points, kind, n_neighbors, report)
    edges, edge_lengths = np.empty((others.size, 2), np.int32), np.empty(others.size)
    n_edges = _list_edges(others, lengths, edges, edge_lengths)
    return edges[:n_edges], edge_lengths[:n_edges]


def _forest(
    edges: NDArray[np.int32], edge_lengths: NDArray[np.float64], codes: NDArray[Any], lengths: NDArray[Any]
) -> tuple[int, NDArray[np.int32]]:
    """Write the graph's minimum spanning forest; returns its number of edges and the piece of each point."""
    n_points = len(codes) + 1
    chosen = maximum_spanning_tree(edges, -edge_lengths, n_points)
    n_edges, forest = len(chosen), edges[chosen]
    codes[:n_edges] = (forest[:, 0].astype(np.int64) << 32) | forest[:, 1]
    lengths[:n_edges] = edge_lengths[chosen]
    pieces = np.empty(n_points, np.int32)
    number_trees(forest, n_edges, np.empty(n_points, np.int32), pieces)
    return n_edges, pieces


def _to_ask(component: NDArray[np.int32], n_components: int, spared: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Places to ask, one component after the other, and which components they are only a sample of."""
    sizes = np.bincount(component[component >= 0], minlength=n_components)
    share = max(PAIRS // (sizes.sum() * n_components), WIDTH)
    step = -(-sizes // share)
    by_component = np.argsort(component, kind="stable")[len(component) - sizes.sum() :]
    number = np.arange(len(by_component)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    own = component[by_component]
    asked = by_component[(number % step[own] == 0) & (own != spared)]
    return asked.astype(np.int32), step > 1


def _join_pieces(
    points: NDArray[np.float64],
    kind: int,
    pieces: NDArray[np.int32],
    codes: NDArray[np.int64],
    lengths: NDArray[np.float64],
    n_edges: int,
    report: Progress,
) -> None:
    """Add the edges that join the pieces to one tree, by rounds in which each piece but the largest finds one."""
    n = len(points)
    report.stage("joining", n - 1 - n_edges, "pieces")
    tree = build_tree(points)
    place = places(tree)
    component = np.full(len(tree.order), -1, np.int32)
    component[place] = pieces
    leader, sizes = np.empty(n, np.int32), np.empty(n, np.int64)
    n_components = n - n_edges
    spared = int(np.bincount(pieces).argmax())
    while n_components > 1:
        best, best_code = np.full(n_components, FAR), np.full(n_components, NO_EDGE)
        asked, sampled = _to_ask(component, n_components, spared)
        improve(tree, kind, component, asked, best, best_code)
        sampled &= best_code != NO_EDGE
        while sampled.any():
            before_code = best_code.copy()
            closest = _closest(points, kind, component, place, best_code, sampled)
            improve(tree, kind, component, closest, best, best_code)
            sampled &= best_code != before_code
        certain = best_code != NO_EDGE
        before = n_edges
        n_edges, n_components, spared = join(
            best, best_code, certain, place, component, leader, sizes, codes, lengths, n_edges
        )
        report.advance(n_edges - before)


def _closest(
    points: NDArray[np.float64],
    kind: int,
    component: NDArray[Any],
    place: NDArray[Any],
    best_code: NDArray[Any],
    sampled: NDArray[Any],
) -> NDArray[np.int32]:
    """The places of each sampled component that are the closest to where the best known edge out of it leads."""
    own = component[place]
    climbing = np.flatnonzero(sampled)
    ends = np.stack([best_code[climbing] >> 32, best_code[climbing] & 0xFFFFFFFF])
    goal = np.full(len(sampled), -1, np.int32)
    goal[climbing] = np.where(own[ends[0]] == climbing, ends[1], ends[0])
    lengths = _lengths(kind, points, goal[own][:, None])[:, 0]
    members = np.flatnonzero(sampled[own])
    members = members[np.argsort(own[members], kind="stable")]
    pieces = np.split(members, np.flatnonzero(np.diff(own[members])) + 1)
    chosen = [piece[np.argsort(lengths[piece], kind="stable")[:CLOSEST]] for piece in pieces]
    return np.sort(place[np.concatenate(chosen)])


def spanning_tree(
    points: NDArray[Any], metric: str, n_neighbors: int, progress: bool = False
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """A tree of the neighbour graph of points (n, d), finite numbers; exact where n_neighbors is n - 1."""
    kind = METRICS[metric].kind
    distinct, first = place_distinct(points, metric)
    n = len(distinct)
    codes, lengths = np.empty(n - 1, np.int64), np.empty(n - 1)
    if n > 1:
        with closing(Progress(progress)) as report:
            n_edges, pieces = _forest(*_graph(distinct, kind, min(n_neighbors, n - 1), report), codes, lengths)
            if n_edges < n - 1:
                _join_pieces(distinct, kind, pieces, codes, lengths, n_edges, report)
    return finish(codes, lengths, first, metric)
