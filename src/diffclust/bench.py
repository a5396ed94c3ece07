"""The speed of the solver on this machine, beside plain Kruskal on the same draws. Answers are compared first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust import noise
from diffclust.constraints import Constraints
from diffclust.similarity import negative_squared_distances, standardize
from diffclust.solvers import Request, cpu, reference

EPSILON, SEED = 0.1, 0


class Timing(NamedTuple):
    """Milliseconds for all draws, noise included."""

    n_points: int
    solve: str  # "free", "labels" (half of the points labelled), or "together"
    plain: float
    ours: float


def timings(n_points: int, n_draws: int = 100, n_clusters: int = 10) -> Iterator[Timing]:
    """Times both solves of a loss on points in overlapping classes. Nothing is timed if the answers differ.

    >>> [timing.solve for timing in timings(12, n_draws=2, n_clusters=3)]
    ['free', 'labels', 'together']
    """
    similarity, labels = _problem(n_points, n_clusters)
    relation = np.nan_to_num(Constraints.from_labels(labels).matrix(), nan=-1).astype(int).tolist()
    draws = noise.Draws(SEED, 0, n_draws, EPSILON)
    total = np.zeros(2)
    for name, known, given in (("free", None, {}), ("labels", relation, {"labels": labels[None], "free": False})):

        def ours(given: dict[str, Any] = given) -> NDArray[Any]:
            return cpu.solve(Request(similarity[None], n_clusters, draws=draws, detail="forests", **given)).edges[0, 0]

        def plain(known: Any = known) -> list[Any]:
            perturbed = similarity + np.float32(EPSILON) * noise.sample(SEED, n_draws, n_points)
            return [reference.kruskal(draw.tolist(), n_clusters, known) for draw in perturbed]

        for found, expected in zip(ours(), plain(), strict=True):
            if found[: n_points - n_clusters].tolist() != [list(edge) for edge in expected]:
                raise AssertionError(f"The solver and plain Kruskal differ on {n_points} points: nothing is timed.")
        times = np.array([_median_ms(plain, 3), _median_ms(ours, 50)])
        total += times
        yield Timing(n_points, name, *times.tolist())
    yield Timing(n_points, "together", *total.tolist())


def _problem(n_points: int, n_classes: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Standardised similarities, and labels of about half of the points."""
    rng = np.random.default_rng(n_points)
    truth = rng.integers(0, n_classes, n_points)
    points = rng.normal(size=(n_classes, 8))[truth] * 2 + rng.normal(size=(n_points, 8))
    labels = np.where(rng.random(n_points) < 0.5, truth, -1)
    return standardize(negative_squared_distances(points)).astype(np.float32), labels


def _median_ms(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3
