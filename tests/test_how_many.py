"""The number of clusters, where hidden classes say it."""

import numpy as np
import pytest

from diffclust import Knowledge
from diffclust.evidence import Split, hide_labels
from diffclust.how_many import MOST_POINTS, _rows_nearer_than_labels, compare_numbers, expect_number, likely_numbers
from diffclust.partition import partition


def blobs(n_classes, seed=0, rows=40):
    """Classes that are all equally far from each other."""
    truth = np.repeat(np.arange(n_classes), rows)
    noise = np.random.default_rng(seed).normal(size=(len(truth), n_classes))
    return np.eye(n_classes)[truth] * 5 + noise * 0.7, truth


def labelled(truth, n_labelled, every=5):
    return np.where((np.arange(len(truth)) % every == 0) & (truth < n_labelled), truth, -1)


def splits_of(x, labels, seed=0):
    return [Split(x, rest) for rest in hide_labels(Knowledge.join(labels), None, seed)]


@pytest.mark.parametrize("n_labelled", [4, 6, 8])
def test_the_share_of_rows_near_labels_says_how_many_classes_there_are(n_labelled):
    x, truth = blobs(8)
    labels = labelled(truth, n_labelled)
    assert expect_number(splits_of(x, labels), labels) == pytest.approx(8, rel=0.1)


def test_many_labels_do_not_hide_how_large_their_classes_are():
    """With every second row of half of the classes labelled, most rows without a label are new."""
    x, truth = blobs(8)
    labels = labelled(truth, 4, every=2)
    assert expect_number(splits_of(x, labels), labels) == pytest.approx(8, rel=0.1)


def test_it_says_nothing_where_no_class_was_hidden_or_nearness_means_nothing():
    x, truth = blobs(3)
    labels = labelled(truth, 3)
    known = labels.copy()
    known[np.flatnonzero(labels == 0)[0]] = -1
    assert expect_number([Split(x, Knowledge.join(known))], labels) is None
    assert expect_number([], labels) is None
    alike = np.zeros_like(x)  # all rows are equally near
    assert expect_number(splits_of(alike, labels), labels) is None


def test_ranks_are_those_of_a_loop():
    x, truth = blobs(3, rows=7)
    told = labelled(truth, 2) >= 0
    distance = ((x[:, None] - x[None]) ** 2).sum(-1)
    wanted = [sum(distance[i, j] < distance[i, told].min() for j in range(len(x))) for i in range(len(x))]
    assert _rows_nearer_than_labels(x, told)[~told].tolist() == np.array(wanted)[~told].tolist()


def test_of_many_rows_some_are_compared_and_not_only_labelled_ones():
    x, truth = blobs(8, rows=MOST_POINTS // 4)  # twice as many rows
    labels = labelled(truth, 4, every=2)
    assert expect_number(splits_of(x, labels), labels) == pytest.approx(8, rel=0.1)


def test_a_flat_curve_and_all_classes_labelled_make_no_new_clusters():
    x, truth = blobs(6)
    labels, told = labelled(truth, 6), []

    def retrain(rest):
        told.append(rest)
        return x

    found = partition(x, Knowledge.join(labels), None, cut="auto", rows=x, retrain=retrain)
    assert found.n_clusters == found.evidence.n_clusters == 6
    assert found.evidence.expected_clusters == pytest.approx(6, rel=0.1)
    # Nothing is new, so the cut is chosen, here by a vote, after hiding labels and no classes.
    assert found.evidence.cut == "vote"
    assert [len(np.unique(rest.labels)) - 1 for rest in told] == [4, 4, 4, 6, 6, 6]


def test_half_of_the_classes_labelled_and_the_curve_together():
    x, truth = blobs(8)
    found = partition(x, Knowledge.join(labelled(truth, 4)), None, cut="auto", retrain=lambda rest: x)
    low, high = found.evidence.interval
    assert low <= found.n_clusters <= high
    assert found.n_clusters == pytest.approx(8, abs=1)
    assert list(found.evidence.candidates) == list(range(4, 13))


def test_numbers_between_those_that_were_tried_can_be_chosen():
    assert 14 < likely_numbers({10: 0.5, 14: 0.5, 30: 0.5}, 10, 22.0)[1] < 30
    low, middle, high = likely_numbers({2: 0.1, 3: 0.9, 4: 0.1}, 2)
    assert (low, middle, high) == (3, 3, 3)


def test_one_class_with_labels_is_no_sign_that_none_is_new():
    assert likely_numbers({2: 0.5, 3: 0.5}, 1)[1] == 2
    assert likely_numbers({2: 0.5, 3: 0.5, 4: 0.5, 5: 0.5, 6: 0.5}, 2)[1] == 3


def test_scores_are_means_over_cuts_and_splits():
    x, truth = blobs(2, rows=10)
    labels = labelled(truth, 2, every=3)
    cut = {2: {"right": truth, "wrong": np.arange(20) % 2}, 3: {"right": truth}}
    scores = compare_numbers(
        [Split(x, Knowledge.join(labels))] * 2, lambda points, known, k: cut.get(k, {"right": truth}), labels
    )
    assert scores[3] == 1
    assert scores[2] < 0.6
