r"""Expectations over random perturbations, and the only gradient formulas.

A forest jumps when the similarity Σ moves; its expectation over noise Z does not. With ``B`` draws,

.. math::
    F_{k,ε}(Σ) = E[\max ⟨A, Σ + εZ⟩],  A_{k,ε}(Σ) = E[\arg\max ⟨A, Σ + εZ⟩],  M_{k,ε}(Σ) = E[M^*_k(Σ + εZ)]

over forests A with k trees, with or without constraints, are :func:`perturbed_value`, :func:`perturbed_adjacency` and
:func:`perturbed_connectivity`. Two formulas give all gradients:

* **envelope** (:func:`value_gradient`): ∇F_{k,ε} = A_{k,ε}. The forests of the forward pass are the gradient.
* **score** (:func:`score_weights`): a forest has no gradient, but the density of the noise has one. For a cotangent G,
  (1/2ε) E[⟨G, A(Σ + εZ)⟩ s(Z)] with the score s = -∇ log density (s(Z) = Z for normal noise), and the same with M.
  The ½ is there because one variable stands at (i, j) and at (j, i).

A draw is n - 1 edges and n labels; nothing of size ``n_draws * n * n`` is ever held, because the noise is a pure
function of (seed, draw, i, j) and is made again where it is needed. See ``docs/notation.md`` for the symbols.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffclust.bindings import backend_of
from diffclust.constraints import Constraints
from diffclust.frameworks import framework_of, is_integer
from diffclust.noise import Draws, check_integer, check_kind
from diffclust.problems import check_flag, prepare

# ------------------------------------------------------------------------------------------------------------------
# The gradient formulas


def value_gradient(cotangent: Any, adjacency: Any) -> Any:
    """∇F = A, from cotangents (...) of mean values and mean adjacencies (..., n, n).

    For a mean gap F(Σ) - F(Σ; M_Ω) the adjacency is that of the free forests less that of the constrained ones.
    """
    return (cotangent[..., None, None] if cotangent.ndim else cotangent) * adjacency


def score_weights(products: Any, epsilon: float, antithetic: bool) -> Any:
    """Weight of each draw's score, from its product ⟨G, A⟩ or ⟨G, M⟩, (problems, draws).

    The mean of the *other* draws' products is subtracted first (leave-one-out baseline): it is independent of the
    draw's noise, whose score has mean zero, so nothing changes in expectation, but the variance shrinks. A pair of
    antithetic draws cancels any baseline by itself, and one draw's twin is not independent of it, so there none is
    used.
    """
    n_draws = products.shape[-1]
    if antithetic or n_draws == 1:
        return products / (2.0 * epsilon * n_draws)
    return (products - products.mean(-1)[..., None]) / (2.0 * epsilon * (n_draws - 1))


# ------------------------------------------------------------------------------------------------------------------
# The operators


def check_draws(
    similarity: Any, epsilon: float, n_draws: int, noise: str, seed: Any, first_draw: Any, antithetic: bool
) -> Draws:
    if not is_integer(n_draws):
        raise TypeError(f"n_draws must be an integer, got {n_draws!r}.")
    if n_draws < 1:
        raise ValueError(f"n_draws must be at least 1, got {n_draws}.")
    if not isinstance(epsilon, (int, float, np.number)) or isinstance(epsilon, bool):
        raise TypeError(f"epsilon must be a number, got {epsilon!r}.")
    if not 0 < epsilon < float("inf"):
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}. Without noise, use spanning_forest.")
    check_kind(noise)
    if antithetic and noise != "normal":
        raise ValueError(f"antithetic draws need symmetric noise, noise='normal', got noise={noise!r}.")
    if antithetic and n_draws % 2:
        raise ValueError(f"antithetic draws come in pairs: n_draws must be even, got {n_draws}.")
    if framework_of(similarity) == "numpy":
        if seed is None:
            # The legacy generator is the global one: np.random.seed makes runs repeatable.
            seed = np.random.randint(0, 2**63 - 1, dtype=np.int64)  # noqa: NPY002
        seed, first_draw = check_integer("seed", seed), check_integer("first_draw", first_draw)
    return Draws(seed, first_draw, int(n_draws), float(epsilon), noise, bool(antithetic))


def perturbed_value(
    similarity: Any, n_clusters: Any, *, constraints: Constraints | None = None, epsilon: float = 0.1,
    n_draws: int = 100, noise: str = "normal", seed: Any = None, must_link_first: bool = True,
    antithetic: bool = False, first_draw: Any = 0,
) -> Any:  # fmt: skip
    r"""F_{k,ε} = E[max ⟨A, Σ + εZ⟩]: the expected value of the best k-forest, shape (...) for similarity (..., n, n).

    Its gradient is :func:`perturbed_adjacency` with the same seed.

    Args:
        similarity: (n, n) or (..., n, n), symmetric; the mean of entries (i, j) and (j, i) counts.
        n_clusters: k, an integer, or one per problem.
        constraints: what is known, see :class:`diffclust.Constraints`.
        epsilon: scale of the noise.
        n_draws: number of Monte-Carlo draws. All problems of a batch see the same noise.
        noise: "normal" or "gumbel".
        seed: an integer (of the framework, too) or a JAX key; None draws one from the framework's global generator
            (for JAX, which has none, from NumPy's, outside of jit).
        must_link_first: see :func:`diffclust.spanning_forest`.
        antithetic: draws come in pairs Z, -Z.
        first_draw: number of the first draw of the seed's stream.

    >>> s = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> round(float(perturbed_value(s, 1, epsilon=1e-3, seed=0)), 2)
    2.0
    """
    check_flag("must_link_first", must_link_first)
    draws = check_draws(similarity, epsilon, n_draws, noise, seed, first_draw, antithetic)
    problem = prepare(similarity, n_clusters, constraints)
    means, _ = backend_of(problem.given).values(problem, draws, must_link_first=must_link_first, strict=True)
    return means


def perturbed_adjacency(
    similarity: Any, n_clusters: Any, *, constraints: Constraints | None = None, epsilon: float = 0.1,
    n_draws: int = 100, noise: str = "normal", seed: Any = None, must_link_first: bool = True,
    antithetic: bool = False, first_draw: Any = 0,
) -> Any:  # fmt: skip
    """A_{k,ε}: for each pair the share of draws whose forest has that edge, (..., n, n), zero diagonal.

    Differentiable by the score of the noise. Arguments as for :func:`perturbed_value`.

    >>> s = np.array([[0.0, 1.0, -9.0], [1.0, 0.0, -9.0], [-9.0, -9.0, 0.0]])
    >>> perturbed_adjacency(s, 2, seed=0)[0].tolist()
    [0.0, 1.0, 0.0]
    """
    check_flag("must_link_first", must_link_first)
    draws = check_draws(similarity, epsilon, n_draws, noise, seed, first_draw, antithetic)
    problem = prepare(similarity, n_clusters, constraints)
    return problem.unflatten(backend_of(problem.given).adjacency(problem, draws, must_link_first=must_link_first))


def perturbed_connectivity(
    similarity: Any, n_clusters: Any, *, constraints: Constraints | None = None, epsilon: float = 0.1,
    n_draws: int = 100, noise: str = "normal", seed: Any = None, must_link_first: bool = True,
    antithetic: bool = False, first_draw: Any = 0,
) -> Any:  # fmt: skip
    """M_{k,ε}: for each pair the share of draws in which it is in one cluster, (..., n, n), unit diagonal.

    Differentiable by the score of the noise, so that any loss on it can be trained. Arguments as for
    :func:`perturbed_value`.

    >>> s = np.array([[0.0, 1.0, -9.0], [1.0, 0.0, -9.0], [-9.0, -9.0, 0.0]])
    >>> perturbed_connectivity(s, 2, seed=0)[0].tolist()
    [1.0, 1.0, 0.0]
    """
    check_flag("must_link_first", must_link_first)
    draws = check_draws(similarity, epsilon, n_draws, noise, seed, first_draw, antithetic)
    problem = prepare(similarity, n_clusters, constraints)
    return problem.unflatten(backend_of(problem.given).connectivity(problem, draws, must_link_first=must_link_first))
