"""The forest solver for CUDA: Triton, a program for every (problem, solve, draw), noise made inside the kernel.

**Idea.** A program runs Prim on ``similarity + epsilon * noise`` with its whole state in registers: one 64-bit key for
every vertex, its best edge to the tree. A key holds all that decides between edges, what counts most at the top::

    bit 63   in the tree: sticky under the unsigned maximum of an update, last under the signed one of a choice
    61 - 62  tier: 2 same label or must-link group, 1 different labels (a virtual edge), 0 all others, and if free
    29 - 60  weight, a float32 mapped to an unsigned integer of the same order
     1 - 28  complement of the edge (i, j), i < j, 14 bits each: equal weights go by smaller (i, j)
     0       whether the new vertex is j

so one maximum decides a round, ties included, and the keys of the rounds are the spanning tree. Which of its edges
stay, and in what order, is then found by counting, for each, the stronger ones. In one pass, the constrained tree shows
the blocks of points that end up together, which are the same for both rules, and ``inside.py`` finds their trees.
General cannot-links go through ``greedy.agglomerate``, the greedy itself; which problems have them, only kernels know.

**Cost.** A round takes one row of the similarity, n normals and one reduction; a draw n - 1 rounds. Each call of the
generator serves vertices 2c and 2c + 1, which therefore share a lane, as two arrays, "even" and "odd". A vertex takes
some 115 instructions in a round, 95 of them for its noise: large problems are bound by arithmetic, small ones by the
latency of a round. Memory is O(draws * n) beside the similarity. Nothing here waits for the device.

The noise is that of :mod:`diffclust.noise` to the last bit, so kernels run with ``enable_fp_fusion=False``.

The way of a draw: ``philox.py`` makes rows of the perturbed similarity, ``keys.py`` their keys, ``trees.py`` the tree,
``forests.py`` what is returned of it; ``ready.py`` and ``closures.py`` stand before them, ``sums.py`` behind.
``small.py`` is all of that in one launch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from diffclust import noise as definition
from diffclust.noise import Draws
from diffclust.solvers.base import Answer, Request
from diffclust.solvers.cuda.closures import number_closures
from diffclust.solvers.cuda.greedy import agglomerate
from diffclust.solvers.cuda.inside import finish_one_pass
from diffclust.solvers.cuda.launches import device_of, launch
from diffclust.solvers.cuda.ready import make_ready
from diffclust.solvers.cuda.small import SMALL, mean_in_one_launch
from diffclust.solvers.cuda.sums import (
    adjacency_counts,
    adjacency_products,
    connectivity_counts,
    connectivity_products,
    mean_values,
    noise_sum,
)
from diffclust.solvers.cuda.trees import prim, warps_for

__all__ = [
    "adjacency_counts",
    "adjacency_products",
    "connectivity_counts",
    "connectivity_products",
    "noise_sum",
    "solve",
]

MAX_POINTS = 1 << 14  # an index has 14 bits in a key
SCRATCH_BYTES = 1 << 30  # of the general greedy, which needs n x n for each draw in flight


def solve(request: Request) -> Answer:
    """Solve all problems and draws; see :class:`diffclust.solvers.base.Request`.

    Similarities of any float dtype are computed in float32. Seed and first draw are integers, or int64 scalars on the
    device, which only the kernels read. Nothing waits for the device, so whether k is reached is never checked.
    """
    similarity, k, draws = request.similarity, request.n_clusters, request.draws
    _check_size(similarity.shape[-1])
    definition.kernel_of(draws.noise)
    if request.detail == "mean" and _fits_one_launch(request):
        return Answer(*mean_in_one_launch(similarity, k, request.labels, *draws, with_adjacency=request.adjacency))
    if isinstance(k, int):
        k = torch.full(similarity.shape[:1], k, device=similarity.device)
    clamped = request.labels if request.if_infeasible == "clamp" else None
    symmetric, k, counts = make_ready(similarity, k, clamped, request.adjacency)
    forests = find_forests(
        symmetric, k, request.labels, request.relation, request.must_link_first, request.free, draws,
        with_labels=request.detail == "forests", counts=counts,
    )  # fmt: skip
    mean = mean_values(forests.values).to(similarity.dtype)
    adjacency = None if counts is None else counts.to(similarity.dtype) / draws.n_draws
    if request.detail == "mean":
        return Answer(mean, adjacency)
    labels = forests.labels if request.detail == "forests" else None
    return Answer(mean, adjacency, forests.values, forests.edges, labels)


def _fits_one_launch(request: Request) -> bool:
    """Whether ``small.py`` can do it: few points, and no constraints, or labels with both solves and k to be moved."""
    if request.similarity.shape[-1] > SMALL or request.relation is not None:
        return False
    with_labels = request.must_link_first and request.free and request.if_infeasible == "clamp"
    return request.labels is None or with_labels


class Forests(NamedTuple):
    """The forests of ``problems x solves x draws``, as in :class:`Answer`."""

    edges: torch.Tensor
    labels: torch.Tensor  # of length 0 if not asked for
    values: torch.Tensor


def find_forests(
    similarity: torch.Tensor,
    n_clusters: torch.Tensor,
    labels: torch.Tensor | None,
    relation: torch.Tensor | None,
    must_link_first: bool,
    free: bool,
    draws: Draws,
    with_labels: bool = True,
    counts: torch.Tensor | None = None,
) -> Forests:
    """The forests of input that is ready.

    Args:
        similarity: (problems, n, n) float32, exactly symmetric.
        n_clusters: (problems,) integers.
        labels, relation, must_link_first, free, draws: see :class:`Request`.
        with_labels: False leaves out the trees of the points.
        counts: (problems, n, n) int32 zeros, to which the edges are added as in :func:`adjacency_counts`.
    """
    n_problems, n, _ = similarity.shape
    constrained = labels is not None or relation is not None
    free = free or not constrained
    n_solves = int(free) + int(constrained)
    n_draws, seed, first_draw, epsilon = draws.n_draws, draws.seed, draws.first, float(draws.epsilon)
    forests = Forests(
        similarity.new_empty((n_problems, n_solves, n_draws, max(n - 1, 0), 2), dtype=torch.int32),
        similarity.new_empty((n_problems, n_solves, n_draws, n if with_labels else 0), dtype=torch.int32),
        similarity.new_empty((n_problems, n_solves, n_draws), dtype=torch.float32),
    )
    if n == 0 or n_problems * n_draws == 0:
        forests.values.zero_()
        return forests

    half = triton.next_power_of_2((n + 1) // 2)
    similarity, n_clusters = similarity.contiguous(), n_clusters.contiguous()
    options = {
        "NOISY": epsilon != 0, "GUMBEL": draws.noise == "gumbel", "ANTITHETIC": draws.antithetic,
        "WITH_LABELS": with_labels, "HALF": half,
    }  # fmt: skip
    counted = similarity if counts is None else counts  # a pointer that is not read where there are none
    one_pass = constrained and not must_link_first
    in_main_kernel = 2 if one_pass else n_solves
    items = n_problems * in_main_kernel * n_draws
    warps = warps_for(n)
    with device_of(similarity):
        if relation is not None:
            relation = relation.contiguous()
            points, n_known = number_closures(relation)
        else:
            points = n_known = similarity if labels is None else labels.contiguous()
        scratch = _scratch(similarity, items, n, with_labels)
        numbers = {"JUMPS": (n - 1).bit_length(), "COUNTS": counts is not None, "GROUPS": relation is not None}
        prim[(items,)](
            similarity, n_clusters, points, n_known, seed, first_draw, epsilon, n, n_draws, in_main_kernel,
            n_solves, counted, *forests, *scratch, LABELS=constrained, ONE_PASS=one_pass, WARPS=warps, **numbers,
            **options, **launch(warps),
        )  # fmt: skip
        if one_pass:
            finish_one_pass(
                similarity, points, n_known, seed, first_draw, epsilon, n_draws, n_solves, counted, forests, scratch,
                numbers, options,
            )  # fmt: skip
        if relation is not None:
            # 9 bytes a pair: an int64 key and an int8 flag.
            programs = max(1, min(n_problems * n_draws, SCRATCH_BYTES // (9 * n * n)))
            agglomerate[(programs,)](
                similarity, n_clusters, relation, points, n_known, seed, first_draw, epsilon, n, n_problems,
                n_draws, n_solves, counted, *forests, *_scratch(similarity, programs, n, True),
                similarity.new_empty((programs, n, n), dtype=torch.int64),
                similarity.new_empty((programs, n, n), dtype=torch.int8),
                MUST_LINK_FIRST=must_link_first, COUNTS=counts is not None, **options, **launch(warps_for(n)),
            )  # fmt: skip
    return forests


def _check_size(n: int) -> None:
    if n > MAX_POINTS:
        raise ValueError(f"The CUDA solver takes up to {MAX_POINTS} points, got {n}. Use the CPU for more.")


def _scratch(like: torch.Tensor, items: int, n: int, with_labels: bool) -> tuple[torch.Tensor, ...]:
    """For each program the keys of its tree and room for its blocks, and two arrays to number the trees with."""
    keys = like.new_empty((items, 2 * n), dtype=torch.int64)
    numbering = like.new_empty((2, items if with_labels else 0, n), dtype=torch.int32)
    return keys, numbering[0], numbering[1]
