"""From weights to forests, and what is returned of them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from diffclust.solvers.xla.calls import varying
from diffclust.solvers.xla.greedy import agglomerate, relation_of_labels
from diffclust.solvers.xla.trees import Tree, grow, masked, put, strongest, take
from diffclust.solvers.xla.weights import lowest_of, number_of


def _label_forests(weights: Array, labels: Array, n_clusters: Array, free: bool) -> Tree:
    """Forests (problems, solves, draws, n) for labels with must-links first, with ``free`` after those without.

    All trees are grown at once: inside the labelled groups, from all labelled points to the others, and the free one.
    """
    n, lowest = weights.shape[-1], lowest_of(weights.dtype)
    shape = weights.shape[:-1]
    point = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), shape)
    known = labels >= 0
    same = known[:, :, None] & (labels[:, :, None] == labels[:, None, :])
    first, glued = _glue(labels, shape)
    every = jnp.ones_like(same)
    components = [point, glued, point] if free else [point, glued]
    allowed = [same, every, every] if free else [same, every]
    trees = grow(weights[:, None], jnp.stack(components, 1), jnp.stack(allowed, 1)[:, :, None])
    inside = _solve_of(trees, 0)
    filled = inside.weights > lowest
    n_inside = filled.sum(-1, dtype=jnp.int32)

    kept = _strongest_outside(Tree(*(array[:, 1:] for array in trees)), labels, n_clusters, free)

    # The slot of the first labelled point may be filled twice; each group has left one slot free.
    root = jnp.where(known[:, None] & ~filled, point, n).min(-1, keepdims=True)
    at_first = jnp.broadcast_to(first[:, None], root.shape)
    outside = Tree(*(jnp.where(point == root, take(array, at_first), array) for array in _solve_of(kept, 0)))
    forest = Tree(*(jnp.where(filled, a, b) for a, b in zip(inside, outside, strict=True)))

    is_cut = n_inside < (known & (leaders(labels) != point[:, 0])).sum(-1, dtype=jnp.int32)[:, None]
    greedy = agglomerate(weights, relation_of_labels(labels), n_clusters, True, is_cut)
    forest = Tree(*(jnp.where(is_cut[..., None], a, b) for a, b in zip(greedy, forest, strict=True)))
    return _stack([_solve_of(kept, 1), forest] if free else [forest])


def _one_pass_forests(weights: Array, labels: Array, n_clusters: Array, free: bool) -> Tree:
    """Those of one pass: the tree from the labelled points shows the blocks, and a second one grows inside them."""
    n = weights.shape[-1]
    point = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), weights.shape[:-1])
    _, glued = _glue(labels, weights.shape[:-1])
    kept = _strongest_outside(
        grow(weights[:, None], jnp.stack([glued, point] if free else [glued], 1)), labels, n_clusters, free
    )
    leader = leaders(labels)[:, None]
    links = jnp.broadcast_to(jnp.where(leader < point, leader * n + point, -1), point.shape)
    block = number_trees(jnp.concatenate([_solve_of(kept, 0).codes, links], -1), n)
    inside = jnp.where(block[..., :, None] == block[..., None, :], weights, lowest_of(weights.dtype))
    grown = _solve_of(grow(inside[:, None], point[:, None]), 0)
    forest = masked(grown, grown.codes >= 0)
    return _stack([_solve_of(kept, 1), forest] if free else [forest])


def _glue(labels: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """The first labelled point (problems, 1), which stands for all of them; and what stands for each point, (shape)."""
    known = labels >= 0
    first = jnp.argmax(known, -1, keepdims=True).astype(jnp.int32)
    glued = jnp.where(known, first, jnp.arange(labels.shape[-1], dtype=jnp.int32))
    return first, jnp.broadcast_to(glued[:, None], shape)


def _strongest_outside(trees: Tree, labels: Array, n_clusters: Array, free: bool) -> Tree:
    """Of the tree from the labelled points, and with ``free`` of the free one after it, the edges that stay."""
    n = labels.shape[-1]
    n_closures = (leaders(labels) == jnp.arange(n)).sum(-1, dtype=jnp.int32)
    n_keep = jnp.stack([n_closures - n_clusters, n - n_clusters] if free else [n_closures - n_clusters], 1)
    return strongest(trees, n_keep[..., None])


def leaders(labels: Array) -> Array:
    """The first point with the same label; of unlabelled points they themselves."""
    same = (labels[..., :, None] == labels[..., None, :]) & (labels >= 0)[..., None]
    return jnp.where(labels >= 0, jnp.argmax(same, -1), jnp.arange(labels.shape[-1])).astype(jnp.int32)


def _solve_of(tree: Tree, solve: int) -> Tree:
    return Tree(*(array[:, solve] for array in tree))


def _stack(trees: list[Tree]) -> Tree:
    return Tree(*(jnp.stack(arrays, 1) for arrays in zip(*trees, strict=True)))


def _free_forest(weights: Array, n_clusters: Array) -> Tree:
    point = jnp.arange(weights.shape[-1], dtype=jnp.int32)
    tree = grow(weights[:, None], jnp.broadcast_to(point, weights.shape[:-1])[:, None])
    return strongest(_solve_of(tree, 0), weights.shape[-1] - n_clusters[:, None])


def find_forests(
    weights: Array, n_clusters: Array, labels: Array | None, relation: Array | None, must_link_first: bool, free: bool
) -> Tree:
    """Forests (problems, solves, draws, n); the solves are (free, constrained) or one of them."""
    if labels is not None:
        return (_label_forests if must_link_first else _one_pass_forests)(weights, labels, n_clusters, free)
    trees = []
    if free or relation is None:
        trees.append(_free_forest(weights, n_clusters))
    if relation is not None:
        active = jnp.ones(weights.shape[:2], bool)
        trees.append(agglomerate(weights, relation, n_clusters, must_link_first, active))
    return _stack(trees)


def values_of(similarity: Array, tree: Tree) -> Array:
    """(problems, solves, draws) <A, weights>, NaN where the similarity has one.

    Summed with the rounding errors beside the sum, so that the order of the slots does not show: two solves that find
    the same forest have the same value.
    """
    weights = jnp.where(tree.codes >= 0, number_of(tree.weights), 0)

    def add(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        total = a[0] + b[0]
        of_b = total - a[0]
        error = (a[0] - (total - of_b)) + (b[0] - of_b)
        return total, a[1] + b[1] + error

    zero = np.zeros((), weights.dtype)
    total, error = lax.reduce((weights, jnp.zeros_like(weights)), (zero, zero), add, (weights.ndim - 1,))
    broken = jnp.isnan(similarity).any((-1, -2))[:, None, None]
    return jnp.where(broken, jnp.nan, 2 * (total + error))


def sorted_edges(tree: Tree) -> Array:
    """(..., n - 1, 2) edges by decreasing weight, then (-1, -1)."""
    return _ends(lax.sort((~tree.weights, tree.codes), num_keys=2)[1])


def edges_of(tree: Tree) -> Array:
    """(..., n - 1, 2) edges in any order, then (-1, -1). A tree has one slot more than it can have edges."""
    return _ends(-jnp.sort(-tree.codes, -1))


def _ends(codes: Array) -> Array:
    """The edges of all codes but the last, which holds none."""
    n = codes.shape[-1]
    codes = codes[..., :-1, None]
    return jnp.where(codes >= 0, jnp.concatenate([codes // n, codes % n], -1), -1)


def number_trees(codes: Array, n: int) -> Array:
    """(..., n) trees of the graph with these edges, numbered by their smallest point.

    Points take over the smallest label beside them, and then that label's label, until no edge has two.
    """
    ends = [jnp.where(codes >= 0, end, 0) for end in (codes // n, codes % n)]
    point = jnp.arange(n, dtype=jnp.int32)

    def meet(label: Array) -> tuple[Array, Array]:
        first, second = (take(label, end) for end in ends)
        return jnp.minimum(first, second), jnp.maximum(first, second)

    def spread(label: Array) -> Array:
        small, large = meet(label)
        label = put(label, large, small, "min")
        return take(label, label)

    def differ(label: Array) -> Array:
        small, large = meet(label)
        return (small != large).any()

    label = lax.while_loop(differ, spread, varying(jnp.broadcast_to(point, (*codes.shape[:-1], n)), codes))
    return take(jnp.cumsum(label == point, -1, dtype=jnp.int32) - 1, label)
