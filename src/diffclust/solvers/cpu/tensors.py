"""The CPU solver on torch tensors: of the host, or of a device that has no solver, whose tensors travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from diffclust.frameworks import is_captured, to_numpy
from diffclust.noise import KINDS, Draws
from diffclust.solvers import cpu, sampled
from diffclust.solvers.base import Answer, Request
from diffclust.solvers.cpu import sums


def _on_host(argument: Any) -> Any:
    return to_numpy(argument) if isinstance(argument, Tensor) else argument


def _like(array: NDArray[Any], tensor: Tensor) -> Tensor:
    """A tensor where ``tensor`` lives. Floating point numbers get its dtype first: not every device has float64."""
    result = torch.from_numpy(array)
    return result.to(tensor.device, tensor.dtype if result.is_floating_point() else None)


def _counter(draws: Draws) -> Draws:
    return draws._replace(seed=int(draws.seed), first=int(draws.first))


def _solver(draws: Draws, tensor: Tensor) -> Any:
    """The solver for NumPy arrays, or the one for noise that has no kernel."""
    if is_captured(tensor):
        raise RuntimeError(
            f"The host makes the noise {draws.noise!r}, which a captured CUDA graph cannot hold. Use one of {KINDS}."
        )
    return cpu if isinstance(draws.noise, str) else sampled


def solve(request: Request) -> Answer:
    """See :meth:`diffclust.solvers.base.Solver.solve`."""
    solver, arrays = _solver(request.draws, request.similarity), (_on_host(each) for each in request[:4])
    answer = solver.solve(Request._make((*arrays, _counter(request.draws), *request[5:])))
    return Answer(*(None if each is None else _like(each, request.similarity) for each in answer))


def noise_sum(weights: Tensor, n: int, draws: Draws) -> Tensor:
    """See :meth:`diffclust.solvers.base.Solver.noise_sum`."""
    return _like(_solver(draws, weights).noise_sum(to_numpy(weights), n, _counter(draws)), weights)


def _sum(name: str) -> Callable[..., Tensor]:
    """The sum of that name, of :mod:`diffclust.solvers.cpu.sums`."""
    return lambda first, *others: _like(getattr(sums, name)(*map(_on_host, (first, *others))), first)


adjacency_counts, connectivity_counts = _sum("adjacency_counts"), _sum("connectivity_counts")
adjacency_products, connectivity_products = _sum("adjacency_products"), _sum("connectivity_products")
