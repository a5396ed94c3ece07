"""Embeddings → similarity. Larger means closer; shapes (..., n, d) → (..., n, n). Duck-typed: NumPy, torch, JAX."""

from __future__ import annotations

import contextlib
import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust._typing import Array
from diffclust.frameworks import framework_of, identity_mask, namespace_of, sort, take_last, to_numpy
from diffclust.validation import check_embeddings, check_neighbors, check_real, check_similarity, check_square


def _in_float32(x: Array) -> contextlib.AbstractContextManager[Any]:
    """A context in which products have full precision, without torch's autocast or JAX's default on a GPU."""
    # Differences of similar distances do not survive less.
    if framework_of(x) == "jax":
        return sys.modules["jax"].default_matmul_precision("highest")
    if framework_of(x) == "torch":
        torch, device = sys.modules["torch"], x.device.type
        if device in ("cpu", "cuda") or torch.is_autocast_enabled(device):  # other devices may have no autocast
            return torch.autocast(device_type=device, enabled=False)
    return contextlib.nullcontext()


def negative_squared_distances(x: Array) -> Array:
    """-|x_i - x_j|^2, the paper's similarity: 0 on the diagonal, nowhere above 0.

    NumPy arrays are computed from differences, in float64. Torch tensors and JAX arrays are computed by a product of
    the centred points, which is what a GPU is fast at: an entry is off by rounding of the largest squared norm. Squares
    have twice the exponents of the points: below about 1e-19 (float32; float64: 1e-154) they are rounded to 0, and
    above 1e19 (1e154) they overflow. That is a ValueError in NumPy, and -inf or NaN elsewhere.

    Args:
        x: points (..., n, d).

    Returns:
        The similarity, shape (..., n, n). Differentiable.

    Raises:
        TypeError: points are not real numbers; tensors and JAX arrays must be floating point.
        ValueError: points have a wrong shape, or in NumPy squared distances overflow.

    Example:
        >>> negative_squared_distances(np.array([[0.0, 0.0], [3.0, 4.0]])).tolist()
        [[0.0, -25.0], [-25.0, 0.0]]
    """
    x = check_embeddings(x)
    if framework_of(x) == "numpy":
        return _distances_from_differences(x)
    half = _half_distances(x)[1]
    # A mask, not the product's own diagonal as squared norms: inductor (torch 2.13) computes a wrong gradient of that.
    return 2.0 * namespace_of(x).where(identity_mask(x.shape[-2], x), 0.0, half)


def _distances_from_differences(x: NDArray[Any]) -> NDArray[Any]:
    from scipy.spatial.distance import cdist

    result = np.empty((*x.shape[:-1], x.shape[-2]), x.dtype)
    with np.errstate(over="ignore"):
        for problem in np.ndindex(x.shape[:-2]):
            result[problem] = 0.0 - cdist(x[problem], x[problem], "sqeuclidean")
    if np.isinf(result).any() and np.isfinite(x).all():
        raise ValueError(f"points are too far apart: their squared distances overflow {x.dtype}. Rescale them.")
    return result


def _half_distances(x: Array) -> tuple[Array, Array]:
    """The centred points, and (..., n, n) -|x_i - x_j|^2 / 2, on the diagonal 0 only up to rounding."""
    # Distances do not change when the points are centred, and the cancellation below loses fewer digits.
    x = x - x.mean(-2)[..., None, :]
    half = 0.5 * (x * x).sum(-1)
    with _in_float32(x):
        gram = x @ x.swapaxes(-1, -2)
    # <x_i, x_j> - (|x_i|^2 / 2 + |x_j|^2 / 2)
    return x, (gram - (half[..., :, None] + half[..., None, :])).clip(max=0.0)


def cosine_similarities(x: Array) -> Array:
    """<x_i, x_j> / (|x_i| |x_j|), whatever the size of the vectors; 0, with gradient 0, for a zero vector.

    A vector of subnormal numbers (below 1e-38 in float32, 1e-308 in float64) counts as zero: its gradient would
    overflow.

    Args:
        x: points (..., n, d).

    Returns:
        The similarity, shape (..., n, n). Differentiable.

    Raises:
        TypeError: points are not real numbers; tensors and JAX arrays must be floating point.
        ValueError: points have a wrong shape.

    Example:
        >>> cosine_similarities(np.array([[2.0, 0.0], [0.0, 3.0]])).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    x = check_embeddings(x)
    scaled = x / _size(x, -1)  # so that squares neither overflow nor vanish
    squares = (scaled * scaled).sum(-1)[..., None]  # at least 1, or else 0
    unit = scaled * squares.clip(min=0.5) ** -0.5
    with _in_float32(x):
        return unit @ unit.swapaxes(-1, -2)


def standardize(similarity: Array) -> Array:
    """Zero mean and unit (population) deviation over all n^2 entries, so that epsilon means the same for every scale.

    A constant matrix becomes zeros. Standardise before masking edges with -inf.

    Args:
        similarity: (..., n, n).

    Returns:
        The standardised similarity, of the same shape. Differentiable.

    Raises:
        ValueError: the similarity has a wrong shape, or in NumPy an infinite entry.

    Example:
        >>> standardize(np.array([[0.0, -2.0], [-2.0, 0.0]])).tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
    """
    if framework_of(similarity) == "numpy":
        similarity = check_real("similarity", to_numpy(similarity, "similarity"))
        if np.isinf(similarity).any():
            raise ValueError("standardize needs finite entries. Standardise before masking edges with -inf.")
    check_square(similarity)
    return _standardize(similarity)[0]


def _standardize(similarity: Array) -> tuple[Array, Array]:
    """The result, and the deviation (..., 1, 1) by which it was divided."""
    centred = similarity - similarity.mean((-1, -2))[..., None, None]
    if framework_of(similarity) == "numpy":
        # Once more: what rounding leaves of a constant matrix must not be scaled up to one.
        centred = centred - centred.mean((-1, -2))[..., None, None]
    size = _size(centred, (-2, -1))
    scaled = centred / size  # so that squares neither overflow nor vanish
    variance = (scaled * scaled).mean((-1, -2))[..., None, None]
    deviation = variance.clip(min=_tiny(similarity)) ** 0.5  # not ** -0.5, whose derivative overflows long before
    return scaled / deviation, deviation * size


def mutual_reachability(similarity: Array, n_neighbors: int) -> Array:
    """min(s_ij, core_i, core_j); core_i is the similarity of i to its ``n_neighbors``-th most similar other point.

    Single linkage on it does not chain through thin bridges of outliers (the metric of HDBSCAN, as a similarity). The
    diagonal is left as it is.

    Args:
        similarity: (..., n, n), symmetric.
        n_neighbors: from 1 to n - 1.

    Returns:
        The similarity of robust linkage, of the same shape. Differentiable.

    Raises:
        TypeError: ``n_neighbors`` is not an integer.
        ValueError: ``n_neighbors`` is out of its range, or the similarity has a wrong shape.

    Example:
        >>> s = -np.abs(np.subtract.outer([0.0, 1.0, 5.0], [0.0, 1.0, 5.0]))
        >>> mutual_reachability(s, n_neighbors=2)[0].tolist()
        [-0.0, -5.0, -5.0]
    """
    if framework_of(similarity) == "numpy":
        similarity = check_similarity(similarity)
    check_square(similarity)
    check_neighbors(n_neighbors, similarity.shape[-1])
    return _mutual_reachability(similarity, n_neighbors)


def _mutual_reachability(similarity: Array, n_neighbors: int) -> Array:
    """Without checks: sizes may be symbolic."""
    n = similarity.shape[-1]
    xp = namespace_of(similarity)
    diagonal = identity_mask(n, similarity)
    core = take_last(sort(xp.where(diagonal, -float("inf"), similarity)), n - n_neighbors)
    reach = xp.minimum(similarity, xp.minimum(core[..., :, None], core[..., None, :]))
    return xp.where(diagonal, similarity, reach)


def kernels_for(x: Array) -> Any:
    """Of a tensor of points, the module with Triton's kernels for their standardised distances; None without such."""
    if not x.is_cuda or "float32" not in str(x.dtype) or not 0 < math.prod(x.shape[:-2]) < 2**16:
        return None  # squares of float64 distances may overflow or vanish in sums of float64
    from diffclust.solvers.cuda import similarity

    return similarity if x.shape[-2] <= similarity.LARGEST else None


def _tiny(x: Array) -> float:
    """The smallest normal number: keeps a division finite without changing any other result."""
    return float(np.finfo(np.float64 if "64" in str(x.dtype) else np.float32).tiny)


def _size(x: Array, axes: int | tuple[int, int]) -> Array:
    """The largest absolute value along axes, which are kept with length 1: what to divide by before squaring."""
    # It is infinite where that value is zero or subnormal: divided by it, numbers and their gradients become zero. It
    # is a constant for differentiation, which is right if the result does not depend on the scale of x.
    framework = framework_of(x)
    if framework == "torch":
        torch, x = sys.modules["torch"], x.detach()
        empty = x.shape[-1] == 0
        largest = x.sum(axes, keepdim=True) if empty else torch.linalg.vector_norm(x, torch.inf, axes, keepdim=True)
        return torch.nn.functional.threshold(largest, _tiny(x), torch.inf)  # these are two kernels
    if framework == "jax":
        x = sys.modules["jax"].lax.stop_gradient(x)
    largest = abs(x).max(axes, keepdims=True, initial=0.0)
    return namespace_of(x).where(largest <= _tiny(x), float("inf"), largest)
