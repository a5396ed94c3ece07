"""Very many rows: a sample is clustered, and the other rows go where their neighbours go."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from diffclust import partition as module
from diffclust import samples
from diffclust.knowledge import Knowledge
from diffclust.partition import partition


@pytest.fixture
def many(monkeypatch):
    """As if 200 rows were more than 20,000: points, true clusters, and labels of some rows of clusters 0 to 2."""
    monkeypatch.setattr(module, "MOST_POINTS", 200)
    monkeypatch.setattr(samples, "SAMPLE", 150)
    monkeypatch.setattr(samples, "LEAST_OF_CLASS", 5)
    points, truth = make_blobs(400, 3, centers=5, cluster_std=0.7, random_state=3)
    labels = np.where((np.arange(400) % 8 == 0) & (truth < 3), truth, -1)
    return points, truth, labels


def test_a_sample_has_labelled_rows_of_each_class_and_others():
    labels = np.full(30_000, -1)
    labels[:8000] = 0
    labels[8000:8030] = 4
    rows = samples.choose_rows(labels, 0, samples.SAMPLE)
    assert len(rows) == len(np.unique(rows)) == samples.SAMPLE
    assert (np.diff(rows) > 0).all()
    told = labels[rows]
    assert (told >= 0).sum() == samples.SAMPLE / 2
    assert (told == 4).sum() >= samples.LEAST_OF_CLASS
    assert not np.array_equal(rows, samples.choose_rows(labels, 1, samples.SAMPLE))
    few = np.where(np.arange(30_000) < 100, 0, -1)
    assert set(range(100)) <= set(samples.choose_rows(few, 0, samples.SAMPLE).tolist())


@pytest.mark.parametrize("n_clusters", [5, None])
def test_clusters_of_a_sample_are_spread_over_all_rows(many, n_clusters):
    points, truth, labels = many
    told = []

    def retrain(knowledge):
        told.append(knowledge)
        return points

    knowledge = Knowledge.join(labels)
    found = partition(points, knowledge, n_clusters, cut="auto", rows=points, retrain=retrain)
    assert knowledge.constraints().agree(found.clusters)
    assert len(found.clusters) == 400
    if n_clusters is not None:
        assert found.n_clusters == len(np.unique(found.clusters)) == 5
        assert adjusted_rand_score(truth, found.clusters) > 0.95
    assert found.evidence.scores
    assert all(len(each) == 400 for each in found.others)
    assert found.hierarchy.labels(found.n_clusters).shape == (400,)
    np.testing.assert_allclose(found.probabilities().sum(1), 1)
    chances = found.evidence.hidden_chances
    assert chances.shape[0] == 400
    assert np.isnan(chances[labels < 0]).all()
    # Trainings see all rows. A class that is hidden from them has no label left, in the sample or outside of it.
    assert len(told) == 3
    for each in told:
        assert each.n_points == 400
        assert set(np.unique(each.labels)) < set(np.unique(labels)) or (each.labels >= 0).sum() < (labels >= 0).sum()
    assert {len(np.unique(each.labels[each.labels >= 0])) for each in told} == {2}


def test_overlapping_clusters_of_many_rows_are_not_left_to_the_forest(many):
    truth = np.repeat([0, 1], 300)
    points = np.random.default_rng(2).normal(size=(600, 5))
    points[:, 0] += 3.2 * truth
    known = Knowledge.join(np.where((np.arange(600) % 10 == 0) & (truth == 0), 0, -1))
    forest, found = partition(points, known, 2), partition(points, known, 2, cut="auto", rows=points)
    assert adjusted_rand_score(truth, forest.clusters) < 0.3
    assert adjusted_rand_score(truth, found.clusters) > 0.6


def test_with_pairs_many_rows_are_cut_by_the_forest(many):
    points, _, labels = many
    knowledge = Knowledge.join(labels, [(1, 2)])
    assert not samples.can_sample(knowledge)
    found = partition(points, knowledge, 5, cut="auto")
    assert (found.evidence.cut, found.others) == ("forest", ())
    np.testing.assert_array_equal(found.clusters, partition(points, knowledge, 5).clusters)


def test_hidden_rows_of_a_sample_are_hidden_among_all_rows():
    knowledge = Knowledge.join([0, 0, 1, 1, 1, -1, 2])
    sample = np.array([0, 1, 2, 3, 6])
    rest = Knowledge.join([0, -1, -1, -1, 2])  # of the sample: a row of class 0, and all of class 1
    assert samples.hide_alike(knowledge, sample, rest).labels.tolist() == [0, -1, -1, -1, -1, -1, 2]
