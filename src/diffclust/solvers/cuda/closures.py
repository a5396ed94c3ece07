"""Closures: what must-links tie together, as one number for each point, out of a relation.

Points of one closure have the same number, and nothing is known of points with -1. A number from 0 on stands for a
*labelled* closure, one that has a cannot-link; a number below -1 for another must-link group. Where any two labelled
closures must stay apart, as with labels and views, these numbers say all that the relation says.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from diffclust.solvers.cuda.launches import launch


@triton.jit
def _number(relation, closures, n_known, n, BLOCK: tl.constexpr):
    """The closure of one point, and to how many points it is related, itself included."""
    i, problem = tl.program_id(0), tl.program_id(1).to(tl.int64)
    relation += problem * n * n + i.to(tl.int64) * n
    first, n_same, n_different = n, 0, 0
    for start in range(0, n, BLOCK):
        j = start + tl.arange(0, BLOCK)
        known = tl.load(relation + j, mask=j < n, other=-1)
        same = (known == 1) | (j == i)
        first = tl.minimum(first, tl.min(tl.where(same, j, n), axis=0))
        n_same += tl.sum(same.to(tl.int32), axis=0)
        n_different += tl.sum((known == 0).to(tl.int32), axis=0)
    closure = tl.where(n_different > 0, first, tl.where(n_same > 1, -2 - first, -1))
    tl.store(closures + problem * n + i, closure.to(tl.int64))
    tl.store(n_known + problem * n + i, n_same + n_different)


@triton.jit
def has_closures(closures, n_known, n, BLOCK: tl.constexpr):
    """Whether the closures of one problem say all: each labelled point is related to all labelled points."""
    index = tl.arange(0, BLOCK)
    labelled = tl.load(closures + index, mask=index < n, other=-1) >= 0
    related = tl.load(n_known + index, mask=index < n, other=0)
    n_labelled = tl.sum(labelled.to(tl.int32), axis=0)
    return tl.sum((labelled & (related != n_labelled)).to(tl.int32), axis=0) == 0


def number_closures(relation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(problems, n) int64 closures of relation (problems, n, n), and int32 numbers of related points."""
    n_problems, n, _ = relation.shape
    closures = relation.new_empty((n_problems, n), dtype=torch.int64)
    n_known = relation.new_empty((n_problems, n), dtype=torch.int32)
    block = min(triton.next_power_of_2(n), 1024)
    _number[(n, n_problems)](relation, closures, n_known, n, BLOCK=block, **launch(1 if n <= 256 else 4))
    return closures, n_known
