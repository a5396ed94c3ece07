"""Small problems: everything in one launch, because there the time goes into launches."""

from __future__ import annotations

import functools
import operator

import torch
import triton
import triton.language as tl

from diffclust.solvers.cuda.forests import add_to_counts, kept_edges, rank_of, value_of
from diffclust.solvers.cuda.keys import ends_of
from diffclust.solvers.cuda.launches import INTERPRETED, class_of, current_stream, device_of, launch_again
from diffclust.solvers.cuda.noise import draw_words
from diffclust.solvers.cuda.ready import clamp
from diffclust.solvers.cuda.sums import mean_of_draws
from diffclust.solvers.cuda.trees import grow_tree, warps_for

SMALL = 128  # points up to which everything goes into one launch


@triton.jit(do_not_specialize=["seed", "first_draw", "n_clusters"])
def _prim_and_mean(
    similarity, n_clusters, point_labels, seed, first_draw, epsilon, n, n_draws, ended, counts, values, keys,
    means, adjacency,
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
    point_labels += problem * n
    keys += item.to(tl.int64) * n
    values += problem * n_solves * n_draws
    k0, k1, draw_low, draw_high, sign = draw_words(seed, first_draw, draw, ANTITHETIC)
    grow_tree(
        similarity + problem * n * n, point_labels, solve == 1, keys, n, sign * epsilon, k0, k1, draw_low, draw_high,
        False, LABELS, HALF, NOISY, GUMBEL, WARPS,
    )  # fmt: skip
    if n_clusters.dtype.is_ptr():
        k = tl.load(n_clusters + problem)
    else:
        k = n_clusters
    if LABELS:
        k = clamp(k, point_labels, n, 2 * HALF)
    index = tl.arange(0, 2 * HALF)
    key = tl.load(keys + index, mask=index < n - 1, other=-1)
    kept, failed = kept_edges(key, rank_of(keys, n - 1, key), n, k.to(tl.int32))
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
    noise: str = "normal",
    antithetic: bool = False,
    with_adjacency: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Means over draws, of the value (...) and of the adjacency (..., n, n), for up to ``SMALL`` points.

    The numbers of :func:`make_ready`, :func:`solve` with ``free``, and :func:`mean_values`, in one launch.
    Similarity (..., n, n) of any float type need not be symmetric, n_clusters may be a number, labels are (..., n).
    """
    n = similarity.shape[-1]
    similarity = similarity.contiguous()
    points = similarity if labels is None else labels.contiguous()
    means = similarity.new_empty(similarity.shape[:-2])
    adjacency = torch.empty_like(similarity) if with_adjacency else None
    n_problems = means.numel()
    items = n_problems * n_draws * (1 if labels is None else 2)
    if items:
        kind = (with_adjacency, epsilon != 0, noise == "gumbel", antithetic, labels is not None)
        half, warps = _sizes(n)
        with device_of(similarity):
            workspace = _workspace(
                similarity, n_problems, n_problems * n * n if with_adjacency else 0, items, items * n
            )
            try:
                launch_again(
                    _prim_and_mean, items,
                    (similarity, n_clusters, points, seed, first_draw, epsilon, n, n_draws, *workspace, means,
                     means if adjacency is None else adjacency, half, *kind, warps),
                    (n, n_draws, kind, *map(class_of, (similarity, n_clusters, points, seed, first_draw))),
                    warps,
                )  # fmt: skip
            except BaseException:
                _workspaces.clear()  # who knows whether its zeros are zeros
                raise
    return means, adjacency


@functools.cache
def _sizes(n: int) -> tuple[int, int]:
    return triton.next_power_of_2((n + 1) // 2), warps_for(n)


_KEPT = 1 << 20  # entries of each up to which a workspace is kept
_Workspace = tuple[tuple[int, ...], tuple[torch.Tensor, ...]]  # sizes and tensors: ended, counts, values, keys
_NONE: _Workspace = ((0, 0, 0, 0), ())
_workspaces: dict[tuple[int, int], _Workspace] = {}


def _workspace(like: torch.Tensor, *sizes: int) -> tuple[torch.Tensor, ...]:
    """What the kernel needs beside input and output, ``ended`` and ``counts`` all 0.

    Each stream has one that is kept from call to call: the kernel leaves zeros behind. A CUDA graph may be replayed on
    any stream, so it gets one of its own, and so does what is large.
    """
    if max(sizes) > _KEPT or (like.is_cuda and torch.cuda.is_current_stream_capturing()):
        return _new_workspace(like, sizes)
    owner = current_stream(like)
    room, workspace = _workspaces.get(owner, _NONE)
    if any(map(operator.lt, room, sizes)):
        room = tuple(map(max, room, sizes))
        workspace = _new_workspace(like, room)
        _workspaces[owner] = room, workspace
    return workspace


def _new_workspace(like: torch.Tensor, sizes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    ended, counts, values, keys = sizes
    zeros = (like.new_zeros(size, dtype=torch.int32) for size in (ended, counts))
    return (*zeros, like.new_empty(values, dtype=torch.float32), like.new_empty(keys, dtype=torch.int64))
