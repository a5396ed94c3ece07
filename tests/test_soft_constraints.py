"""Weighted pairs and labels in solves and losses: against brute force over all forests, on every framework."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import diffclust as dc
from diffclust import Constraints
from oracles import components, random_similarity

INF = np.inf
CONVERT = {"numpy": np.asarray, "torch": torch.from_numpy, "jax": jnp.asarray}
FRAMEWORKS = pytest.mark.parametrize("framework", CONVERT)


def all_forests(n, k):
    """Edge lists of all forests of n points with k trees."""
    pairs = list(itertools.combinations(range(n), 2))
    for edges in itertools.combinations(pairs, n - k):
        if len(set(components(n, edges))) == k:
            yield edges


def best_value(similarity, k, keeps=lambda trees: True):
    """The largest ⟨A, similarity⟩ over forests whose trees are allowed."""
    n = len(similarity)
    return max(
        2 * sum(similarity[i, j] for i, j in edges) for edges in all_forests(n, k) if keeps(components(n, edges))
    )


def soft_term(n, must=(), cannot=()):
    """W of pairs (i, j, weight) without hard groups."""
    term = np.zeros((n, n))
    for sign, pairs in ((1, must), (-1, cannot)):
        for i, j, weight in pairs:
            term[i, j] += sign * weight
            term[j, i] += sign * weight
    return term


def weighted(n, must=(), cannot=()):
    return Constraints.from_pairs(
        n,
        [pair[:2] for pair in must],
        [pair[:2] for pair in cannot],
        must_weights=[pair[2] for pair in must],
        cannot_weights=[pair[2] for pair in cannot],
    )


MUST, CANNOT = [(0, 3, 1.5), (1, 2, 0.25), (0, 3, 0.5)], [(0, 1, 2.0), (2, 4, 0.75), (1, 2, 1.0)]


@FRAMEWORKS
@pytest.mark.parametrize("kind", ["random", "tied"])
@pytest.mark.parametrize("k", [1, 3])
def test_the_forest_under_soft_pairs_is_the_best_of_similarity_and_term_together(framework, kind, k):
    similarity = random_similarity(np.random.default_rng(3), 5, kind)
    np.fill_diagonal(similarity, 0.0)
    found = dc.spanning_forest(CONVERT[framework](similarity), k, constraints=weighted(5, MUST, CANNOT))
    best = best_value(similarity + soft_term(5, MUST, CANNOT), k)
    assert float(found.value) == pytest.approx(best, rel=1e-6)


@FRAMEWORKS
def test_the_loss_is_the_gap_of_both_best_forests_and_the_constant(framework):
    similarity, n, k = random_similarity(np.random.default_rng(4), 5), 5, 2
    term = soft_term(n, MUST, CANNOT)
    gaps = []
    for z in dc.noise.sample(7, 6, n):
        drawn = similarity + np.float32(0.5) * z
        gaps.append(best_value(drawn, k) - best_value(drawn + term, k))
    wanted = np.mean(gaps) + best_value(term, k)
    found = dc.partial_fenchel_young_loss(
        CONVERT[framework](similarity), weighted(n, MUST, CANNOT), k, epsilon=0.5, n_draws=6, seed=7
    )
    assert float(found) == pytest.approx(wanted, rel=1e-5)
    assert wanted >= 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("must_link_first", [False, True])
def test_the_loss_is_at_least_zero(seed, must_link_first):
    rng = np.random.default_rng(seed)
    n = 7
    similarity = random_similarity(rng, n, ["random", "tied", "duplicated"][seed % 3])
    pairs = [(int(i), int(j), float(rng.uniform(0, 3))) for i, j in rng.integers(0, n, (8, 2)) if i != j]
    known = weighted(n, [(0, 1, INF), *pairs[::2]], [(0, 2, INF), *pairs[1::2]])
    options = {"n_draws": 3, "seed": seed, "must_link_first": must_link_first}
    assert dc.partial_fenchel_young_loss(similarity, known, int(rng.integers(2, 5)), **options) >= -1e-9


@pytest.mark.slow
def test_gradients_are_free_less_soft_forests_and_agree_with_finite_differences():
    rng = np.random.default_rng(5)
    n, known = 6, weighted(6, [(0, 1, INF), (2, 3, 1.0)], [(1, 2, 0.7), (4, 5, INF)])
    similarity = random_similarity(rng, n)
    np.fill_diagonal(similarity, 0.0)
    options = {"epsilon": 0.4, "n_draws": 4, "seed": 11}

    def loss(matrix):
        return dc.partial_fenchel_young_loss(matrix, known, 2, **options)

    tensor = torch.tensor(similarity, requires_grad=True)
    loss(tensor).backward()
    free = dc.perturbed_adjacency(similarity, 2, **options)
    soft = dc.perturbed_adjacency(similarity, 2, constraints=known, must_link_first=False, **options)
    np.testing.assert_allclose(tensor.grad.numpy(), free - soft, atol=1e-7)
    np.testing.assert_allclose(np.asarray(jax.grad(loss)(jnp.asarray(similarity))), free - soft, atol=1e-6)
    step = 1e-6  # no draw's forest changes
    for i, j in itertools.combinations(range(n), 2):
        moved = similarity.copy()
        moved[i, j] = moved[j, i] = similarity[i, j] + step
        slope = (loss(moved) - loss(similarity)) / step
        assert slope == pytest.approx(2 * tensor.grad[i, j].item(), abs=1e-4)


@FRAMEWORKS
def test_infinite_weights_are_hard_bit_for_bit(framework):
    similarity = CONVERT[framework](random_similarity(np.random.default_rng(6), 6))
    pairs = [(0, 1), (2, 3)], [(1, 2)]
    hard = Constraints.from_pairs(6, *pairs)
    for weights in ({"must_weights": INF}, {"must_weights": [INF, INF], "cannot_weights": INF}):
        known = Constraints.from_pairs(6, *pairs, **weights)
        assert known.soft is None
        np.testing.assert_array_equal(known.matrix(), hard.matrix())
        losses = [dc.partial_fenchel_young_loss(similarity, each, 2, seed=1) for each in (known, hard)]
        assert float(losses[0]) == float(losses[1])


def test_large_weights_of_a_consistent_set_give_the_forest_of_hard_pairs():
    similarity = random_similarity(np.random.default_rng(8), 6)
    hard = dc.spanning_forest(similarity, 2, constraints=Constraints.from_pairs(6, [(0, 1), (2, 3)]))
    soft = dc.spanning_forest(similarity, 2, constraints=Constraints.from_pairs(6, [(0, 1), (2, 3)], must_weights=1e6))
    np.testing.assert_array_equal(hard.labels, soft.labels)


def test_a_soft_pair_counts_for_all_points_that_hard_pairs_tie_to_it():
    known = weighted(5, [(0, 1, INF), (2, 3, INF)], [(1, 2, 2.0), (0, 3, 0.5)])
    assert known.soft.tolist() == soft_term(5, (), [(i, j, 2.5) for i in (0, 1) for j in (2, 3)]).tolist()
    decided = weighted(3, [(0, 1, INF), (0, 2, 3.0)], [(0, 1, 5.0), (1, 2, INF)])
    assert not decided.soft.any()


@FRAMEWORKS
def test_soft_labels_have_the_smaller_weight_of_both(framework):
    labels, weights = np.array([4, 4, 9, -1, 4]), np.array([INF, 1.0, 2.0, 5.0, INF])
    known = Constraints.from_labels(CONVERT[framework](labels), CONVERT[framework](weights))
    wanted = soft_term(5, [(0, 1, 1.0), (1, 4, 1.0)], [(0, 2, 2.0), (1, 2, 1.0), (2, 4, 2.0)])
    np.testing.assert_array_equal(np.asarray(known.soft), wanted)
    assert np.asarray(known.labels).tolist() == [4, -1, -1, -1, 4]
    similarity = CONVERT[framework](random_similarity(np.random.default_rng(9), 5))
    assert float(dc.partial_fenchel_young_loss(similarity, known, 2, seed=0)) >= 0


def test_one_soft_set_serves_a_batch_and_diagnostics_and_points_can_be_taken_out():
    similarity = np.stack([random_similarity(np.random.default_rng(s), 5) for s in range(3)])
    known = weighted(5, MUST, CANNOT)
    options = {"seed": 2, "reduction": "none"}
    losses, seen = dc.partial_fenchel_young_loss(similarity, known, 2, diagnostics=True, **options)
    for matrix, loss, error in zip(similarity, losses, seen.standard_error, strict=True):
        assert loss == dc.partial_fenchel_young_loss(matrix, known, 2, **options)
        assert error >= 0
    np.testing.assert_array_equal(known.restrict([1, 2]).soft, known.soft[1:3, 1:3])


@FRAMEWORKS
def test_weights_of_labels_may_be_a_number_or_of_numpy(framework):
    labels = CONVERT[framework](np.array([4, 4, 9, -1]))
    expected = Constraints.from_labels(np.array([4, 4, 9, -1]), np.full(4, 1.5)).soft
    for weights in (1.5, [1.5] * 4, np.full(4, 1.5), CONVERT[framework](np.full(4, 1.5))):
        np.testing.assert_array_equal(np.asarray(Constraints.from_labels(labels, weights).soft), expected)
    with pytest.raises(ValueError, match=r"one number or have shape \(4,\), got shape \(2,\)"):
        Constraints.from_labels(labels, [1.0, 2.0])


def test_noise_that_grows_scales_weights_as_similarities():
    embeddings = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    known = weighted(8, [(0, 1, 1.0)], [(2, 3, 2.0)])
    module = dc.nn.PartialFenchelYoungLoss(2, epsilon=0.4, seed=3)
    module.noise_scale = torch.tensor(0.5, dtype=torch.float64)
    plain = dc.nn.PartialFenchelYoungLoss(2, epsilon=0.2, seed=3)
    assert float(module(embeddings, known)) == pytest.approx(float(plain(embeddings, known)), rel=1e-5)


def test_losses_without_weights_are_those_of_before():
    """Values of the version before there were weights."""
    similarity = random_similarity(np.random.default_rng(12), 9)
    labels = Constraints.from_labels([0, 0, 1, 1, -1, -1, -1, 2, -1])
    pairs = Constraints.from_pairs(9, [(0, 1)], [(1, 2), (3, 4)])
    assert labels.soft is None
    assert pairs.soft is None
    found = [dc.partial_fenchel_young_loss(similarity, known, 3, seed=5) for known in (labels, pairs)]
    assert found == BEFORE


BEFORE = [3.031168771413557, 0.786563589484311]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Constraints.from_pairs(3, [(0, 1)], must_weights=-1.0), "must_weights must be from 0 to inf, got -1"),
        (lambda: Constraints.from_pairs(3, [(0, 1)], must_weights=[1.0, 2.0]), "one number or have shape"),
        (lambda: Constraints.from_labels([0, 1], [1.0, np.nan]), "weights must be from 0 to inf"),
        (lambda: Constraints.from_pairs(3, [(0, 1)], [(0, 1)], cannot_weights=INF), "Contradictory constraints"),
    ],
)
def test_wrong_weights_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_what_takes_no_weights_says_so():
    known = weighted(4, [(0, 1, 1.0)])
    similarity = random_similarity(np.random.default_rng(0), 4)
    free = dc.Hierarchy.from_similarity(similarity)
    for call in (
        lambda: dc.connectivity_loss(similarity, known, 2),
        lambda: free.constrained(known),
        lambda: dc.Hierarchy.from_edges([(0, 1)], [1.0], 4, known),
    ):
        with pytest.raises(ValueError, match="takes hard constraints only"):
            call()
    with pytest.raises(ValueError, match="give log-odds"):
        dc.Knowledge.from_constraints(known, 4)
    soft = dc.Hierarchy.from_similarity(similarity, known)
    assert soft.weights.sum() == pytest.approx(dc.spanning_forest(similarity, 1, constraints=known).value / 2)
