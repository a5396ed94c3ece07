"""Similarity, constraints and number of clusters, checked together and flattened to one batch dimension.

Every operator and loss starts here, so that bad input meets the same words everywhere: what was expected, what came,
what to do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.constraints import Constraints

# How far entries (i, j) and (j, i) may differ, relative to the largest entry: products such as x @ x.T are
# symmetric only up to rounding. The mean of the two is used.
SYMMETRY_TOLERANCE = {np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-8}


@dataclass(frozen=True)
class Problem:
    """``problems`` independent problems on n points, ready for a solver."""

    similarity: Any  # (problems, n, n) float32 or float64, exactly symmetric
    n_clusters: Any  # (problems,) integers
    labels: Any  # (problems, n) integers or None
    relation: Any  # (problems, n, n) int8 or None
    batch_shape: tuple[int, ...]

    @property
    def n_points(self) -> int:
        return int(self.similarity.shape[-1])

    @property
    def constraints(self) -> dict[str, Any]:
        return {"labels": self.labels, "relation": self.relation}

    def unflatten(self, array: Any) -> Any:
        """(problems, ...) back to (*batch_shape, ...)."""
        return array.reshape(self.batch_shape + tuple(array.shape[1:]))


def check_similarity(similarity: Any) -> NDArray[Any]:
    """A float array (..., n, n), exactly symmetric, or an error that says what is wrong where."""
    array = np.asarray(similarity)
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if array.dtype.kind != "f":
        raise TypeError(f"similarity must be real numbers, got dtype {array.dtype}.")
    if array.dtype not in SYMMETRY_TOLERANCE:
        array = array.astype(np.float32 if array.dtype.itemsize < 4 else np.float64)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        raise ValueError(
            f"similarity must have shape (n, n) or (..., n, n), got shape {array.shape}. For points of shape (n, d), "
            "pass e.g. negative_squared_distances(points)."
        )
    if array.shape[-1] == 0:
        raise ValueError(f"similarity is empty (shape {array.shape}): at least one point is needed.")
    if array.size == 0:
        return array
    if np.isnan(array).any():
        where = tuple(int(i) for i in np.argwhere(np.isnan(array))[0])
        raise ValueError(f"similarity has a NaN at {where}. Use -inf for an edge that does not exist.")
    n = array.shape[-1]
    off_diagonal = ~np.eye(n, dtype=bool)
    if (np.isposinf(array) & off_diagonal).any():
        where = tuple(int(i) for i in np.argwhere(np.isposinf(array) & off_diagonal)[0])
        raise ValueError(f"similarity is +inf at {where}. To force a pair together, use a must-link constraint.")
    return _symmetrise(array, off_diagonal)


def _symmetrise(array: NDArray[Any], off_diagonal: NDArray[np.bool_]) -> NDArray[Any]:
    transposed = array.swapaxes(-1, -2)
    differs = (array != transposed) & off_diagonal
    if not differs.any():
        return array
    finite = np.isfinite(array) & off_diagonal
    scale = float(np.abs(array[finite]).max(initial=0.0))
    gap = np.where(differs, np.abs(array - transposed), 0.0)
    if not gap.max() <= SYMMETRY_TOLERANCE[array.dtype] * scale:
        where = np.unravel_index(int(gap.argmax()), gap.shape)
        i, j = int(where[-2]), int(where[-1])
        raise ValueError(
            f"similarity must be symmetric: entry ({i}, {j}) is {array[where]:.6g}, entry ({j}, {i}) is "
            f"{transposed[where]:.6g}. Symmetrise it first, e.g. (s + s.T) / 2."
        )
    return 0.5 * array + 0.5 * transposed


def check_n_clusters(n_clusters: Any, n_points: int, batch_shape: tuple[int, ...]) -> NDArray[np.int64]:
    """(problems,) integers from 1 to n_points."""
    array = np.asarray(n_clusters)
    if array.dtype.kind not in "iu":
        raise TypeError(f"n_clusters must be an integer, got {n_clusters!r}.")
    if array.size and (array.min() < 1 or array.max() > n_points):
        wrong = array.min() if array.min() < 1 else array.max()
        raise ValueError(f"n_clusters={wrong} must be from 1 to the number of points, {n_points}.")
    try:
        return np.broadcast_to(array, batch_shape).reshape(-1).astype(np.int64)
    except ValueError:
        raise ValueError(
            f"n_clusters must be one integer or one per problem, shape {batch_shape}, got shape {array.shape}."
        ) from None


def check_constraints(constraints: Any, n_points: int, batch_shape: tuple[int, ...]) -> Constraints | None:
    if constraints is None:
        return None
    if not isinstance(constraints, Constraints):
        raise TypeError(
            f"constraints must be a Constraints object, got {type(constraints).__name__}. Build one with "
            "Constraints.from_labels, .from_pairs or .from_matrix."
        )
    if constraints.n_points != n_points:
        raise ValueError(f"constraints are about {constraints.n_points} points, similarity is about {n_points}.")
    if constraints.batch_shape not in ((), batch_shape):
        raise ValueError(
            f"constraints have batch shape {constraints.batch_shape}, similarity has {batch_shape}. They must "
            "be equal, or the constraints must be for one problem, which then hold for all."
        )
    return constraints


def prepare(similarity: Any, n_clusters: Any, constraints: Constraints | None = None) -> Problem:
    """Check and flatten NumPy input for a solver; infeasible ``n_clusters`` is a ValueError that names the range."""
    array = check_similarity(similarity)
    batch_shape, n = array.shape[:-2], array.shape[-1]
    clusters = check_n_clusters(n_clusters, n, batch_shape)
    known = check_constraints(constraints, n, batch_shape)
    labels = relation = None
    n_problems = math.prod(batch_shape)
    if known is not None:
        lowest = np.broadcast_to(known.min_clusters, batch_shape).reshape(-1)
        highest = np.broadcast_to(known.max_clusters, batch_shape).reshape(-1)
        outside = np.flatnonzero((clusters < lowest) | (clusters > highest))
        if outside.size:
            p = outside[0]
            raise ValueError(
                f"n_clusters={clusters[p]} is infeasible: the constraints allow {lowest[p]} to {highest[p]} clusters"
                + (f" (problem {p} of the batch)." if batch_shape else ".")
            )
        if known.relation is None:
            labels = np.broadcast_to(known.labels, (*batch_shape, n)).reshape(n_problems, n)
        else:
            relation = np.broadcast_to(known.relation, (*batch_shape, n, n)).reshape(n_problems, n, n)
    return Problem(array.reshape(n_problems, n, n), clusters, labels, relation, batch_shape)
