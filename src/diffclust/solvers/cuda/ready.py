"""Input of any kind made ready for the solver: symmetric, with a number of clusters that the labels allow."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from diffclust.solvers.cuda.launches import device_of, launch
from diffclust.solvers.cuda.philox import mean_of_two


@triton.jit
def _symmetrise(similarity, out, counts, n, tile, COUNTS: tl.constexpr, BLOCK: tl.constexpr):
    """A tile of the mean of a matrix and its transpose, as float32, and zeros for the counts."""
    tiles = tl.cdiv(n, BLOCK)
    i, j = (tile // tiles) * BLOCK + tl.arange(0, BLOCK), (tile % tiles) * BLOCK + tl.arange(0, BLOCK)
    inside = (i[:, None] < n) & (j[None, :] < n)
    here = i[:, None].to(tl.int64) * n + j[None, :]
    there = j[None, :].to(tl.int64) * n + i[:, None]
    value = mean_of_two(tl.load(similarity + here, mask=inside), tl.load(similarity + there, mask=inside))
    tl.store(out + here, value, mask=inside)
    if COUNTS:
        tl.store(counts + here, 0, mask=inside)


@triton.jit
def clamp(k, labels, n, BLOCK: tl.constexpr):
    """One problem's k, moved to between its number of groups and its number of groups and unlabelled points."""
    n_groups, n_known = 0, 0
    for start in range(0, n, BLOCK):
        index = start + tl.arange(0, BLOCK)
        own = tl.load(labels + index, mask=index < n, other=-1)
        known = (index < n) & (own >= 0)  # if labels are unsigned, -1 is not below 0
        repeated = tl.zeros((BLOCK,), tl.int32)
        for other in range(tl.minimum(start + BLOCK, n)):
            repeated += ((tl.load(labels + other) == own) & (other < index)).to(tl.int32)
        n_known += tl.sum(known.to(tl.int32), axis=0)
        n_groups += tl.sum((known & (repeated == 0)).to(tl.int32), axis=0)
    return tl.minimum(tl.maximum(k, tl.maximum(n_groups, 1)), n - n_known + n_groups)


@triton.jit
def _make_ready(
    similarity, out, counts, n_clusters, labels, clusters_out, n, n_tiles,
    COUNTS: tl.constexpr, BLOCK: tl.constexpr, LABEL_BLOCK: tl.constexpr,
):  # fmt: skip
    """One launch for all: a program for each tile of a problem, and one more for its number of clusters."""
    tile, problem = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start = problem * n * n
    if tile < n_tiles:
        _symmetrise(similarity + start, out + start, counts + start, n, tile, COUNTS, BLOCK)
    else:
        k = clamp(tl.load(n_clusters + problem), labels + problem * n, n, LABEL_BLOCK)
        tl.store(clusters_out + problem, k)


def make_ready(
    similarity: torch.Tensor, n_clusters: torch.Tensor, labels: torch.Tensor | None, with_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """What :func:`solve` takes: the mean of similarity and its transpose as float32, a feasible k, counts of 0.

    n_clusters (problems,) is moved into the range that labels (problems, n) allow; without labels it stays as it is.
    """
    n_problems, n, _ = similarity.shape
    symmetric = similarity.new_empty(similarity.shape, dtype=torch.float32)
    counts = similarity.new_empty(similarity.shape, dtype=torch.int32) if with_counts else None
    clusters = n_clusters if labels is None else torch.empty_like(n_clusters)
    if symmetric.numel():
        n_tiles = triton.cdiv(n, 32) ** 2
        with device_of(similarity):
            _make_ready[(n_tiles + int(labels is not None), n_problems)](
                similarity.contiguous(), symmetric, symmetric if counts is None else counts, n_clusters.contiguous(),
                symmetric if labels is None else labels.contiguous(), clusters, n, n_tiles, COUNTS=with_counts,
                BLOCK=32, LABEL_BLOCK=min(triton.next_power_of_2(n), 1024), **launch(4),
            )  # fmt: skip
    return symmetric, clusters, counts
