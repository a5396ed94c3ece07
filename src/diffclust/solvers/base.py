"""The contract of a forest solver: what it is asked, what it answers, and which functions it has.

A solver is a module with the functions of :class:`Solver`. It knows arrays and integers only. Beside it stands a module
with those of :class:`Sums`, for arrays of the same kind. Everything else is the solver's own business: how the
similarity is made symmetric, where k is clamped, in which chunks draws are solved, which kernel serves which size.
``tests/test_conformance.py`` asks every solver the same questions and compares the answers with ``reference.py``, edge
for edge.

Shapes: ``problems`` independent problems on ``n`` points, ``draws`` perturbations of each, and ``solves`` forests of
each draw. The solves are (free, constrained), or one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from diffclust._typing import Array, Integers
from diffclust.noise import Draws


class Request(NamedTuple):
    """What a solver is asked: forests of ``similarity + epsilon * noise`` for every problem and draw.

    Attributes:
        similarity: (problems, n, n) float32 or float64. The mean of entries (i, j) and (j, i) counts, the diagonal does
            not. -inf is no edge. A solver on the host raises if (i, j) and (j, i) differ by more than rounding. A
            solver that has no float64 computes in float32.
        n_clusters: k, one int for all problems, or (problems,) integers; at most the number of groups that must-links
            leave, unless it is clamped.
        labels: (problems, n) integers, negative ones are unknown; or
        relation: (problems, n, n) int8, 1 same cluster, 0 different, -1 unknown, transitively closed; or neither.
        draws: which noise, at least one draw; ``Draws()`` is one without noise. Antithetic draws are of normal noise.
        must_link_first: which greedy, see ``docs/design.md``.
        free: also the forests without constraints. Where there are no constraints, there are only these.
        if_infeasible: what to do about a k that cannot be. "continue": use it as it is; the forest may end with more
            trees. "clamp": first move k into the range that labels allow. The range of a relation is the caller's
            business; but CUDA applies it where a relation says no more than labels and must-links, because it cannot be
            read while a graph is captured. "raise": as "continue", but a k outside 1..n, or one that a forest does not
            reach, is a ValueError, as far as the solver can tell without waiting for a device.
        adjacency: whether ``Answer.adjacency`` is wanted.
        detail: what else is wanted. "mean": nothing. "draws": values and edges of every draw, its edges in any order.
            "forests": values, edges in order, and labels of every draw.
    """

    similarity: Array
    n_clusters: Integers
    labels: Array = None
    relation: Array = None
    draws: Draws = Draws()
    must_link_first: bool = True
    free: bool = True
    if_infeasible: str = "continue"
    adjacency: bool = False
    detail: str = "mean"

    @property
    def is_constrained(self) -> bool:
        """Whether there are labels or a relation."""
        return self.labels is not None or self.relation is not None

    @property
    def n_solves(self) -> int:
        """Forests of each draw: 2 for free and constrained ones."""
        return 2 if self.free and self.is_constrained else 1


class Answer(NamedTuple):
    """What a solver answers; None for what was not asked. A problem with a NaN has NaN values, no edges, labels 0.

    Attributes:
        mean: (problems,) mean over draws of the value ⟨A, similarity + epsilon * noise⟩, every edge counted twice. Of
            two solves, the mean of the gaps between them, of which none is below 0. In the similarity's dtype.
        adjacency: (problems, n, n) share of the draws whose forest has the edge; of two solves, the share in the first
            less the share in the second. In the similarity's dtype.
        values: (problems, solves, draws), in the solver's own precision.
        edges: (problems, solves, draws, n - 1, 2) int32, i < j, by decreasing perturbed similarity, equal ones by
            smaller (i, j); then (-1, -1). Fewer than n - k of them mean that the greedy got stuck.
        labels: (problems, solves, draws, n) int32, the tree of each point; trees are numbered by their smallest point.
    """

    mean: Array
    adjacency: Array = None
    values: Array = None
    edges: Array = None
    labels: Array = None

    @property
    def n_edges(self) -> Array:
        """(problems, solves, draws) number of edges of every forest."""
        return (self.edges[..., 0] >= 0).sum(-1)


class Solver(Protocol):
    """The functions of a solver, on the arrays of its framework."""

    def solve(self, request: Request) -> Answer:
        """Solve all problems and draws."""
        ...

    def noise_sum(self, weights: Array, n: int, draws: Draws) -> Array:
        """(problems, n, n) sum over draws of weights (problems, draws) times the score of the noise, made again.

        The score is minus the derivative of the log-density (z for normal noise, 1 - exp(-z) for Gumbel noise), and 0
        on the diagonal. Of ``draws``, ``n_draws`` and ``epsilon`` do not count.
        """
        ...


class Sums(Protocol):
    """Sums over the draws of forests that a solver has found, on the arrays of its framework and device."""

    def adjacency_counts(self, edges: Array, n: int) -> Array:
        """(problems, n, n) int32 number of draws that have the edge, from edges (problems, solves, draws, n - 1, 2).

        Of two solves, the number in the first less the number in the second.
        """
        ...

    def connectivity_counts(self, labels: Array) -> Array:
        """(problems, n, n) int32 number of draws in which i and j share a tree, from labels (problems, draws, n)."""
        ...

    def adjacency_products(self, cotangent: Array, edges: Array) -> Array:
        """(problems, draws) products ⟨cotangent, A⟩, from (problems, n, n) and edges (problems, draws, n - 1, 2)."""
        ...

    def connectivity_products(self, cotangent: Array, labels: Array) -> Array:
        """(problems, draws) products ⟨cotangent, M⟩, from (problems, n, n) and labels (problems, draws, n)."""
        ...


def mean_values(values: Array) -> Array:
    """The ``Answer.mean`` of values (problems, solves, draws). What rounding leaves of a gap below zero is zero."""
    if values.shape[1] == 1:
        return values[:, 0].mean(-1)
    return (values[:, 0] - values[:, 1]).clip(min=0.0).mean(-1)


def host_answer(request: Request, values: Array, edges: Array, labels: Array, counts: Callable[..., Array]) -> Answer:
    """The answer with what was asked for, of arrays of NumPy; ``counts`` is the solver's ``adjacency_counts``."""
    (_, n, _), dtype = request.similarity.shape, request.similarity.dtype
    adjacency = counts(edges, n).astype(dtype) / request.draws.n_draws if request.adjacency else None
    mean = mean_values(values).astype(dtype)
    if request.detail == "mean":
        return Answer(mean, adjacency)
    return Answer(mean, adjacency, values, edges, labels if request.detail == "forests" else None)
