"""Small problems: everything in one launch, because there the time goes into launches."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl

from diffclust.frameworks import is_captured
from diffclust.noise import Noise
from diffclust.solvers.cuda.forests import add_to_counts, value_of
from diffclust.solvers.cuda.keys import ends_of
from diffclust.solvers.cuda.launches import INTERPRETED, Launch, class_of, device_of, stream_of
from diffclust.solvers.cuda.philox import draw_words
from diffclust.solvers.cuda.ready import clamp
from diffclust.solvers.cuda.sums import mean_of_draws
from diffclust.solvers.cuda.trees import forest_of_tree, grow_tree, warps_for

SMALL = 128  # points up to which everything goes into one launch
_KEPT = 1 << 24  # bytes up to which a workspace is kept for the next call


@triton.jit(do_not_specialize=["seed", "first_draw", "n_clusters"])
def _prim_and_mean(
    similarity, point_labels, means, adjacency, n_clusters, seed, first_draw, epsilon,
    ended, counts, values, keys, n, n_draws,
    HALF: tl.constexpr, COUNTS: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr, ANTITHETIC: tl.constexpr,
    LABELS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """:func:`prim` on input that was not made ready, and the means over draws by the program that ends last.

    ``ended`` (problems,), how many of a problem's programs have ended, and ``counts`` (problems, n, n) are 0 before
    and after.
    """
    n_solves = 2 if LABELS else 1
    item = tl.program_id(0)
    draw = item % n_draws
    solve = (item // n_draws) % n_solves
    problem = (item // n_draws // n_solves).to(tl.int64)
    similarity += problem * n * n
    point_labels += problem * n
    keys += item.to(tl.int64) * 2 * n
    values += problem * n_solves * n_draws
    k0, k1, draw_low, draw_high, sign = draw_words(seed, first_draw, draw, ANTITHETIC)
    grow_tree(
        similarity, point_labels, solve == 1, keys, n, sign * epsilon, k0, k1, draw_low, draw_high,
        False, LABELS, False, False, HALF, NOISY, GUMBEL, WARPS,
    )  # fmt: skip
    if n_clusters.dtype.is_ptr():
        k = tl.load(n_clusters + problem)
    else:
        k = n_clusters
    if LABELS:
        k = clamp(k, point_labels, n, 2 * HALF)
    key, _, kept, failed = forest_of_tree(
        similarity, point_labels, keys, n, k.to(tl.int32), sign * epsilon, k0, k1, draw_low, draw_high,
        False, LABELS, False, HALF, NOISY, GUMBEL, WARPS,
    )  # fmt: skip
    tl.store(values + solve * n_draws + draw, value_of(key, kept, failed))
    if COUNTS:
        i, j, _ = ends_of(key)
        add_to_counts(counts + problem * n * n, tl.where(kept, i, -1), j, solve, n)
    tl.debug_barrier()
    if tl.atomic_add(ended + problem, 1, sem="acq_rel") == n_solves * n_draws - 1:
        tl.store(ended + problem, 0)
        tl.store(means + problem, mean_of_draws(values, n_draws, LABELS, 128))
        if COUNTS:
            for start in range(0, n * n, 2048):
                pair = problem * n * n + start + tl.arange(0, 2048)
                inside = pair < (problem + 1) * n * n
                count = tl.load(counts + pair, mask=inside, other=0, cache_modifier=".cg")
                tl.store(adjacency + pair, _share(count.to(tl.float32), n_draws), mask=inside)
                tl.store(counts + pair, 0, mask=inside)


@triton.jit
def _share(count, n_draws):
    """``count / n_draws``, correctly rounded: a quotient, and its remainder's share of it."""
    draws = tl.full(count.shape, 1.0, tl.float32) * n_draws
    if INTERPRETED:
        quotient = count / draws
    else:
        inverse = tl.div_rn(tl.full((), 1.0, tl.float32), tl.full((), 1.0, tl.float32) * n_draws)
        quotient = count * inverse
        quotient = tl.fma(tl.fma(-quotient, draws, count), inverse, quotient)
    return quotient


def mean_in_one_launch(
    similarity: torch.Tensor,
    n_clusters: torch.Tensor | int,
    labels: torch.Tensor | None,
    seed: torch.Tensor | int,
    first_draw: torch.Tensor | int,
    n_draws: int,
    epsilon: float,
    noise: str | Noise = "normal",
    antithetic: bool = False,
    with_adjacency: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Means over draws, of the value (...) and of the adjacency (..., n, n), for up to ``SMALL`` points.

    The numbers of :func:`make_ready`, :func:`solve` with ``free``, and :func:`mean_values`, in one launch.
    Similarity (..., n, n) of any float type need not be symmetric, n_clusters may be a number, labels are (..., n).
    """
    similarity = similarity.contiguous()
    points = similarity if labels is None else labels.contiguous()
    if not isinstance(n_clusters, int):
        n_clusters = n_clusters.contiguous()
    means = similarity.new_empty(tuple(similarity.shape)[:-2])
    adjacency = torch.empty_like(similarity) if with_adjacency else None
    if means.numel():
        stream = stream_of(similarity)
        with device_of(similarity):
            counts, keys = 4 * similarity.numel(), 32 * means.numel() * n_draws * similarity.shape[-1]
            own = is_captured(similarity) or counts + keys > _KEPT
            prepare = _prepare if own else _prepare_once
            launch = prepare(
                similarity.device, stream, similarity.shape, n_draws,
                (with_adjacency, epsilon != 0, noise == "gumbel", antithetic, labels is not None),
                (similarity.dtype, points.dtype, class_of(n_clusters), class_of(seed), class_of(first_draw)),
            )  # fmt: skip
            try:
                launch(
                    stream, (similarity, points, means, means if adjacency is None else adjacency),
                    (n_clusters, seed, first_draw, epsilon),
                )  # fmt: skip
            except BaseException:
                _prepare_once.cache_clear()  # a kernel that stopped halfway may have left counts behind
                raise
    return means, adjacency


def _prepare(
    device: torch.device, stream: int, shape: torch.Size, n_draws: int, kind: tuple[bool, ...], classes: tuple[Any, ...]
) -> Launch:
    """A launch for input of these sizes on this stream, with what it needs beside input and output.

    The kernel leaves the zeros behind that it needs, so that the next launch can follow. A CUDA graph may be replayed
    on any stream and must have a workspace of its own.
    """
    *batch_shape, n, _ = shape
    n_problems, n_solves = math.prod(batch_shape), 2 if kind[-1] else 1
    items = n_problems * n_solves * n_draws
    start = -(-n_problems // 4) * 4  # kernels expect pointers to multiples of 16 bytes
    zeros = torch.zeros(start + n_problems * n * n, dtype=torch.int32, device=device)
    values = torch.empty(items, dtype=torch.float32, device=device)
    keys = torch.empty(items * 2 * n, dtype=torch.int64, device=device)
    half, warps = triton.next_power_of_2((n + 1) // 2), warps_for(n)
    return Launch(_prim_and_mean, items, warps, (zeros, zeros[start:], values, keys), (n, n_draws, half, *kind, warps))


_prepare_once = functools.lru_cache(maxsize=8)(_prepare)
