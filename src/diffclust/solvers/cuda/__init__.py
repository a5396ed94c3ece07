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

The way of a draw: ``noise.py`` makes rows of the perturbed similarity, ``keys.py`` their keys, ``trees.py`` the tree,
``forests.py`` what is returned of it; ``ready.py`` and ``closures.py`` stand before them, ``sums.py`` behind.
``small.py`` is all of that in one launch.
"""

from __future__ import annotations

import torch
import triton

from diffclust import noise as definition
from diffclust.solvers import Forests
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
    "SMALL", "adjacency_counts", "adjacency_products", "connectivity_counts", "connectivity_products", "make_ready",
    "mean_in_one_launch", "mean_values", "noise_sum", "solve",
]  # fmt: skip

MAX_POINTS = 1 << 14  # an index has 14 bits in a key
SCRATCH_BYTES = 1 << 30  # of the general greedy, which needs n x n for each draw in flight


def solve(
    similarity: torch.Tensor,
    n_clusters: torch.Tensor,
    *,
    labels: torch.Tensor | None = None,
    relation: torch.Tensor | None = None,
    must_link_first: bool = True,
    free: bool = True,
    seed: torch.Tensor | int,
    first_draw: torch.Tensor | int,
    n_draws: int = 1,
    epsilon: float = 0.0,
    noise: str = "normal",
    antithetic: bool = False,
    with_labels: bool = True,
    counts: torch.Tensor | None = None,
    num_warps: int | None = None,
) -> Forests:
    """Forests of ``similarity + epsilon * noise`` for every problem and draw, as ``solvers.cpu.solve`` gives them.

    Args:
        similarity: (problems, n, n) float32, exactly symmetric; the diagonal is ignored.
        n_clusters: (problems,) integers.
        labels: (problems, n) int64, negative is unknown; or
        relation: (problems, n, n) int8, 1 same, 0 different, -1 unknown, transitively closed; or neither.
        free: also (or, without constraints, only) the forests without constraints.
        seed, first_draw: integers, or int64 scalars on the device, which only the kernels read.
        with_labels: False leaves out the trees of the points (``labels`` has length 0).
        counts: (problems, n, n) int32 zeros, to which the edges are added as in :func:`adjacency_counts`.
        num_warps: of the main kernel, for measurements; see :func:`warps_for`.

    A draw with a NaN gets a NaN value, no edges and labels 0.
    """
    n_problems, n = _check_similarity(similarity)
    definition.check_kind(noise)
    constrained = labels is not None or relation is not None
    free = free or not constrained
    n_solves = int(free) + int(constrained)
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
    draws = {
        "NOISY": epsilon != 0, "GUMBEL": noise == "gumbel", "ANTITHETIC": antithetic, "WITH_LABELS": with_labels,
        "HALF": half,
    }  # fmt: skip
    counted = similarity if counts is None else counts  # a pointer that is not read where there are none
    one_pass = constrained and not must_link_first
    in_main_kernel = 2 if one_pass else n_solves
    items = n_problems * in_main_kernel * n_draws
    warps = num_warps or warps_for(n)
    with device_of(similarity):
        if relation is not None:
            relation = relation.contiguous()
            points, n_known = number_closures(relation)
        else:
            points = n_known = similarity if labels is None else labels.contiguous()
        scratch = _scratch(similarity, items, n, with_labels)
        numbers = {"JUMPS": (n - 1).bit_length(), "COUNTS": counts is not None, "GROUPS": relation is not None}
        prim[(items,)](
            similarity, n_clusters, points, n_known, seed, first_draw, float(epsilon), n, n_draws, in_main_kernel,
            n_solves, counted, *forests, *scratch, LABELS=constrained, ONE_PASS=one_pass, WARPS=warps, **numbers,
            **draws, **launch(warps),
        )  # fmt: skip
        if one_pass:
            finish_one_pass(
                similarity, points, n_known, seed, first_draw, epsilon, n_draws, n_solves, counted, forests, scratch,
                numbers, draws,
            )  # fmt: skip
        if relation is not None:
            # 9 bytes a pair: an int64 key and an int8 flag.
            programs = max(1, min(n_problems * n_draws, SCRATCH_BYTES // (9 * n * n)))
            agglomerate[(programs,)](
                similarity, n_clusters, relation, points, n_known, seed, first_draw, float(epsilon), n, n_problems,
                n_draws, n_solves, counted, *forests, *_scratch(similarity, programs, n, True),
                similarity.new_empty((programs, n, n), dtype=torch.int64),
                similarity.new_empty((programs, n, n), dtype=torch.int8),
                MUST_LINK_FIRST=must_link_first, COUNTS=counts is not None, **draws, **launch(warps_for(n)),
            )  # fmt: skip
    return forests


def _check_similarity(similarity: torch.Tensor) -> tuple[int, int]:
    if similarity.dtype != torch.float32:
        raise TypeError(f"The CUDA solver computes in float32, got {similarity.dtype}. Pass similarity.float().")
    n_problems, n, _ = similarity.shape
    if n > MAX_POINTS:
        raise ValueError(f"The CUDA solver takes up to {MAX_POINTS} points, got {n}. Use the CPU for more.")
    return n_problems, n


def _scratch(like: torch.Tensor, items: int, n: int, with_labels: bool) -> tuple[torch.Tensor, ...]:
    """For each program the keys of its tree and room for its blocks, and two arrays to number the trees with."""
    keys = like.new_empty((items, 2 * n), dtype=torch.int64)
    numbering = like.new_empty((2, items if with_labels else 0, n), dtype=torch.int32)
    return keys, numbering[0], numbering[1]
