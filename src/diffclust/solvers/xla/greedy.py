"""General constraints: the greedy itself."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from diffclust.solvers.xla.calls import varying
from diffclust.solvers.xla.philox import pair_of_cell
from diffclust.solvers.xla.trees import Tree, take
from diffclust.solvers.xla.weights import lowest_of


class _Greedy(NamedTuple):
    """Where the greedy stands; see ``reference.kruskal`` for trees and blocks."""

    step: Array
    active: Array  # (problems, draws)
    open_blocks: Array  # (problems, draws): whether joins between blocks are allowed
    may_open: Array
    n_blocks: Array
    tree: Array  # (problems, draws, n)
    block: Array
    apart: Array  # (problems, draws, n, n): whether the blocks of two points must stay apart
    found: Tree


def agglomerate(weights: Array, relation: Array, n_clusters: Array, must_link_first: bool, active: Array) -> Tree:
    """The constrained greedy on draws (problems, draws) that are active: best allowed join first, n steps at most.

    With must-links first, joins between blocks are allowed only when none inside a block is left, and no more when
    ``n_clusters`` blocks are left.
    """
    n, lowest = weights.shape[-1], lowest_of(weights.dtype)
    shape = weights.shape[:-1]
    point = jnp.arange(n, dtype=jnp.int32)
    low, high = pair_of_cell(n)
    k = n_clusters[:, None]
    block = jnp.argmax(relation == 1, -1).astype(jnp.int32)[:, None]
    n_blocks = (block == point).sum(-1, dtype=jnp.int32)
    may_open = jnp.broadcast_to(n_blocks > k, shape[:-1])

    def step(state: _Greedy) -> _Greedy:
        same_tree = state.tree[..., :, None] == state.tree[..., None, :]
        same_block = state.block[..., :, None] == state.block[..., None, :]
        allowed = ~same_tree & (same_block | (state.open_blocks[..., None, None] & ~state.apart))
        best = jnp.where(allowed, weights, lowest).max((-1, -2))
        is_best = allowed & (weights == best[..., None, None])
        code = jnp.where(is_best, low * n + high, n * n).min((-1, -2))
        exists = state.active & (best > lowest)
        i, j = code[..., None] // n, code[..., None] % n  # past the end where there is none
        tree_i, tree_j = take(state.tree, i), take(state.tree, j)
        block_i, block_j = take(state.block, i), take(state.block, j)
        opened = ~exists & ~state.open_blocks & state.may_open
        joins_blocks = exists & (block_i != block_j)[..., 0]
        tree = jnp.where(exists[..., None] & (state.tree == tree_j), tree_i, state.tree)
        member = (state.block == block_i) | (state.block == block_j)
        member = member & joins_blocks[..., None]
        block = jnp.where(member, block_i, state.block)
        # A point must stay apart from the joined block if it must from one of its two parts.
        far = (state.apart & member[..., :, None]).any(-2)
        apart = state.apart | (member[..., :, None] & far[..., None, :]) | (far[..., :, None] & member[..., None, :])
        n_blocks = state.n_blocks - joins_blocks.astype(jnp.int32)
        may_open = state.may_open & (n_blocks > k)
        found = Tree(
            *(
                jnp.where(exists[..., None] & (point == state.step), new[..., None], old)
                for new, old in zip((code, best), state.found, strict=True)
            )
        )
        return _Greedy(
            state.step + 1,
            state.active & (exists | opened),
            (state.open_blocks | opened) & may_open,
            may_open,
            n_blocks,
            tree,
            block,
            apart,
            found,
        )

    start = _Greedy(
        jnp.zeros((), jnp.int32),
        active,
        may_open & (not must_link_first),
        may_open,
        jnp.broadcast_to(n_blocks, shape[:-1]),
        jnp.broadcast_to(point, shape),
        jnp.broadcast_to(block, shape),
        jnp.broadcast_to((relation == 0)[:, None], weights.shape),
        Tree(jnp.full(shape, -1, jnp.int32), jnp.full(shape, lowest)),
    )
    start = jax.tree.map(lambda a: varying(a, weights, relation, n_clusters, active), start)
    return lax.while_loop(lambda state: state.active.any(), step, start).found


def relation_of_labels(labels: Array) -> Array:
    """(problems, n, n) what labels (problems, n) say: 1 same cluster, 0 different, -1 unknown."""
    known = (labels >= 0)[..., :, None] & (labels >= 0)[..., None, :]
    same = labels[..., :, None] == labels[..., None, :]
    return jnp.where(jnp.eye(labels.shape[-1], dtype=bool), 1, jnp.where(known, same.astype(jnp.int8), -1))
