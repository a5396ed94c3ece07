"""A finished run, read back from its folder."""

from __future__ import annotations

import csv
import dataclasses
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from diffclust import training
from diffclust.forest import Hierarchy
from diffclust.runs.folder import SETTINGS, check_files, damaged, read_json
from diffclust.solvers.points import nearest_points

MEASURED_ROWS = 5000  # whose distances say what is usual


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A finished run, see :func:`load_run`.

    Attributes:
        clusters: (n,) cluster of each row; ``names`` are the clusters' names, ``confidence`` the probability that each
            row's is right, ``novelty`` the probability that a row is of none of the labelled classes.
        hierarchy: of the embeddings, under what was known: ``hierarchy.labels(k, min_cluster_size)`` for other k.
    """

    folder: Path
    module: training.ForestModule
    embeddings: NDArray[np.float32]
    clusters: NDArray[np.int64]
    names: list[str]
    confidence: NDArray[np.float64]
    novelty: NDArray[np.float64]
    hierarchy: Hierarchy
    metrics: dict[str, Any]
    settings: dict[str, Any]

    def cluster(self, x: Any) -> NDArray[np.int64]:
        """The clusters of new rows: each joins the row whose embedding is nearest."""
        return self.clusters[self._nearest(x)]

    def _nearest(self, x: Any) -> NDArray[np.intp]:
        return nearest_points(self.embeddings, training.embed(self.module, x), "euclidean")

    def place(self, x: Any) -> Placed:
        """The clusters of new rows, and what is known of the row that each joins."""
        embedded = training.embed(self.module, x)
        nearest = nearest_points(self.embeddings, embedded, "euclidean")
        distance = np.linalg.norm(embedded.astype(np.float64) - self.embeddings[nearest], axis=1)
        return Placed(
            self.clusters[nearest], self.confidence[nearest], self.novelty[nearest], distance > self._usual_distance()
        )

    def _usual_distance(self) -> float:
        """The distance that hardly any row of the run has from the row nearest to it."""
        from sklearn.neighbors import NearestNeighbors

        rows = self.embeddings.astype(np.float64)
        some = rows[:: -(-len(rows) // MEASURED_ROWS)]
        if len(rows) < 2:
            return np.inf
        return 2 * float(np.quantile(NearestNeighbors(n_neighbors=2).fit(rows).kneighbors(some)[0][:, 1], 0.99))


class Placed(NamedTuple):
    """Where :meth:`Run.place` puts new rows."""

    clusters: NDArray[np.int64]
    confidence: NDArray[np.float64]  # of the row of the run that is nearest
    novelty: NDArray[np.float64]  # likewise
    unlike: NDArray[np.bool_]  # whether a new row is much farther from its nearest row than rows of the run are


def load_run(folder: str | Path, backbone: Any = None) -> Run:
    """All of a run's folder; ``folder`` may also be the checkpoint in it.

    Nothing in the folder is executed: arrays and checkpoint are read without unpickling objects, and of backbones only
    those of this library are made by the name that is recorded there.

    Args:
        backbone: needed again where the run was given a backbone of its own: the same "package.module:attribute", a
            module or a function. See :func:`diffclust.training.load`.

    Raises:
        ValueError: a file is missing, damaged or of another run, or the backbone has to be given. The message names the
            file and what to do.
    """
    given = Path(folder)
    folder = given.parent if given.is_file() else given
    check_files(folder)
    if given.is_file() and given.name != training.LAST:
        raise ValueError(f"{given} is not the checkpoint of the run: that is {folder / training.LAST}.")
    metrics, settings = read_json(folder / "metrics.json"), read_json(folder / SETTINGS)
    n_rows, names = metrics.get("n_rows"), metrics.get("cluster_names")
    if not isinstance(n_rows, int) or not isinstance(names, list) or len(names) != metrics.get("n_clusters"):
        raise damaged(folder / "metrics.json", "it lacks the number of rows or the names of the clusters")
    module = training.load(folder / training.LAST, backbone)
    clusters, confidence, novelty = _read_clusters(folder / "clusters.csv", n_rows, len(names))
    embeddings = _read_embeddings(folder / "embeddings.npy", n_rows, module)
    hierarchy = _read_hierarchy(folder / "hierarchy.npz", n_rows)
    return Run(folder, module, embeddings, clusters, names, confidence, novelty, hierarchy, metrics, settings)


# What goes wrong in NumPy and csv with a file that is not what it should be.
UNREADABLE = (ValueError, KeyError, TypeError, EOFError, csv.Error, zipfile.BadZipFile, zlib.error)


def _read_clusters(path: Path, n_rows: int, n_clusters: int) -> tuple[NDArray[Any], ...]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        numbers, clusters = (np.array([int(row[name]) for row in rows], np.int64) for name in ("row", "cluster"))
        confidence, novelty = (np.array([float(row[name]) for row in rows]) for name in ("confidence", "novelty"))
    except (*UNREADABLE, OverflowError) as error:
        raise damaged(path, "it is not the table that was written") from error
    _check_rows(path, len(rows), n_rows)
    if not np.array_equal(numbers, np.arange(n_rows)) or not ((clusters >= 0) & (clusters < n_clusters)).all():
        raise damaged(path, f"it must have rows 0 to {n_rows - 1} and clusters 0 to {n_clusters - 1}")
    return clusters, confidence, novelty


def _read_embeddings(path: Path, n_rows: int, module: training.ForestModule) -> NDArray[np.float32]:
    try:
        embeddings = np.load(path, allow_pickle=False)
        n_read, width = embeddings.shape
    except (*UNREADABLE, AttributeError) as error:
        raise damaged(path, "it is not the array that was written") from error
    _check_rows(path, n_read, n_rows)
    with torch.no_grad():
        expected = module(torch.zeros(1, *module.input_shape)).shape[1]
    if width != expected:
        raise damaged(path, f"it has {width} columns, the network of {training.LAST} gives {expected}")
    return embeddings


def _read_hierarchy(path: Path, n_rows: int) -> Hierarchy:
    try:
        with np.load(path, allow_pickle=False) as saved:
            tree = Hierarchy(int(saved["n_points"]), saved["edges"], saved["weights"], int(saved["n_fixed"]))
    except (*UNREADABLE, AttributeError) as error:
        raise damaged(path, "it is not the tree that was written") from error
    _check_rows(path, tree.n_points, n_rows)
    edges = tree.edges
    if not (
        edges.ndim == 2
        and edges.shape[1] == 2
        and edges.dtype.kind == "i"
        and len(edges) < n_rows
        and ((edges >= 0) & (edges < n_rows)).all()
        and tree.weights.shape == (len(edges),)
        and 0 <= tree.n_fixed <= len(edges)
    ):
        raise damaged(path, f"its edges are not those of a tree of {n_rows} rows")
    return tree


def _check_rows(path: Path, n_rows: int, expected: int) -> None:
    if n_rows != expected:
        raise damaged(path, f"it has {n_rows} rows, the run has {expected}")
