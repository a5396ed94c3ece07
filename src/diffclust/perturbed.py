r"""Expectations over random perturbations.

A forest jumps when the similarity Σ moves; its expectation over noise Z does not. With ``B`` draws,

.. math::
    F_{k,ε}(Σ) = E[\max ⟨A, Σ + εZ⟩],  A_{k,ε}(Σ) = E[\arg\max ⟨A, Σ + εZ⟩],  M_{k,ε}(Σ) = E[M^*_k(Σ + εZ)]

over forests A with k trees, with or without constraints, are :func:`perturbed_value`, :func:`perturbed_adjacency` and
:func:`perturbed_connectivity`. Two formulas give all gradients:

* **envelope** (``gradients.value_gradient``): ∇F_{k,ε} = A_{k,ε}. The forests of the forward pass are the gradient.
* **score** (``gradients.score_weights``): a forest has no gradient, but the density of the noise has one. For a
  cotangent G, (1/2ε) E[⟨G, A(Σ + εZ)⟩ s(Z)] with the score s = -∇ log density (s(Z) = Z for normal noise), and the same
  with M. The ½ is there because one variable stands at (i, j) and at (j, i).

A draw is n - 1 edges and n labels; nothing of size ``n_draws * n * n`` is ever held, because the noise is a pure
function of (seed, draw, i, j) and is made again where it is needed. See ``docs/notation.md`` for the symbols.
"""

from __future__ import annotations

from diffclust._typing import Array, Integers, Seed
from diffclust.bindings import backend_of
from diffclust.constraints import Constraints
from diffclust.noise import Draws, Noise
from diffclust.solvers import Request
from diffclust.validation import Problem, check_draws, check_flag, prepare


def request_of(problem: Problem, draws: Draws, must_link_first: bool) -> Request:
    """Forests that agree with the constraints only; a k that cannot be is an error."""
    check_flag("must_link_first", must_link_first)
    return problem.request(draws, must_link_first=must_link_first, free=False, if_infeasible="raise")


def perturbed_value(
    similarity: Array,
    n_clusters: Integers,
    *,
    constraints: Constraints | None = None,
    epsilon: float = 0.1,
    n_draws: int = 100,
    noise: str | Noise = "normal",
    seed: Seed = None,
    must_link_first: bool = True,
    antithetic: bool = False,
    first_draw: Integers = 0,
) -> Array:
    r"""F_{k,ε} = E[max ⟨A, Σ + εZ⟩]: the expected value of the best k-forest, shape (...) for similarity (..., n, n).

    Its gradient is :func:`perturbed_adjacency` with the same seed.

    Args:
        similarity: (n, n) or (..., n, n), symmetric; the mean of entries (i, j) and (j, i) counts.
        n_clusters: k, an integer, or one per problem.
        constraints: what is known, see :class:`diffclust.Constraints`.
        epsilon: scale of the noise.
        n_draws: number of Monte-Carlo draws. All problems of a batch see the same noise.
        noise: "normal", "gumbel" or a :class:`diffclust.noise.Noise`.
        seed: an integer (of the framework, too) or a JAX key; None draws one from the framework's global generator
            (for JAX, which has none, from NumPy's, outside of jit).
        must_link_first: see :func:`diffclust.spanning_forest`.
        antithetic: draws come in pairs Z, -Z.
        first_draw: number of the first draw of the seed's stream.

    Returns:
        The expected values, shape (...).

    Raises:
        ValueError: k cannot be: the constraints forbid it, or missing (-inf) edges or cannot-links stop the greedy. On
            tensors of a GPU, and where JAX traces, the second is not noticed.

    Example:
        >>> import numpy as np
        >>> s = np.array([[0.0, 1.0], [1.0, 0.0]])
        >>> round(float(perturbed_value(s, 1, epsilon=1e-3, seed=0)), 2)
        2.0
    """
    draws = check_draws(similarity, epsilon, n_draws, noise, seed, first_draw, antithetic)
    problem = prepare(similarity, n_clusters, constraints)
    return backend_of(problem.given).value(problem.given, request_of(problem, draws, must_link_first))[0]


def perturbed_adjacency(
    similarity: Array,
    n_clusters: Integers,
    *,
    constraints: Constraints | None = None,
    epsilon: float = 0.1,
    n_draws: int = 100,
    noise: str | Noise = "normal",
    seed: Seed = None,
    must_link_first: bool = True,
    antithetic: bool = False,
    first_draw: Integers = 0,
) -> Array:
    """A_{k,ε}: for each pair the share of draws whose forest has that edge, (..., n, n), zero diagonal.

    Differentiable by the score of the noise.

    Args:
        similarity: (n, n) or (..., n, n), symmetric; the mean of entries (i, j) and (j, i) counts.
        n_clusters: k, an integer, or one per problem.
        constraints: what is known, see :class:`diffclust.Constraints`.
        epsilon: scale of the noise.
        n_draws: number of Monte-Carlo draws. All problems of a batch see the same noise.
        noise: "normal", "gumbel" or a :class:`diffclust.noise.Noise`.
        seed: an integer (of the framework, too) or a JAX key; None draws one from the framework's global generator
            (for JAX, which has none, from NumPy's, outside of jit).
        must_link_first: see :func:`diffclust.spanning_forest`.
        antithetic: draws come in pairs Z, -Z.
        first_draw: number of the first draw of the seed's stream.

    Returns:
        The shares, shape (..., n, n).

    Raises:
        ValueError: k cannot be: the constraints forbid it, or missing (-inf) edges or cannot-links stop the greedy. On
            tensors of a GPU, and where JAX traces, the second is not noticed.

    Example:
        >>> import numpy as np
        >>> s = np.array([[0.0, 1.0, -9.0], [1.0, 0.0, -9.0], [-9.0, -9.0, 0.0]])
        >>> perturbed_adjacency(s, 2, seed=0)[0].tolist()
        [0.0, 1.0, 0.0]
    """
    draws = check_draws(similarity, epsilon, n_draws, noise, seed, first_draw, antithetic)
    problem = prepare(similarity, n_clusters, constraints)
    return backend_of(problem.given).adjacency(problem.given, request_of(problem, draws, must_link_first))


def perturbed_connectivity(
    similarity: Array,
    n_clusters: Integers,
    *,
    constraints: Constraints | None = None,
    epsilon: float = 0.1,
    n_draws: int = 100,
    noise: str | Noise = "normal",
    seed: Seed = None,
    must_link_first: bool = True,
    antithetic: bool = False,
    first_draw: Integers = 0,
) -> Array:
    """M_{k,ε}: for each pair the share of draws in which it is in one cluster, (..., n, n), unit diagonal.

    Differentiable by the score of the noise, so that any loss on it can be trained.

    Args:
        similarity: (n, n) or (..., n, n), symmetric; the mean of entries (i, j) and (j, i) counts.
        n_clusters: k, an integer, or one per problem.
        constraints: what is known, see :class:`diffclust.Constraints`.
        epsilon: scale of the noise.
        n_draws: number of Monte-Carlo draws. All problems of a batch see the same noise.
        noise: "normal", "gumbel" or a :class:`diffclust.noise.Noise`.
        seed: an integer (of the framework, too) or a JAX key; None draws one from the framework's global generator
            (for JAX, which has none, from NumPy's, outside of jit).
        must_link_first: see :func:`diffclust.spanning_forest`.
        antithetic: draws come in pairs Z, -Z.
        first_draw: number of the first draw of the seed's stream.

    Returns:
        The shares, shape (..., n, n).

    Raises:
        ValueError: k cannot be: the constraints forbid it, or missing (-inf) edges or cannot-links stop the greedy. On
            tensors of a GPU, and where JAX traces, the second is not noticed.

    Example:
        >>> import numpy as np
        >>> s = np.array([[0.0, 1.0, -9.0], [1.0, 0.0, -9.0], [-9.0, -9.0, 0.0]])
        >>> perturbed_connectivity(s, 2, seed=0)[0].tolist()
        [1.0, 1.0, 0.0]
    """
    draws = check_draws(similarity, epsilon, n_draws, noise, seed, first_draw, antithetic)
    problem = prepare(similarity, n_clusters, constraints)
    return backend_of(problem.given).connectivity(problem.given, request_of(problem, draws, must_link_first))
