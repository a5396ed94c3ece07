"""Gram matrix → standardised similarity in two kernels, and its gradient in three and a product: for CUDA tensors.

``bindings/torch_similarity.py`` has the formulas. Sums over all n² entries are float64, so float32 entries of any size
can be squared.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffclust.solvers.kernels.ahead import kernel

LARGEST = 2**15  # points, so that entries are counted in 32 bits
PROGRAMS = 128  # that share a sum
BLOCK = 1024  # entries
TILE = 32


@triton.jit
def _half_distances(gram, entry, n, size):
    """-|x_i - x_j|² / 2 of entries i * n + j, not above 0; 0 on the diagonal and where there are none."""
    i, j, inside = entry // n, entry % n, entry < size
    norms = tl.load(gram + i * (n + 1), inside, 0) + tl.load(gram + j * (n + 1), inside, 0)
    half = tl.load(gram + entry, inside, 0) - 0.5 * norms
    return tl.where(half > 0, 0, half)  # a NaN stays one


@triton.jit
def _store_sums(sums, problem, first, second, PROGRAMS: tl.constexpr):
    place = sums + (problem * PROGRAMS + tl.program_id(0)) * 2
    tl.store(place, tl.sum(first, 0))
    tl.store(place + 1, tl.sum(second, 0))


@triton.jit
def _load_sums(sums, problem, PROGRAMS: tl.constexpr):
    place = sums + (problem * PROGRAMS + tl.arange(0, PROGRAMS)) * 2
    return tl.sum(tl.load(place), 0), tl.sum(tl.load(place + 1), 0)


@kernel
def _sum_half_distances(gram, sums, n, size, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of half distances and of their squares."""
    problem = tl.program_id(1).to(tl.int64)
    first, second = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for start in range(0, size, PROGRAMS * BLOCK):
        entry = start + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        half = _half_distances(gram + problem * size, entry, n, size).to(tl.float64)
        first += half
        second += half * half
    _store_sums(sums, problem, first, second, PROGRAMS)


@kernel
def _standardize(gram, sums, s, scale, n, size, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    """Similarity s = (h - mean(h)) * scale, and scale = 1 / std(h); zeros where all h are equal."""
    problem = tl.program_id(1).to(tl.int64)
    first, second = _load_sums(sums, problem, PROGRAMS)
    mean = first / size
    variance = second / size - mean * mean
    factor = tl.where(variance > 1e-75, 1 / tl.sqrt(variance), 0)  # below, deviations are not normal numbers of 32 bits
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    half = _half_distances(gram + problem * size, entry, n, size)
    tl.store(s + problem * size + entry, (half.to(tl.float64) - mean) * factor, entry < size)
    tl.store(scale + problem, factor, tl.program_id(0) == 0)


@kernel
def _sum_cotangents(cotangent, s, sums, size, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of G and of G ∘ s."""
    problem = tl.program_id(1).to(tl.int64)
    first, second = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for start in range(0, size, PROGRAMS * BLOCK):
        entry = start + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = entry < size
        g = tl.load(cotangent + problem * size + entry, inside, 0).to(tl.float64)
        first += g
        second += g * tl.load(s + problem * size + entry, inside, 0)
    _store_sums(sums, problem, first, second, PROGRAMS)


@kernel
def _weigh(cotangent, s, sums, w, n, size, PROGRAMS: tl.constexpr, TILE: tl.constexpr):
    """W = G + Gᵀ - s mean((G + Gᵀ) ∘ s)."""
    problem = tl.program_id(2).to(tl.int64)
    _, second = _load_sums(sums, problem, PROGRAMS)
    i, j = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (i < n)[:, None] & (j < n)[None, :]
    here = problem * size + i.to(tl.int64)[:, None] * n + j[None, :]
    there = problem * size + j.to(tl.int64)[:, None] * n + i[None, :]  # the tile on the other side of the diagonal
    other = tl.load(cotangent + there, (j < n)[:, None] & (i < n)[None, :], 0)
    g = tl.load(cotangent + here, inside, 0) + tl.trans(other)
    factor = (2 * second / size).to(g.dtype)
    tl.store(w + here, g - factor * tl.load(s + here, inside, 0), inside)


@kernel
def _finish(w, product, x, sums, scale, gradient, n, d, size, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    """(W x - (W 1 - mean(W 1)) x) * scale, a row of it."""
    problem, row = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    first, _ = _load_sums(sums, problem, PROGRAMS)
    total = tl.zeros((BLOCK,), w.dtype.element_ty)
    for start in range(0, n, BLOCK):
        j = start + tl.arange(0, BLOCK)
        total += tl.load(w + problem * size + row * n + j, j < n, 0)
    weight = tl.sum(total, 0) - (2 * first / n).to(total.dtype)  # s sums to zero
    factor = tl.load(scale + problem)
    for start in range(0, d, BLOCK):
        column = start + tl.arange(0, BLOCK)
        place, inside = (problem * n + row) * d + column, column < d
        moved = tl.load(product + place, inside, 0) - weight * tl.load(x + place, inside, 0)
        tl.store(gradient + place, moved * factor, inside)


def standardize(gram: Tensor) -> tuple[Tensor, Tensor]:
    """The standardised similarity (..., n, n) of centred points with these products, and 1 / deviation (...)."""
    sums, n, size = _sums_of(gram)
    s, scale = torch.empty_like(gram), gram.new_empty(gram.shape[:-2])
    with torch.cuda.device_of(gram):
        _sum_half_distances[(PROGRAMS, len(sums))](gram, sums, n, size, PROGRAMS, BLOCK)
        grid = (triton.cdiv(size, BLOCK), len(sums))
        _standardize[grid](gram, sums, s, scale, n, size, PROGRAMS, BLOCK)
    return s, scale


def gradient(cotangent: Tensor, s: Tensor, x: Tensor, scale: Tensor, multiply: Any) -> Tensor:
    """The gradient of the points, of their centred values ``x`` (..., n, d); ``multiply`` is a product of matrices."""
    cotangent, w, result = cotangent.contiguous(), torch.empty_like(s), torch.empty_like(x)
    sums, n, size = _sums_of(s)
    with torch.cuda.device_of(s):
        _sum_cotangents[(PROGRAMS, len(sums))](cotangent, s, sums, size, PROGRAMS, BLOCK)
        tiles = triton.cdiv(n, TILE)
        _weigh[(tiles, tiles, len(sums))](cotangent, s, sums, w, n, size, PROGRAMS, TILE)
        product = multiply(w, x)
        _finish[(n, len(sums))](w, product, x, sums, scale, result, n, x.shape[-1], size, PROGRAMS, 128)
    return result


def _sums_of(matrices: Tensor) -> tuple[Tensor, int, int]:
    """Memory for two sums of each problem, n, and n²."""
    n = matrices.shape[-1]
    return matrices.new_empty((matrices.shape[:-2].numel(), PROGRAMS, 2), dtype=torch.float64), n, n * n
