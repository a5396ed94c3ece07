"""Expectations on NumPy arrays: values only, there is nothing to differentiate with."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from diffclust.solvers import Answer, Request, cpu
from diffclust.solvers.cpu import adjacency_counts, connectivity_products

__all__ = ["adjacency", "adjacency_counts", "connectivity", "connectivity_products", "value"]


def _solve(given: NDArray[Any], request: Request) -> Answer:
    return cpu.solve(request._replace(similarity=given.reshape(-1, *given.shape[-2:])))


def value(given: NDArray[Any], request: Request) -> tuple[Any, Answer]:
    """Mean value (...) of similarity (..., n, n), or the mean gap between two solves; and the answer."""
    answer = _solve(given, request)
    return answer.mean.reshape(given.shape[:-2])[()], answer


def adjacency(given: NDArray[Any], request: Request) -> NDArray[Any]:
    return _solve(given, request._replace(adjacency=True)).adjacency.reshape(given.shape)


def connectivity(given: NDArray[Any], request: Request) -> NDArray[Any]:
    answer = _solve(given, request._replace(detail="forests"))
    counts = cpu.connectivity_counts(answer.labels[:, 0])
    return (counts / request.draws.n_draws).astype(given.dtype).reshape(given.shape)
