"""Prim, and the forests without constraints and with labels."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.cuda.forests import (
    add_to_counts,
    kept_edges,
    number_trees,
    rank_of,
    value_of,
    write_edges,
)
from diffclust.solvers.cuda.keys import (
    IN_TREE,
    TIER_SHIFT,
    WITHOUT_TIER,
    ends_of,
    key_of,
    largest_key,
    updated,
    with_block_tier,
    with_tier,
)
from diffclust.solvers.cuda.noise import draw_words, weight_row

LARGEST_JUMPS = tl.constexpr(14)  # an index has 14 bits: 2 ** 14 points are reached


@triton.jit
def _find_roots(parents, key, kept, n, BLOCK: tl.constexpr, JUMPS: tl.constexpr):
    """The root of each vertex where the new vertex of each kept edge hangs on the other one: pointer jumping."""
    index = tl.arange(0, BLOCK)
    i, j, new_is_j = ends_of(key)
    new, old = tl.where(new_is_j, j, i), tl.where(new_is_j, i, j)
    tl.store(parents + new, tl.where(kept, old, new), mask=index < n - 1)
    tl.store(parents, 0)  # where Prim started
    tl.debug_barrier()
    root = tl.load(parents + index, mask=index < n, other=0)
    for _ in range(JUMPS):
        root = tl.load(parents + root, mask=index < n, other=0)
        tl.debug_barrier()
        tl.store(parents + index, root, mask=index < n)
        tl.debug_barrier()
    return root


@triton.jit
def grow_tree(
    similarity, point_labels, constrained, keys, n, scale, k0, k1, draw_low, draw_high,
    SYMMETRIC: tl.constexpr, LABELS: tl.constexpr, BLOCKS: tl.constexpr, HALF: tl.constexpr, NOISY: tl.constexpr,
    GUMBEL: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Prim from vertex 0: the keys of the maximum spanning tree, in the order in which it grew.

    With ``BLOCKS``, ``keys[n + v]`` is the block of vertex v, and tiers are those of blocks.
    """
    column = tl.arange(0, HALF)
    even, odd = 2 * column, 2 * column + 1
    key_even = tl.where(even < n, 0, IN_TREE).to(tl.int64)
    key_odd = tl.where(odd < n, 0, IN_TREE).to(tl.int64)
    if LABELS:
        label_even = tl.load(point_labels + even, mask=even < n, other=-1)
        label_odd = tl.load(point_labels + odd, mask=odd < n, other=-1)
    if BLOCKS:
        block_even = tl.load(keys + n + even, mask=even < n, other=-1)
        block_odd = tl.load(keys + n + odd, mask=odd < n, other=-1)

    u = 0
    for step in range(n - 1):
        weight_even, weight_odd = weight_row(
            similarity, n, u, column, scale, k0, k1, draw_low, draw_high, SYMMETRIC, NOISY, GUMBEL
        )
        new_even, new_odd = key_of(weight_even, u, even), key_of(weight_odd, u, odd)
        if LABELS:
            label_u = tl.load(point_labels + u)
            if BLOCKS:
                block_u = tl.load(keys + n + u)
                new_even = with_block_tier(new_even, label_u, label_even, block_u, block_even)
                new_odd = with_block_tier(new_odd, label_u, label_odd, block_u, block_odd)
            elif constrained & (label_u >= 0):
                new_even = with_tier(new_even, label_u, label_even)
                new_odd = with_tier(new_odd, label_u, label_odd)
        key_even = updated(key_even, new_even, even == u)
        key_odd = updated(key_odd, new_odd, odd == u)
        best = largest_key(tl.maximum(key_even, key_odd), WARPS)
        tl.store(keys + step, best)
        i, j, new_is_j = ends_of(best)
        u = tl.where(new_is_j, j, i)
    tl.debug_barrier()


@triton.jit(noinline=True)
def _grow_in_blocks(
    similarity, point_labels, keys, n, k, scale, k0, k1, draw_low, draw_high,
    SYMMETRIC: tl.constexpr, HALF: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Replace a tree in which missing edges (-inf) connect the pieces of a labelled group; tier 0 is to be left out.

    The tree shows which blocks the greedy makes: pieces that must become one cluster count as one from the start. The
    edges that exist are those of a second tree, which prefers edges inside a group, then those inside a block.

    Not inlined: hardly a draw comes here, and all others would be slower for the registers that this takes.
    """
    index = tl.arange(0, 2 * HALF)
    key = tl.load(keys + index, mask=index < n - 1, other=-1)
    kept, _, _ = kept_edges(key, rank_of(keys, n - 1, key), n, k)
    joined = kept | ((key >= 0) & ((key >> TIER_SHIFT) == 2))
    _find_roots(keys + n, key, joined, n, 2 * HALF, LARGEST_JUMPS)
    grow_tree(
        similarity, point_labels, True, keys, n, scale, k0, k1, draw_low, draw_high,
        SYMMETRIC, True, True, HALF, NOISY, GUMBEL, WARPS,
    )  # fmt: skip


@triton.jit
def forest_of_tree(
    similarity, point_labels, keys, n, k, scale, k0, k1, draw_low, draw_high,
    SYMMETRIC: tl.constexpr, LABELS: tl.constexpr, HALF: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """The keys of a tree that :func:`grow_tree` has grown, which of them its k-forest keeps, whether there was a NaN.

    Also the ranks of the keys; of a constrained solve these are not the order of its edges, which have tiers.
    """
    index = tl.arange(0, 2 * HALF)
    key = tl.load(keys + index, mask=index < n - 1, other=-1)
    rank = rank_of(keys, n - 1, key)
    kept, failed, is_cut = kept_edges(key, rank, n, k)
    if LABELS and HALF > 1:  # noqa: SIM102 - known when compiled, the next one when run. Two points have no detour.
        if is_cut:
            _grow_in_blocks(
                similarity, point_labels, keys, n, k, scale, k0, k1, draw_low, draw_high,
                SYMMETRIC, HALF, NOISY, GUMBEL, WARPS,
            )  # fmt: skip
            key = tl.load(keys + index, mask=index < n - 1, other=-1)
            kept = tl.where(failed, False, (key >> TIER_SHIFT) > 0)
    return key, rank, kept, failed


@triton.jit(do_not_specialize=["seed", "first_draw"])
def prim(
    similarity, n_clusters, point_labels, seed, first_draw, epsilon, n, n_draws, n_solves, n_solves_out,
    counts, edges_out, labels_out, values_out, keys, smallest, numbers,
    HALF: tl.constexpr, JUMPS: tl.constexpr, COUNTS: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr,
    ANTITHETIC: tl.constexpr, LABELS: tl.constexpr, WITH_LABELS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """One draw of one solve of one problem. With ``LABELS`` the last solve is the constrained one."""
    item = tl.program_id(0)
    draw = item % n_draws
    solve = (item // n_draws) % n_solves
    problem = (item // n_draws // n_solves).to(tl.int64)
    out = (problem * n_solves_out + solve) * n_draws + draw
    keys += item.to(tl.int64) * 2 * n
    k0, k1, draw_low, draw_high, sign = draw_words(seed, first_draw, draw, ANTITHETIC)
    similarity += problem * n * n
    point_labels += problem * n
    grow_tree(
        similarity, point_labels, solve == n_solves - 1, keys, n, sign * epsilon, k0, k1, draw_low, draw_high,
        True, LABELS, False, HALF, NOISY, GUMBEL, WARPS,
    )  # fmt: skip
    key, position, kept, failed = forest_of_tree(
        similarity, point_labels, keys, n, tl.load(n_clusters + problem).to(tl.int32), sign * epsilon,
        k0, k1, draw_low, draw_high, True, LABELS, HALF, NOISY, GUMBEL, WARPS,
    )  # fmt: skip
    index = tl.arange(0, 2 * HALF)
    if LABELS:  # noqa: SIM102 - known when compiled, the next one when run
        if solve == n_solves - 1:  # the order of the edges is by weight, whatever their tier
            plain = tl.where(kept, key & WITHOUT_TIER, -1)
            tl.debug_barrier()
            tl.store(keys + index, plain, mask=index < n - 1)
            tl.debug_barrier()
            position = rank_of(keys, n - 1, plain)
    n_kept = tl.sum(kept.to(tl.int32), axis=0)
    write_edges(edges_out + out * (n - 1) * 2, key, kept, position, n_kept, n)
    tl.store(values_out + out, value_of(key, kept, failed))
    if COUNTS:
        i, j, _ = ends_of(key)
        add_to_counts(counts + problem * n * n, tl.where(kept, i, -1), j, solve, n)
    if WITH_LABELS:
        labels_out += out * n
        root = _find_roots(labels_out, key, kept, n, 2 * HALF, JUMPS)
        number_trees(labels_out, smallest + item.to(tl.int64) * n, numbers + item.to(tl.int64) * n, root, failed, n)


def warps_for(n: int) -> int:
    """Warps of a program that runs Prim on n points, by the number of 2 x 2 blocks in a row of the noise."""
    columns = triton.next_power_of_2((n + 1) // 2)
    for warps, largest in ((1, 32), (2, 64), (4, 128), (8, 1024), (16, 2048)):
        if columns <= largest:
            return warps
    return 32
