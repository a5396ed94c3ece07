"""How sure a clustering is, and how many clusters there are."""

import numpy as np
import pytest
from sklearn.datasets import load_iris, make_blobs, make_circles, make_moons

import diffclust as dc


def hierarchy_of(x):
    similarity = dc.negative_squared_distances(x)
    return similarity, dc.Hierarchy.from_similarity(similarity)


@pytest.fixture(scope="module")
def blobs():
    x, y = make_blobs(120, centers=[(0, 0), (8, 0), (0, 8), (8, 8)], cluster_std=0.5, random_state=0)
    return (*hierarchy_of(x), y)


@pytest.mark.parametrize("criterion", dc.stability.CRITERIA)
def test_separated_blobs_are_counted_by_every_criterion(blobs, criterion):
    similarity, hierarchy, y = blobs
    labels = np.where(np.arange(len(y)) % 10 == 0, y, -1)
    found = dc.choose_n_clusters(hierarchy, criterion, labels=labels, similarity=similarity)
    assert found.n_clusters == 4
    assert found.candidates[found.scores.argmax()] == 4 or criterion == "labels"
    assert len(found.candidates) == len(found.scores)


@pytest.mark.parametrize("make", [make_moons, make_circles])
def test_the_gap_counts_shapes_that_are_no_balls(make):
    x, _ = make(300, noise=0.04, random_state=0)
    assert dc.choose_n_clusters(hierarchy_of(x)[1]).n_clusters == 2


def test_where_the_gap_fails():
    """Two of iris' three species touch: single linkage has no gap there, and says 2."""
    x, _ = load_iris(return_X_y=True)
    assert dc.choose_n_clusters(hierarchy_of(x)[1]).n_clusters == 2


def test_where_the_guard_ends_the_cuts_the_last_gap_is_down_to_the_median_edge():
    x = np.array([[0.0], [1.0], [5.0], [7.0], [20.0], [22.0]])  # edges 1, 4, 2, 13, 2: heights 0, 3, 1, 12, 1
    hierarchy = dc.Hierarchy.from_similarity(-np.abs(x - x.T))
    found = dc.choose_n_clusters(hierarchy, min_cluster_size=2)
    assert found.candidates.tolist() == [2, 3]
    np.testing.assert_allclose(found.scores, [1 - 3 / 12, 1 - 1 / 3])
    assert found.n_clusters == 2


def test_candidates_respect_guard_and_limits(blobs):
    _, hierarchy, _ = blobs
    assert dc.choose_n_clusters(hierarchy, min_cluster_size=30, max_clusters=3).candidates.tolist() == [2, 3]
    one = dc.choose_n_clusters(hierarchy, min_cluster_size=61)  # nothing can be cut
    assert (one.n_clusters, one.candidates.tolist()) == (1, [1])
    single = dc.Hierarchy.from_similarity(np.zeros((1, 1)))
    assert dc.choose_n_clusters(single).n_clusters == 1


def test_shares_of_clear_clusters_are_certain_and_of_a_point_between_are_not():
    x = np.array([[0.0], [0.1], [0.2], [0.3], [2.15], [4.0], [4.1], [4.2], [4.3]])
    similarity, hierarchy = hierarchy_of(x)
    labels = hierarchy.labels(2, 2)
    shares = dc.soft_memberships(similarity, labels, min_cluster_size=2, epsilon=0.3, n_draws=200)
    np.testing.assert_allclose(shares.sum(1), 1)
    own = shares[np.arange(9), labels]
    assert own[[0, 1, 2, 3, 5, 6, 7, 8]].min() > 0.8
    assert own[4] < 0.75
    assert own.argmin() == 4


def test_shares_repeat_with_the_seed_and_respect_constraints():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    similarity, hierarchy = hierarchy_of(x)
    known = dc.Constraints.from_labels(np.where(np.arange(40) < 6, np.arange(40) % 2, -1))
    labels = hierarchy.constrained(known).labels(3)
    options = {"constraints": known, "n_draws": 20}
    shares = dc.soft_memberships(similarity, labels, seed=1, **options)
    np.testing.assert_array_equal(shares, dc.soft_memberships(similarity, labels, seed=1, **options))
    assert not np.array_equal(shares, dc.soft_memberships(similarity, labels, seed=2, **options))
    pairs = dc.Constraints.from_pairs(40, must_link=[(0, 1)], cannot_link=[(0, 2), (2, 3), (3, 0), (4, 5)])
    labels = dc.Hierarchy.from_similarity(similarity, pairs).labels(5)
    np.testing.assert_allclose(dc.soft_memberships(similarity, labels, constraints=pairs, n_draws=5).sum(1), 1)


def test_one_cluster_is_the_only_candidate_where_nothing_can_be_cut(blobs):
    found = dc.choose_n_clusters(blobs[1], min_cluster_size=blobs[1].n_points)
    assert (found.n_clusters, found.candidates.tolist(), found.scores.tolist()) == (1, [1], [0.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criterion": "elbow"}, "criterion must be one of"),
        ({"criterion": "labels"}, "needs labels="),
        ({"criterion": "labels", "labels": [-1] * 120}, "at least one known label"),
        ({"criterion": "labels", "labels": [0, 1]}, "shape"),
        ({"criterion": "stability"}, "needs similarity="),
        ({"criterion": "stability", "similarity": np.zeros((3, 3))}, "must have shape"),
        ({"min_cluster_size": 0}, "min_cluster_size=0"),
    ],
)
def test_bad_input(blobs, options, message):
    with pytest.raises(ValueError, match=message):
        dc.choose_n_clusters(blobs[1], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_clusters": 2.5}, "max_clusters must be an integer, got 2.5"),
        ({"max_clusters": None}, "max_clusters must be an integer, got None"),
        ({"criterion": "labels", "labels": ["a", "b"] * 60}, r"labels must be numbers.*<U1.*parse_labels"),
        ({"hierarchy": np.zeros((3, 2))}, "hierarchy must be a Hierarchy, got ndarray"),
    ],
)
def test_wrong_types(blobs, options, message):
    with pytest.raises(TypeError, match=message):
        dc.choose_n_clusters(**{"hierarchy": blobs[1], **options})


def test_trees_without_free_edges_and_with_vast_heights_are_counted_without_warnings():
    """Warnings are errors in these tests."""
    one_cluster = dc.Hierarchy.from_points([[0.0], [1.0], [2.0], [3.0]]).constrained(
        dc.Constraints.from_labels([0, 0, 1, 1])
    )
    assert dc.choose_n_clusters(one_cluster).n_clusters == 2
    assert dc.choose_n_clusters(dc.Hierarchy.from_edges([], [], 4), min_cluster_size=1).n_clusters == 4
    vast = dc.Hierarchy.from_edges([(0, 1), (1, 2), (2, 3)], [-1e308, -1.7e308, 1e308], 4)
    assert dc.choose_n_clusters(vast, min_cluster_size=1).n_clusters == 3


@pytest.mark.parametrize("constraints", [[0, 0, 1, 1], dc.Knowledge.join([0, 0, 1, 1])], ids=["labels", "knowledge"])
def test_constraints_of_another_type(constraints):
    similarity = -np.abs(np.subtract.outer(range(4), range(4)))
    for call in (
        lambda: dc.soft_memberships(similarity, [0, 0, 1, 1], constraints=constraints),
        lambda: dc.stability.soft_connectivity(similarity, 2, constraints=constraints),
    ):
        with pytest.raises(TypeError, match="constraints must be a Constraints object"):
            call()


@pytest.mark.parametrize("k", [2.0, "2", True])
def test_numbers_of_clusters_that_are_no_integers(k):
    similarity = -np.abs(np.subtract.outer(range(4), range(4)))
    with pytest.raises(TypeError, match="n_clusters must be an integer"):
        dc.soft_memberships(similarity, [0, 0, 1, 1], n_clusters=k)
    with pytest.raises(TypeError, match="n_clusters must be an integer"):
        dc.stability.soft_connectivity(similarity, k)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": [0, 0, 1]}, r"4 integers, shape \(4,\), got int64 of shape \(3,\)"),
        ({"labels": list("aabb")}, "4 integers"),
        ({"labels": [0.0, 0.0, 1.0, 1.0]}, "4 integers"),
        ({"labels": [0, 0, -1, 1]}, "numbered from 0 to 1, got -1"),
        ({"labels": [0, 0, 1, 5], "n_clusters": 2}, "numbered from 0 to 1, got 5"),
        ({"labels": [3, 3, 7, 7]}, "n_clusters is needed where not all of the clusters 0 to 7 occur"),
        ({"n_draws": 0}, "n_draws must be at least 1"),
        ({"epsilon": -1.0}, "epsilon must be positive"),
    ],
)
def test_bad_input_of_soft_memberships(options, message):
    with pytest.raises(ValueError, match=message):
        dc.soft_memberships(-np.abs(np.subtract.outer(range(4), range(4))), **{"labels": [0, 0, 1, 1], **options})
