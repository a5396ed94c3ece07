"""One pass: the forest inside each block, out of the free tree and the blocks that ``trees.prim`` has found."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from diffclust.solvers.cuda.closures import has_closures
from diffclust.solvers.cuda.forests import rank_of
from diffclust.solvers.cuda.keys import IN_TREE, ends_of, key_of, largest_key, updated, weight_of
from diffclust.solvers.cuda.launches import launch
from diffclust.solvers.cuda.philox import draw_words, weight_pairs
from diffclust.solvers.cuda.trees import warps_for, write_forest

PARTS = 16  # programs that share the blocks of a draw


@triton.jit
def _inside(keys, blocks, n, BLOCK: tl.constexpr):
    """The keys of the free tree, which of its edges are inside a block, and whether these connect each block."""
    index = tl.arange(0, BLOCK)
    key = tl.load(keys + index, mask=index < n - 1, other=-1)
    i, j, _ = ends_of(key)
    exists = key >= 0
    same = tl.load(blocks + i, mask=exists, other=0) == tl.load(blocks + j, mask=exists, other=1)
    inside = exists & same & (weight_of(key) != float("-inf"))
    n_blocks = tl.sum((tl.load(blocks + index, mask=index < n, other=-1) == index).to(tl.int32), axis=0)
    return key, inside, tl.sum(inside.to(tl.int32), axis=0) == n - n_blocks


@triton.jit
def _grow(
    similarity, members, size, slots, n, scale, k0, k1, draw_low, draw_high,
    WIDTH: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Prim on some points: ``slots[v]`` becomes the key of the edge by which v joined."""
    index = tl.arange(0, WIDTH)
    v = tl.load(members + index, mask=index < size, other=0).to(tl.int32)
    key = tl.where(index < size, 0, IN_TREE).to(tl.int64)
    u = tl.load(members).to(tl.int32)
    for _ in range(size - 1):
        weight = weight_pairs(similarity, n, u, v, scale, k0, k1, draw_low, draw_high, NOISY, GUMBEL)
        key = updated(key, key_of(weight, u, v), v == u)
        best = largest_key(key, WARPS)
        i, j, new_is_j = ends_of(best)
        u = tl.where(new_is_j, j, i)
        tl.store(slots + u, best)


@triton.jit(do_not_specialize=["seed", "first_draw"])
def grow_inside(
    similarity, point_labels, n_known, seed, first_draw, epsilon, n, n_draws, keys,
    HALF: tl.constexpr, NARROW: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr, ANTITHETIC: tl.constexpr,
    GROUPS: tl.constexpr, N_PARTS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Where the free tree does not connect some block of a draw: the spanning trees of all its blocks.

    Most blocks go into a vector of ``NARROW`` points, one for each thread. The scratch of the two solves of a draw, 2 n
    numbers each, is: keys of the free tree, lists of members; slots, blocks.
    """
    part, draw, problem = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    if GROUPS:  # noqa: SIM102 - known when compiled, the next one when run
        if has_closures(point_labels + problem * n, n_known + problem * n, n, 2 * HALF) == 0:
            return
    free = keys + (problem * 2 * n_draws + draw) * 2 * n
    members, slots = free + n, keys + (problem * 2 * n_draws + n_draws + draw) * 2 * n
    blocks = slots + n
    _, _, is_whole = _inside(free, blocks, n, 2 * HALF)
    if is_whole:
        return
    similarity += problem * n * n
    k0, k1, draw_low, draw_high, sign = draw_words(seed, first_draw, draw, ANTITHETIC)
    v = tl.arange(0, 2 * HALF)
    block = tl.load(blocks + v, mask=v < n, other=-1).to(tl.int32)
    stands = block == v
    number = tl.cumsum(stands.to(tl.int32), axis=0) - 1
    n_blocks = tl.sum(stands.to(tl.int32), axis=0)
    for b in range(part, n_blocks, N_PARTS):
        root = tl.sum(tl.where(stands & (number == b), v, 0), axis=0)
        own = block == root
        size = tl.sum(own.to(tl.int32), axis=0)
        start = tl.sum(((block < root) & (v < n)).to(tl.int32), axis=0)
        place = tl.cumsum(own.to(tl.int32), axis=0) - 1
        tl.store(members + start + place, v.to(tl.int64), mask=own)
        tl.store(slots + v, tl.full((2 * HALF,), -1, tl.int64), mask=own)
        tl.debug_barrier()
        if size > NARROW:
            _grow(
                similarity, members + start, size, slots, n, sign * epsilon, k0, k1, draw_low, draw_high,
                2 * HALF, NOISY, GUMBEL, WARPS,
            )  # fmt: skip
        else:
            _grow(
                similarity, members + start, size, slots, n, sign * epsilon, k0, k1, draw_low, draw_high,
                NARROW, NOISY, GUMBEL, WARPS,
            )  # fmt: skip


@triton.jit
def write_inside(
    point_labels, n_known, n, n_draws, n_solves_out, counts, edges_out, labels_out, values_out, keys, smallest, numbers,
    HALF: tl.constexpr, JUMPS: tl.constexpr, COUNTS: tl.constexpr, GROUPS: tl.constexpr, WITH_LABELS: tl.constexpr,
):  # fmt: skip
    """The forest of one draw: the edges of the free tree inside blocks, or where there are too few, the slots."""
    item = tl.program_id(0)
    draw, problem = item % n_draws, (item // n_draws).to(tl.int64)
    if GROUPS:  # noqa: SIM102 - known when compiled, the next one when run
        if has_closures(point_labels + problem * n, n_known + problem * n, n, 2 * HALF) == 0:
            return
    free = keys + (problem * 2 * n_draws + draw) * 2 * n
    slots = keys + (problem * 2 * n_draws + n_draws + draw) * 2 * n
    index = tl.arange(0, 2 * HALF)
    key, kept, is_whole = _inside(free, slots + n, n, 2 * HALF)
    weight = weight_of(key)
    failed = tl.max(((key >= 0) & (weight != weight)).to(tl.int32), axis=0) > 0
    if is_whole == 0:
        key = tl.load(slots + index, mask=index < n, other=-1)
        kept = (key >= 0) & (weight_of(key) != float("-inf"))
    kept = tl.where(failed, False, kept)
    key = tl.where(kept, key, -1)
    tl.debug_barrier()
    tl.store(slots + index, key, mask=index < n)
    tl.debug_barrier()
    solve = n_solves_out - 1
    out = (problem * n_solves_out + solve) * n_draws + draw
    write_forest(
        key, kept, rank_of(slots, n, key), failed, out, problem, solve, n, item, counts, edges_out, labels_out,
        values_out, smallest, numbers, HALF, JUMPS, COUNTS, WITH_LABELS,
    )  # fmt: skip


def finish_one_pass(
    similarity: torch.Tensor, points: torch.Tensor, n_known: torch.Tensor, seed: Any, first_draw: Any, epsilon: float,
    n_draws: int, n_solves: int, counts: torch.Tensor, forests: Any, scratch: tuple[torch.Tensor, ...],
    numbers: dict[str, Any], draws: dict[str, Any],
) -> None:  # fmt: skip
    """What is left to do after :func:`prim`; ``numbers`` and ``draws`` are its constants."""
    n_problems, n, _ = similarity.shape
    narrow = min(max(32, draws["HALF"]), 256)
    warps = narrow // 32
    kinds = {name: draws[name] for name in ("HALF", "NOISY", "GUMBEL", "ANTITHETIC")}
    grow_inside[(PARTS, n_draws, n_problems)](
        similarity, points, n_known, seed, first_draw, float(epsilon), n, n_draws, scratch[0], NARROW=narrow,
        GROUPS=numbers["GROUPS"], N_PARTS=PARTS, WARPS=warps, **kinds, **launch(warps),
    )  # fmt: skip
    write_inside[(n_problems * n_draws,)](
        points, n_known, n, n_draws, n_solves, counts, *forests, *scratch, HALF=draws["HALF"],
        WITH_LABELS=draws["WITH_LABELS"], **numbers, **launch(warps_for(n)),
    )  # fmt: skip
