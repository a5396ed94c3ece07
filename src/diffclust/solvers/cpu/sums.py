"""Sums over draws: what expectations and gradients are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust import noise as noise_definition
from diffclust.noise import Draws
from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.philox import BLOCKS, NORMAL, next_blocks, noise_blocks, split_draw
from diffclust.solvers.cpu.threads import contiguous, in_threads


@jit
def _count_edges(edges, start, stop, counts):
    for problem in range(start, stop):
        for solve in range(edges.shape[1]):
            sign = 1 - 2 * solve
            for draw in range(edges.shape[2]):
                for e in range(edges.shape[3]):
                    i, j = edges[problem, solve, draw, e, 0], edges[problem, solve, draw, e, 1]
                    if i < 0:
                        break
                    counts[problem, i, j] += sign
                    counts[problem, j, i] += sign


def adjacency_counts(edges: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    """See :meth:`diffclust.solvers.base.Sums.adjacency_counts`."""
    edges = contiguous(edges)
    counts = np.zeros((edges.shape[0], n, n), np.int32)
    in_threads(lambda start, stop: _count_edges(edges, start, stop, counts), len(edges))
    return counts


@jit
def _count_pairs(labels, start, stop, counts):
    n = labels.shape[2]
    for item in range(start, stop):
        problem, i = item // n, item % n
        row = counts[problem, i]
        for draw in range(labels.shape[1]):
            tree = labels[problem, draw]
            own = tree[i]
            for j in range(n):
                row[j] += np.int32(tree[j] == own)


def connectivity_counts(labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """See :meth:`diffclust.solvers.base.Sums.connectivity_counts`."""
    labels = contiguous(labels)
    n_problems, _, n = labels.shape
    counts = np.zeros((n_problems, n, n), np.int32)
    in_threads(lambda start, stop: _count_pairs(labels, start, stop, counts), n_problems * n)
    return counts


@jit
def _edge_products(cotangent, edges, start, stop, products):
    n_draws = edges.shape[1]
    for item in range(start, stop):
        problem, draw = item // n_draws, item % n_draws
        total = 0.0
        for e in range(edges.shape[2]):
            i, j = edges[problem, draw, e, 0], edges[problem, draw, e, 1]
            if i < 0:
                break
            total += cotangent[problem, i, j] + cotangent[problem, j, i]
        products[problem, draw] = total


def adjacency_products(cotangent: NDArray[Any], edges: NDArray[np.int32]) -> NDArray[np.float64]:
    """See :meth:`diffclust.solvers.base.Sums.adjacency_products`."""
    return _products(_edge_products, cotangent, edges)


@jit
def _pair_products(cotangent, labels, start, stop, products):
    n_draws, n = labels.shape[1], labels.shape[2]
    for item in range(start, stop):
        problem, draw = item // n_draws, item % n_draws
        tree = labels[problem, draw]
        total = 0.0
        for i in range(n):
            row = cotangent[problem, i]
            for j in range(n):
                if tree[i] == tree[j]:
                    total += row[j]
        products[problem, draw] = total


def connectivity_products(cotangent: NDArray[Any], labels: NDArray[np.int32]) -> NDArray[np.float64]:
    """See :meth:`diffclust.solvers.base.Sums.connectivity_products`."""
    return _products(_pair_products, cotangent, labels)


def _products(kernel: Any, cotangent: NDArray[Any], forests: NDArray[np.int32]) -> NDArray[np.float64]:
    """What a kernel makes of the cotangent and each draw's edges or trees, (problems, draws)."""
    products = np.empty(forests.shape[:2], np.float64)
    cotangent, forests = contiguous(cotangent), contiguous(forests)
    in_threads(lambda start, stop: kernel(cotangent, forests, start, stop, products), products.size)
    return products


@jit
def _add_noise(weights, key_0, key_1, first_draw, antithetic, kind, blocks, words, z, sums, start, stop, total):
    """total[problem, i, j] = sum over draws of weight * score, for the blocks of block rows start..stop-1."""
    n_problems, n_draws = weights.shape
    n = total.shape[1]
    half = (n + 1) // 2
    rows, columns = blocks[0], blocks[1]
    row, column = start, start
    while row < stop:
        count, row, column = next_blocks(row, column, half, rows, columns)
        for problem in range(n_problems):
            for lane in range(2):
                for c in range(2 * count):
                    sums[problem, lane, c] = 0.0
        for draw in range(n_draws):
            low, high, sign = split_draw(first_draw + np.uint64(draw), antithetic)
            noise_blocks(rows[:count], columns[:count], key_0, key_1, low, high, kind, words, z)
            for problem in range(n_problems):
                weight = sign * weights[problem, draw]
                for lane in range(2):
                    target, source = sums[problem, lane], z[lane]
                    if kind == NORMAL:
                        for c in range(2 * count):
                            target[c] += weight * source[c]
                    else:
                        for c in range(2 * count):
                            target[c] += weight * (1.0 - np.exp(-source[c]))
        for c in range(count):
            for lane in range(4):
                a, b = 2 * np.int64(rows[c]) + lane // 2, 2 * np.int64(columns[c]) + lane % 2
                if rows[c] < stop and a < b and b < n:
                    for problem in range(n_problems):
                        total[problem, a, b] = total[problem, b, a] = sums[problem, lane // 2, 2 * c + lane % 2]


def noise_sum(weights: NDArray[Any], n: int, draws: Draws) -> NDArray[np.float64]:
    """See :meth:`diffclust.solvers.base.Solver.noise_sum`."""
    total = np.zeros((len(weights), n, n), np.float64)
    key_0, key_1 = noise_definition.split_seed(draws.seed)
    arguments = (
        np.ascontiguousarray(weights, np.float64),
        key_0,
        key_1,
        np.uint64(int(draws.first) % 2**64),
        draws.antithetic,
        noise_definition.kernel_of(draws.noise),
    )
    # Row r of the triangle of blocks is short when r is large: thread t gets the rows between these shares of it.
    half = (n + 1) // 2
    share = [round(half * (1 - (1 - t / _SHARES) ** 0.5)) for t in range(_SHARES + 1)]

    def work(start: int, stop: int) -> None:
        if share[start] < share[stop]:
            blocks, words = np.empty((2, BLOCKS), np.uint32), np.empty((4, BLOCKS), np.uint32)
            z, sums = np.empty((2, 2 * BLOCKS), np.float32), np.empty((len(weights), 2, 2 * BLOCKS), np.float64)
            _add_noise(*arguments, blocks, words, z, sums, share[start], share[stop], total)

    in_threads(work, _SHARES)
    return total


_SHARES = 64
