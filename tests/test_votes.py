"""Votes of cuts where every cluster is a labelled class."""

import numpy as np
import pytest

from diffclust import Knowledge, cuts, votes
from diffclust.all_cuts import OF_VALUES
from diffclust.evidence import OF_INPUT, VOTE, Split
from diffclust.partition import partition

LABELS = np.repeat([0, 1, -1], [50, 50, 2])
HIDDEN = np.r_[10:50, 60:100]


def split_of(hidden):
    known = LABELS.copy()
    known[hidden] = -1
    return Split(np.zeros((len(LABELS), 1)), Knowledge.join(known))


def right_for(n_right, of_others):
    """Clusters in which so many of the hidden rows are right, and what it says of the two rows without a label."""
    clusters = LABELS.copy()
    clusters[HIDDEN[n_right:]] = 1 - clusters[HIDDEN[n_right:]]
    clusters[-2:] = of_others
    return clusters


def count(cuts, missing=()):
    """The vote of all rows and of the split, where the cuts of the split are these, and the others know all labels."""
    known = LABELS.copy()
    known[HIDDEN] = -1
    split = Split(np.zeros((len(LABELS), 1)), Knowledge.join(known))
    final = {name: np.r_[LABELS[:-2], clusters[-2:]] for name, clusters in cuts.items()}
    of_split = {name: clusters for name, clusters in cuts.items() if name not in missing}
    found, (of_split,) = votes.count_votes(final, [split], [of_split], LABELS)
    assert found[:-2].tolist() == LABELS[:-2].tolist()  # labels stay
    return found[-2:].tolist(), of_split.tolist()


def test_a_vote_counts_by_how_often_hidden_labels_are_found():
    good, poor = right_for(80, [0, 1]), right_for(50, [1, 0])
    # Of 80 hidden rows 80 and 50 are right: odds of about 49 and 1.6 to 1, to the fourth power of their logarithms.
    assert count({"good": good, "poor": poor, "as poor": poor}) == ([0, 1], good.tolist())


def test_votes_no_better_than_a_guess_count_nothing():
    bad = {f"bad {n_right}": right_for(n_right, [1, 0]) for n_right in (0, 10, 20, 30)}
    assert count({"good": right_for(60, [0, 1]), **bad})[0] == [0, 1]


def test_where_all_are_no_better_than_a_guess_the_majority_decides():
    assert count({f"bad {other}": right_for(0, [other % 2, 1]) for other in range(3)})[0] == [0, 1]


def test_a_cut_that_some_split_lacks_does_not_vote():
    assert count({"there": right_for(60, [0, 1]), "gone": right_for(80, [1, 0])}, missing=["gone"])[0] == [0, 1]


def test_where_little_is_hidden_agreement_decides():
    """One hidden row says little: of the two cuts that found it, the one that agrees with another cut counts more."""
    x = np.repeat([0, 1], 20)
    labels = np.r_[0, 0, np.full(18, -1), 1, np.full(19, -1)]
    known = labels.copy()
    known[1] = -1
    alone = np.r_[0, 0, np.arange(18) % 2, 1, np.arange(19) % 2]
    cuts = {"a": x, "a again": np.where(np.arange(40) == 1, 1, x), "alone": alone}
    found, _ = votes.count_votes(cuts, [Split(np.zeros((40, 1)), Knowledge.join(known))], [cuts], labels)
    assert found.tolist() == x.tolist()


def test_cuts_of_the_embedding_count_less_where_columns_are_categories(monkeypatch):
    right = np.repeat([0, 1], 100)
    labelled = np.arange(200) % 100 < 60
    labels = np.where(labelled, right, -1)
    known = np.where(np.arange(200) % 2 == 1, -1, labels)
    other = np.where(labelled, right, np.arange(200) % 2)
    alike = {"k-means": other, "forest": other, "k-means of the input": right}
    splits = [Split(np.zeros((200, 1)), Knowledge.join(known))]
    for weight, expected in ((1.0, other), (votes.CATEGORIES_WEIGHT, right)):
        found, _ = votes.count_votes(alike, splits, [alike], labels, weight)
        assert found.tolist() == expected.tolist()
    used = []
    count = votes.count_votes
    monkeypatch.setattr(votes, "count_votes", lambda *told: used.append(told[4]) or count(*told))
    x = np.random.default_rng(0).integers(3, size=(200, 5))
    for rows in (x, x + np.random.default_rng(0).random(x.shape)):
        partition(rows, Knowledge.join(labels), 2, cut="auto", rows=rows, retrain=lambda rest, rows=rows: rows)
    assert used == [votes.CATEGORIES_WEIGHT, 1.0]


def stripes(n=300):
    """Two classes that alternate along one of four columns, which trees can tell apart and k-means cannot."""
    x = np.random.default_rng(0).uniform(size=(n, 4))
    return x, (np.floor(x[:, 2] * 4) % 2).astype(int)


def test_classifiers_of_the_input_vote_where_all_classes_are_labelled():
    x, truth = stripes()
    labels = np.where(np.arange(len(x)) < 150, truth, -1)
    found = partition(x, Knowledge.join(labels), 2, cut="auto", rows=x, retrain=lambda rest: x)
    assert found.evidence.cut == VOTE
    assert {f"{name} of the input" for name in cuts.CLASSIFIERS} <= set(found.evidence.scores)
    assert not any(name.endswith(OF_VALUES) for name in found.evidence.scores)
    right = (found.clusters == found.clusters[np.flatnonzero(truth == 0)[0]]) == (truth == 0)
    assert right[150:].mean() > 0.9
    assert right[:150].all()  # labelled rows keep their class


def test_classifiers_see_categories_as_such():
    """Whether a code is odd tells the class, which needs many labels unless each value has a column."""
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=400)
    x = 2 * rng.integers(5, size=(400, 6)) + np.where(rng.random((400, 6)) < 0.25, 1 - truth[:, None], truth[:, None])
    labels = np.where(np.arange(400) < 60, truth, -1)
    found = partition(x, Knowledge.join(labels), 2, cut="auto", rows=x, retrain=lambda rest: x).evidence
    for name in cuts.CLASSIFIERS:
        assert found.scores[name + OF_VALUES] > found.scores[name + OF_INPUT] - 0.1
    assert found.scores["support vectors" + OF_VALUES] > found.scores["support vectors" + OF_INPUT] + 0.1
    two = partition(x % 2, Knowledge.join(labels), 2, cut="auto", rows=x % 2, retrain=lambda rest: x).evidence
    assert not any(name.endswith(OF_VALUES) for name in two.scores)  # they would see the same twice


def test_there_is_no_vote_with_a_class_that_nobody_labelled_or_without_hidden_labels():
    x, truth = stripes()
    labels = np.where(np.arange(len(x)) < 150, truth, -1)
    assert partition(x, Knowledge.join(labels), 3, cut="auto", rows=x, retrain=lambda rest: x).evidence.cut != VOTE
    assert partition(x, Knowledge.join(labels), 2, cut="auto", rows=x).evidence.cut != VOTE


def test_support_vectors_are_not_sought_among_too_many_rows(monkeypatch):
    x, truth = stripes()
    monkeypatch.setattr(cuts, "MOST_SUPPORT", 299)
    with pytest.raises(ValueError, match="at most 299 labelled rows, got 300"):
        cuts.support_vectors(x, Knowledge.join(truth))
    found = partition(x, Knowledge.join(truth), 2, cut="auto", rows=x, retrain=lambda rest: x)
    assert "trees of the input" in found.evidence.scores
    assert "support vectors of the input" not in found.evidence.scores
