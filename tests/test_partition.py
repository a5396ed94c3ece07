"""From an embedding and what is known to clusters: the size guard, the number of clusters, names, confidence."""

import tracemalloc

import numpy as np
import pytest
import sklearn

import diffclust as dc
from diffclust import linkage
from diffclust.all_cuts import CUTS
from diffclust.constraints import Constraints
from diffclust.knowledge import Knowledge
from diffclust.linkage import auto_min_cluster_size
from diffclust.partition import partition
from diffclust.placing import joined_rows

N = 24


def make_points(n=N, seed=2):
    return np.random.default_rng(seed).normal(size=(n, 2))


def outlier_of_a_class():
    """Two clumps and an outlier, at which the first class is labelled."""
    x = np.concatenate([np.linspace(0, 1, 20), np.linspace(3, 4, 20), [-4.0]])[:, None]
    labels = np.full(41, -1)
    labels[[40, 25]] = 0, 1
    return x, Knowledge.join(labels)


# --------------------------------------------------------------------------------------------------------- knowledge


def test_labels_and_pairs_are_joined():
    known = Knowledge.join([3, 3, -1, 7, -100, -1], must_link=iter([(1, 2)]), cannot_link=np.array([[3, 4]]))
    assert known.labels.tolist() == [3, 3, -1, 7, -1, -1]
    assert known.group.tolist() == [0, 0, 0, 1, 2, -1]
    assert known.apart.tolist() == [[False, True, False], [True, False, True], [False, True, False]]
    assert not known.all_apart
    assert (known.min_clusters, known.max_clusters) == (2, 4)
    assert known.constraints().agree([0, 0, 0, 1, 0, 1])
    assert not known.constraints().agree([0, 0, 0, 1, 1, 1])
    assert known.constraints([0, 5]).agree([1, 0])
    assert known.constraints([5]) is None


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0.0, 1, -1, 2]),
        np.array([0, 1, -np.inf, 2], np.float16),
        np.ma.masked_array([0, 1, 7, 2], [False, False, True, False]),
        np.array([0, 1, -5, 2], object),
        np.array([0, 1, -1, 2], ">i4"),
    ],
    ids=["whole floats", "half precision", "masked", "objects", "big-endian"],
)
def test_all_spellings_of_labels_are_the_same(labels):
    assert Knowledge.join(labels).labels.tolist() == [0, 1, -1, 2]


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ([0.5, 1.7, -1], TypeError, r"must be integers.*float64.*parse_labels"),
        ([0, np.nan], TypeError, r"must be integers.*float64"),
        (["a", "b"], TypeError, r"must be integers.*<U1"),
        ([0, None], TypeError, r"must be integers.*object"),
        (np.array([2**63], np.uint64), ValueError, r"fit into int64, got 9223372036854775808"),
        ([np.inf], ValueError, r"fit into int64, got inf"),
        ([[0, 1], [1, 0]], ValueError, r"shape \(n,\).*got shape \(2, 2\)"),
        (3, ValueError, r"got shape \(\)"),
    ],
)
def test_labels_that_are_no_integers_are_refused(labels, error, message):
    """Not cut off, wrapped around, or taken from under a mask."""
    with pytest.raises(error, match=message):
        Knowledge.join(labels)


def test_numbers_of_classes_may_be_large():
    """No list has an entry for each number up to the largest one."""
    known = Knowledge.join([10**15, 3, 10**15, -1], [(0, 3)], label_weights=1.0)
    assert known.agrees([5, 4, 5, 4]).tolist() == [False, True, True, True, True]
    assert known.agrees(["b", "a", "b", "b"]).all()
    assert known.contradictions() == []
    with pytest.raises(ValueError, match=r"those of the 4 rows, got shape \(2,\)"):
        known.agrees([0, 1])


@pytest.mark.parametrize("cannot", [[], [(0, 2)], [(0, 2), (2, 4), (4, 0)], [(0, 2), (2, 4), (4, 6), (6, 0)]])
def test_bounds_of_groups_are_those_of_their_constraints(cannot):
    known = Knowledge.join(np.full(12, -1), [(0, 1), (2, 3), (4, 5), (8, 9)], cannot)
    expected = Constraints.from_pairs(12, [(0, 1), (2, 3), (4, 5), (8, 9)], cannot)
    assert (known.min_clusters, known.max_clusters) == (expected.min_clusters, expected.max_clusters)


def test_many_must_links_need_no_matrices_of_their_groups():
    """8,000 pairs took a gigabyte, and seconds. What is zero of ``apart`` is not written to."""
    tracemalloc.start()
    known = Knowledge.join(np.full(16_000, -1), np.arange(16_000).reshape(-1, 2))
    assert (known.all_apart, known.min_clusters, known.max_clusters) == (False, 1, 8_000)
    assert tracemalloc.get_traced_memory()[1] < 1.2 * known.apart.nbytes
    tracemalloc.stop()


def test_many_classes_need_no_list_of_their_pairs():
    tracemalloc.start()
    known = Knowledge.join(np.arange(3000) // 2)
    assert tracemalloc.get_traced_memory()[1] < 4 * known.apart.nbytes
    tracemalloc.stop()
    assert (known.all_apart, known.min_clusters, known.max_clusters) == (True, 1500, 1500)
    with pytest.raises(ValueError, match=r"\(0, 10\) must stay apart, .* \(0, 1\), \(1, 10\) join them"):
        Knowledge.join(np.arange(3000) // 2, [(1, 10)])


def test_what_is_forgotten_are_labels():
    known = Knowledge.join([0, 0, 1, -1], must_link=[(0, 3)], cannot_link=[(1, 2)])
    left = known.forget([0, 2])
    assert left.labels.tolist() == [-1, 0, -1, -1]
    assert left.group.tolist() == Knowledge.join([-1, 0, -1, -1], [(0, 3)], [(1, 2)]).group.tolist() == [0, 1, 2, 0]
    assert left.apart.tolist() == [[False, False, False], [False, False, True], [False, True, False]]


@pytest.mark.parametrize(
    "constraints",
    [
        dc.Constraints.from_labels([4, -1, 2, 4, 2, -1]),
        dc.Constraints.from_pairs(6, [(0, 3)], [(0, 1), (1, 2), (4, 5)]),
        None,
    ],
)
def test_constraints_say_the_same_as_knowledge(constraints):
    known = Knowledge.from_constraints(constraints, 6)
    again = known.with_labels(np.full(6, -1))
    rng = np.random.default_rng(0)
    for clusters in rng.integers(0, 4, (200, 6)):
        agrees = constraints is None or constraints.agree(clusters)
        for each in (known, again, known.forget(np.empty(0, int))):
            assert (each.constraints() is None or each.constraints().agree(clusters)) == agrees
    if constraints is None:
        assert (known.min_clusters, known.max_clusters, known.is_empty) == (1, 6, True)
    else:
        assert (known.min_clusters, known.max_clusters) == (constraints.min_clusters, constraints.max_clusters)


def test_contradictions_are_explained():
    with pytest.raises(ValueError, match=r"\(0, 1\) must stay apart, but the must-links"):
        Knowledge.join([0, 1, -1], must_link=[(0, 2), (2, 1)])


# -------------------------------------------------------------------------------------------------- guard, k and cuts


@pytest.mark.slow
def test_labelled_classes_keep_to_the_size_guard():
    x, known = outlier_of_a_class()
    for given, guard in ((1, 1), ("auto", 6), (5, 5)):
        found = partition(x, known, 2, min_cluster_size=given)
        assert (found.n_clusters, found.min_cluster_size) == (2, guard)
        assert sorted(np.bincount(found.clusters)) == ([1, 40] if guard == 1 else [20, 21])


@pytest.mark.parametrize(("n", "k", "size"), [(100, 10, 3), (1797, 10, 59), (5, 5, 1), (90, 30, 1)])
def test_the_automatic_guard_is_a_third_of_an_average_cluster(n, k, size):
    assert auto_min_cluster_size(n, k) == size


def test_labels_choose_the_number_of_clusters_only_where_one_repeats(monkeypatch):
    asked = []
    choose = linkage.choose_n_clusters
    monkeypatch.setattr(linkage, "choose_n_clusters", lambda *a, **k: asked.append(a[1]) or choose(*a, **k))
    points = make_points() + 6 * np.eye(2)[np.arange(N) % 2]
    for labels in ([0, 1], [0, 1, 0]):
        known = Knowledge.join(np.append(labels, np.full(N - len(labels), -1)))
        found = partition(points, known)
        assert known.constraints().agree(found.clusters)
    partition(points)
    assert asked == ["gap", "labels", "gap"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_clusters": 2.0}, TypeError, "n_clusters must be an integer, got 2.0"),
        ({"n_clusters": "2"}, TypeError, "n_clusters must be an integer, got '2'"),
        ({"n_clusters": 2, "min_cluster_size": 2.5}, TypeError, "min_cluster_size must be an integer, got 2.5"),
        ({"n_clusters": 2, "min_cluster_size": 0}, ValueError, "min_cluster_size=0 must be from 1"),
    ],
)
def test_numbers_that_are_no_counts(options, error, message):
    with pytest.raises(error, match=message):
        partition(make_points(), **options)


@pytest.mark.parametrize("cut", [cut for cut in CUTS if cut != "classifier"])
def test_one_point_is_one_cluster(cut):
    assert partition(np.zeros((1, 2)), None, 1, cut=cut).clusters.tolist() == [0]


def test_numbers_that_cannot_be_reached():
    x, known = outlier_of_a_class()
    with pytest.raises(ValueError, match=r"n_clusters=1 is outside what the known labels and pairs allow, 2 to 41"):
        partition(x, known, 1)
    with pytest.raises(ValueError, match=r"n_clusters=3 cannot be reached with min_cluster_size=20.*2 to 2 clusters"):
        partition(x, known, 3, min_cluster_size=20)
    with pytest.raises(ValueError, match="cut must be 'auto' or one of"):
        partition(x, known, 2, cut="slice")


def test_a_chosen_number_of_clusters_is_one_that_the_guard_allows():
    x, known = outlier_of_a_class()
    found = partition(x, known, min_cluster_size=21)
    assert found.n_clusters == len(np.unique(found.clusters)) == 2


@pytest.mark.parametrize("cut", sorted(set(CUTS) - {"classifier"}))
@pytest.mark.parametrize("pairs", [((), ()), ([(0, 5)], [(0, 1), (1, 2), (3, 4)])])
def test_every_cut_agrees_with_what_is_known(cut, pairs):
    points = make_points(40)
    labels = np.full(40, -1)
    labels[[6, 7, 8, 9]] = 0, 0, 1, 2
    known = Knowledge.join(labels, *pairs)
    found = partition(points, known, 5, cut=cut)
    assert known.constraints().agree(found.clusters)
    assert found.n_clusters == len(np.unique(found.clusters)) >= 5
    np.testing.assert_array_equal(CUTS[cut](points, known, 5), found.clusters)


@pytest.mark.parametrize("cut", ["auto", "forest"])
def test_a_tree_that_is_there_is_not_made_again(cut, monkeypatch):
    points, labels = np.random.default_rng(0).normal(size=(60, 3)), np.full(60, -1)
    labels[:9] = np.arange(9) % 3
    found = partition(points, Knowledge.join(labels), 5, cut=cut)
    made = []
    make = linkage.spanning_tree
    monkeypatch.setattr(linkage, "spanning_tree", lambda *each: made.append(each[2:]) or make(*each))
    again = partition(points, Knowledge.join(labels), 5, cut=cut, tree=found.free_hierarchy)
    np.testing.assert_array_equal(again.clusters, found.clusters)
    assert all(reachability is not None for reachability, *_ in made)  # but that of the robust forest
    with pytest.raises(ValueError, match="tree must be that of the 60 points, got one of 59"):
        partition(points, Knowledge.join(labels), 5, tree=partition(points[1:]).free_hierarchy)


def test_other_cuts_are_rows_of_the_table(monkeypatch):
    asked = []

    def by_sign(embedding, knowledge, n_clusters):
        asked.append(n_clusters)
        return (embedding[:, 0] > 0).astype(np.int32)

    monkeypatch.setitem(CUTS, "sign", by_sign)
    points = make_points()
    found = partition(points, None, 3, cut="sign")
    np.testing.assert_array_equal(found.clusters, points[:, 0] > 0)
    assert found.n_clusters == 2
    assert len(np.unique(found.hierarchy.labels(3))) == 3
    assert asked == [3]


@pytest.mark.parametrize("cut", CUTS)
def test_frames_as_scikit_learns_global_output_change_nothing(cut):
    x = np.random.default_rng(0).normal(size=(120, 60)) + 9 * np.eye(60)[np.arange(120) % 24]
    known = Knowledge.join(np.where(np.arange(120) < 48, np.arange(120) % 24, -1))
    expected = partition(x, known, 24, cut=cut).clusters
    with sklearn.config_context(transform_output="pandas"):
        np.testing.assert_array_equal(partition(x, known, 24, cut=cut).clusters, expected)


# ---------------------------------------------------------------------------------------------- names and confidence


def test_names():
    labels = [-1, 1, -1]
    found = partition(np.array([[0.0], [5.0], [9.0]]), Knowledge.join(labels), 3)
    assert found.classes.tolist() == [-1, 1, -1]
    assert found.names(["a", "b"]) == ["new 1", "b", "new 2"]
    assert found.names(["new 2", "new 1"]) == ["new 3", "new 1", "new 4"]


def test_memberships_are_those_under_what_is_known():
    points = make_points()
    known = Knowledge.join(np.full(N, -1), [(0, 5)], [(0, 1), (1, 2), (3, 4)])
    assert not known.all_apart
    found = partition(points, known, 4, min_cluster_size=1)

    def expected(constraints):
        shares = dc.soft_memberships(
            dc.negative_squared_distances(points), found.clusters, constraints=constraints, n_draws=30, n_clusters=4
        )
        return shares[np.arange(N), found.clusters]

    shares = found.memberships(n_draws=30)[np.arange(N), found.clusters]
    np.testing.assert_array_equal(shares, expected(known.constraints()))
    assert np.abs(expected(None) - expected(known.constraints())).max() > 0.01


def test_the_memberships_of_many_points_come_from_a_sample(monkeypatch):
    """Three clumps of 40 under a guard of 30; of a sample of 60 points each has about 20, and two labels are kept."""
    monkeypatch.setattr(linkage, "DENSE_POINTS", 60)
    sampled = []
    similarities = linkage.similarities
    monkeypatch.setattr(linkage, "similarities", lambda x, *a: sampled.append(len(x)) or similarities(x, *a))
    truth = np.arange(120) % 3
    points = np.random.default_rng(0).normal(size=(120, 1)) * 0.01 + 10 * truth[:, None]
    for known in (None, Knowledge.join(np.where(np.arange(120) < 60, truth, -1))):
        found = partition(points, known, 3, min_cluster_size=30)
        np.testing.assert_array_equal(found.memberships(n_draws=3), np.eye(3)[truth])
    assert sampled == [60, 60]


@pytest.mark.parametrize("metric", ["sqeuclidean", "precomputed"])
@pytest.mark.parametrize(
    ("new", "error", "message"),
    [
        (np.zeros((2, 5)), ValueError, r"must have \d+ columns, got shape \(2, 5\)"),
        (np.zeros(2), ValueError, r"got shape \(2,\)"),
        (np.full((2, N), np.nan), ValueError, "finite"),
        ([["a"]], TypeError, "real numbers"),
    ],
)
def test_new_points_that_cannot_be_compared(metric, new, error, message):
    points = make_points() if metric == "sqeuclidean" else np.abs(np.subtract.outer(np.arange(N), np.arange(N)))
    with pytest.raises(error, match=message):
        partition(points, None, 3, metric=metric).nearest(new)


def test_new_rows_of_another_width_are_refused():
    points = make_points()
    for clusters in (np.zeros(N, int), np.arange(N)):  # a few clusters, and many
        with pytest.raises(ValueError, match="as many columns"):
            joined_rows(points, clusters, np.zeros((2, 5)))


def test_new_points_join_the_nearest():
    found = partition(np.array([[0.0], [0.1], [5.0]]), None, 2, min_cluster_size=1)
    assert found.nearest(np.array([[4.0], [0.04]], np.float32)).tolist() == [2, 0]
