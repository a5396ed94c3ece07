"""Expectations on NumPy arrays: values only, there is nothing to differentiate with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diffclust.problems import check_reached
from diffclust.solvers import Forests, cpu
from diffclust.solvers.cpu import adjacency_counts, connectivity_products

if TYPE_CHECKING:
    from diffclust.noise import Draws
    from diffclust.problems import Problem


__all__ = ["adjacency", "adjacency_counts", "connectivity", "connectivity_products", "values"]


def _forests(problem: Problem, draws: Draws, must_link_first: bool, gap: bool, strict: bool, complete: bool) -> Forests:
    forests = cpu.solve(
        problem.similarity, problem.n_clusters, **problem.constraints, must_link_first=must_link_first, free=gap,
        seed=draws.seed, first_draw=draws.first, n_draws=draws.n_draws, epsilon=draws.epsilon, noise=draws.noise,
        antithetic=draws.antithetic, complete=complete,
    )  # fmt: skip
    if strict:
        n_edges = (forests.edges[:, -1, ..., 0] >= 0).sum(-1)
        check_reached(n_edges, problem.n_clusters, problem.n_points, problem.is_constrained)
    return forests


def values(
    problem: Problem, draws: Draws, *, must_link_first: bool, gap: bool = False, strict: bool = False,
    with_labels: bool = False,
) -> tuple[Any, Forests]:  # fmt: skip
    """Mean value (...), or with ``gap`` the mean of free less constrained value; and the forests."""
    forests = _forests(problem, draws, must_link_first, gap, strict, with_labels)
    return problem.unflatten(cpu.mean_values(forests.values).astype(problem.given.dtype)), forests


def adjacency(problem: Problem, draws: Draws, *, must_link_first: bool) -> Any:
    forests = _forests(problem, draws, must_link_first, gap=False, strict=True, complete=False)
    return (adjacency_counts(forests.edges, problem.n_points) / draws.n_draws).astype(problem.given.dtype)


def connectivity(problem: Problem, draws: Draws, *, must_link_first: bool) -> Any:
    forests = _forests(problem, draws, must_link_first, gap=False, strict=True, complete=True)
    counts = cpu.connectivity_counts(forests.labels[:, 0])
    return (counts / draws.n_draws).astype(problem.given.dtype)
