"""How a function of a request becomes an operator of torch: for autograd, compilers and transformations.

A call takes one of three ways. Where nothing traces or transforms, it is a plain autograd function, with as little
around it as can be: on small problems that is a good part of the time. ``torch.compile`` and ``torch.export`` get a
custom operator, opaque to them. Under ``torch.func``'s transformations an autograd function calls that operator, and
``vmap`` folds the mapped dimension into that of the problems. The derivative rule is the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diffclust.noise import KINDS, Draws
from diffclust.solvers.base import Request


def is_plain(tensor: Tensor) -> bool:
    """Whether nothing traces or transforms."""
    return (
        type(tensor) is Tensor
        and not tensor.is_meta
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
        and not torch._C._len_torch_dispatch_stack()
    )


# ---------------- Requests as the flat arguments that the schema of an operator can have: packed and unpacked here only

REQUEST = (
    "Tensor similarity, Tensor n_clusters, Tensor? labels, Tensor? relation, Tensor seed, Tensor first_draw, "
    "bool must_link_first, bool free, str if_infeasible, bool adjacency, str detail, "
    "SymInt n_draws, float epsilon, str noise, bool antithetic"
)


def pack(request: Request) -> tuple[Any, ...]:
    """The arguments of :data:`REQUEST`. Seed and first draw are scalar tensors already."""
    similarity, n_clusters, labels, relation, draws, *settings = request
    if not isinstance(draws.noise, str):
        raise NotImplementedError(
            f"diffclust: noise={draws.noise!r} is made on the host, which torch.compile, torch.export and torch.func "
            f"cannot trace. Use one of {KINDS}, or call this function where nothing traces it."
        )
    if not isinstance(n_clusters, Tensor):
        n_clusters = torch.full(similarity.shape[:1], n_clusters, dtype=torch.int64, device=similarity.device)
    return similarity, n_clusters, labels, relation, draws.seed, draws.first, *settings, *draws[2:]


def unpack(arguments: tuple[Any, ...]) -> Request:
    """The inverse of :func:`pack`."""
    draws = Draws._make(arguments[4:6] + arguments[11:])
    return Request._make((*arguments[:4], draws, *arguments[6:11]))


# ------------------------------------------------------------------------------------------------------------ Operators


def define(name: str, arguments: str, results: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """A custom operator ``diffclust::name`` with a rule for ``vmap``; ``fake`` gives empty results of the right shape.

    Every tensor but the seed and the number of the first draw has a leading dimension of problems.

    Returns:
        The operator.
    """
    operator = torch.library.custom_op(
        f"diffclust::{name}", function, mutates_args=(), schema=f"({arguments}) -> {results}"
    )
    operator.register_fake(fake)
    names = [argument.split()[-1] for argument in arguments.split(",")]

    def fold(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Any, Any]:
        size, folded = info.batch_size, []
        for name, argument, dim in zip(names, given, in_dims, strict=True):
            unbatched = name in ("seed", "first_draw")
            if not isinstance(argument, Tensor) or (unbatched and dim is None):
                folded.append(argument)
            elif unbatched:
                raise NotImplementedError(f"diffclust: vmap over {name} is not supported. Pass one {name} for all.")
            else:
                batched = argument.expand(size, *argument.shape) if dim is None else argument.movedim(dim, 0)
                folded.append(batched.flatten(0, 1))
        result = operator(*folded)
        if isinstance(result, Tensor):
            return result.unflatten(0, (size, -1)), 0
        return tuple(r.unflatten(0, (size, -1)) for r in result), (0,) * len(result)

    operator.register_vmap(fold)
    return operator


class Operator:
    """A function of requests, differentiable in the similarity.

    Args:
        name: of the custom operator.
        n_outputs: number of results.
        function: request → (result, others...), tensors that lead with the problems. The result is differentiable.
            Others may be None.
        fake: the same, with empty tensors, also in place of None.
        keep: request, outputs → tensors that the gradient needs.
        gradient: cotangent of the result, these tensors, draws → gradient of the similarity.
    """

    def __init__(
        self,
        name: str,
        n_outputs: int,
        function: Callable[[Request], tuple[Any, ...]],
        fake: Callable[[Request], tuple[Tensor, ...]],
        keep: Callable[[Request, tuple[Any, ...]], tuple[Any, ...]],
        gradient: Callable[[Tensor, tuple[Any, ...], Draws], Tensor],
    ) -> None:
        self.function, self.keep, self.gradient = function, keep, gradient

        def whole(*arguments: Any) -> tuple[Tensor, ...]:
            request = unpack(arguments)
            outputs = function(request)
            return tuple(a if b is None else b for a, b in zip(fake(request), outputs, strict=True))

        results = f"({', '.join(['Tensor'] * n_outputs)})"
        self.operator = define(name, REQUEST, results, whole, lambda *arguments: fake(unpack(arguments)))
        # torch.compile gets the operator itself. Of an autograd function, it traces the backward pass as one that is
        # never differentiated: with backend="eager", second derivatives would be zeros without an error.
        self.operator.register_autograd(self.backward, setup_context=self.setup_context)

    def __call__(self, given: Tensor, request: Request) -> tuple[Any, ...]:
        """The result in the batch shape of ``given``, the similarity (..., n, n), and the other outputs."""
        if is_plain(given):
            others: list[Tensor] = []
            return _Plain.apply(self, given, request, others), *others
        compiling = torch.compiler.is_dynamo_compiling()
        if compiling and torch.is_grad_enabled() and given.requires_grad:
            given = given_similarity(given)
        arguments = pack(_with(given, request))
        result, *rest = self.operator(*arguments) if compiling else _Transformed.apply(self, *arguments)
        return result.reshape(given.shape[:-2] + result.shape[1:]), *rest

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the backward pass needs."""
        request = unpack(inputs)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(request.similarity, *self.keep(request, output))
        ctx.draws = request.draws._replace(seed=None, first=None)

    def backward(self, ctx: Any, cotangent: Tensor | None, *_: Any) -> tuple[Any, ...]:
        """The gradient of the similarity; the other arguments have none."""
        similarity, *kept = ctx.saved_tensors
        gradient = None
        if cotangent is not None:
            gradient = once_differentiable(self.gradient(cotangent, tuple(kept), ctx.draws), similarity)
        return gradient, *[None] * REQUEST.count(",")


def _with(given: Tensor, request: Request) -> Request:
    """The request with the similarity, flattened to (problems, n, n)."""
    similarity = given if given.ndim == 3 else given.reshape(math.prod(given.shape[:-2]), *given.shape[-2:])
    return request._replace(similarity=similarity)


class _Plain(torch.autograd.Function):
    """An operator where nothing traces or transforms. Outputs that have no gradient do not pass through autograd."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, given: Tensor, request: Request, others: list[Tensor]) -> Tensor:
        request = _with(given, request)
        outputs = operator.function(request)
        others.extend(outputs[1:])
        ctx.operator, ctx.draws = operator, request.draws
        ctx.save_for_backward(given, *operator.keep(request, outputs))
        return outputs[0].reshape(given.shape[:-2] + outputs[0].shape[1:])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        given, *kept = ctx.saved_tensors
        flat = cotangent.reshape(math.prod(given.shape[:-2]), *cotangent.shape[given.ndim - 2 :])
        gradient = ctx.operator.gradient(flat, tuple(kept), ctx.draws).reshape(given.shape)
        return None, once_differentiable(gradient, given), None, None


class _Transformed(torch.autograd.Function):
    """An operator under the transformations of ``torch.func``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(operator: Any, *arguments: Any) -> tuple[Tensor, ...]:
        return operator.operator(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.operator = inputs[0]
        ctx.operator.setup_context(ctx, inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        return None, *ctx.operator.backward(ctx, *cotangents)


# -------------------------------------------------------------------------------------- There are no second derivatives


class _OnceDifferentiable(torch.autograd.Function):
    """A gradient as it is. Differentiating it is an error; torch by itself would return zeros."""

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


def once_differentiable(gradient: Tensor, *causes: Tensor) -> Tensor:
    """The gradient, marked so that differentiating it again, in one of its ``causes``, is an error."""
    return _OnceDifferentiable.apply(gradient, *causes) if torch.is_grad_enabled() else gradient


given_similarity = define(
    "given_similarity", "Tensor similarity", "Tensor", lambda similarity: similarity.clone(), torch.empty_like
)
"""The similarity. Its backward pass keeps it, which is how AOTAutograd sees what a gradient depends on.

AOTAutograd refuses to differentiate a backward pass in an input that this has kept, and takes others for constants.
"""

gradient_of_given = define(
    "gradient_of_given",
    "Tensor gradient, Tensor similarity",
    "Tensor",
    lambda gradient, _: gradient.clone(),
    lambda gradient, _: torch.empty_like(gradient),
)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _kept_gradient(ctx: Any, cotangent: Tensor) -> Tensor:
    (similarity,) = ctx.saved_tensors
    return once_differentiable(
        cotangent if is_plain(cotangent) else gradient_of_given(cotangent, similarity), similarity
    )


given_similarity.register_autograd(_kept_gradient, setup_context=_keep)
