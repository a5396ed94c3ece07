"""Edges as 64-bit keys, whose order is that of the edges. Their bits are listed in the package's docstring."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.cuda.philox import SIGN_BIT

_INDEX_BITS = tl.constexpr(14)
_LARGEST_INDEX, _LARGEST_CODE = tl.constexpr((1 << 14) - 1), tl.constexpr((1 << 28) - 1)
_WEIGHT_SHIFT, TIER_SHIFT = tl.constexpr(29), tl.constexpr(61)
WITHOUT_TIER = tl.constexpr((1 << 61) - 1)
IN_TREE = tl.constexpr(-(1 << 63))


@triton.jit
def key_of(weight, u, v):
    """The key, in tier 0, of an edge from u in the tree to a new vertex v."""
    # Adding zero makes -0.0 equal to 0.0; and the hardware's addition makes every NaN the positive one, which wins.
    bits = (weight + 0.0).to(tl.int32, bitcast=True)
    ordered = (bits ^ ((bits >> 31) | SIGN_BIT)).to(tl.uint32, bitcast=True)
    edge = tl.where(
        v > u,
        (2 * _LARGEST_CODE + 1 - 2 * v) - (u << (_INDEX_BITS + 1)),
        (2 * _LARGEST_CODE - (v << (_INDEX_BITS + 1))) - 2 * u,
    )
    return (ordered.to(tl.int64) << _WEIGHT_SHIFT) | edge.to(tl.int64)


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
def in_a_closure(label, GROUPS: tl.constexpr):
    """Whether a point is labelled or, with ``GROUPS``, in a must-link group; see ``closures.py``."""
    return label != -1 if GROUPS else label >= 0


@triton.jit
def with_tier(key, label_u, label_v, GROUPS: tl.constexpr):
    """The key in its tier; u is in a closure."""
    apart = label_v >= 0
    if GROUPS:
        apart = apart & (label_u >= 0)
    tier = tl.where(label_v == label_u, 2, tl.where(apart, 1, 0))
    return key | (tier.to(tl.int64) << TIER_SHIFT)


@triton.jit
def with_block_tier(key, label_u, label_v, block_u, block_v, GROUPS: tl.constexpr):
    """The key in tier 2 where the closures are the same, in tier 1 where only the blocks are, in tier 0 if missing."""
    exists = (block_v == block_u) & (weight_of(key) != float("-inf"))
    tier = tl.where(exists, tl.where((label_v == label_u) & in_a_closure(label_u, GROUPS), 2, 1), 0)
    return key | (tier.to(tl.int64) << TIER_SHIFT)


@triton.jit
def updated(key, candidate, is_u):
    """The better of two keys; that of vertex u, which joins the tree now, is marked."""
    candidate |= tl.where(is_u, IN_TREE, 0)
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
