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
from diffclust.frameworks import framework_of, namespace_of, to_numpy

# How far entries (i, j) and (j, i) may differ, relative to the largest entry: products such as x @ x.T are symmetric
# only up to rounding, and finite differences move one entry at a time. The mean of the two is used.
SYMMETRY_TOLERANCE = {np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-5}


@dataclass(frozen=True)
class Problem:
    """``problems`` independent problems on n points, ready for a solver."""

    similarity: Any  # (problems, n, n) float32 or float64; NumPy's is exactly symmetric
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

    @property
    def is_constrained(self) -> bool:
        return self.labels is not None or self.relation is not None

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


def check_tensor(similarity: Any) -> Any:
    """What can be said of a torch tensor or JAX array without reading it; half precision becomes float32."""
    kind = str(similarity.dtype)
    if "float" not in kind:
        raise TypeError(f"similarity must be floating point, got {kind}. Convert it, e.g. with .float().")
    if similarity.ndim < 2 or similarity.shape[-1] != similarity.shape[-2]:
        raise ValueError(
            f"similarity must have shape (n, n) or (..., n, n), got shape {tuple(similarity.shape)}. For embeddings of "
            "shape (n, d), pass e.g. negative_squared_distances(embeddings)."
        )
    if similarity.shape[-1] == 0:
        raise ValueError(f"similarity is empty (shape {tuple(similarity.shape)}): at least one point is needed.")
    if "32" in kind or "64" in kind:
        return similarity
    return similarity.float() if framework_of(similarity) == "torch" else similarity.astype("float32")


def check_n_clusters(n_clusters: Any, n_points: int, batch_shape: tuple[int, ...], like: Any) -> Any:
    """(problems,) integers from 1 to n_points, where ``like`` lives. Integers of a framework are not read."""
    xp, on_torch = namespace_of(like), framework_of(like) == "torch"
    if isinstance(n_clusters, int) and not isinstance(n_clusters, bool):
        _check_bounds(n_clusters, n_clusters, n_points)
        # On a device this is a fill: nothing travels.
        placed = {"device": like.device} if on_torch else {}
        return xp.full((math.prod(batch_shape),), n_clusters, dtype=xp.int64, **placed)
    if framework_of(n_clusters) == "numpy":
        n_clusters = np.asarray(n_clusters)
        if n_clusters.dtype.kind not in "iu":
            raise TypeError(f"n_clusters must be an integer, got {n_clusters.tolist()!r}.")
        if n_clusters.size:
            _check_bounds(int(n_clusters.min()), int(n_clusters.max()), n_points)
    elif "int" not in str(n_clusters.dtype):
        raise TypeError(f"n_clusters must be integers, got {n_clusters.dtype}.")
    if tuple(n_clusters.shape) not in ((), batch_shape):
        raise ValueError(
            f"n_clusters must be one integer or one per problem, shape {batch_shape}, got shape "
            f"{tuple(n_clusters.shape)}."
        )
    if on_torch:
        n_clusters = xp.as_tensor(n_clusters, dtype=xp.int64, device=like.device)
    elif framework_of(like) == "numpy":
        n_clusters = to_numpy(n_clusters).astype(np.int64)
    return xp.broadcast_to(n_clusters, batch_shape).reshape(-1)


def _check_bounds(lowest: int, highest: int, n_points: int) -> None:
    if lowest < 1 or highest > n_points:
        wrong = lowest if lowest < 1 else highest
        raise ValueError(f"n_clusters={wrong} must be from 1 to the number of points, {n_points}.")


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
            f"constraints have batch shape {constraints.batch_shape}, similarity has {batch_shape}. They must be equal, "
            "or the constraints must be for one problem, which then hold for all."
        )
    return constraints


def prepare(
    similarity: Any, n_clusters: Any, constraints: Constraints | None = None, *, clamp: bool = False
) -> Problem:
    """Check and flatten input for a solver.

    With ``clamp``, n_clusters is moved into the feasible range of the constraints. Without, infeasible NumPy input is a
    ValueError that names the range; other frameworks' values are not read here, see ``check_feasible``.
    """
    on_host = framework_of(similarity) == "numpy"
    array = check_similarity(similarity) if on_host else check_tensor(similarity)
    batch_shape, n = tuple(array.shape[:-2]), int(array.shape[-1])
    clusters = check_n_clusters(n_clusters, n, batch_shape, array)
    known = check_constraints(constraints, n, batch_shape)
    labels = relation = None
    n_problems = math.prod(batch_shape)
    if known is not None:
        if known.relation is None:
            labels = _place(known.labels, array, (*batch_shape, n)).reshape(n_problems, n)
        else:
            relation = _place(known.relation, array, (*batch_shape, n, n)).reshape(n_problems, n, n)
        if clamp:
            lowest, highest = feasible_range(labels, relation)
            clusters = clusters.clip(lowest, highest)
        elif on_host:
            check_feasible(clusters, labels, relation)
    return Problem(array.reshape(n_problems, n, n), clusters, labels, relation, batch_shape)


def _place(known: Any, like: Any, shape: tuple[int, ...]) -> Any:
    """Constraints where the similarity lives; labels of another device are a mistake, not a copy to make in silence."""
    framework = framework_of(like)
    xp = namespace_of(like)
    if framework == "numpy":
        return np.broadcast_to(to_numpy(known), shape)
    if framework == "torch":
        if framework_of(known) == "torch" and known.device != like.device:
            raise ValueError(
                f"labels are on {known.device}, the similarity is on {like.device}. Move one, e.g. with .to(device)."
            )
        known = xp.as_tensor(known, device=like.device)
    return xp.broadcast_to(xp.asarray(known), shape)


def feasible_range(labels: Any, relation: Any) -> tuple[Any, Any]:
    """(problems,) smallest and largest feasible number of clusters."""
    if relation is None:
        known = Constraints(labels=labels)
        return known.min_clusters, known.max_clusters
    known = Constraints(relation=to_numpy(relation))
    lowest, highest = known.min_clusters, known.max_clusters
    if framework_of(relation) == "torch":
        as_tensor = namespace_of(relation).as_tensor
        return as_tensor(lowest, device=relation.device), as_tensor(highest, device=relation.device)
    return lowest, highest


def check_feasible(n_clusters: Any, labels: Any, relation: Any) -> None:
    """A ValueError that names the range if some problem's n_clusters is outside it. Reads the values."""
    lowest, highest = (to_numpy(bound) for bound in feasible_range(labels, relation))
    clusters = to_numpy(n_clusters)
    outside = np.flatnonzero((clusters < lowest) | (clusters > highest))
    if outside.size:
        p = outside[0]
        raise ValueError(
            f"n_clusters={clusters[p]} is infeasible: the constraints allow {lowest[p]} to {highest[p]} clusters"
            + (f" (problem {p} of the batch)." if clusters.size > 1 else ".")
        )


def check_reached(labels: NDArray[np.int32], n_clusters: NDArray[np.int64], constrained: bool) -> None:
    """A ValueError if some draw's forest, labels (problems, draws, n), has more trees than asked for."""
    n_trees = labels.max(axis=(1, 2), initial=-1) + 1
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
