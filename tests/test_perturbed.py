"""Expectations over draws against brute force, closed forms and finite differences; their gradients; their memory."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, ndtr, softmax

import diffclust as dc
from diffclust.noise import Draws
from diffclust.solvers import Request, cpu, reference
from oracles import close_relation, components, pairs_of, random_labels, random_pairs, random_similarity

OPERATORS = {
    "value": dc.perturbed_value,
    "adjacency": dc.perturbed_adjacency,
    "connectivity": dc.perturbed_connectivity,
}
SOFT = ("adjacency", "connectivity")
FRAMEWORKS = {"numpy": np.asarray, "torch": torch.from_numpy}
EPSILON = 0.3
SEED = 20230523


# ----------------------------------------------------------------------------------------------------------------
# Brute force: the noise of noise.sample, plain Kruskal, one draw at a time


def brute_force(similarity, k, draw, *, epsilon=EPSILON, noise="normal", seed=SEED, relation=None,
                must_link_first=True, antithetic=False):  # fmt: skip
    """{"value", "adjacency", "connectivity"} of one draw, and what rounding may do to the float64 sum of the value."""
    n = len(similarity)
    number, sign = (draw // 2, 1 - 2 * (draw % 2)) if antithetic else (draw, 1)
    z = dc.noise.sample(seed, 1, n, noise, first_draw=number)[0]
    weights = (similarity + np.float32(sign * epsilon) * z).astype(similarity.dtype)
    edges = reference.kruskal(weights.tolist(), k, None if relation is None else relation.tolist(), must_link_first)
    assert len(edges) == n - k
    total, adjacency = 0.0, np.zeros((n, n))
    for i, j in edges:
        total += float(weights[i, j])
        adjacency[i, j] = adjacency[j, i] = 1.0
    trees = np.array(components(n, edges))
    connectivity = (trees[:, None] == trees[None, :]).astype(np.float64)
    size = sum(abs(float(weights[edge])) for edge in edges)
    rounding = 2.0 * len(edges) * np.finfo(np.float64).eps * size  # of a sum in any order
    return {"value": 2.0 * total, "adjacency": adjacency, "connectivity": connectivity, "rounding": rounding}


def constraints_case(kind, rng, n):
    """(constraints, relation, feasible k) for "none", "labels" or "pairs"."""
    if kind == "none":
        return None, None, 3
    if kind == "labels":
        known = dc.Constraints.from_labels(random_labels(rng, n))
    else:
        while True:  # general pairs that labels cannot say
            must, cannot = random_pairs(rng, n)
            known = dc.Constraints.from_pairs(n, must, cannot)
            if known.relation is not None:
                break
        assert (close_relation(n, must, cannot) == known.relation).all()
    relation = np.where(np.isnan(known.matrix()), -1, known.matrix()).astype(np.int8)
    # Near the upper end the greedy never gets stuck; the lower end is what check_reached is for.
    return known, relation, (known.min_clusters + known.max_clusters + 1) // 2


def rounding_bound(values, dtype):
    """How far a mean computed in any order may be from the exact one, with one rounding of each term to ``dtype``."""
    unit = np.finfo(dtype).eps
    return (len(values) + 2) * unit * float(np.mean(np.abs(values)))


def as_numpy(result):
    return result.detach().numpy() if isinstance(result, torch.Tensor) else np.asarray(result)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("noise", ["normal", "gumbel"])
@pytest.mark.parametrize(
    ("kind", "must_link_first"),
    [("none", True), ("labels", True), ("labels", False), ("pairs", True), ("pairs", False)],
)
def test_draw_by_draw_and_mean_equal_brute_force(framework, dtype, noise, kind, must_link_first):
    n, n_draws = 9, 6
    rng = np.random.default_rng(hash_of(framework="", dtype=str(dtype), noise=noise, kind=kind))
    for similarity_kind in ("random", "tied", "duplicated"):
        similarity = random_similarity(rng, n, similarity_kind, dtype)
        known, relation, k = constraints_case(kind, rng, n)
        array = FRAMEWORKS[framework](similarity)
        options = {"constraints": known, "epsilon": EPSILON, "noise": noise, "seed": SEED,
                   "must_link_first": must_link_first}  # fmt: skip
        truth = [
            brute_force(similarity, k, b, noise=noise, relation=relation, must_link_first=must_link_first)
            for b in range(n_draws)
        ]
        for name, operator in OPERATORS.items():
            for b in range(n_draws):
                one = as_numpy(operator(array, k, n_draws=1, first_draw=b, **options))
                assert one.dtype == dtype
                # Sums of float32 numbers are exact in float64 here; sums of float64 numbers depend on their order.
                tolerance = truth[b]["rounding"] if name == "value" and dtype == np.float64 else 0.0
                expected = np.asarray(truth[b][name]).astype(dtype)
                np.testing.assert_allclose(one, expected, rtol=0, atol=tolerance, err_msg=f"{name} {b}")
            mean = as_numpy(operator(array, k, n_draws=n_draws, **options))
            each = np.array([t[name] for t in truth])
            assert mean.dtype == dtype
            if name == "value":
                assert abs(float(mean) - math.fsum(each) / n_draws) <= rounding_bound(each, dtype)
            else:
                np.testing.assert_array_equal(mean, (each.sum(0) / n_draws).astype(dtype), err_msg=name)


def hash_of(**parts):
    return sum(ord(c) * (i + 1) for i, c in enumerate(json.dumps(parts)))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_draws_are_numbered_modulo_two_to_the_64(framework):
    """As on CUDA and in JAX, where the number may be out of sight."""
    similarity = FRAMEWORKS[framework](random_similarity(np.random.default_rng(5), 7))
    for operator in OPERATORS.values():
        one_by_one = [as_numpy(operator(similarity, 2, seed=SEED, n_draws=1, first_draw=b)) for b in (2**64 - 1, 0)]
        for first in (-1, 2**64 - 1, np.uint64(2**64 - 1)):
            found = as_numpy(operator(similarity, 2, seed=SEED, n_draws=2, first_draw=first))
            np.testing.assert_allclose(found, np.mean(one_by_one, 0), rtol=1e-14)
    if framework == "torch":
        s = similarity.requires_grad_()
        (gradient,) = torch.autograd.grad(dc.perturbed_connectivity(s, 2, epsilon=2.0, first_draw=-1)[0, 1], s)
        assert gradient.abs().sum() > 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_missing_edges_and_first_draw_far_along_the_stream(framework):
    rng = np.random.default_rng(4)
    far = 2**33 + 5  # the draw number needs both its words
    for _ in range(5):
        similarity = random_similarity(rng, 8, "missing")
        existing = [(i, j) for i, j in zip(*pairs_of(8), strict=True) if np.isfinite(similarity[i, j])]
        k = max(components(8, existing)) + 2
        truth = brute_force(similarity, k, far)
        for name, operator in OPERATORS.items():
            got = operator(FRAMEWORKS[framework](similarity), k, epsilon=EPSILON, seed=SEED, n_draws=1, first_draw=far)
            tolerance = truth["rounding"] if name == "value" else 0.0
            np.testing.assert_allclose(as_numpy(got), truth[name], rtol=0, atol=tolerance)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", ["none", "labels", "pairs"])
def test_antithetic_draws_are_pairs_of_opposite_noise(framework, kind):
    n, n_draws = 8, 6
    rng = np.random.default_rng(11)
    similarity = random_similarity(rng, n)
    known, relation, k = constraints_case(kind, rng, n)
    truth = [brute_force(similarity, k, b, relation=relation, antithetic=True) for b in range(n_draws)]
    assert truth[0]["value"] != truth[1]["value"]
    for name, operator in OPERATORS.items():
        options = {"constraints": known, "epsilon": EPSILON, "seed": SEED, "antithetic": True}
        got = as_numpy(operator(FRAMEWORKS[framework](similarity), k, n_draws=n_draws, **options))
        each = np.array([t[name] for t in truth])
        tolerance = rounding_bound(each, np.float64) if name == "value" else 0.0
        np.testing.assert_allclose(got, each.sum(0) / n_draws, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["none", "labels", "pairs"])
def test_numpy_and_torch_are_equal_to_the_last_bit(name, dtype, kind):
    rng = np.random.default_rng(7)
    for trial in range(10):
        similarity = random_similarity(rng, 11, dtype=dtype)
        known, _, k = constraints_case(kind, rng, 11)
        options = {"constraints": known, "n_draws": 37, "seed": trial}
        a = OPERATORS[name](similarity, k, **options)
        b = OPERATORS[name](torch.from_numpy(similarity), k, **options)
        np.testing.assert_array_equal(np.asarray(a), b.numpy())


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", ["none", "labels", "relation", "shared labels"])
def test_batch_equals_loop(name, framework, kind):
    rng = np.random.default_rng(3)
    shape, n = (2, 3), 7
    convert = FRAMEWORKS[framework]
    similarity = np.stack([random_similarity(rng, n) for _ in range(6)]).reshape(*shape, n, n)
    k = np.array([[2, 3, 4], [5, 3, 2]])
    each, batch = None, None
    if kind == "labels":
        labels = np.array([random_labels(rng, n, n_classes=2, known=0.4) for _ in range(6)]).reshape(*shape, n)
        batch = dc.Constraints.from_labels(convert(labels))
        each = [dc.Constraints.from_labels(row) for row in labels.reshape(6, n)]
    elif kind == "shared labels":
        batch = dc.Constraints.from_labels(convert(np.array([0, 0, 1, -1, -1, -1, -1])))
        each = [batch] * 6
    elif kind == "relation":
        matrix = np.full((6, n, n), np.nan)
        for p in range(6):
            for i, j, same in ((0, 1 + p % 3, 1.0), (0, 5, 0.0), (4, 6, 0.0)):
                matrix[p, i, j] = matrix[p, j, i] = same
        batch = dc.Constraints.from_matrix(matrix.reshape(*shape, n, n))
        each = [dc.Constraints.from_matrix(m) for m in matrix]
        assert all(c.relation is not None for c in each)
    for clusters in (3, k):
        options = {"epsilon": EPSILON, "n_draws": 8, "seed": SEED}
        together = as_numpy(
            OPERATORS[name](
                convert(similarity),
                convert(clusters) if framework == "torch" and clusters is k else clusters,
                constraints=batch,
                **options,
            )
        )
        for p, one in enumerate(similarity.reshape(6, n, n)):
            own_k = int(np.broadcast_to(clusters, shape).reshape(-1)[p])
            alone = OPERATORS[name](convert(one), own_k, constraints=each and each[p], **options)
            np.testing.assert_array_equal(together.reshape(6, *together.shape[2:])[p], as_numpy(alone))


def test_soft_matrices_have_their_shape():
    rng = np.random.default_rng(0)
    s = torch.from_numpy(random_similarity(rng, 10))
    a, m = dc.perturbed_adjacency(s, 4, n_draws=50, seed=1), dc.perturbed_connectivity(s, 4, n_draws=50, seed=1)
    assert torch.equal(a, a.T)
    assert torch.equal(m, m.T)
    assert (a.diagonal() == 0).all()
    assert (m.diagonal() == 1).all()
    assert a.sum().item() == pytest.approx(2 * (10 - 4), rel=1e-14)
    assert (a <= m).all()


# ----------------------------------------------------------------------------------------------------------------
# Envelope gradient


@pytest.mark.parametrize("kind", ["none", "labels", "pairs"])
@pytest.mark.parametrize("noise", ["normal", "gumbel"])
def test_gradient_of_the_value_is_the_soft_adjacency(kind, noise):
    rng = np.random.default_rng(5)
    for dtype in (torch.float32, torch.float64):
        s = torch.from_numpy(random_similarity(rng, 10)).to(dtype).requires_grad_()
        known, _, k = constraints_case(kind, rng, 10)
        options = {"constraints": known, "n_draws": 30, "seed": 9, "noise": noise, "epsilon": EPSILON}
        (gradient,) = torch.autograd.grad(dc.perturbed_value(s, k, **options), s)
        assert torch.equal(gradient, dc.perturbed_adjacency(s, k, **options))


@pytest.mark.parametrize("kind", ["none", "labels", "pairs"])
def test_gradcheck_of_the_value_with_fixed_draws(kind):
    rng = np.random.default_rng(6)
    s = torch.from_numpy(np.stack([random_similarity(rng, 6) for _ in range(2)])).requires_grad_()
    known, _, k = constraints_case(kind, rng, 6)
    # The draws are fixed: between two kinks the value is linear, and central differences are exact up to rounding.
    assert torch.autograd.gradcheck(
        lambda t: dc.perturbed_value(t, k, constraints=known, n_draws=5, seed=2, epsilon=EPSILON), (s,)
    )


def test_gradcheck_with_one_k_per_problem():
    rng = np.random.default_rng(8)
    s = torch.from_numpy(np.stack([random_similarity(rng, 5) for _ in range(3)])).requires_grad_()
    k = torch.tensor([1, 3, 5])
    assert torch.autograd.gradcheck(lambda t: dc.perturbed_value(t, k, n_draws=4, seed=2), (s,))


# ----------------------------------------------------------------------------------------------------------------
# Closed forms


def replicate(function, n_replicates, n_draws):
    """Mean and standard error of function(first_draw) over independent stretches of one stream of noise."""
    results = np.array([function(r * n_draws) for r in range(n_replicates)])
    return results.mean(0), results.std(0, ddof=1) / math.sqrt(n_replicates)


def assert_within_four_standard_errors(estimate, truth, error):
    deviation = np.abs(np.asarray(estimate) - truth)
    # An entry that never varied (probability 0 or 1) must be exact up to rounding of the truth.
    limit = 4 * np.asarray(error) + 8 * np.finfo(np.float64).eps * np.maximum(np.abs(truth), 1)
    assert (deviation <= limit).all(), f"{deviation.max()} against {limit}"


def vjp(name, similarity, k, cotangent, **options):
    s = torch.from_numpy(similarity).requires_grad_()
    return torch.autograd.grad(OPERATORS[name](s, k, **options), s, torch.from_numpy(cotangent))[0].numpy()


def symmetric(rng, n):
    g = rng.normal(size=(n, n))
    return g + g.T


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_gumbel_soft_adjacency_is_a_softmax_over_edges(epsilon):
    n, n_draws = 5, 40_000
    rng = np.random.default_rng(1)
    similarity = random_similarity(rng, n)
    pairs = pairs_of(n)
    truth = softmax(similarity[pairs] / epsilon)
    options = {"epsilon": epsilon, "noise": "gumbel", "seed": 3, "n_draws": n_draws}
    for array in (similarity, torch.from_numpy(similarity)):
        soft = as_numpy(dc.perturbed_adjacency(array, n - 1, **options))[pairs]
        assert_within_four_standard_errors(soft, truth, np.sqrt(truth * (1 - truth) / n_draws))
        # One edge joins exactly its two points.
        m = as_numpy(dc.perturbed_connectivity(array, n - 1, **options))
        np.testing.assert_array_equal(m[pairs], soft)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_gumbel_value_is_a_logsumexp(epsilon):
    n, n_draws = 5, 40_000
    similarity = random_similarity(np.random.default_rng(1), n)
    truth = 2 * epsilon * (logsumexp(similarity[pairs_of(n)] / epsilon) + np.euler_gamma)
    # The maximum of Gumbels is a Gumbel: its variance is known, too.
    error = 2 * epsilon * math.pi / math.sqrt(6 * n_draws)
    value = dc.perturbed_value(similarity, n - 1, epsilon=epsilon, noise="gumbel", seed=3, n_draws=n_draws)
    assert_within_four_standard_errors(value, truth, error)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOFT)
def test_gumbel_jacobian_is_that_of_the_softmax(name):
    n, epsilon, n_draws = 3, 0.8, 3_000
    similarity = np.array([[0.0, 0.2, -0.3], [0.2, 0.0, 0.5], [-0.3, 0.5, 0.0]])
    pairs = pairs_of(n)
    p = softmax(similarity[pairs] / epsilon)
    jacobian = (np.diag(p) - np.outer(p, p)) / epsilon
    for e in range(len(p)):  # one row of the Jacobian at a time
        cotangent = np.zeros((n, n))
        cotangent[pairs[0][e], pairs[1][e]] = cotangent[pairs[1][e], pairs[0][e]] = 1.0
        estimate, error = replicate(
            lambda first, g=cotangent: vjp(
                name, similarity, n - 1, g, epsilon=epsilon, noise="gumbel", seed=5, n_draws=n_draws, first_draw=first
            )[pairs],
            30, n_draws,
        )  # fmt: skip
        assert_within_four_standard_errors(estimate, jacobian[e], error)
        assert jacobian[e, e] > 20 * error[e], "the test has no power"


@pytest.mark.parametrize("antithetic", [False, True])
def test_normal_noise_with_two_edges_is_a_probit(antithetic):
    """n = 3, one edge missing, k = 2: the better of two normals. Probability, value and derivative are known."""
    epsilon, n_draws, replicates = 0.7, 2_000, 40
    first, second = 0.4, 0.1
    similarity = np.array([[0.0, first, second], [first, 0.0, -np.inf], [second, -np.inf, 0.0]])
    theta = epsilon * math.sqrt(2.0)
    x = (first - second) / theta
    density = math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    p = ndtr(x)
    options = {"epsilon": epsilon, "seed": 8, "n_draws": n_draws, "antithetic": antithetic}

    value = replicate(lambda b: float(dc.perturbed_value(similarity, 2, first_draw=b, **options)), replicates, n_draws)
    assert_within_four_standard_errors(value[0], 2 * (first * p + second * (1 - p) + theta * density), value[1])
    for name in SOFT:
        soft = replicate(
            lambda b, name=name: OPERATORS[name](similarity, 2, first_draw=b, **options)[0, 1], replicates, n_draws
        )
        assert_within_four_standard_errors(soft[0], p, soft[1])
        cotangent = np.zeros((3, 3))
        cotangent[0, 1] = cotangent[1, 0] = 1.0
        gradient, error = replicate(
            lambda b, name=name, g=cotangent: vjp(name, similarity, 2, g, first_draw=b, **options), replicates, n_draws
        )
        slope = density / theta
        assert_within_four_standard_errors([gradient[0, 1], gradient[1, 0]], slope, [error[0, 1], error[1, 0]])
        assert_within_four_standard_errors([gradient[0, 2], gradient[2, 0]], -slope, [error[0, 2], error[2, 0]])
        assert slope > 20 * error[0, 1], "the test has no power"


# ----------------------------------------------------------------------------------------------------------------
# Score gradient


@pytest.mark.slow
@pytest.mark.parametrize("name", SOFT)
@pytest.mark.parametrize("noise", ["normal", "gumbel"])
@pytest.mark.parametrize("labels", [None, [0, 1, 0, -1, -1]])
def test_score_gradient_agrees_with_finite_differences(name, noise, labels):
    n, k, epsilon, n_draws, replicates = 5, 2, 0.5, 2_000, 16
    rng = np.random.default_rng(12)
    points = rng.normal(size=(n, 2))
    similarity = -0.3 * ((points[:, None] - points[None, :]) ** 2).sum(-1)
    known = None if labels is None else dc.Constraints.from_labels(labels)
    cotangent = symmetric(rng, n)
    options = {"constraints": known, "epsilon": epsilon, "noise": noise, "n_draws": n_draws}
    # One direction near the gradient, for power, from noise of its own; and one at random.
    pilot = vjp(name, similarity, k, cotangent, seed=3, **{**options, "n_draws": 8_000})
    directions = [2.0 * d / np.linalg.norm(d) for d in (pilot, symmetric(rng, n))]

    def score(first):
        gradient = vjp(name, similarity, k, cotangent, seed=1, first_draw=first, **options)
        return [float((gradient * d).sum()) for d in directions]

    def difference(first):
        # Five points: the error is (h / epsilon)^4 / 30 of the fifth derivative, far below the standard error.
        h = 0.1
        slopes = []
        for d in directions:
            at = {
                m: OPERATORS[name](similarity + m * h * d, k, seed=2, first_draw=first, **options)
                for m in (-2, -1, 1, 2)
            }
            slopes.append((cotangent * (8 * (at[1] - at[-1]) - (at[2] - at[-2]))).sum() / (12 * h))
        return slopes

    by_score, score_error = replicate(score, replicates, n_draws)
    by_difference, difference_error = replicate(difference, replicates, n_draws)
    error = np.hypot(score_error, difference_error)
    assert_within_four_standard_errors(by_score, by_difference, error)
    assert np.abs(by_difference / error).max() > 12, "the test has no power"


def per_draw(name, similarity, k, cotangent, *, epsilon, noise, seed, n_draws, antithetic=False):
    """Products <G, A> or <G, M> and scores of every draw, from brute force: what the estimator is made of."""
    n = len(similarity)
    options = {"epsilon": epsilon, "noise": noise, "seed": seed, "antithetic": antithetic}
    forests = [brute_force(similarity, k, b, **options)[name] for b in range(n_draws)]
    products = np.array([(cotangent * forest).sum() for forest in forests])
    if antithetic:
        z = dc.noise.sample(seed, n_draws // 2, n, noise).repeat(2, axis=0)
        z[1::2] *= -1
    else:
        z = dc.noise.sample(seed, n_draws, n, noise)
    scores = z.astype(np.float64) if noise == "normal" else 1.0 - np.exp(-z.astype(np.float64))
    scores[:, range(n), range(n)] = 0.0
    return products, scores


@pytest.mark.parametrize("name", SOFT)
@pytest.mark.parametrize(("noise", "antithetic"), [("normal", False), ("gumbel", False), ("normal", True)])
@pytest.mark.parametrize("n_draws", [1, 2, 12])
def test_score_gradient_is_the_formula(name, noise, antithetic, n_draws):
    if antithetic and n_draws % 2:
        pytest.skip("antithetic draws come in pairs")
    rng = np.random.default_rng(13)
    n, k, epsilon, seed = 7, 3, 0.5, 77
    similarity, cotangent = random_similarity(rng, n), rng.normal(size=(n, n))
    options = {"epsilon": epsilon, "noise": noise, "seed": seed, "n_draws": n_draws, "antithetic": antithetic}
    products, scores = per_draw(name, similarity, k, cotangent, **options)
    if antithetic or n_draws == 1:
        centred = products
    else:  # leave one out, written as it is said
        centred = np.array([products[b] - np.delete(products, b).mean() for b in range(n_draws)])
    truth = (centred[:, None, None] * scores).mean(0) / (2 * epsilon)
    got = vjp(name, similarity, k, cotangent, **options)
    # Rounding of the sums, in float64; the exponential in the Gumbel score is a float32 one.
    unit = np.finfo(np.float64 if noise == "normal" else np.float32).eps
    size = (np.abs(products).max() + np.abs(products).mean()) * np.abs(scores).mean(0) / (2 * epsilon)
    assert (np.abs(got - truth) <= 4 * (n_draws + 4) * unit * (size + 1)).all()
    np.testing.assert_array_equal(got, got.T)
    assert (got.diagonal() == 0).all()


@pytest.mark.parametrize("name", SOFT)
@pytest.mark.parametrize("noise", ["normal", "gumbel"])
def test_leave_one_out_baseline_is_unbiased_and_reduces_variance(name, noise, capsys, record_property):
    n, k, epsilon, n_draws, seeds = 6, 2, 0.5, 50, 200
    rng = np.random.default_rng(14)
    similarity = random_similarity(rng, n) * 0.5
    labels = np.array([0, 0, 0, 1, 1, 1])
    target = (labels[:, None] == labels[None, :]).astype(np.float64)
    cotangent = 2 * (0.5 - target)  # what a squared loss sends back, roughly
    with_baseline, without = [], []
    for seed in range(seeds):
        with_baseline.append(
            vjp(name, similarity, k, cotangent, epsilon=epsilon, noise=noise, seed=seed, n_draws=n_draws)[pairs_of(n)]
        )
        draws = Draws(seed, 0, n_draws, epsilon, noise)
        found = cpu.solve(Request(similarity[None], k, draws=draws, detail="forests"))
        forests = (found.edges if name == "adjacency" else found.labels)[:, 0]
        products = getattr(cpu.sums, f"{name}_products")(cotangent[None], forests)
        plain = cpu.noise_sum(products / (2 * epsilon * n_draws), n, draws)
        without.append(plain[0][pairs_of(n)])
    with_baseline, without = np.array(with_baseline), np.array(without)
    difference = with_baseline - without
    assert_within_four_standard_errors(difference.mean(0), 0.0, difference.std(0, ddof=1) / math.sqrt(seeds))
    ratio = without.var(0, ddof=1).sum() / with_baseline.var(0, ddof=1).sum()
    record_property("variance_reduction", float(ratio))
    with capsys.disabled():
        print(f"\n  soft {name}, {noise} noise: the baseline divides the gradient's variance by {ratio:.2f}")
    assert ratio > 1


def test_antithetic_score_gradient_is_unbiased(capsys):
    n, k, epsilon, n_draws, replicates = 5, 2, 0.5, 1_000, 100
    rng = np.random.default_rng(15)
    similarity, cotangent = random_similarity(rng, n) * 0.5, symmetric(rng, n)
    estimates = {}
    for antithetic in (False, True):
        estimates[antithetic] = replicate(
            lambda first, antithetic=antithetic: vjp(
                "connectivity", similarity, k, cotangent, epsilon=epsilon, seed=1 + antithetic, n_draws=n_draws,
                antithetic=antithetic, first_draw=first,
            )[pairs_of(n)],
            replicates, n_draws,
        )  # fmt: skip
    (plain, plain_error), (paired, paired_error) = estimates[False], estimates[True]
    assert_within_four_standard_errors(paired, plain, np.hypot(plain_error, paired_error))
    assert np.abs(plain / np.hypot(plain_error, paired_error)).max() > 20, "the test has no power"
    with capsys.disabled():
        ratio = (plain_error**2).sum() / (paired_error**2).sum()
        print(f"\n  antithetic pairs instead of the baseline divide the gradient's variance by {ratio:.2f}")


def test_any_loss_on_the_soft_connectivity_trains():
    """Gradient descent on the similarity itself brings the soft connectivity to a clustering that it was far from."""
    rng = np.random.default_rng(16)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    target = (labels[:, None] == labels[None, :]).double()
    s = torch.from_numpy(0.1 * symmetric(rng, 6)).requires_grad_()
    optimizer = torch.optim.Adam([s], lr=0.05)

    def loss(step):
        soft = dc.perturbed_connectivity(s, 3, epsilon=0.3, n_draws=200, seed=1, first_draw=200 * step)
        return torch.nn.functional.binary_cross_entropy(soft.clamp(1e-3, 1 - 1e-3), target)

    start = loss(0).item()
    for step in range(150):
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()
    assert (dc.perturbed_connectivity(s, 3, epsilon=1e-6, n_draws=1, seed=0) == target).all()
    assert loss(1000).item() < 0.1 * start


# ----------------------------------------------------------------------------------------------------------------
# Seeds


def test_seed_none_follows_the_framework_generator():
    rng = np.random.default_rng(0)
    similarity = random_similarity(rng, 8)
    s = torch.from_numpy(similarity)
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - the global generator is what is tested
        results = [
            (dc.perturbed_value(s, 3, n_draws=3).item(), float(dc.perturbed_value(similarity, 3, n_draws=3)))
            for _ in range(2)
        ]
        assert results[0][0] != results[1][0]
        assert results[0][1] != results[1][1]
        if _ == 0:
            first = results
    assert results == first


def test_integers_of_any_kind_are_the_same_seed():
    s = torch.from_numpy(random_similarity(np.random.default_rng(0), 8))
    values = {
        dc.perturbed_value(s, 3, seed=seed, n_draws=3).item()
        for seed in (12, np.int64(12), np.uint8(12), torch.tensor(12), torch.tensor(12, dtype=torch.int32))
    }
    assert len(values) == 1
    big = 2**64 - 3  # the same 64 bits as -3
    assert dc.perturbed_value(s, 3, seed=big) == dc.perturbed_value(s, 3, seed=-3)
    assert float(dc.perturbed_value(s.numpy(), 3, seed=big, n_draws=1)) == dc.perturbed_value(s, 3, seed=big, n_draws=1)


# ----------------------------------------------------------------------------------------------------------------
# Memory


PEAK = """
import json, multiprocessing, sys, torch, diffclust as dc

def status(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))

def run(n, n_draws, what):
    torch.manual_seed(0)
    x = torch.randn(n, 16, requires_grad=True)
    if what == "loss":
        labels = torch.where(torch.rand(n) < 0.5, torch.randint(0, 10, (n,)), -1)
        dc.nn.PartialFenchelYoungLoss(10, n_draws=n_draws, seed=0)(x, labels).backward()
        return x.grad
    s = dc.standardize(dc.negative_squared_distances(x.detach())).requires_grad_()
    result = getattr(dc, "perturbed_" + what)(s, n // 2, n_draws=n_draws, seed=0, epsilon=1.0)
    result.backward(torch.randn(result.shape))
    return s.grad

def growth(n, n_draws, what):
    run(16, 4, what)  # a fork has the pages of the code only once they are used
    before = status("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")  # forget the peak so far
    gradient = run(n, n_draws, what)
    assert gradient.isfinite().all() and gradient.abs().sum() > 0, what
    return status("VmHWM") - before

torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
cases = json.loads(sys.argv[1])
for _, _, what in cases:
    run(16, 4, what)
with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
    print(json.dumps(pool.starmap(growth, cases, chunksize=1)))
"""


@pytest.fixture(scope="module")
def peak_growth():
    """Bytes by which resident memory grows at its peak, each in a process of its own, after everything is compiled."""
    cases = [*((512, 200, operator) for operator in OPERATORS), (2048, 100, "loss")]
    # Not ru_maxrss: a child process inherits its parent's.
    run = subprocess.run(
        [sys.executable, "-c", PEAK, json.dumps(cases)], capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return dict(zip(cases, json.loads(run.stdout), strict=True))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_of_size_n_squared_times_draws_is_held(peak_growth, capsys):
    n, n_draws = 512, 200
    for what in OPERATORS:
        growth = peak_growth[n, n_draws, what]
        with capsys.disabled():
            print(f"\n  {what}, forward and backward, n={n}, B={n_draws}: {growth / n**2 / 4:.1f} n^2 floats")
        assert growth < 0.15 * n_draws * n * n * 4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_of_loss_and_gradient(peak_growth, capsys):
    n, n_draws = 2048, 100
    growth = peak_growth[n, n_draws, "loss"]
    with capsys.disabled():
        print(f"\n  loss of embeddings and its gradient, n={n}, B={n_draws}: {growth / n**2 / 4:.1f} n^2 floats")
    assert growth < 20 * n * n * 4
