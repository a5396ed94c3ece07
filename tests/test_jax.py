"""Operators and losses on JAX arrays: the numbers of the other frameworks, under every transformation of JAX.

Compiling is what takes time here, so most tests share one problem and its options.
"""

import subprocess
import sys
import warnings

import networkx as nx
import numpy as np
import pytest

import diffclust as dc
from oracles import random_similarity

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")
import jax.numpy as jnp  # noqa: E402

N, K = 8, 3
LABELS = np.array([0, 0, 1, 1, -1, -1, 1, -1])
OPTIONS = {"n_draws": 16, "seed": 5, "epsilon": 0.5}
PAIRS = dc.Constraints.from_pairs(N, must_link=[(0, 1)], cannot_link=[(1, 2), (3, 4)])
SIMILARITY = random_similarity(np.random.default_rng(0), N, dtype=np.float32)
COTANGENT = np.random.default_rng(1).normal(size=(N, N)).astype(np.float32)
TREE = dc.spanning_forest(SIMILARITY, K).adjacency().astype(np.float32)


def loss(similarity, labels=None, k=K, **options):
    constraints = dc.Constraints.from_labels(jnp.asarray(LABELS) if labels is None else labels)
    return dc.partial_fenchel_young_loss(similarity, constraints, k, **(OPTIONS | options))


compiled_loss = jax.jit(jax.value_and_grad(loss))
EXPECTED_LOSS = float(dc.partial_fenchel_young_loss(SIMILARITY, dc.Constraints.from_labels(LABELS), K, **OPTIONS))


# ------------------------------------------------------------------------------------------------------------------
# The numbers of torch

LABELLED = dc.Constraints.from_labels(LABELS)
FUNCTIONS = {
    "value": lambda s, like: dc.perturbed_value(s, K, **OPTIONS),
    "adjacency": lambda s, like: (dc.perturbed_adjacency(s, K, **OPTIONS) * like(COTANGENT)).sum(),
    "adjacency, gumbel": lambda s, like: (
        dc.perturbed_adjacency(s, K, noise="gumbel", **OPTIONS) * like(COTANGENT)
    ).sum(),
    "connectivity, labels": lambda s, like: (
        dc.perturbed_connectivity(s, K, constraints=LABELLED, **OPTIONS) * like(COTANGENT)
    ).sum(),
    "connectivity, antithetic": lambda s, like: (
        dc.perturbed_connectivity(s, K, antithetic=True, **OPTIONS) * like(COTANGENT)
    ).sum(),
    "partial loss": lambda s, like: dc.partial_fenchel_young_loss(s, LABELLED, K, **OPTIONS),
    "partial loss, pairs": lambda s, like: dc.partial_fenchel_young_loss(s, PAIRS, K, **OPTIONS),
    "forest loss": lambda s, like: dc.fenchel_young_loss(s, like(TREE), K, **OPTIONS),
    "connectivity loss": lambda s, like: dc.connectivity_loss(s, LABELLED, K, **OPTIONS),
    "connectivity loss, pairs": lambda s, like: dc.connectivity_loss(s, PAIRS, K, **OPTIONS),
}


SLOW = ("adjacency, gumbel", "connectivity, antithetic", "forest loss", "connectivity loss")  # to compile


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in FUNCTIONS]
)
def test_values_and_gradients_are_those_of_torch(name):
    function = FUNCTIONS[name]
    tensor = torch.tensor(SIMILARITY, requires_grad=True)
    expected = function(tensor, torch.as_tensor)
    expected.backward()
    value, gradient = jax.value_and_grad(lambda s: function(s, jnp.asarray))(jnp.asarray(SIMILARITY))
    assert value.dtype == gradient.dtype == jnp.float32
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-4, atol=2e-5)
    assert np.abs(gradient).max() > 0.01


def test_soft_forests_are_those_of_numpy():
    for operator in (dc.perturbed_adjacency, dc.perturbed_connectivity):
        ours = operator(jnp.asarray(SIMILARITY), K, **OPTIONS)
        np.testing.assert_array_equal(ours, operator(SIMILARITY, K, **OPTIONS))


@pytest.mark.parametrize("constraints", [None, LABELLED, PAIRS], ids=["free", "labels", "pairs"])
def test_exact_forests_are_those_of_numpy(constraints):
    expected = dc.spanning_forest(SIMILARITY, K, constraints=constraints)
    ours = dc.spanning_forest(jnp.asarray(SIMILARITY), K, constraints=constraints)
    np.testing.assert_array_equal(ours.edges, expected.edges)
    np.testing.assert_array_equal(ours.labels, expected.labels)
    np.testing.assert_array_equal(ours.adjacency(), expected.adjacency())
    np.testing.assert_array_equal(ours.connectivity(), expected.connectivity())
    np.testing.assert_allclose(ours.value, expected.value, rtol=1e-6)
    assert isinstance(ours.adjacency(), jax.Array)


def test_the_gradient_of_an_exact_value_is_the_forest():
    gradient = jax.grad(lambda s: dc.spanning_forest(s, K).value)(jnp.asarray(SIMILARITY))
    np.testing.assert_array_equal(gradient, dc.spanning_forest(SIMILARITY, K).adjacency())


@pytest.mark.slow
def test_diagnostics_are_those_of_numpy():
    _, expected = dc.partial_fenchel_young_loss(SIMILARITY, LABELLED, K, diagnostics=True, **OPTIONS)
    call = jax.value_and_grad(lambda s: loss(s, diagnostics=True), has_aux=True)
    (value, ours), gradient = call(jnp.asarray(SIMILARITY))
    np.testing.assert_allclose(value, EXPECTED_LOSS, rtol=1e-5)
    for name, one, other in zip(expected._fields, ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=name)
    np.testing.assert_array_equal(gradient, compiled_loss(jnp.asarray(SIMILARITY))[1])


def test_hierarchy_and_metrics_take_arrays():
    hierarchy = dc.Hierarchy.from_similarity(jnp.asarray(SIMILARITY))
    np.testing.assert_array_equal(hierarchy.edges, dc.Hierarchy.from_similarity(SIMILARITY).edges)
    forest = dc.spanning_forest(jnp.asarray(SIMILARITY), K)
    assert dc.metrics.connectivity_error(forest.labels, forest.labels) == 0.0
    assert dc.metrics.clustering_scores(forest.labels, hierarchy.labels(K))["accuracy"] == 1.0


@pytest.mark.slow
def test_similarities_are_those_of_numpy():
    points = np.random.default_rng(0).normal(size=(2, 9, 3)).astype(np.float32)
    for function in (
        dc.negative_squared_distances,
        dc.cosine_similarities,
        lambda x: dc.standardize(dc.negative_squared_distances(x)),
        lambda x: dc.mutual_reachability(dc.negative_squared_distances(x), 2),
    ):
        value, gradient = jax.jit(lambda x, f=function: (f(x), jax.grad(lambda x: f(x).sum())(x)))(jnp.asarray(points))
        np.testing.assert_allclose(value, function(points), rtol=1e-4, atol=1e-5)
        assert np.isfinite(gradient).all()


# ------------------------------------------------------------------------------------------------------------------
# Transformations


def test_jit_is_eager():
    value, gradient = jax.value_and_grad(loss)(jnp.asarray(SIMILARITY))
    compiled_value, compiled_gradient = compiled_loss(jnp.asarray(SIMILARITY))
    np.testing.assert_allclose(value, EXPECTED_LOSS, rtol=1e-5)
    np.testing.assert_allclose(compiled_value, value, rtol=1e-6)
    np.testing.assert_array_equal(compiled_gradient, gradient)


def test_number_of_clusters_and_labels_may_be_traced():
    function = jax.jit(lambda s, labels, k: loss(s, labels, k))
    for k in range(1, N + 1):  # outside of 2 to 6 it is moved inside
        expected = dc.partial_fenchel_young_loss(SIMILARITY, LABELLED, k, **OPTIONS)
        np.testing.assert_allclose(function(SIMILARITY, LABELS, jnp.asarray(k)), expected, rtol=1e-5, atol=1e-6)
    assert function._cache_size() == 1


@pytest.mark.slow
def test_vmap_is_a_loop():
    rng = np.random.default_rng(2)
    batch = jnp.asarray(np.stack([random_similarity(rng, N, dtype=np.float32) for _ in range(3)]))
    labels = jnp.asarray(rng.integers(-1, 3, size=(3, N)))
    clusters = jnp.array([2, 3, 4])
    each = [jax.value_and_grad(loss)(*problem) for problem in zip(batch, labels, clusters, strict=True)]
    mapped = jax.vmap(jax.value_and_grad(loss))(batch, labels, clusters)
    whole = jax.value_and_grad(lambda s: loss(s, labels, clusters, reduction="sum"))(batch)
    for p, (value, gradient) in enumerate(each):
        np.testing.assert_allclose(mapped[0][p], value, rtol=1e-6)
        np.testing.assert_array_equal(mapped[1][p], gradient)
        np.testing.assert_array_equal(whole[1][p], gradient)
    np.testing.assert_allclose(whole[0], sum(value for value, _ in each), rtol=1e-6)


@pytest.mark.slow
def test_vmap_over_keys_and_over_vmap():
    keys = jax.random.split(jax.random.key(0), 2)
    batch = jnp.stack([jnp.asarray(SIMILARITY), 2 * jnp.asarray(SIMILARITY)])

    def soft(s, key):
        return (dc.perturbed_connectivity(s, K, n_draws=16, seed=key) * jnp.asarray(COTANGENT)).sum()

    step = jax.value_and_grad(soft)
    nested = jax.vmap(lambda key: jax.vmap(lambda s: step(s, key))(batch))(keys)
    for a, key in enumerate(keys):
        for b, similarity in enumerate(batch):
            value, gradient = step(similarity, key)
            np.testing.assert_allclose(nested[0][a, b], value, rtol=1e-5)
            np.testing.assert_allclose(nested[1][a, b], gradient, rtol=1e-4, atol=1e-5)


def test_checkpoint_and_scan():
    gradient = compiled_loss(jnp.asarray(SIMILARITY))[1]
    again = jax.grad(jax.checkpoint(lambda s: loss(s)))(jnp.asarray(SIMILARITY))
    np.testing.assert_array_equal(again, gradient)

    def step(s, first_draw):
        return s - 0.1 * jax.grad(lambda s: loss(s, first_draw=first_draw))(s), None

    scanned = jax.lax.scan(step, jnp.asarray(SIMILARITY), 16 * jnp.arange(2))[0]
    looped = jnp.asarray(SIMILARITY)
    for first_draw in (0, 16):
        looped = step(looped, jnp.asarray(first_draw))[0]
    np.testing.assert_allclose(scanned, looped, rtol=1e-6)


def test_no_second_derivatives_and_none_forward():
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        jax.grad(lambda s: jax.grad(loss)(s).sum())(jnp.asarray(SIMILARITY))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(loss, (jnp.asarray(SIMILARITY),), (jnp.asarray(SIMILARITY),))


def test_constraints_are_built_where_the_labels_are():
    @jax.jit
    def look(labels):
        constraints = dc.Constraints.from_labels(labels)
        return constraints.min_clusters, constraints.max_clusters, constraints.matrix()

    lowest, highest, matrix = look(jnp.asarray(LABELS))
    assert (lowest, highest) == (LABELLED.min_clusters, LABELLED.max_clusters)
    np.testing.assert_array_equal(matrix, LABELLED.matrix())


# ------------------------------------------------------------------------------------------------------------------
# Arrays made outside of a transformation and used inside: they can be read, but operations on them are traced

JAX_LABELLED = dc.Constraints.from_labels(jnp.asarray(LABELS))
JAX_PAIRS = dc.Constraints(relation=jnp.asarray(PAIRS.relation))
TWO_CLUSTERS = jnp.asarray([2, 3])
CLUSTERS, SEED, FIRST, ROWS = jnp.asarray(K), jnp.asarray(5), jnp.asarray(2), jnp.asarray([0, 1, 2, 3, 6])
BATCH_OF_TWO = jnp.stack([jnp.asarray(SIMILARITY)] * 2)
TWO_LABELLED = dc.Constraints.from_labels(jnp.stack([jnp.asarray(LABELS)] * 2))
JAX_SIMILARITY, LINKS = jnp.asarray(SIMILARITY), (jnp.asarray([(0, 1)]), jnp.asarray([(2, 3)]))
FEW = {"n_draws": 2, "seed": 5}


def closed_over(constraints):
    return {
        "partial loss": lambda s: dc.partial_fenchel_young_loss(s, constraints, K, **FEW),
        "partial loss, strict": lambda s: dc.partial_fenchel_young_loss(s, constraints, K, strict=True, **FEW),
        "connectivity loss": lambda s: dc.connectivity_loss(s, constraints, CLUSTERS, **FEW),
        "value": lambda s: dc.perturbed_value(s, CLUSTERS, constraints=constraints, **FEW),
        "forest": lambda s: dc.spanning_forest(s, K, constraints=constraints).value,
        "matrix": lambda s: (s * jnp.nan_to_num(constraints.matrix())).sum(),
        "range": lambda s: s.sum() * constraints.min_clusters * constraints.max_clusters,
        "agree": lambda s: s.sum() * constraints.agree(LABELS),
        "groups": lambda s: s.sum() * constraints.groups()[0][0],
        "restrict": lambda s: dc.partial_fenchel_young_loss(s[:5, :5], constraints.restrict(ROWS), 2, **FEW),
        "restrict, traced": lambda s: dc.partial_fenchel_young_loss(
            s[:5, :5], constraints.restrict(ROWS + 1), 2, **FEW
        ),
    }


CLOSED_OVER = {
    f"{name}, {kind}": function
    for kind, constraints in (
        ("JAX labels", JAX_LABELLED),
        ("NumPy labels", LABELLED),
        ("JAX pairs", JAX_PAIRS),
        ("NumPy pairs", PAIRS),
    )
    for name, function in closed_over(constraints).items()
} | {
    "constraints from pairs": lambda s: dc.partial_fenchel_young_loss(
        s, dc.Constraints.from_pairs(N, *LINKS), K, **FEW
    ),
    "seed": lambda s: dc.perturbed_value(s, np.int64(K), n_draws=2, seed=SEED, first_draw=FIRST),
    "forest loss": lambda s: dc.fenchel_young_loss(s, jnp.asarray(TREE), K, **FEW),
    "batch": lambda s: (
        s.sum() + dc.partial_fenchel_young_loss(BATCH_OF_TWO, TWO_LABELLED, TWO_CLUSTERS, strict=True, **FEW)
    ),
    "batch, operator": lambda s: (
        s.sum() + dc.perturbed_value(BATCH_OF_TWO, TWO_CLUSTERS, constraints=TWO_LABELLED, **FEW).sum()
    ),
    "hierarchy": lambda s: s.sum() + dc.Hierarchy.from_similarity(JAX_SIMILARITY).labels(K).sum(),
}


@pytest.mark.parametrize("name", CLOSED_OVER)
def test_what_was_made_outside_can_be_used_inside(name):
    """Traced only: what cannot be read is an error then."""
    function, similarity = CLOSED_OVER[name], jnp.asarray(SIMILARITY)
    gradient = jax.grad(function)
    jax.eval_shape(gradient, similarity)  # as jit traces
    jax.eval_shape(jax.vmap(gradient), BATCH_OF_TWO)
    jax.eval_shape(jax.grad(jax.checkpoint(function)), similarity)
    jax.eval_shape(lambda s: jax.lax.scan(lambda s, _: (s - gradient(s), None), s, None, 2)[0], similarity)


def test_constraints_made_outside_give_the_same_loss():
    expected = compiled_loss(jnp.asarray(SIMILARITY))
    compiled = jax.jit(jax.value_and_grad(lambda s: dc.partial_fenchel_young_loss(s, JAX_LABELLED, K, **OPTIONS)))
    for _ in range(2):
        found = compiled(jnp.asarray(SIMILARITY))
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
    assert compiled._cache_size() == 1


def test_rows_of_constraints_may_be_traced():
    step = jax.jit(lambda s, rows: dc.partial_fenchel_young_loss(s, LABELLED.restrict(rows), 2, **FEW))
    part = SIMILARITY[:5, :5]
    for rows in ([0, 1, 2, 3, 6], [4, 1, 2, 3, 6]):
        expected = dc.partial_fenchel_young_loss(part, LABELLED.restrict(rows), 2, **FEW)
        np.testing.assert_allclose(step(part, np.array(rows)), expected, rtol=1e-5)
    assert step._cache_size() == 1


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a loss does not wait for a GPU")
def test_labels_made_outside_are_looked_at_inside():
    unknown = dc.Constraints.from_labels(jnp.full(N, -1))
    with pytest.warns(UserWarning, match="No point of this batch is labelled"):
        jax.eval_shape(lambda s: dc.partial_fenchel_young_loss(s, unknown, K, **FEW), jnp.asarray(SIMILARITY))


@pytest.mark.parametrize(
    "build",
    [lambda a: dc.Constraints.from_pairs(N, a[None, :2]), lambda a: dc.Constraints.from_matrix(jnp.eye(N) + 0 * a[0])],
    ids=["pairs", "matrix"],
)
def test_traced_pairs_are_an_error(build):
    with pytest.raises(TypeError, match=r"(must_link|matrix) is traced by JAX.*Build these constraints outside"):
        jax.jit(lambda a: build(a).matrix())(jnp.arange(4))


def test_no_tracer_leaks():
    """Traced only: that is where tracers leak."""
    with jax.checking_leaks():
        jax.eval_shape(jax.jit(jax.value_and_grad(lambda s: loss(s, n_draws=2))), jnp.asarray(SIMILARITY))
        jax.eval_shape(jax.vmap(jax.grad(lambda s: dc.connectivity_loss(s, JAX_LABELLED, K, **FEW))), BATCH_OF_TWO)


# ------------------------------------------------------------------------------------------------------------------
# Seeds


def test_seeds_are_integers_or_keys():
    similarity = jnp.asarray(SIMILARITY)
    expected = compiled_loss(similarity)[0]
    seeds = [np.int64(5), jnp.asarray(5), jnp.uint32(5), jax.random.key(5), jax.random.PRNGKey(5)]
    for seed in seeds:
        np.testing.assert_allclose(loss(similarity, seed=seed), expected, rtol=1e-6)
    high = 2**40 + 2**63 + 5
    expected = dc.partial_fenchel_young_loss(SIMILARITY, LABELLED, K, **(OPTIONS | {"seed": high}))
    np.testing.assert_allclose(loss(similarity, seed=high), expected, rtol=1e-5)
    np.testing.assert_allclose(loss(similarity, seed=high - 2**64), expected, rtol=1e-5)
    minus = dc.partial_fenchel_young_loss(SIMILARITY, LABELLED, K, **(OPTIONS | {"seed": -2}))
    np.testing.assert_allclose(loss(similarity, seed=jnp.asarray(-2)), minus, rtol=1e-5)
    longer = jax.random.key(5, impl="rbg")
    assert np.isfinite(loss(similarity, seed=longer))


def test_later_draws_continue_the_stream():
    similarity = jnp.asarray(SIMILARITY)
    for first_draw in (3, jnp.asarray(3), 2**33):
        start = int(first_draw)
        expected = dc.partial_fenchel_young_loss(SIMILARITY, LABELLED, K, first_draw=start, **OPTIONS)
        np.testing.assert_allclose(loss(similarity, first_draw=first_draw), expected, rtol=1e-5)


def test_without_a_seed_numpys_generator_draws_one():
    similarity = jnp.asarray(SIMILARITY)
    np.random.seed(3)  # noqa: NPY002
    first, second = loss(similarity, seed=None), loss(similarity, seed=None)
    np.random.seed(3)  # noqa: NPY002
    gradient = jax.grad(lambda s: loss(s, seed=None))(similarity)
    assert first != second
    np.random.seed(3)  # noqa: NPY002
    assert loss(similarity, seed=None) == first
    assert np.isfinite(gradient).all()
    with pytest.raises(ValueError, match=r"seed=None inside jit.*Pass an integer or a JAX key"):
        jax.jit(lambda s: loss(s, seed=None))(similarity)


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (1.5, "seed must be an integer"),
        (2**64, "64 bits"),
        (jnp.zeros(3, int), r"0-d integer array or, as seed, a JAX key, got int32 \(3,\)"),
        (jnp.asarray(1.0), "got float32"),
        (jax.random.split(jax.random.key(0)), "one JAX key"),
    ],
)
def test_bad_seeds(seed, message):
    with pytest.raises((TypeError, ValueError), match=message):
        loss(jnp.asarray(SIMILARITY), seed=seed)


# ------------------------------------------------------------------------------------------------------------------
# Bad input


@pytest.mark.parametrize("k", [0, N + 1, np.int64(0)])
def test_k_out_of_range(k):
    with pytest.raises(ValueError, match=r"must be from 1 to the number of points, 8"):
        dc.perturbed_value(jnp.asarray(SIMILARITY), k, **OPTIONS)


def test_values_are_read_where_they_can_be():
    similarity = jnp.asarray(SIMILARITY)
    with pytest.raises(ValueError, match="n_clusters=9 must be from 1"):
        dc.perturbed_value(similarity, jnp.asarray(9), **OPTIONS)
    with pytest.raises(ValueError, match="n_clusters=7 is infeasible: the constraints allow 2 to 5 clusters"):
        dc.perturbed_value(similarity, 7, constraints=LABELLED, **OPTIONS)
    with pytest.raises(ValueError, match="n_clusters=7 is infeasible"):
        loss(similarity, k=7, strict=True)
    with pytest.raises(ValueError, match="similarity must be symmetric"):
        dc.perturbed_value(similarity.at[0, 1].add(1.0), K, **OPTIONS)
    pieces = jnp.where(np.arange(N)[:, None] // 4 == np.arange(N) // 4, similarity, -jnp.inf)
    with pytest.raises(ValueError, match="without its -inf edges the graph has 2 components"):
        dc.perturbed_value(pieces, 1, **OPTIONS)
    assert np.isfinite(dc.perturbed_value(pieces, 2, **OPTIONS))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a loss does not wait for a GPU")
def test_a_loss_looks_where_looking_is_free():
    with pytest.raises(ValueError, match="similarity must be symmetric"):
        loss(jnp.asarray(SIMILARITY).at[0, 1].add(1.0))
    with pytest.warns(UserWarning, match="No point of this batch is labelled"):
        assert loss(jnp.asarray(SIMILARITY), jnp.full(N, -1)) == 0


def test_shapes_and_types():
    with pytest.raises(ValueError, match=r"similarity must have shape \(n, n\)"):
        loss(jnp.zeros((N, 3)))
    with pytest.raises(TypeError, match=r"floating point, got int32. Convert first, e.g. with .astype"):
        loss(jnp.zeros((N, N), int))
    with pytest.raises(TypeError, match="n_clusters must be integers"):
        loss(jnp.asarray(SIMILARITY), k=jnp.asarray(2.0))
    with pytest.raises(TypeError, match="labels must be integers"):
        dc.Constraints.from_labels(jnp.zeros(3))
    with pytest.raises(ValueError, match="constraints are about 3 points"):
        loss(jnp.asarray(SIMILARITY), jnp.zeros(3, int))


def test_a_nan_is_a_nan():
    broken = jnp.asarray(SIMILARITY).at[0, 1].set(jnp.nan)
    value, _ = compiled_loss(broken)
    assert np.isnan(value)
    assert np.isnan(loss(broken))
    assert np.isnan(dc.perturbed_connectivity(broken, K, **OPTIONS)).all()


def test_half_precision_is_computed_in_float32():
    half = jnp.asarray(SIMILARITY, jnp.bfloat16)
    exact = jnp.asarray(half, jnp.float32)
    value, gradient = jax.value_and_grad(loss)(half)
    assert value.dtype == jnp.float32
    assert gradient.dtype == jnp.bfloat16
    assert value == loss(exact)


def test_no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        similarity = jnp.asarray(SIMILARITY)
        loss(similarity)
        loss(similarity, LABELS)
        dc.perturbed_value(similarity, np.int64(K), **OPTIONS)
        dc.connectivity_loss(similarity, PAIRS, K, **OPTIONS)


def test_large_labels_stay_different():
    labels = np.where(LABELS <= 0, LABELS, LABELS * 2**32 + 2**40)
    np.testing.assert_allclose(loss(jnp.asarray(SIMILARITY), labels), EXPECTED_LOSS, rtol=1e-5)


def test_an_empty_batch():
    value = loss(jnp.zeros((0, N, N)), reduction="none")
    assert value.shape == (0,)


@pytest.mark.slow
def test_double_precision():
    enable = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    similarity = SIMILARITY.astype(np.float64) + 1e-9 * random_similarity(np.random.default_rng(5), N)
    expected = dc.spanning_forest(similarity, K, constraints=LABELLED)
    value = dc.partial_fenchel_young_loss(similarity, LABELLED, K, **OPTIONS)
    with enable(True):
        array = jnp.asarray(similarity)
        ours = dc.spanning_forest(array, K, constraints=LABELLED)
        np.testing.assert_array_equal(ours.edges, expected.edges)
        np.testing.assert_allclose(ours.value, expected.value, rtol=1e-14)
        result, gradient = jax.value_and_grad(loss)(array)
        assert result.dtype == gradient.dtype == jnp.float64
        np.testing.assert_allclose(result, value, rtol=1e-12)
        np.testing.assert_allclose(loss(array, seed=jnp.asarray(5 + 2**40)), dc.partial_fenchel_young_loss(
            similarity, LABELLED, K, **(OPTIONS | {"seed": 5 + 2**40})), rtol=1e-12)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------
# Without JAX


def run_without_jax(code):
    blocked = "import sys; sys.modules['jax'] = None; import diffclust as dc, numpy as np\n"
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True)


def test_the_package_works_without_jax():
    result = run_without_jax("print(dc.spanning_forest(np.zeros((3, 3)), 2).labels.tolist())")
    assert result.stdout.strip() == "[0, 0, 1]", result.stderr


@pytest.mark.parametrize("module", ["diffclust.bindings.jax", "diffclust.solvers.xla"])
def test_asking_for_jax_without_it_names_the_extra(module):
    result = run_without_jax(f"import {module}")
    assert "ImportError: The JAX solver needs JAX: pip install 'diffclust[jax]'." in result.stderr


# ------------------------------------------------------------------------------------------------------------------
# What the authors test of their functions


def squared_distances(n, d, seed=0):
    return -dc.negative_squared_distances(jnp.asarray(np.random.default_rng(seed).normal(size=(n, d)), jnp.float32))


@pytest.mark.parametrize("d", [1, 3, 1000])
def test_the_tree_of_networkx(d):
    n = 20
    distances = np.asarray(squared_distances(n, d), np.float64)
    tree = nx.minimum_spanning_tree(nx.from_numpy_array(distances))
    ours = dc.spanning_forest(jnp.asarray(-distances, jnp.float32), 1)
    np.testing.assert_array_equal(ours.adjacency(), nx.to_numpy_array(tree, nodelist=range(n), weight=None))


def test_three_points():
    similarity = -jnp.array([[0.0, 4.0, 5.0], [4.0, 0.0, 3.0], [5.0, 3.0, 0.0]])
    edges = {k: dc.spanning_forest(similarity, k).adjacency() for k in (1, 2, 3)}
    np.testing.assert_array_equal(edges[3], np.zeros((3, 3)))
    np.testing.assert_array_equal(edges[2], [[0, 0, 0], [0, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(edges[1], [[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(dc.spanning_forest(similarity, 2).connectivity(), [[1, 0, 0], [0, 1, 1], [0, 1, 1]])


def test_standardising_changes_no_forest():
    similarity = -squared_distances(20, 3)
    for k in (1, 2):
        plain, standard = dc.spanning_forest(similarity, k), dc.spanning_forest(dc.standardize(similarity), k)
        np.testing.assert_array_equal(plain.edges, standard.edges)


def test_one_pair_apart():
    """Five points, of which 0 and 2 must not share one of two clusters: 2, close to everything else, ends up alone."""
    points = [[0.110, -0.094], [0.405, -0.664], [-0.349, -0.826], [-0.294, 0.871], [-0.450, -0.182]]
    similarity = dc.negative_squared_distances(jnp.array(points))
    forest = dc.spanning_forest(similarity, 2, constraints=dc.Constraints.from_pairs(5, cannot_link=[(0, 2)]))
    assert forest.labels.tolist() == [0, 0, 1, 0, 0]
    assert sorted(forest.edges.tolist())[1:] == [[0, 1], [0, 3], [0, 4]]


def test_constraints_beat_similarities():
    """Points 0 and 1 are the farthest of three, but must be together, without 2."""
    similarity = -jnp.array([[0.0, 3.0, 1.0], [3.0, 0.0, 2.0], [1.0, 2.0, 0.0]])
    known = dc.Constraints.from_pairs(3, [(0, 1)], [(0, 2), (1, 2)])
    forest = dc.spanning_forest(similarity, 2, constraints=known)
    assert forest.labels.tolist() == [0, 0, 1]
    assert forest.edges.tolist() == [[0, 1], [-1, -1]]


def test_everything_apart_but_one_pair():
    n = N
    known = dc.Constraints.from_labels([0, *range(n - 1)])
    for must_link_first in (True, False):
        forest = dc.spanning_forest(-squared_distances(n, 3), n - 1, constraints=known, must_link_first=must_link_first)
        assert forest.edges[0].tolist() == [0, 1]
        assert (np.asarray(forest.edges[1:]) == -1).all()


@pytest.mark.parametrize("known", ["nothing", "its own clusters", "no labels", "two pairs"])
def test_the_gradient_of_the_value_is_the_soft_adjacency(known):
    similarity = jnp.asarray(SIMILARITY)
    constraints = {
        "nothing": None,
        "its own clusters": dc.Constraints.from_labels(dc.spanning_forest(SIMILARITY, K).labels),
        "no labels": dc.Constraints.from_labels(np.full(N, -1)),
        "two pairs": dc.Constraints.from_pairs(N, [(4, 5)], [(1, 2)]),
    }[known]
    gradient = jax.grad(lambda s: dc.perturbed_value(s, K, constraints=constraints, **OPTIONS))(similarity)
    soft = dc.perturbed_adjacency(similarity, K, constraints=constraints, **OPTIONS)
    np.testing.assert_allclose(gradient, soft, rtol=1e-6)


def test_the_soft_connectivity_has_a_gradient():
    """Theirs is zero by decree."""
    gradient = jax.grad(lambda s: (dc.perturbed_connectivity(s, K, **OPTIONS) ** 2).sum())(jnp.asarray(SIMILARITY))
    assert np.abs(gradient).max() > 0
