"""Closures: what must-links tie together, as one number for each point, out of labels or a relation.

The number is the smallest point of the closure, and ``LABELLED`` more if the closure is labelled, or has a cannot-link.
So two points are in one closure if and only if they have the same number. A relation has the *form of closures* where
any two labelled closures must stay apart, as with labels and views: then these numbers say all that it says.
"""

from __future__ import annotations

import triton
import triton.language as tl

LABELLED, POINT = tl.constexpr(1 << 14), tl.constexpr((1 << 14) - 1)  # an index has 14 bits


@triton.jit
def closure_by_labels(labels, i, n, BLOCK: tl.constexpr):
    """The closure of point i."""
    own = tl.load(labels + i)
    first = n
    for start in range(0, n, BLOCK):
        j = start + tl.arange(0, BLOCK)
        other = tl.load(labels + j, mask=j < n, other=-1)
        first = tl.minimum(first, tl.min(tl.where((j < n) & (other == own), j, n), axis=0))
    return tl.where(own >= 0, first | LABELLED, i)


@triton.jit
def closure_by_relation(relation, i, n, BLOCK: tl.constexpr):
    """The closure of point i, and to how many points it is related, itself included."""
    relation += i.to(tl.int64) * n
    first, n_same, n_different = n, 0, 0
    for start in range(0, n, BLOCK):
        j = start + tl.arange(0, BLOCK)
        known = tl.load(relation + j, mask=j < n, other=-1)
        same = (j < n) & ((known == 1) | (j == i))
        first = tl.minimum(first, tl.min(tl.where(same, j, n), axis=0))
        n_same += tl.sum(same.to(tl.int32), axis=0)
        n_different += tl.sum((known == 0).to(tl.int32), axis=0)
    return tl.where(n_different > 0, first | LABELLED, first), n_same + n_different


@triton.jit
def have_form(closures, n_related, n, BLOCK: tl.constexpr):
    """Whether the relation of one problem has the form of closures."""
    index = tl.arange(0, BLOCK)
    labelled = tl.load(closures + index, mask=index < n, other=0) >= LABELLED
    related = tl.load(n_related + index, mask=index < n, other=0)
    n_labelled = tl.sum(labelled.to(tl.int32), axis=0)
    return tl.sum((labelled & (related != n_labelled)).to(tl.int32), axis=0) == 0


@triton.jit
def joins_left(closure, k, is_described, n, CLAMP: tl.constexpr):
    """How many joins of closures leave k blocks, and k; with ``CLAMP`` k is first moved into the range of the closures.

    That is from the number of labelled closures, at least 1, to that of all closures, unlabelled points among them. A k
    of constraints that closures do not describe stays as it is. Of closure (BLOCK,), entries from n on are ignored.
    """
    v = tl.arange(0, closure.shape[0])
    stands = (v < n) & ((closure & POINT) == v)
    n_closures = tl.sum(stands.to(tl.int32), axis=0)
    if CLAMP:
        n_labelled = tl.sum((stands & (closure >= LABELLED)).to(tl.int32), axis=0)
        k = tl.where(is_described, tl.minimum(tl.maximum(k, tl.maximum(n_labelled, 1)), n_closures), k)
    return n_closures - k, k
