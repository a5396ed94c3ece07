"""Prim: the maximum spanning tree of one draw, by reading one row of its words in each round."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.cuda.keys import (
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
