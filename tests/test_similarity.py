"""Embeddings to similarities, against direct formulas in float64; bounds follow from the number of roundings."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestNeighbors

from diffclust import cosine_similarities, mutual_reachability, negative_squared_distances, standardize
from oracles import DTYPES, random_similarity

SHAPES = [(1, 1), (2, 3), (7, 4), (40, 16), (3, 6, 2), (2, 2, 5, 3)]


def points(shape, dtype, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_negative_squared_distances(shape, dtype, offset):
    x = points(shape, np.float64)
    x = (x + offset).astype(dtype)
    exact = x.astype(np.float64)
    exact = -((exact[..., :, None, :] - exact[..., None, :, :]) ** 2).sum(-1)
    got = negative_squared_distances(x)
    assert got.dtype == dtype
    assert got.shape == (*shape[:-1], shape[-2])
    # Centring rounds each coordinate by the offset's ulp; then d products and sums of the size of the squared norms.
    centred = x.astype(np.float64) - x.astype(np.float64).mean(-2, keepdims=True)
    reach = np.abs(centred).max() + 1
    unit = np.finfo(dtype).eps
    bound = 4 * shape[-1] * unit * (reach**2 + reach * offset)
    assert np.abs(got - exact).max() <= bound
    assert (got <= 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_cosine_similarities(shape, dtype):
    x = points(shape, dtype)
    got = cosine_similarities(x)
    assert got.dtype == dtype
    rows = x.astype(np.float64).reshape(-1, *shape[-2:])
    exact = np.stack([cosine_similarity(problem) for problem in rows]).reshape(got.shape)
    assert np.abs(got - exact).max() <= 4 * (shape[-1] + 2) * np.finfo(dtype).eps


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_cosine_does_not_depend_on_scale(scale):
    x = points((6, 3), np.float64)
    assert np.allclose(cosine_similarities(scale * x), cosine_similarities(x), rtol=0, atol=1e-14)


def test_cosine_of_a_zero_vector():
    x = np.array([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]])
    got = cosine_similarities(x)
    assert np.abs(got - np.diag([0.0, 1.0, 0.0])).max() <= 4 * np.finfo(float).eps


@pytest.mark.parametrize("function", [negative_squared_distances, cosine_similarities])
def test_integers_half_precision_and_lists(function):
    x = np.array([[0, 1], [3, 4], [2, 2]])
    expected = function(x.astype(np.float64))
    assert np.array_equal(function(x), expected)
    assert np.array_equal(function(x.tolist()), expected)
    half = function(x.astype(np.float16))
    assert half.dtype == np.float32
    assert np.array_equal(half, function(x.astype(np.float32)))


@pytest.mark.parametrize("function", [negative_squared_distances, cosine_similarities, standardize])
def test_a_batch_is_a_loop(function):
    x = points((2, 3, 5, 5), np.float64)
    got = function(x)
    for index in np.ndindex(2, 3):
        assert np.allclose(got[index], function(x[index]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "scale", "offset"), [((2, 2), 1, 0), ((30, 30), 1e3, 50), ((4, 9, 9), 1e-3, 0)])
def test_standardize(dtype, shape, scale, offset):
    s = (scale * points(shape, np.float64) + offset).astype(dtype)
    got = standardize(s)
    assert got.dtype == dtype
    assert got.shape == shape
    n_entries = shape[-1] ** 2
    bound = n_entries * np.finfo(dtype).eps * (1 + offset / scale)
    assert np.abs(got.astype(np.float64).mean((-1, -2))).max() <= bound
    assert np.abs(got.astype(np.float64).std((-1, -2)) - 1).max() <= bound
    order = np.argsort(s, axis=None, kind="stable")
    assert (np.diff(got.ravel()[order].reshape(-1)) >= 0).all() or len(shape) > 2


def test_standardize_is_scale_free():
    s = points((8, 8), np.float64)
    assert np.allclose(standardize(1e6 * s + 3), standardize(s), rtol=0, atol=1e-9)
    assert np.array_equal(standardize(np.array([[0, -2], [-2, 0]])), [[1, -1], [-1, 1]])


@pytest.mark.parametrize("dtype", [np.float16, *DTYPES])
def test_standardize_a_constant_matrix(dtype):
    """Documented: zeros. The mean of equal numbers is not always that number."""
    for n in range(1, 12):
        for value in (0.0, 1.0, 0.1, -1 / 3, 1000.1, 1e-3):
            got = standardize(np.full((n, n), value, dtype))
            assert (got == 0).all(), (n, value)


def test_standardize_half_precision_in_float32():
    s = np.array([[0.0, -300.0], [-300.0, 0.0]], np.float16)  # ten times that, squared, overflows half precision
    for factor in (1, 10):
        got = standardize((factor * s).astype(np.float16))
        assert np.allclose(got, [[1, -1], [-1, 1]], atol=1e-3)


# ----------------------------------------------------------------------------------------------------------------
# Mutual reachability


def naive_mutual_reachability(s, n_neighbors):
    n = len(s)
    core = [sorted((s[i, j] for j in range(n) if j != i), reverse=True)[n_neighbors - 1] for i in range(n)]
    result = s.copy()
    for i in range(n):
        for j in range(n):
            if i != j:
                result[i, j] = min(s[i, j], core[i], core[j])
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["random", "tied", "duplicated", "missing", "constant"])
def test_mutual_reachability(kind, dtype):
    rng = np.random.default_rng(3)
    for n in (2, 3, 6, 15):
        s = random_similarity(rng, n, kind, dtype)
        for n_neighbors in range(1, n):
            got = mutual_reachability(s, n_neighbors)
            assert got.dtype == dtype
            assert np.array_equal(got, naive_mutual_reachability(s, n_neighbors))


def test_mutual_reachability_of_a_batch():
    rng = np.random.default_rng(4)
    s = np.stack([random_similarity(rng, 6) for _ in range(6)]).reshape(2, 3, 6, 6)
    got = mutual_reachability(s, np.int64(3))
    for index in np.ndindex(2, 3):
        assert np.array_equal(got[index], naive_mutual_reachability(s[index], 3))


def test_mutual_reachability_with_one_neighbor_changes_no_edge():
    s = random_similarity(np.random.default_rng(5), 9)
    assert np.array_equal(mutual_reachability(s, 1), s)


def test_core_distances_are_those_of_nearest_neighbors():
    x = points((50, 3), np.float64)
    distances = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    core = NearestNeighbors(n_neighbors=5).fit(x).kneighbors()[0][:, -1]
    expected = -np.maximum(distances, np.maximum(core[:, None], core[None, :]))
    got = mutual_reachability(-distances, 5)
    off = ~np.eye(50, dtype=bool)
    assert np.allclose(got[off], expected[off], rtol=1e-12, atol=0)
