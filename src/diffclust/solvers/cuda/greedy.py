"""General constraints: the launch of the greedy, and its memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton

from diffclust.solvers.base import Request
from diffclust.solvers.cuda.ready import Ready
from diffclust.solvers.kernels.greedy import agglomerate
from diffclust.solvers.kernels.launches import launch, warps_for
from diffclust.solvers.kernels.weights import TILE, pitch_of

SCRATCH_BYTES = 1 << 30  # each draw in flight needs n x n


def solve_greedily(
    ready: Ready,
    n_clusters: torch.Tensor | int,
    request: Request,
    counts: torch.Tensor | None,
    forests: Sequence[torch.Tensor | None],
) -> None:
    """The constrained forests of problems that closures do not describe; only kernels know which these are.

    Args:
        ready: what was made of the request's relation.
        counts: to which the edges are added, if they are wanted.
        forests: edges, labels, values, as in ``find_forests``; None where they are not asked for.
    """
    similarity, draws, relation = ready.similarity, request.draws, request.relation.contiguous()
    n_problems, n, _ = similarity.shape
    pitch, warps = pitch_of(n), warps_for(n)
    # 13 bytes a pair: a word, an int64 key and an int8 flag.
    programs = max(1, min(n_problems * draws.n_draws, SCRATCH_BYTES // (13 * n * n)))
    integers = {"dtype": torch.int32, "device": similarity.device}
    edges, labels, values = (similarity if each is None else each for each in forests)
    agglomerate[(programs,)](
        similarity, n_clusters, relation, ready.closures, ready.n_related, draws.seed, draws.first,
        float(draws.epsilon), similarity if counts is None else counts, edges, labels, values,
        torch.empty((programs, n, pitch), **integers), similarity.new_empty((programs, n), dtype=torch.int64),
        torch.empty((programs, 2, n), **integers), similarity.new_empty((programs, n, n), dtype=torch.int64),
        similarity.new_empty((programs, n, n), dtype=torch.int8), n_problems, n, pitch, draws.n_draws,
        request.n_solves, BLOCK=triton.next_power_of_2(n), NOISY=draws.epsilon != 0, GUMBEL=draws.noise == "gumbel",
        ANTITHETIC=draws.antithetic, SIZE=TILE, COUNTS=counts is not None, EDGES=request.detail != "mean",
        WITH_LABELS=request.detail == "forests", MUST_LINK_FIRST=request.must_link_first, **launch(warps),
    )  # fmt: skip
