"""Expectations on torch tensors: differentiable custom operators, opaque to compilers, dispatched by device.

``diffclust::expected_value``, ``::expected_adjacency`` and ``::expected_connectivity`` solve all draws and are
differentiable in the similarity. Their backward passes use the other operators: sums over the draws' edges and
labels, and over noise that is made again. All of them have a leading dimension of problems, and no operator reads a
value on the host when it runs on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from diffclust.frameworks import is_captured, to_numpy
from diffclust.noise import check_integer
from diffclust.perturbed import score_weights, value_gradient
from diffclust.problems import check_bounds, check_feasible, check_reached, clamp_clusters
from diffclust.similarity import symmetrise
from diffclust.solvers import Forests, solver_for

if TYPE_CHECKING:
    from diffclust.noise import Draws
    from diffclust.problems import Problem

# ------------------------------------------------------------------------------------------------------------------
# Solvers on tensors


def _where_a_solver_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose first argument is a tensor; on copies of all tensors where its device has no solver."""

    @functools.wraps(function)
    def run(first: Tensor, *others: Any) -> Any:
        device = first.device
        if device.type in ("cpu", "cuda"):
            return function(first, *others)
        solver_for(first)  # warns once
        result = function(*(each.cpu() if isinstance(each, Tensor) else each for each in (first, *others)))
        return result.to(device) if isinstance(result, Tensor) else tuple(each.to(device) for each in result)

    return run


def _solve(
    similarity: Tensor, n_clusters: Tensor, labels: Tensor | None, relation: Tensor | None, must_link_first: bool,
    gap: bool, strict: bool, with_labels: bool, with_counts: bool, seed: Any, first_draw: Any, n_draws: int,
    epsilon: float, noise: str, antithetic: bool,
) -> tuple[Forests, Tensor | None]:  # fmt: skip
    """The forests of all draws, and their edge counts (see ``adjacency_counts``) if asked for.

    With ``strict``, k outside the range of the constraints is an error, without, it is moved into it.
    """
    constrained = labels is not None or relation is not None
    solver: Any = solver_for(similarity)
    on_gpu = similarity.is_cuda
    options: dict[str, Any] = {
        "must_link_first": must_link_first, "free": gap, "n_draws": n_draws, "epsilon": epsilon, "noise": noise,
        "antithetic": antithetic,
    }  # fmt: skip
    if constrained and strict and not is_captured(similarity):
        check_feasible(n_clusters, labels, relation)
    if on_gpu:
        symmetric, n_clusters, counts = solver.make_ready(
            similarity, n_clusters, None if strict else labels, with_counts
        )
        forests = solver.solve(
            symmetric, n_clusters, labels=labels, relation=relation, seed=seed, first_draw=first_draw,
            with_labels=with_labels, counts=counts, **options,
        )  # fmt: skip
        return forests, counts
    clusters, known = to_numpy(n_clusters), None if labels is None else to_numpy(labels)
    if strict and clusters.size:
        check_bounds(int(clusters.min()), int(clusters.max()), similarity.shape[-1])
    elif known is not None:
        clusters = clamp_clusters(clusters, known)
    result = solver.solve(
        symmetrise(to_numpy(similarity)), clusters, labels=known,
        relation=None if relation is None else to_numpy(relation), seed=int(seed), first_draw=int(first_draw),
        complete=with_labels, **options,
    )  # fmt: skip
    if strict:
        broken = np.isnan(result.values).any(axis=(1, 2))
        n_edges = (result.edges[~broken, -1, ..., 0] >= 0).sum(-1)
        check_reached(n_edges, clusters[~broken], similarity.shape[-1], constrained)
    forests = Forests(*(torch.from_numpy(array) for array in result))
    return forests, _adjacency_counts(forests.edges, similarity.shape[-1]) if with_counts else None


# ------------------------------------------------------------------------------------------------------------------
# Sums over draws, as operators


def _call(function: str, tensor: Tensor, *others: Any, **options: Any) -> Tensor:
    """Call a function of the tensors' solver; the CPU's works on NumPy arrays."""
    call = getattr(solver_for(tensor), function)
    if tensor.is_cuda:
        return call(*(a.contiguous() if isinstance(a, Tensor) else a for a in (tensor, *others)), **options)
    return torch.from_numpy(call(*(to_numpy(a) if isinstance(a, Tensor) else a for a in (tensor, *others)), **options))


@_where_a_solver_is
def _adjacency_counts(edges: Tensor, n: int) -> Tensor:
    """Edges (problems, solves, draws, n - 1, 2) → (problems, n, n) int32, those of a second solve subtracted."""
    return _call("adjacency_counts", edges, n)


adjacency_counts = torch.library.custom_op("diffclust::adjacency_counts", _adjacency_counts, mutates_args=())


@adjacency_counts.register_fake
def _(edges: Tensor, n: int) -> Tensor:
    return edges.new_empty((edges.shape[0], n, n))


@torch.library.custom_op("diffclust::connectivity_counts", mutates_args=())
@_where_a_solver_is
def connectivity_counts(labels: Tensor) -> Tensor:
    """(problems, draws, n) labels → (problems, n, n) int32."""
    return _call("connectivity_counts", labels)


@connectivity_counts.register_fake
def _(labels: Tensor) -> Tensor:
    return labels.new_empty((labels.shape[0], labels.shape[2], labels.shape[2]))


@torch.library.custom_op("diffclust::adjacency_products", mutates_args=())
@_where_a_solver_is
def adjacency_products(cotangent: Tensor, edges: Tensor) -> Tensor:
    """⟨cotangent, A⟩ for every draw, (problems, draws)."""
    return _call("adjacency_products", cotangent, edges).to(cotangent.dtype)


@adjacency_products.register_fake
def _(cotangent: Tensor, edges: Tensor) -> Tensor:
    return cotangent.new_empty(edges.shape[:2])


@torch.library.custom_op("diffclust::connectivity_products", mutates_args=())
@_where_a_solver_is
def connectivity_products(cotangent: Tensor, labels: Tensor) -> Tensor:
    """⟨cotangent, M⟩ for every draw, (problems, draws)."""
    return _call("connectivity_products", cotangent, labels).to(cotangent.dtype)


@connectivity_products.register_fake
def _(cotangent: Tensor, labels: Tensor) -> Tensor:
    return cotangent.new_empty(labels.shape[:2])


@torch.library.custom_op("diffclust::noise_sum", mutates_args=())
@_where_a_solver_is
def noise_sum(weights: Tensor, n: int, seed: Tensor, first_draw: Tensor, noise: str, antithetic: bool) -> Tensor:
    """Sum over draws of weights (problems, draws) times the score of the noise, (problems, n, n)."""
    counter = (seed, first_draw) if weights.is_cuda else (int(seed), int(first_draw))
    total = _call("noise_sum", weights, n, seed=counter[0], first_draw=counter[1], noise=noise, antithetic=antithetic)
    return total.to(weights.dtype)


@noise_sum.register_fake
def _(weights: Tensor, n: int, seed: Tensor, first_draw: Tensor, noise: str, antithetic: bool) -> Tensor:
    return weights.new_empty((weights.shape[0], n, n))


# ------------------------------------------------------------------------------------------------------------------
# Expectations, differentiable in the similarity


@_where_a_solver_is
def _expected_value(
    similarity: Tensor, n_clusters: Tensor, labels: Tensor | None, relation: Tensor | None, must_link_first: bool,
    gap: bool, strict: bool, with_labels: bool, with_counts: bool, seed: Tensor, first_draw: Tensor, n_draws: int,
    epsilon: float, noise: str, antithetic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Mean value or gap (problems,); edge counts; edges, labels and values of every draw as in ``solvers.Forests``.

    Counts (problems, n, n) are empty if not asked for, and so are edges and labels: without the n - 1 edges, a program
    that is traced for any n is one for two points, too.
    """
    forests, counts = _solve(
        similarity, n_clusters, labels, relation, must_link_first, gap, strict, with_labels, with_counts, seed,
        first_draw, n_draws, epsilon, noise, antithetic,
    )  # fmt: skip
    mean = _call("mean_values", forests.values).to(similarity.dtype)
    if counts is None:
        counts = similarity.new_empty((similarity.shape[0], 0, 0), dtype=torch.int32)
    edges = forests.edges if with_labels else counts.new_empty((*forests.values.shape, 0, 2))
    return mean, counts, edges, forests.labels, forests.values.to(similarity.dtype)


expected_value = torch.library.custom_op("diffclust::expected_value", _expected_value, mutates_args=())


@expected_value.register_fake
def _(similarity, n_clusters, labels, relation, must_link_first, gap, strict, with_labels, with_counts, seed, first_draw, n_draws, epsilon, noise, antithetic):  # fmt: skip  # noqa: E501
    n_problems, n, _ = similarity.shape
    constrained = labels is not None or relation is not None
    shape = (n_problems, 2 if gap and constrained else 1, n_draws)
    counted = n if with_counts else 0
    integers = {"dtype": torch.int32}
    return (
        similarity.new_empty((n_problems,)), similarity.new_empty((n_problems, counted, counted), **integers),
        similarity.new_empty((*shape, n - 1 if with_labels else 0, 2), **integers),
        similarity.new_empty((*shape, n if with_labels else 0), **integers), similarity.new_empty(shape),
    )  # fmt: skip


@torch.library.custom_op("diffclust::expected_adjacency", mutates_args=())
@_where_a_solver_is
def expected_adjacency(
    similarity: Tensor, n_clusters: Tensor, labels: Tensor | None, relation: Tensor | None, must_link_first: bool,
    seed: Tensor, first_draw: Tensor, n_draws: int, epsilon: float, noise: str, antithetic: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Share of draws with each edge (problems, n, n), and the edges (problems, draws, n - 1, 2)."""
    forests, counts = _solve(
        similarity, n_clusters, labels, relation, must_link_first, False, True, False, True, seed, first_draw, n_draws,
        epsilon, noise, antithetic,
    )  # fmt: skip
    assert counts is not None
    mean = counts.to(similarity.dtype) / n_draws
    return _nan_where_broken(mean, forests), forests.edges[:, 0].contiguous()


@expected_adjacency.register_fake
def _(similarity, n_clusters, labels, relation, must_link_first, seed, first_draw, n_draws, epsilon, noise, antithetic):
    n_problems, n, _ = similarity.shape
    return torch.empty_like(similarity), similarity.new_empty((n_problems, n_draws, n - 1, 2), dtype=torch.int32)


@torch.library.custom_op("diffclust::expected_connectivity", mutates_args=())
@_where_a_solver_is
def expected_connectivity(
    similarity: Tensor, n_clusters: Tensor, labels: Tensor | None, relation: Tensor | None, must_link_first: bool,
    seed: Tensor, first_draw: Tensor, n_draws: int, epsilon: float, noise: str, antithetic: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Share of draws with each pair in one tree (problems, n, n), and the trees (problems, draws, n)."""
    forests, _ = _solve(
        similarity, n_clusters, labels, relation, must_link_first, False, True, True, False, seed, first_draw, n_draws,
        epsilon, noise, antithetic,
    )  # fmt: skip
    trees = forests.labels[:, 0].contiguous()
    return _nan_where_broken(connectivity_counts(trees).to(similarity.dtype) / n_draws, forests), trees


@expected_connectivity.register_fake
def _(similarity, n_clusters, labels, relation, must_link_first, seed, first_draw, n_draws, epsilon, noise, antithetic):
    n_problems, n, _ = similarity.shape
    return torch.empty_like(similarity), similarity.new_empty((n_problems, n_draws, n), dtype=torch.int32)


def _nan_where_broken(mean: Tensor, forests: Forests) -> Tensor:
    """NaN for problems whose similarity had a NaN."""
    return torch.where(forests.values.isnan().any(-1).any(-1)[:, None, None], torch.nan, mean)


def is_plain(tensor: Tensor) -> bool:
    """Whether nothing traces or transforms."""
    return (
        type(tensor) is Tensor
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
        and not torch._C._len_torch_dispatch_stack()
    )


class _Final(torch.autograd.Function):
    """A gradient as it is; to differentiate it is an error, where torch would take forests for constants."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Any, *causes: Any) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        raise NotImplementedError("diffclust: there are no second derivatives; the first ones are estimates by draws.")


def final(gradient: Tensor, *causes: Tensor) -> Tensor:
    """The gradient, which cannot be differentiated in what it depends on, as far as a graph of it is made at all."""
    return _Final.apply(gradient, *causes) if torch.is_grad_enabled() else gradient


class _ExpectedValue(torch.autograd.Function):
    """∇F = A: the forests of the forward pass are the gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(  # spelled out: torch.compile counts the parameters
        similarity: Any, n_clusters: Any, labels: Any, relation: Any, must_link_first: Any, gap: Any, strict: Any,
        with_labels: Any, with_counts: Any, seed: Any, first_draw: Any, n_draws: Any, epsilon: Any, noise: Any,
        antithetic: Any,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        return expected_value(
            similarity, n_clusters, labels, relation, must_link_first, gap, strict, with_labels, with_counts, seed,
            first_draw, n_draws, epsilon, noise, antithetic,
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], output[1])
        ctx.n_draws = inputs[11]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor | None, *_: Any) -> tuple[Any, ...]:
        similarity, counts = ctx.saved_tensors
        gradient = None
        if cotangent is not None:
            gradient = final(value_gradient(cotangent, counts.to(cotangent.dtype) / ctx.n_draws), similarity)
        return gradient, *[None] * 14


class _PlainExpectedValue(torch.autograd.Function):
    """The same where nothing traces or transforms: without what that costs, a good part of a small problem's time."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        output = _expected_value(*inputs)
        _ExpectedValue.setup_context(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        return _ExpectedValue.backward(ctx, *cotangents)


class _SmallExpectedValue(torch.autograd.Function):
    """The same for small problems on a GPU, whose forests nobody asks for: in one launch, and with little around it."""

    @staticmethod
    def forward(ctx: Any, similarity: Tensor, solve: Any) -> Tensor:
        mean, ctx.adjacency = solve(similarity)
        ctx.similarity = similarity
        return mean

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        return final(value_gradient(cotangent, ctx.adjacency), ctx.similarity), None


class _ExpectedForest(torch.autograd.Function):
    """Soft adjacency or connectivity, differentiated by the score of the noise, which is made again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        connectivity: Any, similarity: Any, n_clusters: Any, labels: Any, relation: Any, must_link_first: Any,
        seed: Any, first_draw: Any, n_draws: Any, epsilon: Any, noise: Any, antithetic: Any,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        operator = expected_connectivity if connectivity else expected_adjacency
        return operator(
            similarity, n_clusters, labels, relation, must_link_first, seed, first_draw, n_draws, epsilon, noise,
            antithetic,
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *_, seed, first_draw, _, epsilon, noise, antithetic = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[1], output[1], seed, first_draw)
        ctx.connectivity, ctx.epsilon, ctx.noise, ctx.antithetic = inputs[0], epsilon, noise, antithetic

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, _: Any) -> tuple[Any, ...]:
        similarity, forests, seed, first_draw = ctx.saved_tensors
        with torch.no_grad():
            products = (connectivity_products if ctx.connectivity else adjacency_products)(cotangent, forests)
            weights = score_weights(products, ctx.epsilon, ctx.antithetic)
            gradient = noise_sum(weights, cotangent.shape[-1], seed, first_draw, ctx.noise, ctx.antithetic)
        return None, final(gradient, cotangent, similarity), *[None] * 10


# ------------------------------------------------------------------------------------------------------------------
# torch.compile gets the operators themselves, with the same rules. Of a Function, it traces the backward pass as one
# that is never differentiated: with backend="eager", second derivatives would be zeros without an error.

expected_value.register_autograd(_ExpectedValue.backward, setup_context=_ExpectedValue.setup_context)


def _register_autograd(operator: Any, connectivity: bool) -> None:
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _ExpectedForest.setup_context(ctx, (connectivity, *inputs), output)

    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        return _ExpectedForest.backward(ctx, *cotangents)[1:]

    operator.register_autograd(backward, setup_context=setup_context)


_register_autograd(expected_adjacency, False)
_register_autograd(expected_connectivity, True)


@torch.library.custom_op("diffclust::given_similarity", mutates_args=())
def given_similarity(similarity: Tensor) -> Tensor:
    """The similarity. Its backward pass keeps it, which is how AOTAutograd sees what a gradient depends on.

    AOTAutograd refuses to differentiate a backward pass in an input that this has kept, and takes others for constants.
    """
    return similarity.clone()


@torch.library.custom_op("diffclust::final_gradient", mutates_args=())
def final_gradient(gradient: Tensor, similarity: Tensor) -> Tensor:
    """The gradient, see above."""
    return gradient.clone()


@given_similarity.register_fake
@final_gradient.register_fake
def _(array: Tensor, *_: Tensor) -> Tensor:
    return torch.empty_like(array)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _kept_gradient(ctx: Any, cotangent: Tensor) -> Tensor:
    (similarity,) = ctx.saved_tensors
    return final(cotangent if is_plain(cotangent) else final_gradient(cotangent, similarity), similarity)


given_similarity.register_autograd(_kept_gradient, setup_context=_keep)


def _for_compiler(problem: Problem) -> Problem:
    """The problem, its similarity marked where a gradient may be asked for."""
    needs_gradient = torch.is_grad_enabled() and problem.given.requires_grad
    return problem._replace(given=given_similarity(problem.given)) if needs_gradient else problem


# ------------------------------------------------------------------------------------------------------------------
# vmap: every tensor but the seed and the number of the first draw has a leading dimension of problems to fold into


def _register_vmap(operator: Any, unbatched: tuple[str, ...] = ("seed", "first_draw")) -> None:
    names = [argument.name for argument in operator._opoverload._schema.arguments]

    def fold(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        size = info.batch_size
        folded = []
        for name, argument, dim in zip(names, arguments, in_dims, strict=True):
            if not isinstance(argument, Tensor) or (name in unbatched and dim is None):
                folded.append(argument)
            elif name in unbatched:
                raise NotImplementedError(f"diffclust: vmap over {name} is not supported. Pass one {name} for all.")
            else:
                batched = argument.expand(size, *argument.shape) if dim is None else argument.movedim(dim, 0)
                folded.append(batched.flatten(0, 1))
        result = operator(*folded)
        if isinstance(result, Tensor):
            return result.unflatten(0, (size, -1)), 0
        return tuple(r.unflatten(0, (size, -1)) for r in result), (0,) * len(result)

    operator.register_vmap(fold)


for _operator in (
    adjacency_counts, connectivity_counts, adjacency_products, connectivity_products, noise_sum,
    expected_value, expected_adjacency, expected_connectivity,
    given_similarity, final_gradient,
):  # fmt: skip
    _register_vmap(_operator)


# ------------------------------------------------------------------------------------------------------------------
# The binding


def draw_arguments(problem: Problem, draws: Draws, plain: bool = False) -> tuple[Any, ...]:
    """Seed and first draw as operators take them, scalar tensors; for a plain call, integers where possible."""
    device = problem.given.device
    seed = _integer("seed", _seed(draws.seed, device, plain), device, plain)
    return seed, _integer("first_draw", draws.first, device, plain), *draws[2:]


def _seed(seed: Any, device: torch.device, plain: bool) -> Any:
    """None draws a seed from torch's global generator: the device's where the host may not wait or know."""
    if seed is not None:
        return seed
    if plain and not (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return int(torch.randint(0, 2**63 - 1, ()))
    return torch.randint(0, 2**63 - 1, (), device=device)


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


def values(
    problem: Problem, draws: Draws, *, must_link_first: bool, gap: bool = False, strict: bool = False,
    with_labels: bool = False,
) -> tuple[Any, Forests | None]:  # fmt: skip
    """Mean value (...), or with ``gap`` the mean of free less constrained value; and the forests.

    Without ``with_labels`` the forests may be left out.
    """
    compiling = torch.compiler.is_dynamo_compiling()
    if compiling:
        problem = _for_compiler(problem)
    given = problem.given
    plain = is_plain(given)
    with_counts = not plain or (torch.is_grad_enabled() and given.requires_grad)
    arguments = draw_arguments(problem, draws, plain)
    if plain and given.is_cuda and gap and must_link_first and not with_labels and problem.given_relation is None:
        solver: Any = solver_for(given)
        if given.shape[-1] <= solver.SMALL:

            def solve(similarity: Tensor) -> Any:
                return solver.mean_in_one_launch(
                    similarity, problem.k, problem.given_labels, *arguments, with_adjacency=with_counts
                )

            return _SmallExpectedValue.apply(given, solve), None
    function = _PlainExpectedValue if plain else _ExpectedValue
    solve_all = expected_value if compiling else function.apply
    mean, _, *forests = solve_all(
        problem.similarity, problem.n_clusters, problem.labels, problem.relation, must_link_first, gap, strict,
        with_labels, with_counts, *arguments,
    )  # fmt: skip
    return problem.unflatten(mean), Forests(*forests)


def _forest(of_connectivity: bool, problem: Problem, draws: Draws, must_link_first: bool) -> Tensor:
    compiling = torch.compiler.is_dynamo_compiling()
    if compiling:
        problem = _for_compiler(problem)
    arguments = (
        problem.similarity, problem.n_clusters, problem.labels, problem.relation, must_link_first,
        *draw_arguments(problem, draws),
    )  # fmt: skip
    if compiling:
        return (expected_connectivity if of_connectivity else expected_adjacency)(*arguments)[0]
    return _ExpectedForest.apply(of_connectivity, *arguments)[0]


def adjacency(problem: Problem, draws: Draws, *, must_link_first: bool) -> Tensor:
    return _forest(False, problem, draws, must_link_first)


def connectivity(problem: Problem, draws: Draws, *, must_link_first: bool) -> Tensor:
    return _forest(True, problem, draws, must_link_first)
