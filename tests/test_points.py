"""Trees from points: edge for edge against the similarity matrix, and against scikit-learn's single linkage."""

import itertools
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.cluster import AgglomerativeClustering
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.metrics import adjusted_rand_score

from diffclust import Hierarchy, mutual_reachability
from diffclust.solvers.points import cells, neighbours, search, tiles, vectors
from diffclust.solvers.points.cells import LARGEST, divide, nearest_in_cells
from diffclust.solvers.points.progress import Progress
from diffclust.solvers.points.search import nearest_points
from diffclust.solvers.points.tiles import CHEBYSHEV, MANHATTAN, SQUARED_EUCLIDEAN

METRICS = ["sqeuclidean", "euclidean", "cosine", "manhattan", "chebyshev"]
PATHS = {
    "complete": {"algorithm": "complete"},
    "kdtree": {"algorithm": "kdtree"},
    "auto": {"algorithm": "auto"},
    "graph": {"n_neighbors": -1},
}
each_path = pytest.mark.parametrize("path", PATHS)
each_metric = pytest.mark.parametrize("metric", METRICS)


def tree_of(x, metric="sqeuclidean", path="auto"):
    """The hierarchy by one of the paths, all of which are exact: the graph has all n - 1 neighbours."""
    options = dict(PATHS[path])
    if "n_neighbors" in options:
        options["n_neighbors"] = len(x) - 1
    return Hierarchy.from_points(x, metric, **options)


def similarity_matrix(x, metric):
    x = np.asarray(x, np.float64)
    if metric == "cosine":
        unit = x / np.linalg.norm(x, axis=1)[:, None]
        return 1 - cdist(unit, unit, "sqeuclidean") / 2
    return 0.0 - cdist(x, x, "cityblock" if metric == "manhattan" else metric)


def make_points(kind, n, d, seed=0):
    rng = np.random.default_rng([seed, n, d])
    if kind == "random":
        return rng.normal(size=(n, d))
    if kind == "grid":  # small integers: sums and squares are exact, ties and duplicates abound
        return rng.integers(1, 4, size=(n, d)).astype(np.float64)
    if kind == "duplicates":
        return rng.normal(size=(max(n // 3, 1), d))[rng.integers(0, max(n // 3, 1), n)]
    return rng.normal(size=(n, d)) + 30.0 * rng.integers(0, 3, size=(n, 1))  # blobs


def assert_same_partitions(hierarchy, x, linkage_metric, similarity):
    """scikit-learn's single linkage agrees for every k at which no tie (or near tie) leaves a choice."""
    n = len(x)
    heights = -hierarchy.weights
    for k in range(2, n):
        kept, cut = heights[n - k - 1], heights[n - k]
        if cut - kept <= 1e-9 * max(abs(cut), 1e-3):
            continue
        model = AgglomerativeClustering(k, metric=linkage_metric, linkage="single")
        theirs = model.fit(-similarity if linkage_metric == "precomputed" else x).labels_
        assert adjusted_rand_score(theirs, hierarchy.labels(k)) == 1.0


# ----------------------------------------------------------------------------------------------------------------
# Exactness


@each_path
@each_metric
@pytest.mark.parametrize("kind", ["random", "grid", "duplicates", "blobs"])
def test_equals_the_tree_of_the_similarity_matrix(kind, metric, path):
    for n, d in ((2, 1), (3, 2), (9, 1), (10, 3), (31, 5), (32, 4), (33, 7), (65, 2), (150, 6), (220, 13)):
        x = make_points(kind, n, d)
        hierarchy = tree_of(x, metric, path)
        expected = Hierarchy.from_similarity(similarity_matrix(x, metric))
        assert hierarchy.edges.dtype == np.int32
        assert hierarchy.weights.dtype == np.float64
        assert (np.diff(hierarchy.weights) <= 0).all()
        np.testing.assert_allclose(hierarchy.weights, expected.weights, rtol=1e-12, atol=1e-14)
        if kind == "random" or (kind == "grid" and metric in ("sqeuclidean", "manhattan", "chebyshev")):
            assert np.array_equal(hierarchy.edges, expected.edges)  # no rounding: ties, too, go the same way


@each_path
@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 8, 16, 17, 33, 64])
def test_dimensions_and_600_points(d, path):
    x = make_points("random", 600, d)
    hierarchy = tree_of(x, "euclidean", path)
    expected = Hierarchy.from_similarity(similarity_matrix(x, "euclidean"))
    assert np.array_equal(hierarchy.edges, expected.edges)
    np.testing.assert_allclose(hierarchy.weights, expected.weights, rtol=1e-12)


@each_path
@pytest.mark.parametrize("kind", ["random", "grid", "duplicates", "blobs"])
def test_partitions_of_single_linkage(kind, path):
    x = make_points(kind, 60, 3)
    for metric in ("euclidean", "manhattan", "chebyshev"):
        linkage_metric = metric if metric != "chebyshev" else "precomputed"
        assert_same_partitions(tree_of(x, metric, path), x, linkage_metric, similarity_matrix(x, metric))


@each_path
@pytest.mark.parametrize("load", [load_iris, load_wine, load_digits])
def test_real_data(load, path):
    x = load().data[:600]
    hierarchy = tree_of(x, "euclidean", path)
    merged = AgglomerativeClustering(None, distance_threshold=0, linkage="single").fit(x).distances_
    np.testing.assert_allclose(-hierarchy.weights, merged, rtol=1e-12)
    heights = -hierarchy.weights
    for k in (2, 3, 5, 10, 20, 50, 100):
        if heights[len(x) - k] - heights[len(x) - k - 1] > 1e-9:
            theirs = AgglomerativeClustering(k, linkage="single").fit(x).labels_
            assert adjusted_rand_score(theirs, hierarchy.labels(k)) == 1.0


@pytest.mark.parametrize("path", ["complete", "kdtree"])
def test_equal_points_are_at_distance_zero_wherever_they_are(path):
    x = np.array([[1e8, 1.0], [1e8, 1.0], [1e8 + 1, 1.0], [-0.0, 0.0], [0.0, -0.0]])
    assert tree_of(x, path=path).weights.tolist() == [0.0, 0.0, -1.0, -(1e16 + 1.0)]
    assert tree_of(np.ones((500, 3)), path=path).edges.tolist() == [[0, i] for i in range(1, 500)]
    directions = tree_of(np.array([[1.0, 2.0], [2.0, 4.0], [-3.0, 1.0]]), "cosine", path)
    assert directions.weights[0] == 1.0


def far_from_the_origin(where, n=300, d=17):
    """Normal points, all moved by ``where``; for "two groups" half of them to one side, half to the other."""
    x = make_points("random", n, d)
    if where == "two groups":
        return x + np.where(np.arange(n) % 2, 1e8, -1e8)[:, None]
    return x + where


each_place = pytest.mark.parametrize("where", [0.0, 3e7, 1e8, 1e12, "two groups"])
differences = pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "manhattan", "chebyshev"])


@each_path
@differences
@each_place
def test_tree_far_from_the_origin(where, metric, path):
    x = far_from_the_origin(where)
    expected = Hierarchy.from_similarity(similarity_matrix(x, metric))
    np.testing.assert_allclose(tree_of(x, metric, path).weights, expected.weights, rtol=1e-12)
    if path == "graph":  # few neighbours, too, are the right ones: nothing of the tree is missing
        few = Hierarchy.from_points(x, metric, n_neighbors=40)
        assert np.isclose(few.weights, expected.weights, rtol=1e-12).mean() > 0.9


@differences
@each_place
def test_robust_tree_far_from_the_origin(where, metric):
    x = far_from_the_origin(where)
    expected = Hierarchy.from_similarity(mutual_reachability(similarity_matrix(x, metric), 5))
    found = Hierarchy.from_points(x, metric, reachability=5)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-12)


@pytest.mark.parametrize("number", [np.float64, np.float32])
@pytest.mark.parametrize("d", [1, 2, 7, 64])
def test_distances_of_a_few_points_to_a_tile(d, number):
    """All of them, in the order of the coordinates, of lanes of a tile and of points that stand alone."""
    rng = np.random.default_rng(d)
    xs, ys = (rng.normal(size=(3, d, vectors.WIDTH)).astype(number) for _ in range(2))
    ys[1, :, -1] = np.inf  # as where the last tile is filled up
    out = np.full(vectors.ROWS * vectors.WIDTH, np.nan, number)
    for row in range(0, vectors.WIDTH, vectors.ROWS):
        few = xs[2, :, row : row + vectors.ROWS]
        gaps = np.abs(few[:, :, None] - ys[1][:, None])
        for kind, expected in (
            (tiles.SQUARED_EUCLIDEAN, (gaps.astype(float) ** 2).sum(0)),
            (tiles.MANHATTAN, np.cumsum(gaps, 0, dtype=number)[-1]),
            (tiles.CHEBYSHEV, gaps.max(0)),
        ):
            tolerance = 2 * d * np.finfo(number).eps if kind == tiles.SQUARED_EUCLIDEAN else 0
            for points, a, first in ((xs, 2, row), (few[None].copy(), 0, 0)):
                tiles.distances(kind, points, a, first, ys, 1, out)
                np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=tolerance)


def test_a_distance_is_the_same_both_ways_and_zero_for_equal_points():
    x = np.random.default_rng(0).normal(size=(2, 33, vectors.WIDTH))
    both = np.empty((2, vectors.WIDTH, vectors.WIDTH))
    for b in range(2):
        for row in range(0, vectors.WIDTH, vectors.ROWS):
            tiles.distances(tiles.SQUARED_EUCLIDEAN, x, 1 - b, row, x, b, both[b, row : row + vectors.ROWS].reshape(-1))
    assert np.array_equal(both[0], both[1].T)
    out = np.empty(vectors.ROWS * vectors.WIDTH)
    tiles.distances(tiles.SQUARED_EUCLIDEAN, x, 0, 8, x, 0, out)
    assert (out.reshape(vectors.ROWS, -1)[:, 8 : 8 + vectors.ROWS].diagonal() == 0).all()


@pytest.mark.parametrize("kind", ["random", "grid", "duplicates", "blobs"])
@pytest.mark.parametrize("length", [tiles.SQUARED_EUCLIDEAN, tiles.MANHATTAN, tiles.CHEBYSHEV])
def test_nearest_points_of_queries(length, kind):
    name = ["sqeuclidean", "cityblock", "chebyshev"][length]
    for n, n_queries, d in ((1, 1, 1), (5, 40, 2), (33, 7, 4), (200, 65, 3), (400, 130, 17)):
        x, queries = make_points(kind, n, d), make_points(kind, n_queries, d, seed=1)
        expected = cdist(queries, x, name)
        for m in {1, min(6, n), n}:
            distances, found = search.nearest_points(x, queries, length, m)
            order = np.argsort(expected, axis=1, kind="stable")[:, :m]
            last = np.take_along_axis(expected, order[:, -1:], axis=1)
            np.testing.assert_allclose(distances[:, :1], last, rtol=1e-12)
            if kind == "grid":  # exact numbers: of equally far ones the first
                assert np.array_equal(np.sort(found, axis=1), np.sort(order, axis=1))
                assert np.array_equal(found[:, 0], order[:, -1])
            np.testing.assert_allclose(distances, np.take_along_axis(expected, found, axis=1), rtol=1e-12, atol=1e-300)


def test_paths_agree_beyond_one_block(monkeypatch):
    """Many blocks, rounds of a tournament and searches: 3,000 points in clusters whose lists run out."""
    monkeypatch.setattr(search, "BLOCK", 4)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 6)) + 20 * rng.normal(size=(12, 6))[rng.integers(0, 12, 3000)]
    kdtree, complete = (tree_of(x, path=path) for path in ("kdtree", "complete"))
    assert np.array_equal(kdtree.edges, complete.edges)
    # The compiler chooses which products are fused, and may choose differently in each path: equal but for rounding.
    np.testing.assert_allclose(kdtree.weights, complete.weights, rtol=1e-14)
    merged = AgglomerativeClustering(None, distance_threshold=0, linkage="single").fit(x).distances_
    np.testing.assert_allclose(-kdtree.weights, merged**2, rtol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_paths_agree_where_all_distances_tie(d):
    """A whole grid: of equally near points, beyond the end of a list and in other leaves, the first ones count."""
    grid = np.stack(np.meshgrid(*[np.arange(round(2000 ** (1 / d)))] * d), axis=-1).reshape(-1, d)
    x = np.random.default_rng(0).permutation(grid).astype(np.float64)
    kdtree, complete = (tree_of(x, path=path) for path in ("kdtree", "complete"))
    assert np.array_equal(kdtree.edges, Hierarchy.from_similarity(similarity_matrix(x, "sqeuclidean")).edges)
    assert np.array_equal(kdtree.edges, complete.edges)


def test_blocks_meet_once_and_never_two_at_a_time():
    for n in (2, 4, 6, 16):
        rounds = search._tournament(n)
        games = [tuple(sorted(game)) for games in rounds for game in games]
        assert sorted(games) == [(a, b) for a in range(n) for b in range(a + 1, n)]
        assert all(len({block for game in games for block in game}) == n for games in rounds)


def test_auto_descends_where_that_leaves_out_most_pairs():
    rng = np.random.default_rng(0)
    assert search.worth_descending(tiles.build_tree(rng.normal(size=(4000, 3))), 0)
    assert not search.worth_descending(tiles.build_tree(rng.normal(size=(4000, 40))), 0)
    assert search.worth_descending(tiles.build_tree(rng.normal(size=(4000, 2)) @ rng.normal(size=(2, 40))), 0)


# ----------------------------------------------------------------------------------------------------------------
# Input


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint8, bool])
def test_dtypes(dtype):
    x = (make_points("grid", 50, 4) - 1).astype(dtype)
    expected = Hierarchy.from_points(x.astype(np.float64))
    assert np.array_equal(Hierarchy.from_points(x).edges, expected.edges)
    assert np.array_equal(Hierarchy.from_points(x).weights, expected.weights)


def test_lists_views_and_tensors():
    torch = pytest.importorskip("torch")
    x = make_points("random", 40, 3)
    expected = Hierarchy.from_points(x).edges
    read_only = x.copy()
    read_only.setflags(write=False)
    for given in (x.tolist(), np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], read_only, torch.tensor(x)):
        assert np.array_equal(Hierarchy.from_points(given).edges, expected)
    assert np.array_equal(Hierarchy.from_points(torch.tensor(x, requires_grad=True)).edges, expected)
    half = torch.tensor(x).bfloat16()
    assert np.array_equal(Hierarchy.from_points(half).edges, Hierarchy.from_points(half.double()).edges)
    before = x.copy()
    Hierarchy.from_points(x, "cosine")
    assert np.array_equal(x, before)


@each_path
def test_one_point_and_two(path):
    if path != "graph":
        assert tree_of([[1.0, 2.0]], path=path).edges.shape == (0, 2)
        assert tree_of([[1.0, 2.0]], path=path).labels(1).tolist() == [0]
    assert tree_of([[0.0], [3.0]], path=path).weights.tolist() == [-9.0]
    assert tree_of([[2.0], [2.0]], path=path).weights.tolist() == [0.0]


@pytest.mark.parametrize(
    ("x", "options", "error", "message"),
    [
        ([[0.0], [np.nan]], {}, ValueError, r"points must be finite: entry \(1, 0\) is nan"),
        ([[0.0, -np.inf]], {}, ValueError, r"points must be finite: entry \(0, 1\) is -inf"),
        (np.empty((0, 3)), {}, ValueError, "points are empty"),
        (np.empty((3, 0)), {}, ValueError, "points are empty"),
        ([1.0, 2.0], {}, ValueError, r"points must have shape \(n, d\), got shape \(2,\)"),
        (np.zeros((2, 3, 4)), {}, ValueError, r"points must have shape \(n, d\)"),
        ([["a"], ["b"]], {}, TypeError, "points must be real numbers"),
        (np.zeros((2, 2), complex), {}, TypeError, "points must be real numbers"),
        ([[1.0, 0.0], [0.0, 0.0]], {"metric": "cosine"}, ValueError, "point 1 is a zero vector"),
        ([[0.0], [1e200]], {}, ValueError, "too far apart"),
        ([[0.0], [1.0]], {"metric": "hamming"}, ValueError, "metric must be one of 'sqeuclidean'.*got 'hamming'"),
        ([[0.0], [1.0]], {"metric": None}, ValueError, "metric must be one of"),
        ([[0.0], [1.0]], {"algorithm": "prim"}, ValueError, "algorithm must be one of 'auto'.*got 'prim'"),
        ([[0.0], [1.0]], {"progress": 1}, TypeError, "progress must be True or False"),
        ([[0.0], [1.0]], {"n_neighbors": 0}, ValueError, "n_neighbors=0 must be from 1"),
        ([[0.0], [1.0]], {"n_neighbors": 2}, ValueError, "n_neighbors=2 must be from 1"),
        ([[0.0], [1.0]], {"n_neighbors": 1.5}, TypeError, "n_neighbors must be an integer"),
    ],
)
def test_bad_input(x, options, error, message):
    with pytest.raises(error, match=message) as raised:
        Hierarchy.from_points(x, **options)
    assert "\n" not in str(raised.value)


def test_large_numbers_have_a_cosine():
    expected = Hierarchy.from_points([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], "cosine").weights
    found = Hierarchy.from_points([[1e300, 0.0], [1e300, 1e300], [0.0, 1e-300]], "cosine").weights
    np.testing.assert_allclose(found, expected, rtol=1e-15)


# ----------------------------------------------------------------------------------------------------------------
# The neighbour graph


@each_metric
def test_separated_blobs_become_one_tree(metric):
    rng = np.random.default_rng(0)
    centres = 50 * rng.normal(size=(6, 4))
    x = np.repeat(centres, 50, axis=0) + 0.1 * rng.normal(size=(300, 4))
    exact, approximate = Hierarchy.from_points(x, metric), Hierarchy.from_points(x, metric, n_neighbors=3)
    assert approximate.edges.shape == (299, 2)
    assert (approximate.weights <= exact.weights + 1e-9).all()
    np.testing.assert_allclose(approximate.weights[-5:], exact.weights[-5:], rtol=1e-12)  # all were asked: exact
    assert adjusted_rand_score(approximate.labels(6), np.repeat(np.arange(6), 50)) == 1.0


def test_pieces_too_large_to_ask_every_point(monkeypatch):
    monkeypatch.setattr(neighbours, "PAIRS", 160_000)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4000, 2)) + np.repeat([[0, 0], [40, 0], [0, 60], [90, 90]], 1000, axis=0)
    exact, approximate = Hierarchy.from_points(x), Hierarchy.from_points(x, n_neighbors=5)
    assert len(approximate.edges) == 3999
    assert np.array_equal(np.sort(approximate.labels(4)), np.repeat(np.arange(4), 1000))
    assert approximate.weights[-3:] == pytest.approx(exact.weights[-3:], rel=0.1)


def test_all_points_of_small_pieces_are_asked_and_a_sample_of_large_ones(monkeypatch):
    component = np.array([-1, *[0] * 100, *[1] * 40, *[2] * 70, -1], np.int32)
    asked, sampled = neighbours._to_ask(component, 3, spared=2)
    assert asked.tolist() == list(range(1, 141))
    assert sampled.tolist() == [False] * 3
    monkeypatch.setattr(neighbours, "PAIRS", 0)  # at least 32 of each
    asked, sampled = neighbours._to_ask(component, 3, spared=2)
    assert asked.tolist() == [*range(1, 101, 4), *range(101, 141, 2)]
    assert sampled.tolist() == [True] * 3


def test_approximate_neighbours(monkeypatch):
    monkeypatch.setattr(neighbours, "FEW", 100)
    x = make_points("blobs", 6000, 5)
    for metric in METRICS:
        exact, approximate = Hierarchy.from_points(x, metric), Hierarchy.from_points(x, metric, n_neighbors=10)
        same = set(map(tuple, exact.edges.tolist())) & set(map(tuple, approximate.edges.tolist()))
        assert len(same) > 0.97 * len(exact.edges)
        assert (approximate.weights <= exact.weights + 1e-12).all()


@pytest.mark.parametrize("where", [1e12, "two groups"])
@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_approximate_neighbours_that_float32_cannot_tell(monkeypatch, where, scale):
    monkeypatch.setattr(neighbours, "FEW", 100)
    x = scale * far_from_the_origin(where, 3000, 3)
    for metric in ("euclidean", "manhattan", "chebyshev"):
        exact, approximate = Hierarchy.from_points(x, metric), Hierarchy.from_points(x, metric, n_neighbors=10)
        assert np.isclose(exact.weights, approximate.weights, rtol=1e-9, atol=0).mean() > 0.97


def test_only_points_that_float32_blurs_are_searched_again(monkeypatch):
    monkeypatch.setattr(neighbours, "FEW", 100)
    asked, search_exactly = [], neighbours.nearest_points
    monkeypatch.setattr(
        neighbours,
        "nearest_points",
        lambda x, queries, *rest: asked.append(len(queries)) or search_exactly(x, queries, *rest),
    )
    x = make_points("random", 3000, 3)
    Hierarchy.from_points(x, n_neighbors=10)
    assert asked == []
    x[:500] = 3.0 + 1e-8 * x[:500]
    Hierarchy.from_points(x, n_neighbors=10)
    assert asked == [500]


def shares_found(x, kind, n_listed):
    """Share of the nearest of all points that the search in cells finds."""
    found = nearest_in_cells(x.astype(np.float32), kind, n_listed, Progress(False))
    assert found.shape == (len(x), n_listed)
    exact = nearest_points(x, x, kind, n_listed)[1]
    return np.mean([len(np.intersect1d(a, b)) / n_listed for a, b in zip(found, exact, strict=True)])


@pytest.mark.parametrize("kind", [SQUARED_EUCLIDEAN, MANHATTAN, CHEBYSHEV])
def test_cells_find_most_neighbours(kind):
    rng = np.random.default_rng(3)
    assert shares_found(rng.normal(size=(1000, 6)), kind, 8) == 1.0  # fewer cells than each point looks into
    x = np.round(rng.normal(size=(20_000, 3)) @ rng.normal(size=(3, 12)), 3)
    assert shares_found(x, kind, 8) > 0.99


def test_long_lists_look_into_more_cells(monkeypatch):
    monkeypatch.setattr(cells, "PROBED", 4)
    monkeypatch.setattr(cells, "RANKED", 8)
    x = np.random.default_rng(3).normal(size=(3000, 3))
    assert shares_found(x, SQUARED_EUCLIDEAN, 400) > 0.95
    assert shares_found(x, SQUARED_EUCLIDEAN, 3000) == 1.0


def test_too_few_points_leave_places_empty():
    found = nearest_in_cells(np.arange(6, dtype=np.float32).reshape(3, 2), SQUARED_EUCLIDEAN, 5, Progress(False))
    assert np.sort(found, 1).tolist() == [[-1, -1, 0, 1, 2]] * 3


def test_cells_hold_each_point_once_and_stay_small():
    rng = np.random.default_rng(4)
    x = np.concatenate([1e-3 * rng.normal(size=(30_000, 4)), 1e3 * rng.normal(size=(2_000, 4))]).astype(np.float32)
    rows, starts = divide(x)
    assert np.array_equal(np.sort(rows), np.arange(len(x)))
    assert starts[[0, -1]].tolist() == [0, len(x)]
    assert np.diff(starts).min() > 0
    assert np.diff(starts).max() <= LARGEST
    same = np.zeros((1000, 2), np.float32)  # which no centres tell apart
    assert divide(same)[1].tolist() == [0, 1000]


def test_no_point_is_left_in_a_cell_far_away(monkeypatch):
    monkeypatch.setattr(cells, "RUN", 4)
    monkeypatch.setattr(cells, "RUNS", 4)
    rng = np.random.default_rng(5)
    x = 4 * rng.normal(size=(40, 16))[rng.integers(0, 40, 20_000)] + rng.normal(size=(20_000, 6)) @ rng.normal(
        size=(6, 16)
    )
    small = x.astype(np.float32)
    rows, starts = cells.divide(small)
    centres = np.array([x[rows[a:b]].mean(0) for a, b in itertools.pairwise(starts)])
    found = ((x - centres[cells._reassign(small, rows, starts, centres)]) ** 2).sum(1)
    least = nearest_points(centres, x, SQUARED_EUCLIDEAN)[0][:, 0]
    stray = found > 1.001 * least
    assert 0 < stray.mean() < 0.1
    assert found[stray].max() < 1.3 * np.quantile(least, 31 / 32)  # 3.4 if the farthest did not try all


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r"needs tqdm: pip install 'diffclust\[neighbors\]'"):
        Hierarchy.from_points([[0.0], [1.0]], progress=True)


@each_path
def test_progress(path, capsys):
    pytest.importorskip("tqdm")
    x = make_points("blobs", 300, 9)
    options = PATHS[path] if path != "graph" else {"n_neighbors": 2}
    shown = Hierarchy.from_points(x, progress=True, **options)
    assert "neighbours: 100%" in capsys.readouterr().err
    assert np.array_equal(shown.edges, Hierarchy.from_points(x, **options).edges)
    assert capsys.readouterr().err == ""


def test_progress_counts():
    silent = Progress(False)
    silent.stage("nothing", 3, "points")
    silent.advance(3)
    silent.close()


# ----------------------------------------------------------------------------------------------------------------
# Resources


def run_in_process(code, threads=2):
    environment = {**__import__("os").environ, "NUMBA_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout.split()


@pytest.mark.slow
def test_any_number_of_threads_gives_the_same_tree():
    code = """
        import hashlib, numba, numpy as np, diffclust as dc
        from diffclust.solvers.points import neighbours

        def digest(few, **options):
            neighbours.FEW = few
            h = dc.Hierarchy.from_points(x, **options)
            return hashlib.sha256(h.edges.tobytes() + h.weights.tobytes()).hexdigest()

        rng = np.random.default_rng(0)
        x = rng.normal(size=(1500, 7)) + 9 * rng.integers(0, 4, (1500, 1))
        for numba.config.NUMBA_NUM_THREADS in (3, 2, 1):
            some = [digest(few, n_neighbors=4) for few in (10_000, 100)]
            print(*some, *(digest(100, algorithm=algorithm) for algorithm in ("complete", "kdtree")))
    """
    digests = np.reshape(run_in_process(code, 3), (3, 4))
    assert (digests == digests[0]).all()
    assert len(set(digests[0].tolist())) > 1


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["random", "grid", "duplicates"])
def test_robust_tree_is_that_of_mutual_reachability(metric, kind):
    x = make_points(kind, 60, 2)
    for m in (1, 5, 59):
        similarity = mutual_reachability(similarity_matrix(x, metric), m)
        expected, found = Hierarchy.from_similarity(similarity), Hierarchy.from_points(x, metric, reachability=m)
        np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-12, atol=1e-12)
        if kind == "grid" and metric in ("sqeuclidean", "manhattan", "chebyshev"):  # exact numbers: the same edges
            np.testing.assert_array_equal(found.edges, expected.edges)


def test_robust_tree_of_a_neighbour_graph_is_refused():
    with pytest.raises(ValueError, match="exact tree"):
        Hierarchy.from_points(np.zeros((5, 1)), n_neighbors=2, reachability=2)


@pytest.mark.slow
def test_memory_is_linear():
    code = """
        import resource, numpy as np, diffclust as dc
        x = np.random.default_rng(0).normal(size=(20_000, 8))
        dc.Hierarchy.from_points(x[:3000], algorithm="complete")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        dc.Hierarchy.from_points(x, algorithm="complete")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    kibibytes = int(run_in_process(code)[0])
    assert kibibytes * 1024 < 20_000 * 2_000  # one row of the matrix for each point would be 80 times as much
