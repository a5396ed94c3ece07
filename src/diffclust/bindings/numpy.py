"""Expectations on NumPy arrays: values only, there is nothing to differentiate with."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from diffclust.solvers import Answer, Request, solver_for
from diffclust.solvers.cpu.sums import adjacency_counts, connectivity_counts, connectivity_products

__all__ = ["adjacency", "adjacency_counts", "connectivity", "connectivity_products", "value"]


def _solve(given: NDArray[Any], request: Request) -> Answer:
    similarity = given.reshape(-1, *given.shape[-2:])
    return solver_for(similarity, request.draws.noise).solve(request._replace(similarity=similarity))


def value(given: NDArray[Any], request: Request) -> tuple[Any, Answer]:
    """Mean value (...) of similarity (..., n, n), or the mean gap between two solves; and the answer."""
    answer = _solve(given, request)
    return answer.mean.reshape(given.shape[:-2])[()], answer


def adjacency(given: NDArray[Any], request: Request) -> NDArray[Any]:
    """Share of draws with each edge, (..., n, n)."""
    return _solve(given, request._replace(adjacency=True)).adjacency.reshape(given.shape)


def connectivity(given: NDArray[Any], request: Request) -> NDArray[Any]:
    """Share of draws with each pair in one tree, (..., n, n)."""
    answer = _solve(given, request._replace(detail="forests"))
    counts = connectivity_counts(answer.labels[:, 0])
    return (counts / request.draws.n_draws).astype(given.dtype).reshape(given.shape)
