"""What is left to connect after the walk: the pieces of a block, or with must-links first the points of a closure."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.cuda.draws import (
    FIRSTS,
    GROUPS,
    IS_CUT,
    LASTS,
    MEMBERS,
    N_NUMBERS,
    N_ROWS,
    N_UNITS,
    PIECES,
    STARTS,
    STOPS,
    UNITS,
)
from diffclust.solvers.cuda.keys import IN_TREE, key_of, largest_key, new_vertex_of, updated, weight_of

PARTS = 16  # programs that share the units of a draw
_AT_ONCE = tl.constexpr(4)  # rows in flight


@triton.jit
def _grow(
    words, rows, slots, v, valid, u, n, pitch, FIRST: tl.constexpr, WARPS: tl.constexpr
):  # fmt: skip
    """Prim on the pieces of a unit: ``slots[p]`` becomes the key of the edge by which piece p joined.

    A piece joins as a whole: the rows of its points are read one after the other, none waiting for another.

    Args:
        v, valid: the points of the unit.
        u: one of them, to start from.

    Returns:
        Whether a missing edge was taken.
    """
    pieces, members = rows + PIECES * n, rows + MEMBERS * n
    key = tl.where(valid, 0, IN_TREE).to(tl.int64)
    piece = v
    if not FIRST:
        piece = tl.load(pieces + v, mask=valid, other=-1)
    n_rounds = tl.sum((valid & (piece == v)).to(tl.int32), axis=0) - 1
    n_missing = 0
    for _ in range(n_rounds):
        if FIRST:
            joined = u
            word = tl.load(words + u * pitch + v, mask=valid, other=0)
            key = updated(key, key_of(word, u, v))
        else:
            joined = tl.load(pieces + u)
            first, last = tl.load(rows + FIRSTS * n + joined), tl.load(rows + LASTS * n + joined)
            for start in range(first, last, _AT_ONCE):
                for offset in tl.static_range(_AT_ONCE):
                    row = tl.load(members + tl.minimum(start + offset, last - 1))  # the last one again, at no harm
                    word = tl.load(words + row * pitch + v, mask=valid, other=0)
                    key = updated(key, key_of(word, row, v))
        key |= tl.where(piece == joined, IN_TREE, 0)
        best = largest_key(key, WARPS)
        u = new_vertex_of(best)
        slot = u
        if not FIRST:
            slot = tl.load(pieces + u)
        tl.store(slots + slot, best)
        n_missing += (weight_of(best) == float("-inf")).to(tl.int32)
    return n_missing > 0


@triton.jit(do_not_specialize=["n_chunk"])
def grow_units(
    words, keys, rows, numbers, n, pitch, n_chunk,
    FIRST: tl.constexpr, BLOCK: tl.constexpr, NARROW: tl.constexpr, N_PARTS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Connect the units of a draw that ``solve_draws`` has listed.

    Most go into a vector of ``NARROW`` points; a vector of all points serves the others.
    """
    part, item = tl.program_id(0), tl.program_id(1).to(tl.int64)
    words += item * n * pitch
    slots = keys + item * 2 * n + n
    rows += item * N_ROWS * n
    numbers += item * N_NUMBERS
    for number in range(part, tl.load(numbers + N_UNITS), N_PARTS):
        unit = tl.load(rows + UNITS * n + number)
        start, stop = tl.load(rows + STARTS * n + unit), tl.load(rows + STOPS * n + unit)
        if stop - start > NARROW:
            v = tl.arange(0, BLOCK)
            valid = tl.load(rows + GROUPS * n + v, mask=v < n, other=-1) == unit
            is_cut = _grow(words, rows, slots, v, valid, unit, n, pitch, FIRST, WARPS)
        else:
            index = start + tl.arange(0, NARROW)
            member = tl.load(rows + MEMBERS * n + index, mask=index < stop, other=0)
            is_cut = _grow(words, rows, slots, member, index < stop, unit, n, pitch, FIRST, WARPS)
        if FIRST & is_cut:
            tl.store(numbers + IS_CUT, 1)
