"""Sums over draws."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array

from diffclust.noise import Draws, kernel_of
from diffclust.solvers.xla.calls import words_of
from diffclust.solvers.xla.chunks import over_chunks
from diffclust.solvers.xla.philox import make_noise, opaque_zero
from diffclust.solvers.xla.trees import put, take


def count_edges(codes: Array, n: int) -> Array:
    """(problems, n, n) int32, how often each edge is in codes (problems, solves, ...), less those of a second solve."""
    sign = 1 - 2 * jnp.arange(codes.shape[1], dtype=jnp.int32).reshape(-1, *[1] * (codes.ndim - 2))
    codes, sign = (a.reshape(codes.shape[0], math.prod(codes.shape[1:])) for a in jnp.broadcast_arrays(codes, sign))
    index = jnp.where(codes >= 0, codes, n * n)
    counts = put(jnp.zeros((codes.shape[0], n * n), jnp.int32), index, sign, "add").reshape(-1, n, n)
    return counts + counts.swapaxes(-1, -2)


@functools.partial(jax.jit, static_argnums=1)
def adjacency_counts(edges: Array, n: int) -> Array:
    """See :meth:`diffclust.solvers.base.Sums.adjacency_counts`."""
    return count_edges(jnp.where(edges[..., 0] >= 0, edges[..., 0] * n + edges[..., 1], -1), n)


@jax.jit
def connectivity_counts(labels: Array) -> Array:
    """See :meth:`diffclust.solvers.base.Sums.connectivity_counts`."""
    n_problems, n_draws, n = labels.shape

    def chunk(position: Array) -> tuple[tuple[()], Array]:
        of_draws = labels.at[:, position].get(mode="clip")
        same = of_draws[..., :, None] == of_draws[..., None, :]
        return (), (same & (position < n_draws)[:, None, None]).sum(1, dtype=jnp.int32)

    return over_chunks(chunk, n_problems, n, n_draws)[1]


@jax.jit
def adjacency_products(cotangent: Array, edges: Array) -> Array:
    """See :meth:`diffclust.solvers.base.Sums.adjacency_products`."""
    n = cotangent.shape[-1]
    n_problems, n_draws, n_edges, _ = edges.shape
    both = (cotangent + cotangent.swapaxes(-1, -2)).reshape(n_problems, n * n)
    codes = (edges[..., 0] * n + edges[..., 1]).reshape(n_problems, n_draws * n_edges)
    return jnp.where(codes >= 0, take(both, codes), 0).reshape(n_problems, n_draws, n_edges).sum(-1)


@jax.jit
def connectivity_products(cotangent: Array, labels: Array) -> Array:
    """See :meth:`diffclust.solvers.base.Sums.connectivity_products`."""
    n_problems, n_draws, n = labels.shape

    def chunk(position: Array) -> tuple[Array, tuple[()]]:
        of_draws = labels.at[:, position].get(mode="clip")
        same = of_draws[..., :, None] == of_draws[..., None, :]
        return jnp.where(same, cotangent[:, None], 0).sum((-1, -2))[:, None], ()

    return over_chunks(chunk, n_problems, n, n_draws)[0][:, 0]


def noise_sum(weights: Array, n: int, draws: Draws) -> Array:
    """See :meth:`diffclust.solvers.base.Solver.noise_sum`."""
    kernel_of(draws.noise)
    return _noise_sum(weights, n, words_of(draws), draws.noise, draws.antithetic)


@functools.partial(jax.jit, static_argnums=(1, 3, 4))
def _noise_sum(weights: Array, n: int, words: Array, noise: str, antithetic: bool) -> Array:
    n_draws = weights.shape[1]

    def chunk(position: Array) -> tuple[tuple[()], Array]:
        z, sign = make_noise(words, position, n, noise, antithetic, opaque_zero(words, weights))
        score = z if noise == "normal" else 1.0 - jnp.exp(-z)
        of_draws = jnp.where(position < n_draws, weights.at[:, position].get(mode="clip") * sign, 0)
        product = "pb,pbij->pij" if len(words) > 1 else "pb,qbij->pij"  # noise of each problem, or one for all
        return (), jnp.einsum(product, of_draws, score.astype(weights.dtype), precision="highest")

    total = over_chunks(chunk, len(words), n, n_draws)[1]
    return jnp.where(jnp.eye(n, dtype=bool), 0, total)
