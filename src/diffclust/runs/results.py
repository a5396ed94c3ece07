"""The results of a run: :class:`Run`, and the files that :func:`save_run` writes and :func:`load_run` reads."""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust import training
from diffclust.answers import questions_csv
from diffclust.continuation import match_rows
from diffclust.files import csv_text, write_atomically
from diffclust.forest import Hierarchy
from diffclust.knowledge import Knowledge
from diffclust.mistakes import FILES, Suspects
from diffclust.placing import joined_rows
from diffclust.runs.folder import KNOWN, SETTINGS, check_files, damaged, read_json
from diffclust.tables import read_table
from diffclust.tables.arrays import load_array, load_arrays, member
from diffclust.tables.cells import is_anndata
from diffclust.tables.frames import as_frame, is_frame

MEASURED_ROWS = 5000  # the usual distance between neighbours is measured on at most this many rows


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A finished run. :func:`fit_run` and :func:`load_run` return it.

    Attributes:
        folder: where its files are.
        module: the trained network.
        embeddings: (n, embedding_dim) what the network makes of each row.
        clusters: (n,) the cluster of each row, numbered from 0.
        names: the name of each cluster.
        confidence: (n,) the probability that a row is in the right cluster. Files have four decimals of it.
        novelty: (n,) the probability that a row is of none of the labelled classes. Files have four decimals of it.
        hierarchy: the tree of the embeddings, under what was known: ``hierarchy.labels(k, min_cluster_size)`` gives
            another number of clusters.
        metrics: the content of ``metrics.json``.
        settings: the content of ``settings.json``.
        known: what the run was told.
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
    known: Known

    def knowledge(self) -> Knowledge:
        """What the run was trained on: labels, as positions in ``settings["class_names"]``, and pairs."""
        return Knowledge.join(self.known.labels, self.known.must_link, self.known.cannot_link)

    @property
    def row_names(self) -> list[str] | None:
        """The id of each row, where there are ids."""
        return self.known.ids.tolist() if len(self.known.ids) else None

    @property
    def encoding(self) -> dict[str, Any]:
        """How new rows become features, for :func:`diffclust.tables.read_table`."""
        return self.settings["encoding"] or {"kind": "array"}

    def cluster(self, x: Any) -> NDArray[np.int64]:
        """The clusters of new rows: each joins the row whose embedding is nearest (:mod:`diffclust.placing`).

        Args:
            x: an array of features, a data frame with the columns of the run's table, or an AnnData object.

        Returns:
            (n,) clusters.
        """
        return self.clusters[self._joined(self._embed(x))]

    def place(self, x: Any) -> Placed:
        """The clusters of new rows, and what is known of the row that each joins. Rows are as in :meth:`cluster`."""
        embedded = self._embed(x)
        joined = self._joined(embedded)
        distance = np.linalg.norm(embedded.astype(np.float64) - self.embeddings[joined], axis=1)
        return Placed(
            self.clusters[joined], self.confidence[joined], self.novelty[joined], distance > self._usual_distance
        )

    def place_frame(self, frame: Any) -> Any:
        """A data frame of new rows → a data frame of their clusters; rows as in :meth:`cluster`, possibly none.

        It is what a map over the partitions of Dask, Ray Data or Spark calls.

        Returns:
            A pandas DataFrame with the index of ``frame``, and columns cluster, name, confidence, novelty, id (where
            the run has ids) and unlike.
        """
        import pandas as pd

        if len(frame) == 0:
            none = Placed(np.empty(0, np.int64), np.empty(0), np.empty(0), np.empty(0, bool))
            return pd.DataFrame(self.placed_columns(none, [] if self.encoding.get("id") else None))
        table = read_table(frame, at_least=1, encoding=self.encoding)
        index = as_frame(frame).index
        return pd.DataFrame(self.placed_columns(self.place(table.features), table.row_names), index=index)

    def placed_columns(self, placed: Placed, row_names: Sequence[str] | None = None) -> dict[str, Any]:
        """The columns of the table that :meth:`place_frame` and ``diffclust cluster`` make."""
        return {
            "cluster": placed.clusters,
            "name": np.array(self.names, str)[placed.clusters],
            "confidence": placed.confidence,
            "novelty": placed.novelty,
            **({} if row_names is None else {"id": np.array(row_names, str)}),
            "unlike": placed.unlike,
        }

    def _embed(self, x: Any) -> NDArray[np.float32]:
        if is_frame(x) or is_anndata(x):
            x = read_table(x, at_least=1, encoding=self.encoding).features
        return training.embed(self.module, x)

    def _joined(self, embedded: NDArray[np.float32]) -> NDArray[np.intp]:
        return joined_rows(self.embeddings, self.clusters, embedded)

    @functools.cached_property
    def _usual_distance(self) -> float:
        """Twice the distance from its nearest other row that 99 % of the rows stay below."""
        from sklearn.neighbors import NearestNeighbors

        rows = self.embeddings.astype(np.float64)
        some = rows[:: -(-len(rows) // MEASURED_ROWS)]
        if len(rows) < 2:
            return np.inf
        return 2 * float(np.quantile(NearestNeighbors(n_neighbors=2).fit(rows).kneighbors(some)[0][:, 1], 0.99))


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """What a run was told, in the file ``known.npz``.

    Attributes:
        labels: (n,) class of each row that it was trained on, -1 where unknown.
        held_out: (n,) the same of rows that were kept for scoring.
        must_link, cannot_link: (m, 2) pairs of row numbers; of those that may be wrong, the ones that are believed.
        row_keys: (n,) a hash of the features of each row.
        ids: (n,) texts; (0,) where rows have none.
        soft_must, soft_cannot: (m, 3) all pairs that may be wrong, and their weights as given: nan is estimated.
        soft_labels: (m, 3) rows, classes and weights of all labels that may be wrong.
    """

    labels: NDArray[np.int64]
    held_out: NDArray[np.int64]
    must_link: NDArray[np.int64]
    cannot_link: NDArray[np.int64]
    row_keys: NDArray[np.uint64]
    ids: NDArray[np.str_]
    soft_must: NDArray[np.float64]
    soft_cannot: NDArray[np.float64]
    soft_labels: NDArray[np.float64]

    def matches(self, other: Known) -> NDArray[np.int64]:
        """(n,) the row of another run that each row is, -1 where none: by id where both have ids, else by features."""
        if len(self.ids) and len(other.ids):
            return match_rows(self.ids, other.ids)
        return match_rows(self.row_keys, other.row_keys)


class Placed(NamedTuple):
    """Where :meth:`Run.place` puts new rows."""

    clusters: NDArray[np.int64]
    confidence: NDArray[np.float64]  # that of the row of the run that it joins
    novelty: NDArray[np.float64]  # that of the row of the run that it joins
    unlike: NDArray[np.bool_]  # whether a new row is much farther from that row than rows of the run are


def save_run(
    run: Run,
    labels: Iterable[str],
    row_names: Sequence[str] | None = None,
    described: Iterable[dict[str, Any]] = (),
    suspects: Suspects | None = None,
) -> None:
    """Writes the results into the folder of the run. Its settings and its checkpoint are there already.

    ``labels`` are those that each row was given, "" where none; ``described`` is of
    :func:`diffclust.runs.describe.describe_clusters`.
    """
    tree = {name: getattr(run.hierarchy, name) for name in ("n_points", "edges", "weights", "n_fixed")}
    table = clusters_csv(run.names, run.clusters, run.confidence, run.novelty, row_names=row_names, label=labels)
    write_atomically(run.folder / "embeddings.npy", lambda file: np.save(file, run.embeddings))
    write_atomically(run.folder / "hierarchy.npz", lambda file: np.savez(file, **tree))
    write_atomically(run.folder / "clusters.csv", table)
    write_atomically(run.folder / "clusters.json", json.dumps(list(described), indent=2) + "\n")
    if suspects is not None and suspects.labels:
        write_atomically(run.folder / FILES["label"], questions_csv(suspects.labels, row_names))
    if suspects is not None and suspects.pairs:
        write_atomically(run.folder / FILES["pair"], questions_csv(suspects.pairs, row_names))
    write_atomically(run.folder / KNOWN, lambda file: np.savez(file, **dataclasses.asdict(run.known)))
    write_atomically(run.folder / "metrics.json", json.dumps(run.metrics, indent=2) + "\n")


def clusters_csv(
    names: list[str],
    clusters: NDArray[Any],
    confidence: NDArray[np.float64],
    novelty: NDArray[np.float64],
    row_names: Sequence[str] | None = None,
    first_row: int = 0,
    **more: Iterable[Any],
) -> str:
    """The text of ``clusters.csv`` from row ``first_row`` on; only row 0 comes after a header. ``more`` come last."""
    if row_names is not None:
        more = {"id": row_names, **more}
    columns = zip(clusters, confidence, novelty, *more.values(), strict=True)
    lines = (
        [row, cluster, names[cluster], f"{sure:.4f}", f"{new:.4f}", *others]
        for row, (cluster, sure, new, *others) in enumerate(columns, first_row)
    )
    header = ["row", "cluster", "name", "confidence", "novelty", *more]
    return csv_text(None if first_row else header, lines)


def load_run(folder: str | Path, backbone: Any = None) -> Run:
    """Reads a finished run.

    Nothing in the folder is executed. Arrays and the checkpoint are read without unpickling objects, and only backbones
    of this library are made by the name that the checkpoint records.

    Args:
        folder: the folder of the run, or the checkpoint in it.
        backbone: needed where the run was given a backbone of its own: the same "package.module:attribute", a module or
            a function. See :func:`diffclust.training.load`.

    Returns:
        The run.

    Raises:
        ValueError: a file is missing, damaged or of another run, or the backbone has to be given. The message names the
            file and what to do.
    """  # noqa: DOC501
    given = Path(folder)
    if given.is_file() and given.name != training.LAST:
        raise ValueError(f"{given} is not the folder of a finished run, nor the checkpoint {training.LAST} in it.")
    folder = given.parent if given.is_file() else given
    check_files(folder)
    metrics, settings = read_json(folder / "metrics.json"), read_json(folder / SETTINGS)
    module = training.load(folder / training.LAST, backbone)
    module.scaling.chosen = metrics["scaling"]  # a checkpoint has its numbers only
    with (folder / "clusters.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    confidence, novelty = (np.array([float(row[name]) for row in rows]) for name in ("confidence", "novelty"))
    saved = _read_arrays(folder / "hierarchy.npz")
    tree = Hierarchy(int(saved["n_points"]), saved["edges"], saved["weights"], int(saved["n_fixed"]))
    inside = ((tree.edges >= 0) & (tree.edges < tree.n_points)).all() and 0 <= tree.n_fixed <= len(tree.edges)
    if not inside or tree.edges.shape != (len(tree.weights), 2):  # compiled code reads by them
        raise damaged(folder / "hierarchy.npz", f"its edges are not those of a tree of {tree.n_points} rows")
    return Run(
        folder,
        module,
        load_array(folder / "embeddings.npy"),
        np.array([int(row["cluster"]) for row in rows]),
        metrics["cluster_names"],
        confidence,
        novelty,
        tree,
        metrics,
        settings,
        Known(**_read_arrays(folder / KNOWN)),
    )


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    with load_arrays(path) as arrays:
        return {name: member(arrays, name, path) for name in arrays}
