"""Maps: two coordinates for each row, the same on every call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.frameworks import plain

FEW_POINTS = 30  # with fewer points neighbourhoods are too small for t-SNE
WIDE = 50  # with more dimensions t-SNE starts from principal components
ITERATIONS = 500


def positions(points: NDArray[Any], *, standardise: bool = False) -> tuple[NDArray[np.float32], str]:
    """Coordinates of rows (n, ...) on a map, (n, 2) from -1 to 1, and how they were found.

    ``standardise`` scales each column. Columns of a table have different units; pixels of an image do not.
    """
    flat = np.nan_to_num(np.asarray(points, np.float64).reshape(len(points), -1))
    if standardise:
        deviation = flat.std(0)
        flat = (flat - flat.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    if flat.shape[1] <= 2:
        found, how = flat, "the coordinates themselves"
    elif np.ptp(flat, axis=0).max() == 0:
        found, how = flat[:, :2] * 0, "nothing: all rows are equal"
    elif len(flat) < FEW_POINTS:
        found, how = _principal(flat, 2), "two principal components"
    else:
        found, how = _tsne(flat), "t-SNE: neighbours stay neighbours, distances between groups mean little"
    found = np.pad(found, ((0, 0), (0, 2 - found.shape[1])))
    found = found - (found.max(0) + found.min(0)) / 2
    return (found / max(np.abs(found).max(), 1e-300)).astype(np.float32), how


def _principal(points: NDArray[np.float64], n_components: int) -> NDArray[np.float64]:
    from sklearn.decomposition import PCA

    n_components = min(n_components, *points.shape)
    return plain(PCA(n_components, svd_solver="randomized", random_state=0)).fit_transform(points)


def _tsne(points: NDArray[np.float64]) -> NDArray[np.float64]:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if points.shape[1] > WIDE:
        points = _principal(points, WIDE)
    # One thread adds in a fixed order, so the map of a run is the same every time.
    with threadpool_limits(1):
        tsne = TSNE(2, init="pca", perplexity=min(30.0, (len(points) - 1) / 3), max_iter=ITERATIONS, random_state=0)
        return plain(tsne).fit_transform(points)
