"""Expectations on JAX arrays: differentiable, and folded into one batch of problems under ``vmap``.

The derivative rules are those of ``perturbed.py``. Values can be read, and bad ones be an error, only where nothing
traces them; under ``jit`` a NaN gives NaN, and k outside the range of an operator's constraints is not noticed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diffclust.frameworks import is_traced, to_numpy
from diffclust.noise import check_integer
from diffclust.perturbed import score_weights, value_gradient
from diffclust.problems import check_bounds, check_feasible, check_reached, clamp_clusters
from diffclust.similarity import symmetrise
from diffclust.solvers import Forests, xla
from diffclust.solvers.xla import Array, adjacency_counts, connectivity_products, jax, jnp

if TYPE_CHECKING:
    from diffclust.noise import Draws
    from diffclust.problems import Problem

__all__ = ["adjacency", "adjacency_counts", "connectivity", "connectivity_products", "values"]


class _Options(NamedTuple):
    """What is known when a call is traced."""

    n_draws: int
    noise: str
    antithetic: bool
    must_link_first: bool
    gap: bool
    strict: bool

    @property
    def of_solver(self) -> dict[str, Any]:
        return {
            "n_draws": self.n_draws, "noise": self.noise, "antithetic": self.antithetic,
            "must_link_first": self.must_link_first, "free": self.gap,
        }  # fmt: skip


class _Inputs(NamedTuple):
    """Arrays of all problems; what says which noise has one row for all or one for each."""

    similarity: Any
    n_clusters: Any
    labels: Any
    relation: Any
    seed: Any  # (rows, 2) words
    first_draw: Any  # (rows, 2) words
    epsilon: Any  # (rows, 1)

    @property
    def of_noise(self) -> dict[str, Any]:
        return {"seed": self.seed, "first_draw": self.first_draw, "epsilon": self.epsilon}


# ------------------------------------------------------------------------------------------------------------------
# Solvers under transformations


def _fold(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function(inputs, *arrays)`` on arrays that lead with problems; under ``vmap`` there are just more problems.

    So chunks of draws stay as small as they should be, and noise that is the same for all is made once.
    """

    def fold(size: int, array: Any, is_batched: bool) -> Any:
        array = array if is_batched else jnp.broadcast_to(array, (size, *array.shape))
        return array.reshape(size * array.shape[1], *array.shape[2:])

    def fold_rows(size: int, n_problems: int, rows: Any, is_batched: bool) -> Any:
        if not is_batched:
            return rows if len(rows) == 1 else fold(size, rows, False)
        return fold(size, jnp.broadcast_to(rows, (size, n_problems, rows.shape[-1])), True)

    @jax.custom_batching.custom_vmap
    def call(inputs: _Inputs, *arrays: Any) -> Any:
        return function(inputs, *arrays)

    @call.def_vmap
    def _(size: int, is_batched: Any, inputs: _Inputs, *arrays: Any) -> tuple[Any, Any]:
        n_problems = inputs.n_clusters.shape[1 if is_batched[0].n_clusters else 0]
        rows = {
            name: fold_rows(size, n_problems, array, getattr(is_batched[0], name))
            for name, array in inputs.of_noise.items()
        }
        nothing = dict.fromkeys(rows)
        folded, folded_arrays = jax.tree.map(
            functools.partial(fold, size), (inputs._replace(**nothing), arrays),
            (is_batched[0]._replace(**nothing), tuple(is_batched[1:])),
        )  # fmt: skip
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


def _arguments(inputs: _Inputs, options: _Options) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """What both functions of the solver take."""
    similarity = 0.5 * inputs.similarity + 0.5 * inputs.similarity.swapaxes(-1, -2)
    clusters = inputs.n_clusters
    if inputs.labels is not None and not options.strict:
        clusters = clamp_clusters(clusters, inputs.labels)
    known = {"labels": inputs.labels, "relation": inputs.relation}
    return (similarity, clusters), {**known, **inputs.of_noise, **options.of_solver}


@functools.cache
def _solver(options: _Options) -> Callable[[_Inputs], Forests]:
    def solve(inputs: _Inputs) -> Forests:
        arrays, keywords = _arguments(inputs, options)
        return xla.solve(*arrays, **keywords)

    return _fold(jax.jit(solve))


@functools.cache
def _expectation(options: _Options) -> Callable[[_Inputs], xla.Expectation]:
    def expect(inputs: _Inputs) -> xla.Expectation:
        arrays, keywords = _arguments(inputs, options)
        return xla.expect(*arrays, **keywords)

    return _fold(jax.jit(expect))


@functools.cache
def _score_gradient(options: _Options, of_connectivity: bool) -> Callable[[_Inputs, Array, Array], Array]:
    """The gradient of soft adjacency or connectivity from their cotangent and the draws' edges or trees."""
    products = connectivity_products if of_connectivity else xla.adjacency_products

    def gradient(inputs: _Inputs, cotangent: Array, forests: Array) -> Array:
        weights = score_weights(products(cotangent, forests), inputs.epsilon, options.antithetic)
        return xla.noise_sum(
            weights, cotangent.shape[-1], seed=inputs.seed, first_draw=inputs.first_draw, noise=options.noise,
            antithetic=options.antithetic,
        )  # fmt: skip

    return _fold(jax.jit(gradient))


# ------------------------------------------------------------------------------------------------------------------
# Bad values


def _check_values(inputs: _Inputs, options: _Options) -> None:
    """The errors of the other frameworks, as far as values can be read; a loss looks only where it need not wait."""
    similarity = inputs.similarity
    if not is_traced(similarity) and (options.strict or similarity.devices().pop().platform == "cpu"):
        symmetrise(to_numpy(similarity))
    if options.strict and not any(is_traced(a) for a in (inputs.n_clusters, inputs.labels, inputs.relation)):
        clusters = to_numpy(inputs.n_clusters)
        if clusters.size:
            check_bounds(int(clusters.min()), int(clusters.max()), similarity.shape[-1])
        if inputs.labels is not None or inputs.relation is not None:
            check_feasible(clusters, inputs.labels, inputs.relation)


def _check_reached(inputs: _Inputs, options: _Options, values: Array, n_edges: Array) -> None:
    if not options.strict or any(is_traced(a) for a in (values, inputs.n_clusters)):
        return
    fine = ~np.isnan(to_numpy(values)).any((1, 2))
    constrained = inputs.labels is not None or inputs.relation is not None
    n_points = inputs.similarity.shape[-1]
    check_reached(to_numpy(n_edges)[fine, -1], to_numpy(inputs.n_clusters)[fine], n_points, constrained)


# ------------------------------------------------------------------------------------------------------------------
# Expectations, differentiable in the similarity


def _expected_value(options: _Options, inputs: _Inputs) -> tuple[Array, Array]:
    """Mean value or gap (problems,), and the edge counts that are its gradient."""
    _check_values(inputs, options)
    found = _expectation(options)(inputs)
    _check_reached(inputs, options, found.values, found.n_edges)
    return xla.mean_values(found.values), found.counts


def _value_and_forests(options: _Options, inputs: _Inputs) -> tuple[Array, Forests]:
    """Mean value or gap (problems,), and the forests of all draws."""
    _check_values(inputs, options)
    forests = _solver(options)(inputs)
    _check_reached(inputs, options, forests.values, _n_edges(forests))
    return xla.mean_values(forests.values), forests


def _n_edges(forests: Forests) -> Array:
    return (forests.edges[..., 0] >= 0).sum(-1)


def _soft_forest(options: _Options, of_connectivity: bool, inputs: _Inputs) -> tuple[Array, Array]:
    """Soft adjacency or connectivity (problems, n, n), and the draws' edges or trees."""
    _, found = _value_and_forests(options, inputs)
    if of_connectivity:
        forests = found.labels[:, 0]
        counts = xla.connectivity_counts(forests)
    else:
        forests = found.edges[:, 0]
        counts = adjacency_counts(found.edges, inputs.similarity.shape[-1])
    broken = jnp.isnan(found.values).any((-1, -2))[:, None, None]
    mean = counts.astype(inputs.similarity.dtype) / options.n_draws
    return jnp.where(broken, jnp.nan, mean), forests


def _only(gradient: Array) -> tuple[_Inputs]:
    """Cotangents of the inputs: integers have none."""
    return (_Inputs(gradient, *[None] * (len(_Inputs._fields) - 1)),)


def _mean(counts: Array, like: Array, options: _Options) -> Array:
    return counts.astype(like.dtype) / options.n_draws


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def expected_value(options: _Options, inputs: _Inputs) -> Array:
    return _expected_value(options, inputs)[0]


expected_value.defvjp(
    _expected_value,
    lambda options, counts, cotangent: _only(value_gradient(cotangent, _mean(counts, cotangent, options))),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def value_and_forests(options: _Options, inputs: _Inputs) -> tuple[Array, Forests]:
    return _value_and_forests(options, inputs)


def _forward(options: _Options, inputs: _Inputs) -> tuple[tuple[Array, Forests], Array]:
    mean, forests = _value_and_forests(options, inputs)
    return (mean, forests), adjacency_counts(forests.edges, inputs.similarity.shape[-1])


value_and_forests.defvjp(
    _forward,
    lambda options, counts, cotangents: _only(value_gradient(cotangents[0], _mean(counts, cotangents[0], options))),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def soft_forest(options: _Options, of_connectivity: bool, inputs: _Inputs) -> Array:
    return _soft_forest(options, of_connectivity, inputs)[0]


def _soft_forward(options: _Options, of_connectivity: bool, inputs: _Inputs) -> tuple[Array, tuple[_Inputs, Array]]:
    mean, forests = _soft_forest(options, of_connectivity, inputs)
    return mean, (inputs, forests)


def _soft_backward(
    options: _Options, of_connectivity: bool, saved: tuple[_Inputs, Array], cotangent: Array
) -> tuple[_Inputs]:  # fmt: skip
    inputs, forests = saved
    return _only(_score_gradient(options, of_connectivity)(inputs, cotangent, forests))


soft_forest.defvjp(_soft_forward, _soft_backward)

# ------------------------------------------------------------------------------------------------------------------
# The binding


def _seed_words(seed: Any) -> Any:
    """The words of an integer, an integer scalar or a key; ``jax.random.key(7)`` is the seed 7."""
    if seed is None:
        # JAX has no global generator. A number drawn while a function is traced would be the same in all its runs.
        if isinstance(jnp.zeros(()), jax.core.Tracer):
            raise ValueError(
                "seed=None inside jit would draw once, when compiled. Pass an integer or a JAX key as seed."
            )
        seed = np.random.randint(0, 2**63 - 1, dtype=np.int64)  # noqa: NPY002
    if not isinstance(seed, Array):
        return xla.as_words(check_integer("seed", seed))
    if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        if seed.ndim:
            raise TypeError(f"seed must be one JAX key, got keys of shape {seed.shape}. Use jax.vmap for many.")
        data = jax.random.key_data(seed)
        seed = data if data.shape == (2,) else jax.random.bits(seed, (2,), jnp.uint32)
    if seed.shape == (2,) and seed.dtype == jnp.uint32:  # the high word first
        return seed[None, ::-1]
    return _integer_words("seed", seed)


def _integer_words(name: str, value: Any) -> Any:
    if not isinstance(value, Array):
        return xla.as_words(check_integer(name, value))
    if not jnp.issubdtype(value.dtype, jnp.integer) or value.ndim:
        raise TypeError(
            f"{name} must be an integer, a 0-d integer array or, as seed, a JAX key, got {value.dtype} {value.shape}."
        )
    return xla.as_words(value)


def _ready(problem: Problem, draws: Draws, must_link_first: bool, gap: bool, strict: bool) -> tuple[_Options, _Inputs]:
    options = _Options(draws.n_draws, draws.noise, draws.antithetic, must_link_first, gap, strict)
    inputs = _Inputs(
        problem.similarity, problem.n_clusters, problem.labels, problem.relation, jnp.asarray(_seed_words(draws.seed)),
        jnp.asarray(_integer_words("first_draw", draws.first)), jnp.full((1, 1), draws.epsilon, jnp.float32),
    )  # fmt: skip
    return options, inputs._replace(similarity=xla.varying(*inputs))


def _call(function: Callable[[_Inputs], Any], inputs: _Inputs) -> Any:
    """Call a function of arrays that lead with problems, on any mesh.

    On a mesh with explicit axes JAX wants to be told how every intermediate result is sharded. Here its compiler
    chooses, and results are sharded over problems as the similarity is.
    """
    sharding = jax.typeof(inputs.similarity).sharding if hasattr(jax, "typeof") else None  # before JAX 0.6 no such mesh
    if sharding is None or not sharding.mesh.explicit_axes:
        return function(inputs)
    over_problems = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(sharding.spec[0]))
    return jax.jit(jax.sharding.auto_axes(function, out_sharding=over_problems))(inputs)


def values(
    problem: Problem, draws: Draws, *, must_link_first: bool, gap: bool = False, strict: bool = False,
    with_labels: bool = False,
) -> tuple[Any, Forests | None]:  # fmt: skip
    """Mean value (...), or with ``gap`` the mean of free less constrained value; and with labels the forests."""
    options, inputs = _ready(problem, draws, must_link_first, gap, strict)
    function = value_and_forests if with_labels else expected_value
    found = _call(functools.partial(function, options), inputs)
    mean, forests = found if with_labels else (found, None)
    return problem.unflatten(mean), forests


def adjacency(problem: Problem, draws: Draws, *, must_link_first: bool) -> Array:
    options, inputs = _ready(problem, draws, must_link_first, gap=False, strict=True)
    return _call(functools.partial(soft_forest, options, False), inputs)


def connectivity(problem: Problem, draws: Draws, *, must_link_first: bool) -> Array:
    options, inputs = _ready(problem, draws, must_link_first, gap=False, strict=True)
    return _call(functools.partial(soft_forest, options, True), inputs)
