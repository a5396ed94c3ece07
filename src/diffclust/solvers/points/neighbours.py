"""Points → an approximate tree: the spanning forest of a neighbour graph, its pieces joined to one tree.

The graph comes from faiss or, for few points, from an exact search. Edges get their lengths in float64 here, so the
tree's weights are true similarities; what is approximate is the choice of edges:

- the graph has about ``n_neighbors`` of the nearest others of each point (an inverted file finds most of them). Faiss
  computes in float32: points whose neighbours are too close for that are searched exactly;
- pieces of the graph are joined by the shortest edges out of them. These are exact for pieces in which all points are
  asked for their nearest point outside; of larger pieces a sample is asked, then the surroundings of the best answer.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.threads import in_threads
from diffclust.solvers.edges import maximum_spanning_tree
from diffclust.solvers.points.boruvka import NO_EDGE, join
from diffclust.solvers.points.cpu import finish, first_equal
from diffclust.solvers.points.metrics import METRICS, place
from diffclust.solvers.points.progress import Progress
from diffclust.solvers.points.search import FAR, improve, nearest_points
from diffclust.solvers.points.tiles import CHEBYSHEV, MANHATTAN, SQUARED_EUCLIDEAN, WIDTH, Tree, build_tree, places
from diffclust.solvers.tree import number_trees

FEW = 10_000  # points up to which the neighbours are exact
BLURRED = 0.01  # rounding to float32, as a part of a neighbour's distance, from which on a point is searched exactly
PROBED = 16  # lists of the inverted file that are searched
BATCH = 16_384  # points whose neighbours are searched at once
PAIRS = 4_000_000_000  # of points asked and all points, in a round of joining, spread over the pieces
SURROUNDINGS = 2 * WIDTH  # places before and after an endpoint that are asked, too


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


def _neighbours(points: NDArray[np.float64], kind: int, n_neighbors: int, report: Progress) -> NDArray[np.int32]:
    """About the nearest others of each point, (n, n_neighbors + 1); -1 where fewer were found.

    One more than asked for, because a point is mostly its own nearest.
    """
    n = len(points)
    report.stage("neighbours", n, "points")
    if n <= FEW:
        others = nearest_points(points, points, kind, n_neighbors + 1)[1]
        report.advance(n)
        return others
    centred = points - points.mean(0)
    centred /= np.abs(centred).max()  # squares of float32 overflow and vanish early; all points differ, so no 0 / 0
    others = _approximate_neighbours(centred.astype(np.float32), kind, n_neighbors, report)
    blurred = _are_blurred(centred, kind, others)
    if blurred.any():
        others[blurred] = nearest_points(points, points[blurred], kind, n_neighbors + 1)[1]
    return others


def _approximate_neighbours(
    points: NDArray[np.float32], kind: int, n_neighbors: int, report: Progress
) -> NDArray[np.int32]:
    try:
        faiss = importlib.import_module("faiss")  # its type stubs miss half of it
    except ImportError as error:
        raise ImportError(
            f"n_neighbors with more than {FEW} points needs faiss: pip install 'diffclust[neighbors]'."
        ) from error
    n, d = points.shape
    n_lists = int(min(4 * np.sqrt(n), n / 40))  # faiss wants 39 points for each
    index = faiss.index_factory(d, f"IVF{n_lists},Flat", (faiss.METRIC_L2, faiss.METRIC_L1, faiss.METRIC_Linf)[kind])
    index.cp.max_points_per_centroid = 64
    index.train(points)
    index.add(points)
    index.nprobe = min(n_lists, max(PROBED, -(-4 * n_neighbors * n_lists // n)))
    others = np.empty((n, n_neighbors + 1), np.int32)
    for start in range(0, n, BATCH):
        batch = points[start : start + BATCH]
        others[start : start + BATCH] = index.search(batch, n_neighbors + 1)[1]
        report.advance(len(batch))
    return others


def _are_blurred(centred: NDArray[np.float64], kind: int, others: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether rounding to float32 moves a point by much of the distance to the farthest of its neighbours."""
    lengths = _lengths(kind, centred, others)
    farthest = np.where(others >= 0, lengths, 0.0).max(1)
    if kind == SQUARED_EUCLIDEAN:
        farthest = np.sqrt(farthest)
    order = {SQUARED_EUCLIDEAN: 2, MANHATTAN: 1, CHEBYSHEV: np.inf}[kind]
    moved = 0.5 * np.finfo(np.float32).eps * np.linalg.norm(centred, order, axis=1)
    return moved > BLURRED * farthest


def _lengths(kind: int, points: NDArray[np.float64], others: NDArray[np.int32]) -> NDArray[np.float64]:
    """(n, m) distance of each point to each of its others (n, m)."""
    lengths = np.empty(others.shape)
    in_threads(lambda start, stop: _measure(kind, points, others, lengths, start, stop), len(points))
    return lengths


def _forest(
    points: NDArray[np.float64], kind: int, others: NDArray[np.int32], codes: NDArray[Any], lengths: NDArray[Any]
) -> tuple[int, NDArray[np.int32]]:
    """Write the graph's minimum spanning forest; returns its number of edges and the piece of each point."""
    measured = _lengths(kind, points, others)
    edges, edge_lengths = np.empty((others.size, 2), np.int32), np.empty(others.size)
    n_graph = _list_edges(others, measured, edges, edge_lengths)
    chosen = maximum_spanning_tree(edges[:n_graph], -edge_lengths[:n_graph], len(points))
    n_edges, forest = len(chosen), edges[chosen]
    codes[:n_edges] = (forest[:, 0].astype(np.int64) << 32) | forest[:, 1]
    lengths[:n_edges] = edge_lengths[chosen]
    pieces = np.empty(len(points), np.int32)
    number_trees(forest, n_edges, np.empty(len(points), np.int32), pieces)
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
        if sampled.any():
            around = _surroundings(tree, component, place, best_code, sampled)
            improve(tree, kind, component, around, best, best_code)
        certain = best_code != NO_EDGE
        before = n_edges
        n_edges, n_components, spared = join(
            best, best_code, certain, place, component, leader, sizes, codes, lengths, n_edges
        )
        report.advance(n_edges - before)


def _surroundings(
    tree: Tree, component: NDArray[Any], place: NDArray[Any], best_code: NDArray[Any], sampled: NDArray[Any]
) -> NDArray[np.int32]:
    """The places near the end, inside its component, of the best known edge out of each sampled component."""
    chosen = np.zeros(len(tree.order), bool)
    for c in np.flatnonzero(sampled & (best_code != NO_EDGE)).tolist():
        ends = place[[best_code[c] >> 32, best_code[c] & 0xFFFFFFFF]]
        inside = int(ends[0] if component[ends[0]] == c else ends[1])
        window = slice(max(inside - SURROUNDINGS, 0), inside + SURROUNDINGS)
        chosen[window] |= component[window] == c
    return np.flatnonzero(chosen).astype(np.int32)


def spanning_tree(
    points: NDArray[Any], metric: str, n_neighbors: int, progress: bool = False
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """A tree of the neighbour graph of points (n, d), finite numbers; exact where n_neighbors is n - 1."""
    kind = METRICS[metric].kind
    placed = place(points, METRICS[metric])
    first = first_equal(placed)
    distinct = placed if first is None else placed[first == np.arange(len(first))]
    n = len(distinct)
    codes, lengths = np.empty(n - 1, np.int64), np.empty(n - 1)
    if n > 1:
        with Progress(progress) as report:
            others = _neighbours(distinct, kind, min(n_neighbors, n - 1), report)
            n_edges, pieces = _forest(distinct, kind, others, codes, lengths)
            if n_edges < n - 1:
                _join_pieces(distinct, kind, pieces, codes, lengths, n_edges, report)
    return finish(codes, lengths, first, metric)
