"""Small problems: everything in one launch, because there the time goes into launches."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton
import triton.language as tl

from diffclust.frameworks import is_captured
from diffclust.solvers.base import Answer, Request
from diffclust.solvers.cuda.ahead import kernel
from diffclust.solvers.cuda.blocks import join_closures
from diffclust.solvers.cuda.closures import LABELLED, POINT, have_form, joins_left
from diffclust.solvers.cuda.draws import forest_in_blocks, inside_blocks, sorted_tree
from diffclust.solvers.cuda.forests import add_to_counts, free_forest, value_of
from diffclust.solvers.cuda.greedy import solve_greedily
from diffclust.solvers.cuda.keys import TIER_SHIFT, WITHOUT_TIER, ends_of
from diffclust.solvers.cuda.launches import INTERPRETED, Launch, by_rounds, class_of, device_of, stream_of, warps_for
from diffclust.solvers.cuda.philox import draw_words
from diffclust.solvers.cuda.ready import Ready
from diffclust.solvers.cuda.sums import mean_of_draws
from diffclust.solvers.cuda.trees import grow_tree
from diffclust.solvers.cuda.weights import TILE, pitch_of, write_words

SMALL = 128  # points up to which everything goes into one launch
PROGRAMS = 1 << 10  # at most; each takes draws in turn, and its words stay in the cache
_KEPT = 1 << 24  # bytes up to which a workspace is kept for the next call
_ROWS = tl.constexpr(3)
# A relation takes two launches with one workspace, between which other threads on the same stream must not use it.
_workspace_lock = threading.Lock()


@triton.jit
def _closures(labels, n, BLOCK: tl.constexpr):
    """The closure of each point, see ``closures.py``."""
    v = tl.arange(0, BLOCK)
    own = tl.load(labels + v, mask=v < n, other=-1)
    first = v
    for start in range(0, n, 8):
        for offset in tl.static_range(8):  # eight loads in flight; the last point again, at no harm
            u = tl.minimum(start + offset, n - 1)
            first = tl.minimum(first, tl.where(own == tl.load(labels + u), u, first))
    return tl.where((v < n) & (own >= 0), first | LABELLED, v)


@triton.jit
def _trees_of_closures(
    words, closures, closure, blocks, keys, rows, n, pitch, BLOCK: tl.constexpr, WARPS: tl.constexpr
):  # fmt: skip
    """Must-links first: ``keys`` become those of the trees of closures, then ``keys[n:]`` those of joins, -1 for none.

    Only points that are not alone in their closure take part in this Prim. Where missing edges cut a closure, it takes
    one over all points.
    """
    v = tl.arange(0, BLOCK)
    valid = v < n
    is_other = valid & ((closure & POINT) != v)
    tl.store(rows + v, is_other.to(tl.int32), mask=valid)
    tl.debug_barrier()
    tl.store(rows + (closure & POINT), 1, mask=is_other)
    tl.store(keys + v, tl.full((BLOCK,), 0, tl.int64), mask=valid)
    tl.debug_barrier()
    together = tl.load(rows + v, mask=valid, other=0) != 0
    grow_tree(words, closures, closures, keys, together, n, pitch, True, True, BLOCK, WARPS)
    key = tl.load(keys + v, mask=valid, other=0)
    key = tl.where((key >> TIER_SHIFT) > 0, key & WITHOUT_TIER, -1)
    if tl.sum((key >= 0).to(tl.int32), axis=0) < tl.sum(is_other.to(tl.int32), axis=0):
        tl.debug_barrier()  # of up to 32 points every warp reads all keys, and sums without waiting for the others
        key = forest_in_blocks(words, closures, blocks, keys, n, pitch, True, BLOCK, WARPS)
        tl.store(keys + n + v, tl.full((BLOCK,), -1, tl.int64), mask=valid)
    tl.debug_barrier()
    tl.store(keys + v, key, mask=valid)
    tl.debug_barrier()


@triton.jit
def _constrained_forest(
    words, closures, keys, rows, key, n, pitch, left, FIRST: tl.constexpr, BLOCK: tl.constexpr, WARPS: tl.constexpr
):  # fmt: skip
    """Write the keys of the constrained forest to ``keys``, 2 n of them, -1 for none; ``key`` are the free tree's."""
    v = tl.arange(0, BLOCK)
    blocks, joins = rows + n, keys + n
    closure = tl.load(closures + v, mask=v < n, other=0)
    tl.store(joins + v, tl.full((BLOCK,), -1, tl.int64), mask=v < n)
    tl.debug_barrier()
    block = join_closures(keys, blocks, rows + 2 * n, joins, closure, n, left, BLOCK)
    if FIRST:
        _trees_of_closures(words, closures, closure, blocks, keys, rows + 2 * n, n, pitch, BLOCK, WARPS)
    else:
        inside = inside_blocks(key, blocks)
        n_blocks = tl.sum(((v < n) & ((block & POINT) == v)).to(tl.int32), axis=0)
        key = tl.where(inside, key, -1)
        if tl.sum(inside.to(tl.int32), axis=0) < n - n_blocks:
            key = forest_in_blocks(words, closures, blocks, keys, n, pitch, False, BLOCK, WARPS)
        tl.debug_barrier()
        tl.store(keys + v, key, mask=v < n)
        tl.store(joins + v, tl.full((BLOCK,), -1, tl.int64), mask=v < n)
        tl.debug_barrier()


@kernel(do_not_specialize=["seed", "first_draw", "n_clusters", "n_items"])
def _solve_and_mean(
    similarity, known, n_related, means, adjacency, n_clusters, seed, first_draw, epsilon,
    ended, counts, values, words, keys, rows, n, pitch, n_draws, n_items,
    BLOCK: tl.constexpr, COUNTS: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr, ANTITHETIC: tl.constexpr,
    CONSTRAINED: tl.constexpr, RELATION: tl.constexpr, FREE: tl.constexpr, FIRST: tl.constexpr, CLAMP: tl.constexpr,
    SIZE: tl.constexpr, ROUNDS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """All draws on input that was not made ready, and the means over draws by the program that ends last.

    ``known`` are labels or, with ``RELATION``, closures. The constrained forests of problems that closures do not
    describe are in ``values`` and ``counts`` already. ``ended`` (problems,), how many of a problem's draws have ended,
    and ``counts`` (problems, n, n) are 0 before, but for these, and after.
    """
    program = tl.program_id(0).to(tl.int64)
    words += program * n * pitch
    keys += program * 2 * n
    rows += program * _ROWS * n
    n_solves = 2 if CONSTRAINED and FREE else 1
    index = tl.arange(0, BLOCK)
    for item in range(tl.program_id(0), n_items, tl.num_programs(0)):
        draw, problem = item % n_draws, tl.cast(item // n_draws, tl.int64)
        k0, k1, draw_low, draw_high, sign = draw_words(seed, first_draw, draw, ANTITHETIC)
        write_words(
            similarity + problem * n * n, words, n, pitch, sign * epsilon, k0, k1, draw_low, draw_high,
            False, NOISY, GUMBEL, SIZE,
        )  # fmt: skip
        if n_clusters.dtype.is_ptr():
            k = tl.load(n_clusters + problem).to(tl.int32)
        else:
            k = n_clusters.to(tl.int32)
        left = 0
        is_described = True
        if CONSTRAINED:
            if RELATION:
                closure = tl.load(known + problem * n + index, mask=index < n, other=0)
                is_described = have_form(known + problem * n, n_related + problem * n, n, BLOCK)
            else:
                closure = _closures(known + problem * n, n, BLOCK)
            left, clamped = joins_left(closure, k, n, CLAMP)
            if RELATION:
                k = tl.where(is_described, clamped, k)
            else:
                k = clamped
            tl.store(rows + index, closure, mask=index < n)
        key, rank = sorted_tree(words, rows, keys, rows + n, n, pitch, ROUNDS, BLOCK, WARPS)
        kept, failed = free_forest(key, rank, n, k)
        own_counts, own_values = counts + problem * n * n, values + problem * n_solves * n_draws + draw
        if FREE:
            tl.store(own_values, value_of(key, kept, failed))
            if COUNTS:
                _count(own_counts, key, kept, 0, n)
        if CONSTRAINED and is_described:
            if failed == 0:
                _constrained_forest(words, rows, keys, rows, key, n, pitch, left, FIRST, BLOCK, WARPS)
            both = tl.arange(0, 2 * BLOCK)
            joined = tl.load(keys + both, mask=(both < 2 * n) & (failed == 0), other=-1)
            tl.store(own_values + (n_solves - 1) * n_draws, value_of(joined, joined >= 0, failed))
            if COUNTS:
                _count(own_counts, joined, joined >= 0, n_solves - 1, n)
        tl.debug_barrier()
        if tl.atomic_add(ended + problem, 1, sem="acq_rel") == n_draws - 1:
            tl.store(ended + problem, 0)
            tl.store(means + problem, mean_of_draws(own_values - draw, n_draws, n_solves == 2, 128))
            if COUNTS:
                for start in range(0, n * n, 2048):
                    pair = start + tl.arange(0, 2048)
                    count = tl.load(own_counts + pair, mask=pair < n * n, other=0, cache_modifier=".cg")
                    share = _share(count.to(tl.float32), n_draws)
                    tl.store(adjacency + problem * n * n + pair, share, mask=pair < n * n)
                    tl.store(own_counts + pair, 0, mask=pair < n * n)


@triton.jit
def _count(counts, key, kept, solve, n):
    i, j, _ = ends_of(key)
    add_to_counts(counts, tl.where(kept, i, -1), j, solve, n)


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
    rows = torch.empty(programs * _ROWS.value * n, dtype=torch.int32, device=device)
    block, warps = triton.next_power_of_2(n), warps_for(n)
    return Launch(
        _solve_and_mean, programs, warps, (zeros, zeros[start:], values, words, keys, rows),
        (n, pitch_of(n), n_draws, n_items, block, *kind, TILE, by_rounds(n, n_items, device), warps),
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
