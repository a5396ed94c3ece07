"""Any noise, on NumPy arrays: NumPy makes it, one draw after the other, and the CPU solver solves without noise.

This solver serves a :class:`diffclust.noise.Noise` that has no kernel. Like the others, it never holds more than one
n x n matrix of noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.noise import Draws, matrices, scores
from diffclust.solvers import cpu
from diffclust.solvers.base import Answer, Request, host_answer
from diffclust.solvers.checks import symmetrise
from diffclust.solvers.cpu.sums import adjacency_counts


def _single(draws: Draws, position: int) -> Draws:
    return draws._replace(first=int(draws.first) + position, n_draws=1)


def solve(request: Request) -> Answer:
    """Solve all problems and draws; see :class:`diffclust.solvers.base.Request`."""
    similarity, draws, n = symmetrise(request.similarity), request.draws, request.similarity.shape[-1]
    detail = "forests" if request.detail == "forests" else "draws"
    answers = []
    for position in range(draws.n_draws):
        # The product is rounded to float32, then added in the similarity's precision.
        scaled = np.float32(draws.epsilon) * matrices(_single(draws, position), n)
        perturbed = similarity + scaled.astype(similarity.dtype)
        answers.append(cpu.solve(request._replace(similarity=perturbed, draws=Draws(), adjacency=False, detail=detail)))
    values, edges = (np.concatenate([getattr(each, name) for each in answers], 2) for name in ("values", "edges"))
    labels = np.concatenate([each.labels for each in answers], 2) if detail == "forests" else None
    return host_answer(request, values, edges, labels, adjacency_counts)


def noise_sum(weights: NDArray[Any], n: int, draws: Draws) -> NDArray[np.float64]:
    """See :meth:`diffclust.solvers.base.Solver.noise_sum`."""
    total = np.zeros((len(weights), n, n))
    for position, of_problems in enumerate(weights.T):
        total += of_problems[:, None, None] * scores(_single(draws, position), n)
    return total
