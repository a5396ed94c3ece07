"""Small problems: everything in one launch, because there the time goes into launches."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.kernels.ahead import kernel
from diffclust.solvers.kernels.blocks import join_closures
from diffclust.solvers.kernels.closures import LABELLED, POINT, have_form, joins_left
from diffclust.solvers.kernels.draws import forest_in_blocks, inside_blocks, sorted_tree
from diffclust.solvers.kernels.forests import add_to_counts, free_forest, mean_of_draws, value_of
from diffclust.solvers.kernels.keys import TIER_SHIFT, WITHOUT_TIER, ends_of
from diffclust.solvers.kernels.launches import INTERPRETED
from diffclust.solvers.kernels.philox import draw_words
from diffclust.solvers.kernels.trees import grow_tree
from diffclust.solvers.kernels.weights import write_words

SMALL = 128  # points up to which everything goes into one launch
PROGRAMS = 1 << 10  # at most; each takes draws in turn, and its words stay in the cache
N_OWN = tl.constexpr(3)  # rows of n int32 numbers that a program writes for itself


@triton.jit
def _closures(labels, n, BLOCK: tl.constexpr):
    """The closure of each point, see ``closures.py``."""
    v = tl.arange(0, BLOCK)
    own = tl.load(labels + v, mask=v < n, other=-1)
    first = v
    for start in range(0, n, 8):
        for offset in tl.static_range(8):  # eight loads in flight; the last point again, at no harm
            u = tl.minimum(start + offset, n - 1)
            first = tl.minimum(first, tl.where(own == tl.load(labels + u), u, first))
    return tl.where((v < n) & (own >= 0), first | LABELLED, v)


@triton.jit
def _trees_of_closures(
    words, closures, closure, blocks, keys, rows, n, pitch, BLOCK: tl.constexpr, WARPS: tl.constexpr
):  # fmt: skip
    """Must-links first: ``keys`` become those of the trees of closures, then ``keys[n:]`` those of joins, -1 for none.

    Only points that are not alone in their closure take part in this Prim. Where missing edges cut a closure, it takes
    one over all points.
    """
    v = tl.arange(0, BLOCK)
    valid = v < n
    is_other = valid & ((closure & POINT) != v)
    tl.store(rows + v, is_other.to(tl.int32), mask=valid)
    tl.debug_barrier()
    tl.store(rows + (closure & POINT), 1, mask=is_other)
    tl.store(keys + v, tl.full((BLOCK,), 0, tl.int64), mask=valid)
    tl.debug_barrier()
    together = tl.load(rows + v, mask=valid, other=0) != 0
    grow_tree(words, closures, closures, keys, together, n, pitch, True, True, BLOCK, WARPS)
    key = tl.load(keys + v, mask=valid, other=0)
    key = tl.where((key >> TIER_SHIFT) > 0, key & WITHOUT_TIER, -1)
    if tl.sum((key >= 0).to(tl.int32), axis=0) < tl.sum(is_other.to(tl.int32), axis=0):
        tl.debug_barrier()  # of up to 32 points every warp reads all keys, and sums without waiting for the others
        key = forest_in_blocks(words, closures, blocks, keys, n, pitch, True, BLOCK, WARPS)
        tl.store(keys + n + v, tl.full((BLOCK,), -1, tl.int64), mask=valid)
    tl.debug_barrier()
    tl.store(keys + v, key, mask=valid)
    tl.debug_barrier()


@triton.jit
def _constrained_forest(
    words, closures, keys, rows, key, n, pitch, left, FIRST: tl.constexpr, BLOCK: tl.constexpr, WARPS: tl.constexpr
):  # fmt: skip
    """Write the keys of the constrained forest to ``keys``, 2 n of them, -1 for none; ``key`` are the free tree's."""
    v = tl.arange(0, BLOCK)
    blocks, joins = rows + n, keys + n
    closure = tl.load(closures + v, mask=v < n, other=0)
    tl.store(joins + v, tl.full((BLOCK,), -1, tl.int64), mask=v < n)
    tl.debug_barrier()
    block = join_closures(keys, blocks, rows + 2 * n, joins, closure, n, left, BLOCK)
    if FIRST:
        _trees_of_closures(words, closures, closure, blocks, keys, rows + 2 * n, n, pitch, BLOCK, WARPS)
    else:
        inside = inside_blocks(key, blocks)
        n_blocks = tl.sum(((v < n) & ((block & POINT) == v)).to(tl.int32), axis=0)
        key = tl.where(inside, key, -1)
        if tl.sum(inside.to(tl.int32), axis=0) < n - n_blocks:
            key = forest_in_blocks(words, closures, blocks, keys, n, pitch, False, BLOCK, WARPS)
        tl.debug_barrier()
        tl.store(keys + v, key, mask=v < n)
        tl.store(joins + v, tl.full((BLOCK,), -1, tl.int64), mask=v < n)
        tl.debug_barrier()


@kernel(do_not_specialize=["seed", "first_draw", "n_clusters", "n_items"])
def solve_and_mean(
    similarity, known, n_related, means, adjacency, n_clusters, seed, first_draw, epsilon,
    ended, counts, values, words, keys, rows, n, pitch, n_draws, n_items,
    BLOCK: tl.constexpr, COUNTS: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr, ANTITHETIC: tl.constexpr,
    CONSTRAINED: tl.constexpr, RELATION: tl.constexpr, FREE: tl.constexpr, FIRST: tl.constexpr, CLAMP: tl.constexpr,
    SIZE: tl.constexpr, ROUNDS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """All draws on input that was not made ready, and the means over draws by the program that ends last.

    ``known`` are labels or, with ``RELATION``, closures. The constrained forests of problems that closures do not
    describe are in ``values`` and ``counts`` already. ``ended`` (problems,), how many of a problem's draws have ended,
    and ``counts`` (problems, n, n) are 0 before, but for these, and after.
    """
    program = tl.program_id(0).to(tl.int64)
    words += program * n * pitch
    keys += program * 2 * n
    rows += program * N_OWN * n
    n_solves = 2 if CONSTRAINED and FREE else 1
    index = tl.arange(0, BLOCK)
    for item in range(tl.program_id(0), n_items, tl.num_programs(0)):
        draw, problem = item % n_draws, tl.cast(item // n_draws, tl.int64)
        k0, k1, draw_low, draw_high, sign = draw_words(seed, first_draw, draw, ANTITHETIC)
        write_words(
            similarity + problem * n * n, words, n, pitch, sign * epsilon, k0, k1, draw_low, draw_high,
            False, NOISY, GUMBEL, SIZE,
        )  # fmt: skip
        if n_clusters.dtype.is_ptr():
            k = tl.load(n_clusters + problem).to(tl.int32)
        else:
            k = n_clusters.to(tl.int32)
        left = 0
        is_described = True
        if CONSTRAINED:
            if RELATION:
                closure = tl.load(known + problem * n + index, mask=index < n, other=0)
                is_described = have_form(known + problem * n, n_related + problem * n, n, BLOCK)
            else:
                closure = _closures(known + problem * n, n, BLOCK)
            left, k = joins_left(closure, k, is_described, n, CLAMP)
            tl.store(rows + index, closure, mask=index < n)
        key, rank = sorted_tree(words, rows, keys, rows + n, n, pitch, ROUNDS, BLOCK, WARPS)
        kept, failed = free_forest(key, rank, n, k)
        own_counts, own_values = counts + problem * n * n, values + problem * n_solves * n_draws + draw
        if FREE:
            tl.store(own_values, value_of(key, kept, failed))
            if COUNTS:
                _count(own_counts, key, kept, 0, n)
        if CONSTRAINED and is_described:
            if failed == 0:
                _constrained_forest(words, rows, keys, rows, key, n, pitch, left, FIRST, BLOCK, WARPS)
            both = tl.arange(0, 2 * BLOCK)
            joined = tl.load(keys + both, mask=(both < 2 * n) & (failed == 0), other=-1)
            tl.store(own_values + (n_solves - 1) * n_draws, value_of(joined, joined >= 0, failed))
            if COUNTS:
                _count(own_counts, joined, joined >= 0, n_solves - 1, n)
        tl.debug_barrier()
        if tl.atomic_add(ended + problem, 1, sem="acq_rel") == n_draws - 1:
            tl.store(ended + problem, 0)
            tl.store(means + problem, mean_of_draws(own_values - draw, n_draws, n_solves == 2, 128))
            if COUNTS:
                for start in range(0, n * n, 2048):
                    pair = start + tl.arange(0, 2048)
                    count = tl.load(own_counts + pair, mask=pair < n * n, other=0, cache_modifier=".cg")
                    share = _share(count.to(tl.float32), n_draws)
                    tl.store(adjacency + problem * n * n + pair, share, mask=pair < n * n)
                    tl.store(own_counts + pair, 0, mask=pair < n * n)


@triton.jit
def _count(counts, key, kept, solve, n):
    i, j, _ = ends_of(key)
    add_to_counts(counts, tl.where(kept, i, -1), j, solve, n)


@triton.jit
def _share(count, n_draws):
    """``count / n_draws``, correctly rounded: a quotient, and its remainder's share of it."""
    draws = tl.full(count.shape, 1.0, tl.float32) * n_draws
    if INTERPRETED:
        quotient = count / draws
    else:
        inverse = tl.div_rn(tl.full((), 1.0, tl.float32), tl.full((), 1.0, tl.float32) * n_draws)
        quotient = count * inverse
        quotient = tl.fma(tl.fma(-quotient, draws, count), inverse, quotient)
    return quotient
