"""Groups of rows → clusters, where some groups must not share one: a colouring of the graph of groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diffclust.groups import all_apart

TABU_MOVES = 20_000  # of the search for a colouring

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def colour_groups(
    cost: Floats, apart: NDArray[np.bool_], rng: np.random.Generator, colours: Ints | None = None
) -> Ints:
    """(groups,) a cluster for each group, different ones for groups that are apart, at little cost.

    Where all groups are apart it is the cheapest assignment. Else it is a local optimum: the groups that have the
    fewest clusters left choose first (DSATUR), conflicts are repaired by tabu search, and then clusters exchange groups
    along Kempe chains while that is cheaper.

    Args:
        cost: (groups, clusters).
        apart: (groups, groups), symmetric.
        rng: breaks ties.
        colours: an earlier colouring to start from.

    Returns:
        The colouring.

    Raises:
        ValueError: no colouring was found. Only a set of groups that are all apart proves that there is none.

    >>> cost = np.array([[0.0, 3.0], [0.0, 1.0], [0.0, 9.0]])
    >>> chain = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)
    >>> colour_groups(cost, chain, np.random.default_rng(0)).tolist()
    [0, 1, 0]
    """
    n_groups, k = cost.shape
    if all_apart(apart) and n_groups <= k:
        from scipy.optimize import linear_sum_assignment

        return np.asarray(linear_sum_assignment(cost)[1])
    neighbours = [np.flatnonzero(row) for row in apart]
    if colours is None:
        colours = _saturated_first(cost, neighbours)
        if not _repair(colours, neighbours, k, rng):
            raise ValueError(
                f"no way was found to put {n_groups} groups into {k} clusters, where {int(apart.sum()) // 2} pairs of "
                "groups belong apart. Ask for more clusters, or remove cannot-links."
            )
    return _descend(cost, colours.copy(), neighbours)


def _saturated_first(cost: Floats, neighbours: list[Ints]) -> Ints:
    """DSATUR: the group with the fewest clusters left takes its cheapest one; conflicts remain where none is left."""
    n_groups, k = cost.shape
    colours = np.full(n_groups, -1)
    taken = np.zeros((n_groups, k), bool)
    degree = np.array([len(each) for each in neighbours], np.float64) / (n_groups + 1)
    waiting = np.ones(n_groups, bool)
    for _ in range(n_groups):
        urgency = np.where(waiting, taken.sum(1) + degree, -1.0)
        v = int(urgency.argmax())
        free = ~taken[v] if not taken[v].all() else np.ones(k, bool)
        colours[v] = np.where(free, cost[v], np.inf).argmin()
        waiting[v] = False
        taken[neighbours[v], colours[v]] = True
    return colours


def _repair(colours: Ints, neighbours: list[Ints], k: int, rng: np.random.Generator) -> bool:
    """Moves groups until no two that are apart share a colour (TabuCol); False if that did not succeed."""
    n_groups = len(colours)
    clashes = np.zeros((n_groups, k), np.int64)  # neighbours of each group in each colour
    for v, others in enumerate(neighbours):
        clashes[v] = np.bincount(colours[others], minlength=k)
    until = np.zeros((n_groups, k), np.int64)
    for move in range(TABU_MOVES):
        own = clashes[np.arange(n_groups), colours]
        conflicting = np.flatnonzero(own)
        if len(conflicting) == 0:
            return True
        gain = clashes[conflicting] - own[conflicting, None]
        gain[np.arange(len(conflicting)), colours[conflicting]] = n_groups  # staying is no move
        n_conflicts = own.sum() // 2
        forbidden = (until[conflicting] > move) & (gain + n_conflicts > 0)
        gain = np.where(forbidden, n_groups, gain)
        best = np.flatnonzero(gain == gain.min())
        position, colour = divmod(int(best[rng.integers(len(best))]), k)
        v, old = conflicting[position], colours[conflicting[position]]
        colours[v] = colour
        until[v, old] = move + int(0.6 * len(conflicting)) + rng.integers(10)
        clashes[neighbours[v], old] -= 1
        clashes[neighbours[v], colour] += 1
    return False


def _descend(cost: Floats, colours: Ints, neighbours: list[Ints]) -> Ints:
    """Exchanges two colours along Kempe chains while that makes the colouring cheaper; it stays one."""
    changed = True
    while changed:
        changed = False
        current = cost[np.arange(len(cost)), colours]
        for v in np.flatnonzero((cost < current[:, None]).any(1)):
            for colour in np.flatnonzero(cost[v] < cost[v, colours[v]]):
                chain = _kempe_chain(int(v), int(colour), colours, neighbours)
                exchanged = np.where(colours[chain] == colour, colours[v], colour)
                if cost[chain, exchanged].sum() < cost[chain, colours[chain]].sum() * (1 - 1e-12):
                    colours[chain] = exchanged
                    changed = True
                    break
    return colours


def _kempe_chain(v: int, colour: int, colours: Ints, neighbours: list[Ints]) -> list[int]:
    """v, and the groups of v's colour or the other one that are connected with it through such groups."""
    chain, reached = [v], {v}
    for w in chain:  # it grows meanwhile
        other = colour if colours[w] == colours[v] else colours[v]
        for u in neighbours[w]:
            if colours[u] == other and u not in reached:
                reached.add(u)
                chain.append(int(u))
    return chain
