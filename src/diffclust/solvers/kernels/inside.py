"""What is left to connect after the walk: blocks that are in pieces, or with must-links first closures."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.kernels.ahead import kernel
from diffclust.solvers.kernels.draws import GROUPS, IS_CUT, MEMBERS, N_NUMBERS, N_ROWS, N_UNITS, SIZES, STARTS, UNITS
from diffclust.solvers.kernels.keys import IN_TREE, key_of, largest_key, new_vertex_of, updated, weight_of

PARTS = 16  # programs that share the units of a draw


@triton.jit
def _grow(words, slots, v, exists, inside, u, size, pitch, WARPS: tl.constexpr):
    """Prim on the points v that are ``inside``, from u: ``slots[p]`` becomes the key of the edge by which p joined.

    Returns whether a missing edge was taken.
    """
    key = tl.where(inside, 0, IN_TREE).to(tl.int64)
    n_missing = 0
    for _ in range(size - 1):
        word = tl.load(words + u * pitch + v, mask=exists, other=0)
        if WARPS == 1:
            tl.debug_barrier()  # or the compiler would let the second load of a thread wait for the first one
        key = updated(key, key_of(word, u, v) | tl.where(v == u, IN_TREE, 0))
        best = largest_key(key, WARPS)
        u = new_vertex_of(best)
        tl.store(slots + u, best)
        n_missing += (weight_of(best) == float("-inf")).to(tl.int32)
    return n_missing > 0


@kernel
def grow_units(
    words, keys, rows, numbers, n, pitch,
    FIRST: tl.constexpr, BLOCK: tl.constexpr, NARROW: tl.constexpr, N_PARTS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Trees of the units of a draw that ``solve_draws`` has listed.

    Most units go into a vector of ``NARROW`` points; a vector of all points serves the others. The unit's first point,
    where its tree starts, keeps with must-links first the edge that joined its closure to another one.
    """
    part, item = tl.program_id(0) % N_PARTS, (tl.program_id(0) // N_PARTS).to(tl.int64)
    words += item * n * pitch
    slots = keys + item * 2 * n + n
    rows += item * N_ROWS * n
    numbers += item * N_NUMBERS
    for number in range(part, tl.load(numbers + N_UNITS), N_PARTS):
        unit = tl.load(rows + UNITS * n + number)
        size, start = tl.load(rows + SIZES * n + unit), tl.load(rows + STARTS * n + unit)
        if not FIRST:
            tl.store(slots + unit, tl.full((), -1, tl.int64))
        if size > NARROW:
            point = tl.arange(0, BLOCK)
            own = tl.load(rows + GROUPS * n + point, mask=point < n, other=-1) == unit
            is_cut = _grow(words, slots, point, point < n, own, unit, size, pitch, WARPS)
        else:
            index = tl.arange(0, NARROW)
            inside = index < size
            member = tl.load(rows + MEMBERS * n + start + index, mask=inside, other=0)
            is_cut = _grow(words, slots, member, inside, inside, unit, size, pitch, WARPS)
        if FIRST & is_cut:
            tl.store(numbers + IS_CUT, 1)
