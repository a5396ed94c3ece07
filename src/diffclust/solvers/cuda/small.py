"""Small problems: everything in one launch, because there the time goes into launches."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from diffclust.solvers.cuda.forests import add_to_counts, kept_edges, rank_of, value_of
from diffclust.solvers.cuda.keys import ends_of
from diffclust.solvers.cuda.launches import INTERPRETED, class_of, device_of, launch_again
from diffclust.solvers.cuda.noise import draw_words
from diffclust.solvers.cuda.ready import clamp
from diffclust.solvers.cuda.sums import mean_of_draws
from diffclust.solvers.cuda.trees import grow_tree, warps_for

SMALL = 128  # points up to which everything goes into one launch


@triton.jit(do_not_specialize=["seed", "first_draw", "n_clusters"])
def _prim_and_mean(
    similarity, n_clusters, point_labels, seed, first_draw, epsilon, n, n_draws, n_counts, counts, values, keys,
    means, adjacency,
    HALF: tl.constexpr, COUNTS: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr, ANTITHETIC: tl.constexpr,
    LABELS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """:func:`prim` on input that was not made ready, and the means over draws by the program that ends last.

    After its ``n_counts`` entries ``counts`` has a word for each problem: how many of its programs have ended.
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
    ended = tl.atomic_add(counts + n_counts + problem, 1, sem="acq_rel")
    if ended == n_solves * n_draws - 1:
        tl.store(means + problem, mean_of_draws(values, n_draws, LABELS, 128))
        if COUNTS:
            for start in range(0, n * n, 2048):
                pair = problem * n * n + start + tl.arange(0, 2048)
                inside = pair < (problem + 1) * n * n
                count = tl.load(counts + pair, mask=inside, other=0, cache_modifier=".cg")
                tl.store(adjacency + pair, _share(count.to(tl.float32), n_draws), mask=inside)


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
    labels: torch.Tensor | None = None,
    *,
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
    n_problems = similarity.numel() // (n * n)
    n_counts = n_problems * n * n if with_adjacency else 0
    items = n_problems * n_draws * (1 if labels is None else 2)
    counts = similarity.new_zeros(n_counts + n_problems, dtype=torch.int32)
    means = similarity.new_empty(similarity.shape[:-2])
    adjacency = torch.empty_like(similarity) if with_adjacency else None
    if items:
        warps = warps_for(n)
        kind = (warps, with_adjacency, epsilon != 0, noise == "gumbel", antithetic, labels is not None)
        with device_of(similarity):
            launch_again(
                _prim_and_mean, items,
                (similarity, n_clusters, points, seed, first_draw, float(epsilon), n, n_draws, n_counts, counts,
                 similarity.new_empty(items, dtype=torch.float32), similarity.new_empty(items * n, dtype=torch.int64),
                 means, means if adjacency is None else adjacency,
                 triton.next_power_of_2((n + 1) // 2), *kind[1:], warps),
                (kind, n, n_draws, n_counts, *map(class_of, (similarity, n_clusters, points, seed, first_draw))),
                warps,
            )  # fmt: skip
    return means, adjacency
