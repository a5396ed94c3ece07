"""Embeddings to similarities, against direct formulas in float64; bounds follow from the number of roundings."""

from types import SimpleNamespace

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


# ----------------------------------------------------------------------------------------------------------------
# On every framework: values and gradients at every scale


def value_and_gradient_in_torch(function, x, cotangent, compiled=False):
    torch = pytest.importorskip("torch")
    function = torch.compile(function, fullgraph=True) if compiled else function
    x = torch.tensor(x, requires_grad=True)
    value = function(x)
    return value.detach().numpy(), torch.autograd.grad(value, x, torch.tensor(cotangent))[0].numpy()


def value_and_gradient_in_jax(function, x, cotangent, transform="eager"):
    jax = pytest.importorskip("jax")
    if transform == "vmap":
        function = jax.vmap(function)
        value, gradient = value_and_gradient_in_jax(function, x[None], cotangent[None])
        return value[0], gradient[0]
    with jax.enable_x64(x.dtype == np.float64):
        function = jax.jit(function) if transform == "jit" else function
        value, pull_back = jax.vjp(function, jax.numpy.asarray(x))
        return np.asarray(value), np.asarray(pull_back(jax.numpy.asarray(cotangent))[0])


def by_hand(x):
    from diffclust.bindings.torch_similarity import standardized_distances

    return standardized_distances(x)


FRAMEWORKS = {
    "torch": value_and_gradient_in_torch,
    "torch.compile": lambda *problem: value_and_gradient_in_torch(*problem, compiled=True),
    "jax": value_and_gradient_in_jax,
    "jax.jit": lambda *problem: value_and_gradient_in_jax(*problem, transform="jit"),
    "jax.vmap": lambda *problem: value_and_gradient_in_jax(*problem, transform="vmap"),
}
COMPILED = ("torch.compile", "jax", "jax.vmap")  # for seconds; "jax" compiles each operation by itself
each_framework = pytest.mark.parametrize(
    "framework",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in COMPILED)) for name in FRAMEWORKS],
)


def finite_differences(function, x, cotangent, step):
    """The gradient of <cotangent, function(x)>, by central differences in float64."""
    gradient = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.astype(np.float64)
            moved[index] += sign * step
            ends.append((cotangent * function(moved)).sum())
        gradient[index] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def exact_cosines(x):
    """Not scikit-learn's, which take small vectors for zero."""
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    unit = x / np.where(lengths > 0, lengths, 1)
    return unit @ unit.T


@each_framework
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1.0, 1e18, 1e30])
def test_gradient_of_cosine_similarities(framework, scale):
    x = (scale * points((7, 3), np.float64)).astype(np.float32)
    x[2] = 0  # what a dead ReLU leaves
    cotangent = points((7, 7), np.float32, seed=1)
    value, gradient = FRAMEWORKS[framework](cosine_similarities, x, cotangent)
    expected = exact_cosines(x.astype(np.float64))
    assert np.abs(value - expected).max() <= 20 * np.finfo(np.float32).eps
    others = np.arange(7) != 2
    slopes = finite_differences(exact_cosines, x, cotangent, scale * 1e-6) * scale
    assert (
        np.abs(gradient[others].astype(np.float64) * scale - slopes[others]).max() < 1e-5 * np.abs(slopes[others]).max()
    )
    assert (gradient[2] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_cosine_similarities_at_the_ends_of_the_range(dtype):
    """Powers of two round nothing: the numbers are the same, bit for bit."""
    x = points((6, 3), dtype)
    highest = np.finfo(dtype).maxexp - 4
    for exponent in (4 - highest, -60, 60, highest):
        assert np.array_equal(cosine_similarities(np.ldexp(x, exponent)), cosine_similarities(x))


@each_framework
@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-40, 1e-39])
def test_subnormal_vectors_count_as_zero(framework, size):
    x = points((7, 3), np.float32)  # the shape above, for which everything is compiled
    x[1] = size
    value, gradient = FRAMEWORKS[framework](cosine_similarities, x, 100 * points((7, 7), np.float32, seed=1))
    assert (value[1] == 0).all()
    assert (gradient[1] == 0).all()
    assert np.isfinite(gradient).all()
    assert (cosine_similarities(x)[1] == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cosine_similarities_of_half_precision(dtype):
    torch = pytest.importorskip("torch")
    x = torch.tensor(points((6, 3), np.float32)).to(getattr(torch, dtype))
    x[2] = 0
    for scale in (2.0**-8, 1.0, 2.0**8):
        scaled = (scale * x).requires_grad_()
        value = cosine_similarities(scaled)
        assert value.dtype == torch.float32
        assert torch.equal(value, cosine_similarities(x.float()))
        gradient = torch.autograd.grad(value.square().sum(), scaled)[0]
        assert gradient.isfinite().all()
        assert (gradient[2] == 0).all()


def test_vectors_without_columns_have_no_direction():
    torch = pytest.importorskip("torch")
    assert (cosine_similarities(np.empty((3, 0))) == np.zeros((3, 3))).all()
    assert torch.equal(cosine_similarities(torch.empty(3, 0)), torch.zeros(3, 3))


@each_framework
@pytest.mark.parametrize("shape", [(40, 6), (257, 7)])  # the first one is that of the gradients below
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_distances_are_zero_on_the_diagonal_and_never_negative(framework, shape, offset):
    x = (points(shape, np.float64) + offset).astype(np.float32)
    x[1] = x[0]
    value, _ = FRAMEWORKS[framework](negative_squared_distances, x, np.ones((len(x), len(x)), np.float32))
    assert (np.diagonal(value) == 0).all()
    assert (value <= 0).all()
    exact = negative_squared_distances(x)
    assert (np.diagonal(exact) == 0).all()
    assert np.array_equal(exact, exact.T)
    np.testing.assert_array_equal(exact, -((x[:, None].astype(np.float64) - x[None]) ** 2).sum(-1).astype(np.float32))


@each_framework
@pytest.mark.parametrize("function", ["distances", "standardised"])
def test_gradient_of_distances(framework, function):
    """Also of a loss that looks at the diagonal, which does not change."""
    apply = {
        "distances": negative_squared_distances,
        "standardised": lambda x: standardize(negative_squared_distances(x)),
    }[function]
    x, cotangent = points((40, 6), np.float32), points((40, 40), np.float32, seed=1)
    cotangent += 100 * np.eye(40, dtype=np.float32)
    _, gradient = FRAMEWORKS[framework](apply, x, cotangent)
    slopes = finite_differences(apply, x, cotangent, 1e-5)
    assert np.abs(gradient - slopes).max() < 1e-5 * np.abs(slopes).max()
    if (framework, function) == ("torch", "standardised"):
        value, gradient = value_and_gradient_in_torch(by_hand, x, cotangent)
        assert np.abs(gradient - slopes).max() < 1e-5 * np.abs(slopes).max()
        assert np.array_equal(value, value_and_gradient_in_torch(apply, x, cotangent)[0])
        assert len(np.unique(np.diagonal(value))) == 1


def test_distances_of_groups_far_from_each_other():
    x = points((30, 4), np.float64) + np.where(np.arange(30) % 2, 1e8, -1e8)[:, None]
    exact = -((x[:, None] - x[None]) ** 2).sum(-1)
    np.testing.assert_allclose(negative_squared_distances(x), exact, rtol=1e-14)


@pytest.mark.parametrize(("dtype", "large"), [(np.float32, 1e25), (np.float64, 1e200)])
def test_squares_that_overflow(dtype, large):
    with pytest.raises(ValueError, match=f"squared distances overflow {np.dtype(dtype)}. Rescale"):
        negative_squared_distances(np.array([[0.0], [large]], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@each_framework
def test_standardize_does_not_depend_on_scale(framework, dtype):
    """Powers of two round nothing: the numbers are the same, bit for bit."""
    s, cotangent = points((6, 6), dtype), points((6, 6), dtype, seed=1)
    value, gradient = FRAMEWORKS[framework](standardize, s, cotangent)
    limits = np.finfo(dtype)
    for exponent in (limits.minexp + 10, -70, 70, limits.maxexp - 10):
        scaled = np.ldexp(s, exponent)
        scaled_value, scaled_gradient = FRAMEWORKS[framework](standardize, scaled, cotangent)
        assert np.array_equal(scaled_value, value)
        assert np.array_equal(np.ldexp(scaled_gradient, exponent), gradient)
        assert np.array_equal(standardize(scaled), standardize(s))


@pytest.mark.parametrize("similarity", ["cosine", "sqeuclidean"])
def test_losses_of_tiny_and_large_embeddings(similarity):
    torch = pytest.importorskip("torch")
    nn = pytest.importorskip("diffclust.nn")
    x = torch.tensor(points((12, 4), np.float32))
    x[5] = 0
    labels = torch.arange(12) % 3
    results = []
    exponents = (0, -100, -60, 60, 100) if similarity == "cosine" else (0, -50, 50)  # squares have twice of these
    for exponent in exponents:
        embeddings = torch.ldexp(x, torch.tensor(exponent)).requires_grad_()
        loss = nn.PartialFenchelYoungLoss(3, n_draws=10, seed=0, similarity=similarity)(embeddings, labels)
        gradient = torch.autograd.grad(loss, embeddings)[0]
        results.append((loss.detach(), torch.ldexp(gradient, torch.tensor(exponent))))
    assert results[0][1].abs().max() > 0
    for loss, gradient in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(gradient, results[0][1])


# ----------------------------------------------------------------------------------------------------------------
# The kernels of a GPU, without one in Triton's interpreter


def kernels_of_a_gpu(x, cotangent):
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from diffclust.bindings import torch_similarity
    from diffclust.solvers.cuda import similarity as kernels

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_similarity.similarity, "kernels_for", lambda embeddings: kernels)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cpu":
            patch.setattr(kernels, "PROGRAMS", 2)  # the interpreter runs one after the other
        x = torch.as_tensor(x, device=device).detach().requires_grad_()
        value = torch_similarity.standardized_distances(x)
        gradient = torch.autograd.grad(value, x, torch.tensor(cotangent, device=device))[0]
    return value.detach().cpu().numpy(), gradient.cpu().numpy()


@pytest.mark.parametrize("shape", [(1, 3), (2, 2), (7, 300), (33, 4), (129, 5), (2, 3, 20, 4)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_kernels_give_the_similarity_and_its_gradient(shape, dtype, scale):
    torch = pytest.importorskip("torch")
    x = (scale * (points(shape, np.float64) + 3)).astype(dtype)
    cotangent = points((*shape[:-1], shape[-2]), dtype, seed=1)
    value, gradient = kernels_of_a_gpu(x, cotangent)
    expected, slopes = value_and_gradient_in_torch(by_hand, x.astype(np.float64), cotangent.astype(np.float64))
    tolerance = {"rtol": 0, "atol": 2e-5 if dtype == np.float32 else 1e-10}
    np.testing.assert_allclose(value, expected, **tolerance)
    np.testing.assert_allclose(
        gradient * scale, slopes * scale, rtol=0, atol=tolerance["atol"] * (1 + np.abs(slopes * scale).max())
    )
    assert torch.tensor(value).dtype == torch.tensor(x).dtype


def test_kernels_at_the_ends():
    """Equal points have a similarity of zeros and no gradient; a NaN is in all of the similarity."""
    x = np.full((20, 3), 0.3, np.float32)
    value, gradient = kernels_of_a_gpu(x, points((20, 20), np.float32))
    assert (value == 0).all()
    assert (gradient == 0).all()
    x[4, 1] = np.nan
    value, gradient = kernels_of_a_gpu(x, points((20, 20), np.float32))
    assert np.isnan(value).all()
    assert np.isnan(gradient).all()
    expanded = kernels_of_a_gpu(points((20, 3), np.float32), np.broadcast_to(np.float32(1), (20, 20)))[1]
    assert np.abs(expanded).max() < 1e-4  # of the sum of all entries, which is zero


def test_kernels_on_points_of_any_strides():
    """Of a transposed tensor, as of a copy of it."""
    torch = pytest.importorskip("torch")
    cotangent = points((20, 20), np.float64, seed=1)
    value, gradient = kernels_of_a_gpu(points((20, 4), np.float64), cotangent)
    strided = torch.tensor(points((20, 4), np.float64).T.copy()).T
    assert not strided.is_contiguous()
    same_value, same_gradient = kernels_of_a_gpu(strided, cotangent)
    np.testing.assert_allclose(same_value, value, rtol=0, atol=1e-12)
    np.testing.assert_allclose(same_gradient, gradient, rtol=0, atol=1e-12)


def test_kernels_are_for_float32():
    """Their sums of squares overflow, or vanish, where float64 has the exponents for it and torch's own do not."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from diffclust.similarity import kernels_for

    on_gpu = {"is_cuda": True, "shape": torch.Size((20, 3))}
    assert kernels_for(SimpleNamespace(dtype=torch.float32, **on_gpu)) is not None
    assert kernels_for(SimpleNamespace(dtype=torch.float64, **on_gpu)) is None
