"""Prim, and the forests without constraints and with labels."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.cuda.closures import has_closures
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
    in_a_closure,
    key_of,
    largest_key,
    updated,
    with_block_tier,
    with_tier,
)
from diffclust.solvers.cuda.philox import draw_words, weight_row

LARGEST_JUMPS = tl.constexpr(14)  # an index has 14 bits: 2 ** 14 points are reached


@triton.jit
def find_roots(parents, key, kept, n, BLOCK: tl.constexpr, JUMPS: tl.constexpr):
    """The root of each vertex where the new vertex of each kept edge hangs on the other one: pointer jumping."""
    index = tl.arange(0, BLOCK)
    i, j, new_is_j = ends_of(key)
    new, old = tl.where(new_is_j, j, i), tl.where(new_is_j, i, j)
    tl.store(parents + index, index, mask=index < n)
    tl.debug_barrier()
    tl.store(parents + new, old, mask=kept)
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
    SYMMETRIC: tl.constexpr, LABELS: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, HALF: tl.constexpr,
    NOISY: tl.constexpr, GUMBEL: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Prim from vertex 0: the keys of the maximum spanning tree, in the order in which it grew.

    With ``GROUPS``, labels are those of ``closures.py``. With ``BLOCKS``, ``keys[n + v]`` is the block of vertex v, and
    tiers are those of blocks.
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
                new_even = with_block_tier(new_even, label_u, label_even, block_u, block_even, GROUPS)
                new_odd = with_block_tier(new_odd, label_u, label_odd, block_u, block_odd, GROUPS)
            elif constrained & in_a_closure(label_u, GROUPS):
                new_even = with_tier(new_even, label_u, label_even, GROUPS)
                new_odd = with_tier(new_odd, label_u, label_odd, GROUPS)
        key_even = updated(key_even, new_even, even == u)
        key_odd = updated(key_odd, new_odd, odd == u)
        best = largest_key(tl.maximum(key_even, key_odd), WARPS)
        tl.store(keys + step, best)
        i, j, new_is_j = ends_of(best)
        u = tl.where(new_is_j, j, i)
    tl.debug_barrier()


@triton.jit
def find_blocks(keys, n, k, HALF: tl.constexpr, JUMPS: tl.constexpr):
    """Write to ``keys[n + v]`` a vertex that stands for v's block, out of the tree of a constrained solve."""
    index = tl.arange(0, 2 * HALF)
    key = tl.load(keys + index, mask=index < n - 1, other=-1)
    kept, _, _ = kept_edges(key, rank_of(keys, n - 1, key), n, k)
    joined = kept | ((key >= 0) & ((key >> TIER_SHIFT) == 2))
    find_roots(keys + n, key, joined, n, 2 * HALF, JUMPS)


@triton.jit(noinline=True)
def _grow_in_blocks(
    similarity, point_labels, keys, n, k, scale, k0, k1, draw_low, draw_high,
    SYMMETRIC: tl.constexpr, GROUPS: tl.constexpr, HALF: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """Replace a tree in which missing edges (-inf) connect the pieces of a labelled group; tier 0 is to be left out.

    The tree shows which blocks the greedy makes: pieces that must become one cluster count as one from the start. The
    edges that exist are those of a second tree, which prefers edges inside a group, then those inside a block.

    Not inlined: hardly a draw comes here, and all others would be slower for the registers that this takes.
    """
    find_blocks(keys, n, k, HALF, LARGEST_JUMPS)
    grow_tree(
        similarity, point_labels, True, keys, n, scale, k0, k1, draw_low, draw_high,
        SYMMETRIC, True, GROUPS, True, HALF, NOISY, GUMBEL, WARPS,
    )  # fmt: skip


@triton.jit
def forest_of_tree(
    similarity, point_labels, keys, n, k, scale, k0, k1, draw_low, draw_high,
    SYMMETRIC: tl.constexpr, LABELS: tl.constexpr, GROUPS: tl.constexpr, HALF: tl.constexpr, NOISY: tl.constexpr,
    GUMBEL: tl.constexpr, WARPS: tl.constexpr,
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
                SYMMETRIC, GROUPS, HALF, NOISY, GUMBEL, WARPS,
            )  # fmt: skip
            key = tl.load(keys + index, mask=index < n - 1, other=-1)
            kept = tl.where(failed, False, (key >> TIER_SHIFT) > 0)
    return key, rank, kept, failed


@triton.jit(do_not_specialize=["seed", "first_draw"])
def prim(
    similarity, n_clusters, point_labels, n_known, seed, first_draw, epsilon, n, n_draws, n_solves, n_solves_out,
    counts, edges_out, labels_out, values_out, keys, smallest, numbers,
    HALF: tl.constexpr, JUMPS: tl.constexpr, COUNTS: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr,
    ANTITHETIC: tl.constexpr, LABELS: tl.constexpr, GROUPS: tl.constexpr, ONE_PASS: tl.constexpr,
    WITH_LABELS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """One draw of one solve of one problem. With ``LABELS`` the last solve is the constrained one.

    With ``ONE_PASS`` that one finds the blocks only, for ``inside.py``, and must-links come first while it does: the
    blocks are the same. With ``GROUPS`` it leaves out problems that have no closures. ``n_solves_out`` may be smaller
    than ``n_solves``: then the free forests are not asked for.
    """
    item = tl.program_id(0)
    draw = item % n_draws
    solve = (item // n_draws) % n_solves
    problem = (item // n_draws // n_solves).to(tl.int64)
    similarity += problem * n * n
    point_labels += problem * n
    constrained = solve == n_solves - 1
    if GROUPS:  # noqa: SIM102 - known when compiled, the next one when run
        if constrained & (has_closures(point_labels, n_known + problem * n, n, 2 * HALF) == 0):
            return
    keys += item.to(tl.int64) * 2 * n
    k = tl.load(n_clusters + problem).to(tl.int32)
    k0, k1, draw_low, draw_high, sign = draw_words(seed, first_draw, draw, ANTITHETIC)
    grow_tree(
        similarity, point_labels, constrained, keys, n, sign * epsilon, k0, k1, draw_low, draw_high,
        True, LABELS, GROUPS, False, HALF, NOISY, GUMBEL, WARPS,
    )  # fmt: skip
    if ONE_PASS:
        if constrained:
            find_blocks(keys, n, k, HALF, JUMPS)
            return
        if n_solves_out < n_solves:
            return
    key, position, kept, failed = forest_of_tree(
        similarity, point_labels, keys, n, k, sign * epsilon, k0, k1, draw_low, draw_high,
        True, LABELS and not ONE_PASS, GROUPS, HALF, NOISY, GUMBEL, WARPS,
    )  # fmt: skip
    index = tl.arange(0, 2 * HALF)
    if LABELS and not ONE_PASS:  # noqa: SIM102 - known when compiled, the next one when run
        if constrained:  # the order of the edges is by weight, whatever their tier
            plain = tl.where(kept, key & WITHOUT_TIER, -1)
            tl.debug_barrier()
            tl.store(keys + index, plain, mask=index < n - 1)
            tl.debug_barrier()
            position = rank_of(keys, n - 1, plain)
    out = (problem * n_solves_out + solve) * n_draws + draw
    write_forest(
        key, kept, position, failed, out, problem, solve, n, item, counts, edges_out, labels_out, values_out, smallest,
        numbers, HALF, JUMPS, COUNTS, WITH_LABELS,
    )  # fmt: skip


@triton.jit
def write_forest(
    key, kept, position, failed, out, problem, solve, n, item, counts, edges_out, labels_out, values_out, smallest,
    numbers, HALF: tl.constexpr, JUMPS: tl.constexpr, COUNTS: tl.constexpr, WITH_LABELS: tl.constexpr,
):  # fmt: skip
    """Write what a draw returns; ``item`` says which scratch is its own."""
    n_kept = tl.sum(kept.to(tl.int32), axis=0)
    write_edges(edges_out + out * (n - 1) * 2, key, kept, position, n_kept, n)
    tl.store(values_out + out, value_of(key, kept, failed))
    if COUNTS:
        i, j, _ = ends_of(key)
        add_to_counts(counts + problem * n * n, tl.where(kept, i, -1), j, solve, n)
    if WITH_LABELS:
        labels_out += out * n
        root = find_roots(labels_out, key, kept, n, 2 * HALF, JUMPS)
        number_trees(labels_out, smallest + item.to(tl.int64) * n, numbers + item.to(tl.int64) * n, root, failed, n)


def warps_for(n: int) -> int:
    """Warps of a program that runs Prim on n points, by the number of 2 x 2 blocks in a row of the noise."""
    columns = triton.next_power_of_2((n + 1) // 2)
    for warps, largest in ((1, 32), (2, 64), (4, 128), (8, 1024), (16, 2048)):
        if columns <= largest:
            return warps
    return 32
