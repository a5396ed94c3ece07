"""Sums over draws: what expectations and gradients are made of."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from diffclust import noise as definition
from diffclust.noise import Draws
from diffclust.solvers.cuda.launches import device_of
from diffclust.solvers.kernels.ahead import kernel
from diffclust.solvers.kernels.forests import add_to_counts, mean_of_draws
from diffclust.solvers.kernels.launches import launch
from diffclust.solvers.kernels.philox import draw_words, noise_of_block, philox


def _by_problem(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied only if a problem's part of it is not contiguous: ``forests.edges[:, 0]`` is used in place."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()


@kernel
def _mean(values, means, n_draws, TWO: tl.constexpr, BLOCK: tl.constexpr):
    problem = tl.program_id(0).to(tl.int64)
    tl.store(means + problem, mean_of_draws(values + problem * n_draws * (2 if TWO else 1), n_draws, TWO, BLOCK))


def mean_values(values: torch.Tensor) -> torch.Tensor:
    """(problems,) mean over draws of values (problems, solves, draws); of two solves, the mean gap between them."""
    n_problems, n_solves, n_draws = values.shape
    means = values.new_empty((n_problems,))
    if n_problems:
        with device_of(values):
            _mean[(n_problems,)](values.contiguous(), means, n_draws, TWO=n_solves == 2, BLOCK=128, **launch(1))
    return means


@kernel
def _count_edges(edges, counts, n, n_edges, BLOCK: tl.constexpr):
    """Add the edges of one problem's first solve, all draws in a row, to its counts; subtract those of the second."""
    solve, problem = tl.program_id(1), tl.program_id(2).to(tl.int64)
    edge = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    edges += (problem * tl.num_programs(1) + solve) * n_edges * 2
    i = tl.load(edges + 2 * edge, mask=edge < n_edges, other=-1)
    j = tl.load(edges + 2 * edge + 1, mask=edge < n_edges, other=-1)
    add_to_counts(counts + problem * n * n, i, j, solve, n)


def adjacency_counts(edges: torch.Tensor, n: int) -> torch.Tensor:
    """See :meth:`diffclust.solvers.base.Sums.adjacency_counts`."""
    n_problems, n_solves, n_draws, per_draw, _ = edges.shape
    counts = edges.new_zeros((n_problems, n, n), dtype=torch.int32)
    n_edges = n_draws * per_draw
    if n_problems * n_edges:
        with device_of(edges):
            grid = (triton.cdiv(n_edges, 256), n_solves, n_problems)
            _count_edges[grid](edges.contiguous(), counts, n, n_edges, BLOCK=256, **launch(4))
    return counts


@kernel
def _count_pairs(labels, labels_stride, counts, n, n_draws, BLOCK: tl.constexpr):
    """A tile of the matrix that counts the draws in which i and j share a tree."""
    problem = tl.program_id(2).to(tl.int64)
    i, j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    labels += problem * labels_stride
    count = tl.zeros((BLOCK, BLOCK), tl.int32)
    for draw in range(n_draws):
        row = labels + tl.cast(draw, tl.int64) * n
        own = tl.load(row + i, mask=i < n, other=-1)
        other = tl.load(row + j, mask=j < n, other=-1)
        count += (own[:, None] == other[None, :]).to(tl.int32)
    offset = problem * n * n + i[:, None].to(tl.int64) * n + j[None, :]
    tl.store(counts + offset, count, mask=(i[:, None] < n) & (j[None, :] < n))


def connectivity_counts(labels: torch.Tensor) -> torch.Tensor:
    """See :meth:`diffclust.solvers.base.Sums.connectivity_counts`."""
    n_problems, n_draws, n = labels.shape
    counts = labels.new_empty((n_problems, n, n), dtype=torch.int32)
    if n_problems * n:
        labels = _by_problem(labels)
        with device_of(labels):
            tiles = triton.cdiv(n, 32)
            grid = (tiles, tiles, n_problems)
            _count_pairs[grid](labels, labels.stride(0), counts, n, n_draws, BLOCK=32, **launch(4))
    return counts


@kernel
def _multiply_edges(cotangent, edges, edges_stride, products, n, n_draws, BLOCK: tl.constexpr):
    """One draw's sum of the cotangent over its edges, both ways."""
    draw, problem = tl.program_id(0), tl.program_id(1).to(tl.int64)
    edges += problem * edges_stride + tl.cast(draw, tl.int64) * (n - 1) * 2
    cotangent += problem * n * n
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n - 1, BLOCK):
        edge = start + tl.arange(0, BLOCK)
        i = tl.load(edges + 2 * edge, mask=edge < n - 1, other=-1).to(tl.int64)
        j = tl.load(edges + 2 * edge + 1, mask=edge < n - 1, other=-1).to(tl.int64)
        total += tl.load(cotangent + i * n + j, mask=i >= 0, other=0.0)
        total += tl.load(cotangent + j * n + i, mask=i >= 0, other=0.0)
    tl.store(products + problem * n_draws + draw, tl.sum(total, axis=0))


def adjacency_products(cotangent: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """See :meth:`diffclust.solvers.base.Sums.adjacency_products`."""
    (n_problems, n_draws), dtype = edges.shape[:2], cotangent.dtype
    products = cotangent.new_empty((n_problems, n_draws), dtype=torch.float32)
    if n_problems * n_draws:
        cotangent, edges = cotangent.float().contiguous(), _by_problem(edges)
        with device_of(edges):
            block = min(triton.next_power_of_2(max(edges.shape[2], 32)), 1024)
            _multiply_edges[(n_draws, n_problems)](
                cotangent, edges, edges.stride(0), products, cotangent.shape[-1], n_draws, BLOCK=block, **launch(4)
            )
    return products.to(dtype)


@kernel
def _multiply_pairs(cotangent, labels, labels_stride, partial, n, n_draws, DRAWS: tl.constexpr, BLOCK: tl.constexpr):
    """A tile's share of <cotangent, M> for ``DRAWS`` draws: the tile is read once for all of them."""
    tiles = tl.cdiv(n, BLOCK)
    tile, problem = tl.program_id(0), tl.program_id(2).to(tl.int64)
    i, j = (tile // tiles) * BLOCK + tl.arange(0, BLOCK), (tile % tiles) * BLOCK + tl.arange(0, BLOCK)
    inside = (i[:, None] < n) & (j[None, :] < n)
    part = tl.load(cotangent + problem * n * n + i[:, None].to(tl.int64) * n + j[None, :], mask=inside, other=0.0)
    labels += problem * labels_stride
    partial += (problem * tiles * tiles + tile) * n_draws
    first = tl.program_id(1) * DRAWS
    for draw in range(first, tl.minimum(first + DRAWS, n_draws)):
        row = labels + tl.cast(draw, tl.int64) * n
        own = tl.load(row + i, mask=i < n, other=-1)
        other = tl.load(row + j, mask=j < n, other=-1)
        same = tl.where(own[:, None] == other[None, :], part, 0.0)
        tl.store(partial + draw, tl.sum(tl.sum(same, axis=1), axis=0))


def connectivity_products(cotangent: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """See :meth:`diffclust.solvers.base.Sums.connectivity_products`."""
    (n_problems, n_draws, n), dtype = labels.shape, cotangent.dtype
    block = 32 if n <= 1024 else 64
    tiles = triton.cdiv(n, block) ** 2
    partial = cotangent.new_empty((n_problems, tiles, n_draws), dtype=torch.float32)
    if partial.numel():
        cotangent, labels = cotangent.float().contiguous(), _by_problem(labels)
        with device_of(labels):
            grid = (tiles, triton.cdiv(n_draws, 16), n_problems)
            _multiply_pairs[grid](
                cotangent, labels, labels.stride(0), partial, n, n_draws, DRAWS=16, BLOCK=block, **launch(4)
            )
    return partial.sum(dim=1).to(dtype)


@triton.jit
def _score(z, GUMBEL: tl.constexpr):
    """Minus the derivative of the noise's log-density."""
    return 1.0 - tl.exp(-z) if GUMBEL else z


@kernel(do_not_specialize=["seed", "first_draw"])
def _weigh_noise(
    weights, seed, first_draw, out, n, n_draws,
    DRAWS: tl.constexpr, BLOCK: tl.constexpr, GUMBEL: tl.constexpr, ANTITHETIC: tl.constexpr,
):  # fmt: skip
    """``BLOCK`` 2 x 2 blocks in one row of blocks: all four words of the generator serve, each pair is drawn once."""
    row, problem = tl.program_id(0), tl.program_id(2).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if (tl.program_id(1) + 1) * BLOCK <= row:  # below the diagonal: written from above it
        return
    weights += problem * n_draws
    out += problem * n * n
    high, low = tl.maximum(column, row).to(tl.uint32), tl.minimum(column, row).to(tl.uint32)
    sum_0, sum_1 = tl.zeros((DRAWS, BLOCK), tl.float32), tl.zeros((DRAWS, BLOCK), tl.float32)
    sum_2, sum_3 = tl.zeros((DRAWS, BLOCK), tl.float32), tl.zeros((DRAWS, BLOCK), tl.float32)
    for start in range(0, n_draws, DRAWS):
        draw = start + tl.arange(0, DRAWS)
        k0, k1, draw_low, draw_high, sign = draw_words(seed, first_draw, draw, ANTITHETIC)
        weight = (tl.load(weights + draw, mask=draw < n_draws, other=0.0) * sign)[:, None]
        zero = tl.zeros((DRAWS, BLOCK), tl.uint32)
        w0, w1, w2, w3 = philox(
            zero + high[None, :], zero + low[None, :], zero + draw_low[:, None], zero + draw_high[:, None], k0, k1
        )
        z0, z1, z2, z3 = noise_of_block(w0, w1, w2, w3, zero, GUMBEL)
        sum_0 += weight * _score(z0, GUMBEL)
        sum_1 += weight * _score(z1, GUMBEL)
        sum_2 += weight * _score(z2, GUMBEL)
        sum_3 += weight * _score(z3, GUMBEL)
    i, j = 2 * row, 2 * column
    _store_pair(out, i, j, tl.sum(sum_0, axis=0), n)
    _store_pair(out, i, j + 1, tl.sum(sum_1, axis=0), n)
    _store_pair(out, i + 1, j, tl.sum(sum_2, axis=0), n)
    _store_pair(out, i + 1, j + 1, tl.sum(sum_3, axis=0), n)


@triton.jit
def _store_pair(out, i, j, value, n):
    """Write both entries of a pair i < j, or a zero on the diagonal; i is a scalar, j a vector."""
    tl.store(out + tl.cast(i, tl.int64) * n + j, tl.where(i == j, 0.0, value), mask=(i <= j) & (j < n))
    tl.store(out + j.to(tl.int64) * n + i, value, mask=(i < j) & (j < n))


def noise_sum(weights: torch.Tensor, n: int, draws: Draws) -> torch.Tensor:
    """See :meth:`diffclust.solvers.base.Solver.noise_sum`."""
    definition.kernel_of(draws.noise)
    n_problems, n_draws = weights.shape
    result = weights.new_empty((n_problems, n, n), dtype=torch.float32)
    if result.numel():
        half = (n + 1) // 2
        block = min(triton.next_power_of_2(half), 32)
        with device_of(weights):
            _weigh_noise[(half, triton.cdiv(half, block), n_problems)](
                weights.float().contiguous(), draws.seed, draws.first, result, n, n_draws,
                DRAWS=8, BLOCK=block, GUMBEL=draws.noise == "gumbel", ANTITHETIC=draws.antithetic, **launch(4),
            )  # fmt: skip
    return result.to(weights.dtype)
