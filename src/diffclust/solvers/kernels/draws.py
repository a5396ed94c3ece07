"""A draw: its tree, its free forest, and its blocks with what of their forests the tree already has."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.kernels.ahead import kernel
from diffclust.solvers.kernels.blocks import join_closures
from diffclust.solvers.kernels.closures import POINT, have_form, joins_left
from diffclust.solvers.kernels.forests import free_forest, rank_of, write_forest
from diffclust.solvers.kernels.keys import TIER_SHIFT, WITHOUT_TIER, ends_of, weight_of
from diffclust.solvers.kernels.trees import fetch, grow_tree, grow_tree_by_rounds

# What a draw leaves behind for the next kernel: rows of n int32 numbers, and single numbers.
BLOCKS, GROUPS, SIZES, UNITS, STARTS, CURSORS, MEMBERS, N_ROWS = (tl.constexpr(i) for i in range(8))
N_UNITS, FAILED, IS_CUT, N_NUMBERS = (tl.constexpr(i) for i in range(4))


@triton.jit
def sorted_tree(
    words, closures, keys, roots, n, pitch, ROUNDS: tl.constexpr, BLOCK: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """The free tree: its keys, and their ranks; ``keys`` are sorted, ``keys[n:]`` and ``roots`` are scratch.

    Without ``ROUNDS``, see :func:`by_rounds` in ``launches.py``, each vertex but one is the new vertex of one key.
    """
    index = tl.arange(0, BLOCK)
    if ROUNDS:  # what was fastest on an H200
        at_once: tl.constexpr = 32 if BLOCK <= 128 else 16384 // BLOCK if BLOCK <= 1024 else 4
        left: tl.constexpr = 1 if BLOCK <= 512 else 16 if BLOCK <= 1024 else BLOCK // 8
        grow_tree_by_rounds(words, keys, keys + n, roots, n, pitch, BLOCK, at_once, left, WARPS)
    else:
        if BLOCK <= 256:
            fetch(words, keys, n, pitch, BLOCK)
        grow_tree(words, closures, closures, keys, index < n, n, pitch, False, False, BLOCK, WARPS)
    key = tl.load(keys + index, mask=index < n - 1, other=-1)
    rank = rank_of(keys, n - 1, key)
    tl.debug_barrier()
    tl.store(keys + rank, key, mask=index < n - 1)
    tl.debug_barrier()
    return key, rank


@triton.jit
def inside_blocks(key, blocks):
    """Which edges of the tree are inside a block."""
    i, j, _ = ends_of(key)
    exists = (key >= 0) & (weight_of(key) != float("-inf"))
    return exists & (tl.load(blocks + i, mask=exists, other=0) == tl.load(blocks + j, mask=exists, other=1))


@triton.jit
def _list_units(rows, slots, group, key, inside, n, FIRST: tl.constexpr, BLOCK: tl.constexpr):
    """List the groups that the edges ``inside`` leave in pieces, and their members; return how many there are.

    ``STARTS`` says where the members of a group are listed, in any order, and ``SIZES`` how many they are. In one pass
    the keys of edges inside all other groups go into slots of points that are not listed.
    """
    v = tl.arange(0, BLOCK)
    valid = v < n
    group = group & POINT
    sizes, missing, cursors = rows + SIZES * n, rows + STARTS * n, rows + CURSORS * n
    tl.store(rows + GROUPS * n + v, group, mask=valid)
    tl.store(sizes + v, 0, mask=valid)
    tl.store(missing + v, -1, mask=valid)
    tl.store(cursors + v, 0, mask=valid)
    tl.debug_barrier()
    tl.atomic_add(sizes + group, 1, mask=valid, sem="relaxed", scope="cta")
    tl.atomic_add(missing + group, 1, mask=valid, sem="relaxed", scope="cta")
    i, _, _ = ends_of(key)
    own = tl.load(rows + GROUPS * n + i, mask=inside, other=0)
    tl.atomic_add(missing + own, -1, mask=inside, sem="relaxed", scope="cta")
    tl.debug_barrier()
    done = inside & (tl.load(missing + own, mask=inside, other=1) == 0)
    size = tl.load(sizes + v, mask=valid, other=0)
    is_unit = valid & (size > 0) & (tl.load(missing + v, mask=valid, other=0) > 0)
    listed = valid & (tl.load(missing + group, mask=valid, other=0) > 0)
    size = tl.where(is_unit, size, 0)
    tl.debug_barrier()
    tl.store(rows + STARTS * n + v, tl.cumsum(size, axis=0) - size, mask=valid)
    tl.store(rows + UNITS * n + tl.cumsum(is_unit.to(tl.int32), axis=0) - 1, v, mask=is_unit)
    tl.debug_barrier()
    place = tl.load(rows + STARTS * n + group, mask=listed, other=0)
    place += tl.atomic_add(cursors + group, 1, mask=listed, sem="relaxed", scope="cta")
    tl.store(rows + MEMBERS * n + place, v, mask=listed)
    if not FIRST:
        others, number = valid & (listed == 0), tl.cumsum(done.to(tl.int32), axis=0) - 1
        tl.debug_barrier()
        tl.store(cursors + tl.cumsum(others.to(tl.int32), axis=0) - 1, v, mask=others)
        tl.debug_barrier()
        tl.store(slots + tl.load(cursors + number, mask=done, other=0), key, mask=done)
    return tl.sum(is_unit.to(tl.int32), axis=0)


@kernel(do_not_specialize=["first", "n_chunk"])
def solve_draws(
    words, n_clusters, closures, n_related, counts, edges_out, labels_out, values_out, keys, rows, numbers,
    n, pitch, n_draws, n_solves, first, n_chunk,
    BLOCK: tl.constexpr, JUMPS: tl.constexpr, CONSTRAINED: tl.constexpr, RELATION: tl.constexpr, FREE: tl.constexpr,
    FIRST: tl.constexpr, CLAMP: tl.constexpr, COUNTS: tl.constexpr, EDGES: tl.constexpr, WITH_LABELS: tl.constexpr,
    ROUNDS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """The free forest of a draw and, with ``CONSTRAINED``, its blocks, and a list of *units* for ``grow_units``.

    A unit is what still needs a tree: in one pass a block that edges of the free tree leave in several pieces; with
    ``FIRST``, must-links first, a closure. The edges that are known by then are in ``keys[n:]``, one at most for each
    point: in one pass at some point of no unit, else at the point of the closure that the edge joined to another one.
    """
    item = tl.program_id(0)
    place, problem = item % n_chunk, (item // n_chunk).to(tl.int64)
    words += item.to(tl.int64) * n * pitch
    keys += item.to(tl.int64) * 2 * n
    rows += item.to(tl.int64) * N_ROWS * n
    numbers += item * N_NUMBERS
    closures += problem * n
    index = tl.arange(0, BLOCK)
    k = tl.load(n_clusters + problem).to(tl.int32)
    left = 0
    is_described = True
    if CONSTRAINED:
        closure = tl.load(closures + index, mask=index < n, other=0)
        if RELATION:
            is_described = have_form(closures, n_related + problem * n, n, BLOCK)
        left, k = joins_left(closure, k, is_described, n, CLAMP)
    key, rank = sorted_tree(words, closures, keys, rows, n, pitch, ROUNDS, BLOCK, WARPS)
    kept, failed = free_forest(key, rank, n, k)
    if FREE:
        write_forest(
            key, kept, rank, failed, problem * n_solves * n_draws + first + place, problem, 0, n, counts, edges_out,
            labels_out, values_out, rows, rows + n, BLOCK, JUMPS, COUNTS, EDGES, WITH_LABELS,
        )  # fmt: skip
    if CONSTRAINED:
        n_units = 0
        if is_described & (failed == 0):
            slots = keys + n
            tl.debug_barrier()
            tl.store(slots + index, tl.full((BLOCK,), -1, tl.int64), mask=index < n)
            tl.debug_barrier()
            block = join_closures(keys, rows + BLOCKS * n, rows + GROUPS * n, slots, closure, n, left, BLOCK)
            if not WITH_LABELS:
                inside = index < 0
                group = closure
                if not FIRST:
                    group = block
                    inside = inside_blocks(key, rows + BLOCKS * n)
                    tl.store(slots + index, tl.full((BLOCK,), -1, tl.int64), mask=index < n)
                tl.debug_barrier()
                n_units = _list_units(rows, slots, group, key, inside, n, FIRST, BLOCK)
        tl.store(numbers + N_UNITS, n_units)
        tl.store(numbers + FAILED, failed.to(tl.int32))
        tl.store(numbers + IS_CUT, 0)


@triton.jit
def forest_in_blocks(
    words, closures, blocks, keys, n, pitch, FIRST: tl.constexpr, BLOCK: tl.constexpr, WARPS: tl.constexpr
):  # fmt: skip
    """The keys of the maximum spanning forest of the pairs inside blocks, -1 for the others; a Prim over all points."""
    index = tl.arange(0, BLOCK)
    grow_tree(words, closures, blocks, keys, index < n, n, pitch, True, FIRST, BLOCK, WARPS)
    key = tl.load(keys + index, mask=index < n - 1, other=-1)
    return tl.where((key >> TIER_SHIFT) > 0, key & WITHOUT_TIER, -1)


@triton.jit(noinline=True)
def _grow_again(
    words, closures, blocks, keys, n, pitch, FIRST: tl.constexpr, BLOCK: tl.constexpr, WARPS: tl.constexpr
):  # fmt: skip
    """:func:`forest_in_blocks` into ``keys[n:]``. Hardly a draw needs it, so it must not take registers of others."""
    key = forest_in_blocks(words, closures, blocks, keys, n, pitch, FIRST, BLOCK, WARPS)
    index = tl.arange(0, BLOCK)
    tl.debug_barrier()
    tl.store(keys + n + index, key, mask=index < n)
    tl.debug_barrier()


@kernel(do_not_specialize=["first", "n_chunk"])
def write_constrained(
    words, closures, n_related, counts, edges_out, labels_out, values_out, keys, rows, numbers,
    n, pitch, n_draws, n_solves, first, n_chunk,
    BLOCK: tl.constexpr, JUMPS: tl.constexpr, RELATION: tl.constexpr, FIRST: tl.constexpr, COUNTS: tl.constexpr,
    EDGES: tl.constexpr, WITH_LABELS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """The constrained forest of a draw, from ``keys[n:]``, or if labels are asked for or edges missing, from words."""
    item = tl.program_id(0)
    place, problem = item % n_chunk, (item // n_chunk).to(tl.int64)
    closures += problem * n
    if RELATION:  # noqa: SIM102 - known when compiled, the next one when run
        if have_form(closures, n_related + problem * n, n, BLOCK) == 0:
            return
    words += item.to(tl.int64) * n * pitch
    keys += item.to(tl.int64) * 2 * n
    rows += item.to(tl.int64) * N_ROWS * n
    numbers += item * N_NUMBERS
    index = tl.arange(0, BLOCK)
    failed = tl.load(numbers + FAILED) != 0
    key = tl.full((BLOCK,), -1, tl.int64)
    if failed == 0:
        if WITH_LABELS:
            key = forest_in_blocks(words, closures, rows + BLOCKS * n, keys, n, pitch, FIRST, BLOCK, WARPS)
        else:
            if tl.load(numbers + IS_CUT) != 0:
                _grow_again(words, closures, rows + BLOCKS * n, keys, n, pitch, FIRST, BLOCK, WARPS)
            key = tl.load(keys + n + index, mask=index < n, other=-1)
            key = tl.where(weight_of(key) == float("-inf"), -1, key)
    position = index
    if EDGES:
        tl.debug_barrier()
        tl.store(keys + index, key, mask=index < n)
        tl.debug_barrier()
        position = rank_of(keys, n, key)
    write_forest(
        key, key >= 0, position, failed, (problem * n_solves + n_solves - 1) * n_draws + first + place, problem,
        n_solves - 1, n, counts, edges_out, labels_out, values_out, rows, rows + n,
        BLOCK, JUMPS, COUNTS, EDGES, WITH_LABELS,
    )  # fmt: skip
