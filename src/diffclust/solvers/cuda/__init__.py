"""The forest solver for torch tensors on CUDA: which of the ``kernels`` are launched, and in which memory.

The way of a request: ``small.py`` where one launch will do. Else ``ready.py`` (symmetry, closures), then the kernels in
chunks of as many draws as ``words_bytes`` allows, then ``greedy.py`` for general cannot-links; ``sums.py`` behind.
Nothing here waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from diffclust import noise as definition
from diffclust.solvers.base import Answer, Request
from diffclust.solvers.cuda.greedy import solve_greedily
from diffclust.solvers.cuda.launches import device_of, multiprocessors
from diffclust.solvers.cuda.ready import Ready
from diffclust.solvers.cuda.small import fits_one_launch, mean_in_one_launch
from diffclust.solvers.cuda.sums import mean_values, noise_sum
from diffclust.solvers.kernels.draws import N_NUMBERS, N_ROWS, solve_draws, write_constrained
from diffclust.solvers.kernels.inside import PARTS, grow_units
from diffclust.solvers.kernels.launches import MAX_GRID, MAX_POINTS, by_rounds, launch, warps_for, warps_inside
from diffclust.solvers.kernels.weights import DRAWS_AT_ONCE, TILE, grid_of, perturb, pitch_of

__all__ = ["noise_sum", "solve"]

COUNTED = 2048  # points up to which edges are counted for a mean even if nobody asks: with the same kernels


def solve(request: Request) -> Answer:
    """Solve all problems and draws; see :class:`diffclust.solvers.base.Request`.

    Similarities of any float dtype are computed in float32. Seed and first draw are integers, or int64 scalars on the
    device, which only the kernels read. Nothing waits for the device, so whether k is reached is never checked.
    """
    similarity, n = request.similarity, request.similarity.shape[-1]
    if n > MAX_POINTS:
        raise ValueError(f"The CUDA solver takes up to {MAX_POINTS} points, got {n}. Use the CPU for more.")
    definition.kernel_of(request.draws.noise)
    if request.detail == "mean" and not request.adjacency and n <= COUNTED:
        return solve(request._replace(adjacency=True))._replace(adjacency=None)
    k, draws = request.n_clusters, request.draws
    if fits_one_launch(request):
        return mean_in_one_launch(request)
    if isinstance(k, int):
        k = torch.full(similarity.shape[:1], k, device=similarity.device)
    ready = Ready(similarity, request.labels, request.relation, request.adjacency)
    forests = find_forests(ready, k.contiguous(), request)
    mean = mean_values(forests.values).to(similarity.dtype)
    adjacency = None if ready.counts is None else ready.counts.to(similarity.dtype) / draws.n_draws
    if request.detail == "mean":
        return Answer(mean, adjacency)
    labels = forests.labels if request.detail == "forests" else None
    return Answer(mean, adjacency, forests.values, forests.edges, labels)


class Forests(NamedTuple):
    """The forests of ``problems x solves x draws``, as in :class:`Answer`; edges and labels as far as asked for."""

    edges: torch.Tensor
    labels: torch.Tensor
    values: torch.Tensor


def find_forests(ready: Ready, n_clusters: torch.Tensor, request: Request) -> Forests:
    """The forests of input that is ready. The edges are added to ``ready.counts``, if these are wanted."""
    similarity, draws, n_solves = ready.similarity, request.draws, request.n_solves
    n_problems, n, _ = similarity.shape
    n_draws, epsilon = draws.n_draws, float(draws.epsilon)
    with_edges, with_labels = request.detail != "mean", request.detail == "forests"
    shape = (n_problems, n_solves, n_draws)
    forests = Forests(
        similarity.new_empty((*shape, max(n - 1, 0) if with_edges else 0, 2), dtype=torch.int32),
        similarity.new_empty((*shape, n if with_labels else 0), dtype=torch.int32),
        similarity.new_empty(shape, dtype=torch.float32),
    )
    if n == 0 or n_problems * n_draws == 0:
        forests.values.zero_()
        return forests

    pitch, block, warps = pitch_of(n), triton.next_power_of_2(n), warps_for(n)
    fitting = words_bytes(similarity.device) // (4 * n_problems * n * pitch)
    at_once = max(1, min(n_draws, fitting, MAX_GRID * DRAWS_AT_ONCE))
    items = n_problems * at_once
    words = similarity.new_empty((items, n, pitch), dtype=torch.int32)
    keys = similarity.new_empty((items, 2, n), dtype=torch.int64)
    rows = similarity.new_empty((items, N_ROWS.value, n), dtype=torch.int32)
    numbers = similarity.new_empty((items, N_NUMBERS.value), dtype=torch.int32)
    counts = numbers if ready.counts is None else ready.counts  # a pointer that is not read where there are none
    noise = {"NOISY": epsilon != 0, "GUMBEL": draws.noise == "gumbel", "ANTITHETIC": draws.antithetic}
    wanted = {
        "BLOCK": block, "JUMPS": (n - 1).bit_length(), "COUNTS": ready.counts is not None, "EDGES": with_edges,
        "WITH_LABELS": with_labels, "WARPS": warps,
    }  # fmt: skip
    rule = {"RELATION": ready.form == "relation", "FIRST": request.must_link_first}
    with device_of(similarity):
        for first in range(0, n_draws, at_once):
            n_chunk = min(at_once, n_draws - first)
            items, place = n_problems * n_chunk, (n, pitch, n_draws, n_solves, first, n_chunk)
            perturb[grid_of(n, n_problems, n_chunk)](
                similarity, words, draws.seed, draws.first, epsilon, n, pitch, first, n_chunk,
                SIZE=TILE, DRAWS=DRAWS_AT_ONCE, **noise, **launch(4),
            )  # fmt: skip
            solve_draws[(items,)](
                words, n_clusters, ready.closures, ready.n_related, counts, *forests, keys, rows, numbers, *place,
                CONSTRAINED=ready.form != "none", FREE=request.free or ready.form == "none",
                CLAMP=request.if_infeasible == "clamp",
                ROUNDS=not with_labels and by_rounds(n, items, multiprocessors(words.device)),
                **rule, **wanted, **launch(warps),
            )  # fmt: skip
            if ready.form == "none":
                continue
            if not with_labels:
                narrow, few = warps_inside(block)
                grow_units[(PARTS * items,)](
                    words, keys, rows, numbers, n, pitch, FIRST=request.must_link_first, BLOCK=block,
                    NARROW=narrow, N_PARTS=PARTS, WARPS=few, **launch(few),
                )  # fmt: skip
            write_constrained[(items,)](
                words, ready.closures, ready.n_related, counts, *forests, keys, rows, numbers, *place,
                **rule, **wanted, **launch(warps),
            )  # fmt: skip
        if ready.form == "relation":
            solve_greedily(ready, n_clusters, request, ready.counts, forests)
    return forests


def words_bytes(device: torch.device) -> int:
    """How much memory the words of draws in flight may take: an eighth of the device's."""
    if device.type != "cuda":
        return 1 << 28
    return torch.cuda.get_device_properties(device).total_memory // 8
