"""Expectations on torch tensors: differentiable operators, which the solver of the tensors' device serves.

``expected_value``, ``expected_adjacency`` and ``expected_connectivity`` solve all draws. Their backward passes use the
other operators: sums over the draws' edges and labels, and over noise that is made again. No operator reads a value on
the host when it runs on a GPU. ``torch_operators.py`` says how they are compiled and transformed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diffclust.bindings.torch_operators import Operator, define, is_plain, once_differentiable
from diffclust.gradients import score_weights, value_gradient
from diffclust.noise import Draws, check_integer, draw_seed
from diffclust.solvers import Answer, Request, solver_for, sums_for
from diffclust.solvers.checks import check_request


def _solve(request: Request) -> Answer:
    check_request(request)
    return solver_for(request.similarity, request.draws.noise).solve(request)


# -------------------------------------------------------------------------------- Sums over draws, see ``solvers.base``


def _over_draws(name: str, arguments: str, fake: Callable[..., Tensor]) -> Any:
    """The operator of that name, where its first argument is."""
    return define(
        name, arguments, "Tensor", lambda first, *others: getattr(sums_for(first), name)(first, *others), fake
    )


adjacency_counts = _over_draws(
    "adjacency_counts", "Tensor edges, SymInt n", lambda edges, n: edges.new_empty((edges.shape[0], n, n))
)
adjacency_products = _over_draws(
    "adjacency_products",
    "Tensor cotangent, Tensor edges",
    lambda cotangent, edges: cotangent.new_empty(edges.shape[:2]),
)
connectivity_products = _over_draws(
    "connectivity_products",
    "Tensor cotangent, Tensor labels",
    lambda cotangent, labels: cotangent.new_empty(labels.shape[:2]),
)
_noise_sum = define(
    "noise_sum",
    "Tensor weights, SymInt n, Tensor seed, Tensor first_draw, str noise, bool antithetic",
    "Tensor",
    lambda weights, n, seed, first, noise, antithetic: solver_for(weights).noise_sum(
        weights, n, Draws(seed, first, noise=noise, antithetic=antithetic)
    ),
    lambda weights, n, *_: weights.new_empty((weights.shape[0], n, n)),
)


def noise_sum(weights: Tensor, n: int, draws: Draws) -> Tensor:
    """See :meth:`diffclust.solvers.base.Solver.noise_sum`."""
    if not isinstance(draws.noise, str):
        return solver_for(weights, draws.noise).noise_sum(weights, n, draws)
    return _noise_sum(weights, n, draws.seed, draws.first, draws.noise, draws.antithetic)


# ------------------------------------------------- Values: ∇F = A, and the forests of the forward pass are the gradient


def _value(request: Request) -> tuple[Tensor | None, ...]:
    """Mean value or gap, adjacency, values, edges and labels, as in :class:`Answer`."""
    answer = _solve(request)
    return answer if answer.values is None else answer._replace(values=answer.values.to(request.similarity.dtype))


def _empty(request: Request) -> tuple[Tensor, ...]:
    """Empty tensors in the order of :class:`Answer`, without elements for what is not asked for."""
    # Without the n - 1 edges, a program that is traced for any n is one for two points, too.
    similarity, draws = request.similarity, request.draws
    n_problems, n, _ = similarity.shape
    shape = (n_problems, request.n_solves, draws.n_draws)
    has_draws, has_labels = request.detail != "mean", request.detail == "forests"
    side = n if request.adjacency else 0
    integers = {"dtype": torch.int32}
    return (
        similarity.new_empty((n_problems,)),
        similarity.new_empty((n_problems, side, side)),
        similarity.new_empty(shape if has_draws else (n_problems, 0, 0)),
        similarity.new_empty((*shape, n - 1, 2) if has_draws else (n_problems, 0, 0, 0, 2), **integers),
        similarity.new_empty((*shape, n) if has_labels else (n_problems, 0, 0, 0), **integers),
    )


expected_value = Operator(
    "expected_value",
    5,
    _value,
    _empty,
    keep=lambda request, outputs: outputs[1:2],
    gradient=lambda cotangent, kept, draws: value_gradient(cotangent, kept[0].to(cotangent.dtype)),
)


# ----------------------- Soft adjacency and connectivity, differentiated by the score of the noise, which is made again


def soft_adjacency(request: Request) -> tuple[Tensor, Tensor]:
    """Share of draws with each edge (problems, n, n), and the edges (problems, draws, n - 1, 2)."""
    answer = _solve(request._replace(adjacency=True, detail="draws"))
    return _nan_where_broken(answer.adjacency, answer), answer.edges[:, 0].contiguous()


def soft_connectivity(request: Request) -> tuple[Tensor, Tensor]:
    """Share of draws with each pair in one tree (problems, n, n), and the trees (problems, draws, n)."""
    answer = _solve(request._replace(detail="forests"))
    trees, dtype = answer.labels[:, 0].contiguous(), request.similarity.dtype
    counts = sums_for(trees).connectivity_counts(trees)
    return _nan_where_broken(counts.to(dtype) / request.draws.n_draws, answer), trees


def _nan_where_broken(share: Tensor, answer: Answer) -> Tensor:
    """NaN for problems whose similarity had a NaN."""
    return torch.where(answer.mean.isnan()[:, None, None], torch.nan, share)


def _soft(name: str, function: Any, products: Any, per_draw: Any) -> Operator:
    def fake(request: Request) -> tuple[Tensor, ...]:
        similarity, n = request.similarity, request.similarity.shape[-1]
        shape = (similarity.shape[0], request.draws.n_draws, *per_draw(n))
        return torch.empty_like(similarity), similarity.new_empty(shape, dtype=torch.int32)

    def keep(request: Request, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return outputs[1], request.draws.seed, request.draws.first

    def gradient(cotangent: Tensor, kept: tuple[Tensor, ...], draws: Draws) -> Tensor:
        forests, seed, first = kept
        with torch.no_grad():
            weights = score_weights(products(cotangent, forests), draws.epsilon, draws.antithetic)
            result = noise_sum(weights, cotangent.shape[-1], draws._replace(seed=seed, first=first))
        return once_differentiable(result, cotangent)

    return Operator(name, 2, function, fake, keep, gradient)


expected_adjacency = _soft("expected_adjacency", soft_adjacency, adjacency_products, lambda n: (n - 1, 2))
expected_connectivity = _soft("expected_connectivity", soft_connectivity, connectivity_products, lambda n: (n,))


# ---------------------------------------------------------------------------------------------------------- The binding


def value(given: Tensor, request: Request) -> tuple[Tensor, Answer]:
    """Mean value (...) of similarity (..., n, n), or the mean gap of two solves, differentiable; and the answer."""
    plain = is_plain(given)
    wanted = not plain or (torch.is_grad_enabled() and given.requires_grad)
    request = request._replace(draws=on_device(request.draws, given, plain), adjacency=wanted)
    mean, *others = expected_value(given, request)
    return mean, Answer(mean, *others)


def adjacency(given: Tensor, request: Request) -> Tensor:
    """Share of draws with each edge, (..., n, n)."""
    return expected_adjacency(given, request._replace(draws=on_device(request.draws, given)))[0]


def connectivity(given: Tensor, request: Request) -> Tensor:
    """Share of draws with each pair in one tree, (..., n, n)."""
    return expected_connectivity(given, request._replace(draws=on_device(request.draws, given)))[0]


def on_device(draws: Draws, given: Tensor, plain: bool = False) -> Draws:
    """Seed and first draw as operators take them, scalar tensors; for a plain call, integers where possible."""
    seed = draw_seed(given, plain) if draws.seed is None else draws.seed
    return draws._replace(
        seed=_integer("seed", seed, given.device, plain), first=_integer("first_draw", draws.first, given.device, plain)
    )


def _signed(name: str, value: Any) -> int:
    """A signed 64-bit integer, as torch has them; unsigned ones beyond it wrap around."""
    if type(value) is int and 0 <= value < 2**63:
        return value
    return (check_integer(name, value) + 2**63) % 2**64 - 2**63


def _integer(name: str, value: Any, device: torch.device, plain: bool) -> Tensor | int:
    return _signed(name, value) if plain and not isinstance(value, Tensor) else as_integer(name, value, device)


def as_integer(name: str, value: Any, device: torch.device) -> Tensor:
    """A 0-d int64 tensor on the device."""
    if isinstance(value, Tensor):
        if "int" not in str(value.dtype) or value.ndim != 0:
            raise TypeError(
                f"{name} must be an integer or a 0-d integer tensor, got {value.dtype} {tuple(value.shape)}."
            )
        return value.to(device=device, dtype=torch.int64)
    return torch.full((), _signed(name, value), dtype=torch.int64, device=device)
