"""The exact tree on CUDA: Borůvka's rounds, each point's nearest other outside its component by brute force (Triton).

A round costs n² distances at most, in O(n) memory: a program computes tiles of distances and keeps only the best of
each row. A point looks again only when the one it found has come into its own component. Distances are float64
differences, as on the CPU.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from diffclust.frameworks import to_numpy
from diffclust.solvers.cuda.launches import device_of
from diffclust.solvers.points.cpu import Tree, in_order
from diffclust.solvers.points.metrics import METRICS, place
from diffclust.solvers.points.progress import Progress
from diffclust.solvers.points.tiles import CHEBYSHEV, MANHATTAN

_MANHATTAN, _CHEBYSHEV = tl.constexpr(MANHATTAN), tl.constexpr(CHEBYSHEV)
ROWS, COLUMNS = 32, 64
PROGRAMS = 1024  # enough to fill a GPU: few rows are spread over ranges of columns


@triton.jit
def _nearest_outside(
    points, rows, component, distances, nearest, n, d, n_rows, per_range,
    KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """For ROWS points the nearest one in a range of columns that is in another component; of equal ones the first."""
    position = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = position < n_rows
    i = tl.load(rows + position, mask=valid, other=0)
    own = tl.load(component + i)
    best = tl.full((ROWS,), float("inf"), tl.float64)
    best_j = tl.full((ROWS,), -1, tl.int64)
    first = tl.program_id(1) * per_range
    for start in range(first, tl.minimum(first + per_range, n), COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        inside = j < n
        total = tl.zeros((ROWS, COLUMNS), tl.float64)
        for k in range(d):
            row = points + tl.cast(k, tl.int64) * n
            gap = tl.abs(tl.load(row + i)[:, None] - tl.load(row + j, mask=inside, other=0.0)[None, :])
            if KIND == _MANHATTAN:
                total += gap
            elif KIND == _CHEBYSHEV:
                total = tl.maximum(total, gap)
            else:
                total += gap * gap
        other = tl.load(component + j, mask=inside, other=-1)
        total = tl.where((other[None, :] != own[:, None]) & inside[None, :], total, float("inf"))
        here = tl.min(total, axis=1)
        here_j = tl.min(tl.where(total == here[:, None], j[None, :], n), axis=1)
        better = here < best
        best_j = tl.where(better, here_j.to(tl.int64), best_j)
        best = tl.where(better, here, best)
    out = tl.program_id(1).to(tl.int64) * n_rows + position
    tl.store(distances + out, best, mask=valid)
    tl.store(nearest + out, best_j, mask=valid)


def nearest_outside(
    columns: torch.Tensor, rows: torch.Tensor, component: torch.Tensor, kind: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of ``rows`` the distance to the nearest point of another component and that point's number.

    Points come as columns (d, n), float64. Where there is none, the distance is infinite.
    """
    d, n = columns.shape
    blocks = triton.cdiv(len(rows), ROWS)
    n_ranges = max(1, min(PROGRAMS // blocks, triton.cdiv(n, COLUMNS)))
    per_range = triton.cdiv(triton.cdiv(n, n_ranges), COLUMNS) * COLUMNS
    n_ranges = triton.cdiv(n, per_range)
    distances = columns.new_empty((n_ranges, len(rows)))
    nearest = torch.empty((n_ranges, len(rows)), dtype=torch.int64, device=columns.device)
    with device_of(columns):
        _nearest_outside[(blocks, n_ranges)](
            columns, rows, component, distances, nearest, n, d, len(rows), per_range,
            KIND=kind, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4,
        )  # fmt: skip
    best, which = distances.min(0)
    if n_ranges > 1:  # of equal ones the first range, which the minimum does not promise
        which = (distances == best).int().argmax(0)
    return best, nearest.gather(0, which[None])[0]


def _join(
    i: NDArray[np.int64], j: NDArray[np.int64], component: NDArray[np.int32], n_components: int
) -> tuple[int, NDArray[np.int32]]:
    graph = coo_array((np.ones(len(i), np.int8), (component[i], component[j])), shape=(n_components, n_components))
    n_left, number = connected_components(graph, directed=False)
    return n_left, number[component].astype(np.int32)


def spanning_tree(points: torch.Tensor, metric: str, progress: bool = False) -> Tree:
    """The exact maximum spanning tree of all pairs of points (n, d)."""
    columns = torch.from_numpy(place(to_numpy(points), METRICS[metric]).T.copy()).to(points.device)
    n = columns.shape[1]
    component = np.arange(n, dtype=np.int32)
    n_components = n
    distance = columns.new_full((n,), torch.inf)
    nearest = torch.arange(n, device=columns.device)
    codes, lengths = [np.empty(0, np.int64)], [np.empty(0)]
    with closing(Progress(progress)) as report:
        report.stage("tree", n - 1, "edges")
        while n_components > 1:
            on_device = torch.from_numpy(component).to(columns.device)
            stale = (on_device[nearest] == on_device).nonzero()[:, 0]
            if len(stale):
                found = nearest_outside(columns, stale, on_device, METRICS[metric].kind)
                distance[stale], nearest[stale] = found
            # The best edge out of each component: the smallest distance, then the smallest pair.
            group = on_device.long()
            best = distance.new_full((n_components,), torch.inf).scatter_reduce(0, group, distance, "amin")
            i = torch.arange(n, device=columns.device)
            pair = (torch.minimum(i, nearest) << 32) | torch.maximum(i, nearest)
            pair = torch.where(distance == best[group], pair, torch.iinfo(torch.int64).max)
            best_pair = pair.new_full((n_components,), torch.iinfo(torch.int64).max).scatter_reduce(
                0, group, pair, "amin"
            )
            chosen, first = np.unique(best_pair.cpu().numpy(), return_index=True)
            codes.append(chosen)
            lengths.append(best.cpu().numpy()[first])
            n_components, component = _join(chosen >> 32, chosen & 0xFFFFFFFF, component, n_components)
            report.advance(len(chosen))
    return in_order(np.concatenate(codes), METRICS[metric].similarity(np.concatenate(lengths)))
