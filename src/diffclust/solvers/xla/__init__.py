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
one operation that rounds once; ``noise.rounded`` stands between the two where that would change a bit.

All functions are pure functions of arrays with a leading dimension of problems. Seeds and numbers of draws have 64
bits, more than JAX's integers have by default: they are pairs of words, see :func:`as_words`.

The way of a draw: ``noise.py`` makes its noise, ``weights.py`` the ordered weights, ``trees.py`` spanning trees of
them, ``forests.py`` forests and what is returned of them; ``chunks.py`` goes over the draws, ``sums.py`` stands behind.
"""

from __future__ import annotations

from typing import Any, NamedTuple

try:
    import jax
    import jax.numpy as jnp
    from jax import Array, lax
except ImportError as error:
    raise ImportError("The JAX solver needs JAX: pip install 'diffclust[jax]'.") from error

from diffclust.solvers import Forests
from diffclust.solvers.xla.calls import as_words, varying, with_words
from diffclust.solvers.xla.chunks import over_chunks
from diffclust.solvers.xla.forests import find_forests, number_trees, sorted_edges, values_of
from diffclust.solvers.xla.sums import (
    adjacency_counts,
    adjacency_products,
    connectivity_counts,
    connectivity_products,
    count_edges,
    mean_values,
    noise_sum,
)
from diffclust.solvers.xla.trees import Tree, masked
from diffclust.solvers.xla.weights import perturbed_weights

__all__ = [
    "Array", "Expectation", "adjacency_counts", "adjacency_products", "as_words", "connectivity_counts",
    "connectivity_products", "expect", "jax", "jnp", "mean_values", "noise_sum", "solve",
    "varying",
]  # fmt: skip

MAX_POINTS = 32767  # an edge (i, j) and a bit are the int32 2 * (i * n + j) + bit


def _solve_chunk(
    similarity: Array, n_clusters: Array, labels: Array | None, relation: Array | None, words: Array, epsilon: Any,
    position: Array, *, noise: str, antithetic: bool, must_link_first: bool, free: bool,
) -> Tree:  # fmt: skip
    """Forests of the draws at these positions; a problem with a NaN has no edges."""
    # The barrier keeps XLA from making the noise once for each use of it.
    weights = lax.optimization_barrier(perturbed_weights(similarity, words, epsilon, position, noise, antithetic))
    tree = find_forests(weights, n_clusters.astype(jnp.int32), labels, relation, must_link_first, free)
    return masked(tree, ~jnp.isnan(similarity).any((-1, -2))[:, None, None, None])


def _check_size(similarity: Array) -> None:
    if similarity.shape[-1] > MAX_POINTS:
        raise ValueError(f"The JAX solver takes up to {MAX_POINTS} points, got {similarity.shape[-1]}.")


@with_words
def solve(
    similarity: Array,
    n_clusters: Array,
    *,
    labels: Array | None = None,
    relation: Array | None = None,
    must_link_first: bool = True,
    free: bool = True,
    words: Array,
    n_draws: int = 1,
    epsilon: Any = 0.0,
    noise: str = "normal",
    antithetic: bool = False,
) -> Forests:
    """Forests of ``similarity + epsilon * noise`` for every problem and draw; arguments as those of ``solvers.cpu``.

    Seed and first draw may be words, (1, 2) or one row for every problem. A problem with a NaN gets NaN values and no
    edges. Fewer edges than n - k mean that the greedy got stuck.
    """
    _check_size(similarity)

    def chunk(position: Array) -> tuple[Forests, tuple[()]]:
        tree = _solve_chunk(
            similarity, n_clusters, labels, relation, words, epsilon, position, noise=noise, antithetic=antithetic,
            must_link_first=must_link_first, free=free,
        )  # fmt: skip
        broken = jnp.isnan(similarity).any((-1, -2))[:, None, None, None]
        trees = jnp.where(broken, 0, number_trees(tree.codes, similarity.shape[-1]))
        return Forests(sorted_edges(tree), trees, values_of(similarity, tree)), ()

    return over_chunks(chunk, len(similarity), similarity.shape[-1], n_draws)[0]


class Expectation(NamedTuple):
    """What expected values and their gradients are made of, without the draws' edges."""

    values: Array  # (problems, solves, draws)
    n_edges: Array  # (problems, solves, draws)
    counts: Array  # (problems, n, n), see adjacency_counts


@with_words
def expect(
    similarity: Array,
    n_clusters: Array,
    *,
    labels: Array | None = None,
    relation: Array | None = None,
    must_link_first: bool = True,
    free: bool = True,
    words: Array,
    n_draws: int = 1,
    epsilon: Any = 0.0,
    noise: str = "normal",
    antithetic: bool = False,
) -> Expectation:
    """Values of the forests that :func:`solve` finds, and how often each edge is in them, chunk after chunk."""
    _check_size(similarity)
    n = similarity.shape[-1]

    def chunk(position: Array) -> tuple[tuple[Array, Array], Array]:
        tree = _solve_chunk(
            similarity, n_clusters, labels, relation, words, epsilon, position, noise=noise, antithetic=antithetic,
            must_link_first=must_link_first, free=free,
        )  # fmt: skip
        n_edges = (tree.codes >= 0).sum(-1, dtype=jnp.int32)
        real = (position < n_draws)[:, None]
        return (values_of(similarity, tree), n_edges), count_edges(jnp.where(real, tree.codes, -1), n)

    (values, n_edges), counts = over_chunks(chunk, len(similarity), similarity.shape[-1], n_draws)
    return Expectation(values, n_edges, counts)
