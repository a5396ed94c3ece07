"""Noise of one's own: a small class, made on the host, solved and differentiated like the noise that has kernels."""

import copy
import re
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

import diffclust as dc
from diffclust.noise import Draws, Gumbel, Noise, Normal
from diffclust.solvers import Request, reference, solver_for
from test_conformance import LABELS, NOISY, PLAIN, RELATION, K, N, ask, jax_solver
from test_conformance import SOLVERS as WITH_KERNELS

SOLVERS = WITH_KERNELS | {"host": lambda: jax_solver("diffclust.solvers.xla.host")}
BUILT_IN = pytest.mark.parametrize(("name", "built_in"), [("normal", Normal()), ("gumbel", Gumbel())])
OPERATORS = (dc.perturbed_value, dc.perturbed_adjacency, dc.perturbed_connectivity)
KNOWN = dc.Constraints.from_labels([0, 0, 1, -1, -1, 1, -1])


@dataclass(frozen=True)
class Laplace(Noise):
    scale: float = 1.0
    symmetric = True

    def quantile(self, u):
        return -self.scale * np.sign(u - 0.5) * np.log1p(-2 * np.abs(u - 0.5))

    def score(self, z):
        return np.sign(z) / self.scale


class Exponential(Laplace):
    """Not symmetric, and wrong in its score: for values only."""

    symmetric = False

    def quantile(self, u):
        return -np.log1p(-u)


def points(n=N):
    return np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)


def similarity(n=N):
    return dc.negative_squared_distances(points(n))


def frameworks():
    """Name, and a function from NumPy arrays to the framework's."""
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    return {"numpy": np.asarray, "torch": torch.as_tensor, "jax": jnp.asarray}


# ----------------------------------------------------------------------------------------------------------------
# The noise itself


def test_distribution():
    z = Laplace(2.0).sample(0, 100, 20)
    values = z[:, *np.triu_indices(20, 1)].ravel()
    assert stats.kstest(values, stats.laplace(scale=2.0).cdf).pvalue > 2 * stats.norm.sf(4)
    np.testing.assert_array_equal(z, z.swapaxes(1, 2))
    assert z.dtype == np.float32
    assert not z.diagonal(axis1=1, axis2=2).any()


def test_a_draw_does_not_depend_on_how_much_is_drawn():
    whole = Laplace().sample(5, 6, 9)
    np.testing.assert_array_equal(whole[2:4, :4, :4], dc.noise.sample(5, 2, 4, Laplace(), first_draw=2))


@BUILT_IN
def test_objects_and_short_forms_are_the_same_noise(name, built_in):
    np.testing.assert_array_equal(built_in.sample(1, 2, 5, first_draw=3), dc.noise.sample(1, 2, 5, name, first_draw=3))
    for framework, put in frameworks().items():
        for operator in OPERATORS[: 1 if framework == "jax" else 3]:  # a program of JAX takes seconds to compile
            short, long = (operator(put(similarity()), 2, noise=noise, seed=1) for noise in (name, built_in))
            np.testing.assert_array_equal(short, long)
    short, long = (
        dc.partial_fenchel_young_loss(similarity(), KNOWN, 2, noise=noise, seed=1) for noise in (name, built_in)
    )
    assert short == long


def test_a_row_of_the_table_is_a_short_form(monkeypatch):
    with pytest.raises(ValueError, match=re.escape(f"one of {tuple(dc.noise.NAMED)}, got 'mine'")):
        dc.perturbed_value(similarity(), 2, noise="mine")
    monkeypatch.setitem(dc.noise.NAMED, "mine", Laplace())
    short, long = (dc.perturbed_adjacency(similarity(), 2, noise=noise, seed=1) for noise in ("mine", Laplace()))
    np.testing.assert_array_equal(short, long)


@BUILT_IN
def test_gradients_of_objects_and_short_forms_are_the_same(name, built_in):
    torch = pytest.importorskip("torch")
    gradients = []
    for noise in (name, built_in):
        layer = dc.nn.PerturbedClustering(2, noise=noise, seed=0)
        embeddings = torch.tensor(points(), requires_grad=True)
        layer(embeddings)[0, 1:].sum().backward()
        gradients.append(embeddings.grad)
    np.testing.assert_array_equal(*gradients)


# ----------------------------------------------------------------------------------------------------------------
# Forests: those of the reference

OWN = NOISY._replace(noise=Laplace())
CASES = {
    "free": Request(PLAIN, K, draws=OWN),
    "no problems": Request(PLAIN[:0], 2, draws=OWN),
    "NaN": Request(np.where(np.eye(N)[1] * np.eye(N)[2][:, None] > 0, np.nan, PLAIN), K, draws=OWN),
    "antithetic": Request(PLAIN, K, draws=OWN._replace(antithetic=True)),
    "not symmetric": Request(PLAIN, K, draws=OWN._replace(noise=Exponential())),
    "labels": Request(PLAIN, K, labels=LABELS, draws=OWN),
    "labels, k moved": Request(PLAIN, 1, labels=LABELS, draws=OWN, if_infeasible="clamp"),
    "relation, one pass": Request(PLAIN, K, relation=RELATION, must_link_first=False, draws=OWN),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["sampled", "tensors", "host"])
def test_forests_are_those_of_the_reference(name, case):
    request = CASES[case]._replace(adjacency=True, detail="forests")
    found, expected = ask(SOLVERS[name](), request), reference.solve(request)
    for array in ("edges", "labels", "adjacency"):
        np.testing.assert_array_equal(getattr(found, array), getattr(expected, array))
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6)


@pytest.mark.parametrize("name", ["sampled", "tensors", "host"])
@pytest.mark.parametrize("antithetic", [False, True])
def test_noise_sum_is_that_of_the_reference(name, antithetic):
    backend, weights = SOLVERS[name](), np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    draws = OWN._replace(antithetic=antithetic)
    found = backend.get(backend.solver.noise_sum(backend.put(weights), N, draws))
    np.testing.assert_allclose(found, reference.noise_sum(weights, N, draws), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["cpu", "cuda", "xla"])
def test_a_solver_without_a_kernel_says_so(name):
    backend = SOLVERS[name]()
    with pytest.raises(ValueError, match=r"has kernels for the noise \('normal', 'gumbel'\) only, got Laplace"):
        ask(backend, CASES["free"])
    with pytest.raises(ValueError, match="solver_for"):
        backend.solver.noise_sum(backend.put(np.ones((1, 2), np.float32)), N, OWN)


def test_frameworks_agree():
    options = {"noise": Laplace(), "seed": 4, "n_draws": 20, "epsilon": 0.5}
    for operator in OPERATORS:
        results = [np.asarray(operator(put(similarity()), 2, **options)) for put in frameworks().values()]
        for result in results[1:]:
            np.testing.assert_allclose(result, results[0], rtol=1e-6)


def test_gradients_of_torch_and_jax_agree():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    cotangent = np.random.default_rng(1).normal(size=(N, N)).astype(np.float32)

    def loss(s, seed=4):
        soft = dc.perturbed_connectivity(s, 2, noise=Laplace(), seed=seed, n_draws=20, epsilon=0.5)
        return (soft * cotangent).sum() if not isinstance(s, torch.Tensor) else (soft * torch.tensor(cotangent)).sum()

    given = torch.tensor(similarity(), requires_grad=True)
    loss(given).backward()
    gradient = jax.grad(loss)
    s = jax.numpy.asarray(similarity())
    np.testing.assert_allclose(gradient(s), given.grad, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(jax.jit(gradient)(s), gradient(s))
    each = jax.vmap(gradient, (None, 0))(s, jax.numpy.array([4, 5]))
    np.testing.assert_array_equal(each, [gradient(s, 4), gradient(s, 5)])


# ----------------------------------------------------------------------------------------------------------------
# Expectations: the closed form


@pytest.mark.parametrize("operator", [dc.perturbed_adjacency, dc.perturbed_connectivity], ids=lambda f: f.__name__)
def test_value_and_gradient_against_the_closed_form(operator):
    """Of two possible edges the larger is taken: the share of one is the cdf of a difference of two Laplace variables.

    P(Z - Z' < x) = 1 - (1/2 + x/4) exp(-x) for x > 0, with the density (1 + x) exp(-x) / 4.
    """
    torch = pytest.importorskip("torch")
    epsilon, gap, n_draws, repeats = 0.5, 0.4, 100, 40
    s = torch.full((3, 3), -torch.inf)
    s[0, 1] = s[1, 0] = gap
    s[0, 2] = s[2, 0] = 0.0
    shares, slopes = [], []
    for seed in range(repeats):
        s = s.detach().requires_grad_()
        share = operator(s, 2, epsilon=epsilon, n_draws=n_draws, noise=Laplace(), seed=seed)[0, 1]
        share.backward()
        shares.append(share.item())
        slopes.append((s.grad[0, 1] + s.grad[1, 0]).item())
    x = gap / epsilon
    for found, expected in (
        (shares, 1 - (1 / 2 + x / 4) * np.exp(-x)),
        (slopes, (1 + x) * np.exp(-x) / 4 / epsilon),
    ):
        assert abs(np.mean(found) - expected) < 4 * np.std(found, ddof=1) / np.sqrt(repeats)


def test_gradient_of_a_value_is_the_adjacency():
    torch = pytest.importorskip("torch")
    s = torch.tensor(similarity(), requires_grad=True)
    dc.perturbed_value(s, 2, noise=Laplace(), seed=0).backward()
    np.testing.assert_array_equal(s.grad, dc.perturbed_adjacency(similarity(), 2, noise=Laplace(), seed=0))


def test_module_trains_and_copies():
    torch = pytest.importorskip("torch")
    labels = torch.tensor([0, 0, 1, -1, -1, 1, -1])
    loss = dc.nn.PartialFenchelYoungLoss(2, noise=Laplace(0.5), seed=0)
    assert "Laplace(scale=0.5)" in repr(loss)
    first = loss(torch.tensor(points()), labels)
    other = copy.deepcopy(loss)
    assert loss(torch.tensor(points()), labels) == other(torch.tensor(points()), labels) != first


# ----------------------------------------------------------------------------------------------------------------
# Mistakes


@dataclass
class Unhashable(Noise):
    scale: float = 1.0


class Infinite(Laplace):
    def quantile(self, u):
        return np.full_like(u, np.inf)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"noise": Laplace}, TypeError, r"must be an instance, got the class Laplace. Pass Laplace\(\)"),
        ({"noise": Unhashable()}, TypeError, "must be hashable.*frozen=True"),
        ({"noise": Exponential(), "antithetic": True}, ValueError, "antithetic draws need symmetric noise"),
        ({"noise": Noise()}, NotImplementedError, r"Noise needs a method quantile\(u\)"),
        ({"noise": Infinite()}, ValueError, r"quantile\(u\) must be finite"),
        ({"noise": "mine"}, ValueError, "noise must be one of.*instances of diffclust.noise.Noise"),
    ],
)
def test_mistakes(options, error, message):
    with pytest.raises(error, match=message):
        dc.perturbed_value(similarity(), 2, seed=0, **options)


def test_a_score_is_needed_for_gradients_only():
    torch = pytest.importorskip("torch")

    class Uniform(Noise):
        def quantile(self, u):
            return 2 * u - 1

    soft = dc.perturbed_connectivity(torch.tensor(similarity(), requires_grad=True), 2, noise=Uniform(), seed=0)
    with pytest.raises(NotImplementedError, match=r"Uniform needs a method score\(z\)"):
        soft.sum().backward()


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_what_torch_traces_is_refused():
    torch = pytest.importorskip("torch")
    value = lambda s: dc.perturbed_value(s, 2, noise=Laplace(), seed=0)  # noqa: E731
    for function in (torch.func.grad(value), torch.compile(value, backend="eager")):
        with pytest.raises(NotImplementedError, match="is made on the host, which"):
            function(torch.tensor(similarity()))


def test_the_solver_for_a_noise_can_be_asked_for():
    names = [solver_for(put(similarity()), Laplace()).__name__ for put in frameworks().values()]
    assert names == [f"diffclust.solvers.{name}" for name in ("sampled", "cpu.tensors", "xla.host")]
    assert Draws().noise == "normal"
