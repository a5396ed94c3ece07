"""Which clustered row a new row joins."""

import numpy as np
import pytest

from diffclust.cuts import MANY_CLUSTERS
from diffclust.placing import VOTERS, joined_rows


def make_rows(n_clusters, seed=0):
    """Points of many clusters that touch each other, their clusters, and new points."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_clusters, 5))
    clusters = rng.permutation(np.arange(40 * n_clusters) % n_clusters)
    return centres[clusters] + 0.6 * rng.normal(size=(len(clusters), 5)), clusters, rng.normal(size=(50, 5))


def distances(points, others):
    return ((others[:, None] - points) ** 2).sum(2)


def test_of_few_clusters_it_is_the_nearest_row():
    points, clusters, others = make_rows(MANY_CLUSTERS)
    np.testing.assert_array_equal(joined_rows(points, clusters, others), distances(points, others).argmin(1))


def test_of_many_clusters_the_nearest_rows_vote():
    points, clusters, others = make_rows(MANY_CLUSTERS + 1)
    joined = joined_rows(points, clusters, others)
    for row, own in zip(joined, distances(points, others), strict=True):
        voters = np.argsort(own)[:VOTERS]
        votes = np.bincount(clusters[voters])
        best = [voter for voter in voters if votes[clusters[voter]] == votes.max()]
        assert row == best[0]
    assert (joined != distances(points, others).argmin(1)).any()


def test_a_clustered_row_joins_itself():
    points, clusters, _ = make_rows(MANY_CLUSTERS + 1)
    np.testing.assert_array_equal(joined_rows(points, clusters, points), np.arange(len(points)))


def test_a_row_joins_the_same_alone_and_among_others():
    points, clusters, others = make_rows(MANY_CLUSTERS + 1)
    alone = np.concatenate([joined_rows(points, clusters, row[None]) for row in others])
    np.testing.assert_array_equal(alone, joined_rows(points, clusters, others))


def test_fewer_rows_than_voters_cannot_be():
    assert VOTERS <= MANY_CLUSTERS


def test_the_vote_finds_more_of_many_clusters():
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(30, 5))
    truth, new = np.arange(1500) % 30, np.arange(900) % 30
    points = centres[truth] + 0.5 * rng.normal(size=(1500, 5))
    others = centres[new] + 0.5 * rng.normal(size=(900, 5))
    nearest = truth[distances(points, others).argmin(1)]
    assert (truth[joined_rows(points, truth, others)] == new).mean() > (nearest == new).mean() + 0.05


def test_the_estimator_and_a_run_place_alike(tmp_path):
    pytest.importorskip("lightning")
    import diffclust as dc
    from diffclust.runs import fit_run
    from diffclust.tables import Table
    from diffclust.training import TrainingConfig

    points, clusters, others = make_rows(MANY_CLUSTERS + 1)
    labels = np.where(np.arange(len(points)) < 200, clusters, -1)
    model = dc.cluster.ForestEmbedding(MANY_CLUSTERS + 1, n_steps=3, cut="k-means", random_state=0).fit(points, labels)
    np.testing.assert_array_equal(model.predict(points), model.labels_)
    joined = joined_rows(model.embedding_, model.partition_.clusters, model.transform(others))
    np.testing.assert_array_equal(model.predict(others), model.labels_[joined])
    np.testing.assert_array_equal(model.predict_proba(others), model.predict_proba(points)[joined])
    config = TrainingConfig(n_clusters=MANY_CLUSTERS + 1, n_steps=3, device="cpu")
    table = Table(points.astype(np.float32), labels, [str(c) for c in range(MANY_CLUSTERS + 1)], "rows")
    run = fit_run(table, config, tmp_path / "run", cut="k-means", report=False)
    embedded = dc.training.embed(run.module, others.astype(np.float32), device="cpu")
    joined = joined_rows(run.embeddings, run.clusters, embedded)
    np.testing.assert_array_equal(run.cluster(others), run.clusters[joined])
