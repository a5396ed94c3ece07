r"""Losses on similarities: the only place where solves are combined.

======================================  =======================================================  ======================
loss                                    formula                                                  gradient in Σ
======================================  =======================================================  ======================
:func:`partial_fenchel_young_loss`      E[F_k(Σ + εZ) - F_k(Σ + εZ; M_Ω)], the same Z in both    A_ε(Σ) - A_ε(Σ; M_Ω)
:func:`fenchel_young_loss`              F_{k,ε}(Σ) - ⟨Σ, y⟩                                      A_ε(Σ) - y
:func:`connectivity_loss`               ‖M_{k,ε}(Σ) - M_Ω‖² over known pairs                     by the score
======================================  =======================================================  ======================
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from diffclust._typing import Array, Integers, Seed
from diffclust.bindings import backend_of
from diffclust.constraints import Constraints
from diffclust.frameworks import as_like, device_of, framework_of, is_traced, namespace_of, to_numpy
from diffclust.noise import Draws, Noise
from diffclust.solvers import Answer, Request
from diffclust.solvers.checks import check_feasible, clamp_clusters
from diffclust.validation import Problem, check_choice, check_draws, check_flag, check_hard, place_soft, prepare

REDUCTIONS = ("mean", "sum", "none")

# What training was measured to be best with: the defaults of losses, modules and training alike. The operators
# (``perturbed_*``, ``spanning_forest``) have the paper's: epsilon 0.1, 100 draws, must-links first.
EPSILON, N_DRAWS, MUST_LINK_FIRST = 0.5, 10, False


class LossDiagnostics(NamedTuple):
    """What a step of :func:`partial_fenchel_young_loss` saw, one entry per problem."""

    n_clusters: Integers  # the k used, after moving it into the feasible range
    agreement: Array  # share of draws whose unconstrained forest agrees with all that is known
    standard_error: Array  # of the loss as a Monte-Carlo mean
    stuck: Array  # share of draws in which cannot-links left the greedy with more than k trees


def _reduce(losses: Array, problem: Problem, reduction: str) -> Array:
    if reduction == "none" or not problem.batch_shape:
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def _prepare(similarity: Array, n_clusters: Integers, constraints: Constraints | None, strict: bool) -> Problem:
    """A loss moves k into the feasible range (a random batch misses classes), or, with ``strict``, raises."""
    if constraints is None:
        raise TypeError("constraints must be a Constraints object, got None. Build one with Constraints.from_labels.")
    problem = prepare(similarity, n_clusters, constraints, clamp=not strict)
    # NumPy's was checked by prepare(); what is traced cannot be.
    read = problem.n_clusters, problem.labels, problem.relation
    if strict and framework_of(similarity) != "numpy" and not any(map(is_traced, read)):
        check_feasible(problem.n_clusters, problem.labels, problem.relation)
    if constraints.soft is None:
        _warn_if_nothing_is_known(problem)
    return problem


def partial_fenchel_young_loss(
    similarity: Array,
    constraints: Constraints,
    n_clusters: Integers,
    *,
    epsilon: float = EPSILON,
    n_draws: int = N_DRAWS,
    noise: str | Noise = "normal",
    seed: Seed = None,
    must_link_first: bool = MUST_LINK_FIRST,
    antithetic: bool = False,
    first_draw: Integers = 0,
    strict: bool = False,
    reduction: str = "mean",
    diagnostics: bool = False,
) -> Array:
    """How far the clustering of Σ is from what is known, E[F_k(Σ + εZ) - F_k(Σ + εZ; M_Ω)] with the same Z in both.

    Every draw's difference is at least 0, because the constrained forest is one of the forests that the free one is
    the best of. Where every point is labelled, the loss is 0 if and only if every draw's forest has the labels as its
    clusters. With partial labels and must-links first it can be positive even then: for points 0, 1, 2 on a line with
    0 and 2 in one class, 1 unknown and k = 1, the free forest takes the two short edges, which agree with the labels,
    the constrained one the long edge first.

    With soft constraints, whose term is W, the loss is E[F_k(Σ + εZ)] - E[F_k(Σ + W + εZ; M_Ω)] + F_k(W). Its gradient
    is the free less the constrained adjacency, as without W. The last summand does not depend on Σ. It makes the loss
    at least 0, because no forest of Σ + W is worth more than the best of Σ and the best of W together.

    Args:
        similarity: (n, n) or (..., n, n).
        constraints: what is known. A batch in which nothing is known has loss 0. Weights are in units of the
            similarity.
        n_clusters: k, an integer or one per problem, at least 1, moved into the range that the constraints allow, the
            same in both solves.
        epsilon: scale of the noise.
        n_draws: number of Monte-Carlo draws. All problems of a batch see the same noise.
        noise: "normal", "gumbel" or a :class:`diffclust.noise.Noise`.
        seed: an integer (of the framework, too) or a JAX key; None draws one, see :func:`diffclust.perturbed_value`.
        must_link_first: True takes must-link pairs before all others, as the paper does; see
            :func:`diffclust.spanning_forest`.
        antithetic: draws come in pairs Z, -Z.
        first_draw: number of the first draw of the seed's stream.
        strict: raise a ValueError that names the range instead of moving k.
        reduction: over the problems of a batch, "mean", "sum" or "none".
        diagnostics: also return :class:`LossDiagnostics`.

    Returns:
        The loss, a scalar, or with ``reduction="none"`` one per problem; with ``diagnostics``, the pair (loss,
        diagnostics).

    Raises:
        ValueError: an argument is out of its range, or with ``strict`` the constraints do not allow k.

    Example:
        >>> points = np.array([[0.0], [0.1], [1.0], [1.1]])
        >>> right, wrong = (Constraints.from_labels(labels) for labels in ([0, 0, 1, 1], [0, 1, 0, 1]))
        >>> s = -np.abs(points - points.T)
        >>> [bool(partial_fenchel_young_loss(s, labels, 2, epsilon=0.1, seed=0) > 1) for labels in (right, wrong)]
        [False, True]
    """
    check_choice("reduction", reduction, REDUCTIONS)
    check_flag("must_link_first", must_link_first)
    draws = check_draws(similarity, epsilon, n_draws, noise, seed, first_draw, antithetic)
    problem = _prepare(similarity, n_clusters, constraints, strict)
    request = problem.request(
        draws, must_link_first=must_link_first, if_infeasible="clamp", detail="forests" if diagnostics else "mean"
    )
    if constraints.soft is None:
        losses, answer = backend_of(problem.given).value(problem.given, request)
    else:
        losses, answer = _soft_gap(similarity, constraints, problem, request)
    reduced = _reduce(losses, problem, reduction)
    return (reduced, _diagnose(problem, draws, answer)) if diagnostics else reduced


def _soft_gap(similarity: Array, constraints: Constraints, problem: Problem, request: Request) -> tuple[Array, Answer]:
    """The loss with a soft term W: the free forests are those of Σ, the constrained ones those of Σ + W."""
    backend, k = backend_of(problem.given), _clamped(problem)
    free = prepare(similarity, 1)._replace(k=k)
    detail = {"detail": request.detail, "if_infeasible": "continue"}
    best, of_free = backend.value(free.given, free.request(request.draws, **detail))
    held, of_held = backend.value(problem.given, request._replace(free=False))
    alone, xp = place_soft(constraints, free.given), namespace_of(problem.given)
    constant, _ = backend.value(alone, Problem(alone, k).request(Draws(0, 0), if_infeasible="continue"))
    losses = best - held + constant
    if request.detail == "mean":
        return losses, of_held
    joined = (xp.concatenate([a, b], 1) for a, b in zip(of_free[2:], of_held[2:], strict=True))
    return losses, Answer(losses, None, *joined)


def _diagnose(problem: Problem, draws: Draws, answer: Answer) -> LossDiagnostics:
    backend = backend_of(problem.given)
    gaps = answer.values[:, 0] - answer.values[:, 1]
    deviation = ((gaps - gaps.mean(-1)[:, None]) ** 2).sum(-1) / max(draws.n_draws - 1, 1)
    known = _known_matrix(problem)
    xp = namespace_of(problem.given)
    same, apart = xp.where(known == 1, 1.0, 0.0), xp.where(known == 0, 1.0, 0.0)
    joined, confused = (backend.connectivity_products(pairs, answer.labels[:, 0]) for pairs in (same, apart))
    agrees = (joined == same.sum((-1, -2))[:, None]) & (confused == 0)
    n_clusters = _clamped(problem)
    stuck = answer.n_edges[:, 1] < (problem.n_points - n_clusters)[:, None]
    found = (n_clusters, (agrees * 1.0).mean(-1), (deviation / draws.n_draws) ** 0.5, (stuck * 1.0).mean(-1))
    return LossDiagnostics(*(problem.unflatten(each) for each in found))


def _clamped(problem: Problem) -> Array:
    """The k that both solves use."""
    if problem.labels is None:
        return problem.n_clusters
    return clamp_clusters(problem.n_clusters, problem.labels)


def _known_matrix(problem: Problem) -> Array:
    """M_Ω (problems, n, n), of the similarity's kind, where it lives."""
    return as_like(Constraints(problem.labels, problem.relation).matrix(), problem.given)


def _warn_if_nothing_is_known(problem: Problem) -> None:
    """Only where looking is free: not on a GPU, and not while a compiler or vmap traces."""
    labels = problem.given_labels
    if labels is None or device_of(labels) != "cpu" or is_traced(labels):  # reading would wait
        return
    if framework_of(labels) == "torch" and not backend_of(labels).is_plain(labels):
        return
    # Read by NumPy: inside jit, JAX's own comparison of an array made outside would be traced.
    if 0 not in labels.shape and bool((to_numpy(labels) < 0).all()):
        warnings.warn(
            "No point of this batch is labelled: the loss is 0 and has no gradient. Sample batches with some labels.",
            stacklevel=4,
        )


def fenchel_young_loss(
    similarity: Array,
    adjacency: Array,
    n_clusters: Integers,
    *,
    epsilon: float = EPSILON,
    n_draws: int = N_DRAWS,
    noise: str | Noise = "normal",
    seed: Seed = None,
    antithetic: bool = False,
    first_draw: Integers = 0,
    reduction: str = "mean",
) -> Array:
    """F_{k,ε}(Σ) - ⟨Σ, y⟩ for a known forest y, up to a constant; its gradient is A_{k,ε}(Σ) - y.

    Args:
        similarity: (n, n) or (..., n, n).
        adjacency: y, the adjacency matrix (..., n, n) of a forest with k trees, symmetric with a zero diagonal.
        n_clusters: k, an integer or one per problem. A k above the number of points counts as that number.
        epsilon: scale of the noise.
        n_draws: number of Monte-Carlo draws. All problems of a batch see the same noise.
        noise: "normal", "gumbel" or a :class:`diffclust.noise.Noise`.
        seed: an integer (of the framework, too) or a JAX key; None draws one, see :func:`diffclust.perturbed_value`.
        antithetic: draws come in pairs Z, -Z.
        first_draw: number of the first draw of the seed's stream.
        reduction: over the problems of a batch, "mean", "sum" or "none".

    Returns:
        The loss, a scalar, or with ``reduction="none"`` one per problem.

    Raises:
        ValueError: an argument is out of its range, or missing (-inf) edges leave more than k pieces.

    Example:
        >>> s = np.array([[0.0, 1.0], [1.0, 0.0]])
        >>> abs(float(fenchel_young_loss(s, [[0, 1], [1, 0]], 1, epsilon=1e-4, seed=0))) < 1e-3
        True
    """
    check_choice("reduction", reduction, REDUCTIONS)
    draws = check_draws(similarity, epsilon, n_draws, noise, seed, first_draw, antithetic)
    problem = prepare(similarity, n_clusters, clamp=True)
    adjacency = as_like(adjacency, problem.given, "adjacency")
    if tuple(adjacency.shape) != (*problem.batch_shape, problem.n_points, problem.n_points):
        raise ValueError(
            f"adjacency must have the shape of the similarity, {tuple(np.shape(similarity))}, got "
            f"{tuple(adjacency.shape)}."
        )
    means, _ = backend_of(problem.given).value(problem.given, problem.request(draws, if_infeasible="raise"))
    # Where y has no edge, -inf may stand in the similarity, and 0 * -inf is no number.
    inner = namespace_of(problem.given).where(adjacency == 0, 0.0, problem.given * adjacency).sum((-1, -2))
    return _reduce(means - inner, problem, reduction)


def connectivity_loss(
    similarity: Array,
    constraints: Constraints,
    n_clusters: Integers,
    *,
    epsilon: float = EPSILON,
    n_draws: int = N_DRAWS,
    noise: str | Noise = "normal",
    seed: Seed = None,
    antithetic: bool = False,
    first_draw: Integers = 0,
    strict: bool = False,
    reduction: str = "mean",
) -> Array:
    """‖M_{k,ε}(Σ) - M_Ω‖²: squared differences of soft connectivity and what is known, summed over all known pairs.

    The gradient is the score estimator's: unbiased up to the square's own bias of order 1/n_draws, and noisier than
    that of :func:`partial_fenchel_young_loss`.

    Args:
        similarity: (n, n) or (..., n, n).
        constraints: what is known. A batch in which nothing is known has loss 0.
        n_clusters: k, an integer or one per problem, moved into the range that the constraints allow.
        epsilon: scale of the noise.
        n_draws: number of Monte-Carlo draws. All problems of a batch see the same noise.
        noise: "normal", "gumbel" or a :class:`diffclust.noise.Noise`.
        seed: an integer (of the framework, too) or a JAX key; None draws one, see :func:`diffclust.perturbed_value`.
        antithetic: draws come in pairs Z, -Z.
        first_draw: number of the first draw of the seed's stream.
        strict: raise a ValueError that names the range instead of moving k.
        reduction: over the problems of a batch, "mean", "sum" or "none".

    Returns:
        The loss, a scalar, or with ``reduction="none"`` one per problem.

    Raises:
        ValueError: an argument is out of its range, or with ``strict`` the constraints do not allow k.

    Example:
        >>> s = -np.abs(np.subtract.outer([0.0, 0.1, 1.0], [0.0, 0.1, 1.0]))
        >>> float(connectivity_loss(s, Constraints.from_labels([0, 1, -1]), 2, epsilon=1e-3, seed=0))
        2.0
    """
    check_choice("reduction", reduction, REDUCTIONS)
    draws = check_draws(similarity, epsilon, n_draws, noise, seed, first_draw, antithetic)
    check_hard(constraints, "connectivity_loss")
    problem = _prepare(similarity, n_clusters, constraints, strict)
    return _connectivity_loss(problem, draws, reduction, backend_of(problem.given).connectivity)


def _connectivity_loss(problem: Problem, draws: Draws, reduction: str, connectivity: Callable[..., Any]) -> Array:
    """With the soft connectivity from a function: that of one process, or of all ranks."""
    known = _known_matrix(problem)
    free = Problem(problem.given, _clamped(problem)).request(draws, if_infeasible="raise")
    soft = connectivity(problem.given, free)
    known = known.reshape(soft.shape)
    gap = namespace_of(soft).where(known != known, 0.0, soft - known)  # nan is unknown
    return _reduce((gap * gap).sum((-1, -2)), problem, reduction)
