"""What a draw returns, from the keys of its tree: the edges that stay and their order, the value, the trees."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.kernels.keys import IN_TREE, ends_of, weight_of
from diffclust.solvers.kernels.trees import find_roots


@triton.jit
def rank_of(keys, n_edges, key):
    """For each key, how many of ``keys[:n_edges]`` are larger."""
    rank = tl.zeros(key.shape, tl.int32)
    for start in range(0, n_edges, 8):
        for offset in tl.static_range(8):  # eight loads in flight
            other = start + offset
            rank += (tl.load(keys + other, mask=other < n_edges, other=IN_TREE) > key).to(tl.int32)
    return rank


@triton.jit
def write_edges(edges, key, kept, position, n_kept, n):
    """Write the kept edges to their positions, and (-1, -1) after them."""
    index = tl.arange(0, key.shape[0])
    i, j, _ = ends_of(key)
    tl.store(edges + 2 * position, i, mask=kept)
    tl.store(edges + 2 * position + 1, j, mask=kept)
    unused = (index >= n_kept) & (index < n - 1)
    tl.store(edges + 2 * index, -1, mask=unused)
    tl.store(edges + 2 * index + 1, -1, mask=unused)


@triton.jit
def add_to_counts(counts, i, j, solve, n):
    """Add edges (i, j) with i >= 0 to a problem's counts, both ways; subtract those of the second solve."""
    i, j = i.to(tl.int64), j.to(tl.int64)
    sign = tl.full(i.shape, 1, tl.int32) - 2 * solve
    tl.atomic_add(counts + i * n + j, sign, mask=i >= 0, sem="relaxed")
    tl.atomic_add(counts + j * n + i, sign, mask=i >= 0, sem="relaxed")


@triton.jit
def value_of(key, kept, failed):
    """Twice the sum of the kept weights, the sum in float64 so that its order does not show; NaN where failed."""
    total = tl.sum(tl.where(kept, weight_of(key), 0.0).to(tl.float64), axis=0)
    return tl.where(failed, float("nan"), (2.0 * total).to(tl.float32))


@triton.jit
def number_trees(labels, smallest, numbers, root, failed, n):
    """labels[v] = number of v's tree by its smallest point. ``root[v]`` is any point that stands for v's tree."""
    v = tl.arange(0, root.shape[0])
    valid = v < n
    tl.store(smallest + v, v, mask=valid)
    tl.debug_barrier()
    tl.atomic_min(smallest + root, v, mask=valid, sem="relaxed", scope="cta")
    tl.debug_barrier()
    first = tl.load(smallest + root, mask=valid, other=0)
    tl.store(numbers + v, tl.cumsum((valid & (first == v)).to(tl.int32), axis=0) - 1, mask=valid)
    tl.debug_barrier()
    number = tl.load(numbers + first, mask=valid, other=0)
    tl.store(labels + v, tl.where(failed, 0, number), mask=valid)


@triton.jit
def free_forest(key, rank, n, k):
    """Which edges of a tree its k-forest keeps, never one of weight -inf, and whether the draw has a NaN.

    A NaN always gets into the tree, so it is found there.
    """
    weight = weight_of(key)
    failed = tl.max(((key >= 0) & (weight != weight)).to(tl.int32), axis=0) > 0
    kept = (key >= 0) & (rank < n - k) & (weight != float("-inf"))
    return tl.where(failed, False, kept), failed


@triton.jit
def write_forest(
    key, kept, position, failed, out, problem, solve, n, counts, edges_out, labels_out, values_out, smallest, numbers,
    BLOCK: tl.constexpr, JUMPS: tl.constexpr, COUNTS: tl.constexpr, EDGES: tl.constexpr, WITH_LABELS: tl.constexpr,
):  # fmt: skip
    """Write what a draw returns. With ``WITH_LABELS`` keys are those of a tree: a new vertex hangs on an old one."""
    tl.store(values_out + out, value_of(key, kept, failed))
    if COUNTS:
        i, j, _ = ends_of(key)
        add_to_counts(counts + problem * n * n, tl.where(kept, i, -1), j, solve, n)
    if EDGES:
        write_edges(edges_out + out * (n - 1) * 2, key, kept, position, tl.sum(kept.to(tl.int32), axis=0), n)
    if WITH_LABELS:
        labels_out += out * n
        root = find_roots(labels_out, key, kept, n, BLOCK, JUMPS)
        number_trees(labels_out, smallest, numbers, root, failed, n)


@triton.jit
def mean_of_draws(values, n_draws, TWO: tl.constexpr, BLOCK: tl.constexpr):
    """Mean over draws of one problem's values, or of the gaps between its two solves, none of them below zero."""
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_draws, BLOCK):
        draw = start + tl.arange(0, BLOCK)
        value = tl.load(values + draw, mask=draw < n_draws, other=0.0, cache_modifier=".cg")
        if TWO:
            value -= tl.load(values + n_draws + draw, mask=draw < n_draws, other=0.0, cache_modifier=".cg")
            value = tl.where(value < 0, 0.0, value)
        total += value
    return (tl.sum(total, axis=0) / n_draws).to(tl.float32)
