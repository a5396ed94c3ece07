"""The perturbed similarity of each draw, as *words*: unsigned integers of the order of float32 weights.

Each pair's noise is made once, in the 2 x 2 blocks of :mod:`diffclust.noise`, and stored for both of its entries. Rows
of words are all that the kernels after this one read. A row takes ``pitch`` words.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust.solvers.kernels.ahead import kernel
from diffclust.solvers.kernels.keys import word_of
from diffclust.solvers.kernels.philox import draw_words, mean_of_two, noise_of_block, philox

TILE = 16  # 2 x 2 blocks in a row of a tile
DRAWS_AT_ONCE = 4  # for which a program reads its tile of the similarity once


def pitch_of(n: int) -> int:
    """How many words a row takes: rows start at multiples of 64 bytes."""
    return -(-n // 16) * 16


def grid_of(n: int, n_problems: int, n_draws: int) -> tuple[int, int]:
    """The programs of :func:`perturb`: a tile of a problem, see ``n_tiles_of``, by ``DRAWS_AT_ONCE`` draws."""
    tiles = triton.cdiv(n, 2 * TILE)
    return (tiles + 1) // 2 * (tiles + 1) * n_problems, triton.cdiv(n_draws, DRAWS_AT_ONCE)


@triton.jit
def tile_of(index, tiles):
    """Row and column, row <= column, of a tile on or above the diagonal of ``tiles`` x ``tiles``.

    Row q and row tiles - 1 - q together have tiles + 1 tiles. An odd ``tiles`` gives those of its middle row twice.
    """
    q, x = index // (tiles + 1), index % (tiles + 1)
    upper = x > q
    return tl.where(upper, q, tiles - 1 - q), tl.where(upper, x - 1, tiles - 1 - x)


@triton.jit
def n_tiles_of(n, SIZE: tl.constexpr):
    """How many tiles ``tile_of`` takes, and how many stand in a row."""
    tiles = tl.cdiv(n, 2 * SIZE)
    return (tiles + 1) // 2 * (tiles + 1), tiles


@triton.jit
def similarity_tile(similarity, n, row, column, SYMMETRIC: tl.constexpr, SIZE: tl.constexpr):
    """(2 SIZE, 2 SIZE) similarities between the points of a tile; the mean of (i, j) and (j, i)."""
    i = row * 2 * SIZE + tl.arange(0, 2 * SIZE)[:, None]
    j = column * 2 * SIZE + tl.arange(0, 2 * SIZE)[None, :]
    inside = (i < n) & (j < n)
    value = tl.load(similarity + i.to(tl.int64) * n + j, mask=inside, other=0.0)
    if not SYMMETRIC:
        value = mean_of_two(value, tl.load(similarity + j.to(tl.int64) * n + i, mask=inside, other=0.0))
    return value


@triton.jit
def write_tile(
    value, words, n, pitch, row, column, scale, k0, k1, draw_low, draw_high,
    NOISY: tl.constexpr, GUMBEL: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Write the words of all pairs of a tile, at (i, j) and at (j, i). Entries (i, i) stay as they are."""
    if NOISY:
        zero = tl.zeros((SIZE, SIZE), tl.uint32)
        high = zero + (column * SIZE + tl.arange(0, SIZE)).to(tl.uint32)[None, :]
        low = zero + (row * SIZE + tl.arange(0, SIZE)).to(tl.uint32)[:, None]
        w0, w1, w2, w3 = philox(high, low, zero + draw_low, zero + draw_high, k0, k1)
        z0, z1, z2, z3 = noise_of_block(w0, w1, w2, w3, zero, GUMBEL)
        upper, lower = tl.interleave(z0, z1), tl.interleave(z2, z3)  # rows 2r and 2r + 1
        value += scale * tl.trans(tl.interleave(tl.trans(upper), tl.trans(lower)))
    i = (row * 2 * SIZE + tl.arange(0, 2 * SIZE)).to(tl.int64)
    j = (column * 2 * SIZE + tl.arange(0, 2 * SIZE)).to(tl.int64)
    word = word_of(value)
    inside = (i[:, None] < j[None, :]) & (j[None, :] < n)
    tl.store(words + i[:, None] * pitch + j[None, :], word, mask=inside)
    tl.store(words + j[:, None] * pitch + i[None, :], tl.trans(word), mask=tl.trans(inside))


@kernel(do_not_specialize=["seed", "first_draw", "first", "n_chunk"])
def perturb(
    similarity, words, seed, first_draw, epsilon, n, pitch, first, n_chunk,
    NOISY: tl.constexpr, GUMBEL: tl.constexpr, ANTITHETIC: tl.constexpr, SIZE: tl.constexpr, DRAWS: tl.constexpr,
):  # fmt: skip
    """One tile of draws ``first`` to ``first + n_chunk`` of one problem; words are (problems, n_chunk, n, pitch)."""
    n_tiles, tiles = n_tiles_of(n, SIZE)
    problem = (tl.program_id(0) // n_tiles).to(tl.int64)
    row, column = tile_of(tl.program_id(0) % n_tiles, tiles)
    value = similarity_tile(similarity + problem * n * n, n, row, column, True, SIZE)
    start = tl.program_id(1) * DRAWS
    for place in range(start, tl.minimum(start + DRAWS, n_chunk)):
        k0, k1, draw_low, draw_high, sign = draw_words(seed, first_draw, first + place, ANTITHETIC)
        write_tile(
            value, words + (problem * n_chunk + place) * n * pitch, n, pitch, row, column, sign * epsilon,
            k0, k1, draw_low, draw_high, NOISY, GUMBEL, SIZE,
        )  # fmt: skip


@triton.jit
def write_words(
    similarity, words, n, pitch, scale, k0, k1, draw_low, draw_high,
    SYMMETRIC: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """All words of a draw, by one program."""
    n_tiles, tiles = n_tiles_of(n, SIZE)
    for index in range(n_tiles):
        row, column = tile_of(index, tiles)
        value = similarity_tile(similarity, n, row, column, SYMMETRIC, SIZE)
        write_tile(
            value, words, n, pitch, row, column, scale, k0, k1, draw_low, draw_high, NOISY, GUMBEL, SIZE
        )  # fmt: skip
    tl.debug_barrier()
