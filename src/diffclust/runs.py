"""A run: a table and some knowledge in; a folder with a trained embedding, clusters, scores and a report out.

    run = load_run("folder")
    run.embeddings, run.clusters, run.metrics, run.hierarchy.labels(12)
    run.cluster(new_rows)

The files of the folder: ``settings.json`` (what was asked for), ``last.ckpt`` and ``log/`` (training),
``embeddings.npy``, ``hierarchy.npz``, ``clusters.csv``, ``metrics.json``, ``report.html``. Each is written whole
or not at all.
"""

from __future__ import annotations

import csv
import dataclasses
import errno
import functools
import hashlib
import io
import json
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import diffclust
from diffclust import training
from diffclust.backbones import is_image
from diffclust.cluster import constrain, lower_guard, nearest_points
from diffclust.constraints import Constraints, all_apart, join_knowledge
from diffclust.files import write_whole
from diffclust.forest import Hierarchy
from diffclust.metrics import clustering_scores
from diffclust.similarity import negative_squared_distances
from diffclust.stability import DENSE_POINTS, choose_n_clusters, memberships_of_points
from diffclust.tables import Table

SETTINGS = "settings.json"
FILES = (SETTINGS, training.LAST, "embeddings.npy", "hierarchy.npz", "clusters.csv", "metrics.json")  # to load a run
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
    rank = training.rehearse(config, table.features)
    say = say if rank == 0 else lambda text: None
    settings = {
        "diffclust": diffclust.__version__, "config": config.to_dict(), "clusters": n_clusters, "holdout": holdout,
        "min_cluster_size": min_cluster_size, "data": _fingerprint(table, knowledge), "source": table.source,
        "class_names": table.class_names, "columns": table.columns,
    }  # fmt: skip
    if rank == 0:
        _prepare_folder(folder, settings, resume)
    last = folder / training.LAST
    module = training.fit(
        config, table.features, knowledge.group, apart=None if knowledge.is_of_labels else knowledge.apart,
        folder=folder, resume=last if resume and last.exists() else None, progress=progress,
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
        "n_rows": len(table), "n_clusters": k, "min_cluster_size": guard, "scores": scores,
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
    write_whole(folder / "clusters.csv", _clusters_csv(clusters, names, confidence, knowledge.known, table.class_names))
    write_whole(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
    if report:
        say("Drawing the report ...")
        _write_report(
            folder, title, table, module, knowledge, truth, embeddings, hierarchy, k, guard, clusters, confidence,
            scores, time.perf_counter() - started,
        )  # fmt: skip
    return load_run(folder)


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


def _prepare_folder(folder: Path, settings: dict[str, Any], resume: bool) -> None:
    """The folder is made, and what is asked for is written down."""
    path, last = folder / SETTINGS, folder / training.LAST
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file: name a folder.")
    if not resume and (path.exists() or last.exists()):
        raise ValueError(f"{folder} has a run already. Go on with it by --resume, or choose another --out.")
    if resume:
        _check_same(folder, settings)
        for left in folder.glob(".*.tmp"):  # half files of a killed run
            left.unlink()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(settings, indent=2) + "\n")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise ValueError(f"--out {folder} cannot be written: {error.strerror}.") from error


def _check_same(folder: Path, settings: dict[str, Any]) -> None:
    """Another size guard is fine: it is about the clusters, not about training; and so are other ranks."""
    if not (folder / SETTINGS).exists():
        raise ValueError(f"--resume: {folder} has no run to go on with.")
    before = _read_json(folder / SETTINGS)
    for name in ("data", "config", "clusters", "holdout"):
        then, now = before.get(name), settings[name]
        if name == "config" and isinstance(then, dict):
            then, now = ({key: each[key] for key in each if key not in OF_RANKS} for each in (then, now))
        if then != now:
            raise ValueError(f"--resume: {folder} was started with {_difference(name, then, now)}.")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged.")
    return content


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
        writer.writerow([row, cluster, names[cluster], f"{sure:.4f}", class_names[label] if label >= 0 else ""])
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

    def kmeans(points: NDArray[Any]) -> NDArray[np.int32]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters: so it is
            return KMeans(k_raw, n_init=10, random_state=config.seed).fit_predict(points)

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
    import torch

    from diffclust.report import ReportData, write_report

    curves = {"loss": [(step, float(value)) for step, value in enumerate(module.loss_curve)]}
    for name in ("val_loss", "val_error", "val_ari"):
        points = [(int(each["step"]), float(each[name])) for each in module.validations]
        if points:
            curves[name.replace("val_", "validation ")] = points
    config = module.config
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
                f"run = dc.load_run({str(folder)!r})\n"
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

    Args:
        backbone: needed again where the run was given a module instead of a name.
    """
    given = Path(folder)
    folder = given.parent if given.is_file() else given
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        raise ValueError(f"{given} is not of a finished run: {folder / missing[0]} is missing.")
    if given.is_file() and given.name != training.LAST:
        raise ValueError(f"{given} is not the checkpoint of the run: that is {folder / training.LAST}.")
    with (folder / "clusters.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with np.load(folder / "hierarchy.npz") as saved:
        hierarchy = Hierarchy(int(saved["n_points"]), saved["edges"], saved["weights"], int(saved["n_fixed"]))
    clusters = np.array([int(row["cluster"]) for row in rows])
    names = dict(sorted((int(row["cluster"]), row["name"]) for row in rows))
    return Run(
        folder, training.load(folder / training.LAST, backbone), np.load(folder / "embeddings.npy"), clusters,
        list(names.values()), np.array([float(row["confidence"]) for row in rows]), hierarchy,
        _read_json(folder / "metrics.json"), _read_json(folder / SETTINGS),
    )  # fmt: skip
