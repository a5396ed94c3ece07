"""Spanning trees of ordered weights, by Prim or Borůvka."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from diffclust.solvers.xla.calls import varying
from diffclust.solvers.xla.weights import lowest_of


class Tree(NamedTuple):
    """Slots (..., n) of a forest: edges (i, j) as i * n + j, i < j, and ordered weights; the lowest one means empty."""

    codes: Array
    weights: Array


def take(array: Array, index: Array) -> Array:
    """``array[..., index]`` along the last dimension; an index out of range takes the nearest entry."""
    return jnp.take_along_axis(array, index, -1, mode="clip")


def put(array: Array, index: Array, update: Array, how: str) -> Array:
    """``array[..., index].how(update)`` along the last dimension; indices out of range are dropped."""
    grid = jnp.meshgrid(*(jnp.arange(d) for d in index.shape[:-1]), indexing="ij", sparse=True)
    where = (*(g[..., None] for g in grid), index)
    return getattr(array.at[where], how)(update, mode="drop")


def _boruvka(weights: Array, component: Array, allowed: Array | None) -> Tree:
    """Join components, given by the index of one of their points, until no edge between two of them is left.

    In each round every component takes its best edge to another one. Slot r is filled when component r is joined to
    another, which happens once to all but one of the components that get joined.

    Components are (problems, solves, draws, n), weights (problems, 1, draws, n, n), for all solves the same; edges
    ``allowed`` (problems, solves, 1, n, n), or all.
    """
    n, lowest = weights.shape[-1], lowest_of(weights.dtype)
    point = jnp.arange(n, dtype=jnp.int32)

    def best_edges(component: Array) -> Tree:
        """The best edge of each component to another one, in the slot of the component."""
        between = component[..., :, None] != component[..., None, :]
        if allowed is not None:
            between = between & allowed
        best = jnp.where(between, weights, lowest).max(-1)
        is_best = between & (weights == best[..., None])
        other = jnp.where(is_best, point, n).min(-1)  # of equal ones the smaller pair
        code = jnp.minimum(point, other) * n + jnp.maximum(point, other)
        of_component = put(jnp.full_like(best, lowest), component, best, "max")
        first = (best == take(of_component, component)) & (best > lowest)
        codes = put(jnp.full_like(code, n * n), component, jnp.where(first, code, n * n), "min")
        return Tree(codes, of_component)

    def join(state: tuple[Array, Tree, Tree]) -> tuple[Array, Tree, Tree]:
        component, tree, best = state
        exists = best.weights > lowest
        first, second = (take(component, end) for end in (best.codes // n, best.codes % n))
        parent = jnp.where(exists, jnp.where(first == point, second, first), point)
        # Two components that chose each other chose the same edge: the smaller one stays.
        parent = jnp.where((take(parent, parent) == point) & (point < parent), point, parent)
        joined = parent != point
        tree = Tree(*(jnp.where(joined, new, old) for new, old in zip(best, tree, strict=True)))
        for _ in range(max(n - 1, 1).bit_length()):
            parent = take(parent, parent)
        component = take(parent, component)
        return component, tree, best_edges(component)

    def is_open(state: tuple[Array, Tree, Tree]) -> Array:
        return (state[2].weights > lowest).any()

    component = varying(component, weights, allowed)
    empty = Tree(jnp.full_like(component, -1), jnp.full_like(component, lowest, weights.dtype))
    return lax.while_loop(is_open, join, (component, empty, best_edges(component)))[1]


def _prim(weights: Array, component: Array, allowed: Array | None) -> Tree:
    """What :func:`_boruvka` finds, by Prim's algorithm. Slot v is filled by the edge that adds point v.

    Points of the component that has several come first, as if edges of the highest weight led to them, and where no
    edge leads on, the next point is added without one.
    """
    n, lowest = weights.shape[-1], lowest_of(weights.dtype)
    highest = np.array(np.iinfo(weights.dtype).max, weights.dtype)
    point = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), component.shape)
    start = jnp.where(component != point, component, 0).max(-1, keepdims=True)
    problem, solve, draw = jnp.meshgrid(*(jnp.arange(d) for d in component.shape[:-1]), indexing="ij", sparse=True)

    def step(_: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, parent, is_open = state
        best = jnp.where(is_open, key, lowest).max(-1, keepdims=True)
        code = jnp.minimum(point, parent) * n + jnp.maximum(point, parent)
        # The last bit says whether the new point is the larger end.
        candidate = jnp.where(is_open & (key == best), 2 * code + (point > parent), 2 * n * n)
        first = candidate.min(-1, keepdims=True)
        u = jnp.where(first % 2 == 1, (first // 2) % n, (first // 2) // n)
        is_open = is_open & (point != u)
        row = weights[problem, 0, draw, u[..., 0]]
        if allowed is not None:
            row = jnp.where(allowed[problem, solve, 0, u[..., 0]], row, lowest)
        better = is_open & ((row > key) | ((row == key) & (u < parent)))
        return jnp.where(better, row, key), jnp.where(better, u, parent), is_open

    component = varying(component, weights, allowed)
    state = jnp.where(component == start, highest, lowest), varying(point, component), jnp.ones_like(component, bool)
    key, parent, _ = lax.fori_loop(0, n - 1, step, state)
    tree = Tree(jnp.minimum(point, parent) * n + jnp.maximum(point, parent), key)
    return masked(tree, key < highest)


def grow(weights: Array, component: Array, allowed: Array | None = None) -> Tree:
    """A maximum spanning forest of allowed edges, less those in the one component that may have several points."""
    return lax.platform_dependent(weights, component, allowed, cpu=_prim, default=_boruvka)


def strongest(tree: Tree, n_keep: Array) -> Tree:
    """The ``n_keep`` (...) strongest edges of the tree."""
    codes, weights = tree
    n_keep = n_keep[..., None]

    def nth(array: Array, position: Array) -> Array:
        return take(lax.sort(array), position.clip(min=0))

    # Two sorts of one array are faster than one sort by two keys.
    weakest = ~nth(~weights, n_keep - 1)
    stronger, tied = weights > weakest, weights == weakest
    n_tied = n_keep - stronger.sum(-1, keepdims=True, dtype=jnp.int32)
    last = nth(jnp.where(tied, codes, np.iinfo(np.int32).max), n_tied - 1)
    return masked(tree, (stronger | (tied & (codes <= last))) & (n_keep > 0))


def masked(tree: Tree, kept: Array) -> Tree:
    """The tree with only these slots filled."""
    kept = kept & (tree.weights > lowest_of(tree.weights.dtype))
    return Tree(jnp.where(kept, tree.codes, -1), jnp.where(kept, tree.weights, lowest_of(tree.weights.dtype)))
