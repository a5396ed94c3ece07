"""What is said about a finished run: remarks for the user, the numbers of ``metrics.json``, and the report."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import diffclust
from diffclust import training
from diffclust.backbones import BACKBONES
from diffclust.partition import Partition
from diffclust.runs.results import Run
from diffclust.tables import Table


def make_metrics(
    table: Table,
    module: training.ForestModule,
    found: Partition,
    confidence: NDArray[np.float64],
    scored: NDArray[np.int64],
    scores: list[dict[str, Any]],
    training_seconds: float,
) -> dict[str, Any]:
    """The content of ``metrics.json``. ``scored`` are the classes to score by, -1 for rows that are not scored."""
    evidence = found.evidence
    return {
        "n_rows": len(table),
        "n_clusters": found.n_clusters,
        "cluster_names": found.names(table.class_names),
        "min_cluster_size": found.min_cluster_size,
        "scores": scores,
        "scored_rows": int((scored >= 0).sum()),
        "labelled_rows": int((found.knowledge.labels >= 0).sum()),
        "confidence": float(confidence.mean()),
        "scaling": module.scaling.chosen,
        "cut": evidence.cut,
        "cut_scores": dict(evidence.scores),
        "hidden_classes_ari": evidence.new_classes,
        "n_clusters_scores": {str(k): score for k, score in evidence.candidates.items()},
        "n_clusters_interval": None if evidence.interval is None else list(evidence.interval),
        "calibrated_on": evidence.n_hidden,
        "scored_classes": sorted({table.class_names[c] for c in np.unique(scored) if c >= 0}),
        "remarks": _remarks(module, found),
        "training_seconds": round(training_seconds, 2),
    }


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


def write_run_report(
    run: Run, table: Table, found: Partition, truth: NDArray[np.int64] | None, title: str, seconds: float
) -> None:
    """Draws ``report.html``."""
    from diffclust.report import ReportData, write_report

    module, config = run.module, run.module.config
    data = ReportData(
        title=title,
        raw=np.moveaxis(table.features, 1, -1) if table.features.ndim == 4 else table.features,
        embeddings=run.embeddings,
        hierarchy=run.hierarchy,
        n_clusters=found.n_clusters,
        min_cluster_size=found.min_cluster_size,
        clusters=run.clusters,
        confidence=run.confidence,
        known=found.knowledge.labels,
        truth=truth,
        class_names=table.class_names,
        curves=_curves(module),
        scores=run.metrics["scores"],
        facts={
            "rows": f"{len(table):,}",
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
        folder=str(run.folder),
        scored_rows=run.metrics["scored_rows"],
        how_to_load=_how_to_load(run),
    )
    write_report(data, run.folder / "report.html")


def _curves(module: training.ForestModule) -> dict[str, list[tuple[int, float]]]:
    curves = {"loss": [(step, float(value)) for step, value in enumerate(module.loss_curve)]}
    for name in ("val_loss", "val_error", "val_ari") if module.validations else ():
        points = [(int(each["step"]), float(each[name])) for each in module.validations]
        curves[name.replace("val_", "validation ")] = points
    return curves


def _how_to_load(run: Run) -> str:
    backbone = run.module.config.backbone
    name = repr(backbone) if isinstance(backbone, str) else "..."
    again = "" if backbone in BACKBONES else f", backbone={name}"
    return (
        "import diffclust as dc\n\n"
        f"run = dc.load_run({str(run.folder)!r}{again})\n"
        "run.embeddings, run.clusters, run.metrics\n"
        "run.hierarchy.labels(12)     # any other number of clusters\n"
        "run.cluster(new_rows)        # places new rows"
    )
