"""Input of any kind made ready for the solver: symmetric float32 similarities, closures, and room for counts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from diffclust.solvers.cuda.launches import device_of
from diffclust.solvers.kernels.ahead import kernel
from diffclust.solvers.kernels.closures import closure_by_labels, closure_by_relation
from diffclust.solvers.kernels.launches import launch
from diffclust.solvers.kernels.philox import mean_of_two


@triton.jit
def _symmetrise(similarity, out, counts, n, tile, COUNTS: tl.constexpr, SIZE: tl.constexpr):
    """A tile of the mean of a matrix and its transpose, as float32, and zeros for the counts."""
    tiles = tl.cdiv(n, SIZE)
    i, j = (tile // tiles) * SIZE + tl.arange(0, SIZE), (tile % tiles) * SIZE + tl.arange(0, SIZE)
    inside = (i[:, None] < n) & (j[None, :] < n)
    here = i[:, None].to(tl.int64) * n + j[None, :]
    there = j[None, :].to(tl.int64) * n + i[:, None]
    value = mean_of_two(tl.load(similarity + here, mask=inside), tl.load(similarity + there, mask=inside))
    tl.store(out + here, value, mask=inside)
    if COUNTS:
        tl.store(counts + here, 0, mask=inside)


@kernel
def _make_ready(
    similarity, out, counts, known, closures, n_related, n, n_tiles,
    COUNTS: tl.constexpr, LABELS: tl.constexpr, RELATION: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One launch for all: a program for each tile of a problem, and one for the closure of each point."""
    program, problem = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start = problem * n * n
    if program < n_tiles:
        _symmetrise(similarity + start, out + start, counts + start, n, program, COUNTS, SIZE)
    else:
        i = program - n_tiles
        if RELATION:
            closure, related = closure_by_relation(known + start, i, n, BLOCK)
            tl.store(closures + problem * n + i, closure)
            tl.store(n_related + problem * n + i, related)
        elif LABELS:
            tl.store(closures + problem * n + i, closure_by_labels(known + problem * n, i, n, BLOCK))


class Ready:
    """What the kernels read: similarity (problems, n, n), counts of 0, and (problems, n) closures of the points.

    Attributes:
        n_related: to how many points each point is related, itself included; of a relation only.
        form: "none", "labels" or "relation".
    """

    def __init__(
        self,
        similarity: torch.Tensor,
        labels: torch.Tensor | None = None,
        relation: torch.Tensor | None = None,
        with_counts: bool = False,
    ) -> None:
        n_problems, n, _ = similarity.shape
        known = labels if relation is None else relation
        self.form = "relation" if relation is not None else "none" if labels is None else "labels"
        self.similarity = similarity.new_empty(similarity.shape, dtype=torch.float32)
        self.counts = similarity.new_empty(similarity.shape, dtype=torch.int32) if with_counts else None
        rows = 0 if known is None else n
        self.closures, self.n_related = similarity.new_empty((2, n_problems, rows), dtype=torch.int32)
        if not similarity.numel():
            return
        n_tiles = triton.cdiv(n, 32) ** 2
        with device_of(similarity):
            _make_ready[(n_tiles + rows, n_problems)](
                similarity.contiguous(), self.similarity, self.similarity if self.counts is None else self.counts,
                self.similarity if known is None else known.contiguous(), self.closures, self.n_related, n, n_tiles,
                COUNTS=with_counts, LABELS=labels is not None, RELATION=relation is not None, SIZE=32,
                BLOCK=min(triton.next_power_of_2(n), 1024), **launch(4),
            )  # fmt: skip
