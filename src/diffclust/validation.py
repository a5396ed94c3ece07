"""Checks of arguments: alone, and similarity, constraints and number of clusters together, as a :class:`Problem`.

Every operator and loss starts here, so that bad input meets the same words everywhere: what was expected, what came,
what to do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust._typing import Array, Integers, Seed
from diffclust.constraints import Constraints
from diffclust.frameworks import (
    as_like,
    check_at_least,
    framework_of,
    is_captured,
    is_integer,
    is_rehearsed,
    is_traced,
    namespace_of,
    smaller,
    to_numpy,
)
from diffclust.noise import Draws, Noise, as_noise, check_integer, check_noise, draw_seed
from diffclust.solvers.base import Request
from diffclust.solvers.checks import check_bounds, check_feasible, symmetrise


class Problem(NamedTuple):
    """Independent problems on n points, as they were given, and as a solver's request, flattened to ``problems``.

    Attributes:
        given: (*batch_shape, n, n) similarity, float32 or float64.
        k: number of clusters, an int for all problems, or integers (problems,).
        given_labels: (*batch_shape, n) integers, or None. They are kept as they are, because JAX traces what is done
            inside ``jit`` with an array that was made outside, and then its values cannot be read.
        given_relation: (*batch_shape, n, n) int8, or None.
    """

    given: Array
    k: Integers
    given_labels: Array = None
    given_relation: Array = None

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch; () for one problem."""
        return tuple(self.given.shape)[:-2]

    @property
    def n_problems(self) -> int:
        """Number of problems."""
        return math.prod(self.batch_shape)

    @property
    def n_points(self) -> int:
        """Number of points; while torch traces, it may be symbolic."""
        return self.given.shape[-1]

    @property
    def labels(self) -> Array:
        """(problems, n) integers, or None."""
        return None if self.given_labels is None else self.given_labels.reshape(self.n_problems, self.n_points)

    @property
    def relation(self) -> Array:
        """(problems, n, n) int8, or None."""
        if self.given_relation is None:
            return None
        return self.given_relation.reshape(self.n_problems, self.n_points, self.n_points)

    @property
    def n_clusters(self) -> Array:
        """(problems,) integers, where the similarity lives."""
        if not is_integer(self.k):
            return self.k
        xp = namespace_of(self.given)
        # On a device this is a fill: nothing travels.
        placed = {"device": self.given.device} if framework_of(self.given) == "torch" else {}
        # On JAX, "int" is what its switch for 64 bits says; asking for more is a warning.
        integer = int if framework_of(self.given) == "jax" else xp.int64
        return xp.full((self.n_problems,), self.k, dtype=integer, **placed)

    def request(self, draws: Draws, **settings: Any) -> Request:
        """What to ask a solver, without the similarity. Bindings add that, because they differentiate it."""
        return Request(None, self.k, self.labels, self.relation, draws, **settings)

    def unflatten(self, array: Any) -> Array:
        """(problems, ...) back to (*batch_shape, ...)."""
        result = array.reshape(self.batch_shape + tuple(array.shape[1:]))
        return result[()] if result.ndim == 0 and framework_of(result) == "numpy" else result


def check_similarity(similarity: Array) -> NDArray[Any]:
    """A float array (..., n, n), exactly symmetric, or an error that says what is wrong where."""
    return symmetrise(check_numbers(similarity))


def check_numbers(similarity: Array) -> NDArray[Any]:
    """A float array (..., n, n) without NaN and +inf; symmetry is left to the solver."""
    array = check_real("similarity", to_numpy(similarity, "similarity"))
    check_square(array)
    if array.size == 0:
        return array
    if np.isnan(array).any():
        where = tuple(int(i) for i in np.argwhere(np.isnan(array))[0])
        raise ValueError(f"similarity has a NaN at {where}. Use -inf for an edge that does not exist.")
    infinite = np.isposinf(array) & ~np.eye(array.shape[-1], dtype=bool)
    if infinite.any():
        where = tuple(int(i) for i in np.argwhere(infinite)[0])
        raise ValueError(f"similarity is +inf at {where}. To force a pair together, use a must-link constraint.")
    return array


def check_real(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Real numbers as float32 or float64: integers become float64, half precision float32."""
    if array.dtype.kind not in "iubf":
        raise TypeError(f"{name} must be real numbers, got dtype {array.dtype}.")
    if array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def check_square(similarity: Array) -> None:
    """A ValueError unless the similarity has shape (..., n, n) with at least one point."""
    if similarity.ndim < 2 or similarity.shape[-1] != similarity.shape[-2]:
        raise ValueError(
            f"similarity must have shape (n, n) or (..., n, n), got shape {tuple(similarity.shape)}. For points or "
            "embeddings of shape (n, d), pass e.g. negative_squared_distances(points)."
        )
    if similarity.shape[-1] == 0:
        raise ValueError(f"similarity is empty (shape {tuple(similarity.shape)}): at least one point is needed.")


def check_embeddings(x: Array) -> Array:
    """Float points (..., n, d); half precision becomes float32."""
    if framework_of(x) == "numpy":
        x = check_real("points", to_numpy(x, "points"))
    else:
        x = check_floating("embeddings", x)
    if x.ndim < 2:
        raise ValueError(f"points must have shape (n, d) or (..., n, d), got shape {tuple(x.shape)}.")
    if x.shape[-2] == 0:
        raise ValueError(f"points are empty (shape {tuple(x.shape)}): at least one point is needed.")
    return x


def check_floating(name: str, array: Array) -> Array:
    """A torch tensor or JAX array of floating point numbers; half precision becomes float32. Values are not read."""
    kind = str(array.dtype)
    if "float" not in kind:
        conversion = ".float()" if framework_of(array) == "torch" else ".astype('float32')"
        raise TypeError(f"{name} must be floating point, got {kind}. Convert first, e.g. with {conversion}.")
    if "32" in kind or "64" in kind:
        return array
    return array.float() if framework_of(array) == "torch" else array.astype("float32")


def check_n_clusters(
    n_clusters: Integers, n_points: int, batch_shape: tuple[int, ...], like: Array, clamp: bool = False
) -> Array:
    """k, an int or (problems,) integers where ``like`` lives, from 1 to n_points; with ``clamp``, at most n_points.

    Arrays of a framework are not read.

    Returns:
        The number of clusters.

    Raises:
        TypeError: k is not an integer.
        ValueError: k is out of its range, or neither one integer nor one per problem.
    """
    xp, framework = namespace_of(like), framework_of(like)
    if isinstance(n_clusters, int) and not isinstance(n_clusters, bool):
        check_bounds(n_clusters, None if clamp else n_clusters, n_points)
        return smaller(n_clusters, n_points) if clamp else n_clusters
    if framework == "numpy" or framework_of(n_clusters) != framework:
        n_clusters = to_numpy(n_clusters, "n_clusters")
        if n_clusters.dtype.kind not in "iu":
            raise TypeError(f"n_clusters must be an integer, got {n_clusters.tolist()!r}.")
        if n_clusters.size:
            check_bounds(int(n_clusters.min()), None if clamp else int(n_clusters.max()), n_points)
    elif "int" not in str(n_clusters.dtype):
        raise TypeError(f"n_clusters must be integers, got {n_clusters.dtype}.")
    if tuple(n_clusters.shape) not in ((), batch_shape):
        raise ValueError(
            f"n_clusters must be one integer or one per problem, shape {batch_shape}, got shape "
            f"{tuple(n_clusters.shape)}."
        )
    if framework == "torch":
        n_clusters = xp.as_tensor(n_clusters, dtype=xp.int64, device=like.device)
    elif framework == "numpy":
        n_clusters = n_clusters.astype(np.int64)
    if clamp:
        n_clusters = n_clusters.clip(max=n_points)
    return xp.broadcast_to(n_clusters, batch_shape).reshape(-1)


def check_draws(
    similarity: Array,
    epsilon: float,
    n_draws: int,
    noise: str | Noise,
    seed: Seed,
    first_draw: Integers,
    antithetic: bool,
) -> Draws:
    """The draws that these arguments ask for; on NumPy arrays with a seed, drawn if there is none."""
    n_draws = check_at_least("n_draws", n_draws)
    if not isinstance(epsilon, (int, float, np.number)) or isinstance(epsilon, bool):
        raise TypeError(f"epsilon must be a number, got {epsilon!r}.")
    if not 0 < epsilon < float("inf"):
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}. Without noise, use spanning_forest.")
    noise = check_noise(noise)
    if antithetic and not as_noise(noise).symmetric:
        raise ValueError(f"antithetic draws need symmetric noise, noise='normal', got noise={noise!r}.")
    if antithetic and n_draws % 2:
        raise ValueError(f"antithetic draws come in pairs: n_draws must be even, got {n_draws}.")
    if framework_of(similarity) == "numpy":
        seed = draw_seed(None) if seed is None else seed
        seed, first_draw = check_integer("seed", seed), check_integer("first_draw", first_draw)
    return Draws(seed, first_draw, n_draws, float(epsilon), noise, bool(antithetic))


def check_flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def check_count(name: str, value: Any, highest: int, meaning: str = "the number of points") -> int:
    """An integer from 1 to ``highest``, which the error explains by its ``meaning``."""
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    if not 1 <= value <= highest:
        raise ValueError(f"{name}={value} must be from 1 to {meaning}, {highest}.")
    return int(value)


def check_neighbors(n_neighbors: Any, n_points: int) -> int:
    """An integer from 1 to the number of other points."""
    return check_count("n_neighbors", n_neighbors, n_points - 1, "the number of other points")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """One of some names."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
    return value


def check_points(points: Array) -> Array:
    """Finite real points (n, d), as they came if they are a tensor on a GPU of CUDA, else as a NumPy array."""
    on_host = to_numpy(points, "points")
    if on_host.dtype.kind not in "iubf":
        raise TypeError(f"points must be real numbers, got dtype {on_host.dtype}.")
    if on_host.ndim != 2:
        raise ValueError(f"points must have shape (n, d), got shape {on_host.shape}.")
    if 0 in on_host.shape:
        raise ValueError(f"points are empty (shape {on_host.shape}): at least one point and one dimension are needed.")
    if not np.isfinite(on_host).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(on_host))[0])
        raise ValueError(f"points must be finite: entry ({row}, {column}) is {on_host[row, column]}.")
    return points if framework_of(points) == "torch" and points.is_cuda else on_host


def check_edges(edges: Array, weights: Array, n_points: int) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Edges (m, 2) with i < j and their similarities (m,), without those that do not exist, or an error."""
    check_count("n_points", n_points, np.iinfo(np.int32).max, "the largest 32-bit integer")
    pairs, strength = to_numpy(edges, "edges"), to_numpy(weights, "weights")
    if pairs.size == 0:
        pairs = np.empty((0, 2), np.int32)
    if pairs.dtype.kind not in "iu":
        raise TypeError(f"edges must be integers, numbers of points, got dtype {pairs.dtype}.")
    if strength.dtype.kind not in "iuf":
        raise TypeError(f"weights must be real numbers, got dtype {strength.dtype}.")
    if pairs.ndim != 2 or pairs.shape[1] != 2 or strength.shape != (len(pairs),):
        raise ValueError(f"edges must be (m, 2) and weights (m,), got shapes {pairs.shape} and {strength.shape}.")
    if strength.dtype not in (np.float32, np.float64):
        strength = strength.astype(np.float64)
    if len(pairs) and not (pairs.min() >= 0 and pairs.max() < n_points):
        wrong = int(((pairs < 0) | (pairs >= n_points)).any(1).argmax())
        raise ValueError(f"edge {wrong} is {tuple(pairs[wrong].tolist())}: points are numbered 0 to {n_points - 1}.")
    wrong_weights = np.isnan(strength) | np.isposinf(strength)
    if wrong_weights.any():
        wrong = int(wrong_weights.argmax())
        raise ValueError(
            f"weight {wrong} is {strength[wrong]}. Use -inf for an edge that does not exist, and a must-link "
            "constraint to force a pair together."
        )
    real = (pairs[:, 0] != pairs[:, 1]) & np.isfinite(strength)
    if not real.all():
        pairs, strength = pairs[real], strength[real]
    low, high = pairs.min(1), pairs.max(1)
    return np.stack([low, high], axis=1).astype(np.int32), strength


def check_groups(group: Array, apart: Array, n_points: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Groups of points (n,), -1 for none, and which groups are apart, or an error. Compiled code reads by them."""
    group, apart = to_numpy(group, "group"), to_numpy(apart, "apart")
    if group.shape != (n_points,) or group.dtype.kind not in "iu":
        raise ValueError(f"group must be {n_points} integers, got {group.dtype} of shape {group.shape}.")
    if apart.ndim != 2 or apart.shape[0] != apart.shape[1] or group.max(initial=-1) >= len(apart):
        raise ValueError(
            f"apart must be a matrix over the groups 0 to {group.max(initial=-1)}, got shape {apart.shape}."
        )
    return group.astype(np.int64, copy=False), apart.astype(bool, copy=False)


def check_constraints(constraints: Any, n_points: int, batch_shape: tuple[int, ...]) -> Constraints | None:
    """Constraints, or None, that fit similarities of this shape."""
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
            f"constraints have batch shape {constraints.batch_shape}, similarity has {batch_shape}. They must be "
            "equal, or the constraints must be for one problem, which then hold for all."
        )
    return constraints


def check_hard(constraints: Constraints | None, what: str) -> None:
    """A ValueError if there are soft constraints, which ``what`` has no use for."""
    if getattr(constraints, "soft", None) is not None:
        raise ValueError(f"{what} takes hard constraints only, got some with weights. Leave the weights out.")


def prepare(
    similarity: Array, n_clusters: Integers, constraints: Constraints | None = None, *, clamp: bool = False
) -> Problem:
    """Check and flatten input for a solver.

    A soft term of the constraints is added to the similarity. With ``clamp``, n_clusters is moved into the feasible
    range of the constraints. The range of labels is left to the solver, which knows it where the labels are
    (``Request.if_infeasible``). That of a relation is read here, but not while a CUDA graph is captured or where JAX
    traces the relation. Without ``clamp``, infeasible NumPy input is a ValueError that names the range; other
    frameworks' values are not read here, see ``check_feasible``.

    Returns:
        The problem.
    """
    on_host = framework_of(similarity) == "numpy"
    if on_host:
        array = check_numbers(similarity)
    else:
        array = check_floating("similarity", similarity)
        check_square(array)
    batch_shape, n = tuple(array.shape)[:-2], array.shape[-1]
    k = check_n_clusters(n_clusters, n, batch_shape, array, clamp)
    known = check_constraints(constraints, n, batch_shape)
    if known is None:
        return Problem(array, k)
    if known.soft is not None:
        array = array + place_soft(known, array)
    if known.relation is None:
        problem = Problem(array, k, _place(_short(known.labels, array), array, (*batch_shape, n)))
    else:
        problem = Problem(array, k, None, _place(known.relation, array, (*batch_shape, n, n)))
    if not clamp and on_host:
        check_feasible(problem.n_clusters, problem.labels, problem.relation)
    elif (
        clamp and known.relation is not None and not (is_captured(array) or is_rehearsed() or is_traced(known.relation))
    ):
        clusters = problem.n_clusters
        lowest, highest = (_place(bound, clusters, batch_shape) for bound in (known.min_clusters, known.max_clusters))
        problem = problem._replace(k=clusters.clip(lowest.reshape(-1), highest.reshape(-1)))
    return problem


def place_soft(constraints: Constraints, like: Array) -> Array:
    """W as an array like the similarity; without a gradient."""
    return namespace_of(like).broadcast_to(as_like(constraints.soft, like), like.shape)


def _place(known: Any, like: Array, shape: tuple[int, ...]) -> Array:
    """Constraints where the similarity lives; labels of another device are a mistake, not a copy to make in silence."""
    framework = framework_of(like)
    if framework == "numpy":
        return np.broadcast_to(to_numpy(known), shape)
    if framework == framework_of(known) == "torch":
        if known.device != like.device:
            raise ValueError(
                f"labels are on {known.device}, the similarity is on {like.device}. Move one, e.g. with .to(device)."
            )
        if known.shape == shape:
            return known
    xp = namespace_of(like)
    known = xp.as_tensor(known, device=like.device) if framework == "torch" else xp.asarray(known)
    return xp.broadcast_to(known, shape)


def _short(labels: Array, like: Array) -> Array:
    """Labels as they are; for JAX, whose integers have 32 bits, those of NumPy are numbered anew if they need more."""
    if framework_of(labels) != "numpy" or framework_of(like) != "jax" or labels.max() <= np.iinfo(np.int32).max:
        return labels
    numbers = np.unique(labels[labels >= 0], return_inverse=True)[1]
    shortened = np.full(labels.shape, -1, np.int32)
    shortened[labels >= 0] = numbers
    return shortened
