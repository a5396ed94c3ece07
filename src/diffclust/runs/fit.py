"""A table and some knowledge → a folder: training, clusters, scores and a report."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from numpy.typing import NDArray

import diffclust
from diffclust import training
from diffclust.backbones import BACKBONES
from diffclust.files import write_atomically
from diffclust.knowledge import Knowledge
from diffclust.partition import Partition, check_n_clusters, partition
from diffclust.runs.baselines import score_methods, train_baseline
from diffclust.runs.folder import FORMAT, SETTINGS, check_same_run, prepare, write_manifest
from diffclust.runs.load import Run, load_run
from diffclust.tables import Table, spreadsheet_text


def fit_run(
    table: Table,
    config: training.TrainingConfig,
    folder: Path,
    *,
    must_link: Iterable[tuple[int, int]] = (),
    cannot_link: Iterable[tuple[int, int]] = (),
    truth: NDArray[np.int64] | None = None,
    holdout: float = 0.0,
    min_cluster_size: int | str = "auto",
    cut: str = "auto",
    resume: bool = False,
    progress: bool = True,
    report: bool = True,
    title: str = "diffclust",
    say: Callable[[str], None] = print,
) -> Run | None:
    """Trains on a table, clusters all of its rows, scores and reports.

    Args:
        table: features, and labels of some rows.
        config: of the training. With ``n_clusters=None`` the number of clusters is chosen from the trained embedding;
            training then has room for the known groups.
        folder: where everything is written.
        must_link: pairs of rows of one cluster.
        cannot_link: pairs of rows of different clusters.
        truth: classes of all rows, where they are known for scoring only.
        holdout: share of the labels of each class that is kept for scoring, where there is no ``truth``.
        min_cluster_size: the size guard, see :func:`diffclust.partition.partition`.
        cut: how the embedding is cut into clusters, see :func:`diffclust.partition.partition`.
        resume: go on where the folder's run was interrupted; its settings must be the same.
        progress: show a progress bar.
        report: whether to draw it, most of the time of a small run.
        title: of the report.
        say: called with sentences about what is being done.

    Returns:
        What :func:`load_run` returns. On several ranks all train, and the first does the rest; the others return None.

    Raises:
        ValueError: of the arguments, before anything is written; or the trained embedding does not fall into
            ``n_clusters`` clusters of ``min_cluster_size`` rows.
    """
    started = time.perf_counter()
    knowledge, scored = _what_is_known(table, must_link, cannot_link, truth, holdout, config.seed)
    n_clusters = config.n_clusters
    if n_clusters is not None:
        check_n_clusters(n_clusters, knowledge)
    if min_cluster_size != "auto" and int(min_cluster_size) > len(table):
        raise ValueError(f"min_cluster_size={min_cluster_size} is more than the {len(table)} rows there are.")
    config = config.resolve(table.features.shape[1:], knowledge)
    settings: dict[str, Any] = {
        "format": FORMAT,
        "diffclust": diffclust.__version__,
        "config": config.to_dict(),
        "clusters": n_clusters,
        "holdout": holdout,
        "min_cluster_size": min_cluster_size,
        "data": _fingerprint(table, knowledge),
        "source": table.source,
        "class_names": table.class_names,
        "columns": table.columns,
    }
    if resume and (folder / SETTINGS).exists():
        check_same_run(folder, settings)  # before training makes the backbone, which imports it
    with contextlib.ExitStack() as held:

        def write_settings() -> None:
            if training.is_first_rank():
                held.enter_context(prepare(folder, settings, resume))

        last = folder / training.LAST
        module = training.fit(
            config,
            table.features,
            knowledge,
            folder=folder,
            resume=last if resume and last.exists() else None,
            progress=progress,
            callbacks=[_NoteData(settings["data"])],
            on_ready=write_settings,
        )
        trained = time.perf_counter()
        if not training.is_first_rank():
            say = _say_nothing
        baseline = None
        if (scored >= 0).any() and (knowledge.labels >= 0).any():
            say("Training with cross-entropy on the same labels ...")
            baseline = train_baseline(table, config, knowledge)
        if not training.is_first_rank():
            return None
        say("Embedding and clustering all rows ...")
        embeddings = training.embed(module, table.features)
        try:
            found = partition(
                embeddings,
                knowledge,
                n_clusters,
                min_cluster_size=min_cluster_size,
                cut=cut,
                rows=training.scaled_rows(module, table.features),
                retrain=training.retrainer(config, table.features),
                seed=config.seed,
            )
        except ValueError as error:
            raise ValueError(f"{error} The network is trained: go on with resume=True.") from error
        if n_clusters not in (None, found.n_clusters):
            say(f"With these pairs {found.n_clusters} clusters were found, not {n_clusters}.")
        for sentence in _remarks(module, found):
            say(sentence)
        say("Scoring other methods on the same rows and labels ...")
        scores = score_methods(table, scored, found.clusters, found.n_clusters, baseline, config.seed)
        result = _Result(table, module, embeddings, found, found.probabilities(), scored, truth, scores)
        _write_results(folder, result, round(trained - started, 2))
        if report:
            say("Drawing the report ...")
            _write_report(folder, result, title, time.perf_counter() - started)
        write_manifest(folder)
        return load_run(folder, config.backbone)


def _say_nothing(text: str) -> None:
    pass


# ------------------------------------------------------------------------------------------------------------------
# Before training


def _what_is_known(
    table: Table,
    must_link: Iterable[tuple[int, int]],
    cannot_link: Iterable[tuple[int, int]],
    truth: NDArray[np.int64] | None,
    holdout: float,
    seed: int,
) -> tuple[Knowledge, NDArray[np.int64]]:
    """What training and clustering are told, and the classes to score by, -1 where there are none.

    The latter are all that training is not told in a demonstration (``truth``), else the labels held out.
    """
    knowledge = Knowledge.join(table.labels, must_link, cannot_link)
    if truth is None:
        knowledge, scored = hold_out(knowledge, holdout, seed)
    else:
        scored = np.where(knowledge.labels >= 0, -1, truth)
    if knowledge.is_empty:
        raise ValueError("Nothing is known: give labels of some rows, or must_link or cannot_link pairs.")
    return knowledge, scored


def hold_out(knowledge: Knowledge, share: float, seed: int) -> tuple[Knowledge, NDArray[np.int64]]:
    """What is left without a share of the labels of each class, and these labels, -1 elsewhere."""
    held_out = np.full(knowledge.n_points, -1, np.int64)
    rng = np.random.default_rng(seed)
    for label in np.unique(knowledge.labels[knowledge.labels >= 0]):
        rows = np.flatnonzero(knowledge.labels == label)
        held_out[rng.choice(rows, int(share * len(rows)), replace=False)] = label
    return (knowledge.forget(held_out >= 0) if (held_out >= 0).any() else knowledge), held_out


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


# ------------------------------------------------------------------------------------------------------------------
# After training


@dataclasses.dataclass(frozen=True, eq=False)
class _Result:
    """All that a run found.

    Attributes:
        scored: (n,) classes that the scores are by, -1 where there is none.
        truth: (n,) all classes, in a demonstration.
    """

    table: Table
    module: training.ForestModule
    embeddings: NDArray[np.float32]
    found: Partition
    probabilities: NDArray[np.float64]
    scored: NDArray[np.int64]
    truth: NDArray[np.int64] | None
    scores: list[dict[str, Any]]

    @property
    def confidence(self) -> NDArray[np.float64]:
        """(n,) the probability of the cluster that each row is in."""
        return self.probabilities[np.arange(len(self.probabilities)), self.found.clusters]

    @property
    def novelty(self) -> NDArray[np.float64]:
        """(n,) the probability that a row is of none of the labelled classes."""
        return self.probabilities[:, self.found.classes < 0].sum(1)


def _remarks(module: training.ForestModule, found: Partition) -> list[str]:
    """What the user should know about the choices that were made."""
    evidence = found.evidence
    remarks = [f"Scaling of the columns: {module.scaling.chosen}."] if len(module.input_shape) == 1 else []
    if evidence.scores:
        scores = ", ".join(f"{name} {score:.2f}" for name, score in evidence.scores.items())
        remarks.append(f"Cut: {evidence.cut}. Hidden labels were found again with ARI {scores}.")
    if evidence.interval is not None:
        low, high = evidence.interval
        remarks.append(f"Hidden classes were found about equally well with {low} to {high} clusters.")
    known = found.knowledge.labels
    sizes = np.bincount(found.clusters)
    for cluster, label in enumerate(found.classes):
        share = (known == label).sum() / max(1, (known >= 0).sum())
        if label >= 0 and (found.classes < 0).any() and sizes[cluster] > 3 * share * len(known):
            remarks.append(
                f"Cluster {cluster} has {sizes[cluster] / len(known):.0%} of the rows, but only {share:.0%} of the "
                "labels are of its class: it may hold a class that nobody labelled."
            )
    return remarks


def _write_results(folder: Path, result: _Result, training_seconds: float) -> None:
    """The files that :func:`load_run` reads."""
    found, hierarchy = result.found, result.found.hierarchy
    names = found.names(result.table.class_names)
    metrics = {
        "n_rows": len(result.table),
        "n_clusters": found.n_clusters,
        "cluster_names": names,
        "min_cluster_size": found.min_cluster_size,
        "scores": result.scores,
        "scored_rows": int((result.scored >= 0).sum()),
        "labelled_rows": int((found.knowledge.labels >= 0).sum()),
        "confidence": float(result.confidence.mean()),
        "scaling": result.module.scaling.chosen,
        "cut": found.evidence.cut,
        "cut_scores": dict(found.evidence.scores),
        "hidden_classes_ari": found.evidence.new_classes,
        "n_clusters_scores": {str(k): score for k, score in found.evidence.candidates.items()},
        "n_clusters_interval": found.evidence.interval,
        "calibrated_on": found.evidence.n_hidden,
        "scored_classes": sorted({result.table.class_names[c] for c in np.unique(result.scored) if c >= 0}),
        "remarks": _remarks(result.module, found),
        "training_seconds": training_seconds,
    }
    tree = {name: getattr(hierarchy, name) for name in ("n_points", "edges", "weights", "n_fixed")}
    write_atomically(folder / "embeddings.npy", _saved(np.save, result.embeddings))
    write_atomically(folder / "hierarchy.npz", _saved(np.savez, **tree))
    write_atomically(folder / "clusters.csv", _clusters_csv(result, names))
    write_atomically(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")


def _saved(save: Callable[..., None], *arrays: Any, **named: Any) -> bytes:
    """The bytes of a NumPy file; writing straight to a disk, NumPy does not say that it is full."""
    buffer = io.BytesIO()
    save(buffer, *arrays, **named)
    return buffer.getvalue()


def _clusters_csv(result: _Result, names: list[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "cluster", "name", "confidence", "novelty", "label"])
    found = result.found
    rows = zip(found.clusters, result.confidence, result.novelty, found.knowledge.labels, strict=True)
    for row, (cluster, sure, new, label) in enumerate(rows):
        label_name = result.table.class_names[label] if label >= 0 else ""
        name, label_name = spreadsheet_text(names[cluster]), spreadsheet_text(label_name)
        writer.writerow([row, cluster, name, f"{sure:.4f}", f"{new:.4f}", label_name])
    return text.getvalue()


def _write_report(folder: Path, result: _Result, title: str, seconds: float) -> None:
    from diffclust.report import ReportData, write_report

    module, found, config = result.module, result.found, result.module.config
    curves = {"loss": [(step, float(value)) for step, value in enumerate(module.loss_curve)]}
    for name in ("val_loss", "val_error", "val_ari"):
        points = [(int(each["step"]), float(each[name])) for each in module.validations]
        if points:
            curves[name.replace("val_", "validation ")] = points
    raw = result.table.features
    own = repr(config.backbone) if isinstance(config.backbone, str) else "..."
    again = "" if config.backbone in BACKBONES else f", backbone={own}"
    data = ReportData(
        title=title,
        raw=np.moveaxis(raw, 1, -1) if raw.ndim == 4 else raw,
        embeddings=result.embeddings,
        hierarchy=found.hierarchy,
        n_clusters=found.n_clusters,
        min_cluster_size=found.min_cluster_size,
        clusters=found.clusters,
        confidence=result.confidence,
        known=found.knowledge.labels,
        truth=result.truth,
        class_names=result.table.class_names,
        curves=curves,
        scores=result.scores,
        facts={
            "rows": f"{len(result.table):,}",
            "backbone": str(config.backbone),
            "steps": str(len(module.loss_curve)),
            "batch": str(config.batch_size),
            "draws": str(config.n_draws),
            "epsilon": str(config.epsilon),
            "scaling": module.scaling.chosen,
            "cut": found.evidence.cut,
            "seed": str(config.seed),
            "time": f"{seconds:.0f} s",
            "diffclust": diffclust.__version__,
            "torch": torch.__version__,
        },
        row_names=None,
        folder=str(folder),
        scored_rows=int((result.scored >= 0).sum()),
        how_to_load=(
            "import diffclust as dc\n\n"
            f"run = dc.load_run({str(folder)!r}{again})\n"
            "run.embeddings, run.clusters, run.metrics\n"
            "run.hierarchy.labels(12)     # any other number of clusters\n"
            "run.cluster(new_rows)        # places new rows"
        ),
    )
    write_report(data, folder / "report.html")
