"""One loss over the batches of all ranks, on ``torch.distributed``.

Every rank gets the embeddings of all (O(n d) numbers travel) and solves its share of the draws; the mean over all draws
is summed up (one number). Noise does not travel: it is a function of the draw's number.

**Gradients.** DistributedDataParallel averages the gradients of the parameters over ranks. So that this average is the
gradient of the one loss, a rank's share counts as many times as there are ranks: no rank divides by their number.
Without DistributedDataParallel, average the gradients of the parameters in the same way.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def n_ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_rows(local: Tensor) -> Tensor:
    """The rows (n, ...) of all ranks, in the order of ranks; differentiable. Numbers of rows may differ, and be 0."""
    sizes = torch.zeros(n_ranks(), dtype=torch.int64, device=local.device)
    sizes[dist.get_rank()] = len(local)
    dist.all_reduce(sizes)
    return _GatherRows.apply(local, sizes.tolist())


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, sizes: list[int]) -> Tensor:
        rank = dist.get_rank()
        ctx.start, ctx.stop = sum(sizes[:rank]), sum(sizes[: rank + 1])
        padded = local.new_zeros((max(sizes), *local.shape[1:]))
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        total = cotangent.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[ctx.start : ctx.stop], None


class _WithValue(torch.autograd.Function):
    """The value of one tensor with the gradient of another."""

    @staticmethod
    def forward(ctx: Any, differentiable: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return cotangent, None


def share_of_draws(n_draws: int, in_pairs: bool = False) -> tuple[int, int]:
    """First and number of the draws that this rank solves, as equal as can be; antithetic ones stay in pairs."""
    rank, ranks, unit = dist.get_rank(), n_ranks(), 2 if in_pairs else 1
    start, stop = ((r * (n_draws // unit) // ranks) * unit for r in (rank, rank + 1))
    return start, stop - start


def mean_over_ranks(local: Tensor, share: float) -> Tensor:
    """Of the ranks' means over their own draws the mean over all of them; ``share`` is this rank's part of the draws.

    The value is the same on all ranks, the gradient is this rank's, times the number of ranks (see above).
    """
    value = local.detach() * share
    dist.all_reduce(value)
    return _WithValue.apply(local * (share * n_ranks()), value)


def same_on_all_ranks(*tensors: Tensor) -> None:
    """Overwrite with rank 0's: the place in the stream of noise."""
    for tensor in tensors:
        dist.broadcast(tensor, src=0)
