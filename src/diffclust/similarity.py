"""Embeddings → similarity. Larger means closer; shapes (..., n, d) → (..., n, n). Duck-typed: NumPy, torch, JAX."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np

from diffclust.frameworks import framework_of, identity_mask, namespace_of, sort


def _check_points(x: Any) -> Any:
    """Float points (..., n, d); half precision becomes float32."""
    if framework_of(x) == "numpy":
        x = np.asarray(x)
        if x.dtype.kind in "iub":
            x = x.astype(np.float64)
        if x.dtype.kind != "f":
            raise TypeError(f"points must be real numbers, got dtype {x.dtype}.")
        if x.dtype.itemsize < 4:
            x = x.astype(np.float32)
    else:
        if "float" not in str(x.dtype):
            raise TypeError(f"embeddings must be floating point, got {x.dtype}. Convert them, e.g. with .float().")
        if "16" in str(x.dtype):
            x = x.float() if framework_of(x) == "torch" else x.astype("float32")
    if x.ndim < 2:
        raise ValueError(f"points must have shape (n, d) or (..., n, d), got shape {tuple(x.shape)}.")
    if x.shape[-2] == 0:
        raise ValueError(f"points are empty (shape {tuple(x.shape)}): at least one point is needed.")
    return x


def _in_float32(x: Any) -> contextlib.AbstractContextManager[Any]:
    """Switches torch's autocast off: differences of similar distances do not survive half precision."""
    if framework_of(x) == "torch":
        return sys.modules["torch"].autocast(device_type=x.device.type, enabled=False)
    return contextlib.nullcontext()


def negative_squared_distances(x: Any) -> Any:
    """-|x_i - x_j|^2, the paper's similarity.

    >>> negative_squared_distances(np.array([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, -25.0], [-25.0, 0.0]]
    """
    x = _check_points(x)
    # Distances do not change when the points are centred, and the cancellation below loses fewer digits.
    x = x - x.mean(-2)[..., None, :]
    squares = (x * x).sum(-1)
    with _in_float32(x):
        gram = x @ x.swapaxes(-1, -2)
    return (2.0 * gram - squares[..., :, None] - squares[..., None, :]).clip(max=0.0)


def cosine_similarities(x: Any) -> Any:
    """<x_i, x_j> / (|x_i| |x_j|); 0 for a zero vector.

    >>> cosine_similarities(np.array([[2.0, 0.0], [0.0, 3.0]])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    x = _check_points(x)
    squares = (x * x).sum(-1)[..., None]
    unit = x * squares.clip(min=_tiny(x)) ** -0.5
    with _in_float32(x):
        return unit @ unit.swapaxes(-1, -2)


def standardize(similarity: Any) -> Any:
    """Zero mean and unit (population) deviation over all n^2 entries, so that epsilon means the same for every scale.

    A constant matrix becomes zeros. Standardise before masking edges with -inf.

    >>> standardize(np.array([[0.0, -2.0], [-2.0, 0.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if framework_of(similarity) == "numpy":
        similarity = np.asarray(similarity)
        if similarity.dtype.kind in "iub":
            similarity = similarity.astype(np.float64)
        if np.isinf(similarity).any():
            raise ValueError("standardize needs finite entries. Standardise before masking edges with -inf.")
    if similarity.ndim < 2 or similarity.shape[-1] != similarity.shape[-2]:
        raise ValueError(f"similarity must have shape (n, n) or (..., n, n), got shape {tuple(similarity.shape)}.")
    centred = similarity - similarity.mean((-1, -2))[..., None, None]
    variance = (centred * centred).mean((-1, -2))[..., None, None]
    return centred * variance.clip(min=_tiny(similarity)) ** -0.5


def mutual_reachability(similarity: Any, n_neighbors: int) -> Any:
    """min(s_ij, core_i, core_j); core_i is the similarity of i to its ``n_neighbors``-th most similar other point.

    Single linkage on it does not chain through thin bridges of outliers (the metric of HDBSCAN, as a similarity). The
    diagonal is left as it is. Differentiable.

    >>> s = -np.abs(np.subtract.outer([0.0, 1.0, 5.0], [0.0, 1.0, 5.0]))
    >>> mutual_reachability(s, n_neighbors=2)[0].tolist()
    [-0.0, -5.0, -5.0]
    """
    if framework_of(similarity) == "numpy":
        similarity = np.asarray(similarity)
    if similarity.ndim < 2 or similarity.shape[-1] != similarity.shape[-2]:
        raise ValueError(f"similarity must have shape (n, n) or (..., n, n), got shape {tuple(similarity.shape)}.")
    n = similarity.shape[-1]
    if isinstance(n_neighbors, bool) or not isinstance(n_neighbors, (int, np.integer)):
        raise TypeError(f"n_neighbors must be an integer, got {n_neighbors!r}.")
    if not 1 <= n_neighbors < n:
        raise ValueError(f"n_neighbors={n_neighbors} must be from 1 to the number of other points, {n - 1}.")
    xp = namespace_of(similarity)
    diagonal = identity_mask(n, similarity)
    core = sort(xp.where(diagonal, -float("inf"), similarity))[..., n - n_neighbors]
    reach = xp.minimum(similarity, xp.minimum(core[..., :, None], core[..., None, :]))
    return xp.where(diagonal, similarity, reach)


def _tiny(x: Any) -> float:
    """The smallest normal number: keeps a division finite without changing any other result."""
    return float(np.finfo(np.float64 if "64" in str(x.dtype) else np.float32).tiny)
