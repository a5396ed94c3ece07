"""The forest solver for JAX: an XLA program, vectorised over problems and draws, noise made inside it.

Weights ``similarity + epsilon * noise`` are held as *ordered integers* (floats mapped to integers of the same order),
one n x n matrix for each draw of a chunk. Draws are solved chunk after chunk, so no array has ``n_draws * n * n``
elements unless the problem is small. A spanning tree is n slots; each is empty or holds an edge and its weight.

Two algorithms grow the same tree. Prim reads every weight once, but takes n rounds: best on a CPU. Borůvka reads all of
them in each of at most log2(n) rounds: best on a GPU, where a round costs some kernel launches whatever its size. With
labels and must-links first, the constrained forest is a tree as well: grown inside each labelled group, then from all
labelled points, glued to one root, to the others. In one pass that shows which points end up together, and a second
tree grows inside these blocks. Constraints of another form, and with must-links first groups that missing edges cut
into pieces, go through ``greedy.agglomerate``, the greedy itself.

The noise is that of :mod:`diffclust.noise` to the last bit. XLA's compilers fuse a multiplication and an addition into
one operation that rounds once; ``philox.rounded`` stands between the two where that would change a bit.

All functions are pure functions of arrays with a leading dimension of problems. Seeds and numbers of draws have 64
bits, more than JAX's integers have by default: they are rows of words, see ``calls.as_row``.

The way of a draw: ``philox.py`` makes its noise, ``weights.py`` the ordered weights, ``trees.py`` spanning trees of
them, ``forests.py`` forests and what is returned of them; ``chunks.py`` goes over the draws, ``sums.py`` stands behind.
"""

from __future__ import annotations

import functools
from typing import Any

try:
    import jax
    import jax.numpy as jnp
    from jax import Array, lax
except ImportError as error:
    raise ImportError("The JAX solver needs JAX: pip install 'diffclust[jax]'.") from error

from diffclust.noise import kernel_of
from diffclust.solvers.base import Answer, Request, mean_values
from diffclust.solvers.checks import clamp_clusters
from diffclust.solvers.xla.calls import Arrays, split, symmetric
from diffclust.solvers.xla.chunks import over_chunks
from diffclust.solvers.xla.forests import edges_of, find_forests, number_trees, sorted_edges, values_of
from diffclust.solvers.xla.sums import count_edges, noise_sum
from diffclust.solvers.xla.trees import masked
from diffclust.solvers.xla.weights import perturbed_weights

__all__ = ["noise_sum", "solve"]

MAX_POINTS = 32767  # an edge (i, j) and a bit are the int32 2 * (i * n + j) + bit


def solve(request: Request) -> Answer:
    """Solve all problems and draws; see :class:`diffclust.solvers.base.Request`.

    Seed and first draw may be rows as those of ``calls.as_row``, and epsilon an array (rows, 1): one row, or one for
    every problem. A compiled program raises nothing: whether k is reached is the caller's to check.
    """
    if (n := request.similarity.shape[-1]) > MAX_POINTS:
        raise ValueError(f"The JAX solver takes up to {MAX_POINTS} points, got {n}.")
    kernel_of(request.draws.noise)
    settings, arrays = split(request)
    each, counts = find(settings, arrays)
    mean, adjacency = mean_values(each["values"]).astype(arrays.similarity.dtype), None
    if counts is not None:
        adjacency = counts.astype(arrays.similarity.dtype) / request.draws.n_draws
    if request.detail == "mean":
        return Answer(mean, adjacency)
    return Answer(mean, adjacency, **each)


@functools.partial(jax.jit, static_argnums=0)
def find(settings: Request, arrays: Arrays) -> tuple[dict[str, Array], Array | None]:
    """What is wanted of every draw by name, and how often each edge is in the forests; chunk after chunk."""
    n, draws, words = arrays.similarity.shape[-1], settings.draws, arrays.words
    similarity = symmetric(arrays.similarity)
    clusters = arrays.n_clusters
    if settings.if_infeasible == "clamp" and arrays.labels is not None:
        clusters = clamp_clusters(clusters, arrays.labels)
    is_whole = ~jnp.isnan(similarity).any((-1, -2))[:, None, None, None]

    def chunk(position: Array) -> tuple[dict[str, Array], Any]:
        weights = perturbed_weights(similarity, words, arrays.epsilon, position, draws.noise, draws.antithetic)
        # The barrier keeps XLA from making the noise once for each use of it.
        weights = lax.optimization_barrier(weights)
        tree = find_forests(
            weights, clusters.astype(jnp.int32), arrays.labels, arrays.relation, settings.must_link_first, settings.free
        )
        tree = masked(tree, is_whole)
        each = {"values": values_of(similarity, tree)}
        if settings.detail == "draws":
            each["edges"] = edges_of(tree)
        elif settings.detail == "forests":
            each["edges"] = sorted_edges(tree)
            each["labels"] = jnp.where(is_whole, number_trees(tree.codes, n), 0)
        real = (position < draws.n_draws)[:, None]
        return each, count_edges(jnp.where(real, tree.codes, -1), n) if settings.adjacency else None

    return over_chunks(chunk, len(similarity), n, draws.n_draws)
