"""Losses: non-negative draw by draw, gradients by finite differences, the same k in both solves, diagnostics."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import diffclust as dc
from diffclust.solvers import reference
from oracles import agrees, close_relation, components, partial_labels, random_labels, random_similarity, similarities

EPSILON = 0.3
SEED = 41
FLOAT32 = float(np.finfo(np.float32).eps)  # shares of draws may be float32
CONVERT = {"numpy": np.asarray, "torch": torch.from_numpy}


def forests(similarity, k, n_draws, relation=None, *, epsilon=EPSILON, noise="normal", seed=SEED, must_link_first=True):
    """For every draw (value in float64, adjacency, labels of the trees) by plain Kruskal on the defined noise."""
    n = len(similarity)
    known = None if relation is None else np.asarray(relation).tolist()
    result = []
    for z in dc.noise.sample(seed, n_draws, n, noise):
        weights = (similarity + np.float32(epsilon) * z).astype(similarity.dtype)
        edges = reference.kruskal(weights.tolist(), k, known, must_link_first)
        adjacency, total = np.zeros((n, n)), 0.0
        for i, j in edges:
            total += float(weights[i, j])
            adjacency[i, j] = adjacency[j, i] = 1.0
        result.append((2.0 * total, adjacency, components(n, edges)))
    return result


def relation_of(constraints):
    matrix = np.asarray(constraints.matrix())
    return np.where(np.isnan(matrix), -1, matrix).astype(np.int8)


def general_pairs(n=8):
    """Constraints that labels cannot say: two cannot-links that share no clique."""
    known = dc.Constraints.from_pairs(n, must_link=[(0, 1)], cannot_link=[(1, 2), (3, 4), (4, 5)])
    assert known.relation is not None
    return known


# ----------------------------------------------------------------------------------------------------------------
# Partial Fenchel-Young loss


@settings(max_examples=60)
@given(data=st.data(), framework=st.sampled_from(["numpy", "torch"]), must_link_first=st.booleans())
def test_every_draw_has_a_loss_of_at_least_zero_with_labels(data, framework, must_link_first):
    similarity = data.draw(similarities(min_n=2, max_n=8))
    n = len(similarity)
    known = dc.Constraints.from_labels(data.draw(partial_labels(n).filter(lambda labels: (labels >= 0).any())))
    k = data.draw(st.integers(1, n))
    seed = data.draw(st.integers(0, 2**64 - 1))
    clamped = int(np.clip(k, known.min_clusters, known.max_clusters))
    options = {"epsilon": 1.0, "seed": seed, "must_link_first": must_link_first}
    for b in range(4):
        array = CONVERT[framework](similarity)
        loss = dc.partial_fenchel_young_loss(array, known, k, n_draws=1, first_draw=b, **options)
        # Not only not negative because it was clipped: both solves by brute force say so, and the loss is their gap.
        z = dc.noise.sample(seed, 1, n, first_draw=b)[0]
        weights = (similarity + np.float32(1.0) * z).tolist()
        free = reference.kruskal(weights, clamped)
        held = reference.kruskal(weights, clamped, relation_of(known).tolist(), must_link_first)
        assert len(free) == len(held) == n - clamped
        gap = 2 * sum(weights[i][j] for i, j in free) - 2 * sum(weights[i][j] for i, j in held)
        assert float(loss) == max(gap, 0.0)
        bound = 2 * n * np.finfo(np.float64).eps * np.abs(weights).max()
        assert gap >= -bound


@settings(max_examples=60)
@given(data=st.data(), must_link_first=st.booleans())
def test_every_draw_has_a_loss_of_at_least_zero_with_pairs(data, must_link_first):
    similarity = data.draw(similarities(min_n=3, max_n=8))
    n = len(similarity)
    pair = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda p: p[0] != p[1])
    must, cannot = data.draw(st.lists(pair, max_size=3)), data.draw(st.lists(pair, min_size=1, max_size=4))
    assume(close_relation(n, must, cannot) is not None)
    known = dc.Constraints.from_pairs(n, must, cannot)
    k, seed = data.draw(st.integers(1, n)), data.draw(st.integers(0, 1000))
    each = [
        dc.partial_fenchel_young_loss(
            similarity, known, k, n_draws=1, first_draw=b, epsilon=0.7, seed=seed, must_link_first=must_link_first,
            diagnostics=True,
        )
        for b in range(4)
    ]  # fmt: skip
    for b, (loss, seen) in enumerate(each):
        # A greedy that got stuck has fewer edges: its value is that of another problem, and diagnostics say so.
        z = dc.noise.sample(seed, 1, n, first_draw=b)[0]
        weights = (similarity + np.float32(0.7) * z).tolist()
        held = reference.kruskal(weights, int(seen.n_clusters), relation_of(known).tolist(), must_link_first)
        assert (len(held) < n - int(seen.n_clusters)) == bool(seen.stuck)
        assert float(loss) >= 0
        if not seen.stuck:
            free = reference.kruskal(weights, int(seen.n_clusters))
            gap = 2 * sum(weights[i][j] for i, j in free) - 2 * sum(weights[i][j] for i, j in held)
            assert gap >= -2 * n * np.finfo(np.float64).eps * np.abs(weights).max()
            assert float(loss) == max(gap, 0.0)


@pytest.mark.parametrize("framework", CONVERT)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("noise", ["normal", "gumbel"])
@pytest.mark.parametrize("must_link_first", [True, False])
@pytest.mark.parametrize("kind", ["labels", "pairs"])
def test_loss_is_the_mean_gap_of_two_solves_with_the_same_noise(framework, dtype, noise, must_link_first, kind):
    rng = np.random.default_rng(2)
    n, k, n_draws = 8, 4, 9
    similarity = random_similarity(rng, n, dtype=dtype)
    known = general_pairs(n) if kind == "pairs" else dc.Constraints.from_labels([0, 0, 1, -1, 2, -1, 1, -1])
    options = {"noise": noise, "must_link_first": must_link_first}
    loss = dc.partial_fenchel_young_loss(
        CONVERT[framework](similarity), known, k, epsilon=EPSILON, n_draws=n_draws, seed=SEED, **options
    )
    free = np.array([v for v, _, _ in forests(similarity, k, n_draws, noise=noise)])
    held = np.array([v for v, _, _ in forests(similarity, k, n_draws, relation_of(known), **options)])
    assert (free >= held).all()
    assert (free > held).any()
    # Each mean is rounded to the dtype, whatever the order of its sum.
    bound = (n_draws + 2) * np.finfo(dtype).eps * (np.abs(free).mean() + np.abs(held).mean())
    assert abs(float(loss) - math.fsum(free - held) / n_draws) <= bound
    assert str(loss.dtype).endswith(np.dtype(dtype).name)


@pytest.mark.parametrize("kind", ["labels", "pairs"])
@pytest.mark.parametrize("must_link_first", [True, False])
def test_gradient_is_free_minus_constrained_adjacency(kind, must_link_first):
    rng = np.random.default_rng(3)
    n, k, n_draws = 8, 4, 13
    similarity = random_similarity(rng, n)
    known = general_pairs(n) if kind == "pairs" else dc.Constraints.from_labels([0, 0, 1, -1, 2, -1, 1, -1])
    s = torch.from_numpy(similarity).requires_grad_()
    options = {"epsilon": EPSILON, "n_draws": n_draws, "seed": SEED, "must_link_first": must_link_first}
    (gradient,) = torch.autograd.grad(dc.partial_fenchel_young_loss(s, known, k, **options), s)
    free = sum(a for _, a, _ in forests(similarity, k, n_draws))
    held = sum(a for _, a, _ in forests(similarity, k, n_draws, relation_of(known), must_link_first=must_link_first))
    np.testing.assert_array_equal(gradient.numpy(), (free - held) / n_draws)
    assert gradient.abs().sum() > 0
    both = dc.perturbed_adjacency(s, k, **options), dc.perturbed_adjacency(s, k, constraints=known, **options)
    # The counts are subtracted before the division by the number of draws: one rounding less.
    assert (gradient - (both[0] - both[1])).abs().max() <= np.finfo(np.float64).eps


@pytest.mark.parametrize("kind", ["labels", "pairs"])
def test_loss_and_gradient_agree_by_finite_differences(kind):
    rng = np.random.default_rng(4)
    n, k = 7, 3
    known = general_pairs(n) if kind == "pairs" else dc.Constraints.from_labels([0, 0, 1, -1, -1, -1, 1])
    similarity = random_similarity(rng, n)

    def loss(s):
        return dc.partial_fenchel_young_loss(s, known, k, epsilon=EPSILON, n_draws=200, seed=SEED)

    s = torch.from_numpy(similarity).requires_grad_()
    value = loss(s)
    (gradient,) = torch.autograd.grad(value, s)
    assert gradient.abs().sum() > 0
    h = 1e-7
    for _ in range(5):
        direction = rng.normal(size=(n, n))
        direction += direction.T
        np.fill_diagonal(direction, 0.0)
        up, down = loss(similarity + h * direction), loss(similarity - h * direction)
        # Piecewise linear in the similarity: exact up to rounding, if no draw changes its forests within the step.
        rounding = 4 * 200 * np.finfo(np.float64).eps * abs(float(dc.perturbed_value(similarity, k, seed=SEED))) / h
        assert abs((up - down) / (2 * h) - float((gradient.numpy() * direction).sum())) <= rounding
    assert torch.autograd.gradcheck(loss, (s,))


def test_fully_labelled_loss_is_zero_exactly_when_every_forest_agrees():
    rng = np.random.default_rng(5)
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    known = dc.Constraints.from_labels(labels)
    relation = relation_of(known)
    seen = set()
    for spread in (0.2, 0.5, 1.0, 2.0):
        for trial in range(8):
            points = 2.0 * np.eye(3)[labels] + spread * 0.5 * rng.normal(size=(8, 3))
            similarity = dc.negative_squared_distances(points)
            agree = [agrees(trees, relation) for _, _, trees in forests(similarity, 3, 20, seed=trial)]
            for convert in CONVERT.values():
                loss, report = dc.partial_fenchel_young_loss(
                    convert(similarity), known, 3, epsilon=EPSILON, n_draws=20, seed=trial, diagnostics=True
                )
                assert (float(loss) == 0.0) == all(agree)
                assert abs(float(report.agreement) - np.mean(agree)) <= FLOAT32
            seen.add(all(agree))
    assert seen == {True, False}, "both cases must occur"


def test_partial_labels_may_have_a_loss_where_the_forest_agrees():
    """The smallest example, in the documentation: on a line, must-links first takes the long edge."""
    similarity = dc.negative_squared_distances(np.array([[0.0], [1.0], [2.0]]))
    known = dc.Constraints.from_labels([0, -1, 0])
    options = {"epsilon": 1e-3, "seed": 0, "n_draws": 10, "diagnostics": True}
    for convert in CONVERT.values():
        first, report = dc.partial_fenchel_young_loss(convert(similarity), known, 1, must_link_first=True, **options)
        assert float(report.agreement) == 1.0
        # Edges (0,1), (1,2) of -1 each against (0,2) of -4 and one of -1, each counted twice, up to the noise.
        z = dc.noise.sample(0, 10, 3)
        gaps = [2 * (-1 + 1e-3 * min(d[0, 1], d[1, 2])) - 2 * (-4 + 1e-3 * d[0, 2]) for d in z.astype(np.float64)]
        assert abs(float(first) - np.mean(gaps)) < 1e-3 * np.finfo(np.float32).eps * 10 + 1e-14
        later, _ = dc.partial_fenchel_young_loss(convert(similarity), known, 1, must_link_first=False, **options)
        assert float(later) == 0.0


@pytest.mark.parametrize("framework", CONVERT)
@pytest.mark.parametrize(("k", "used"), [(1, 3), (2, 3), (3, 3), (5, 5), (6, 6), (8, 6), (9, 6), (10**6, 6)])
def test_k_moves_into_the_range_of_the_batch_and_is_the_same_in_both_solves(framework, k, used):
    rng = np.random.default_rng(6)
    similarity = random_similarity(rng, 8)
    known = dc.Constraints.from_labels([0, 0, 1, 1, 2, -1, -1, -1])  # 3 classes, 6 groups
    assert (known.min_clusters, known.max_clusters) == (3, 6)
    array = CONVERT[framework](similarity)
    options = {"epsilon": EPSILON, "n_draws": 5, "seed": SEED}
    paper = {"must_link_first": True, "diagnostics": True, **options}
    loss, report = dc.partial_fenchel_young_loss(array, known, k, **paper)
    assert int(report.n_clusters) == used
    again = dc.partial_fenchel_young_loss(array, known, used, strict=True, **paper)[0]
    assert float(loss) == float(again)
    free = [v for v, _, _ in forests(similarity, used, 5)]
    held = [v for v, _, _ in forests(similarity, used, 5, relation_of(known))]
    assert float(loss) == pytest.approx(np.mean(free) - np.mean(held), rel=1e-13)
    for function in (dc.partial_fenchel_young_loss, dc.connectivity_loss):
        if k != used:
            reason = "is infeasible.*3 to 6" if k <= 8 else "must be from 1 to the number of points, 8"
            with pytest.raises(ValueError, match=rf"n_clusters={k} {reason}"):
                function(array, known, k, strict=True, **options)
        else:
            function(array, known, k, strict=True, **options)


@pytest.mark.parametrize("framework", [*CONVERT, pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["labels", "pairs", "forest"])
def test_more_clusters_than_points_are_as_many_as_there_can_be(framework, kind):
    """A rule of all losses: a batch may be smaller than k. Fewer than one cluster is a mistake."""
    convert = CONVERT.get(framework) or pytest.importorskip("jax.numpy").asarray
    similarity = random_similarity(np.random.default_rng(3), 8).astype(np.float32)
    known = dc.Constraints.from_labels([0, 1, 2, 0, -1, -1, -1, -1]) if kind == "labels" else general_pairs()
    options = {"n_draws": 5, "seed": SEED}

    def losses(k, **more):
        if kind == "forest":
            return [float(dc.fenchel_young_loss(convert(similarity), convert(0 * similarity), k, **options))]
        functions = dc.partial_fenchel_young_loss, dc.connectivity_loss
        return [float(each(convert(similarity), known, k, **options, **more)) for each in functions]

    most = 8 if kind == "forest" else known.max_clusters
    for k in (9, np.int64(10**6), convert(np.array(11)), np.array(12)):
        assert losses(k) == losses(most)
    with pytest.raises(ValueError, match=r"n_clusters=0 must be from 1"):
        losses(0)
    with pytest.raises(ValueError, match=r"n_clusters=0 must be from 1"):
        losses(np.array(0))
    if kind != "forest":
        with pytest.raises(ValueError, match="n_clusters=9 must be from 1 to the number of points, 8"):
            losses(9, strict=True)


@pytest.mark.parametrize("framework", CONVERT)
def test_k_is_clamped_problem_by_problem(framework):
    rng = np.random.default_rng(7)
    labels = np.array([[0, 0, 1, 2, 3, -1], [0, 0, 0, 0, 0, -1], [-1, -1, -1, -1, -1, 5]])
    similarity = np.stack([random_similarity(rng, 6) for _ in range(3)])
    convert = CONVERT[framework]
    known = dc.Constraints.from_labels(convert(labels))
    for k in (3, np.array([1, 6, 6])):
        loss, report = dc.partial_fenchel_young_loss(
            convert(similarity), known, k, reduction="none", diagnostics=True, must_link_first=True, seed=SEED
        )
        for p, asked in enumerate(np.broadcast_to(k, 3).tolist()):
            own = dc.Constraints.from_labels(labels[p])
            assert int(report.n_clusters[p]) == np.clip(asked, own.min_clusters, own.max_clusters)
            alone, _ = dc.partial_fenchel_young_loss(
                convert(similarity[p]), own, asked, diagnostics=True, must_link_first=True, seed=SEED
            )
            assert float(loss[p]) == float(alone)


@pytest.mark.parametrize("framework", CONVERT)
@pytest.mark.parametrize("name", ["partial_fenchel_young_loss", "connectivity_loss", "fenchel_young_loss"])
def test_reductions(framework, name):
    rng = np.random.default_rng(8)
    convert = CONVERT[framework]
    similarity = convert(np.stack([random_similarity(rng, 6) for _ in range(6)]).reshape(2, 3, 6, 6))
    target = dc.Constraints.from_labels([0, 0, 1, -1, 1, -1])
    if name == "fenchel_young_loss":
        one = dc.spanning_forest(random_similarity(rng, 6), 2).adjacency()
        target = convert(np.broadcast_to(one, (2, 3, 6, 6)).copy())
    function = getattr(dc, name)
    results = {r: function(similarity, target, 2, n_draws=5, seed=1, reduction=r) for r in ("none", "mean", "sum")}
    assert tuple(results["none"].shape) == (2, 3)
    assert results["mean"].shape == results["sum"].shape == ()
    flat = np.asarray(results["none"]).reshape(-1)
    bound = 6 * np.finfo(np.float64).eps * np.abs(flat).sum()
    assert abs(float(results["sum"]) - math.fsum(flat)) <= bound
    assert abs(float(results["mean"]) - math.fsum(flat) / 6) <= bound
    assert float(function(similarity, target, 2, n_draws=5, seed=1)) == float(results["mean"])
    with pytest.raises(ValueError, match="reduction must be one of"):
        function(similarity, target, 2, reduction="max")


@pytest.mark.parametrize("framework", CONVERT)
@pytest.mark.parametrize("kind", ["labels", "pairs"])
def test_diagnostics_against_brute_force(framework, kind):
    rng = np.random.default_rng(9)
    n, n_draws = 8, 40
    agreements = []
    for trial in range(6):
        similarity = random_similarity(rng, n)
        if kind == "labels":
            known = dc.Constraints.from_labels(np.append(random_labels(rng, n - 2, n_classes=2, known=0.3), [0, 1]))
        else:
            known = general_pairs(n)
        k = 4
        _, report = dc.partial_fenchel_young_loss(
            CONVERT[framework](similarity), known, k, epsilon=EPSILON, n_draws=n_draws, seed=trial,
            must_link_first=True, diagnostics=True,
        )  # fmt: skip
        relation = relation_of(known)
        free = forests(similarity, k, n_draws, seed=trial)
        held = forests(similarity, k, n_draws, relation, seed=trial)
        gaps = np.array([a[0] - b[0] for a, b in zip(free, held, strict=True)])
        assert int(report.n_clusters) == k
        assert abs(float(report.agreement) - np.mean([agrees(t, relation) for _, _, t in free])) <= FLOAT32
        assert float(report.standard_error) == pytest.approx(gaps.std(ddof=1) / math.sqrt(n_draws), rel=1e-9)
        assert float(report.stuck) == 0.0
        agreements.append(float(report.agreement))
    assert max(agreements) > 0
    assert min(agreements) < 1


@pytest.mark.parametrize("framework", CONVERT)
def test_a_stuck_greedy_is_reported_by_the_loss_and_refused_by_the_operators(framework):
    """The crown graph is bipartite, so two clusters exist, but joining its three pairs first leaves three trees."""
    known = dc.Constraints.from_pairs(6, cannot_link=[(0, 3), (1, 3), (1, 4), (2, 4), (0, 5), (2, 5)])
    similarity = np.full((6, 6), -1.0)
    for i, j in ((0, 4), (1, 5), (2, 3)):
        similarity[i, j] = similarity[j, i] = 1.0
    assert known.min_clusters == 2
    array = CONVERT[framework](similarity)
    loss, report = dc.partial_fenchel_young_loss(array, known, 2, epsilon=1e-3, n_draws=4, seed=0, diagnostics=True)
    assert float(report.stuck) == 1.0
    assert np.isfinite(float(loss))
    assert float(loss) >= 0
    for operator in (dc.perturbed_value, dc.perturbed_adjacency, dc.perturbed_connectivity):
        with pytest.raises(ValueError, match="cannot be reached"):
            operator(array, 2, constraints=known, epsilon=1e-3, n_draws=4, seed=0)


@pytest.mark.parametrize("framework", CONVERT)
def test_diagnostics_of_a_batch_have_one_entry_per_problem(framework):
    rng = np.random.default_rng(10)
    similarity = np.stack([random_similarity(rng, 5) for _ in range(4)]).reshape(2, 2, 5, 5)
    known = dc.Constraints.from_labels([0, 1, -1, -1, 0])
    convert = CONVERT[framework]
    options = {"n_draws": 7, "seed": 0, "diagnostics": True}
    _, report = dc.partial_fenchel_young_loss(convert(similarity), known, 2, **options)
    assert [tuple(field.shape) for field in report] == [(2, 2)] * 4
    for index in np.ndindex(2, 2):
        _, alone = dc.partial_fenchel_young_loss(convert(similarity[index]), known, 2, **options)
        for field, own in zip(report, alone, strict=True):
            assert float(field[index]) == float(own)


def test_diagnostics_with_one_draw():
    s = torch.from_numpy(random_similarity(np.random.default_rng(0), 5))
    _, report = dc.partial_fenchel_young_loss(
        s, dc.Constraints.from_labels([0, 1, -1, -1, 0]), 2, n_draws=1, seed=0, diagnostics=True
    )
    assert float(report.standard_error) == 0.0  # nothing to estimate it from, but no NaN that would spoil a log


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["partial_fenchel_young_loss", "connectivity_loss", "fenchel_young_loss"])
def test_numpy_and_torch_losses_are_equal(name, dtype):
    rng = np.random.default_rng(11)
    for trial in range(10):
        similarity = random_similarity(rng, 9, dtype=dtype)
        target = dc.Constraints.from_labels(np.append(random_labels(rng, 7), [0, 0]))
        if name == "fenchel_young_loss":
            target = dc.spanning_forest(random_similarity(rng, 9), 3).adjacency().astype(dtype)
        a = getattr(dc, name)(similarity, target, 3, n_draws=33, seed=trial)
        other = torch.from_numpy(target) if name == "fenchel_young_loss" else target
        b = getattr(dc, name)(torch.from_numpy(similarity), other, 3, n_draws=33, seed=trial)
        scale = abs(float(dc.perturbed_value(similarity, 3, n_draws=33, seed=trial))) + np.abs(similarity).sum()
        # Sums in different orders: the rounding of 33 draws' values and of n^2 products.
        assert abs(float(a) - float(b)) <= 81 * np.finfo(dtype).eps * scale
        assert str(b.dtype) == f"torch.{a.dtype}"


# ----------------------------------------------------------------------------------------------------------------
# Fenchel-Young loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fenchel_young_gradient_is_soft_adjacency_minus_target(dtype):
    rng = np.random.default_rng(12)
    s = torch.from_numpy(random_similarity(rng, 7)).to(dtype).requires_grad_()
    y = torch.from_numpy(dc.spanning_forest(random_similarity(rng, 7), 3).adjacency()).to(dtype)
    options = {"epsilon": EPSILON, "n_draws": 11, "seed": SEED}
    loss = dc.fenchel_young_loss(s, y, 3, **options)
    (gradient,) = torch.autograd.grad(loss, s)
    assert torch.equal(gradient, dc.perturbed_adjacency(s, 3, **options) - y)
    truth = dc.perturbed_value(s, 3, **options) - (s * y).sum()
    assert abs(loss - truth) <= 49 * torch.finfo(dtype).eps * (s.abs().sum())


def test_fenchel_young_value_and_gradient_by_finite_differences():
    rng = np.random.default_rng(13)
    s = torch.from_numpy(np.stack([random_similarity(rng, 5) for _ in range(2)])).requires_grad_()
    y = torch.from_numpy(np.stack([dc.spanning_forest(random_similarity(rng, 5), 2).adjacency() for _ in range(2)]))
    assert torch.autograd.gradcheck(lambda t: dc.fenchel_young_loss(t, y, 2, n_draws=6, seed=1, reduction="none"), (s,))


def test_fenchel_young_loss_is_least_at_its_own_forest_and_training_reaches_it():
    rng = np.random.default_rng(14)
    y = torch.from_numpy(dc.spanning_forest(random_similarity(rng, 6), 2).adjacency())
    s = torch.zeros(6, 6, dtype=torch.float64, requires_grad=True)
    for step in range(60):
        (gradient,) = torch.autograd.grad(dc.fenchel_young_loss(s, y, 2, seed=3, n_draws=50, first_draw=50 * step), s)
        s = (s - 0.1 * gradient).detach().requires_grad_()
    assert torch.equal(dc.perturbed_adjacency(s, 2, epsilon=1e-9, n_draws=1, seed=0), y)


def test_fenchel_young_with_missing_edges_has_no_nan():
    s = torch.tensor([[0.0, 1.0, -torch.inf], [1.0, 0.0, 0.5], [-torch.inf, 0.5, 0.0]], requires_grad=True)
    y = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    loss = dc.fenchel_young_loss(s, y, 2, seed=0, n_draws=4)
    loss.backward()
    assert loss.isfinite()
    assert s.grad.isfinite().all()


@pytest.mark.parametrize("framework", CONVERT)
def test_fenchel_young_refuses_a_target_of_another_shape(framework):
    convert = CONVERT[framework]
    s = convert(random_similarity(np.random.default_rng(0), 4))
    with pytest.raises(ValueError, match=r"adjacency must have the shape of the similarity, \(4, 4\), got \(3, 3\)"):
        dc.fenchel_young_loss(s, convert(np.zeros((3, 3))), 2)


# ----------------------------------------------------------------------------------------------------------------
# Connectivity loss


@pytest.mark.parametrize("framework", CONVERT)
@pytest.mark.parametrize("kind", ["labels", "pairs"])
def test_connectivity_loss_is_its_formula(framework, kind):
    rng = np.random.default_rng(15)
    similarity = random_similarity(rng, 8)
    known = general_pairs(8) if kind == "pairs" else dc.Constraints.from_labels([0, 0, 1, -1, 2, -1, 1, -1])
    soft = np.mean([np.equal.outer(t, t) for _, _, t in forests(similarity, 4, 12)], axis=0)
    matrix = known.matrix()
    truth = math.fsum((soft[i, j] - matrix[i, j]) ** 2 for i, j in np.argwhere(~np.isnan(matrix)))
    loss = dc.connectivity_loss(CONVERT[framework](similarity), known, 4, epsilon=EPSILON, n_draws=12, seed=SEED)
    assert truth > 0
    assert abs(float(loss) - truth) <= 64 * np.finfo(np.float64).eps * truth


def test_connectivity_loss_gradient_is_the_vjp_of_the_soft_connectivity():
    rng = np.random.default_rng(16)
    s = torch.from_numpy(random_similarity(rng, 7)).requires_grad_()
    known = dc.Constraints.from_labels([0, 0, 1, -1, 2, -1, 1])
    options = {"epsilon": EPSILON, "n_draws": 12, "seed": SEED}
    (gradient,) = torch.autograd.grad(dc.connectivity_loss(s, known, 3, **options), s)
    m = dc.perturbed_connectivity(s, 3, **options)
    cotangent = 2 * torch.nan_to_num(m.detach() - torch.from_numpy(known.matrix()), nan=0.0)
    (by_hand,) = torch.autograd.grad(m, s, cotangent)
    assert gradient.abs().sum() > 0
    torch.testing.assert_close(gradient, by_hand, rtol=1e-12, atol=1e-14)


def test_connectivity_loss_trains():
    torch.manual_seed(0)
    labels = torch.tensor([0, 0, 1, 1, 2, 2, -1, -1])
    x = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([x], lr=0.03)
    known = dc.Constraints.from_labels(labels)

    def loss(step):
        s = dc.standardize(dc.negative_squared_distances(x))
        return dc.connectivity_loss(s, known, 3, epsilon=EPSILON, n_draws=100, seed=1, first_draw=100 * step)

    start = loss(0).item()
    for step in range(150):
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()
    assert start > 1
    assert loss(1000).item() < 0.2 * start


def test_a_forest_may_be_of_numpy_beside_a_tensor():
    similarity = -np.abs(np.subtract.outer(np.arange(6.0), np.arange(6.0)))
    forest = dc.spanning_forest(similarity, 2).adjacency()
    tensor = torch.tensor(similarity, requires_grad=True)
    expected = dc.fenchel_young_loss(similarity, forest, 2, seed=0)
    for target in (forest, forest.tolist(), torch.from_numpy(forest)):
        loss = dc.fenchel_young_loss(tensor, target, 2, seed=0)
        assert loss.item() == pytest.approx(expected)
        (gradient,) = torch.autograd.grad(loss, tensor)
        np.testing.assert_allclose(
            gradient, dc.perturbed_adjacency(similarity, 2, epsilon=0.5, n_draws=10, seed=0) - forest
        )
