"""Edges as 64-bit keys, whose order is that of the edges. Their bits are listed in the package's docstring."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.kernels.philox import SIGN_BIT

_INDEX_BITS = tl.constexpr(14)
_LARGEST_INDEX, _LARGEST_CODE = tl.constexpr((1 << 14) - 1), tl.constexpr((1 << 28) - 1)
_WEIGHT_SHIFT, TIER_SHIFT = tl.constexpr(29), tl.constexpr(61)
WITHOUT_TIER = tl.constexpr((1 << 61) - 1)
IN_TREE = tl.constexpr(-(1 << 63))
MISSING = tl.constexpr(0x007FFFFF)  # the word of -inf


@triton.jit
def word_of(weight):
    """A float32 weight as an integer that, taken as unsigned, has the same order."""
    # Adding zero makes -0.0 equal to 0.0; and the hardware's addition makes every NaN the positive one, which wins.
    bits = (weight + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) | SIGN_BIT)


@triton.jit
def key_of(word, u, v):
    """The key, in tier 0, of an edge from u in the tree to a new vertex v."""
    edge = tl.where(
        v > u,
        (2 * _LARGEST_CODE + 1 - 2 * v) - (u << (_INDEX_BITS + 1)),
        (2 * _LARGEST_CODE - (v << (_INDEX_BITS + 1))) - 2 * u,
    )
    return (word.to(tl.uint32, bitcast=True).to(tl.int64) << _WEIGHT_SHIFT) | edge.to(tl.int64)


@triton.jit
def weight_of(key):
    """The weight of the edge of a key."""
    ordered = (key >> _WEIGHT_SHIFT).to(tl.uint32).to(tl.int32, bitcast=True)
    return (ordered ^ (~(ordered >> 31) | SIGN_BIT)).to(tl.float32, bitcast=True)


@triton.jit
def ends_of(key):
    """(i, j), i < j, and whether j is the new vertex."""
    code = _LARGEST_CODE - ((key >> 1).to(tl.int32) & _LARGEST_CODE)
    return code >> _INDEX_BITS, code & _LARGEST_INDEX, (key & 1) != 0


@triton.jit
def new_vertex_of(key):
    """The vertex that joins the tree by the edge of a key."""
    i, j, new_is_j = ends_of(key)
    return tl.where(new_is_j, j, i)


@triton.jit
def updated(key, candidate):
    """The better of two keys. One of a vertex in the tree stays marked."""
    return tl.maximum(key.to(tl.uint64, bitcast=True), candidate.to(tl.uint64, bitcast=True)).to(tl.int64, bitcast=True)


@triton.jit
def largest_key(key, WARPS: tl.constexpr):
    """The largest key, first in each warp: two 32-bit reductions, an instruction each, beat ten shuffles of halves."""
    if key.shape[0] >= 32 * WARPS:
        rows = tl.reshape(key, (WARPS, key.shape[0] // WARPS))
        high = (rows >> 32).to(tl.int32)
        largest_high = tl.max(high, axis=1, keep_dims=True)
        low = (rows & 0xFFFFFFFF).to(tl.uint32)
        largest_low = tl.max(tl.where(high == largest_high, low, 0), axis=1, keep_dims=True)
        key = tl.reshape((largest_high.to(tl.int64) << 32) | largest_low.to(tl.int64), (WARPS,))
    return tl.max(key, axis=0)
