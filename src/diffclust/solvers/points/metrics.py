"""Metric → a geometry that the kernels know, and its lengths → similarities; larger means closer.

==============  ==========================  =========================================================
metric          similarity                  computed as
==============  ==========================  =========================================================
sqeuclidean     -|x_i - x_j|^2              float64 differences
euclidean       -|x_i - x_j|                the root of that; the tree is that of sqeuclidean
cosine          <x_i, x_j> / |x_i| |x_j|    1 - |u_i - u_j|^2 / 2 with unit vectors u: accurate near 1, where
                                            a product of vectors is not
manhattan       -sum of |x_ik - x_jk|       float64 differences
chebyshev       -max of |x_ik - x_jk|       float64 differences
==============  ==========================  =========================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust.solvers.points.tiles import CHEBYSHEV, MANHATTAN, SQUARED_EUCLIDEAN

Lengths = NDArray[np.float64]


class Metric(NamedTuple):
    """How points are placed and compared."""

    kind: int  # of length that the kernels compute
    similarity: Callable[[Lengths], Lengths]  # decreasing
    on_sphere: bool = False


METRICS = {
    "sqeuclidean": Metric(SQUARED_EUCLIDEAN, lambda lengths: 0.0 - lengths),
    "euclidean": Metric(SQUARED_EUCLIDEAN, lambda lengths: 0.0 - np.sqrt(lengths)),
    "cosine": Metric(SQUARED_EUCLIDEAN, lambda lengths: 1.0 - 0.5 * lengths, on_sphere=True),
    "manhattan": Metric(MANHATTAN, lambda lengths: 0.0 - lengths),
    "chebyshev": Metric(CHEBYSHEV, lambda lengths: 0.0 - lengths),
}


def place(points: NDArray[Any], metric: Metric) -> NDArray[np.float64]:
    """The points (n, d) as float64, on the unit sphere for cosine; what float64 cannot measure is a ValueError."""
    placed = np.array(points, np.float64, order="C")
    placed += 0.0  # -0.0 is 0.0
    if metric.on_sphere:
        largest = np.abs(placed).max(1, initial=0.0)
        if not largest.all():
            row = int(np.flatnonzero(largest == 0)[0])
            raise ValueError(f"point {row} is a zero vector, which has no direction: metric='cosine' cannot place it.")
        placed /= largest[:, None]
        placed /= np.sqrt((placed * placed).sum(1))[:, None]
        return placed
    _check_spread(metric, placed)
    return placed


def place_both(
    points: NDArray[Any], others: NDArray[Any], metric: Metric
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two sets of points that are to be compared with each other, each as ``place`` returns it."""
    if points.shape[1:] != others.shape[1:]:  # compiled code would read outside of the array
        raise ValueError(f"points have shapes {points.shape} and {others.shape}: they must have as many columns.")
    placed, others_placed = place(points, metric), place(others, metric)
    _check_spread(metric, placed, others_placed)
    return placed, others_placed


def _check_spread(metric: Metric, *sets: NDArray[np.float64]) -> None:
    with np.errstate(over="ignore"):
        spread = max(points.max() for points in sets) - min(points.min() for points in sets)
        if _is_measurable(np.full(sets[0].shape[1], spread), metric):  # the common case: columns take NumPy longer
            return
        spread = np.max([points.max(0) for points in sets], 0) - np.min([points.min(0) for points in sets], 0)
        if not _is_measurable(spread, metric):
            raise ValueError("points are too far apart: their distances overflow float64. Rescale them.")


def _is_measurable(spread: NDArray[np.float64], metric: Metric) -> bool:
    widest = (spread * spread).sum() if metric.kind == SQUARED_EUCLIDEAN else spread.sum()
    return bool(widest < np.finfo(np.float64).max / 2)
