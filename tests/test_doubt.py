"""Pairs and labels that may be wrong: which are believed, contradictions, and clusters that do not obey wrong ones."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors

from diffclust import Knowledge, doubt
from diffclust.cuts import leading_components
from diffclust.groups import consistent
from diffclust.partition import partition
from diffclust.runs.fit import _fingerprint
from diffclust.tables import Table, read_pairs

UNKNOWN = np.full(90, -1)


def three_blobs(seed=0):
    rng = np.random.default_rng(seed)
    truth = np.repeat([0, 1, 2], 30)
    return rng.normal(size=(90, 4)) + 7 * np.eye(3, 4)[truth], truth


def pairs_of(truth, n_pairs, n_wrong, seed=1):
    """Must-links and cannot-links of which the first ones are wrong."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, len(truth), (4 * n_pairs, 2))
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
    pairs = rng.permutation(pairs)[:n_pairs]
    same = truth[pairs[:, 0]] == truth[pairs[:, 1]]
    same[:n_wrong] ^= True
    return pairs[same], pairs[~same], {tuple(pair) for pair in pairs[:n_wrong].tolist()}


def right_by_brute_force(density, links, number):
    """The probability of what a link says by everything but the link: a sum over all assignments of nodes."""
    weights = {True: 0.0, False: 0.0}
    for assigned in itertools.product(range(density.shape[1]), repeat=len(density)):
        total = sum(density[node, cluster] for node, cluster in enumerate(assigned))
        for other, ((i, j), same, wrong) in enumerate(zip(*links, strict=True)):
            agrees = (assigned[i] == assigned[j]) == same
            if other != number:
                total += np.log(1 - wrong if agrees else wrong)
            else:
                own = agrees
        weights[own] += np.exp(total)
    return weights[True] / (weights[True] + weights[False])


def test_belief_propagation_is_exact_on_a_tree(monkeypatch):
    monkeypatch.setattr(doubt, "SPREAD_ROUNDS", 80)
    rng = np.random.default_rng(2)
    density = rng.normal(size=(5, 3))
    links = doubt._Links(
        np.array([[0, 1], [1, 2], [1, 3], [3, 4]]),
        np.array([True, False, True, False]),
        np.array([0.1, 0.3, 0.2, 0.05]),
    )
    belief, _, agree = doubt.spread(density, links)
    wanted = [right_by_brute_force(density, links, number) for number in range(4)]
    np.testing.assert_allclose(agree, wanted, rtol=1e-9)
    np.testing.assert_allclose(np.exp(belief).sum(1), 1)


@pytest.mark.parametrize("weights", ["auto", 2.2])
def test_wrong_pairs_are_not_obeyed_but_reported_with_their_weight(weights):
    x, truth = three_blobs()
    must, cannot, wrong = pairs_of(truth, 100, 10)
    known = Knowledge.join(UNKNOWN, must, cannot, must_weights=weights, cannot_weights=weights)
    found = partition(x, known, 3, cut="auto")
    assert found.evidence.cut == "pairs"
    assert len(set(zip(found.clusters.tolist(), truth.tolist(), strict=True))) == 3
    violated = found.knowledge.violated(found.clusters)
    assert {each.pair for each in violated} == wrong
    if weights == "auto":
        assert 0.05 < 1 / (1 + np.exp(violated[0].weight)) < 0.2
    else:
        assert {each.weight for each in violated} == {2.2}


def test_pairs_that_agree_with_everything_are_all_believed():
    x, truth = three_blobs()
    must, cannot, _ = pairs_of(truth, 100, 0)
    found = doubt.believe(x, Knowledge.join(UNKNOWN, must, cannot, must_weights="auto", cannot_weights="auto"), 3)[0]
    hard = Knowledge.join(UNKNOWN, must, cannot)
    np.testing.assert_array_equal(found.group, hard.group)
    np.testing.assert_array_equal(found.apart, hard.apart)


def test_hard_pairs_stay_whatever_soft_ones_say():
    x, truth = three_blobs()
    must, cannot, _ = pairs_of(truth, 60, 0)
    pairs = np.concatenate([[[0, 45]], must])  # a hard pair that the rows speak against
    weights = np.append(np.inf, np.full(len(must), 3.0))
    found = doubt.believe(x, Knowledge.join(UNKNOWN, pairs, cannot, must_weights=weights, cannot_weights=3.0), 3)[0]
    assert found.group[0] == found.group[45] >= 0
    assert not found.is_soft


def test_a_wrong_label_of_finite_weight_is_not_believed():
    x, truth = three_blobs()
    labels = UNKNOWN.copy()
    rows = np.arange(0, 90, 3)
    labels[rows] = truth[rows]
    labels[3] = 2  # is 0
    found = partition(x, Knowledge.join(labels, label_weights=3.0), 3, cut="k-means")
    assert found.knowledge.labels[3] == -1
    assert [each[:2] for each in found.knowledge.violated(found.clusters)] == [("label", (3, 2))]
    assert found.classes.tolist() == [0, 1, 2]


def test_the_classifier_predicts_a_row_without_its_own_share():
    x, truth = three_blobs()
    features = doubt._kernel_features(leading_components(x, 4))
    share = np.eye(3)[truth]
    before = doubt._predict_unseen(features, share)
    np.testing.assert_array_equal(before.argmax(1), truth)
    np.testing.assert_allclose(np.exp(before).sum(1), 1)
    share[0] = [0, 0, 1]  # is 0
    after = doubt._predict_unseen(features, share)
    changed = (before != after).any(1)
    assert after[0].argmax() == 0
    assert not changed[0]
    assert 0.7 * 90 <= changed.sum() < 90


def nearest_of_another_cluster(space, truth):
    """The share of rows whose nearest other row is of another cluster."""
    nearest = NearestNeighbors(n_neighbors=1).fit(space).kneighbors(return_distance=False)[:, 0]
    return (truth[nearest] != truth).mean()


def test_learned_spaces_shrink_directions_that_do_not_tell_clusters_apart():
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1], 60)
    x = rng.normal(size=(120, 6))
    x[:, 0] = 0.1 * x[:, 0] + 0.4 * truth  # the narrowest direction
    points = leading_components(x, 6)
    share = np.eye(2)[truth]
    whitened = doubt._whitened(points, doubt._scatter_inside(points, share))
    assert nearest_of_another_cluster(points, truth) > 0.2
    for space in doubt._learned_spaces(points, whitened, share):
        assert nearest_of_another_cluster(space, truth) < 0.1


@pytest.mark.slow
def test_the_number_of_clusters_need_not_be_given():
    x, truth = three_blobs()
    must, cannot, wrong = pairs_of(truth, 100, 10)
    found = doubt.believe(x, Knowledge.join(UNKNOWN, must, cannot, must_weights="auto", cannot_weights="auto"))[0]
    assert {each.pair for each in found.violated(truth)} == wrong
    assert len(found.must_link) + len(found.cannot_link) >= 88


def test_believed_pairs_leave_a_way_to_so_many_clusters():
    rng = np.random.default_rng(0)  # rows say nothing, and what is likely pair by pair has no 4 colours
    truth, x = rng.integers(0, 4, 60), rng.normal(size=(60, 3))
    pairs = rng.integers(0, 60, (160, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    same = truth[pairs[:, 0]] == truth[pairs[:, 1]]
    same[:16] ^= True
    soft = Knowledge.join(np.full(60, -1), pairs[same], pairs[~same], must_weights="auto", cannot_weights="auto")
    known, clusters = doubt.believe(x, soft, 4)
    assert clusters is not None
    assert known.agrees(clusters).all()
    assert len(known.must_link) + len(known.cannot_link) > 0.7 * len(pairs)


def test_of_two_classes_in_one_cluster_one_is_believed():
    """Else a must-link between them would contradict their labels."""
    soft = Knowledge.join([0, 0, 1, -1, 2], [(0, 2)], [(1, 4)], must_weights=2.0, label_weights=2.0)
    clusters = [0, 0, 0, 0, 1]
    assert [each.pair for each in soft.violated(clusters)] == [(2, 1)]
    known = soft.decide(soft.agrees(clusters), 1.0)
    assert known.labels.tolist() == [0, 0, -1, -1, 2]
    assert known.agrees(clusters).all()


def test_the_cluster_of_a_class_is_that_of_its_hard_labels():
    known = Knowledge.join([0, 0, 0, 1], label_weights=[np.inf, 2.0, 2.0, np.inf])
    assert [each.pair for each in known.violated([0, 1, 1, 2])] == [(1, 0), (2, 0)]


def test_an_empty_cluster_gets_the_rows_that_the_model_gives_it_and_what_is_known_holds():
    known = Knowledge.join([-1] * 6, [(0, 3)], [(0, 1), (2, 4)])
    share = np.full((6, 3), 0.01)
    share[:, 0], share[[1, 2], 1] = 0.6, 0.9
    share[:, 2] = [0.35, 0.5, 0.3, 0.34, 0.1, 0.0]  # 1.59 rows in all
    clusters = np.array([0, 1, 1, 0, 0, 0])
    assert doubt._fill_empty(clusters, share, known).tolist() == [0, 2, 1, 0, 0, 0]
    share[:4, 2] = [0.9, 0.7, 0.65, 0.9]  # 3.25 rows: the group of both, and not row 1, which is apart from it
    assert doubt._fill_empty(clusters, share, known).tolist() == [2, 1, 2, 2, 0, 0]
    alone = Knowledge.join([-1] * 2, [(0, 1)])  # no row is left for another cluster
    assert doubt._fill_empty(np.zeros(2, int), np.array([[0.6, 0.4]] * 2), alone).tolist() == [0, 0]


def test_a_row_is_not_taken_from_a_cluster_that_has_no_other():
    share = np.array([[0.1, 0.0, 0.9], [0.5, 0.0, 0.1], [0.5, 0.0, 0.2], [0.0, 0.9, 0.1]])
    found = doubt._fill_empty(np.array([0, 1, 1, 1]), share, Knowledge.join([-1] * 4))
    assert found[0] == 0
    assert len(np.unique(found)) == 3


def test_many_clusters_of_rows_and_noisy_pairs_are_all_found():
    rng = np.random.default_rng(3)
    truth = np.repeat(np.arange(9), 25)
    x = rng.normal(size=(225, 5)) + 2.2 * rng.normal(size=(9, 5))[truth]
    must, cannot, wrong = pairs_of(truth, 900, 90)
    unknown = np.full(225, -1)
    known, clusters = doubt.believe(
        x, Knowledge.join(unknown, must, cannot, must_weights="auto", cannot_weights="auto"), 9
    )
    assert len(np.unique(clusters)) == 9
    assert adjusted_rand_score(truth, clusters) > 0.9
    assert known.agrees(clusters).all()
    doubted = {each.pair for each in known.violated(clusters)}
    assert len(doubted & wrong) > 0.9 * len(wrong)


def test_contradictions_are_cycles_named_by_their_weakest_pair():
    weights = {"must_weights": [3.0, 1.0, 5.0], "cannot_weights": [2.0]}
    known = Knowledge.join([-1] * 4, [(0, 1), (1, 2), (2, 3)], [(0, 3)], **weights)
    assert known.contradictions() == [("must-link", (1, 2), 1.0, ((1, 0), (0, 3), (3, 2)))]
    weak = Knowledge.join([-1] * 3, [(0, 1), (1, 2)], [(0, 2)], must_weights=2.0, cannot_weights=1.0)
    assert weak.contradictions() == [("cannot-link", (0, 2), 1.0, ((0, 1), (1, 2)))]
    labelled = Knowledge.join([0, 1], [(0, 1)], must_weights=1.0)
    assert labelled.contradictions() == [("must-link", (0, 1), 1.0, ((0, 2), (2, 3), (3, 1)))]
    assert Knowledge.join([-1] * 3, [(0, 1)], must_weights=2.0).contradictions() == []


@pytest.mark.parametrize("seed", range(10))
def test_pairs_are_taken_as_long_as_some_clustering_agrees_with_all(seed):
    rng = np.random.default_rng(seed)
    pairs, same = rng.integers(0, 5, (9, 2)), rng.random(9) < 0.5
    clusterings = np.array(list(itertools.product(range(5), repeat=5)))
    kept = np.zeros(9, bool)
    for number in range(9):
        kept[number] = True
        agree = (clusterings[:, pairs[kept, 0]] == clusterings[:, pairs[kept, 1]]) == same[kept]
        kept[number] = agree.all(1).any()
    np.testing.assert_array_equal(consistent(pairs, same), kept)


def test_soft_knowledge_survives_new_labels_and_forgetting():
    known = Knowledge.join([-1] * 5, [(0, 1), (1, 2)], [(3, 4)], must_weights=[np.inf, 2.0], cannot_weights="auto")
    labelled = known.with_labels([5, -1, -1, -1, -1])
    assert labelled.group.tolist() == [0, 0, -1, -1, -1]
    assert labelled.must_weights.tolist() == [np.inf, 2.0]
    assert np.isnan(labelled.cannot_weights).all()
    assert labelled.forget([0]).labels.tolist() == [-1] * 5
    assert labelled.forget([0]).is_soft
    assert not Knowledge.join([-1] * 3, [(0, 1)]).is_soft


def test_weights_are_part_of_what_a_run_is_recognised_by():
    table = Table(np.zeros((5, 2), np.float32), np.full(5, -1), [], "")
    runs = [Knowledge.join([-1] * 5, [(0, 1)], must_weights=weight) for weight in (1.0, 2.0)]
    assert _fingerprint(table, runs[0]) != _fingerprint(table, runs[1])


def test_a_third_column_of_pairs_is_their_weight(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("row,row,weight\n0,1,2.5\n2,3\n4,5,inf\n")
    pairs, weights = read_pairs(path, 6, "must_link")
    assert pairs == [(0, 1), (2, 3), (4, 5)]
    np.testing.assert_array_equal(weights, [2.5, np.nan, np.inf])
    path.write_text("0 1\n2 3\n")
    np.testing.assert_array_equal(read_pairs(path, 6, "must_link")[1], [np.nan, np.nan])
    path.write_text("0 1 -2\n")
    with pytest.raises(ValueError, match="expected two row numbers and perhaps a weight"):
        read_pairs(path, 6, "must_link")


@pytest.mark.parametrize("weights", ["sure", [1.0, 2.0], -1.0])
def test_wrong_weights_are_an_error(weights):
    with pytest.raises(ValueError, match="must_weights must be"):
        Knowledge.join([-1] * 3, [(0, 1)], must_weights=weights)


def long_blobs(seed=0):
    """Two long clusters side by side: what varies most says nothing about them."""
    rng = np.random.default_rng(seed)
    truth = np.repeat([0, 1], 60)
    return rng.normal(size=(120, 5)) * [8, 1, 1, 1, 1] + 3 * truth[:, None] * [0, 1, 1, 0, 0], truth


def test_with_hard_pairs_the_model_makes_the_clusters_and_they_are_obeyed():
    x, truth = long_blobs()
    must, cannot, _ = pairs_of(truth, 60, 0)
    known = Knowledge.join(np.full(120, -1), must, cannot)
    found = partition(x, known, 2, cut="auto")
    assert found.evidence.cut == "pairs"
    assert found.knowledge is known
    assert known.agrees(found.clusters).all()
    assert adjusted_rand_score(truth, found.clusters) > 0.9


def test_pairs_of_rows_and_labels_go_to_the_model_together():
    x, truth = three_blobs()
    must, cannot, _ = pairs_of(truth, 40, 0)
    labels = UNKNOWN.copy()
    labels[[0, 40, 80]] = truth[[0, 40, 80]]
    found = partition(x, Knowledge.join(labels, must, cannot), 3, cut="auto")
    assert found.evidence.cut == "pairs"
    assert found.classes[found.clusters[[0, 40, 80]]].tolist() == [0, 1, 2]
    assert adjusted_rand_score(truth, found.clusters) == 1


def test_hard_pairs_say_how_many_clusters_there_are():
    x, truth = long_blobs()
    must, cannot, _ = pairs_of(truth, 100, 0)
    found = partition(x, Knowledge.join(np.full(120, -1), must, cannot), cut="auto")
    assert found.n_clusters == 2
    assert adjusted_rand_score(truth, found.clusters) > 0.9


@pytest.mark.parametrize("seed", range(6))
def test_few_rows_with_hard_pairs_have_clusters(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    x = np.round(rng.normal(size=(n, 2)), 1) * (seed > 0)  # of seed 0 all rows are equal
    truth = rng.permutation(np.append([0, 1], rng.integers(0, 2, n - 2)))
    must, cannot, _ = pairs_of(truth, 3, 0)
    known = Knowledge.join(np.full(n, -1), must, cannot)
    for n_clusters in (2, None):
        found = partition(x, known, n_clusters, cut="auto")
        assert known.agrees(found.clusters).all()
        assert n_clusters in (found.n_clusters, None)


def test_the_number_of_clusters_is_looked_for_until_it_gets_worse_and_then_in_between():
    tried = []

    def score(k):
        tried.append(k)
        return -abs(k - 7)

    assert doubt._likeliest_number(score, 1, 100) == 7
    assert tried == [2, 3, 4, 6, 8, 12, 5, 7]
    assert doubt._likeliest_number(score, 9, 9) == 9
    assert doubt._likeliest_number(score, 40, 100) == 40
    assert doubt._likeliest_number(score, 1, 1) == 1


def test_the_model_looks_at_hard_pairs_where_that_is_quick_and_not_at_labels_alone():
    pair = Knowledge.join(np.full(5000, -1), [(0, 1)])
    assert doubt.can_model(pair, 20)
    assert not doubt.can_model(pair, 21)
    assert not doubt.can_model(Knowledge.join(np.full(5001, -1), [(0, 1)]), 2)
    assert not doubt.can_model(Knowledge.join([0, 1, -1]), 2)


@pytest.mark.parametrize("kind", ["must", "cannot"])
def test_pairs_of_one_kind_do_not_say_how_many_clusters_there_are(kind):
    """Under more clusters more cannot-links hold, so the likeliest number would be the largest one."""
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 40)
    points = rng.normal(size=(120, 2)) * 0.2 + 5 * np.stack([truth == 1, truth == 2], axis=1)
    pairs = rng.integers(0, 120, (200, 2))
    same = truth[pairs[:, 0]] == truth[pairs[:, 1]]
    chosen = pairs[same & (pairs[:, 0] != pairs[:, 1])][:5] if kind == "must" else pairs[~same][:5]
    known = Knowledge.join(np.full(120, -1), **{f"{kind}_link": chosen})
    found = partition(points, known, None, cut="auto", rows=points)
    assert found.n_clusters == 3
    assert adjusted_rand_score(truth, found.clusters) == 1
