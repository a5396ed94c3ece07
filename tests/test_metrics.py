"""Scores against scikit-learn and against brute force on the n x n matrices."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.metrics.cluster import pair_confusion_matrix

from diffclust.metrics import SCORES, clustering_scores, connectivity_error, matched_accuracy


@st.composite
def two_labelings(draw):
    n = draw(st.integers(1, 12))
    labels = st.lists(st.integers(-2, 4), min_size=n, max_size=n)
    return draw(labels), draw(labels)


def connectivity(labels):
    labels = np.asarray(labels)
    return (labels[:, None] == labels[None, :]).astype(int)


@given(two_labelings())
def test_connectivity_error(labelings):
    true, pred = labelings
    n = len(true)
    error = connectivity_error(true, pred)
    assert isinstance(error, float)
    assert error == np.abs(connectivity(true) - connectivity(pred)).sum() / n**2
    if n > 1:
        table = pair_confusion_matrix(true, pred)
        assert error == (table[0, 1] + table[1, 0]) / n**2
    assert connectivity_error(pred, true) == error
    assert connectivity_error(true, true) == 0


@given(two_labelings())
def test_names_do_not_matter(labelings):
    true, pred = map(np.array, labelings)
    rename = np.array([30, 10, 50, -7, 20, 5, 8])
    assert connectivity_error(rename[true + 2], pred) == connectivity_error(true, pred)
    assert clustering_scores(true, rename[pred + 2]) == pytest.approx(
        clustering_scores(true, pred), rel=1e-12, abs=1e-12
    )
    names = np.array(list("abcdefg"))
    assert connectivity_error(names[true + 2], names[pred + 2]) == connectivity_error(true, pred)


@given(two_labelings())
def test_scores_equal_sklearn(labelings):
    true, pred = labelings
    scores = clustering_scores(true, pred)
    assert list(scores) == list(SCORES)
    assert {"error", "ari", "nmi", "ami", "accuracy"} <= scores.keys()
    assert all(type(score) is float for score in scores.values())
    assert scores["error"] == connectivity_error(true, pred)
    assert scores["ari"] == metrics.adjusted_rand_score(true, pred)
    assert scores["nmi"] == metrics.normalized_mutual_info_score(true, pred)
    assert scores["ami"] == metrics.adjusted_mutual_info_score(true, pred)


@pytest.mark.slow
@given(two_labelings())
def test_accuracy_is_the_best_over_all_namings(labelings):
    true, pred = map(np.array, labelings)
    true_names, pred_names = sorted(set(true.tolist())), sorted(set(pred.tolist()))
    spare = [None] * max(0, len(pred_names) - len(true_names))  # clusters that get no class
    best = 0
    for naming in itertools.permutations(true_names + spare, len(pred_names)):
        names = dict(zip(pred_names, naming, strict=True))
        best = max(best, sum(names[p] == t for t, p in zip(true.tolist(), pred.tolist(), strict=True)))
    assert clustering_scores(true, pred)["accuracy"] == best / len(true)


def test_known_values():
    true = np.repeat(np.arange(10), 10)
    assert connectivity_error(true, np.zeros(100)) == pytest.approx(0.90, abs=1e-15)
    assert connectivity_error(true, np.arange(100)) == pytest.approx(0.09, abs=1e-15)
    perfect = clustering_scores(true, (true + 3) % 10)
    assert perfect == pytest.approx({"error": 0, "ari": 1, "nmi": 1, "ami": 1, "accuracy": 1})


def test_many_clusters_need_no_table_of_all_pairs_of_them():
    """Records that are the same: 30,000 pairs, half of them found. The whole table would take 11 GB."""
    true, pred = np.repeat(np.arange(30_000), 2), np.arange(60_000)
    pred[:30_000] = true[:30_000]
    assert connectivity_error(true, pred) == 30_000 / 60_000**2
    assert matched_accuracy(true, pred) == 0.75


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("others", [["a", "b"], [0, 1]])
def test_missing_labels_are_refused(missing, others):
    """They would be a class of their own."""
    labels = np.array([*others, missing], object if missing is None or others[0] == "a" else float)
    with pytest.raises(ValueError, match="labels_true has no label at 2"):
        clustering_scores(labels, [0, 1, 1])
    with pytest.raises(ValueError, match="labels_pred has no label at 2"):
        connectivity_error([0, 1, 1], labels)


def test_large_sets_do_not_overflow():
    rng = np.random.default_rng(0)
    true, pred = rng.integers(0, 3, size=(2, 200_000))
    n = len(true)
    table = pair_confusion_matrix(true, pred)
    assert connectivity_error(true, pred) == pytest.approx((table[0, 1] + table[1, 0]) / n**2, rel=1e-12)
    assert connectivity_error(np.zeros(n), np.arange(n)) == pytest.approx(1 - 1 / n, rel=1e-12)
