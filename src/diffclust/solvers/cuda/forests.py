"""What a draw returns, from the keys of its tree: the edges that stay and their order, the value, the trees."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.cuda.keys import IN_TREE, TIER_SHIFT, ends_of, weight_of


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
def kept_edges(key, rank, n, k):
    """Which tree edges the forest keeps, whether the draw has a NaN, and whether missing edges cut a labelled group.

    Kept are all of tier 2, none of tier 1, and the strongest of tier 0 up to n - k in all; never an edge of weight
    -inf. A NaN always gets into the tree, so it is found there.
    """
    exists = key >= 0
    tier = (key >> TIER_SHIFT).to(tl.int32)
    weight = weight_of(key)
    missing = weight == float("-inf")
    in_tier_1 = tl.sum((exists & (tier == 1)).to(tl.int32), axis=0)
    failed = tl.max((exists & (weight != weight)).to(tl.int32), axis=0) > 0
    is_cut = tl.max((exists & missing & (tier == 2)).to(tl.int32), axis=0) > 0
    # Tier 0 starts after tiers 2 and 1, and as many as tier 2 leaves of n - k may stay: tier 2 counts on both sides.
    strong = (tier == 0) & (rank - in_tier_1 < n - k)
    kept = exists & ((tier == 2) | strong) & (missing == 0)
    return tl.where(failed, False, kept), failed, is_cut
