"""Points → about the nearest others of each: small cells of close points, of which each point looks into the nearest.

Cells come from k-means, level by level, so that no point is compared with all centres. Points are compared with those
of a cell in vectors, the points of one cell at a time: they mostly look into the same cells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.threads import in_threads
from diffclust.solvers.points.progress import Progress
from diffclust.solvers.points.search import nearest_points, replace_last
from diffclust.solvers.points.tiles import SQUARED_EUCLIDEAN, distances, select
from diffclust.solvers.points.vectors import ROWS, WIDTH

CELL = 64  # points of a cell, on average
LARGEST = 4 * CELL  # points from which on a cell is divided again
PARTS = 128  # into which a set of points is divided at most
SAMPLE = 32  # points for each part, from which its centre is learned
ROUNDS = 4  # of k-means
LEVELS = 16  # more are not needed, unless all points of a set have the same nearest centre
PROBED = 48  # nearest cells into which a point looks, unless more are needed for its list
RUN, RUNS = 64, 32  # cells in a row are a run; to find the nearest centre, a point tries the cells of the nearest runs
FARTHEST = 1 / 32  # share of the points, the farthest from the nearest centre they found, that try all cells
RANKED = 256  # cells nearest to a point's own, of which it takes its nearest


@jit(inner=True)
def _load(points, rows, first, n, x):
    """Copy points rows[first], ..., rows[first + n - 1] to the lanes of x (1, d, ROWS)."""
    for r in range(n):
        for k in range(points.shape[1]):
            x[0, k, r] = points[rows[first + r], k]


@jit(inner=True)
def _nearest_centres(x, n, centres, out, best, part):
    """part[r] = the centre nearest to lane r of x (1, d, ROWS), of tiles of centres."""
    best[:] = np.inf
    part[:] = 0
    for b in range(centres.shape[0]):
        distances(SQUARED_EUCLIDEAN, x, 0, 0, centres, b, out)
        for r in range(n):
            smallest = best[r]
            for lane in range(WIDTH):
                smallest = min(smallest, out[r * WIDTH + lane])
            if smallest < best[r]:
                best[r] = smallest
                lane = 0
                while out[r * WIDTH + lane] != smallest:
                    lane += 1
                part[r] = b * WIDTH + lane


@jit(allocates=True, inner=True)
def _learn_centres(points, rows, n_parts):
    """Centres of parts of some rows, by k-means of a sample: tiles (tiles, d, WIDTH), filled up with infinity."""
    n, d = rows.shape[0], points.shape[1]
    centres = np.full((-(-n_parts // WIDTH), d, WIDTH), np.inf, points.dtype)
    for c in range(n_parts):
        for k in range(d):
            centres[c // WIDTH, k, c % WIDTH] = points[rows[c * n // n_parts], k]
    n_sample = min(n, SAMPLE * n_parts)
    sample = np.empty(n_sample, np.int64)
    for s in range(n_sample):
        sample[s] = rows[s * n // n_sample]
    x, out = np.zeros((1, d, ROWS), points.dtype), np.empty(ROWS * WIDTH, points.dtype)
    best, part = np.empty(ROWS, points.dtype), np.empty(ROWS, np.int64)
    sums, sizes = np.empty((n_parts, d)), np.empty(n_parts)
    for _ in range(ROUNDS):
        sums[:] = 0.0
        sizes[:] = 0.0
        for first in range(0, n_sample, ROWS):
            n_loaded = min(ROWS, n_sample - first)
            _load(points, sample, first, n_loaded, x)
            _nearest_centres(x, n_loaded, centres, out, best, part)
            for r in range(n_loaded):
                c = part[r]
                sizes[c] += 1.0
                for k in range(d):  # differences, which are exact far from the origin, too
                    sums[c, k] += x[0, k, r] - centres[c // WIDTH, k, c % WIDTH]
        for c in range(n_parts):
            for k in range(d):
                centres[c // WIDTH, k, c % WIDTH] += sums[c, k] / max(sizes[c], 1.0)
    return centres


@jit(allocates=True)
def _divide(points, rows, starts, n_parts, first_parts, sizes, start, stop):
    """Divide sets start..stop-1, of which set s is rows[starts[s]:starts[s + 1]]; write the sizes of their parts."""
    d = points.shape[1]
    x, out = np.zeros((1, d, ROWS), points.dtype), np.empty(ROWS * WIDTH, points.dtype)
    best, part = np.empty(ROWS, points.dtype), np.empty(ROWS, np.int64)
    for s in range(start, stop):
        own = rows[starts[s] : starts[s + 1]].copy()
        n = own.shape[0]
        own_sizes = sizes[first_parts[s] : first_parts[s] + n_parts[s]]
        if n_parts[s] == 1:
            own_sizes[0] = n
            continue
        centres = _learn_centres(points, own, n_parts[s])
        parts = np.empty(n, np.int64)
        for first in range(0, n, ROWS):
            n_loaded = min(ROWS, n - first)
            _load(points, own, first, n_loaded, x)
            _nearest_centres(x, n_loaded, centres, out, best, part)
            parts[first : first + n_loaded] = part[:n_loaded]
        for i in range(n):
            own_sizes[parts[i]] += 1
        place = np.empty(n_parts[s], np.int64)
        total = starts[s]
        for c in range(n_parts[s]):
            place[c] = total
            total += own_sizes[c]
        for i in range(n):
            rows[place[parts[i]]] = own[i]
            place[parts[i]] += 1


def divide(points: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cells of points (n, d): the points, one cell after the other, and where in them each one starts, (cells + 1,)."""
    rows, starts = np.arange(len(points)), np.array([0, len(points)])
    for _ in range(LEVELS):
        sizes = np.diff(starts)
        wanted = np.where(sizes > LARGEST, -(-sizes // CELL), 1)
        levels = np.maximum(np.ceil(np.log(wanted) / np.log(PARTS)), 1)
        n_parts = np.ceil(wanted ** (1 / levels)).astype(np.int64)
        if (n_parts == 1).all():
            break
        starts = _divide_sets(points, rows, starts, n_parts)
    return rows, starts


def _divide_sets(
    points: NDArray[np.float32], rows: NDArray[np.int64], starts: NDArray[np.int64], n_parts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Divide each set of ``rows``, in place; returns where the parts start."""
    first_parts, sizes = np.cumsum(n_parts) - n_parts, np.zeros(n_parts.sum(), np.int64)
    in_threads(lambda a, b: _divide(points, rows, starts, n_parts, first_parts, sizes, a, b), len(n_parts))
    return np.concatenate([[0], np.cumsum(sizes[sizes > 0])])


@jit(allocates=True)
def _means(points, rows, starts, centres, start, stop):
    """centres[c] = mean of cell c, for cells start..stop-1."""
    for c in range(start, stop):
        one = points[rows[starts[c]]]
        for k in range(points.shape[1]):
            total = 0.0
            for p in range(starts[c], starts[c + 1]):
                total += points[rows[p], k] - one[k]
            centres[c, k] = one[k] + total / (starts[c + 1] - starts[c])


@jit(inner=True)
def _load_centres(centres, near_cells, centre_tiles):
    """Copy the centres of some cells to tiles, which are full of infinity beyond them."""
    for s in range(near_cells.shape[0]):
        for k in range(centres.shape[1]):
            centre_tiles[s // WIDTH, k, s % WIDTH] = centres[near_cells[s], k]


@jit(allocates=True)
def _nearest_cells(points, rows, starts, centres, candidates, home, gaps, start, stop):
    """home[i] = the candidate of its run whose centre is nearest to point i of runs start..stop-1, gaps[i] how far."""
    n_near, d = candidates.shape[1], points.shape[1]
    centre_tiles = np.full((-(-n_near // WIDTH), d, WIDTH), np.inf, points.dtype)
    x, out = np.zeros((1, d, ROWS), points.dtype), np.empty(ROWS * WIDTH, points.dtype)
    best, part = np.empty(ROWS, points.dtype), np.empty(ROWS, np.int64)
    for run in range(start, stop):
        _load_centres(centres, candidates[run], centre_tiles)
        for first in range(starts[run], starts[run + 1], ROWS):
            n_loaded = min(ROWS, starts[run + 1] - first)
            _load(points, rows, first, n_loaded, x)
            _nearest_centres(x, n_loaded, centre_tiles, out, best, part)
            for r in range(n_loaded):
                home[rows[first + r]] = candidates[run, part[r]]
                gaps[rows[first + r]] = best[r]


@jit
def _fill_tiles(points, order, tiles, start, stop):
    for t in range(start, stop):
        for lane in range(WIDTH):
            i = order[t * WIDTH + lane]
            for k in range(points.shape[1]):
                tiles[t, k, lane] = points[i, k] if i >= 0 else np.inf


@jit(inner=True)
def _choose_cells(tiles, first, size, centre_tiles, n_near, n_probed, chosen, n_chosen, keys, ranks, x, out):
    """List the points of a cell (lanes of its tiles, from ``first`` on) at each of the cells that they look into."""
    d = tiles.shape[1]
    n_chosen[:] = 0
    for i in range(0, size, ROWS):
        n_loaded = min(ROWS, size - i)
        for r in range(n_loaded):
            for k in range(d):
                x[0, k, r] = tiles[first + (i + r) // WIDTH, k, (i + r) % WIDTH]
        for b in range(centre_tiles.shape[0]):
            distances(SQUARED_EUCLIDEAN, x, 0, 0, centre_tiles, b, out)
            for r in range(n_loaded):
                for lane in range(WIDTH):
                    keys[r, b * WIDTH + lane] = out[r * WIDTH + lane]
        for r in range(n_loaded):
            for s in range(n_near):
                ranks[s] = s
            select(keys[r], ranks, 0, n_near, n_probed)
            for s in range(n_probed):
                chosen[ranks[s], n_chosen[ranks[s]]] = i + r
                n_chosen[ranks[s]] += 1


@jit(allocates=True)
def _search(kind, tiles, order, first_tiles, sizes, centres, near_cells, n_probed, n_listed, others, start, stop):
    """others[i] = about the nearest points of each point i of cells start..stop-1, in no order."""
    d, n_near = tiles.shape[1], near_cells.shape[1]
    largest = 0
    for home in range(start, stop):
        largest = max(largest, sizes[home])
    chosen, n_chosen = np.empty((n_near, largest), np.int64), np.empty(n_near, np.int64)
    centre_tiles = np.full((-(-n_near // WIDTH), d, WIDTH), np.inf, tiles.dtype)
    keys, ranks = np.empty((ROWS, centre_tiles.shape[0] * WIDTH), tiles.dtype), np.empty(n_near, np.int64)
    x, out = np.zeros((1, d, ROWS), tiles.dtype), np.empty(ROWS * WIDTH, tiles.dtype)
    near, near_points = np.empty((largest, n_listed), tiles.dtype), np.empty((largest, n_listed), np.int32)
    for home in range(start, stop):
        first = first_tiles[home]
        _load_centres(centres, near_cells[home], centre_tiles)
        _choose_cells(tiles, first, sizes[home], centre_tiles, n_near, n_probed, chosen, n_chosen, keys, ranks, x, out)
        near[:] = np.inf
        near_points[:] = -1
        for s in range(n_near):
            cell = near_cells[home, s]
            for c in range(0, n_chosen[s], ROWS):
                n_loaded = min(ROWS, n_chosen[s] - c)
                for r in range(n_loaded):
                    i = chosen[s, c + r]
                    for k in range(d):
                        x[0, k, r] = tiles[first + i // WIDTH, k, i % WIDTH]
                for b in range(first_tiles[cell], first_tiles[cell + 1]):
                    distances(kind, x, 0, 0, tiles, b, out)
                    for r in range(n_loaded):
                        i = chosen[s, c + r]
                        limit = near[i, 0]
                        hit = False
                        for lane in range(WIDTH):
                            hit |= out[r * WIDTH + lane] < limit
                        if hit:
                            for lane in range(WIDTH):
                                if out[r * WIDTH + lane] < near[i, 0]:
                                    replace_last(
                                        near[i], near_points[i], out[r * WIDTH + lane], order[b * WIDTH + lane]
                                    )
        for i in range(sizes[home]):
            others[order[first * WIDTH + i]] = near_points[i]


def _reassign(
    points: NDArray[np.float32], rows: NDArray[np.int64], starts: NDArray[np.int64], centres: NDArray[np.float64]
) -> NDArray[np.int32]:
    """(n,) the cell whose centre is nearest to each point: dividing level by level leaves some in cells far away.

    Cells that follow one another are close, mostly. So all points of a run of cells try those of the nearest runs. The
    few that are still far from a centre try all.
    """
    firsts = np.arange(0, len(centres), RUN)
    means = np.add.reduceat(centres, firsts) / np.diff(firsts, append=len(centres))[:, None]
    runs = nearest_points(means, means, SQUARED_EUCLIDEAN, min(RUNS, len(means)))[1]
    candidates = np.minimum(firsts[runs][:, :, None] + np.arange(RUN), len(centres) - 1).reshape(len(runs), -1)
    run_starts = np.append(starts[firsts], starts[-1])
    home, gaps = np.empty(len(points), np.int32), np.empty(len(points), np.float32)
    in_threads(
        lambda a, b: _nearest_cells(points, rows, run_starts, centres, candidates, home, gaps, a, b), len(firsts)
    )
    if len(runs) > RUNS:
        far = np.argsort(-gaps, kind="stable")[: int(FARTHEST * len(gaps))]
        home[far] = nearest_points(centres, points[far].astype(np.float64), SQUARED_EUCLIDEAN)[1][:, 0]
    return home


def nearest_in_cells(points: NDArray[np.float32], kind: int, n_listed: int, report: Progress) -> NDArray[np.int32]:
    """About the nearest points to each point (n, d), itself included: (n, n_listed), -1 where fewer were found."""
    n, d = points.shape
    rows, starts = divide(points)
    n_cells = len(starts) - 1
    centres = np.empty((n_cells, d))
    in_threads(lambda a, b: _means(points, rows, starts, centres, a, b), n_cells)
    home = _reassign(points, rows, starts, centres)
    n_probed = min(max(PROBED, -(-4 * n_listed // CELL)), n_cells)
    far, near_cells = nearest_points(centres, centres, SQUARED_EUCLIDEAN, min(max(RANKED, 2 * n_probed), n_cells))
    near_cells = np.take_along_axis(near_cells, np.argsort(far, 1), 1)
    sizes = np.bincount(home, minlength=n_cells)
    first_tiles = np.concatenate([[0], np.cumsum(-(-sizes // WIDTH))])
    tiles, order = np.empty((first_tiles[-1], d, WIDTH), points.dtype), np.full(first_tiles[-1] * WIDTH, -1, np.int32)
    rows = np.argsort(home, kind="stable")
    order[np.arange(n) + np.repeat(first_tiles[:-1] * WIDTH - (np.cumsum(sizes) - sizes), sizes)] = rows
    in_threads(lambda a, b: _fill_tiles(points, order, tiles, a, b), first_tiles[-1])
    others = np.empty((n, n_listed), np.int32)

    def search(start: int, stop: int) -> None:
        for first in range(start, stop, 64):
            last = min(first + 64, stop)
            _search(
                kind, tiles, order, first_tiles, sizes, centres, near_cells, n_probed, n_listed, others, first, last
            )
            report.advance(int(sizes[first:last].sum()))

    in_threads(search, n_cells)
    return others
