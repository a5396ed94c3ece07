"""Noise in blocks, and the perturbed similarities as ordered integers.

An *ordered integer* is a float mapped to an integer of the same order and size: comparisons and maxima of integers run
in vectors.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from diffclust import noise as noise_definition
from diffclust.noise import gumbel, normal_pair, philox
from diffclust.solvers.compiled import jit

for _function in (
    noise_definition.philox_round,
    noise_definition.philox,
    noise_definition.log_polynomial,
    noise_definition.log,
    noise_definition.uniform,
    noise_definition.normal_pair,
    noise_definition.gumbel,
):
    register_jitable(forceinline=True)(_function)

NORMAL, GUMBEL = (noise_definition.KINDS.index(kind) for kind in ("normal", "gumbel"))


BLOCKS = 1024  # 2 x 2 blocks of noise made at a time: words and noise stay in the first-level cache
LISTED = 2**15  # blocks that are listed once for all draws: longer lists leave the second-level cache
# Columns added to a matrix of weights: with rows of 2^m bytes, all entries of a column compete for a few cache lines.
# And loops of whole vectors may go on to the next multiple of this.
PAD = 16


@register_jitable(forceinline=True)
def _flip_32(bits):
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@register_jitable(forceinline=True)
def _flip_64(bits):
    return np.int64(bits ^ ((bits >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF)))


def ordered(weight):
    """A float as an integer of the same order and size; -0.0 and 0.0 are one."""


@overload(ordered, jit_options={"forceinline": True})
def _ordered_by_type(weight):
    if weight == types.float32:
        return lambda weight: _flip_32(np.float32(weight + np.float32(0.0)).view(np.int32))
    return lambda weight: _flip_64(np.float64(weight + 0.0).view(np.int64))


def number(weight):
    """The float of an ordered integer."""


@overload(number, jit_options={"forceinline": True})
def _number_by_type(weight):
    if weight == types.int32:
        return lambda weight: np.int32(_flip_32(np.int32(weight))).view(np.float32)
    return lambda weight: np.int64(_flip_64(np.int64(weight))).view(np.float64)


@jit(inner=True)
def noise_blocks(rows, columns, key_0, key_1, draw_low, draw_high, kind, words, z):
    """Noise of 2 x 2 blocks, side by side: z[0] is that of their upper rows, z[1] of their lower rows.

    Loops are long enough for vectors. ``words`` (4, BLOCKS) is scratch.
    """
    words_0, words_1, words_2, words_3 = words[0], words[1], words[2], words[3]
    for c in range(rows.shape[0]):
        word = philox(np.uint64(columns[c]), np.uint64(rows[c]), draw_low, draw_high, key_0, key_1)
        words_0[c] = np.uint32(word[0])
        words_1[c] = np.uint32(word[1])
        words_2[c] = np.uint32(word[2])
        words_3[c] = np.uint32(word[3])
    for lane in range(2):
        first, second, target = words[2 * lane], words[2 * lane + 1], z[lane]
        if kind == NORMAL:
            for c in range(rows.shape[0]):
                target[2 * c], target[2 * c + 1] = normal_pair(np.uint64(first[c]), np.uint64(second[c]))
        else:
            for c in range(rows.shape[0]):
                target[2 * c] = gumbel(np.uint64(first[c]))
                target[2 * c + 1] = gumbel(np.uint64(second[c]))


@jit(inner=True)
def next_blocks(row, column, half, rows, columns):
    """The next blocks in reading order of the upper triangle from (row, column): (how many, row, column after them)."""
    count = 0
    while row < half and count < rows.shape[0]:
        rows[count] = row
        columns[count] = column
        count += 1
        column += 1
        if column == half:
            row += 1
            column = row
    return count, row, column


@jit(inner=True)
def split_draw(draw, antithetic):
    """Counter words and sign of a draw: antithetic draws 2m and 2m + 1 are the same noise with opposite signs."""
    number = draw // np.uint64(2) if antithetic else draw
    sign = -1.0 if antithetic and draw % np.uint64(2) == np.uint64(1) else 1.0
    return number & np.uint64(0xFFFFFFFF), number >> np.uint64(32), sign


@jit
def perturb(
    similarity, key_0, key_1, first_draw, n_draws, antithetic, epsilon, kind, items, words, z, blocks, all_weights
):
    """Write ordered similarity + epsilon * noise of ``items``, of ``problems x draws``, to ``all_weights``.

    The product is rounded to float32 as NumPy does it. Above the diagonal first, then mirrored. Rows of weights have
    ``PAD`` more columns, which may be written to. ``words``, ``z`` and ``blocks`` are scratch: ``z`` holds zeros, and
    ``blocks`` have place for all blocks or for ``BLOCKS`` of them.
    """
    n = similarity.shape[1]
    half = (n + 1) // 2
    n_blocks = half * (half + 1) // 2
    rows, columns = blocks[0], blocks[1]
    listed = rows.shape[0] == n_blocks  # else the blocks of each draw are listed anew, piece by piece
    if listed:
        next_blocks(np.int64(0), np.int64(0), half, rows, columns)
    for position in range(items.shape[0]):
        problem, draw = items[position] // n_draws, items[position] % n_draws
        draw_low, draw_high, sign = split_draw(first_draw + np.uint64(draw), antithetic)
        scale = np.float32(np.float32(sign) * epsilon)
        weights = all_weights[position]
        next_row = next_column = np.int64(0)
        for begin in range(0, n_blocks, BLOCKS):
            count, first = BLOCKS if n_blocks - begin > BLOCKS else n_blocks - begin, begin if listed else 0
            if not listed:
                _, next_row, next_column = next_blocks(next_row, next_column, half, rows, columns)
            some_rows, some_columns = rows[first : first + count], columns[first : first + count]
            if epsilon != 0:
                noise_blocks(some_rows, some_columns, key_0, key_1, draw_low, draw_high, kind, words, z)
            at = 0
            while at < count:
                row, column = 2 * np.int64(some_rows[at]), 2 * np.int64(some_columns[at])
                length = n - column if n - column < 2 * (count - at) else 2 * (count - at)
                # Whole vectors: what is read behind the row's end belongs to the next row, which all rows but the last
                # have, and what it makes goes into columns that are not used, or are written to by the next blocks.
                padded = (length + PAD - 1) // PAD * PAD if n >= PAD else length
                for lane in range(2):
                    if row + lane < n - 1:
                        noise = z[lane, 2 * at :]
                        source, target = similarity[problem, row + lane, column:], weights[row + lane, column:]
                        for j in range(padded):
                            target[j] = ordered(source[j] + scale * noise[j])
                at += (length + 1) // 2
        for i in range(n):
            row_of_weights = weights[i]
            for j in range(i):
                row_of_weights[j] = weights[j, i]
