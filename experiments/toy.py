"""Spanning forests beside k-means, mean shift and Gaussian mixtures on made data in the plane."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.cluster import KMeans, MeanShift
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

from diffclust.cluster import SpanningForestClustering
from diffclust.metrics import clustering_scores
from experiments.figures import clusters_figure
from experiments.recipes import Recipe, over_seeds, recipe, write_csv

# The centres of scikit-learn's comparison of clusterers; a seed draws the points around them.
CENTRES = {
    name: datasets.make_blobs(random_state=state, return_centers=True)[2]
    for name, state in (("blobs", 8), ("anisotropic", 170))
}
SHEAR = np.array([[0.6, -0.6], [-0.4, 0.8]])
DATA = ("circles", "moons", "blobs", "anisotropic")


def make(name: str, n_points: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Points, each coordinate with mean 0 and variance 1, and their classes."""
    if name == "circles":
        x, y = datasets.make_circles(n_points, factor=0.5, noise=0.05, random_state=seed)
    elif name == "moons":
        x, y = datasets.make_moons(n_points, noise=0.05, random_state=seed)
    else:
        x, y = datasets.make_blobs(n_points, centers=CENTRES[name], random_state=seed)
        x = x @ SHEAR if name == "anisotropic" else x
    return StandardScaler().fit_transform(x), y


def clusterings(x: NDArray[np.float64], k: int, seed: int) -> dict[str, NDArray[Any]]:
    """All but mean shift are told the number of clusters."""
    return {
        "forest": SpanningForestClustering(k, min_cluster_size=1).fit_predict(x),
        "guarded forest": SpanningForestClustering(k, min_cluster_size=len(x) // (5 * k)).fit_predict(x),
        "k-means": KMeans(k, n_init=10, random_state=seed).fit_predict(x),
        "mean shift": MeanShift(bin_seeding=True).fit_predict(x),
        "Gaussian mixture": GaussianMixture(k, n_init=3, random_state=seed).fit(x).predict(x),
    }


@recipe("toy")
@dataclasses.dataclass(frozen=True)
class Toy(Recipe):
    """Clusterings of circles, moons, blobs and sheared blobs: forest, k-means, mean shift, Gaussian mixture."""

    n_points: int = 500

    @classmethod
    def tiny(cls) -> Self:
        return cls(seeds=(0, 1), n_points=150)

    def run(self, folder: Path) -> dict[str, Any]:
        rows, points, found, notes = [], [], [], []
        for seed in self.seeds:
            for name in DATA:
                x, y = make(name, self.n_points, seed)
                clusters = clusterings(x, len(np.unique(y)), seed)
                scores = {method: clustering_scores(y, labels) for method, labels in clusters.items()}
                rows += [
                    {"seed": seed, "data": name, "method": method, "nmi": each["nmi"], "ari": each["ari"]}
                    for method, each in scores.items()
                ]
                if seed == self.seeds[0]:
                    points.append(x)
                    found.append(clusters)
                    notes.append({method: f"NMI {each['nmi']:.2f}" for method, each in scores.items()})
        write_csv(folder / "scores.csv", rows)
        clusters_figure(points, found, notes, DATA, folder / "toy.png")
        return {"tables": {score.upper(): _table(rows, score) for score in ("nmi", "ari")}}


def _table(rows: list[dict[str, Any]], score: str) -> list[dict[str, Any]]:
    """A row for each method, a column for each data set."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        found.setdefault(row["method"], {}).setdefault(row["data"], []).append(row[score])
    return [
        {"method": method, **{name: over_seeds(values) for name, values in columns.items()}}
        for method, columns in found.items()
    ]
