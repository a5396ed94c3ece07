"""Every solver on the same questions: the answers of ``reference.py``, edge for edge.

A new solver is one more entry of ``SOLVERS``. ``test_solvers.py`` compares the reference itself with exhaustive search.
"""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

from diffclust.noise import Draws
from diffclust.solvers import Request, reference
from oracles import random_relation, random_similarity

N = 7


def numpy_solver(name):
    return SimpleNamespace(solver=importlib.import_module(name), put=np.asarray, get=np.asarray, has_float64=True)


def torch_solver(name, device="cpu", has_float64=True):
    torch = pytest.importorskip("torch")
    if name.endswith("cuda"):
        pytest.importorskip("triton")
        device = "cuda" if torch.cuda.is_available() else "cpu"  # there in Triton's interpreter
    return SimpleNamespace(
        solver=importlib.import_module(name), put=lambda a: torch.as_tensor(a, device=device),
        get=lambda a: a.cpu().numpy(), has_float64=has_float64,
    )  # fmt: skip


def jax_solver(name="diffclust.solvers.xla"):
    jnp = pytest.importorskip("jax.numpy")
    return SimpleNamespace(solver=importlib.import_module(name), put=jnp.asarray, get=np.asarray, has_float64=False)


def kernels_solver():
    """JAX with Triton's kernels; without a GPU each call of a kernel goes to Triton's interpreter, through torch."""
    pytest.importorskip("triton")
    of_jax = jax_solver("diffclust.solvers.xla.kernels")
    kernels = of_jax.solver

    def solve(request):
        settings, arrays = importlib.import_module("diffclust.solvers.xla.calls").split(request)
        if not kernels.fit(settings, arrays):
            pytest.skip("left to XLA")
        if importlib.import_module("diffclust.solvers.xla.choice")._kernels() is not None:
            return kernels.solve(request)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(kernels, "call", interpreted_call)
            return kernels.find(settings, arrays)

    of_jax.solver = SimpleNamespace(**{name: getattr(kernels, name) for name in kernels.__all__} | {"solve": solve})
    return of_jax


def interpreted_call(kernel, grid, warps, inputs, outputs, constants, reused=0, zeroed=()):
    torch = pytest.importorskip("torch")
    given = [each if isinstance(each, int) else torch.tensor(np.asarray(each)) for each in inputs]
    kept = [each for each in given if not isinstance(each, int)][-reused or len(given) :]
    fresh = [np.full(each.shape, 0 if place in zeroed else 85, each.dtype) for place, each in enumerate(outputs)]
    written = [*map(torch.tensor, fresh[: len(fresh) - reused]), *kept]
    kernel[grid](*given, *written, **constants, num_warps=warps)
    return [importlib.import_module("jax.numpy").asarray(each.numpy()) for each in written]


SOLVERS = {
    "reference": lambda: numpy_solver("diffclust.solvers.reference"),
    "cpu": lambda: numpy_solver("diffclust.solvers.cpu"),
    "sampled": lambda: numpy_solver("diffclust.solvers.sampled"),
    "tensors": lambda: torch_solver("diffclust.solvers.cpu.tensors"),
    "cuda": lambda: torch_solver("diffclust.solvers.cuda", has_float64=False),
    "xla": jax_solver,
    "kernels": kernels_solver,
}
SUMS = {
    "reference": "diffclust.solvers.reference",
    "cpu": "diffclust.solvers.cpu.sums",
    "tensors": "diffclust.solvers.cpu.tensors",
    "cuda": "diffclust.solvers.cuda.sums",
    "xla": "diffclust.solvers.xla.sums",
}


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name in ("cuda", "kernels"))) for name in SOLVERS]
)
def backend(request):
    return SOLVERS[request.param]()


def similarities(*kinds, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return np.stack([random_similarity(rng, N, kind, dtype) for kind in kinds])


def cut_group():
    """Points 0 and 3 are of one class, but only 1 and 2 connect them; the second problem has the missing edge."""
    similarity = np.full((2, 4, 4), -np.inf, np.float32)
    for i, j, weight in ((0, 1, 3.0), (1, 2, 2.0), (2, 3, 1.0)):
        similarity[:, i, j] = similarity[:, j, i] = weight
    similarity[1, 0, 3] = similarity[1, 3, 0] = -5.0
    return similarity


def broken(i, j):
    similarity = similarities("random", "random")
    similarity[1, i, j] = similarity[1, j, i] = np.nan
    return similarity


PLAIN = similarities("random", "random")
LABELS = np.array([[0, -1, 0, 1, -1, -1, 1], [5, 9, -1, 5, 9, 9, -100]])
RELATION = np.stack([random_relation(np.random.default_rng(seed), N, 0.3) for seed in range(2)])
K = np.array([2, 3])  # which labels and relation allow
NOISY = Draws(seed=2**40 + 3, first=2**32 - 1, n_draws=2, epsilon=0.5)
CASES = {
    "one k for all": Request(PLAIN, 3),
    "a k for each": Request(PLAIN, K),
    "no edges": Request(PLAIN, N),
    "one point": Request(np.zeros((2, 1, 1), np.float32), 1, labels=np.array([[0], [-1]])),
    "two points": Request(PLAIN[:, :2, :2].copy(), np.array([1, 2]), draws=NOISY),
    "noise": Request(PLAIN, K, draws=NOISY),
    "labels": Request(PLAIN, K, labels=LABELS, draws=NOISY),
    "labels, constrained only": Request(PLAIN, K, labels=LABELS, free=False),
    "labels, one pass": Request(PLAIN, K, labels=LABELS, must_link_first=False, draws=NOISY),
    "labels, k moved": Request(PLAIN, np.array([1, N]), labels=LABELS, if_infeasible="clamp"),
    "nothing labelled": Request(PLAIN, K, labels=np.full((2, N), -1)),
    "relation": Request(PLAIN, K, relation=RELATION, draws=NOISY),
    "relation, one pass": Request(PLAIN, K, relation=RELATION, must_link_first=False, free=False),
    "missing edges": Request(similarities("missing", "tied_missing"), 2, labels=LABELS, draws=NOISY),
    "missing edges, relation": Request(similarities("missing", "tied_missing"), 2, relation=RELATION),
    "a group that only others connect": Request(cut_group(), 1, labels=np.array([[0, -1, -1, 0]] * 2)),
    "that, one pass": Request(cut_group(), 1, labels=np.array([[0, -1, -1, 0]] * 2), must_link_first=False),
    "ties": Request(similarities("tied", "duplicated"), K, labels=LABELS),
    "ties, relation": Request(similarities("constant", "tied"), K, relation=RELATION),
    "gumbel": Request(PLAIN, K, labels=LABELS, draws=NOISY._replace(noise="gumbel")),
    "antithetic": Request(PLAIN, K, draws=NOISY._replace(antithetic=True)),
    "a negative seed": Request(PLAIN, K, draws=NOISY._replace(seed=-7)),
    "NaN, same label": Request(broken(0, 1), K, labels=np.array([[0, 0, 1, 1, -1, -1, -1]] * 2), draws=NOISY),
    "NaN, other labels": Request(broken(1, 2), K, labels=np.array([[0, 0, 1, 1, -1, -1, -1]] * 2)),
    "NaN, unknown": Request(broken(3, 5), N, draws=NOISY),
    "NaN, relation": Request(broken(0, 1), K, relation=RELATION),
    "float64": Request(similarities("random", "random", dtype=np.float64), K, labels=LABELS, draws=NOISY),
}
each_case = pytest.mark.parametrize("case", CASES)


def ask(backend, request):
    put = [None if a is None else a if isinstance(a, int) else backend.put(a) for a in request[:4]]
    answer = backend.solver.solve(Request(*put, *request[4:]))
    return type(answer)(*(None if a is None else backend.get(a) for a in answer))


def skip_if_not_exact(backend, case):
    if case == "float64" and not backend.has_float64:
        pytest.skip("this solver computes in float32")


@each_case
def test_forests(backend, case):
    """Edges in order, labels and adjacency to the last bit; values as exact as the solver's own precision is."""
    skip_if_not_exact(backend, case)
    request = CASES[case]._replace(detail="forests", adjacency=True)
    found, expected = ask(backend, request), reference.solve(request)
    np.testing.assert_array_equal(found.edges, expected.edges)
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.adjacency, expected.adjacency)
    assert found.edges.dtype == found.labels.dtype == np.int32
    assert found.mean.dtype == found.adjacency.dtype == request.similarity.dtype
    unit = np.finfo(found.values.dtype).eps
    np.testing.assert_allclose(found.values, expected.values, rtol=N * unit, atol=N * N * unit)
    unit = np.finfo(found.mean.dtype).eps
    np.testing.assert_allclose(found.mean, expected.mean, rtol=N * unit, atol=N * N * unit)


# A case for each way through a solver. The edges of all cases are compared above.
WAYS = (
    *("one k for all", "two points", "noise", "labels", "labels, one pass", "labels, k moved", "relation"),
    *("relation, one pass", "missing edges", "gumbel", "antithetic", "NaN, same label", "NaN, relation", "float64"),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", WAYS)
def test_less_detail(backend, case):
    """The same edges in any order; then nothing but the means."""
    skip_if_not_exact(backend, case)
    request = CASES[case]
    draws, means = (ask(backend, request._replace(detail=detail, adjacency=True)) for detail in ("draws", "mean"))
    expected = reference.solve(request._replace(detail="forests", adjacency=True))
    assert draws.labels is None
    n = request.similarity.shape[-1]
    codes, right = (np.where(e[..., 0] < 0, -1, e[..., 0] * n + e[..., 1]) for e in (draws.edges, expected.edges))
    np.testing.assert_array_equal(np.sort(codes), np.sort(right))
    assert means.values is means.edges is means.labels is None
    for found in (draws, means):
        np.testing.assert_array_equal(found.adjacency, expected.adjacency)
        unit = np.finfo(found.mean.dtype).eps
        np.testing.assert_allclose(found.mean, expected.mean, rtol=N * unit, atol=N * N * unit)


@pytest.mark.parametrize("case", ["noise", "labels", "labels, one pass", "relation"])
def test_no_adjacency_unless_asked_for(backend, case):
    """One case for each way through a solver."""
    assert ask(backend, CASES[case]._replace(n_clusters=N)).adjacency is None


def test_only_the_mean_of_both_triangles_counts(backend):
    """Within rounding; on the host a larger difference is an error."""
    half = np.float32(1e-6) * np.triu(np.random.default_rng(1).normal(size=(2, N, N)), 1).astype(np.float32)
    request = Request(PLAIN + half, K, detail="forests")
    symmetric = request._replace(similarity=0.5 * request.similarity + 0.5 * request.similarity.swapaxes(1, 2))
    np.testing.assert_array_equal(ask(backend, request).edges, reference.solve(symmetric).edges)


def test_no_problems(backend):
    answer = ask(backend, Request(PLAIN[:0], 2, adjacency=True, detail="forests"))
    assert answer.mean.shape == (0,)
    assert answer.adjacency.shape == (0, N, N)
    assert answer.edges.shape == (0, 1, 1, N - 1, 2)


@pytest.mark.parametrize("name", ["reference", "cpu", "sampled", "tensors"])
@pytest.mark.parametrize(("k", "message"), [(0, "from 1 to"), (N + 1, "from 1 to"), (1, "has 2 components")])
def test_solvers_on_the_host_raise_where_k_cannot_be(name, k, message):
    similarity = PLAIN.copy()
    similarity[0, 0] = similarity[0, :, 0] = -np.inf
    with pytest.raises(ValueError, match=message):
        ask(SOLVERS[name](), Request(similarity, k, if_infeasible="raise"))


# ------------------------------------------------------------------------------------------------------------------
# Sums over draws


@pytest.fixture(scope="module")
def forests():
    draws = NOISY._replace(n_draws=5)
    return reference.solve(Request(PLAIN, K, labels=LABELS, draws=draws, detail="forests"))


@pytest.mark.parametrize("name", SUMS)
def test_counts_and_products(name, forests):
    sums, put, get = importlib.import_module(SUMS[name]), SOLVERS[name]().put, SOLVERS[name]().get
    edges, labels = forests.edges, forests.labels
    np.testing.assert_array_equal(
        get(sums.adjacency_counts(put(edges), N)), reference.adjacency_counts(edges, N)
    )  # of the free solve less the constrained one
    for s in range(2):
        own, trees = edges[:, s], labels[:, s]
        one = get(sums.adjacency_counts(put(own[:, None]), N))
        assert one.dtype == np.int32
        np.testing.assert_array_equal(one, reference.adjacency_counts(own[:, None], N))
        np.testing.assert_array_equal(get(sums.connectivity_counts(put(trees))), reference.connectivity_counts(trees))
        # Of integers: their sums are exact, whatever the order.
        cotangent = np.random.default_rng(s).integers(-9, 10, size=(2, N, N)).astype(np.float32)
        for product, draws in (("adjacency_products", own), ("connectivity_products", trees)):
            expected = getattr(reference, product)(cotangent, draws)
            np.testing.assert_array_equal(get(getattr(sums, product)(put(cotangent), put(draws))), expected)


@pytest.mark.parametrize(("kind", "antithetic"), [("normal", False), ("normal", True), ("gumbel", False)])
def test_noise_sum(backend, kind, antithetic):
    """Within the rounding of float32; the exponential of a device is good to two units in the last place."""
    n_draws = 5
    weights = np.random.default_rng(0).normal(size=(2, n_draws)).astype(np.float32)
    draws = NOISY._replace(noise=kind, antithetic=antithetic)
    result = backend.get(backend.solver.noise_sum(backend.put(weights), N, draws))
    expected = reference.noise_sum(weights, N, draws)
    each = np.stack([reference.noise_sum(weights * (np.arange(n_draws) == b), N, draws) for b in range(n_draws)])
    size = np.abs(each).sum(0) + np.abs(weights).sum(1)[:, None, None]
    assert (np.abs(result - expected) <= np.finfo(np.float32).eps * (n_draws + 4) * size).all()
    np.testing.assert_array_equal(result, result.swapaxes(1, 2))
    assert (result.diagonal(axis1=1, axis2=2) == 0).all()
