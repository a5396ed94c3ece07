"""JAX arrays on four devices: the bits of one device, however the arrays are sharded.

The number of devices is fixed when JAX is imported, so one test runs this file again, in a process that has four. It
runs some tests of bits once more, in a process in which XLA optimises as it does for users (see conftest.py).
"""

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import diffclust as dc
from oracles import random_similarity

jax = pytest.importorskip("jax", "0.7")  # jax.shard_map, check_vma
import jax.numpy as jnp  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from diffclust.solvers.xla import chunks  # noqa: E402

FLAG = "--xla_force_host_platform_device_count=4"
on_four = pytest.mark.skipif(FLAG not in os.environ.get("XLA_FLAGS", ""), reason="run by test_four_devices")

N, K = 8, 3
OPTIONS = {"n_draws": 8, "seed": 5, "epsilon": 0.5}
LABELS = np.array([0, 0, 1, 1, -1, -1, 1, -1])
LABELLED = dc.Constraints.from_labels(LABELS)
PAIRS = dc.Constraints.from_pairs(N, must_link=[(0, 1)], cannot_link=[(1, 2), (3, 4)])
RNG = np.random.default_rng(0)
BATCH = np.stack([random_similarity(RNG, N, dtype=np.float32) for _ in range(4)])
TREE = dc.spanning_forest(BATCH[0], K).adjacency().astype(np.float32)
COTANGENT = RNG.normal(size=(N, N)).astype(np.float32)
LOSS = {"reduction": "none", **OPTIONS}

FUNCTIONS = {
    "value": lambda s: dc.perturbed_value(s, K, **OPTIONS),
    "adjacency": lambda s: dc.perturbed_adjacency(s, K, constraints=LABELLED, noise="gumbel", **OPTIONS),
    "connectivity": lambda s: dc.perturbed_connectivity(s, K, antithetic=True, **OPTIONS),
    "partial loss": lambda s: dc.partial_fenchel_young_loss(s, LABELLED, K, **LOSS),
    "partial loss, one pass": lambda s: dc.partial_fenchel_young_loss(
        s, LABELLED, K, must_link_first=False, diagnostics=True, **LOSS
    )[0],
    "partial loss, pairs": lambda s: dc.partial_fenchel_young_loss(s, PAIRS, K, **LOSS),
    "forest loss": lambda s: dc.fenchel_young_loss(s, np.stack([TREE] * len(s)), K, **LOSS),
    "connectivity loss": lambda s: dc.connectivity_loss(s, LABELLED, K, **LOSS),
    "forest": lambda s: dc.spanning_forest(s, K, constraints=LABELLED).value,
}
TWO = ("partial loss", "connectivity")  # one gradient of each formula
OPTIMISED = (  # where the rounding of a float decides: noise, its sums, forests of it, and on what devices that is
    *(f"test_jax_devices.py::test_jit[{how}]" for how in ("over_points", "explicit_axes")),
    *(f"test_conformance.py::test_forests[xla-{case}]" for case in ("noise", "gumbel", "antithetic", "labels")),
    "test_conformance.py::test_forests[xla-relation, one pass]",
    *(f"test_conformance.py::test_noise_sum[xla-{kind}]" for kind in ("normal-False", "normal-True", "gumbel-False")),
    "test_jax_solver.py::test_noise_is_the_definition_to_the_last_bit",
    "test_jax_solver.py::test_antithetic_noise_comes_in_pairs",
    "test_jax_solver.py::test_a_root_that_is_one_step_away_is_corrected",
)


@pytest.mark.slow
@pytest.mark.parametrize("optimised", [False, True])
def test_four_devices(optimised):
    flags = os.environ.get("XLA_FLAGS", "")
    assert FLAG not in flags  # or this would go on for ever
    # Without optimisations the bits depend on how points are sharded.
    tests, without = (OPTIMISED, "") if optimised else (["test_jax_devices.py"], " and not over_points")
    options = ("-q", "-x", "-p", "no:cacheprovider", "-k", f"not test_four_devices{without}")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(Path(__file__).with_name(test) for test in tests)],
        env=os.environ | {"XLA_FLAGS": FLAG if optimised else f"{flags} {FLAG}", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "skipped" not in result.stdout


def value_and_gradient(names=FUNCTIONS):
    """A function of similarities (problems, n, n): values of the named functions, and gradients, all by problem."""

    def call(similarity):
        found = {}
        for name in names:
            value, pull = jax.vjp(FUNCTIONS[name], similarity)
            cotangent = jnp.ones_like(value) * (jnp.asarray(COTANGENT) if value.ndim == 3 else 1)
            found[name] = value, pull(cotangent)[0]
        return found

    return call


@functools.cache
def alone(names):
    """Each problem alone, on one device."""
    call = jax.jit(value_and_gradient(names))
    each = [call(jnp.asarray(BATCH[p : p + 1])) for p in range(len(BATCH))]
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *each)


def assert_same_bits(found):
    expected = alone(TWO if found.keys() <= set(TWO) else tuple(FUNCTIONS))
    for name in found:
        for kind, ours, theirs in zip(("value", "gradient"), found[name], expected[name], strict=True):
            np.testing.assert_array_equal(np.asarray(ours), theirs, err_msg=f"{kind} of {name}")


def make_mesh(kind):
    return jax.make_mesh((4,), ("device",), axis_types=(kind,))


AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


@on_four
@pytest.mark.parametrize(
    ("kind", "spec", "names"),
    [(AUTO, P("device"), FUNCTIONS), (AUTO, P(None, "device"), TWO), (EXPLICIT, P("device"), TWO)],
    ids=["over_problems", "over_points", "explicit_axes"],
)
def test_jit(kind, spec, names):
    batch = jax.device_put(BATCH, NamedSharding(make_mesh(kind), spec))
    found = jax.jit(value_and_gradient(names))(batch)
    assert_same_bits(found)
    if spec == P("device"):
        assert {value.sharding.spec[0] for value, _ in found.values()} == {"device"}


@on_four
@pytest.mark.parametrize(("kind", "names"), [(AUTO, TWO), (EXPLICIT, TWO[1:])], ids=["auto", "explicit"])
def test_eager(kind, names):
    batch = jax.device_put(BATCH, NamedSharding(make_mesh(kind), P("device")))
    assert_same_bits(value_and_gradient(names)(batch))


@on_four
def test_pmap():
    found = jax.pmap(value_and_gradient(TWO))(BATCH[:, None])
    assert_same_bits(jax.tree.map(lambda a: a[:, 0], found))


def over_devices(function, **options):
    return jax.shard_map(function, mesh=make_mesh(AUTO), in_specs=P("device"), out_specs=P("device"), **options)


@on_four
@pytest.mark.parametrize(("checked", "names"), [(True, TWO), (False, TWO[1:])])
def test_shard_map(checked, names):
    mapped = over_devices(value_and_gradient(names), check_vma=checked)
    assert_same_bits(jax.jit(mapped)(BATCH))


LOOPS = (*TWO, "partial loss, one pass", "partial loss, pairs")  # each loop that a chunk of draws may run in


@on_four
@pytest.mark.parametrize(("name", "n_chunks"), [(name, 1) for name in FUNCTIONS] + [(name, 2) for name in LOOPS])
def test_checked_shard_map_takes_every_function(monkeypatch, name, n_chunks):
    """What shard_map checks, it checks when it traces."""
    size = 4 * N * N * OPTIONS["n_draws"] // n_chunks
    monkeypatch.setattr(chunks, "CHUNK_BYTES", dict.fromkeys(chunks.CHUNK_BYTES, size))
    jax.clear_caches()
    jax.eval_shape(over_devices(value_and_gradient([name])), BATCH)
    jax.eval_shape(jax.grad(lambda s: over_devices(FUNCTIONS[name])(s).sum()), BATCH)


DIFFERING = {
    "labels": {"labels": np.stack([LABELS, LABELS, LABELS[::-1], LABELS[::-1]])},
    "n_clusters": {"n_clusters": np.arange(1, 5)},
    "seed": {"seed": np.arange(4)},
    "first_draw": {"first_draw": 8 * np.arange(4)},
}


def shared_loss(similarity, differing, **options):
    """A loss of one similarity for all devices, and one row of another argument."""
    arguments = {"labels": jnp.asarray(LABELS), "n_clusters": K, **OPTIONS, **options}
    arguments |= {name: array[0] for name, array in differing.items()}
    known = dc.Constraints.from_labels(arguments.pop("labels"))
    return dc.partial_fenchel_young_loss(similarity, known, **arguments)


shared_step = functools.partial(jax.shard_map, in_specs=(P(), P("device")), out_specs=P())


@on_four
@pytest.mark.parametrize("must_link_first", [True, False])
@pytest.mark.parametrize("name", DIFFERING)
def test_checked_shard_map_takes_a_similarity_that_all_devices_share(name, must_link_first):
    gradient = jax.grad(functools.partial(shared_loss, must_link_first=must_link_first))
    jax.eval_shape(shared_step(gradient, mesh=make_mesh(AUTO)), BATCH[0], DIFFERING[name])


@on_four
def test_checked_shard_map_sums_the_gradient_of_a_shared_similarity():
    gradient = jax.jit(shared_step(jax.grad(shared_loss), mesh=make_mesh(AUTO)))(BATCH[0], DIFFERING["labels"])
    alone = jax.jit(jax.grad(shared_loss))
    each = [alone(BATCH[0], {"labels": labels[None]}) for labels in DIFFERING["labels"]["labels"]]
    np.testing.assert_allclose(gradient, sum(np.asarray(g) for g in each), rtol=1e-6)


@on_four
@pytest.mark.parametrize("eager", [True, False])
def test_embeddings_sharded_over_points(eager):
    """Of small integers, so that sums over points are exact in any order."""
    points = np.random.default_rng(0).integers(-2, 3, size=(N, 2)).astype(np.float32)

    def step(points):
        return jax.value_and_grad(embedding_loss)(points)

    def embedding_loss(points):
        similarity = dc.negative_squared_distances(points)
        return dc.partial_fenchel_young_loss(similarity, LABELLED, K, **OPTIONS)

    sharded = jax.device_put(points, NamedSharding(make_mesh(AUTO), P("device")))
    value, gradient = (step if eager else jax.jit(step))(sharded)
    expected = jax.jit(step)(points)
    np.testing.assert_array_equal(np.asarray(value), expected[0])
    np.testing.assert_array_equal(np.asarray(gradient), expected[1])
