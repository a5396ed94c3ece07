"""The XLA solver against the NumPy backend's, draw by draw and edge by edge; its noise bit by bit; its memory."""

import numpy as np
import pytest

from diffclust import noise
from diffclust.solvers import cpu, solver_for
from diffclust.solvers.checks import clamp_clusters
from oracles import SIMILARITY_KINDS, random_labels, random_relation, random_similarity
from solving import solve

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import diffclust as dc  # noqa: E402
from diffclust.solvers import xla  # noqa: E402
from diffclust.solvers.base import Request  # noqa: E402
from diffclust.solvers.xla import calls, choice, chunks, forests, host, sums, trees  # noqa: E402
from diffclust.solvers.xla import philox as xla_noise  # noqa: E402

SEED, FIRST = (5 << 40) + 7, 2**32 - 2  # both words of the seed, and draws on both sides of a word's end


# ------------------------------------------------------------------------------------------------------------------
# Noise


def noise_of(seed, n_draws, n, kind, first_draw=0, antithetic=False):
    words = calls.words_of(noise.Draws(seed=seed, first=first_draw))

    @jax.jit
    def make(words, number):
        zero = xla_noise.opaque_zero(words, number)
        z, sign = xla_noise.make_noise(words, jnp.arange(n_draws), n, kind, antithetic, zero)
        return z[0] * sign[0][:, None, None]

    return np.where(np.eye(n, dtype=bool), 0, make(jnp.asarray(words), jnp.ones(3)))


@pytest.mark.parametrize(("n", "kind"), [(1, "normal"), (9, "normal"), (9, "gumbel"), (64, "normal"), (65, "gumbel")])
def test_noise_is_the_definition_to_the_last_bit(n, kind):
    made = noise_of(SEED, 40, n, kind, FIRST)
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, noise.sample(SEED, 40, n, kind, first_draw=FIRST))


@pytest.mark.parametrize("number", [0, 7, -3, -(2**31), 2**31 - 1, 2**31, -(2**31) - 1, 2**40 + 5, 2**63 - 1])
def test_an_integer_is_a_row_of_one_or_two_words(number):
    rows = [calls.as_row(number)]
    if -(2**31) <= number < 2**31:
        rows.append(jax.jit(calls.as_row)(jnp.int32(number)))
    for row in rows:
        assert row.shape == (1, 1 if -(2**31) <= number < 2**31 else 2)
        low, high = np.asarray(calls._as_words(row))[0].tolist()
        assert low | high << 32 == number % 2**64


def test_negative_seeds_count_modulo_two_to_the_64():
    np.testing.assert_array_equal(noise_of(-3, 2, 5, "normal"), noise.sample(2**64 - 3, 2, 5))


def test_antithetic_noise_comes_in_pairs():
    z = noise_of(3, 6, 7, "normal", antithetic=True)
    np.testing.assert_array_equal(z[::2], noise.sample(3, 3, 7))
    np.testing.assert_array_equal(z[1::2], -z[::2])


def test_a_root_that_is_one_step_away_is_corrected():
    """GPUs may be off by one step of the last bit; the function is plain arithmetic, so any device can test it."""
    x = np.concatenate([np.geomspace(1e-9, 50, 20_000), np.arange(1, 50) ** 2]).astype(np.float32)
    root = np.sqrt(x)
    for off in (np.nextafter(root, np.float32(0)), root, np.nextafter(root, np.float32(9))):
        np.testing.assert_array_equal(xla_noise.corrected_root(jnp.asarray(x), jnp.asarray(off)), root)
    assert xla_noise.corrected_root(jnp.zeros(1), jnp.zeros(1)).tolist() == [0]


def test_high_words_of_products():
    a = np.random.default_rng(0).integers(0, 2**32, 1000, dtype=np.uint64)
    for b in (0xD2511F53, 0xCD9E8D57, 0xFFFFFFFF):
        expected = (a * np.uint64(b)) >> np.uint64(32)
        high = jax.jit(lambda words, b=b: xla_noise.high_word(words, b))(a.astype(np.uint32))
        assert high.dtype == np.uint32
        np.testing.assert_array_equal(high, expected)


# ------------------------------------------------------------------------------------------------------------------
# Forests


def make_problems(rng, n, form, dtype=np.float32):
    """A batch of all kinds of similarities: (similarity, n_clusters, constraints)."""
    similarity = np.stack([random_similarity(rng, n, kind, dtype) for kind in SIMILARITY_KINDS for _ in range(2)])
    n_clusters = rng.integers(1, n + 1, len(similarity))
    if form == "labels":
        labels = np.stack([random_labels(rng, n, n_classes=c % 4 + 1) for c in range(len(similarity))])
        labels[0] = -1
        return similarity, clamp_clusters(n_clusters, labels), {"labels": labels}
    if form == "pairs":
        relation = np.stack([random_relation(rng, n, density=1.5 / n) for _ in similarity])
        return similarity, n_clusters, {"relation": relation}
    return similarity, n_clusters, {}


def assert_same_forests(ours, expected):
    np.testing.assert_array_equal(ours.edges, expected.edges)
    np.testing.assert_array_equal(ours.labels, expected.labels)
    np.testing.assert_allclose(ours.values, expected.values, rtol=1e-5, atol=1e-5)


def compile_again(monkeypatch):
    """What was patched shows in programs that are compiled after that."""
    monkeypatch.setattr(xla, "find", jax.jit(xla.find.__wrapped__, static_argnums=0))


@pytest.mark.parametrize("grower", ["prim", "boruvka"])
@pytest.mark.parametrize("must_link_first", [True, False])
def test_many_small_problems_with_labels(monkeypatch, grower, must_link_first):
    """Ties, missing edges and groups that these cut, all numbers of clusters, with both ways to grow a tree."""
    rng = np.random.default_rng(9)
    n, n_problems = 9, 240
    kinds = [SIMILARITY_KINDS[p % 6] for p in range(n_problems)]
    similarity = np.stack([random_similarity(rng, n, kind, np.float32) for kind in kinds])
    labels = np.stack([random_labels(rng, n, 1 + p % 4, rng.choice([0.3, 0.6, 1.0])) for p in range(n_problems)])
    clusters = clamp_clusters(rng.integers(1, n + 1, size=n_problems), labels)
    way = getattr(trees, f"_{grower}")
    monkeypatch.setattr(forests, "grow", lambda weights, component, allowed=None: way(weights, component, allowed))
    compile_again(monkeypatch)
    expected = solve(cpu, similarity, clusters, labels=labels, must_link_first=must_link_first)
    arrays = jnp.asarray(similarity), jnp.asarray(clusters)
    solved = solve(xla, *arrays, labels=jnp.asarray(labels), must_link_first=must_link_first)
    np.testing.assert_array_equal(solved.edges, expected.edges)
    np.testing.assert_array_equal(solved.labels, expected.labels)


@pytest.mark.slow
def test_the_other_algorithm_grows_the_same_trees(monkeypatch):
    """The platform decides which one runs; here it is the one that does not run on this platform."""
    other = trees._boruvka if jax.default_backend() == "cpu" else trees._prim
    monkeypatch.setattr(forests, "grow", other)
    compile_again(monkeypatch)
    rng = np.random.default_rng(0)
    for _ in range(4):
        similarity, n_clusters, known = make_problems(rng, 33, "labels")
        arrays = jnp.asarray(similarity), jnp.asarray(n_clusters)
        for epsilon in (0.0, 0.3):
            options = {"seed": SEED, "n_draws": 3, "epsilon": epsilon}
            expected = solve(cpu, similarity, n_clusters, **known, **options)
            found = solve(xla, *arrays, labels=jnp.asarray(known["labels"]), **options)
            assert_same_forests(found, expected)


@pytest.fixture(scope="module")
def solved():
    """Arguments and forests of seven draws of a batch with labels."""
    similarity, n_clusters, known = make_problems(np.random.default_rng(3), 7, "labels")
    arrays = jnp.asarray(similarity), jnp.asarray(n_clusters)
    options = {"labels": jnp.asarray(known["labels"]), "seed": SEED, "first_draw": FIRST, "n_draws": 7, "epsilon": 0.3}
    return arrays, options, solve(xla, *arrays, adjacency=True, **options)


def test_one_seed_for_all_problems_or_one_for_each():
    similarity = jnp.asarray(np.random.default_rng(0).normal(size=(3, 6, 6)).astype(np.float32))
    similarity = similarity + similarity.swapaxes(-1, -2)
    options = {"n_draws": 4, "epsilon": 1.0}
    seeds = [3 << 40, 5 << 33, 9 << 32]
    words = jnp.concatenate([jnp.asarray(calls.as_row(seed)) for seed in seeds])
    together = solve(xla, similarity, jnp.array([2, 2, 2]), seed=words, **options)
    for p, seed in enumerate(seeds):
        alone = solve(cpu, np.asarray(similarity[p : p + 1]), np.array([2]), seed=seed, **options)
        np.testing.assert_array_equal(together.edges[p], alone.edges[0])


@pytest.mark.slow
def test_chunks_change_nothing(monkeypatch, solved):
    """Seven draws in three chunks, of which the last is not full."""
    arrays, options, whole = solved
    n_problems = len(arrays[0])
    monkeypatch.setattr(chunks, "CHUNK_BYTES", dict.fromkeys(chunks.CHUNK_BYTES, 4 * arrays[0].size * 7 // 3 + 1))
    assert chunks._n_chunks(n_problems, 7, 7) == 3
    compile_again(monkeypatch)
    pieces = solve(xla, *arrays, adjacency=True, **options)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(pieces), strict=True):
        np.testing.assert_array_equal(one, other)

    trees, cotangent = whole.labels[:, 0], jnp.ones_like(arrays[0])
    counts = cpu.sums.connectivity_counts(np.asarray(trees))
    np.testing.assert_array_equal(jax.jit(xla.sums.connectivity_counts.__wrapped__)(trees), counts)
    products = jax.jit(xla.sums.connectivity_products.__wrapped__)(cotangent, trees)
    np.testing.assert_array_equal(products.sum(-1), counts.sum((-1, -2)))
    monkeypatch.setattr(chunks, "CHUNK_BYTES", dict.fromkeys(chunks.CHUNK_BYTES, 4 * 7**3 // 3 + 1))
    monkeypatch.setattr(sums, "_noise_sum", jax.jit(sums._noise_sum.__wrapped__, static_argnums=(1, 3, 4)))
    summed = xla.noise_sum(jnp.ones((2, 7)), 7, noise.Draws(seed=1))
    np.testing.assert_allclose(summed[1], noise.sample(1, 7, 7).sum(0), rtol=1e-5, atol=1e-5)


def largest_array(jaxpr):
    """The number of elements of the largest intermediate result, those of inner functions and loops included."""
    largest = 0
    for equation in jaxpr.eqns:
        largest = max(largest, *(int(np.prod(v.aval.shape)) for v in equation.outvars), 0)
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                largest = max(largest, largest_array(inner))
    return largest


@pytest.mark.parametrize("operator", ["loss", "pairs", "adjacency", "connectivity"])
def test_nothing_has_the_size_of_all_draws(monkeypatch, operator):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", dict.fromkeys(chunks.CHUNK_BYTES, 8 << 20))
    monkeypatch.setattr(choice, "_kernels", lambda: None)  # they hold what fits into an eighth of a GPU
    n, n_draws = 600, 100
    labels = np.where(np.arange(n) < n // 2, np.arange(n) % 10, -1)
    pairs = dc.Constraints.from_pairs(n, [(0, 1)], [(1, 2), (3, 4)])

    def function(s):
        if operator in ("loss", "pairs"):
            constraints = pairs if operator == "pairs" else dc.Constraints.from_labels(jnp.asarray(labels))
            return dc.partial_fenchel_young_loss(s, constraints, 10, n_draws=n_draws, seed=0)
        return (getattr(dc, f"perturbed_{operator}")(s, 10, n_draws=n_draws, seed=0) ** 2).sum()

    jaxpr = jax.make_jaxpr(jax.value_and_grad(function))(jnp.zeros((n, n)))
    assert n * n <= largest_array(jaxpr.jaxpr) <= 3 * (8 << 20) // 4 + n * n < n_draws * n * n / 5


def test_table_names_the_solver():
    array = jnp.zeros((3, 3))
    assert solver_for(array).__name__ == "diffclust.solvers.xla"
    jax.eval_shape(lambda a: (solver_for(a), a)[1], array)


def test_too_many_points_are_an_error():
    shape = jax.ShapeDtypeStruct((1, xla.MAX_POINTS + 1, xla.MAX_POINTS + 1), jnp.float32)
    with pytest.raises(ValueError, match="up to 32767 points"):
        jax.eval_shape(lambda s: solve(xla, s, jnp.array([1])), shape)


# ------------------------------------------------------------------------------------------------------------------
# The CPU solver, called by a compiled program


@pytest.mark.parametrize(("dtype", "each"), [(np.float32, True), (np.float64, False)])  # each: own noise for a problem
def test_callback_finds_the_same_forests(monkeypatch, dtype, each):
    monkeypatch.setattr(host, "PIECE", 1000)  # bytes: more than one piece, and not all of them full
    rng, rows = np.random.default_rng(0), 3 if each else 1
    similarity = np.stack([random_similarity(rng, 20, kind, dtype) for kind in SIMILARITY_KINDS[:3]])
    similarity[1, 0, 1] = np.nan
    enable = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with enable(dtype == np.float64):
        draws = noise.Draws(
            seed=jnp.arange(2 * rows, dtype=jnp.uint32).reshape(rows, 2),
            first=jnp.ones((rows, 2), jnp.uint32),
            epsilon=jnp.linspace(0.1, 0.5, rows, dtype=jnp.float32)[:, None],
            n_draws=5,
        )
        labels = jnp.asarray(np.where(np.arange(20) < 8, np.arange(20) % 3, -1)[None].repeat(3, 0))
        request = Request(
            jnp.asarray(similarity), jnp.full(3, 4), labels, draws=draws, adjacency=True, detail="forests"
        )
        found, expected = host.solve(request), xla.solve(request)
        for name in ("edges", "labels", "adjacency"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        np.testing.assert_allclose(found.values, expected.values, rtol=1e-5)
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-5)


def test_callbacks_are_for_one_cpu_and_enough_work():
    _, arrays = calls.split(Request(jnp.zeros((1, 64, 64)), 3))
    assert not host.is_faster(Request(None, None, draws=noise.Draws(n_draws=3)), arrays)
    on_one_cpu = jax.default_backend() == "cpu" and jax.device_count() == 1
    assert host.is_faster(Request(None, None, draws=noise.Draws(n_draws=4)), arrays) == on_one_cpu
    _, huge = calls.split(Request(jax.ShapeDtypeStruct((1, 4096, 4096), np.float32), 3))
    assert not host.is_faster(Request(None, None, draws=noise.Draws(n_draws=4)), huge)
