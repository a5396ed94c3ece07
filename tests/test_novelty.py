"""Which rows are of classes that nobody labelled, by where labels are."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from diffclust.all_cuts import NEW_ROWS, Input, cut_all
from diffclust.confidence import witnesses
from diffclust.evidence import OF_INPUT, choose_cut
from diffclust.knowledge import Knowledge
from diffclust.novelty import label_chances
from diffclust.partition import partition


def touching(seed, n=200):
    """Three clusters in a row that touch, and labels for a fifth of the first two."""
    rng = np.random.default_rng(seed)
    truth = np.repeat([0, 1, 2], n)
    points = rng.normal(size=(3 * n, 2)) + 2.5 * truth[:, None] * np.array([1, 0])
    labelled = (truth < 2) & (rng.random(3 * n) < 0.2)
    return points, truth, Knowledge.join(np.where(labelled, truth, -1))


@pytest.mark.parametrize("seed", range(3))
def test_rows_without_labels_around_them_are_new(seed):
    points, truth, known = touching(seed)
    found = label_chances(points, known, 3)
    free = known.labels < 0
    assert roc_auc_score(truth[free] == 2, found.log_odds_new(3)[free]) > 0.9
    assert abs(found.share_new(3) - (truth[free] == 2).mean()) < 0.15
    assert (found.of_class[truth == 0].argmax(1) == 0).mean() > 0.8  # and of which class the others are


def test_many_labels_count_more_than_classes_of_equal_size():
    """A new class of a tenth of the rows: with a label for most others the trees know that."""
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], [450, 450, 100])
    points = rng.normal(size=(1000, 2)) + 9 * truth[:, None]
    shares = []
    for share in (0.05, 0.9):
        labels = np.where((truth < 2) & (rng.random(1000) < share), truth, -1)
        free = labels < 0
        shares.append(label_chances(points, Knowledge.join(labels), 3).share_new(3) - (truth[free] == 2).mean())
    assert shares[0] > 0.15  # classes of equal size are expected
    assert abs(shares[1]) < 0.1


def test_classes_keep_their_numbers_where_some_are_hidden():
    points, truth, known = touching(0)
    rest = Knowledge.join(np.where(known.labels == 1, 5, -1))  # the only class, and not the first
    found = label_chances(points, rest, 3)
    assert found.of_class.shape == (600, 1)
    free = rest.labels < 0
    assert roc_auc_score(truth[free] == 1, found.of_class[free, 0]) > 0.9


@pytest.mark.parametrize(
    ("labels", "pairs", "k"),
    [
        ([0, 0, 1, 1] + [-1] * 36, [], 2),  # no new cluster
        ([0, 1] + [-1] * 38, [], 3),  # too few labels
        ([-1] * 40, [], 3),
        ([0, 0, 1, 1] + [-1] * 36, [(6, 7)], 3),
    ],
)
def test_nothing_is_asked_where_trees_learn_nothing(labels, pairs, k):
    points = np.random.default_rng(0).normal(size=(40, 2))
    assert label_chances(points, Knowledge.join(labels, pairs), k) is None


def test_numbers_beyond_32_bits_are_columns_too():
    points, _, known = touching(0)
    usual, large = (label_chances(x, known, 3).log_odds_new(3) for x in (points, points * 1e300))
    assert np.corrcoef(usual, large)[0, 1] > 0.99


def test_equal_rows_say_nothing():
    found = label_chances(np.zeros((40, 2)), Knowledge.join([0, 0, 1, 1] + [-1] * 36), 3)
    assert np.ptp(found.log_odds_new(3)) < 2  # but for the chance of which trees saw which rows
    assert np.isfinite(found.evidence(3)).all()


def test_a_mixture_that_starts_at_new_rows_finds_a_class_that_touches_another():
    points, truth, known = touching(1)
    source = Input.prepare(points, can_vote=False)
    found = cut_all(points, known, 3, source=source, chances=label_chances(points, known, 3))
    assert {NEW_ROWS, NEW_ROWS + OF_INPUT} <= set(found)
    for name in (NEW_ROWS, NEW_ROWS + OF_INPUT):
        clusters = found[name]
        assert known.agrees(clusters).all()
        of_first = clusters == clusters[known.labels == 0][0]
        new = ~np.isin(clusters, clusters[known.labels >= 0])
        assert new[truth == 2].mean() > 0.8
        assert of_first[truth == 0].mean() > 0.8


def test_a_cut_that_tells_new_rows_from_known_ones_is_taken():
    truth = np.repeat([0, 1], 6)
    labels = np.where(np.arange(12) == 0, 0, -1)
    odds = np.where(truth == 1, 2.0, -2.0)
    other = np.arange(12) % 2
    partitions = {"forest": other, "k-means": truth}  # which agree with each other as well as the other way round
    assert choose_cut(partitions, [], [], labels).novelty == {}
    assert choose_cut(partitions, [], [], labels).cut == "forest"
    found = choose_cut(partitions, [], [], labels, odds)
    assert found.cut == "k-means"
    right = 1 / (1 + np.exp(-2.0))
    assert found.novelty["k-means"] == pytest.approx(right)
    assert found.novelty["forest"] == pytest.approx((6 * (1 - right) + 5 * right) / 11, abs=0.1)


def test_trees_speak_for_new_clusters_in_probabilities():
    points, truth, known = touching(2)
    odds = np.linspace(-1, 1, len(points))
    found = witnesses(points, truth, [], np.array([False, False, True]), known.labels >= 0, log_odds_new=odds)[4]
    assert (found[:, :2] == 0).all()
    np.testing.assert_array_equal(found[:, 2], odds)


def test_images_and_many_clusters_do_not_ask_trees():
    points, _, known = touching(0)
    images, table = (
        partition(points, known, 3, cut="auto", rows=rows).evidence for rows in (points[..., None], points)
    )
    assert images.novelty == {}
    assert images.log_odds_new is None
    assert set(table.novelty) == set(table.agreement)
    assert NEW_ROWS in table.agreement
