"""One clustering over the batches of all ranks, on ``torch.distributed``.

Every rank gets the rows of all ranks and solves its share of the draws. Noise is not sent: it is a function of the
draw's number. With n rows of d numbers on R ranks, a step has four collectives:

1. ``agree`` sends each rank's number of rows and rank 0's place in the stream of noise, 5 R integers. Numbers of rows
   may differ, so the host reads them. Only here it waits for a GPU, and therefore a CUDA graph cannot hold a step.
2. ``gather_rows`` sends embeddings and labels, n (d + 1) numbers.
3. ``mean_over_ranks`` sends the loss, one number.
4. The backward of ``gather_rows`` gives each rank the sum of the gradients of its own rows, n d numbers.

A soft connectivity (``connectivity``) sends n² numbers instead of step 3, and n² and one for each draw in its backward.
Nothing grows with the number of draws times n.

**Gradients.** DistributedDataParallel and FSDP (``fully_shard``) average the gradients of the parameters over ranks. To
make this average the gradient of the one loss, each rank's share is multiplied by the number of ranks. Without these
wrappers, average the gradients of the parameters yourself.

**Groups.** All functions take a process group in place of all ranks. With one clustering in each group, the average
over all ranks is the gradient of the mean of the groups' losses.

**torch.compile.** The functions that communicate are not compiled. They split a graph into compiled parts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from diffclust.bindings import torch as binding
from diffclust.bindings.torch_operators import once_differentiable
from diffclust.gradients import score_weights
from diffclust.solvers import Request

# The second names are for torch before 2.13. They are deprecated since.
_all_gather: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or getattr(dist, "reduce_scatter_tensor", None)


def n_ranks(group: Any = None) -> int:
    """The number of ranks of a group, or of all; 1 where torch.distributed is not in use."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


# ----------------------------------------------------------------------------------------------------------------- Rows


@torch.compiler.disable
def agree(embeddings: Tensor, labels: Tensor | None, *positions: Tensor, group: Any = None) -> list[int]:
    """The number of rows of each rank. ``positions`` in the stream of noise become rank 0's."""
    n_labels = len(embeddings) if labels is None else len(labels)
    shape = torch.tensor([len(embeddings), n_labels, embeddings.shape[1] * embeddings.element_size()])
    own = torch.cat([shape.to(embeddings.device), *(p.detach().reshape(1).to(embeddings.device) for p in positions)])
    table = own.new_empty((n_ranks(group), len(own)))
    _all_gather(table.flatten(), own, group=group)
    for number, value in enumerate(positions):
        value.copy_(table[0, len(shape) + number])
    sizes, labelled, width = table[:, : len(shape)].T.tolist()
    for rank in range(len(sizes)):  # an error on all ranks, so that none waits for one that stopped
        if labelled[rank] != sizes[rank]:
            raise ValueError(f"On rank {rank} labels are for {labelled[rank]} points, embeddings are {sizes[rank]}.")
        if width[rank] != width[0]:
            raise ValueError(
                f"A row of embeddings has {width[rank]} bytes on rank {rank}, {width[0]} on rank 0: all ranks must "
                "have the same dimension and dtype."
            )
    return sizes


@torch.compiler.disable
def gather_rows(
    embeddings: Tensor, labels: Tensor | None = None, sizes: list[int] | None = None, group: Any = None
) -> tuple[Tensor, Tensor | None]:
    """Embeddings (n, d) and labels (n,) of all ranks, in their order. ``sizes``, of :func:`agree`, may be 0."""
    sizes = agree(embeddings, labels, group=group) if sizes is None else sizes
    packed = _bytes(embeddings)
    if labels is not None:  # in the same collective as the embeddings: its latency costs more than 8 bytes a row
        packed = torch.cat([packed, _bytes(labels[:, None].to(embeddings.device, torch.int64))], 1)
    packed = _gather(packed, sizes, group)
    width = packed.shape[1] - (0 if labels is None else 8)
    rows = packed[:, :width].contiguous().view(embeddings.dtype)
    all_labels = None if labels is None else packed[:, width:].contiguous().view(torch.int64)[:, 0]
    return _Gathered.apply(embeddings, rows, sizes, group), all_labels


def _bytes(rows: Tensor) -> Tensor:
    return rows.detach().contiguous().view(torch.uint8)


def _gather(local: Tensor, sizes: list[int], group: Any) -> Tensor:
    """The rows of all ranks, in the order of ranks."""
    padded = _padded(local, max(sizes))
    gathered = padded.new_empty((len(sizes), *padded.shape))
    _all_gather(gathered.flatten(0, 1), padded, group=group)
    if min(sizes) == max(sizes):
        return gathered.flatten(0, 1)
    return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)])


def _padded(rows: Tensor, size: int) -> Tensor:
    """``size`` rows: these, then zeros. Collectives are fastest when all ranks send equally many."""
    if len(rows) == size:
        return rows.contiguous()
    return torch.cat([rows, rows.new_zeros((size - len(rows), *rows.shape[1:]))])


class _Gathered(torch.autograd.Function):
    """Returns the gathered rows of all ranks, and sends each rank the gradient of its own rows."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, rows: Tensor, sizes: list[int], group: Any) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        return rows

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        sizes, longest = ctx.sizes, max(ctx.sizes)
        with torch.no_grad():
            parts = torch.cat([_padded(part, longest) for part in cotangent.split(sizes)])
            own = parts.new_empty((longest, *parts.shape[1:]))
            _reduce_scatter(own, parts, group=ctx.group)
        return once_differentiable(own[: sizes[dist.get_rank(ctx.group)]], cotangent), None, None, None


# ---------------------------------------------------------------------------------------------------------------- Draws


def share_of_draws(n_draws: int, in_pairs: bool = False, group: Any = None) -> tuple[int, int]:
    """The first draw of this rank, and how many it has. Shares are about equal, and antithetic pairs stay together."""
    rank, ranks, unit = dist.get_rank(group), n_ranks(group), 2 if in_pairs else 1
    start, stop = ((r * (n_draws // unit) // ranks) * unit for r in (rank, rank + 1))
    return start, stop - start


@torch.compiler.disable
def mean_over_ranks(local: Tensor, share: float, group: Any = None) -> Tensor:
    """The mean over all draws, from each rank's mean over its own ``share`` of the draws.

    Returns:
        A scalar. Its value is the same on all ranks; the gradient is this rank's, times the number of ranks.
    """
    value = local.detach() * share
    dist.all_reduce(value, group=group)
    own = local * (share * n_ranks(group))
    return value + (own - own.detach())


@torch.compiler.disable
def connectivity(given: Tensor, request: Request, group: Any = None) -> Tensor:
    """The soft connectivity over all draws. All ranks have the same similarities, and each solves its draws."""
    flat = given.reshape(math.prod(given.shape[:-2]), *given.shape[-2:])
    draws = binding.on_device(request.draws, given)
    return _SharedConnectivity.apply(flat, request._replace(draws=draws), group).reshape(given.shape)


class _SharedConnectivity(torch.autograd.Function):
    """``bindings.torch.expected_connectivity`` with sums over the draws of all ranks."""

    @staticmethod
    def forward(ctx: Any, similarity: Tensor, request: Request, group: Any) -> Tensor:
        draws = request.draws
        start, count = share_of_draws(draws.n_draws, draws.antithetic, group)
        own = draws._replace(first=draws.first + start, n_draws=count)
        if count:
            mean, trees = binding.soft_connectivity(request._replace(similarity=similarity, draws=own))
            total = (mean * count).round()  # whole numbers, so sums over ranks are exact; NaN stays NaN
        else:
            total = torch.zeros_like(similarity)
            trees = similarity.new_zeros((*similarity.shape[:1], 0, similarity.shape[1]), dtype=torch.int32)
        dist.all_reduce(total, group=group)
        ctx.save_for_backward(similarity, trees)
        ctx.group, ctx.n_draws, ctx.draws, ctx.own = group, draws.n_draws, own, slice(start, start + count)
        return total / draws.n_draws

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        similarity, trees = ctx.saved_tensors
        with torch.no_grad():
            total = cotangent.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=ctx.group)  # ranks may use the matrix in different ways
            products = total.new_zeros((len(total), ctx.n_draws))
            if trees.shape[1]:
                products[:, ctx.own] = binding.connectivity_products(total, trees)
            dist.all_reduce(products, group=ctx.group)  # the baseline is the mean over all draws
            weights = score_weights(products, ctx.draws.epsilon, ctx.draws.antithetic)[:, ctx.own].contiguous()
            gradient = torch.zeros_like(total)
            if trees.shape[1]:
                gradient = binding.noise_sum(weights, total.shape[-1], ctx.draws)
        return once_differentiable(gradient, cotangent, similarity), None, None
