"""The maximum spanning tree of one draw: by Prim's algorithm, a row of its words in each round, or by Borůvka's.

Prim's rounds are a chain: each waits for its row, and the next one depends on it. In a round of Borůvka's algorithm no
row waits for another, but every round reads all of them. So a few such rounds come first, and then Prim's on the pieces
that are left.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.kernels.keys import (
    IN_TREE,
    MISSING,
    TIER_SHIFT,
    ends_of,
    key_of,
    largest_key,
    new_vertex_of,
    updated,
)

_AT_ONCE = tl.constexpr(16)  # rows in flight on their way to the cache
CACHED = tl.constexpr(54 * 1024)  # words: 216 of the 256 kB that an H100 and its like have in a multiprocessor
_INDEX_BITS, _LARGEST_INDEX = tl.constexpr(14), tl.constexpr((1 << 14) - 1)


@triton.jit
def grow_tree(
    words, closures, blocks, keys, valid, n, pitch,
    TIERS: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Prim on the ``valid`` points, from the first of them: the keys of the maximum spanning tree as it grew.

    With ``TIERS``, edges inside a block of ``blocks`` are in tier 1 and, with ``FIRST``, those inside a closure in tier
    2. All others, and missing ones, are in tier 0. So the edges above tier 0 are the maximum spanning forest of the
    pairs inside blocks.
    """
    v = tl.arange(0, BLOCK)
    key = tl.where(valid, 0, IN_TREE).to(tl.int64)
    if TIERS:
        block = tl.load(blocks + v, mask=v < n, other=-1)
        closure = tl.load(closures + v, mask=v < n, other=-1)
    u = tl.min(tl.where(valid, v, BLOCK), axis=0)
    for step in range(tl.sum(valid.to(tl.int32), axis=0) - 1):
        word = tl.load(words + u * pitch + v, mask=v < n, other=0)
        candidate = key_of(word, u, v)
        if TIERS:
            tier = 1
            if FIRST:
                tier += (closure == tl.load(closures + u)).to(tl.int32)
            exists = (block == tl.load(blocks + u)) & (word != MISSING)
            candidate |= tl.where(exists, tier, 0).to(tl.int64) << TIER_SHIFT
        key = updated(key, candidate | tl.where(v == u, IN_TREE, 0))
        best = largest_key(key, WARPS)
        tl.store(keys + step, best)
        u = new_vertex_of(best)
    tl.debug_barrier()


@triton.jit
def fetch(words, keys, n, pitch, BLOCK: tl.constexpr):
    """Read the last words of a draw, as many as the first level of the cache holds, so that rounds find them there.

    Something has to be done with them, or the compiler leaves this out: ``keys[0]`` is scratch.
    """
    v, row = tl.arange(0, BLOCK)[None, :], tl.arange(0, _AT_ONCE)[:, None]
    largest = tl.zeros((_AT_ONCE, BLOCK), tl.int32)
    for start in range(tl.maximum(0, n - CACHED // pitch), n, _AT_ONCE):
        inside = (start + row < n) & (v < n)
        largest = tl.maximum(largest, tl.load(words + (start + row) * pitch + v, mask=inside, other=0))
    tl.store(keys, tl.max(tl.max(largest, axis=1), axis=0).to(tl.int64))
    tl.debug_barrier()


@triton.jit
def _best_outside(words, roots, root, n, pitch, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr):
    """For each point the largest word of its edges to other pieces, 0 if there is none, and the point at the other end.

    Of equal words the smaller end counts, which is the smaller edge. A point and itself are in one piece.
    """
    v, row = tl.arange(0, BLOCK)[None, :], tl.arange(0, AT_ONCE)[:, None]
    best, partner = tl.zeros((AT_ONCE, BLOCK), tl.uint32), tl.zeros((AT_ONCE, BLOCK), tl.int32)
    for start in range(0, n, AT_ONCE):  # the rows of a tile are compared at the end, so that no load waits
        u = start + row
        word = tl.load(words + u * pitch + v, mask=(u < n) & (v < n), other=0).to(tl.uint32, bitcast=True)
        better = (word > best) & (tl.load(roots + u, mask=u < n, other=-1) != root[None, :])
        best, partner = tl.where(better, word, best), tl.where(better, u, partner)
    return _largest_of_rows(best, partner, BLOCK)


@triton.jit
def _largest_of_rows(word, point, BLOCK: tl.constexpr):
    """The largest word of each column and its point, of equal words the smallest."""
    largest = tl.max(word, axis=0)
    return largest, tl.min(tl.where(word == largest[None, :], point, BLOCK), axis=0)


@triton.jit
def _join_best(words, keys, best, roots, root, n, pitch, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr):
    """A round of Borůvka's algorithm; see :func:`grow_tree_by_rounds`. Returns new roots, and how many pieces went."""
    v = tl.arange(0, BLOCK)
    valid = v < n
    word, partner = _best_outside(words, roots, root, n, pitch, BLOCK, AT_ONCE)
    tl.store(best + v, tl.zeros((BLOCK,), tl.int64), mask=valid)
    tl.debug_barrier()
    tl.atomic_max(best + root, key_of(word, partner, v), mask=valid & (word != 0), sem="relaxed", scope="cta")
    tl.debug_barrier()
    is_root = valid & (root == v)
    key = tl.load(best + v, mask=is_root, other=0)
    i, j, new_is_j = ends_of(key)
    into = tl.load(roots + tl.where(new_is_j, i, j), mask=is_root, other=0)
    same = (tl.load(best + into, mask=is_root, other=0) >> 1) == (key >> 1)
    leaves = is_root & ((into < v) | (same == 0))
    tl.store(keys + v, key, mask=leaves)
    tl.debug_barrier()
    tl.store(roots + v, into, mask=leaves)
    tl.debug_barrier()
    moved = 1
    while moved > 0:
        up = tl.load(roots + root, mask=valid, other=0)
        moved = tl.max((valid & (up != root)).to(tl.int32), axis=0)
        tl.debug_barrier()
        tl.store(roots + v, up, mask=valid)
        tl.debug_barrier()
        root = up
    return root, tl.sum(leaves.to(tl.int32), axis=0)


@triton.jit
def _list_pieces(roots, root, n, BLOCK: tl.constexpr):
    """Sort the points by piece, into scratch behind ``roots``, (3, n) int32.

    The first row says where each root's piece starts, and in the last 14 bits its size. Then the points, and counters.
    """
    v = tl.arange(0, BLOCK)
    valid = v < n
    spans, members, counters = roots + n, roots + 2 * n, roots + 3 * n
    tl.store(spans + v, 0, mask=valid)
    tl.store(counters + v, 0, mask=valid)
    tl.debug_barrier()
    tl.atomic_add(spans + root, 1, mask=valid, sem="relaxed", scope="cta")
    tl.debug_barrier()
    size = tl.load(spans + v, mask=valid, other=0)
    tl.debug_barrier()
    tl.store(spans + v, ((tl.cumsum(size, axis=0) - size) << _INDEX_BITS) | size, mask=valid)
    tl.debug_barrier()
    place = tl.load(spans + root, mask=valid, other=0) >> _INDEX_BITS
    place += tl.atomic_add(counters + root, 1, mask=valid, sem="relaxed", scope="cta")
    tl.store(members + place, v, mask=valid)
    tl.debug_barrier()


@triton.jit
def _join_in_turn(
    words, keys, roots, root, n_pieces, n, pitch, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, WARPS: tl.constexpr
):  # fmt: skip
    """Prim's algorithm on pieces: the rows of a piece are read when it joins. Returns the root of the first piece."""
    _list_pieces(roots, root, n, BLOCK)
    spans, members = roots + n, roots + 2 * n
    v, row = tl.arange(0, BLOCK), tl.arange(0, AT_ONCE)[:, None]
    key = tl.where(v < n, 0, IN_TREE).to(tl.int64)
    piece = tl.load(roots)
    for _ in range(n_pieces - 1):
        span = tl.load(spans + piece)
        first, end = span >> _INDEX_BITS, (span >> _INDEX_BITS) + (span & _LARGEST_INDEX)
        for start in range(first, end, AT_ONCE):
            inside = start + row < end
            u = tl.load(members + start + row, mask=inside, other=0)
            word = tl.load(words + u * pitch + v[None, :], mask=inside & (v < n)[None, :], other=0)
            largest, point = _largest_of_rows(word.to(tl.uint32, bitcast=True), u, BLOCK)
            key = updated(key, key_of(largest, point, v))
        key = updated(key, tl.where(root == piece, IN_TREE, 0).to(tl.int64))
        best = largest_key(key, WARPS)
        piece = tl.load(roots + new_vertex_of(best))
        tl.store(keys + piece, best)
    return tl.load(roots)


@triton.jit
def grow_tree_by_rounds(
    words, keys, best, roots, n, pitch, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, LEFT: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """The keys of the maximum spanning tree of all points, in no order.

    In each round of Borůvka's algorithm every piece takes the best edge out of it, and goes into the piece at the other
    end. Of two pieces that take the same edge the one with the smaller root stays. In the total order of edges no other
    cycles arise. When ``LEFT`` pieces or fewer are left, Prim's algorithm joins them.

    Args:
        keys: written, the n - 1 keys. Until the end a key is at the root of the piece that its edge made part of
            another one.
        best: scratch, (n,) int64.
        roots: scratch, (4 n,) int32, or (n,) if ``LEFT`` is 1.
    """
    v = tl.arange(0, BLOCK)
    root = v
    tl.store(roots + v, v, mask=v < n)
    tl.debug_barrier()
    n_pieces = n
    while n_pieces > LEFT:
        root, n_gone = _join_best(words, keys, best, roots, root, n, pitch, BLOCK, AT_ONCE)
        n_pieces -= n_gone
    if LEFT > 1:
        last = _join_in_turn(words, keys, roots, root, n_pieces, n, pitch, BLOCK, AT_ONCE, WARPS)
    else:
        last = tl.load(roots)
    tl.debug_barrier()
    moved = tl.load(keys + n - 1, mask=last < n - 1, other=0)
    tl.debug_barrier()
    tl.store(keys + last, moved, mask=last < n - 1)
    tl.debug_barrier()


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
