"""The speed of the solver on this machine, beside plain Kruskal on the same draws. Answers are compared first."""

from __future__ import annotations

import importlib.util
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust import noise
from diffclust.constraints import Constraints
from diffclust.similarity import negative_squared_distances, standardize
from diffclust.solvers import Request, cpu, reference

EPSILON, SEED = 0.1, 0


class Timing(NamedTuple):
    """Milliseconds for all draws, noise included.

    Attributes:
        n_points: how many points.
        solve: "free", half of the points labelled with "must-links first" or "one pass", or "together": the free forest
            and that of one pass, as a loss asks for them.
        plain, ours: of plain Kruskal, and of the solver.
        gpu: of the solver on a GPU, called from Python; None without one.
    """

    n_points: int
    solve: str
    plain: float
    ours: float
    gpu: float | None = None


def timings(n_points: int, n_draws: int = 100, n_clusters: int = 10, *, device: str | None = None) -> Iterator[Timing]:
    """Times the solves of a loss on points in overlapping classes.

    ``device`` is one of torch on which the solver for CUDA is timed, too; None takes the GPU, if there is one. Where
    the answers of two solvers differ, nothing is timed, and an AssertionError says so.

    >>> [timing.solve for timing in timings(12, n_draws=2, n_clusters=3)]
    ['free', 'must-links first', 'one pass', 'together']
    """
    device = find_gpu() if device is None else device
    similarity, labels = _problem(n_points, n_clusters)
    relation = np.nan_to_num(Constraints.from_labels(labels).matrix(), nan=-1).astype(int).tolist()
    free: dict[str, Any] = {}
    first = {"labels": labels[None], "free": False}
    one_pass = {**first, "must_link_first": False}
    both = {"labels": labels[None], "must_link_first": False}
    known: dict[str, list[tuple[Any, ...]]]
    known = {"free": [(None,)], "must-links first": [(relation,)], "one pass": [(relation, False)]}
    known["together"] = known["free"] + known["one pass"]
    for name, given in {"free": free, "must-links first": first, "one pass": one_pass, "together": both}.items():
        request = Request(
            similarity[None], n_clusters, draws=noise.Draws(SEED, 0, n_draws, EPSILON), detail="forests", **given
        )
        ours, plain = partial(cpu.solve, request), partial(_plain, similarity, n_clusters, n_draws, known[name])
        for found, expected in zip(ours().edges[0], plain(), strict=True):
            if found[:, : n_points - n_clusters].tolist() != expected:
                raise AssertionError(f"The solver and plain Kruskal differ on {n_points} points: nothing is timed.")
        gpu_ms = None if device is None else _gpu_ms(request, device)
        yield Timing(n_points, name, _median_ms(plain, 3), _median_ms(ours, 50), gpu_ms)


def find_gpu() -> str | None:
    """The device of torch that is a GPU, or None."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return "cuda" if torch.cuda.is_available() else None


def _gpu_ms(request: Request, device: str) -> float:
    """Milliseconds of the solver for CUDA, after its edges are compared with those of the solver for CPUs."""
    import torch

    from diffclust.solvers import cuda

    labels = None if request.labels is None else torch.as_tensor(request.labels, device=device)
    moved = request._replace(similarity=torch.as_tensor(request.similarity, device=device), labels=labels)
    if not np.array_equal(cuda.solve(moved).edges.cpu(), cpu.solve(request).edges):
        raise AssertionError(f"The solvers for CPU and CUDA differ on {request.similarity.shape[-1]} points.")

    def run() -> None:
        cuda.solve(moved)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return _median_ms(run, 50 if device == "cuda" else 1)


def _plain(similarity: NDArray[Any], n_clusters: int, n_draws: int, known: list[tuple[Any, ...]]) -> list[list[Any]]:
    """The edges of every solve and draw, by plain Kruskal."""
    perturbed = similarity + np.float32(EPSILON) * noise.sample(SEED, n_draws, len(similarity))
    draws = [draw.tolist() for draw in perturbed]
    return [[[list(edge) for edge in reference.kruskal(draw, n_clusters, *each)] for draw in draws] for each in known]


def _problem(n_points: int, n_classes: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Standardised similarities, and labels of about half of the points."""
    rng = np.random.default_rng(n_points)
    truth = rng.integers(0, n_classes, n_points)
    points = rng.normal(size=(n_classes, 8))[truth] * 2 + rng.normal(size=(n_points, 8))
    labels = np.where(rng.random(n_points) < 0.5, truth, -1)
    return standardize(negative_squared_distances(points)).astype(np.float32), labels


def _median_ms(run: Callable[[], object], repeats: int) -> float:
    return float(np.median(timeit.repeat(run, number=1, repeat=repeats))) * 1e3
