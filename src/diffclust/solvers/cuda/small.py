"""Torch tensors: small problems in one launch, with a workspace that is kept from call to call."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton

from diffclust.frameworks import is_captured
from diffclust.solvers.base import Answer, Request
from diffclust.solvers.cuda.greedy import solve_greedily
from diffclust.solvers.cuda.launches import Launch, class_of, device_of, multiprocessors, stream_of
from diffclust.solvers.cuda.ready import Ready
from diffclust.solvers.kernels.launches import by_rounds, warps_for
from diffclust.solvers.kernels.small import N_OWN, PROGRAMS, SMALL, solve_and_mean
from diffclust.solvers.kernels.weights import TILE, pitch_of

_KEPT = 1 << 24  # bytes up to which a workspace is kept for the next call
# A relation takes two launches with one workspace, between which other threads on the same stream must not use it.
_workspace_lock = threading.Lock()


def fits_one_launch(request: Request) -> bool:
    """Whether :func:`mean_in_one_launch` answers the request: few points, and means only."""
    return request.detail == "mean" and request.similarity.shape[-1] <= SMALL


def mean_in_one_launch(request: Request) -> Answer:
    """The means over draws, for up to ``SMALL`` points: what the launches of ``find_forests`` give, in one.

    A relation takes two more: one for closures, and one for problems that need the greedy.
    """
    similarity, k, draws = request.similarity.contiguous(), request.n_clusters, request.draws
    k = k if isinstance(k, int) else k.contiguous()
    means = similarity.new_empty(similarity.shape[:1])
    adjacency = torch.empty_like(similarity) if request.adjacency else None
    if not means.numel():
        return Answer(means, adjacency)
    ready = None if request.relation is None else Ready(similarity, relation=request.relation)
    known = similarity if request.labels is None else request.labels.contiguous()
    known, n_related = (known, known) if ready is None else (ready.closures, ready.n_related)
    kind = (
        request.adjacency, draws.epsilon != 0, draws.noise == "gumbel", draws.antithetic,
        request.is_constrained, ready is not None, request.free or not request.is_constrained,
        request.must_link_first, request.is_constrained and request.if_infeasible == "clamp",
    )  # fmt: skip
    stream = stream_of(similarity)
    with device_of(similarity):
        own = is_captured(similarity) or _workspace_bytes(similarity.shape, draws.n_draws) > _KEPT
        prepare = _prepare if own else _prepare_once
        launch = prepare(
            similarity.device, stream, similarity.shape, draws.n_draws, kind,
            (similarity.dtype, known.dtype, class_of(k), class_of(draws.seed), class_of(draws.first)),
        )  # fmt: skip
        try:
            with _workspace_lock:
                if ready is not None:
                    counts, values = launch.workspace[1:3]
                    solve_greedily(ready, k, request, counts if request.adjacency else None, (None, None, values))
                launch(
                    stream, (similarity, known, n_related, means, means if adjacency is None else adjacency),
                    (k, draws.seed, draws.first, float(draws.epsilon)),
                )  # fmt: skip
        except BaseException:
            _prepare_once.cache_clear()  # a kernel that stopped halfway may have left counts behind
            raise
    return Answer(means, adjacency)


def _workspace_bytes(shape: torch.Size, n_draws: int) -> int:
    n_problems, n, _ = shape
    return 4 * n_problems * n * n + min(n_problems * n_draws, PROGRAMS) * n * (4 * pitch_of(n) + 28)


def _prepare(
    device: torch.device, stream: int, shape: torch.Size, n_draws: int, kind: tuple[bool, ...], classes: tuple[Any, ...]
) -> Launch:
    """A launch for input of these sizes on this stream, with what it needs beside input and output.

    The kernel leaves the zeros behind that it needs, so that the next launch can follow. A CUDA graph may be replayed
    on any stream and must have a workspace of its own.
    """
    n_problems, n, _ = shape
    n_items, n_solves = n_problems * n_draws, 2 if kind[4] and kind[6] else 1
    programs = min(n_items, PROGRAMS)
    start = -(-n_problems // 4) * 4  # kernels expect pointers to multiples of 16 bytes
    zeros = torch.zeros(start + n_problems * n * n, dtype=torch.int32, device=device)
    values = torch.empty(n_items * n_solves, dtype=torch.float32, device=device)
    words = torch.empty(programs * n * pitch_of(n), dtype=torch.int32, device=device)
    keys = torch.empty(programs * 2 * n, dtype=torch.int64, device=device)
    rows = torch.empty(programs * N_OWN.value * n, dtype=torch.int32, device=device)
    block, warps = triton.next_power_of_2(n), warps_for(n)
    return Launch(
        solve_and_mean, programs, warps, (zeros, zeros[start:], values, words, keys, rows),
        (n, pitch_of(n), n_draws, n_items, block, *kind, TILE, by_rounds(n, n_items, multiprocessors(device)), warps),
    )  # fmt: skip


@functools.lru_cache(maxsize=8)
def _prepare_once(device: torch.device, *arguments: Any) -> Launch:
    """:func:`_prepare` for many calls, in another thread: memory of this one may come from a pool that is not ours.

    Torch's "reduce-overhead" takes such a pool back after each step.
    """
    current = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def prepare() -> Launch:
        with torch.cuda.stream(current):
            return _prepare(device, *arguments)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(prepare).result()
