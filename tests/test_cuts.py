"""Cuts beside the forest, and the choice between cuts by hiding labels."""

import itertools

import numpy as np
import pytest

import diffclust as dc
from diffclust import Knowledge, cuts
from diffclust.evidence import Evidence, gather_evidence, neighbour_shares
from diffclust.partition import CUTS, partition


def blobs(seed, n_classes=4, size=30, spread=0.3, dim=3):
    rng = np.random.default_rng(seed)
    centres = 8 * rng.permutation(np.stack(np.meshgrid(*[[0, 1]] * dim), -1).reshape(-1, dim))[:n_classes]
    truth = np.repeat(np.arange(n_classes), size)
    return centres[truth] + spread * rng.normal(size=(len(truth), dim)), truth


def random_pairs(rng, truth, n_pairs):
    i, j = rng.integers(0, len(truth), (2, n_pairs))
    i, j = i[i != j], j[i != j]
    same = truth[i] == truth[j]
    return np.stack([i[same], j[same]], 1), np.stack([i[~same], j[~same]], 1)


def satisfies(clusters, must, cannot):
    together = (clusters[must[:, 0]] == clusters[must[:, 1]]).all()
    return together and (clusters[cannot[:, 0]] != clusters[cannot[:, 1]]).all()


@pytest.mark.parametrize("cut", [cuts.kmeans, cuts.spectral])
def test_separate_blobs_are_found_and_labels_kept(cut):
    for seed in range(5):
        x, truth = blobs(seed)
        known = np.where((np.arange(len(x)) % 10 == 0) & (truth < 2), truth, -1)
        found = cut(x, Knowledge.join(known), 4)
        assert dc.metrics.clustering_scores(truth, found)["ari"] == 1
        known[1] = 1  # a label that contradicts the geometry stays
        kept = cut(x, Knowledge.join(known), 4)
        assert len(set(kept[known == 0])) == len(set(kept[known == 1])) == 1
        assert np.array_equal(np.unique(found, return_index=True)[1], np.sort(np.unique(found, return_index=True)[1]))


def test_kmeans_without_knowledge_is_that_of_scikit_learn():
    from sklearn.cluster import KMeans

    x, _ = blobs(3, spread=2.0)
    ours = cuts.kmeans(x, Knowledge.join(np.full(len(x), -1)), 5)
    centres = np.stack([x[ours == c].mean(0) for c in range(5)])
    theirs = KMeans(5, n_init=10, random_state=0).fit(x)
    assert ((x - centres[ours]) ** 2).sum() <= 1.02 * theirs.inertia_


@pytest.mark.slow
def test_pairs_of_a_truth_are_satisfied_with_the_true_number_of_clusters():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        k = int(rng.integers(2, 9))
        truth = rng.integers(0, k, int(rng.integers(40, 300)))
        x = rng.normal(size=(len(truth), 4)) + np.eye(8, 4)[truth]
        must, cannot = random_pairs(rng, truth, int(rng.integers(10, 1000)))
        known = Knowledge.join(np.full(len(x), -1), must, cannot)
        for found in (cuts.kmeans(x, known, k), partition(x, known, k).clusters):
            assert satisfies(found, must, cannot)
            assert found.max() + 1 == k


@pytest.mark.slow
def test_colourings_are_as_cheap_as_exhaustive_search_says():
    excess = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n, k = int(rng.integers(2, 7)), int(rng.integers(2, 4))
        apart = np.triu(rng.random((n, n)) < 0.4, 1)
        apart |= apart.T
        cost = rng.random((n, k))
        feasible = [
            sum(cost[np.arange(n), c]) for c in itertools.product(range(k), repeat=n)
            if not (apart & (np.array(c)[:, None] == np.array(c))).any()
        ]  # fmt: skip
        if not feasible:
            with pytest.raises(ValueError, match="no way was found"):
                cuts.colour_groups(cost, apart, rng)
            continue
        found = cuts.colour_groups(cost, apart, rng)
        assert not (apart & (found[:, None] == found)).any()
        excess.append(cost[np.arange(n), found].sum() - min(feasible))
    assert min(excess) >= -1e-12
    assert np.mean(np.array(excess) < 1e-12) > 0.8  # a local optimum, most often the best


@pytest.mark.parametrize("cut", ["k-means", "spectral", "robust forest"])
def test_the_tree_of_a_partition_has_its_clusters(cut):
    x, truth = blobs(0, spread=1.5)
    known = np.where((np.arange(len(x)) % 10 == 0) & (truth < 3), truth, -1)
    found = partition(x, Knowledge.join(known), 5, cut=cut)
    assert np.array_equal(found.hierarchy.labels(5, found.min_cluster_size), found.clusters)
    assert (np.diff(found.hierarchy.weights[found.hierarchy.n_fixed :]) <= 0).all()
    assert len(set(found.hierarchy.labels(6))) == 6


def test_hidden_labels_choose_the_cut_that_finds_them():
    """Classes are long stripes next to each other: of the cuts only forests and spectral clustering follow them."""
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), 300)
    x = np.stack([rng.uniform(0, 30, 1200), 2 * truth + 0.1 * rng.random(1200)], 1)
    known = Knowledge.join(np.where(np.arange(1200) % 30 == 0, truth, -1))
    calls = []

    def retrain(rest):
        calls.append(rest)
        return x

    found = gather_evidence(retrain, known, 5, CUTS)
    assert len(calls) == 2
    assert all((rest.labels >= 0).sum() < 40 and len(set(rest.labels)) < 5 for rest in calls)  # whole classes hidden
    assert found.cut != "k-means"
    assert max(found.scores.values()) <= found.scores[found.cut] + 0.02
    assert found.scores["k-means"] < found.scores[found.cut] - 0.2
    assert found.new_classes == found.scores[found.cut]
    all_labelled = gather_evidence(retrain, known, 4, CUTS)
    assert all_labelled.new_classes is None
    assert all(set(rest.labels) == {-1, 0, 1, 2, 3} for rest in calls[2:])  # no class as a whole


def test_the_number_of_clusters_comes_from_hidden_classes():
    x, truth = blobs(1, n_classes=6, spread=0.1)
    known = Knowledge.join(np.where((np.arange(len(x)) % 5 == 0) & (truth < 4), truth, -1))
    found = partition(x, known, None, cut="auto", retrain=lambda rest: x)
    low, high = found.evidence.interval
    assert low <= 6 <= high
    assert low <= found.n_clusters <= high
    assert list(found.evidence.candidates) == list(range(4, 13))


@pytest.mark.parametrize("labels", [[0, 1, 2] * 4 + [-1] * 20, [0] * 10 + [1] * 10 + [-1] * 12])
def test_few_labels_and_two_classes_hide_nothing(labels):
    def never(rest):
        raise AssertionError

    assert gather_evidence(never, Knowledge.join(labels), 3, CUTS) == Evidence()


def test_probabilities_are_calibrated_on_hidden_labels():
    """Half of the rows of two overlapping classes are in the wrong one: neighbours agree more than they should."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 600)
    looks = np.where(rng.random(600) < 0.3, rng.integers(0, 4, 600), truth)
    x = 10.0 * np.eye(4)[looks] + 0.1 * rng.normal(size=(600, 4))
    known = Knowledge.join(np.where(rng.random(600) < 0.3, truth, -1))
    found = partition(x, known, 4, cut="auto", retrain=lambda rest: x)
    shown = found.probabilities()
    np.testing.assert_allclose(shown.sum(1), 1)
    new = known.labels < 0
    own = shown[np.arange(600), found.clusters]
    right = found.classes[found.clusters] == truth
    assert (own[~new] == 1).all()
    assert abs(own[new].mean() - right[new].mean()) < 0.06
    assert neighbour_shares(x, found.clusters)[np.arange(600), found.clusters][new].mean() > own[new].mean() + 0.05
    assert (found.novelty() == 0).all()  # there is no new cluster
