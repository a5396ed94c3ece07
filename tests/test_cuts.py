"""Cuts beside the forest, and the choice between cuts by hiding labels."""

import itertools
import warnings

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import diffclust as dc
from diffclust import Knowledge, colouring, cuts
from diffclust.all_cuts import CUTS, INPUT_CUTS, LATENT_CLASSES, NEW_ROWS
from diffclust.confidence import neighbour_shares, witnesses
from diffclust.evidence import VOTE, choose_cut, hide_labels
from diffclust.partition import partition


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


@pytest.mark.parametrize("cut", [cuts.kmeans, cuts.gaussian, cuts.spectral])
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


def test_equal_rows_are_cut_without_warnings_of_numpy():
    x = np.repeat([[0.0], [10.0], [50.0], [90.0]], 9, axis=0)
    assert cuts.spectral(x, Knowledge.join(np.full(36, -1)), 4).tolist() == np.repeat(np.arange(4), 9).tolist()


@pytest.mark.parametrize("n_rows", [1, 5])
def test_equal_rows_have_components_without_warnings(n_rows):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = cuts.leading_components(np.full((n_rows, 9), 0.1), 3)
    np.testing.assert_allclose(found, 0, atol=1e-12)


def test_kmeans_without_knowledge_is_that_of_scikit_learn():
    from sklearn.cluster import KMeans

    x, _ = blobs(3, spread=2.0)
    ours = cuts.kmeans(x, Knowledge.join(np.full(len(x), -1)), 5)
    centres = np.stack([x[ours == c].mean(0) for c in range(5)])
    theirs = KMeans(5, n_init=10, random_state=0).fit(x)
    assert ((x - centres[ours]) ** 2).sum() <= 1.02 * theirs.inertia_


@pytest.mark.slow
@pytest.mark.parametrize("cut", [cuts.kmeans, cuts.spectral])
def test_many_clusters_are_found_with_labels_of_a_few(cut):
    """Labelled rows at the rim of their cluster are poor centres to start from."""
    x, truth = blobs(3, n_classes=32, size=20, dim=5)
    known = np.full(len(x), -1)
    for label in range(8):
        rows = np.flatnonzero(truth == label)
        known[rows[np.argsort(x[rows, 0])[-2:]]] = label
    found = cut(x, Knowledge.join(known), 32)
    assert adjusted_rand_score(truth, found) > 0.95
    for label in range(8):
        assert len(np.unique(found[known == label])) == 1


def test_smoothing_is_the_mean_over_neighbours_twice():
    x = np.array([[0.0], [1.0], [10.0], [11.0]])
    expected = x
    nearest = np.array([[1], [0], [3], [2]])
    for _ in range(2):
        expected = np.stack([expected[[row, nearest[row, 0]]].mean(0) for row in range(4)])
    np.testing.assert_allclose(cuts._smoothed(x, nearest), expected)


def test_starts_agree_about_many_clusters_better_than_one_of_them():
    x, truth = blobs(5, n_classes=40, size=30, spread=1.5, dim=6)
    known = np.where(np.arange(len(x)) % 10 == 0, np.where(truth < 10, truth, -1), -1)
    found = cuts.spectral(x, Knowledge.join(known), 40)
    alone = [cuts.kmeans(x, Knowledge.join(known), 40, seed, free_restarts=1) for seed in range(cuts.MEMBERS)]
    assert adjusted_rand_score(truth, found) > np.mean([adjusted_rand_score(truth, each) for each in alone])


@pytest.mark.slow
def test_pairs_of_a_truth_are_satisfied_with_the_true_number_of_clusters():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        k = int(rng.integers(2, 9))
        truth = rng.integers(0, k, int(rng.integers(20, 150)))
        x = rng.normal(size=(len(truth), 4)) + np.eye(8, 4)[truth]
        must, cannot = random_pairs(rng, truth, int(rng.integers(5, 500)))
        known = Knowledge.join(np.full(len(x), -1), must, cannot)
        for found in (cuts.kmeans(x, known, k), partition(x, known, k).clusters):
            assert satisfies(found, must, cannot)
            assert found.max() + 1 == k


def test_a_mixture_finds_what_k_means_cannot():
    """A wide class around a narrow one: each row is nearer to the middle of the other half."""
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1], 2000)
    x = rng.normal(size=(4000, 2)) * np.where(truth == 0, 0.2, 4.0)[:, None] + np.where(truth == 0, 3.0, 0.0)[:, None]
    known = Knowledge.join(np.where(np.arange(4000) % 60 == 0, truth, -1))
    wide, narrow = (
        dc.metrics.clustering_scores(truth, cut(x, known, 2))["ari"] for cut in (cuts.gaussian, cuts.kmeans)
    )
    assert wide > 0.9 > narrow + 0.2


def test_a_mixture_that_starts_at_the_forest_leaves_a_large_cluster_whole():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), [900, 120, 120, 120])
    x = rng.normal(size=(1260, 2)) * np.where(truth == 0, 2.5, 0.5)[:, None]
    x += np.array([[0, 0], [15, 0], [15, 5], [15, -5]])[truth]
    known = Knowledge.join(np.where(np.arange(1260) % 899 == 0, truth, -1))
    at_forest, at_kmeans = (
        dc.metrics.clustering_scores(truth, cut(x, known, 4))["ari"] for cut in (CUTS["gaussian"], cuts.gaussian)
    )
    assert at_forest > 0.95 > at_kmeans + 0.2


def survey(seed, n_classes=4, n_columns=12, n_values=4, size=60, noise=0.4):
    """Categories with integer codes: each class has a usual value in each column. Codes that are near mean nothing."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(n_classes), size)
    usual = rng.integers(n_values, size=(n_classes, n_columns))[truth]
    return np.where(rng.random(usual.shape) < noise, rng.integers(n_values, size=usual.shape), usual), truth


def test_chances_of_values_are_smoothed_frequencies():
    rows = np.array([[3, 7], [3, 7], [3, 9], [5, 9], [5, 8]])
    share = np.eye(2)[[0, 0, 0, 1, 1]]
    found = np.exp(cuts.log_chances(cuts.indicators(np.repeat(rows, 2, axis=0)), np.repeat(share, 2, axis=0)))
    for row, cluster in itertools.product(range(5), range(2)):
        inside = rows[share[:, cluster] > 0]
        expected = (2 * len(inside) + 1) / (10 + 2)
        for column in range(2):
            inside_equal, equal = (2 * (each[:, column] == rows[row, column]).sum() for each in (inside, rows))
            expected *= (inside_equal + 2 * equal / 10) / (2 * len(inside) + 2)
        np.testing.assert_allclose(found[2 * row, cluster], expected, rtol=1e-12)


def test_latent_classes_find_categories_whose_codes_mean_nothing():
    ours, by_codes, recoded = [], [], []
    for seed in range(5):
        x, truth = survey(seed)
        labels = np.where((np.arange(len(x)) % 20 == 0) & (truth < 2), truth, -1)
        known, rng = Knowledge.join(labels), np.random.default_rng(seed)
        found = cuts.latent_classes(cuts.indicators(x), known, 4)
        assert all(len(set(found[labels == label])) == 1 for label in (0, 1))
        again = cuts.latent_classes(cuts.indicators(rng.permutation(9)[x]), known, 4)
        ours.append(adjusted_rand_score(truth, found))
        by_codes.append(adjusted_rand_score(truth, cuts.kmeans(x, known, 4)))
        recoded.append(adjusted_rand_score(found, again))
    assert np.mean(ours) > 0.85 > np.mean(by_codes) + 0.15
    assert np.mean(recoded) > 0.95


def test_latent_classes_take_the_likelier_start():
    x, truth = survey(0)
    values, known = cuts.indicators(x), Knowledge.join(np.full(len(x), -1))
    bad = np.arange(len(x)) % 4
    starts = [cuts.kmeans(values, known, 4), bad]
    fitted = [
        cuts._fit_mixture(lambda share: cuts.log_chances(values, share), known, 4, start, 0)[1] for start in starts
    ]
    assert fitted[0] != fitted[1]
    likelier = cuts.latent_classes(values, known, 4, start=starts[int(fitted[1] > fitted[0])])
    assert np.array_equal(cuts.latent_classes(values, known, 4, start=bad), likelier)
    assert adjusted_rand_score(truth, likelier) > 0.8


@pytest.mark.parametrize(
    ("rows", "n_values"),
    [
        (np.random.default_rng(0).normal(size=(200, 6)), None),
        (np.random.default_rng(0).integers(cuts.MOST_VALUES + 1, size=(200, 6)), None),
        (np.random.default_rng(0).normal(size=(8, 6)), None),  # few rows have few values of anything
        (np.zeros((200, 6)), None),
        (survey(0)[0], 48),
        (np.column_stack([survey(0)[0], np.arange(240)]), 48),  # one of 13 columns is left out
        (np.column_stack([survey(0)[0], np.arange(240), np.arange(240)]), None),
    ],
)
def test_columns_are_categories_where_nearly_all_have_few_values(rows, n_values):
    found = cuts.indicators(rows)
    assert (None if found is None else found.shape[1]) == n_values


def test_latent_classes_are_compared_only_where_columns_are_categories():
    x, truth = survey(1)
    known = Knowledge.join(np.where((np.arange(len(x)) % 10 == 0) & (truth < 3), truth, -1))
    found = partition(x, known, 4, cut="auto", rows=x, retrain=lambda rest: x).evidence
    assert found.cut == LATENT_CLASSES == max(found.scores, key=found.scores.get)
    numbers = x + np.random.default_rng(0).random(x.shape) / 9
    assert LATENT_CLASSES not in partition(numbers, known, 4, cut="auto", rows=numbers).evidence.agreement
    many = partition(x, None, cuts.MANY_CLUSTERS + 1, cut="auto", rows=x).evidence
    assert LATENT_CLASSES not in many.agreement


def test_latent_classes_keep_pairs_apart():
    for seed in range(10):
        x, truth = survey(seed, size=20, noise=0.8)
        must, cannot = random_pairs(np.random.default_rng(seed), truth, 60)
        found = cuts.latent_classes(cuts.indicators(x), Knowledge.join(np.full(80, -1), must, cannot), 4)
        assert satisfies(found, must, cannot)
        assert found.max() + 1 == 4


def test_a_mixture_keeps_k_clusters_and_pairs_apart():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        truth = rng.integers(0, 4, 80)
        x = rng.normal(size=(80, 3)) + np.eye(4, 3)[truth]
        must, cannot = random_pairs(rng, truth, 60)
        found = cuts.gaussian(x, Knowledge.join(np.full(80, -1), must, cannot), 4)
        assert satisfies(found, must, cannot)
        assert found.max() + 1 == 4


def test_a_classifier_needs_all_classes_and_keeps_labels():
    x, truth = blobs(0, spread=1.0)
    known = Knowledge.join(np.where(np.arange(len(x)) % 6 == 0, truth, -1))
    found = partition(x, known, 4, cut="classifier")
    assert dc.metrics.clustering_scores(truth, found.clusters)["ari"] > 0.95
    assert len(set(zip(found.clusters[known.labels >= 0], known.labels[known.labels >= 0], strict=True))) == 4
    with pytest.raises(ValueError, match="needs a labelled class for each of the 5 clusters, got 4"):
        partition(x, known, 5, cut="classifier")


def test_one_label_a_class_is_enough_for_a_classifier():
    x, known = np.arange(60.0)[:, None], np.where(np.arange(60) % 2, -1, np.arange(60) // 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = cuts.classifier(x, Knowledge.join(known), 30)
    assert len(np.unique(found)) == 30


def test_colourings_are_as_cheap_as_exhaustive_search_says(monkeypatch):
    monkeypatch.setattr(
        colouring, "TABU_MOVES", 1000
    )  # more than enough for six groups, and what cannot be is found sooner
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
                colouring.colour_groups(cost, apart, rng)
            continue
        found = colouring.colour_groups(cost, apart, rng)
        assert not (apart & (found[:, None] == found)).any()
        excess.append(cost[np.arange(n), found].sum() - min(feasible))
    assert min(excess) >= -1e-12
    assert np.mean(np.array(excess) < 1e-12) > 0.8  # a local optimum, most often the best


@pytest.mark.parametrize("cut", ["k-means", "gaussian", "gaussian of k-means", "spectral", "robust forest"])
def test_the_tree_of_a_partition_has_its_clusters(cut):
    x, truth = blobs(0, spread=1.5)
    known = np.where((np.arange(len(x)) % 10 == 0) & (truth < 3), truth, -1)
    found = partition(x, Knowledge.join(known), 5, cut=cut)
    assert np.array_equal(found.hierarchy.labels(5, found.min_cluster_size), found.clusters)
    assert (np.diff(found.hierarchy.weights[found.hierarchy.n_fixed :]) <= 0).all()
    assert len(set(found.hierarchy.labels(6))) == 6


def stripes():
    """Classes are long stripes next to each other: of the cuts, k-means does not follow them."""
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), 300)
    return np.stack([rng.uniform(0, 30, 1200), 2 * truth + 0.1 * rng.random(1200)], 1), truth


def test_hidden_labels_choose_the_cut_that_finds_them():
    x, truth = stripes()
    known = Knowledge.join(np.where(np.arange(1200) % 30 == 0, truth, -1))
    calls = []

    def retrain(rest):
        calls.append(rest)
        return x

    found = partition(x, known, 5, cut="auto", rows=x, retrain=retrain).evidence
    assert len(calls) == 3
    assert all((rest.labels >= 0).sum() < 40 and len(set(rest.labels)) < 5 for rest in calls)  # whole classes hidden
    assert {label for rest in calls for label in range(4) if label not in rest.labels} == {0, 1, 2, 3}  # each once
    of_embedding = {*CUTS, NEW_ROWS} - {"classifier"}  # there is a class without labels
    of_input = {*INPUT_CUTS, NEW_ROWS} - {"classifier"}
    assert set(found.scores) == {*of_embedding, *(f"{cut} of the input" for cut in of_input)}
    assert not found.cut.startswith("k-means")
    assert found.scores["k-means"] < found.scores[found.cut] - 0.2
    assert 0.5 < found.new_classes < found.scores[found.cut]  # labels that were told do not count
    all_labelled = partition(x, known, 4, cut="auto", retrain=retrain).evidence
    assert all_labelled.new_classes is None
    assert all(set(rest.labels) == {-1, 0, 1, 2, 3} for rest in calls[3:])  # no class as a whole
    assert set(all_labelled.scores) == {*CUTS, VOTE}


def test_without_labels_the_cut_that_agrees_with_the_others_is_taken():
    x, truth = stripes()
    found = partition(x, None, 4, cut="auto")
    assert found.evidence.scores == {}
    assert found.evidence.cut == max(found.evidence.agreement, key=found.evidence.agreement.get)
    assert found.evidence.agreement["k-means"] < found.evidence.agreement["forest"]
    assert dc.metrics.clustering_scores(truth, found.clusters)["ari"] == 1


def test_cuts_of_the_input_are_asked_about_cuts_of_the_embedding_and_the_other_way_round():
    """Three cuts of the embedding agree on made-up clusters, as after training on too few labels."""
    truth, made_up = np.repeat([0, 1], 6), np.arange(12) % 2
    nearly = np.where(np.arange(12) == 0, 1, truth)
    partitions = {"forest": made_up, "k-means": made_up, "gaussian": made_up, "spectral": nearly}
    partitions |= {"forest of the input": truth, "gaussian of the input": truth}
    partitions |= {"classifier of the input": np.arange(12) // 2 % 2}  # it is no reference
    found = choose_cut(partitions, [], [], np.full(12, -1))
    far, near = (dc.metrics.clustering_scores(truth, each)["ari"] for each in (made_up, nearly))
    assert found.cut == "spectral"
    between = dc.metrics.clustering_scores(made_up, nearly)["ari"]
    assert found.agreement["forest"] == pytest.approx(0.9 * far + 0.1 * (2 + between) / 3)
    assert found.agreement["spectral"] == pytest.approx(0.9 * near + 0.1 * between)
    assert found.agreement["forest of the input"] == pytest.approx(0.9 * (3 * far + near) / 4 + 0.1)


def test_with_pairs_nothing_is_hidden_and_cuts_still_agree():
    x, truth = blobs(0, spread=0.3)
    known = Knowledge.join(np.full(len(x), -1), must_link=[(0, 1)] if truth[0] == truth[1] else [], cannot_link=[])
    found = partition(x, known, 5, cut="auto", retrain=never)
    assert found.n_clusters == 5
    assert found.evidence.agreement


def never(rest):
    raise AssertionError


def test_the_number_of_clusters_comes_from_hidden_classes():
    x, truth = blobs(1, n_classes=6, spread=0.1)
    known = Knowledge.join(np.where((np.arange(len(x)) % 5 == 0) & (truth < 4), truth, -1))
    found = partition(x, known, None, cut="auto", retrain=lambda rest: x)
    low, high = found.evidence.interval
    assert low <= 6 <= high
    assert low <= found.n_clusters <= high
    assert list(found.evidence.candidates) == list(range(4, 13))


def test_too_few_labels_hide_nothing():
    labels = [0, 1, 2] * 2 + [-1] * 20  # two a class, and no class to hide
    found = partition(
        np.random.default_rng(0).normal(size=(26, 2)), Knowledge.join(labels), 3, cut="auto", retrain=never
    )
    assert found.evidence.scores == {}
    assert found.evidence.n_hidden == 0


@pytest.mark.parametrize(("n_classes", "hidden"), [(1, [0, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1]), (7, [3, 2, 2])])
def test_each_class_is_hidden_once_where_there_are_two(n_classes, hidden):
    labels = np.repeat(np.arange(n_classes), 6)
    left = hide_labels(Knowledge.join(np.append(labels, [-1] * 50)), None, seed=0)
    assert [n_classes - len(set(rest.labels) - {-1}) for rest in left] == hidden


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
    assert neighbour_shares(x, found.clusters, 4)[np.arange(600), found.clusters][new].mean() > own[new].mean() + 0.05
    assert (found.novelty() == 0).all()  # there is no new cluster


def test_where_the_input_has_other_clusters_nobody_is_sure():
    x, truth = blobs(0, size=60)
    known = Knowledge.join(np.where(np.arange(len(x)) % 60 == 0, truth, -1))  # one a class: none is hidden
    noise = np.random.default_rng(0).normal(size=x.shape)
    agreeing, other = (partition(x, known, 4, cut="auto", rows=rows) for rows in (x, noise))
    assert np.array_equal(agreeing.clusters, other.clusters)
    assert agreeing.probabilities().max(1).mean() > 0.85 > other.probabilities().max(1).mean() + 0.3
    for found in (agreeing, other):
        own = found.probabilities()[np.arange(len(x)), found.clusters]
        assert own[known.labels < 0].mean() == pytest.approx(found.evidence.share_right, abs=0.02)


def test_classes_that_are_not_found_again_make_unsure():
    x, truth = blobs(0, size=60)
    known = Knowledge.join(np.where((truth < 3) & (np.arange(len(x)) % 6 == 0), truth, -1))
    noise = np.random.default_rng(0).normal(size=x.shape)
    again, lost = (partition(x, known, 4, cut="auto", retrain=lambda rest, to=to: to) for to in (x, noise))
    assert np.array_equal(again.clusters, lost.clusters)
    odds = [each.evidence.share_right / (1 - each.evidence.share_right) for each in (again, lost)]
    assert odds[0] > 2 * odds[1]
    own = lost.probabilities()[np.arange(len(x)), lost.clusters]
    assert own[known.labels < 0].mean() == pytest.approx(lost.evidence.share_right, abs=0.02)


def test_hidden_rows_of_one_class_do_not_make_sure():
    """All of them are in its cluster, which says nothing about the rows that are there, too."""
    x, truth = blobs(0, n_classes=2, size=60)
    known = Knowledge.join(np.where((truth == 0) & (np.arange(len(x)) % 6 == 0), 0, -1))
    noise = np.random.default_rng(0).normal(size=x.shape)
    found = partition(x, known, 2, cut="auto", rows=noise, retrain=lambda rest: x)
    assert found.evidence.n_hidden == 0
    assert found.evidence.share_right < 0.85
    # The cluster of the class has all hidden rows, and few others; of noise it has as many of both.
    assert found.evidence.cut in CUTS
    assert found.evidence.scores[found.evidence.cut] == pytest.approx(0.5, abs=0.15)
    assert abs(found.evidence.scores["k-means of the input"]) < 0.5


def test_rows_far_from_labelled_ones_speak_for_new_clusters():
    x, truth = blobs(0, n_classes=2, size=60)
    labelled = (truth == 0) & (np.arange(len(x)) % 6 == 0)
    new = np.array([False, True])
    of_distance = witnesses(x, truth, [], new, labelled)[3]
    assert (of_distance[:, 0] == 0).all()
    assert of_distance[truth == 1, 1].min() > of_distance[truth == 0, 1].max()
    assert (witnesses(x, truth, [], new, np.arange(len(x)) == 0)[3] == 0).all()  # one label has no scale
    assert (witnesses(x, truth, [], new, labelled, "manhattan")[3] == 0).all()


def test_pixels_of_images_are_not_cut():
    x, truth = blobs(0, size=60)
    known = Knowledge.join(np.where(np.arange(len(x)) % 6 == 0, truth, -1))
    flat, images = (partition(x, known, 4, cut="auto", rows=rows) for rows in (x, x[:, :, None]))
    assert any(name.endswith("of the input") for name in flat.evidence.agreement)
    assert not any(name.endswith("of the input") for name in images.evidence.agreement)


def test_one_cut_alone_has_no_expected_share():
    x, truth = blobs(0, size=20)
    found = choose_cut({"forest": truth}, [], [], np.where(np.arange(len(x)) % 5 == 0, truth, -1))
    assert found.share_right is None
