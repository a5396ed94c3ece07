"""Which closures the greedy joins to blocks: a walk over the sorted edges of the free tree, see docs/design.md."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.kernels.closures import LABELLED, POINT
from diffclust.solvers.kernels.keys import ends_of, weight_of

LANES = tl.constexpr(32)  # edges that are looked up together, in one warp
_ID_BITS = tl.constexpr(15)


@triton.jit
def join_closures(ordered, blocks, renamed, joins, closure, n, left, BLOCK: tl.constexpr):
    """The block of each point, as the number of one of its closures. ``left`` is how many joins are left.

    The blocks of the ends are looked up for ``LANES`` edges at a time. Then one edge after the other is taken or
    refused, and takes effect on those after it.

    Args:
        ordered: the keys of the tree, decreasing.
        blocks: written, (n,) int32.
        renamed: scratch, (n,) int32.
        joins: written at the point of each closure that has gone into another one: the key of the edge that did it.
    """
    v, lane = tl.arange(0, BLOCK), tl.arange(0, LANES)
    block = closure
    tl.store(blocks + v, block, mask=v < n)
    tl.store(renamed + v, v, mask=v < n)
    tl.debug_barrier()
    tl.store(renamed + (block & POINT), block, mask=v < n)
    tl.debug_barrier()
    start = 0
    while (start < n - 1) & (left > 0):
        edge = start + lane
        key = tl.load(ordered + edge, mask=edge < n - 1, other=-1)
        i, j, _ = ends_of(key)
        exists = (key >= 0) & (weight_of(key) != float("-inf"))
        a = tl.load(blocks + i, mask=exists, other=0)
        b = tl.load(blocks + j, mask=exists, other=0)
        welcome = (a != b) & ((a & b & LABELLED) == 0)
        if tl.max(welcome.to(tl.int32), axis=0) > 0:
            gone, into = tl.full((LANES,), -1, tl.int32), tl.full((LANES,), -2, tl.int32)
            first = tl.min(tl.where(welcome, lane, LANES), axis=0)
            last = tl.max(tl.where(welcome, lane, 0), axis=0)
            for t in range(first, last + 1):
                both = tl.max(tl.where(welcome & (lane == t), (a << _ID_BITS) | b, 0), axis=0)
                one, other = both >> _ID_BITS, both & (LABELLED | POINT)
                join = (one != other) & ((one & other & LABELLED) == 0) & (left > 0)
                kept = tl.maximum(one, other)
                lost = tl.where(join, tl.minimum(one, other), -1)
                a, b = tl.where(a == lost, kept, a), tl.where(b == lost, kept, b)
                into = tl.where(into == lost, kept, into)
                gone = tl.where(join & (lane == t), lost, gone)
                into = tl.where(join & (lane == t), kept, into)
                left -= join.to(tl.int32)
            tl.store(renamed + (gone & POINT), into, mask=gone >= 0)
            tl.store(joins + (gone & POINT), key, mask=gone >= 0)
            tl.debug_barrier()
            block = tl.load(renamed + (block & POINT), mask=v < n, other=0)
            tl.debug_barrier()
            tl.store(blocks + v, block, mask=v < n)
            tl.debug_barrier()
        start += LANES
    tl.debug_barrier()  # before the caller overwrites the keys, which a slower warp may still read
    return block
