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


BLOCKS = 1024  # 2 x 2 blocks of noise made at a time: words, noise and indices stay in the first-level cache
# Columns added to a matrix of weights: with rows of 2^m bytes, all entries of a column compete for a few cache lines.
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


@jit(allocates=True)
def noise_scratch():
    """Blocks, words and noise of ``BLOCKS`` blocks, as the functions below fill them."""
    return np.empty((2, BLOCKS), np.uint32), np.empty((4, BLOCKS), np.uint32), np.empty((4, BLOCKS), np.float32)


@jit
def noise_blocks(rows, columns, count, key_0, key_1, draw_low, draw_high, kind, words, z):
    """Noise of ``count`` 2 x 2 blocks: z[0] to z[3] are the four pairs of each block. Loops long enough for vectors."""
    words_0, words_1, words_2, words_3 = words[0], words[1], words[2], words[3]
    for c in range(count):
        word = philox(np.uint64(columns[c]), np.uint64(rows[c]), draw_low, draw_high, key_0, key_1)
        words_0[c] = np.uint32(word[0])
        words_1[c] = np.uint32(word[1])
        words_2[c] = np.uint32(word[2])
        words_3[c] = np.uint32(word[3])
    if kind == NORMAL:
        for pair in range(2):
            radius, angle, first, second = words[2 * pair], words[2 * pair + 1], z[2 * pair], z[2 * pair + 1]
            for c in range(count):
                first[c], second[c] = normal_pair(np.uint64(radius[c]), np.uint64(angle[c]))
    else:
        for lane in range(4):
            source, target = words[lane], z[lane]
            for c in range(count):
                target[c] = gumbel(np.uint64(source[c]))


@jit
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


@jit
def split_draw(draw, antithetic):
    """Counter words and sign of a draw: antithetic draws 2m and 2m + 1 are the same noise with opposite signs."""
    number = draw // np.uint64(2) if antithetic else draw
    sign = -1.0 if antithetic and draw % np.uint64(2) == np.uint64(1) else 1.0
    return number & np.uint64(0xFFFFFFFF), number >> np.uint64(32), sign


@jit
def perturb(similarity, key_0, key_1, draw, antithetic, epsilon, kind, blocks, words, z, weights):
    """Write ordered similarity + epsilon * noise to ``weights``, the product rounded to float32 as NumPy does it.

    Above the diagonal first, then mirrored. Rows of ``weights`` have ``PAD`` more columns, which are not used.
    """
    if epsilon == 0:
        _copy_ordered(similarity, weights)
        return
    n = similarity.shape[0]
    half = (n + 1) // 2
    draw_low, draw_high, sign = split_draw(draw, antithetic)
    scale = np.float32(np.float32(sign) * epsilon)
    rows, columns = blocks[0], blocks[1]
    row, column = np.int64(0), np.int64(0)  # of plain zeros Numba would compile a version of its own
    while row < half:
        block, at = row, column
        count, row, column = next_blocks(row, column, half, rows, columns)
        noise_blocks(rows, columns, count, key_0, key_1, draw_low, draw_high, kind, words, z)
        done = 0
        while done < count:
            stop = min(done + half - at, count)
            _add_noise(similarity, z[0, done:stop], z[1, done:stop], scale, 2 * block, 2 * at, weights)
            if 2 * block + 1 < n:
                _add_noise(similarity, z[2, done:stop], z[3, done:stop], scale, 2 * block + 1, 2 * at, weights)
            done, block, at = stop, block + 1, block + 1
    for i in range(n):
        row = weights[i]
        for j in range(i):
            row[j] = weights[j, i]


@jit
def _add_noise(similarity, first, second, scale, row, start, weights):
    """Row ``row`` of the weights from column ``start`` on: at even columns the first noise, at odd ones the second."""
    source, target = similarity[row, start:], weights[row, start:]
    n_pairs = min(first.shape[0], source.shape[0] // 2)
    for c in range(n_pairs):
        even = ordered(source[2 * c] + scale * first[c])
        odd = ordered(source[2 * c + 1] + scale * second[c])
        target[2 * c] = even
        target[2 * c + 1] = odd
    if n_pairs < first.shape[0]:  # the last column of an odd number
        target[2 * n_pairs] = ordered(source[2 * n_pairs] + scale * first[n_pairs])


@jit
def _copy_ordered(similarity, weights):
    for i in range(similarity.shape[0]):
        for j in range(similarity.shape[0]):
            weights[i, j] = ordered(similarity[i, j])
