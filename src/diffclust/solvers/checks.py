"""What solvers and bindings check of a request by its values: symmetry, and the number of clusters.

``validation.py`` checks what can be known without reading arrays. Here they are read, or moved into their range.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust._typing import Array, Integers
from diffclust.constraints import Constraints
from diffclust.frameworks import device_of, framework_of, is_captured, is_symbolic, is_traced, to_numpy
from diffclust.solvers.base import Answer, Request

# How far entries (i, j) and (j, i) may differ, relative to the largest entry: products such as x @ x.T are symmetric
# only up to rounding, and finite differences move one entry at a time. The mean of the two is used.
SYMMETRY_TOLERANCE = {np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-5}


def symmetrise(array: NDArray[Any]) -> NDArray[Any]:
    """The mean of both triangles, which is what solvers take; more than rounding between them is a ValueError.

    NaN is let through. Callers that must reject it check first.

    Returns:
        The array itself where it is symmetric already.

    Raises:
        ValueError: entries (i, j) and (j, i) differ by more than rounding.
    """
    transposed = array.swapaxes(-1, -2)
    if np.array_equal(array, transposed):
        return array
    off_diagonal = ~np.eye(array.shape[-1], dtype=bool)
    with np.errstate(invalid="ignore"):  # -inf - -inf: no gap
        gap = np.nan_to_num(np.abs(array - transposed), nan=0.0, posinf=np.inf) * off_diagonal
    size = np.abs(array, where=np.isfinite(array) & off_diagonal, out=np.zeros_like(array)).max((-1, -2))
    wrong = gap > SYMMETRY_TOLERANCE[array.dtype] * size[..., None, None]  # a problem's own size: none hides another's
    if wrong.any():
        where = np.unravel_index(int((gap * wrong).argmax()), gap.shape)
        i, j = int(where[-2]), int(where[-1])
        raise ValueError(
            f"similarity must be symmetric: entry ({i}, {j}) is {array[where]:.6g}, entry ({j}, {i}) is "
            f"{transposed[where]:.6g}. Symmetrise it first, e.g. (s + s.T) / 2."
        )
    return np.where(off_diagonal, 0.5 * array + 0.5 * transposed, array)


def check_bounds(lowest: int, highest: int | None, n_points: int) -> None:
    """A ValueError if some number of clusters is below 1, or above n_points unless ``highest`` is None."""
    above = highest is not None and not is_symbolic(n_points) and highest > n_points
    if lowest < 1 or above:
        wrong = lowest if lowest < 1 else highest
        raise ValueError(f"n_clusters={wrong} must be from 1 to the number of points, {n_points}.")


def clamp_clusters(n_clusters: Integers, labels: Array) -> Array:
    """n_clusters (problems,), moved into the range that labels (problems, n) allow."""
    return n_clusters.clip(*Constraints(labels=labels).label_range())


def requested_clusters(request: Request, label_range: tuple[Any, Any] | None = None) -> NDArray[Any]:
    """K of every problem, (problems,), moved into ``label_range``, if it is known, or checked, as the request says."""
    (n_problems, n, _), k = request.similarity.shape, request.n_clusters
    clusters = np.full(n_problems, k) if isinstance(k, int) else k
    if request.if_infeasible == "clamp" and request.labels is not None:
        lowest, highest = label_range or Constraints(labels=request.labels).label_range()
        return np.minimum(np.maximum(clusters, lowest), highest)
    if request.if_infeasible == "raise" and n_problems:
        check_bounds(int(clusters.min()), int(clusters.max()), n)
    return clusters


def check_request(request: Request) -> None:
    """The errors that the values of tensors and JAX arrays show, as far as they can be read now.

    Of NumPy arrays, :func:`diffclust.validation.prepare` has found them. Where nothing needs to be an error, as in
    losses, nothing waits for a device.
    """
    similarity, strict = request.similarity, request.if_infeasible == "raise"
    is_jax = framework_of(similarity) == "jax"  # a compiled program raises nothing
    if is_jax and not is_traced(similarity) and (strict or device_of(similarity) == "cpu"):
        symmetrise(to_numpy(similarity))
    known = request.n_clusters, request.labels, request.relation
    if not strict or any(map(is_traced, known)) or is_captured(similarity):
        return
    if is_jax and request.n_clusters.size:
        check_bounds(int(request.n_clusters.min()), int(request.n_clusters.max()), similarity.shape[-1])
    if request.is_constrained:
        check_feasible(*known)


def check_answer(request: Request, answer: Answer) -> None:
    """The error of a k that JAX's forests do not reach, as far as it can be read."""
    if request.if_infeasible == "raise" and not any(map(is_traced, (answer.mean, request.n_clusters))):
        whole = ~np.isnan(to_numpy(answer.mean))
        n_edges, clusters = to_numpy(answer.n_edges)[whole, -1], to_numpy(request.n_clusters)[whole]
        check_reached(n_edges, clusters, request.similarity.shape[-1], request.is_constrained)


def check_feasible(n_clusters: Integers, labels: Array, relation: Array) -> None:
    """A ValueError that names the range if some problem's n_clusters is outside it. Reads the values."""
    # Inside jit, JAX traces operations on arrays that were made outside: count them with NumPy.
    labels = to_numpy(labels) if framework_of(labels) == "jax" else labels
    known = Constraints(labels, None if relation is None else to_numpy(relation))
    lowest, highest = to_numpy(known.min_clusters), to_numpy(known.max_clusters)
    clusters = np.broadcast_to(to_numpy(n_clusters), lowest.shape)
    outside = np.flatnonzero((clusters < lowest) | (clusters > highest))
    if outside.size:
        p = outside[0]
        raise ValueError(
            f"n_clusters={clusters[p]} is infeasible: the constraints allow {lowest[p]} to {highest[p]} clusters"
            + (f" (problem {p} of the batch)." if clusters.size > 1 else ".")
        )


def check_reached(n_edges: NDArray[Any], n_clusters: NDArray[Any], n_points: int, constrained: bool) -> None:
    """A ValueError if some draw's forest, of ``n_edges`` (problems, draws), has more trees than asked for."""
    n_trees = n_points - n_edges.min(-1, initial=n_points)
    stuck = np.flatnonzero(n_trees > n_clusters)
    if stuck.size:
        p = stuck[0]
        if not constrained:
            reason = f"without its -inf edges the graph has {n_trees[p]} components"
            remedy = f"Ask for at least {n_trees[p]} clusters."
        else:
            reason = "cannot-links and missing (-inf) edges stop the greedy at more trees, or split a must-link group"
            remedy = f"Ask for more clusters (the greedy reached {n_trees[p]}), or remove constraints."
        raise ValueError(f"n_clusters={n_clusters[p]} cannot be reached: {reason}. {remedy}")
