"""Requests to solvers, written with few words."""

from diffclust.noise import Draws
from diffclust.solvers import Request


def request(similarity, n_clusters, *, seed=0, first_draw=0, n_draws=1, epsilon=0.0, noise="normal", antithetic=False,
            detail="forests", **settings):  # fmt: skip
    """A request for forests, unless something else is asked for."""
    draws = Draws(seed, first_draw, n_draws, epsilon, noise, antithetic)
    return Request(similarity, n_clusters, draws=draws, detail=detail, **settings)


def solve(solver, similarity, n_clusters, **options):
    return solver.solve(request(similarity, n_clusters, **options))
