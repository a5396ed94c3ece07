"""General constraints: the true greedy, as agglomeration."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.kernels.ahead import kernel
from diffclust.solvers.kernels.closures import have_form
from diffclust.solvers.kernels.forests import add_to_counts, number_trees, rank_of, value_of, write_edges
from diffclust.solvers.kernels.keys import MISSING, ends_of, key_of, weight_of
from diffclust.solvers.kernels.philox import draw_words
from diffclust.solvers.kernels.weights import write_words


@triton.jit
def _may_join(tree_block, block, apart, open_blocks, n, valid):
    """For every tree, whether a tree of block ``tree_block`` may join it."""
    forbidden = tl.load(apart + tree_block.to(tl.int64) * n + block, mask=valid, other=1) != 0
    return (block == tree_block) | (open_blocks & (forbidden == 0))


@triton.jit
def _nearest(matrix, apart, r, block, alive, open_blocks, n):
    """The best edge from tree r to a tree it may join, -1 where there is none, and that tree."""
    t = tl.arange(0, block.shape[0])
    own_block = tl.sum(tl.where(t == r, block, 0), axis=0)
    key = tl.load(matrix + r.to(tl.int64) * n + t, mask=alive, other=-1)
    key = tl.where(alive & (t != r) & _may_join(own_block, block, apart, open_blocks, n, alive), key, -1)
    best = tl.max(key, axis=0)
    return best, tl.min(tl.where(key == best, t, n), axis=0)


@triton.jit
def _refresh(pending, nearest_key, nearest, matrix, apart, block, alive, open_blocks, n):
    """Look again for the nearest tree of every pending tree."""
    t = tl.arange(0, block.shape[0])
    r = tl.min(tl.where(pending, t, n), axis=0)
    while r < n:
        key, tree = _nearest(matrix, apart, r, block, alive, open_blocks, n)
        nearest_key = tl.where(t == r, key, nearest_key)
        nearest = tl.where(t == r, tree, nearest)
        pending = pending & (t != r)
        r = tl.min(tl.where(pending, t, n), axis=0)
    return nearest_key, nearest


@triton.jit(noinline=True)
def _fill_matrix(matrix, words, n, pitch, BLOCK: tl.constexpr):
    """Write the keys of all edges, -1 where there is none; return whether there was a NaN."""
    v = tl.arange(0, BLOCK)
    n_wrong = tl.zeros((BLOCK,), tl.int32)
    for index in range(n):
        u = tl.cast(index, tl.int32)
        word = tl.load(words + u * pitch + v, mask=(v < n) & (v != u), other=MISSING)
        # The bit for the new vertex has no use here, and must not tell (u, v) from (v, u).
        key = tl.where(word == MISSING, -1, key_of(word, u, v) | 1)
        tl.store(matrix + u.to(tl.int64) * n + v, key, mask=v < n)
        weight = weight_of(key)
        n_wrong += ((key >= 0) & (weight != weight)).to(tl.int32)
    return tl.sum(n_wrong, axis=0) > 0


@triton.jit
def _fill_blocks(apart, relation, n, BLOCK: tl.constexpr):
    """Write which pairs must stay apart; return for each point the smallest one that it must link to, or itself."""
    t = tl.arange(0, BLOCK)
    valid = t < n
    block = t
    for i in range(n):
        j = tl.cast(n - 1 - i, tl.int32)  # downwards, so that the smallest partner is written last
        row = tl.load(relation + tl.cast(j, tl.int64) * n + t, mask=valid, other=-1)
        same, different = row == 1, row == 0
        tl.store(apart + tl.cast(j, tl.int64) * n + t, different.to(tl.int8), mask=valid)
        block = tl.where(same & (j < t), j, block)
    return block


@triton.jit
def _agglomerate(
    words, k, relation, n, pitch, out, solve, counts, edges_out, labels_out, values_out, keys, rows, matrix, apart,
    BLOCK: tl.constexpr, COUNTS: tl.constexpr, EDGES: tl.constexpr, WITH_LABELS: tl.constexpr,
    MUST_LINK_FIRST: tl.constexpr,
):  # fmt: skip
    """The constrained greedy of ``reference.kruskal`` as agglomeration, for one draw.

    Trees are merged best pair first, and the row of a tree in ``matrix`` holds its best edges to the others. Each tree
    remembers its nearest tree that it may join. A block is what a tree must at least become: joins inside a block are
    always allowed, joins between blocks while ``open_blocks``. With must-links first, blocks open when no join inside a
    block is left; they close when k blocks are left.
    """
    t = tl.arange(0, BLOCK)
    failed = _fill_matrix(matrix, words, n, pitch, BLOCK)
    block = _fill_blocks(apart, relation, n, BLOCK)
    tl.debug_barrier()

    tree = t
    alive = t < n
    n_blocks = tl.sum((alive & (block == t)).to(tl.int32), axis=0)
    may_open = n_blocks > k
    open_blocks = may_open & (MUST_LINK_FIRST == 0)
    nearest = tl.zeros((BLOCK,), tl.int32)
    nearest_key = tl.full((BLOCK,), -1, tl.int64)
    pending = alive
    n_edges = 0
    running = failed == 0
    while running:
        nearest_key, nearest = _refresh(pending, nearest_key, nearest, matrix, apart, block, alive, open_blocks, n)
        best = tl.max(nearest_key, axis=0)
        pending = t < 0
        if best >= 0:
            tl.store(keys + n_edges, best)
            n_edges += 1
            r = tl.min(tl.where(nearest_key == best, t, n), axis=0)
            s = tl.sum(tl.where(t == r, nearest, 0), axis=0)
            kept = tl.sum(tl.where(t == r, block, 0), axis=0)
            gone = tl.sum(tl.where(t == s, block, 0), axis=0)
            alive = alive & (t != s)
            tree = tl.where(tree == s, r, tree)
            nearest_key = tl.where(t == s, -1, nearest_key)

            was_open = open_blocks
            if kept != gone:
                either = tl.load(apart + kept.to(tl.int64) * n + t, mask=t < n, other=0)
                either = either | tl.load(apart + gone.to(tl.int64) * n + t, mask=t < n, other=0)
                tl.debug_barrier()
                tl.store(apart + kept.to(tl.int64) * n + t, either, mask=t < n)
                tl.store(apart + t.to(tl.int64) * n + kept, either, mask=t < n)
                block = tl.where(block == gone, kept, block)
                n_blocks -= 1
                may_open = may_open & (n_blocks > k)
                open_blocks = open_blocks & may_open

            # The best edges of the joined tree, in row and column r.
            others = alive & (t != r)
            joined = tl.load(matrix + r.to(tl.int64) * n + t, mask=others, other=-1)
            joined = tl.maximum(joined, tl.load(matrix + s.to(tl.int64) * n + t, mask=others, other=-1))
            tl.debug_barrier()
            tl.store(matrix + r.to(tl.int64) * n + t, joined, mask=others)
            tl.store(matrix + t.to(tl.int64) * n + r, joined, mask=others)
            tl.debug_barrier()

            # The better of two best edges is still the best, if the joined tree may be joined at all.
            moved = others & (nearest_key >= 0) & ((nearest == r) | (nearest == s))
            welcome = _may_join(kept, block, apart, open_blocks, n, alive)
            nearest = tl.where(moved & welcome, r, nearest)
            nearest_key = tl.where(moved & welcome, joined, nearest_key)
            pending = (alive & (t == r)) | (moved & (welcome == 0))
            if kept != gone:  # a nearest tree in another block may have become forbidden
                partner = tl.where(alive & (nearest_key >= 0), nearest, 0)
                tl.store(rows + t, block, mask=t < n)
                tl.debug_barrier()
                partner_block = tl.load(rows + partner, mask=alive, other=0)
                tl.debug_barrier()
                forbidden = tl.load(apart + block.to(tl.int64) * n + partner_block, mask=alive, other=0) != 0
                pending = pending | (alive & (nearest_key >= 0) & (block != partner_block) & forbidden)
            if was_open & (open_blocks == 0):
                pending = alive
        else:
            running = may_open & (open_blocks == 0)
            open_blocks = may_open
            pending = alive & running

    tl.debug_barrier()
    is_edge = t < n_edges
    key = tl.load(keys + t, mask=is_edge, other=-1)
    position = rank_of(keys, n_edges, key)
    tl.store(values_out + out, value_of(key, is_edge, failed))
    if COUNTS:
        i, j, _ = ends_of(key)
        add_to_counts(counts, tl.where(is_edge, i, -1), j, solve, n)
    if EDGES:
        write_edges(edges_out + out * (n - 1) * 2, key, is_edge, position, n_edges, n)
    if WITH_LABELS:
        number_trees(labels_out + out * n, rows, rows + n, tl.where(t < n, tree, 0), failed, n)


@triton.jit(noinline=True)
def _write_words(
    similarity, words, n, pitch, scale, k0, k1, draw_low, draw_high,
    SYMMETRIC: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """:func:`write_words`. As a function of its own, like ``_fill_matrix``, it saves a quarter of the compilation."""
    write_words(similarity, words, n, pitch, scale, k0, k1, draw_low, draw_high, SYMMETRIC, NOISY, GUMBEL, SIZE)


@kernel(do_not_specialize=["seed", "first_draw", "n_clusters"])
def agglomerate(
    similarity, n_clusters, relation, closures, n_related, seed, first_draw, epsilon,
    counts, edges_out, labels_out, values_out, words, keys, rows, matrices, aparts, n_problems, n, pitch, n_draws,
    n_solves,
    BLOCK: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr, ANTITHETIC: tl.constexpr, SIZE: tl.constexpr,
    COUNTS: tl.constexpr, EDGES: tl.constexpr, WITH_LABELS: tl.constexpr, MUST_LINK_FIRST: tl.constexpr,
):  # fmt: skip
    """All draws of the problems whose relation does not have the form of closures; programs take draws in turn."""
    program = tl.program_id(0).to(tl.int64)
    words += program * n * pitch
    matrix, apart = matrices + program * n * n, aparts + program * n * n
    keys += program * n
    rows += program * 2 * n
    for item in range(tl.program_id(0), n_problems * n_draws, tl.num_programs(0)):
        draw, problem = item % n_draws, tl.cast(item // n_draws, tl.int64)
        if have_form(closures + problem * n, n_related + problem * n, n, BLOCK) == 0:
            k0, k1, draw_low, draw_high, sign = draw_words(seed, first_draw, draw, ANTITHETIC)
            _write_words(
                similarity + problem * n * n, words, n, pitch, sign * epsilon, k0, k1, draw_low, draw_high,
                True, NOISY, GUMBEL, SIZE,
            )  # fmt: skip
            if n_clusters.dtype.is_ptr():
                k = tl.load(n_clusters + problem).to(tl.int32)
            else:
                k = n_clusters.to(tl.int32)
            _agglomerate(
                words, k, relation + problem * n * n, n, pitch, (problem * n_solves + n_solves - 1) * n_draws + draw,
                n_solves - 1, counts + problem * n * n, edges_out, labels_out, values_out, keys, rows, matrix, apart,
                BLOCK, COUNTS, EDGES, WITH_LABELS, MUST_LINK_FIRST,
            )  # fmt: skip
        tl.debug_barrier()  # before the next draw overwrites the scratch
