"""The only two gradient formulas of forests; :mod:`diffclust.perturbed` explains them, bindings use them."""

from __future__ import annotations

from diffclust._typing import Array


def value_gradient(cotangent: Array, adjacency: Array) -> Array:
    """∇F = A, from cotangents (...) of mean values and mean adjacencies (..., n, n).

    For a mean gap F(Σ) - F(Σ; M_Ω) the adjacency is that of the free forests less that of the constrained ones.

    Returns:
        Gradients of the similarity, (..., n, n).
    """
    return (cotangent[..., None, None] if cotangent.ndim else cotangent) * adjacency


def score_weights(products: Array, epsilon: float, antithetic: bool) -> Array:
    """Weight of each draw's score, from its product ⟨G, A⟩ or ⟨G, M⟩, (problems, draws).

    The mean of the *other* draws' products is subtracted first (leave-one-out baseline): it is independent of the
    draw's noise, whose score has mean zero, so nothing changes in expectation, but the variance shrinks. A pair of
    antithetic draws cancels any baseline by itself, and one draw's twin is not independent of it, so there none is
    used.

    Returns:
        The weights, (problems, draws): the gradient is the sum over draws of weight times score.
    """
    n_draws = products.shape[-1]
    if antithetic or n_draws == 1:
        return products / (2.0 * epsilon * n_draws)
    return (products - products.mean(-1)[..., None]) / (2.0 * epsilon * (n_draws - 1))
