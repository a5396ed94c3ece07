"""A run: a table and some knowledge in; a folder with a trained embedding, clusters, scores and a report out.

    run = load_run("folder")
    run.embeddings, run.clusters, run.metrics, run.hierarchy.labels(12)
    run.cluster(new_rows)

The files of the folder: ``settings.json`` (what was asked for), ``last.ckpt`` and ``log/`` (training),
``embeddings.npy``, ``hierarchy.npz``, ``clusters.csv``, ``metrics.json``, ``report.html``. Each is written whole
or not at all, and ``manifest.json``, written last, has the sizes and hashes of those that are read back.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import errno
import functools
import hashlib
import io
import json
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from numpy.typing import NDArray

import diffclust
from diffclust import training
from diffclust.backbones import BACKBONES, is_image
from diffclust.cluster import constrain, lower_guard, nearest_points
from diffclust.constraints import Constraints, all_apart, join_knowledge
from diffclust.files import write_whole
from diffclust.folders import (
    FORMAT,
    MANIFEST,
    SETTINGS,
    check_files,
    claim,
    damaged,
    read_json,
    way_out,
    write_manifest,
)
from diffclust.forest import Hierarchy
from diffclust.metrics import clustering_scores
from diffclust.similarity import negative_squared_distances
from diffclust.stability import DENSE_POINTS, choose_n_clusters, memberships_of_points
from diffclust.tables import Table, spreadsheet_text

OF_RANKS = ("devices", "num_nodes", "strategy", "timeout")  # settings that a resumed run may change
BASELINE_ROWS = 5000  # methods on the raw data see at most so many rows


@dataclasses.dataclass(frozen=True, eq=False)
class Knowledge:
    """What training and clustering are told, and what is kept for scoring.

    Attributes:
        known: (n,) classes that are given, -1 elsewhere.
        group, apart: these and the pairs together, see :func:`diffclust.constraints.join_knowledge`.
        truth: (n,) classes to score by, -1 where there are none: all of them in a demonstration, else those held out.
    """

    known: NDArray[np.int64]
    group: NDArray[np.int64]
    apart: NDArray[np.bool_]
    truth: NDArray[np.int64]

    @classmethod
    def of(
        cls, table: Table, must_link: Iterable[tuple[int, int]], cannot_link: Iterable[tuple[int, int]],
        truth: NDArray[np.int64] | None, holdout: float, seed: int,
    ) -> Knowledge:  # fmt: skip
        must_link, cannot_link = list(must_link), list(cannot_link)
        join_knowledge(table.labels, must_link, cannot_link)  # a contradiction is one whichever labels are held out
        known, held_out = table.labels.copy(), np.full(len(table), -1, np.int64)
        if truth is None and holdout > 0:
            rng = np.random.default_rng(seed)
            for label in np.unique(known[known >= 0]):
                rows = np.flatnonzero(known == label)
                rows = rng.choice(rows, int(holdout * len(rows)), replace=False)
                held_out[rows], known[rows] = label, -1
        group, apart = join_knowledge(known, must_link, cannot_link)
        if (group < 0).all():
            raise ValueError("Nothing is known: give --labels with some labels, or --must-link or --cannot-link pairs.")
        return cls(known, group, apart, held_out if truth is None else np.where(known >= 0, -1, truth))

    @property
    def is_of_labels(self) -> bool:
        return all_apart(self.apart)

    def feasible(self) -> tuple[int, int]:
        """Smallest and largest number of clusters."""
        n_groups = len(self.apart)
        lowest = Constraints.from_groups(np.arange(n_groups), self.apart).min_clusters
        return int(lowest), int((self.group < 0).sum()) + n_groups


def fit_run(
    table: Table, config: training.TrainingConfig, folder: Path, *, n_clusters: int | None,
    must_link: Iterable[tuple[int, int]] = (), cannot_link: Iterable[tuple[int, int]] = (),
    truth: NDArray[np.int64] | None = None, holdout: float = 0.0, min_cluster_size: int | None = None,
    resume: bool = False, progress: bool = True, report: bool = True, title: str = "diffclust",
    say: Callable[[str], None] = print,
) -> Run | None:  # fmt: skip
    """Train on a table, cluster all of its rows, score and report; returns what :func:`load_run` does.

    On several ranks all train, and the first does the rest; the others return None.

    Args:
        n_clusters: None chooses it from the trained embedding; training then has room for the known groups.
        truth: classes of all rows, where they are known for scoring only.
        holdout: share of the labels of each class that is kept for scoring, where there is no ``truth``.
        report: whether to draw it, most of the time of a small run.
        resume: go on where the folder's run was interrupted; its settings must be the same.
    """
    started = time.perf_counter()
    knowledge = Knowledge.of(table, must_link, cannot_link, truth, holdout, config.seed)
    lowest, highest = knowledge.feasible()
    if n_clusters is not None and not lowest <= n_clusters <= highest:
        raise ValueError(
            f"--clusters {n_clusters} is outside what the known labels and pairs allow, {lowest} to {highest}."
        )
    if min_cluster_size is not None and min_cluster_size > len(table):
        raise ValueError(f"--min-cluster-size {min_cluster_size} is more than the {len(table)} rows there are.")
    # One cluster would leave nothing to learn.
    room = min(max(lowest, 2), highest)
    config = dataclasses.replace(config, n_clusters=room if n_clusters is None else n_clusters)
    settings: dict[str, Any] = {
        "format": FORMAT, "diffclust": diffclust.__version__, "config": config.to_dict(), "clusters": n_clusters,
        "holdout": holdout, "min_cluster_size": min_cluster_size, "data": _fingerprint(table, knowledge),
        "source": table.source, "class_names": table.class_names, "columns": table.columns,
    }  # fmt: skip
    if resume and (folder / SETTINGS).exists():
        _check_same(folder, settings, config)  # before the rehearsal, which imports the backbone
    rank = training.rehearse(config, table.features)
    say = say if rank == 0 else lambda text: None
    last = folder / training.LAST
    with _prepared(folder, settings, resume) if rank == 0 else contextlib.nullcontext():
        module = training.fit(
            config, table.features, knowledge.group, apart=None if knowledge.is_of_labels else knowledge.apart,
            folder=folder, resume=last if resume and last.exists() else None, progress=progress,
            callbacks=[_NoteData(settings["data"])],
        )  # fmt: skip
        trained = time.perf_counter()
        baseline = _train_baseline(table, config, knowledge, say)
        if rank > 0:
            return None
        say("Embedding and clustering all rows ...")
        embeddings = training.embed(module, table.features)
        hierarchy, k, guard = _cut(embeddings, n_clusters, min_cluster_size, knowledge)
        if n_clusters not in (None, k):
            say(f"With these pairs there are at least {k} clusters, not {n_clusters}.")
        clusters = hierarchy.labels(k, guard)
        confidence = _confidence(embeddings, clusters, k, guard, knowledge, config.seed)
        names = name_clusters(clusters, knowledge.known, table.class_names)
        say("Scoring other methods on the same rows and labels ...")
        scores = score_methods(table, config, knowledge, k, clusters, baseline)
        metrics = {
            "n_rows": len(table), "n_clusters": k, "cluster_names": names, "min_cluster_size": guard, "scores": scores,
            "scored_rows": int((knowledge.truth >= 0).sum()), "labelled_rows": int((knowledge.known >= 0).sum()),
            "confidence": float(confidence.mean()), "training_seconds": round(trained - started, 2),
        }  # fmt: skip

        write_whole(folder / "embeddings.npy", _saved(np.save, embeddings))
        write_whole(
            folder / "hierarchy.npz",
            _saved(
                np.savez, n_points=hierarchy.n_points, edges=hierarchy.edges, weights=hierarchy.weights,
                n_fixed=hierarchy.n_fixed,
            ),
        )  # fmt: skip
        write_whole(
            folder / "clusters.csv", _clusters_csv(clusters, names, confidence, knowledge.known, table.class_names)
        )
        write_whole(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
        if report:
            say("Drawing the report ...")
            _write_report(
                folder, title, table, module, knowledge, truth, embeddings, hierarchy, k, guard, clusters, confidence,
                scores, time.perf_counter() - started,
            )  # fmt: skip
        write_manifest(folder)
        return load_run(folder, config.backbone)


def _saved(save: Callable[..., None], *arrays: Any, **named: Any) -> bytes:
    """The bytes of a NumPy file; writing straight to a disk, NumPy does not say that it is full."""
    buffer = io.BytesIO()
    save(buffer, *arrays, **named)
    return buffer.getvalue()


def _fingerprint(table: Table, knowledge: Knowledge) -> str:
    """Of the data and all that is known of it: a run goes on with the same only."""
    digest = hashlib.sha256(repr((table.features.shape, str(table.features.dtype))).encode())
    for array in (table.features, knowledge.group, knowledge.apart):
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


class _NoteData(Callback):
    """Notes in each checkpoint which data it was trained on, so that another run's is not taken for it."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["data"] = self.fingerprint


@contextlib.contextmanager
def _prepared(folder: Path, settings: dict[str, Any], resume: bool) -> Iterator[None]:
    """The folder is made and claimed, and what is asked for is written down."""
    _check_folder(folder, resume)  # before it is made
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(claim(folder))
            _check_folder(folder, resume)  # another process may have been faster
            (folder / MANIFEST).unlink(missing_ok=True)  # it would describe other files
            for left in folder.glob(".*.tmp"):  # half files of a killed run
                left.unlink()
            write_whole(folder / SETTINGS, json.dumps(settings, indent=2) + "\n")
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise ValueError(f"--out {folder} cannot be written: {error.strerror}.") from error
        yield


def _check_folder(folder: Path, resume: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file: name a folder.")
    if resume and not (folder / SETTINGS).exists():
        raise ValueError(f"--resume: {folder} has no run to go on with.")
    if not resume and any((folder / name).exists() for name in (SETTINGS, training.LAST)):
        raise ValueError(f"{folder} has a run already. Go on with it by --resume, or choose another --out.")


def _check_same(folder: Path, settings: dict[str, Any], config: training.TrainingConfig) -> None:
    """The run and its checkpoint, if there is one, have these settings.

    Another size guard is fine: it is about the clusters, not about training; and so are other ranks.
    """
    before = read_json(folder / SETTINGS)
    for name in ("data", "config", "clusters", "holdout"):
        then, now = (_without_ranks(each.get(name)) for each in (before, settings))
        if then != now:
            raise ValueError(f"--resume: {folder} was started with {_difference(name, then, now)}.")
    last = folder / training.LAST
    if not last.exists():
        return
    state = training.check_checkpoint(last)
    asked = {"data": settings["data"], "config": _without_ranks(settings["config"])}
    asked["config"]["validate_every"] = min(config.validate_every, config.max_steps)  # as training.fit has it
    try:
        trained = {
            "data": state.get("data", settings["data"]),  # older versions did not note it
            "config": _without_ranks(dict(state["hyper_parameters"]["config"])),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(last, "it has no settings") from error
    for name in asked:
        if trained[name] != asked[name]:
            difference = _difference(name, trained[name], asked[name])
            raise ValueError(f"{last} is the checkpoint of another run, trained with {difference}. {way_out(last)}")


def _without_ranks(value: Any) -> Any:
    return {key: value[key] for key in value if key not in OF_RANKS} if isinstance(value, dict) else value


def _difference(name: str, before: Any, now: Any) -> str:
    if name == "data":
        return "other data, labels or pairs"
    if isinstance(before, dict):
        changed = next(key for key in (*now, *before) if before.get(key) != now.get(key))
        return f"{changed}={before.get(changed)!r}, now it is {now.get(changed)!r}"
    return f"{name}={before!r}, now it is {now!r}"


def _cut(
    embeddings: NDArray[np.float32], n_clusters: int | None, min_cluster_size: int | None, knowledge: Knowledge
) -> tuple[Hierarchy, int, int]:
    """Hierarchy, number of clusters and size guard: a third of an average cluster, or less where k cannot be reached.

    General cannot-links may need more clusters than were asked for: which number is enough is a hard question, and
    the greedy answers it with a bound.
    """
    free = Hierarchy.from_points(embeddings)
    given = free, knowledge.group, knowledge.apart
    similarity = functools.partial(negative_squared_distances, embeddings)
    hierarchy = constrain(*given, similarity, min_cluster_size or 1)
    lowest, highest = hierarchy.feasible_clusters(min_cluster_size or 1)
    if n_clusters is None:
        # Labels tell too many clusters from enough only where two rows have the same one.
        repeated = (np.bincount(knowledge.known[knowledge.known >= 0]) > 1).any()
        found = choose_n_clusters(free, "labels" if repeated else "gap", labels=knowledge.known)
        n_clusters = min(found.n_clusters, highest)
    n_clusters = max(n_clusters, lowest)
    if n_clusters > highest:
        raise ValueError(
            f"The trained embedding falls into at most {highest} clusters of {min_cluster_size} rows or more, not into "
            f"{n_clusters}. Go on with --resume and a smaller --min-cluster-size."
        )
    if min_cluster_size is None:
        guard = max(1, free.n_points // (3 * n_clusters))
        hierarchy, min_cluster_size = lower_guard(n_clusters, guard, hierarchy, *given)
    return hierarchy, n_clusters, min_cluster_size


def _confidence(
    embeddings: NDArray[np.float32], clusters: NDArray[np.int32], k: int, guard: int, knowledge: Knowledge, seed: int
) -> NDArray[np.float64]:
    """How often, over perturbed forests, a row is with its cluster."""
    points = embeddings.astype(np.float64)
    constraints = None
    if knowledge.is_of_labels or len(points) <= DENSE_POINTS:
        constraints = Constraints.from_groups(knowledge.group, knowledge.apart)
    shares = memberships_of_points(
        points, clusters, negative_squared_distances, functools.partial(nearest_points, metric="euclidean"),
        n_clusters=k, min_cluster_size=guard, constraints=constraints, seed=seed, n_draws=30,
    )  # fmt: skip
    return shares[np.arange(len(points)), clusters]


def name_clusters(clusters: NDArray[np.int32], known: NDArray[np.int64], class_names: list[str]) -> list[str]:
    """The class that a cluster holds, or "new 1", "new 2", ..."""
    names: list[str] = [""] * (int(clusters.max()) + 1)
    for row in np.flatnonzero(known >= 0):
        names[clusters[row]] = class_names[known[row]]
    fresh = iter(range(1, len(names) + 1))
    return [name or f"new {next(fresh)}" for name in names]


def _clusters_csv(
    clusters: NDArray[np.int32], names: list[str], confidence: NDArray[np.float64], known: NDArray[np.int64],
    class_names: list[str],
) -> str:  # fmt: skip
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "cluster", "name", "confidence", "label"])
    for row, (cluster, sure, label) in enumerate(zip(clusters, confidence, known, strict=True)):
        texts = names[cluster], class_names[label] if label >= 0 else ""
        name, label_name = (spreadsheet_text(text) for text in texts)
        writer.writerow([row, cluster, name, f"{sure:.4f}", label_name])
    return text.getvalue()


# ------------------------------------------------------------------------------------------------------------------
# Other methods


def _train_baseline(
    table: Table, config: training.TrainingConfig, knowledge: Knowledge, say: Callable[[str], None]
) -> training.ForestModule | None:
    """The same network, trained with cross-entropy, where there are labels, and a truth to score it by."""
    if (knowledge.truth < 0).all() or (knowledge.known < 0).all():
        return None
    say("Training with cross-entropy on the same labels ...")
    return training.fit(
        dataclasses.replace(config, objective="cross-entropy", n_clusters=len(table.class_names), patience=None),
        table.features, knowledge.known, progress=False,
    )  # fmt: skip


def score_methods(
    table: Table, config: training.TrainingConfig, knowledge: Knowledge, k: int, clusters: NDArray[np.int32],
    baseline: training.ForestModule | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Scores of ours and of simple methods; all cluster all rows, and are scored where nobody was told the truth."""
    scored = np.flatnonzero(knowledge.truth >= 0)
    if len(scored) == 0:
        return []
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    rows = _baseline_rows(knowledge.truth, config.seed)
    raw = table.features[rows].reshape(len(rows), -1).astype(np.float64)
    if not is_image(table.features.shape[1:]):
        raw = (raw - raw.mean(0)) / np.where(raw.std(0) > 0, raw.std(0), 1.0)
    few = "" if len(rows) == len(table) else f" ({len(rows)} rows)"
    k_raw = min(k, len(rows))

    # scikit-learn takes seeds of 32 bits only.
    small_seed = config.seed if config.seed < 2**32 else int(np.random.SeedSequence(config.seed).generate_state(1)[0])

    def kmeans(points: NDArray[Any]) -> NDArray[np.int32]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters: so it is
            return KMeans(k_raw, n_init=10, random_state=small_seed).fit_predict(points)

    found: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {
        "diffclust": (scored, clusters[scored]),
        f"k-means on raw data{few}": (rows, kmeans(raw)),
        f"single linkage on raw data{few}": (rows, Hierarchy.from_points(raw).labels(k_raw)),
    }
    if baseline is not None:
        found["cross-entropy, same labels"] = scored, training.classify(baseline, table.features[scored])
        embedded = training.embed(baseline, table.features[rows])
        found[f"cross-entropy, k-means of its embedding{few}"] = rows, kmeans(embedded)

    def score(of: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
        truth = knowledge.truth[of]
        return clustering_scores(truth[truth >= 0], labels[truth >= 0])

    return [{"method": method, "ours": method == "diffclust", **score(*labelled)} for method, labelled in found.items()]


def _baseline_rows(truth: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """All rows, or a sample of them in which those with a truth come first."""
    order = np.random.default_rng(seed).permutation(len(truth))
    return np.sort(order[np.argsort(truth[order] < 0, kind="stable")][:BASELINE_ROWS])


# ------------------------------------------------------------------------------------------------------------------
# The report, and a finished run


def _write_report(
    folder: Path, title: str, table: Table, module: training.ForestModule, knowledge: Knowledge,
    truth: NDArray[np.int64] | None, embeddings: NDArray[np.float32], hierarchy: Hierarchy, k: int, guard: int,
    clusters: NDArray[np.int32], confidence: NDArray[np.float64], scores: list[dict[str, Any]], seconds: float,
) -> None:  # fmt: skip
    from diffclust.report import ReportData, write_report

    curves = {"loss": [(step, float(value)) for step, value in enumerate(module.loss_curve)]}
    for name in ("val_loss", "val_error", "val_ari"):
        points = [(int(each["step"]), float(each[name])) for each in module.validations]
        if points:
            curves[name.replace("val_", "validation ")] = points
    config = module.config
    own = repr(config.backbone) if isinstance(config.backbone, str) else "..."
    again = "" if config.backbone in BACKBONES else f", backbone={own}"
    facts = {
        "rows": f"{len(table):,}", "backbone": str(config.backbone), "steps": str(len(module.loss_curve)),
        "batch": str(config.batch_size), "draws": str(config.n_draws), "epsilon": str(config.epsilon),
        "seed": str(config.seed), "time": f"{seconds:.0f} s", "diffclust": diffclust.__version__,
        "torch": torch.__version__,
    }  # fmt: skip
    write_report(
        ReportData(
            title=title, raw=table.features, embeddings=embeddings, hierarchy=hierarchy, n_clusters=k,
            min_cluster_size=guard, clusters=clusters, confidence=confidence, known=knowledge.known, truth=truth,
            class_names=table.class_names, curves=curves, scores=scores, facts=facts, row_names=None,
            folder=str(folder), scored_rows=int((knowledge.truth >= 0).sum()),
            how_to_load=(
                "import diffclust as dc\n\n"
                f"run = dc.load_run({str(folder)!r}{again})\n"
                "run.embeddings, run.clusters, run.metrics\n"
                "run.hierarchy.labels(12)     # any other number of clusters\n"
                "run.cluster(new_rows)        # places new rows"
            ),
        ),
        folder / "report.html",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A finished run, see :func:`load_run`.

    Attributes:
        clusters: (n,) cluster of each row; ``names`` are the clusters' names, ``confidence`` how sure each row's is.
        hierarchy: of the embeddings, under what was known: ``hierarchy.labels(k, min_cluster_size)`` for other k.
    """

    folder: Path
    module: training.ForestModule
    embeddings: NDArray[np.float32]
    clusters: NDArray[np.int64]
    names: list[str]
    confidence: NDArray[np.float64]
    hierarchy: Hierarchy
    metrics: dict[str, Any]
    settings: dict[str, Any]

    def cluster(self, x: Any) -> NDArray[np.int64]:
        """The clusters of new rows: each joins the row whose embedding is nearest."""
        return self.clusters[self._nearest(x)]

    def _nearest(self, x: Any) -> NDArray[np.intp]:
        return nearest_points(self.embeddings, training.embed(self.module, x), "euclidean")

    def place(self, x: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The clusters of new rows, and the confidence of the row that each joins."""
        nearest = self._nearest(x)
        return self.clusters[nearest], self.confidence[nearest]


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
    clusters, confidence = _read_clusters(folder / "clusters.csv", n_rows, len(names))
    embeddings = _read_embeddings(folder / "embeddings.npy", n_rows, module)
    hierarchy = _read_hierarchy(folder / "hierarchy.npz", n_rows)
    return Run(folder, module, embeddings, clusters, names, confidence, hierarchy, metrics, settings)


# What goes wrong in NumPy and csv with a file that is not what it should be.
UNREADABLE = (ValueError, KeyError, TypeError, EOFError, csv.Error, zipfile.BadZipFile, zlib.error)


def _read_clusters(path: Path, n_rows: int, n_clusters: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        numbers, clusters = (np.array([int(row[name]) for row in rows], np.int64) for name in ("row", "cluster"))
        confidence = np.array([float(row["confidence"]) for row in rows])
    except (*UNREADABLE, OverflowError) as error:
        raise damaged(path, "it is not the table that was written") from error
    _check_rows(path, len(rows), n_rows)
    if not np.array_equal(numbers, np.arange(n_rows)) or not ((clusters >= 0) & (clusters < n_clusters)).all():
        raise damaged(path, f"it must have rows 0 to {n_rows - 1} and clusters 0 to {n_clusters - 1}")
    return clusters, confidence


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
        edges.ndim == 2 and edges.shape[1] == 2 and edges.dtype.kind == "i" and len(edges) < n_rows
        and ((edges >= 0) & (edges < n_rows)).all() and tree.weights.shape == (len(edges),)
        and 0 <= tree.n_fixed <= len(edges)
    ):  # fmt: skip
        raise damaged(path, f"its edges are not those of a tree of {n_rows} rows")
    return tree


def _check_rows(path: Path, n_rows: int, expected: int) -> None:
    if n_rows != expected:
        raise damaged(path, f"it has {n_rows} rows, the run has {expected}")
