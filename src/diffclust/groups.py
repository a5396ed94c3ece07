"""Pairs and labels → groups of points, and which groups stay apart; or the chain of pairs that cannot all be right."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.frameworks import is_traced, to_numpy

SAME, DIFFERENT, UNKNOWN = 1, 0, -1  # what is known about two points


def check_pairs(name: str, pairs: Iterable[tuple[int, int]] | None, n_points: int) -> NDArray[np.intp]:
    """Pairs (m, 2) of numbers of points, or an error that says what is wrong."""
    check_readable(name, pairs)
    array = np.asarray(to_numpy(pairs, name) if hasattr(pairs, "shape") else list(pairs or ()))
    if array.size == 0:
        return np.empty((0, 2), np.intp)
    check_integers(name, array.dtype)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(f"{name} must be pairs of point numbers, shape (m, 2), got shape {array.shape}.")
    outside = (array < 0) | (array >= n_points)
    if outside.any():
        i, j = array[outside.any(1)][0]
        raise ValueError(f"{name} pair ({i}, {j}) is out of range: points are numbered 0 to {n_points - 1}.")
    return array.astype(np.intp)


def check_readable(name: str, array: Any) -> None:
    """A TypeError if JAX traces the array."""
    if is_traced(array):
        raise TypeError(
            f"{name} is traced by JAX, but its values must be read. Build these constraints outside of jit and other "
            "transformations, or use Constraints.from_labels, which takes traced labels."
        )


def check_integers(name: str, dtype: Any) -> None:
    """A TypeError unless this is a dtype of integers, of any framework: "int64", "torch.int64", NumPy's ">i4"."""
    if "int" not in str(dtype) and getattr(dtype, "kind", "") not in tuple("iu"):
        raise TypeError(f"{name} must be integers, got {dtype}. Convert them, -1 where one is unknown.")


def join_knowledge(
    labels: NDArray[np.int64],
    must_link: Iterable[tuple[int, int]] | None = (),
    cannot_link: Iterable[tuple[int, int]] | None = (),
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """:meth:`Constraints.groups` of labels (n,) and pairs together, without a matrix of all points.

    Contradictions are a ValueError that names the chain, same labels among its must-links.

    Returns:
        The group of each point, -1 where nothing is known of it; and which groups must stay apart.
    """
    n = len(labels)
    must, cannot = check_pairs("must_link", must_link, n), check_pairs("cannot_link", cannot_link, n)
    names, first = np.unique(labels[labels >= 0], return_index=True)
    first = np.flatnonzero(labels >= 0)[first]  # a point of each class
    rows = np.flatnonzero(labels >= 0)
    star = np.stack([first[np.searchsorted(names, labels[rows])], rows], axis=1)
    must = np.concatenate([must, star[star[:, 0] != star[:, 1]]])
    component = _components(n, must, cannot)
    _check_classes(first, component, must)
    involved = np.zeros(n, bool)
    involved[np.concatenate([must.ravel(), cannot.ravel(), rows])] = True
    group = np.full(n, -1, np.int64)
    numbers, group[involved] = np.unique(component[involved], return_inverse=True)
    apart = _apart(group, cannot, len(numbers))
    if len(first):
        classes = group[first]
        apart[np.ix_(classes, classes)] = True
        apart[classes, classes] = False
    return group, apart


def _check_classes(first: NDArray[np.intp], component: NDArray[np.int32], must: NDArray[np.intp]) -> None:
    """A ValueError if must-links join points of two classes, given by a point of each; there may be many classes."""
    order = np.argsort(component[first], kind="stable")
    same = np.flatnonzero(np.diff(component[first[order]]) == 0)
    if len(same):
        i, j = np.sort(first[order[same[0] : same[0] + 2]])
        raise ValueError(_explain_contradiction(int(i), int(j), must))


def _components(n: int, must: NDArray[np.intp], cannot: NDArray[np.intp]) -> NDArray[np.int32]:
    """The must-link component of each point, or a ValueError that explains the contradiction."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(must), np.int8), (must[:, 0], must[:, 1])), shape=(n, n))
    _, component = connected_components(graph, directed=False)
    clash = np.flatnonzero(component[cannot[:, 0]] == component[cannot[:, 1]])
    if len(clash):
        i, j = cannot[clash[0]]
        raise ValueError(_explain_contradiction(int(i), int(j), must))
    return component


def close_relation(n: int, must: NDArray[np.intp], cannot: NDArray[np.intp]) -> NDArray[np.int8]:
    """The transitively closed relation, or a ValueError that explains the contradiction."""
    group = _components(n, must, cannot)
    return relation_of(group, _apart(group, cannot, group.max() + 1))


def _apart(group: NDArray[Any], cannot: NDArray[np.intp], n_groups: int) -> NDArray[np.bool_]:
    """(groups, groups) which of them cannot-links keep apart."""
    apart = np.zeros((n_groups, n_groups), bool)  # needs memory only where it is written to
    first, second = group[cannot].T
    apart[first, second] = apart[second, first] = True
    return apart


def relation_of(group: NDArray[Any], apart: NDArray[np.bool_]) -> NDArray[np.int8]:
    """(n, n) relation of points that are all in groups."""
    same = group[:, None] == group[None, :]
    return np.where(same, SAME, np.where(apart[group][:, group], DIFFERENT, UNKNOWN)).astype(np.int8)


def all_apart(apart: NDArray[np.bool_]) -> bool:
    """Whether any two groups must stay apart: then they are the classes of labels."""
    n = len(apart)
    return bool(np.count_nonzero(apart) - np.count_nonzero(np.diagonal(apart)) == n * (n - 1))


def bound_of_groups(apart: NDArray[np.bool_]) -> int:
    """A lower bound on the number of clusters that groups need of which some must stay apart; exact up to 2."""
    from scipy.sparse.csgraph import connected_components

    constrained = np.flatnonzero(apart.any(-1))  # one colour is enough for all others
    if not len(constrained):
        return 1
    apart = apart[np.ix_(constrained, constrained)]
    if all_apart(apart):
        return len(apart)
    # Two copies of each group, and edges between copies only: a bipartite graph falls into twice as many pieces.
    doubled = np.block([[np.zeros_like(apart), apart], [apart, np.zeros_like(apart)]])
    if connected_components(doubled)[0] == 2 * connected_components(apart)[0]:
        return 2
    clique: list[int] = []
    for v in np.argsort(-apart.sum(0), kind="stable"):
        if apart[v, clique].all():
            clique.append(int(v))
    return max(3, len(clique))


def _explain_contradiction(i: int, j: int, must: NDArray[np.intp]) -> str:
    if i == j:
        return f"Contradictory constraints: cannot_link has ({i}, {i}), but a point cannot be apart from itself."
    chain = find_chain(must, np.ones(len(must), bool), i, j, together=True)
    links = ", ".join(f"({a}, {b})" for a, b in chain)
    return (
        f"Contradictory constraints: ({i}, {j}) must stay apart, but the must-links {links} join them. "
        "Remove one of these pairs, or give pairs that may be wrong a weight."
    )


def find_chain(
    pairs: NDArray[Any], same: NDArray[np.bool_], i: int, j: int, together: bool
) -> tuple[tuple[int, int], ...]:
    """The shortest chain of pairs from i to j: of must-links (``together``), or of these and one cannot-link."""
    neighbours: dict[int, list[tuple[int, bool]]] = {}
    for (a, b), linked in zip(pairs.tolist(), same.tolist(), strict=True):
        neighbours.setdefault(a, []).append((b, linked))
        neighbours.setdefault(b, []).append((a, linked))
    start, goal = (int(i), False), (int(j), not together)  # a place is a point, and whether a cannot-link was passed
    came_from = {start: start}
    queue = deque([start])
    while goal not in came_from:
        a, passed = place = queue.popleft()
        for b, linked in neighbours.get(a, ()):
            if not (passed and not linked) and (b, passed or not linked) not in came_from:
                came_from[b, passed or not linked] = place
                queue.append((b, passed or not linked))
    chain = [goal]
    while chain[-1] != start:
        chain.append(came_from[chain[-1]])
    return tuple((a, b) for (a, _), (b, _) in zip(chain[::-1], chain[-2::-1], strict=False))


def consistent(pairs: NDArray[Any], same: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which pairs to take in turn, so that none contradicts those taken before."""
    ends, numbers = np.unique(pairs, return_inverse=True)  # few of them, however large
    leader = list(range(len(ends)))
    apart: list[set[int]] = [set() for _ in leader]
    taken = np.zeros(len(pairs), bool)

    def find(a: int) -> int:
        while leader[a] != a:
            leader[a] = a = leader[leader[a]]
        return a

    for number, (i, j) in enumerate(numbers.reshape(-1, 2).tolist()):
        a, b = find(i), find(j)
        if same[number]:
            taken[number] = b not in apart[a]
            if a != b and taken[number]:
                if len(apart[a]) < len(apart[b]):
                    a, b = b, a
                leader[b] = a
                for other in apart[b]:
                    apart[other].discard(b)
                    apart[other].add(a)
                apart[a] |= apart[b]
        elif a != b:
            taken[number] = True
            apart[a].add(b)
            apart[b].add(a)
    return taken
