"""One tree for every k: against the forests, scikit-learn, SciPy and a naive size guard."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster import hierarchy as scipy_hierarchy
from scipy.spatial.distance import squareform
from sklearn.cluster import AgglomerativeClustering

from diffclust import Constraints, Hierarchy, negative_squared_distances, spanning_forest
from diffclust.solvers.tree import separate
from oracles import components, kept_edges, random_similarity, similarities


def random_distances(rng, n, kind):
    """Symmetric distances with a zero diagonal: of points, of points on a small grid (ties), or any numbers."""
    if kind == "points":
        x = rng.normal(size=(n, 3))
        return np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    if kind == "grid":
        x = rng.integers(0, 4, size=(n, 2))
        return np.abs(x[:, None] - x[None]).sum(-1).astype(np.float64)
    values = {"any": rng.random((n, n)), "tied": rng.integers(1, 5, size=(n, n)).astype(np.float64)}[kind]
    upper = np.triu(values, 1)
    return upper + upper.T


def partition(labels):
    """The clusters as a set of sets, whatever their names."""
    labels = np.asarray(labels)
    return {frozenset(np.flatnonzero(labels == name).tolist()) for name in np.unique(labels)}


each_kind = pytest.mark.parametrize("kind", ["points", "grid", "any", "tied"])
SIZES = [2, 3, 5, 12, 25, 60]


# ----------------------------------------------------------------------------------------------------------------
# Against our own forests


@given(similarities(missing=True))
def test_one_tree_answers_every_k(similarity):
    hierarchy = Hierarchy.from_similarity(similarity)
    n = len(similarity)
    n_pieces = n - len(hierarchy.edges)
    assert hierarchy.n_points == n
    assert np.array_equal(hierarchy.weights, similarity[tuple(hierarchy.edges.T)])
    assert (np.diff(hierarchy.weights) <= 0).all()
    assert np.isfinite(hierarchy.weights).all()
    for k in range(1, n + 1):
        if k < n_pieces:
            with pytest.raises(
                ValueError, match=f"n_clusters={k} cannot be reached.*cut into {n_pieces} to {n} .*-inf"
            ):
                hierarchy.labels(k)
            continue
        forest = spanning_forest(similarity, k)
        labels = hierarchy.labels(k)
        assert labels.dtype == np.int32
        assert labels.tolist() == forest.labels.tolist()
        assert kept_edges(forest.edges) == [tuple(edge) for edge in hierarchy.edges[: n - k].tolist()]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_larger_trees(dtype):
    rng = np.random.default_rng(0)
    for kind in ("random", "tied", "duplicated"):
        similarity = random_similarity(rng, 80, kind, dtype)
        hierarchy = Hierarchy.from_similarity(similarity)
        assert hierarchy.weights.dtype == dtype
        for k in (1, 2, 17, 79, 80):
            assert np.array_equal(hierarchy.labels(k), spanning_forest(similarity, k).labels)


def test_one_point():
    hierarchy = Hierarchy.from_similarity([[0.0]])
    assert hierarchy.edges.shape == (0, 2)
    assert hierarchy.weights.shape == (0,)
    assert hierarchy.labels(1).tolist() == [0]
    assert hierarchy.labels(1, min_cluster_size=1).tolist() == [0]
    assert hierarchy.linkage_matrix().shape == (0, 4)


# ----------------------------------------------------------------------------------------------------------------
# Against scikit-learn and SciPy


@each_kind
@pytest.mark.parametrize("n", SIZES)
def test_sklearn_single_linkage(n, kind):
    """The same clusters for every k whose cut does not go through a tie."""
    rng = np.random.default_rng(n)
    for _ in range(3):
        distances = random_distances(rng, n, kind)
        hierarchy = Hierarchy.from_similarity(-distances)
        weights = hierarchy.weights
        n_compared = 0
        for k in range(1, n + 1):
            through_a_tie = 1 < k < n and weights[n - k - 1] == weights[n - k]
            if through_a_tie:
                continue
            n_compared += 1
            model = AgglomerativeClustering(
                n_clusters=k, linkage="single", metric="precomputed", compute_full_tree=True
            )
            assert partition(model.fit(distances).labels_) == partition(hierarchy.labels(k))
        assert n_compared == n if kind in ("points", "any") else n_compared >= 2


@each_kind
@pytest.mark.parametrize("n", SIZES)
def test_scipy_single_linkage(n, kind):
    rng = np.random.default_rng(100 + n)
    for _ in range(10):
        distances = random_distances(rng, n, kind)
        condensed = squareform(distances)
        ours = Hierarchy.from_similarity(-distances).linkage_matrix()
        theirs = scipy_hierarchy.linkage(condensed, "single")
        assert ours.dtype == np.float64
        assert ours.shape == (n - 1, 4)
        assert scipy_hierarchy.is_valid_linkage(ours)
        assert scipy_hierarchy.is_monotonic(ours)
        assert np.array_equal(ours[:, 2], theirs[:, 2])
        assert np.array_equal(scipy_hierarchy.cophenet(ours), scipy_hierarchy.cophenet(theirs))
        if kind in ("points", "any"):
            assert np.array_equal(ours, theirs)
        for height in np.unique(ours[:, 2]):
            cuts = [partition(scipy_hierarchy.fcluster(z, height, "distance")) for z in (ours, theirs)]
            assert cuts[0] == cuts[1]


@each_kind
def test_fcluster_of_our_linkage_gives_our_labels(kind):
    rng = np.random.default_rng(1)
    hierarchy = Hierarchy.from_similarity(-random_distances(rng, 30, kind))
    linkage, weights = hierarchy.linkage_matrix(), hierarchy.weights
    for k in range(1, 31):
        if k in (1, 30) or weights[30 - k - 1] > weights[30 - k]:
            if k == 30 and weights[0] == 0:
                continue  # duplicated points: SciPy cannot cut below height 0
            cut = scipy_hierarchy.fcluster(linkage, k, "maxclust")
            if len(set(cut.tolist())) == k:
                assert partition(cut) == partition(hierarchy.labels(k))
            else:
                assert kind in ("grid", "tied")  # SciPy never cuts through a tie


def test_scipy_from_points_up_to_rounding():
    """Heights are negative similarities: here squared distances, made by a matrix product."""
    x = np.random.default_rng(2).normal(size=(100, 5))
    ours = Hierarchy.from_similarity(negative_squared_distances(x)).linkage_matrix()
    theirs = scipy_hierarchy.linkage(x, "single")
    assert np.array_equal(ours[:, [0, 1, 3]], theirs[:, [0, 1, 3]])
    norms = (x**2).sum(-1).max()
    assert np.abs(ours[:, 2] - theirs[:, 2] ** 2).max() <= 20 * np.finfo(float).eps * norms


@given(similarities(min_n=2, missing=True))
def test_linkage_of_a_graph_in_pieces(similarity):
    """What no edge joins is merged last, at infinity; every row merges two clusters that exist."""
    n = len(similarity)
    hierarchy = Hierarchy.from_similarity(similarity)
    linkage = hierarchy.linkage_matrix()
    members = {i: {i} for i in range(n)}
    for step, (a, b, height, size) in enumerate(linkage.tolist()):
        assert a < b
        members[n + step] = members.pop(int(a)) | members.pop(int(b))
        assert len(members[n + step]) == size
        assert height == (-hierarchy.weights[step] if step < len(hierarchy.edges) else np.inf)
        clusters = {frozenset(group) for group in members.values()}
        if step < len(hierarchy.edges):
            assert clusters == partition(hierarchy.labels(n - step - 1))
    assert len(members) == 1


# ----------------------------------------------------------------------------------------------------------------
# Clusters of at least min_cluster_size points


def naive_guarded_labels(hierarchy, min_cluster_size):
    """{number of clusters: labels}, counting both sides of every cut again by search."""
    n = hierarchy.n_points
    kept = [tuple(edge) for edge in hierarchy.edges.tolist()]
    labels = components(n, kept)
    answers = {max(labels) + 1: labels}
    for edge in kept[::-1]:  # weakest first
        trial = [other for other in kept if other != edge]
        labels = components(n, trial)
        if min(labels.count(labels[edge[0]]), labels.count(labels[edge[1]])) >= min_cluster_size:
            kept = trial
            answers[max(labels) + 1] = labels
    return answers


def assert_guard_equals_naive(hierarchy, min_cluster_size):
    n = hierarchy.n_points
    expected = naive_guarded_labels(hierarchy, min_cluster_size)
    n_pieces, most = min(expected), max(expected)
    pieces = np.array(expected[n_pieces])
    for k in range(n_pieces, n + 1):
        if k > most:
            with pytest.raises(ValueError, match=f"min_cluster_size={min_cluster_size}: .* to {most} clusters"):
                hierarchy.labels(k, min_cluster_size)
            continue
        labels = hierarchy.labels(k, min_cluster_size=min_cluster_size)
        assert labels.tolist() == expected[k]
        sizes = np.bincount(labels)
        for cluster, size in enumerate(sizes):
            piece = pieces[labels == cluster][0]
            assert size >= min(min_cluster_size, (pieces == piece).sum())  # a piece may be too small by itself


@given(st.data())
@settings(max_examples=150)
def test_guarded_cuts(data):
    similarity = data.draw(similarities(max_n=12, missing=data.draw(st.booleans())))
    min_cluster_size = data.draw(st.integers(2, max(2, len(similarity) // 2)))
    if min_cluster_size <= len(similarity):
        assert_guard_equals_naive(Hierarchy.from_similarity(similarity), min_cluster_size)


def tree_similarity(rng, n, kind):
    """The deepest and the flattest tree."""
    similarity = np.full((n, n), -np.inf)
    order = rng.permutation(n)
    left = order[:-1] if kind == "path" else np.full(n - 1, order[0])
    similarity[left, order[1:]] = similarity[order[1:], left] = rng.normal(size=n - 1)
    return similarity


@pytest.mark.parametrize("min_cluster_size", [2, 3, 5, 20, 60])
@pytest.mark.parametrize("kind", ["random", "duplicated", "missing", "path", "star"])
def test_guarded_cuts_of_larger_trees(kind, min_cluster_size):
    rng = np.random.default_rng(3)
    n = 60
    similarity = tree_similarity(rng, n, kind) if kind in ("path", "star") else random_similarity(rng, n, kind)
    assert_guard_equals_naive(Hierarchy.from_similarity(similarity), min_cluster_size)


@given(similarities())
def test_guard_of_one_point_is_no_guard(similarity):
    hierarchy = Hierarchy.from_similarity(similarity)
    n_edges = len(hierarchy.edges)
    assert hierarchy.guarded_cuts(1).tolist() == list(range(n_edges))[::-1]


def test_guard_keeps_outliers_from_using_up_the_cuts():
    rng = np.random.default_rng(4)
    blobs = np.concatenate([rng.normal(size=(40, 2)) * 0.1, rng.normal(size=(40, 2)) * 0.1 + 5])
    outliers = np.array([[100.0, 0.0], [0.0, 200.0], [-300.0, 0.0]])
    hierarchy = Hierarchy.from_similarity(negative_squared_distances(np.concatenate([blobs, outliers])))
    plain, guarded = hierarchy.labels(2), hierarchy.labels(2, min_cluster_size=10)
    assert np.bincount(plain).min() == 1
    assert len(set(guarded[:40])) == len(set(guarded[40:80])) == 1
    assert guarded[0] != guarded[40]


def test_cuts_that_are_given_again_cannot_be_changed():
    hierarchy = Hierarchy.from_points(np.random.default_rng(0).normal(size=(30, 2)))
    expected = hierarchy.labels(3, 3)
    with pytest.raises(ValueError, match="read-only"):
        hierarchy.guarded_cuts(3)[:] = 0
    np.testing.assert_array_equal(hierarchy.labels(3, 3), expected)


def test_asking_twice_gives_the_same():
    hierarchy = Hierarchy.from_similarity(random_similarity(np.random.default_rng(5), 30))
    first = [hierarchy.labels(k, m) for m in (2, 3, 2) for k in (1, 2, 3)]
    second = [hierarchy.labels(k, m) for m in (2, 3, 2) for k in (1, 2, 3)]
    assert np.array_equal(first, second)
    assert np.array_equal(first[:3], first[6:])


# ------------------------------------------------------------------------------------------------------- constraints


def some_points(rng, n):
    return negative_squared_distances(rng.normal(size=(n, 2)))


@pytest.mark.parametrize("seed", range(20))
def test_label_constraints_give_the_constrained_forest_for_every_k(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 30))
    similarity = some_points(rng, n) if seed % 2 else symmetric_integers(rng, n)
    labels = np.where(rng.random(n) < 0.5, -1, rng.integers(0, 4, n))
    known = Constraints.from_labels(labels)
    hierarchy = Hierarchy.from_similarity(similarity).constrained(known)
    assert hierarchy.feasible_clusters() == (known.min_clusters, known.max_clusters)
    for k in range(known.min_clusters, known.max_clusters + 1):
        clusters = hierarchy.labels(k)
        assert known.agree(clusters)
        if seed % 2:  # without ties
            np.testing.assert_array_equal(clusters, spanning_forest(similarity, k, constraints=known).labels)


def symmetric_integers(rng, n):
    upper = np.triu(rng.integers(0, 4, (n, n)), 1)
    return (upper + upper.T).astype(float)


@pytest.mark.parametrize("seed", range(20))
def test_pair_constraints_give_the_greedy_forest_for_every_k(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 25))
    similarity, truth = some_points(rng, n), rng.integers(0, 3, n)
    pairs = [(i, j) for i, j in rng.integers(0, n, (8, 2)) if i != j]
    known = Constraints.from_pairs(
        n, [p for p in pairs if truth[p[0]] == truth[p[1]]], [p for p in pairs if truth[p[0]] != truth[p[1]]]
    )
    greedy = Hierarchy.from_similarity(similarity, known)
    on_tree = Hierarchy.from_similarity(similarity).constrained(known)
    for hierarchy in (greedy, on_tree):
        lowest, highest = hierarchy.feasible_clusters()
        assert highest == known.max_clusters
        for k in range(lowest, highest + 1):
            clusters = hierarchy.labels(k)
            assert known.agree(clusters)
            assert clusters.max() + 1 == k
    for k in range(greedy.feasible_clusters()[0], known.max_clusters + 1):
        np.testing.assert_array_equal(greedy.labels(k), spanning_forest(similarity, k, constraints=known).labels)


def test_new_clusters_beside_labelled_groups_keep_to_the_size_guard():
    x = np.concatenate([np.arange(5.0), 20 + np.arange(5.0), 50 + np.arange(5.0), [90.0]])
    labels = np.full(16, -1)
    labels[[0, 7]] = 0, 1
    hierarchy = Hierarchy.from_similarity(-np.abs(np.subtract.outer(x, x))).constrained(Constraints.from_labels(labels))
    assert hierarchy.labels(3).tolist() == [0] * 5 + [1] * 10 + [2]  # the outlier takes the cut
    assert hierarchy.labels(3, min_cluster_size=3).tolist() == [0] * 5 + [1] * 5 + [2] * 6
    with pytest.raises(ValueError, match="2 to 3 clusters"):
        hierarchy.labels(4, min_cluster_size=5)
    with pytest.raises(ValueError, match="n_clusters=1 cannot be reached: this tree can be cut into 2 to 16"):
        hierarchy.labels(1)


def naive_separation(hierarchy, labels, min_cluster_size):
    """The edges that stay when labelled points are separated under a size guard, all counted again by search."""
    n = hierarchy.n_points
    kept = [tuple(edge) for edge in hierarchy.edges.tolist()]
    while True:
        for edge in kept[::-1]:  # weakest first
            trial = [other for other in kept if other != edge]
            pieces = components(n, trial)
            places = list(zip(labels, pieces, strict=True))
            sides = [{c for c, piece in places if piece == pieces[end] and c >= 0} for end in edge]
            sizes = []
            for c in sides[0] | sides[1]:
                held = {piece for label, piece in places if label == c}
                sizes.append(sum(piece in held for piece in pieces))
            if all(sides) and min(sizes) >= min_cluster_size:
                kept = trial
        if min_cluster_size == 1:
            return kept
        min_cluster_size //= 2


@given(st.data())
@settings(max_examples=150)
def test_labels_separate_under_the_size_guard(data):
    similarity = data.draw(similarities(min_n=2, max_n=12, missing=data.draw(st.booleans())))
    n = len(similarity)
    labels = data.draw(st.lists(st.sampled_from([-1, -1, 0, 1, 2]), min_size=n, max_size=n))
    min_cluster_size = data.draw(st.integers(1, n))
    known, free = Constraints.from_labels(labels), Hierarchy.from_similarity(similarity)
    guarded = free.constrained(known, min_cluster_size)
    expected = naive_separation(free, labels, min_cluster_size)
    assert guarded.edges[guarded.n_fixed :].tolist() == [list(edge) for edge in expected]
    assert known.agree(guarded.labels(guarded.feasible_clusters()[0]))


@pytest.mark.parametrize("kind", ["random", "duplicated", "path", "star"])
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_labels_separate_under_the_size_guard_in_larger_trees(kind, share):
    rng = np.random.default_rng(6)
    n = 60
    similarity = tree_similarity(rng, n, kind) if kind in ("path", "star") else random_similarity(rng, n, kind)
    free = Hierarchy.from_similarity(similarity)
    for min_cluster_size in (2, 7, 20, 60):
        labels = np.where(rng.random(n) < share, rng.integers(0, 4, n), -1)
        guarded = free.constrained(Constraints.from_labels(labels), min_cluster_size)
        expected = naive_separation(free, labels.tolist(), min_cluster_size)
        assert guarded.edges[guarded.n_fixed :].tolist() == [list(edge) for edge in expected]


@pytest.mark.parametrize("seed", range(20))
def test_size_guard_changes_nothing_where_all_classes_are_large_enough(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(10, 60))
    free = Hierarchy.from_similarity(some_points(rng, n))
    known = Constraints.from_labels(np.where(rng.random(n) < 0.5, -1, rng.integers(0, 3, n)))
    plain = free.constrained(known)
    size = int(np.bincount(plain.labels(known.min_clusters)).min())
    assert np.array_equal(free.constrained(known, size).edges, plain.edges)
    group, apart = known.groups()  # by the rule itself, too, not only because nothing is done
    assert np.array_equal(free.edges[separate(free.edges, group, len(apart), size)], plain.edges[plain.n_fixed :])


def test_a_labelled_outlier_does_not_leave_its_class_alone():
    x = np.concatenate([np.arange(10.0), 30 + np.arange(10.0), [-4.0]])
    labels = np.full(21, -1)
    labels[[20, 15]] = 0, 1  # the first class is labelled at its outlier only
    free = Hierarchy.from_similarity(-np.abs(np.subtract.outer(x, x)))
    known = Constraints.from_labels(labels)
    blobs = [0] * 10 + [1] * 10 + [0]
    assert free.constrained(known).labels(2).tolist() == blobs  # the gap is the weakest edge anyway
    x[10:20] -= 18  # now the outlier is farther away than the blobs are from each other
    free = Hierarchy.from_similarity(-np.abs(np.subtract.outer(x, x)))
    assert free.constrained(known).labels(2).tolist() == [0] * 20 + [1]
    assert free.constrained(known, 5).labels(2).tolist() == blobs
    with pytest.raises(ValueError, match="min_cluster_size=0"):
        free.constrained(known, 0)


def test_must_links_are_merged_first_in_the_linkage_matrix():
    x = np.array([0.0, 1.0, 5.0, 6.5])
    free = Hierarchy.from_similarity(-np.abs(np.subtract.outer(x, x)))
    z = free.constrained(Constraints.from_pairs(4, must_link=[(0, 3)])).linkage_matrix()
    assert z[0, :2].tolist() == [0, 3]
    assert (np.diff(z[:, 2]) >= 0).all()
    assert np.isfinite(z).all()


def test_constraints_that_do_not_fit_the_hierarchy():
    hierarchy = Hierarchy.from_similarity(np.zeros((3, 3)))
    with pytest.raises(ValueError, match="about 2 points"):
        hierarchy.constrained(Constraints.from_labels([0, 1]))
    with pytest.raises(TypeError, match="Constraints object"):
        hierarchy.constrained(None)
    once = hierarchy.constrained(Constraints.from_labels([0, 0, -1]))
    with pytest.raises(ValueError, match="constrained already"):
        once.constrained(Constraints.from_labels([0, -1, 1]))
