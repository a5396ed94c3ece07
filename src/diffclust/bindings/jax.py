"""Expectations on JAX arrays: differentiable, and folded into one batch of problems under ``vmap``.

The derivative rules are those of ``gradients.py``. Values can be read, and bad ones be an error, only where nothing
traces them; under ``jit`` a NaN gives NaN, and k outside the range of an operator's constraints is not noticed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from diffclust.gradients import score_weights, value_gradient
from diffclust.noise import check_integer, draw_seed
from diffclust.solvers import Answer, Request, solver_for
from diffclust.solvers.checks import check_answer, check_request
from diffclust.solvers.xla import Array, jax, jnp, sums
from diffclust.solvers.xla.calls import Arrays, as_row, join, split, varying
from diffclust.solvers.xla.choice import fastest
from diffclust.solvers.xla.sums import adjacency_counts, connectivity_products

__all__ = ["adjacency", "adjacency_counts", "connectivity", "connectivity_products", "value"]


# ---------------------------------------------------------------------------------------- Solvers under transformations


def _fold(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function(inputs, *arrays)`` on arrays that lead with problems; under ``vmap`` there are just more problems."""
    # So chunks of draws stay as small as they should be, and noise that is the same for all is made once.

    def fold(size: int, array: Any, is_batched: bool) -> Any:
        array = array if is_batched else jnp.broadcast_to(array, (size, *array.shape))
        return array.reshape(size * array.shape[1], *array.shape[2:])

    def fold_rows(size: int, n_problems: int, rows: Any, is_batched: bool) -> Any:
        if not is_batched:
            return rows if len(rows) == 1 else fold(size, rows, False)
        return fold(size, jnp.broadcast_to(rows, (size, n_problems, rows.shape[-1])), True)

    @jax.custom_batching.custom_vmap
    def call(inputs: Arrays, *arrays: Any) -> Any:
        return function(inputs, *arrays)

    @call.def_vmap
    def _(size: int, is_batched: Any, inputs: Arrays, *arrays: Any) -> tuple[Any, Any]:
        n_problems = inputs.n_clusters.shape[1 if is_batched[0].n_clusters else 0]
        rows = {
            name: fold_rows(size, n_problems, array, getattr(is_batched[0], name))
            for name, array in inputs.noise.items()
        }
        nothing = dict.fromkeys(rows)
        folded, folded_arrays = jax.tree.map(
            functools.partial(fold, size),
            (inputs._replace(**nothing), arrays),
            (is_batched[0]._replace(**nothing), tuple(is_batched[1:])),
        )
        result = call(folded._replace(**rows), *folded_arrays)
        unfolded = jax.tree.map(lambda a: a.reshape(size, n_problems, *a.shape[1:]), result)
        return unfolded, jax.tree.map(lambda _: True, result)

    return _without_derivative(call)


def _without_derivative(function: Callable[..., Any]) -> Callable[..., Any]:
    """Differentiating a derivative ends here, with an error rather than zeros."""
    call = jax.custom_jvp(function)

    @call.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        raise NotImplementedError("diffclust: there are no second derivatives; the first ones are estimates by draws.")

    return call


@functools.cache
def _solver(settings: Request) -> Callable[[Arrays], Answer]:
    def solve(arrays: Arrays) -> Answer:
        return fastest(settings, arrays).solve(join(settings, arrays))

    return _fold(solve)


@functools.cache
def _score_gradient(settings: Request, of_connectivity: bool) -> Callable[[Arrays, Array, Array], Array]:
    """The gradient of soft adjacency or connectivity from their cotangent and the draws' edges or trees."""
    products = connectivity_products if of_connectivity else sums.adjacency_products

    def gradient(arrays: Arrays, cotangent: Array, forests: Array) -> Array:
        draws = join(settings, arrays).draws
        weights = score_weights(products(cotangent, forests), draws.epsilon, draws.antithetic)
        return solver_for(weights, draws.noise).noise_sum(weights, cotangent.shape[-1], draws)

    return _fold(jax.jit(gradient))


def _solve(settings: Request, arrays: Arrays) -> Answer:
    request = join(settings, arrays)
    check_request(request)
    answer = _solver(settings)(arrays)
    check_answer(request, answer)
    return answer


# ----------------------------------------------------------------------- Expectations, differentiable in the similarity


def _only(gradient: Array) -> tuple[Arrays]:
    """Cotangents of the arrays: integers have none."""
    return (Arrays(gradient, *[None] * (len(Arrays._fields) - 1)),)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def expected_value(settings: Request, arrays: Arrays) -> Answer:
    """The answer, of which the mean is differentiable: ∇F = A."""
    return _solve(settings, arrays)


def _value_forward(settings: Request, arrays: Arrays) -> tuple[Answer, Array]:
    answer = _solve(settings, arrays)
    return answer, answer.adjacency


expected_value.defvjp(
    _value_forward, lambda settings, adjacency, cotangent: _only(value_gradient(cotangent.mean, adjacency))
)


def _soft_forest(settings: Request, of_connectivity: bool, arrays: Arrays) -> tuple[Array, Array]:
    """Soft adjacency or connectivity (problems, n, n), and the draws' edges or trees."""
    answer = _solve(settings, arrays)
    if of_connectivity:
        forests = answer.labels[:, 0]
        mean = sums.connectivity_counts(forests).astype(arrays.similarity.dtype) / settings.draws.n_draws
    else:
        forests, mean = answer.edges[:, 0], answer.adjacency
    return jnp.where(jnp.isnan(answer.mean)[:, None, None], jnp.nan, mean), forests


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def soft_forest(settings: Request, of_connectivity: bool, arrays: Arrays) -> Array:
    return _soft_forest(settings, of_connectivity, arrays)[0]


def _soft_forward(settings: Request, of_connectivity: bool, arrays: Arrays) -> tuple[Array, tuple[Arrays, Array]]:
    mean, forests = _soft_forest(settings, of_connectivity, arrays)
    return mean, (arrays, forests)


def _soft_backward(
    settings: Request, of_connectivity: bool, saved: tuple[Arrays, Array], cotangent: Array
) -> tuple[Arrays]:
    arrays, forests = saved
    return _only(_score_gradient(settings, of_connectivity)(arrays, cotangent, forests))


soft_forest.defvjp(_soft_forward, _soft_backward)

# ---------------------------------------------------------------------------------------------------------- The binding


def _seed_row(seed: Any) -> Any:
    """The row of an integer, an integer scalar or a key; ``jax.random.key(7)`` is the seed 7."""
    if seed is None:
        # JAX has no global generator. A number drawn while a function is traced would be the same in all its runs.
        if isinstance(jnp.zeros(()), jax.core.Tracer):
            raise ValueError(
                "seed=None inside jit would draw once, when compiled. Pass an integer or a JAX key as seed."
            )
        seed = draw_seed(None)
    if not isinstance(seed, Array):
        return as_row(check_integer("seed", seed))
    if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        if seed.ndim:
            raise TypeError(f"seed must be one JAX key, got keys of shape {seed.shape}. Use jax.vmap for many.")
        data = jax.random.key_data(seed)
        seed = data if data.shape == (2,) else jax.random.bits(seed, (2,), jnp.uint32)
    if seed.shape == (2,) and seed.dtype == jnp.uint32:  # the high word first
        return seed[None, ::-1]
    return _integer_row("seed", seed)


def _integer_row(name: str, value: Any) -> Any:
    if not isinstance(value, Array):
        return as_row(check_integer(name, value))
    if not jnp.issubdtype(value.dtype, jnp.integer) or value.ndim:
        raise TypeError(
            f"{name} must be an integer, a 0-d integer array or, as seed, a JAX key, got {value.dtype} {value.shape}."
        )
    return as_row(value)


def _ready(given: Array, request: Request) -> tuple[Request, Arrays]:
    """The constants and the arrays of a request."""
    draws = request.draws
    rows = (jnp.asarray(_seed_row(draws.seed)), jnp.asarray(_integer_row("first_draw", draws.first)))
    settings, arrays = split(
        request._replace(
            similarity=given.reshape(math.prod(given.shape[:-2]), *given.shape[-2:]),
            draws=draws._replace(seed=rows[0], first=rows[1], epsilon=jnp.full((1, 1), draws.epsilon, jnp.float32)),
        )
    )
    return settings, arrays._replace(similarity=varying(*arrays))


def _call(function: Callable[[Arrays], Any], inputs: Arrays) -> Any:
    """The result of a function of arrays that lead with problems, on any mesh."""
    # On a mesh with explicit axes JAX wants to be told how every intermediate result is sharded. Here its compiler
    # chooses, and results are sharded over problems as the similarity is.
    sharding = jax.typeof(inputs.similarity).sharding if hasattr(jax, "typeof") else None  # before JAX 0.6 no such mesh
    if sharding is None or not sharding.mesh.explicit_axes:
        return function(inputs)
    over_problems = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(sharding.spec[0]))
    return jax.jit(jax.sharding.auto_axes(function, out_sharding=over_problems))(inputs)


def value(given: Array, request: Request) -> tuple[Array, Answer]:
    """Mean value (...) of similarity (..., n, n), or the mean gap of two solves, differentiable; and the answer."""
    if request.if_infeasible == "raise" and request.detail == "mean":
        request = request._replace(detail="draws")  # whose edges tell whether k was reached
    settings, arrays = _ready(given, request._replace(adjacency=True))
    answer = _call(functools.partial(expected_value, settings), arrays)
    return answer.mean.reshape(given.shape[:-2]), answer


def adjacency(given: Array, request: Request) -> Array:
    """Share of draws with each edge, (..., n, n)."""
    settings, arrays = _ready(given, request._replace(adjacency=True, detail="draws"))
    return _call(functools.partial(soft_forest, settings, False), arrays).reshape(given.shape)


def connectivity(given: Array, request: Request) -> Array:
    """Share of draws with each pair in one tree, (..., n, n)."""
    settings, arrays = _ready(given, request._replace(detail="forests"))
    return _call(functools.partial(soft_forest, settings, True), arrays).reshape(given.shape)
