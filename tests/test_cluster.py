"""The scikit-learn estimator: scikit-learn's own battery, and what a clustering user expects."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.cluster import AgglomerativeClustering
from sklearn.datasets import load_digits, load_iris, make_blobs, make_moons
from sklearn.metrics import adjusted_rand_score, pairwise_distances
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import diffclust as dc
from diffclust.cluster import SpanningForestClustering


def expected_failures(estimator):
    if estimator.metric != "precomputed":
        return {}
    return {"check_clustering": "passes points, not a square matrix"}


# scikit-learn's checks and tools pass a y of other classes than there are clusters.
OTHER_Y = "ignore:n_clusters=.* y and constraints allow:sklearn.exceptions.ConvergenceWarning"


@parametrize_with_checks(
    [
        SpanningForestClustering(),
        SpanningForestClustering(3, metric="precomputed"),
        SpanningForestClustering("auto", min_cluster_size="auto", metric="manhattan", reachability=1),
    ],
    expected_failed_checks=expected_failures,
)
@pytest.mark.filterwarnings(OTHER_Y)
def test_scikit_learns_battery(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def moons():
    return make_moons(200, noise=0.05, random_state=0)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "manhattan", "cosine", "chebyshev"])
def test_clusters_are_scikit_learns_single_linkage(metric):
    x = load_iris().data + np.random.default_rng(0).normal(scale=1e-3, size=(150, 4))  # no ties
    theirs = AgglomerativeClustering(5, linkage="single", metric=metric.removeprefix("sq")).fit_predict(x)
    ours = SpanningForestClustering(5, metric=metric, min_cluster_size=1).fit_predict(x)
    assert adjusted_rand_score(theirs, ours) == 1


def test_precomputed_distances_and_similarities(moons):
    x, _ = moons
    expected = SpanningForestClustering(4).fit(x)
    distances = pairwise_distances(x)
    for matrix in (distances, -(distances**2), 10 - distances):
        found = SpanningForestClustering(4, metric="precomputed").fit(matrix)
        np.testing.assert_array_equal(found.labels_, expected.labels_)
        np.testing.assert_array_equal(found.predict(matrix[::3]), expected.labels_[::3])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances_are_distances_where_rounding_moves_their_zeros(dtype):
    """1 - cosine was taken for a similarity, where a point's distance to itself is not exactly 0."""
    x = np.random.default_rng(0).normal(size=(30, 5))
    x = (x / np.linalg.norm(x, axis=1)[:, None]).astype(dtype)
    distances = 1 - x @ x.T
    assert np.diagonal(distances).any()
    found = SpanningForestClustering(3, metric="precomputed").fit(distances)
    expected = SpanningForestClustering(3, metric="cosine").fit(x)
    assert np.array_equal(found.labels_, expected.labels_)
    assert np.array_equal(found.predict(distances), expected.labels_)


def test_weights_of_a_graph_that_look_like_distances_come_with_a_warning(recwarn):
    """Zero means no edge there, and the same point in distances."""
    weights = np.zeros((8, 8))
    for i, j in ((0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7)):
        weights[i, j] = weights[j, i] = 3
    model = SpanningForestClustering(2, metric="precomputed")
    with pytest.warns(UserWarning, match=r"If X are similarities, say so by np\.fill_diagonal"):
        model.fit(weights)
    recwarn.clear()
    np.fill_diagonal(weights, weights.max())
    assert model.fit(weights).labels_.tolist() == [0] * 4 + [1] * 4
    model.fit(pairwise_distances(np.repeat(np.random.default_rng(0).normal(size=(5, 3)), 2, axis=0)))  # equal points
    assert len(recwarn) == 0


def test_hierarchy_has_every_other_number_of_clusters(moons):
    model = SpanningForestClustering(2).fit(moons[0])
    for k in (1, 3, 200):
        plain = SpanningForestClustering(k, min_cluster_size=1).fit(moons[0])
        np.testing.assert_array_equal(model.hierarchy_.labels(k), plain.labels_)


@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine", "manhattan"])
def test_predict_joins_the_most_similar_fitted_point(metric):
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(100, 3)), rng.normal(size=(40, 3))
    model = SpanningForestClustering(5, metric=metric).fit(x)
    nearest = pairwise_distances(new, x, metric=metric).argmin(1)
    np.testing.assert_array_equal(model.predict(new), model.labels_[nearest])
    np.testing.assert_array_equal(model.predict(x), model.labels_)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine", "manhattan", "chebyshev"])
@pytest.mark.parametrize("where", [0.0, 3e7, 1e8, 1e12, "two groups"])
def test_fitted_points_are_in_their_own_cluster_wherever_they_are(metric, where):
    x = np.random.default_rng(0).normal(size=(300, 17))
    x += np.where(np.arange(300) % 2, 1e8, -1e8)[:, None] if where == "two groups" else where
    model = SpanningForestClustering(150, metric=metric).fit(x)  # many clusters: a wrong neighbour is seen
    np.testing.assert_array_equal(model.predict(x), model.labels_)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "manhattan", "chebyshev"])
def test_soft_memberships_do_not_depend_on_where_the_points_are(metric):
    x = np.random.default_rng(0).integers(0, 50, size=(60, 17)).astype(float)  # integers: no rounding when moved
    near, far = (SpanningForestClustering(5, metric=metric, min_cluster_size=3).fit(x + offset) for offset in (0, 1e12))
    np.testing.assert_array_equal(near.labels_, far.labels_)
    np.testing.assert_array_equal(near.soft_predict(n_draws=10), far.soft_predict(n_draws=10))


def test_new_points_that_cannot_be_compared_are_an_error():
    model = SpanningForestClustering(2).fit([[0.0], [1.0], [5.0]])
    with pytest.raises(ValueError, match="too far apart"):
        model.predict([[1e200]])
    model = SpanningForestClustering(2, metric="cosine").fit([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    with pytest.raises(ValueError, match="point 1 is a zero vector"):
        model.predict([[2.0, 0.0], [0.0, 0.0]])


@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine", "chebyshev"])
def test_of_equally_near_points_the_first_counts(metric):
    x = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    model = SpanningForestClustering(4, metric=metric).fit(x)
    assert model.predict([[1.0, 1.0], [0.1, 1.0], [1.0, 0.1]]).tolist() == [0, 0, 1]


def test_the_size_guard_finds_digits_where_plain_single_linkage_finds_outliers():
    x, y = load_digits(return_X_y=True)
    plain = SpanningForestClustering(10, min_cluster_size=1).fit(x)
    guarded = SpanningForestClustering(10).fit(x)
    assert guarded.min_cluster_size_ == 59
    assert np.bincount(guarded.labels_).min() >= 59
    assert adjusted_rand_score(y, plain.labels_) < 0.01
    assert adjusted_rand_score(y, guarded.labels_) > 0.4


def test_robust_linkage_does_not_chain_through_a_bridge():
    x, y = make_blobs(150, centers=[(0, 0), (10, 0)], cluster_std=1.0, random_state=1)
    bridge = np.stack([np.arange(0, 10, 0.3), np.zeros(34)], axis=1)
    both = np.concatenate([x, bridge])
    plain, robust = (
        SpanningForestClustering(2, min_cluster_size=10, reachability=m).fit(both).labels_[:150] for m in (None, 8)
    )
    assert adjusted_rand_score(y, plain) < 0.1
    assert adjusted_rand_score(y, robust) == 1


def test_label_constraints_and_new_clusters():
    x, y = make_blobs(90, centers=[(0, 0), (6, 0), (0, 6)], cluster_std=0.7, random_state=0)
    labels = np.where((np.arange(90) < 20) & (y < 2), y, -1)  # the third blob has no labels
    model = SpanningForestClustering(3, min_cluster_size=5).fit(x, constraints=dc.Constraints.from_labels(labels))
    assert dc.Constraints.from_labels(labels).agree(model.labels_)
    assert adjusted_rand_score(y, model.labels_) > 0.95


def labelled_outlier():
    """Two blobs; the one label of the first is at its outlier, farther from it than the blobs are from each other."""
    x, y = make_blobs(60, centers=[(0, 0), (6, 0)], cluster_std=0.7, random_state=0)
    labels = np.full(61, -1)
    labels[[60, np.flatnonzero(y == 1)[0]]] = 0, 1
    return np.append(x, [[-12.0, 0.0]], axis=0), np.append(y, 0), dc.Constraints.from_labels(labels)


def test_labelled_classes_keep_to_the_size_guard():
    x, y, known = labelled_outlier()
    plain = SpanningForestClustering(2, min_cluster_size=1).fit(x, constraints=known)
    assert sorted(np.bincount(plain.labels_)) == [1, 60]
    guarded = SpanningForestClustering(2).fit(x, constraints=known)
    assert adjusted_rand_score(y, guarded.labels_) == 1
    assert adjusted_rand_score(y, guarded.soft_predict(epsilon=0.01, n_draws=10).argmax(1)) == 1
    np.testing.assert_array_equal(guarded.hierarchy_.labels(2), guarded.labels_)
    unconstrained = SpanningForestClustering(2, min_cluster_size=1).fit(x)
    np.testing.assert_array_equal(guarded.free_hierarchy_.labels(2), unconstrained.labels_)


def test_guard_is_lowered_until_the_number_of_clusters_is_reached():
    x, _, known = labelled_outlier()
    sizes = {}
    for k in (2, 5, 12, 60):
        model = SpanningForestClustering(k).fit(x, constraints=known)
        size = sizes[k] = model.min_cluster_size_
        halved = [max(1, len(x) // (3 * k))]
        while halved[-1] > 1:
            halved.append(halved[-1] // 2)
        assert size in halved
        assert model.labels_.max() + 1 == k
        np.testing.assert_array_equal(model.hierarchy_.edges, model.free_hierarchy_.constrained(known, size).edges)
        if size < halved[0]:
            larger = halved[halved.index(size) - 1]
            assert model.free_hierarchy_.constrained(known, larger).feasible_clusters(larger)[1] < k
    assert sizes[2] > 1
    assert sizes[60] == 1


def test_default_sizes_are_not_single_points():
    x, _ = make_blobs(693, n_features=5, centers=6, cluster_std=2.0, random_state=0)
    assert np.bincount(SpanningForestClustering(6, min_cluster_size=1).fit(x).labels_).min() == 1
    assert np.bincount(SpanningForestClustering(6).fit(x).labels_).min() >= 9


def test_labels_and_pairs_together():
    x, y, _ = labelled_outlier()
    labels = np.full(61, -1)
    first, second = np.flatnonzero(y == 0)[0], np.flatnonzero(y == 1)[0]
    labels[[first, second]] = 4, 2
    pairs = [(60, int(second))]  # the outlier belongs to the other blob, says somebody
    known = dc.Knowledge.join(labels, must_link=pairs, cannot_link=[(60, int(first))])
    model = SpanningForestClustering(2).fit(x, constraints=known)
    assert model.labels_[60] == model.labels_[second] != model.labels_[first]
    assert model.partition_.classes[model.labels_[[first, second]]].tolist() == [4, 2]
    with pytest.raises(ValueError, match="about 61 points, but there are 60"):
        SpanningForestClustering(2).fit(x[:60], constraints=known)


def test_pair_constraints_change_the_clusters(moons):
    x, _ = moons
    free = SpanningForestClustering(2).fit(x).labels_
    together = [(0, int(np.flatnonzero(free != free[0])[0]))]
    apart = [(0, int(np.flatnonzero(free == free[0])[1]))]
    for pairs in ({"must_link": together}, {"cannot_link": apart}, {"must_link": together, "cannot_link": apart}):
        known = dc.Constraints.from_pairs(200, **pairs)
        assert not known.agree(free)
        assert known.agree(SpanningForestClustering(2).fit(x, constraints=known).labels_)
    triangle = dc.Constraints.from_pairs(200, cannot_link=[(0, 1), (1, 2), (2, 0), (0, 5)])  # not of the form of labels
    assert triangle.agree(SpanningForestClustering(4).fit(x, constraints=triangle).labels_)
    with pytest.raises(ValueError, match="n_clusters=2 is outside what the known labels and pairs allow, 3 to 200"):
        SpanningForestClustering(2).fit(x, constraints=triangle)


def test_automatic_number_of_clusters(moons):
    x, y = moons
    assert SpanningForestClustering("auto").fit(x).n_clusters_ == 2
    x, y = load_digits(return_X_y=True)
    some = np.where(np.arange(len(y)) % 10 == 0, y, -1)
    model = SpanningForestClustering("auto").fit(x, constraints=dc.Constraints.from_labels(some))
    assert 10 <= model.n_clusters_ <= 20
    assert adjusted_rand_score(y, model.labels_) > 0.8


def test_soft_memberships(moons):
    x, _ = moons
    model = SpanningForestClustering(2).fit(x)
    shares = model.soft_predict(epsilon=0.05, n_draws=20)
    assert shares.shape == (200, 2)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert (shares.argmax(1) == model.labels_).mean() > 0.95
    np.testing.assert_array_equal(model.soft_predict(x[:5], epsilon=0.05, n_draws=20), shares[:5])


def test_soft_memberships_of_many_points_come_from_a_sample(moons, monkeypatch):
    monkeypatch.setattr("diffclust.linkage.DENSE_POINTS", 60)
    x, _ = moons
    model = SpanningForestClustering(2, min_cluster_size=20).fit(x)
    shares = model.soft_predict(epsilon=0.02, n_draws=10)
    assert shares.shape == (200, 2)
    assert (shares.argmax(1) == model.labels_).mean() > 0.8


@pytest.mark.filterwarnings(OTHER_Y)
def test_pipeline_grid_search_clone_and_pickle(moons):
    x, y = moons
    pipeline = make_pipeline(StandardScaler(), SpanningForestClustering(2))
    assert adjusted_rand_score(y, pipeline.fit_predict(x)) == 1
    search = GridSearchCV(
        SpanningForestClustering(), {"n_clusters": [2, 5], "min_cluster_size": [1, 5]},
        scoring=lambda model, x, y: adjusted_rand_score(y, model.predict(x)), cv=3,
    ).fit(x, y)  # fmt: skip
    assert search.best_params_["n_clusters"] == 2
    model = SpanningForestClustering(3, min_cluster_size=4).fit(x)
    assert clone(model).get_params() == model.get_params()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.labels_)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"n_clusters": 0}, ValueError, "n_clusters=0 must be from 1 to 200"),
        ({"n_clusters": 201}, ValueError, "n_samples=200"),
        ({"n_clusters": 2.5}, TypeError, "must be an integer"),
        ({"n_clusters": "many"}, TypeError, "must be an integer or 'auto'"),
        ({"n_clusters": None}, TypeError, "must be an integer or 'auto', got None"),
        ({"min_cluster_size": 0}, ValueError, "min_cluster_size=0 must be from 1 to 200"),
        ({"min_cluster_size": 150, "n_clusters": 2}, ValueError, "1 to 1 clusters"),
        ({"metric": "hamming"}, ValueError, "metric"),
        ({"metric": "precomputed"}, ValueError, "square"),
        ({"reachability": 0}, ValueError, "reachability=0 must be from 1 to 199"),
        ({"reachability": 200}, ValueError, "200"),
    ],
)
def test_bad_parameters(moons, parameters, error, message):
    with pytest.raises(error, match=message):
        SpanningForestClustering(**parameters).fit(moons[0])


def test_bad_constraints(moons):
    with pytest.raises(ValueError, match="about 3 points"):
        SpanningForestClustering(2).fit(moons[0], constraints=dc.Constraints.from_labels([0, 1, -1]))
    with pytest.raises(TypeError, match="Constraints object"):
        SpanningForestClustering(2).fit(moons[0], constraints=[0, 1])


def test_masked_points_are_refused():
    x = np.arange(12.0).reshape(6, 2)
    masked = np.ma.masked_array(x, mask=x == 3)
    model = SpanningForestClustering(2).fit(x)
    for call in (lambda: SpanningForestClustering(2).fit(masked), lambda: model.predict(masked)):
        with pytest.raises(ValueError, match=r"X has masked entries, the first at \(1, 1\)"):
            call()


@pytest.mark.parametrize("metric", ["sqeuclidean", "precomputed"])
def test_outliers_are_told_apart_on_request(metric):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(size=(60, 2)), rng.uniform(size=(60, 2)) + 5, [[2.5, 20.0]]])
    given = x if metric != "precomputed" else np.linalg.norm(x[:, None] - x, axis=2)
    plain = SpanningForestClustering(2, metric=metric).fit(given)
    told = SpanningForestClustering(2, metric=metric, outliers=True).fit(given)
    assert plain.labels_[-1] >= 0
    assert np.flatnonzero(told.labels_ == -1).tolist() == [120]
    np.testing.assert_array_equal(told.labels_[:120], plain.labels_[:120])
    if metric != "precomputed":
        named = SpanningForestClustering(2, outliers=True).fit(x, ["a", *[""] * 118, "b", ""])
        assert named.labels_[-1] == ""
        assert set(named.labels_) == {"a", "b", ""}
