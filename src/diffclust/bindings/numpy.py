"""Expectations on NumPy arrays: values only, there is nothing to differentiate with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from diffclust.problems import check_reached
from diffclust.solvers import Forests, cpu

if TYPE_CHECKING:
    from diffclust.noise import Draws
    from diffclust.problems import Problem


def _forests(problem: Problem, draws: Draws, must_link_first: bool, free: bool, strict: bool) -> Forests:
    forests = cpu.solve(
        problem.similarity, problem.n_clusters, **problem.constraints, must_link_first=must_link_first, free=free,
        seed=draws.seed, first_draw=draws.first, n_draws=draws.n_draws, epsilon=draws.epsilon, noise=draws.noise,
        antithetic=draws.antithetic,
    )  # fmt: skip
    if strict:
        check_reached(forests.labels[:, -1], problem.n_clusters, constrained=problem.is_constrained)
    return forests


def values(problem: Problem, draws: Draws, *, must_link_first: bool, free: bool, strict: bool) -> tuple[Any, Forests]:
    """Mean values (problems, solves), and the forests they are the means of."""
    forests = _forests(problem, draws, must_link_first, free, strict)
    return forests.values.mean(-1).astype(problem.similarity.dtype), forests


def adjacency(problem: Problem, draws: Draws, *, must_link_first: bool) -> Any:
    forests = _forests(problem, draws, must_link_first, free=False, strict=True)
    counts = adjacency_counts(forests.edges[:, 0], problem.n_points)
    return (counts / draws.n_draws).astype(problem.similarity.dtype)


def connectivity(problem: Problem, draws: Draws, *, must_link_first: bool) -> Any:
    forests = _forests(problem, draws, must_link_first, free=False, strict=True)
    counts = cpu.connectivity_counts(np.ascontiguousarray(forests.labels[:, 0]))
    return (counts / draws.n_draws).astype(problem.similarity.dtype)


def adjacency_counts(edges: Any, n: int) -> Any:
    """(problems, draws, n - 1, 2) edges → (problems, n, n) int32."""
    return cpu.adjacency_counts(np.ascontiguousarray(edges), n)


def connectivity_products(cotangent: Any, labels: Any) -> Any:
    """⟨cotangent, M⟩ for every draw, (problems, draws)."""
    return cpu.connectivity_products(cotangent, np.ascontiguousarray(labels))
