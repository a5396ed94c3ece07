"""What is said about a finished run: remarks for the user, the numbers of ``metrics.json``, and the report."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

import diffclust
from diffclust import training
from diffclust.backbones import BACKBONES
from diffclust.evidence import matched_clusters
from diffclust.mistakes import Suspects
from diffclust.partition import Partition
from diffclust.runs.again import Named
from diffclust.runs.describe import show_value
from diffclust.runs.results import Run
from diffclust.suggestions import suggest
from diffclust.tables import Table

if TYPE_CHECKING:
    from diffclust.report import Asked

N_ROW_QUESTIONS, N_PAIR_QUESTIONS, N_SUSPECTS, N_FACTS = 20, 10, 20, 5  # in the report
N_BINS = 10  # of the confidence, where it is compared with how many rows are right
TOO_LARGE = 3  # a warning where a cluster has so many times the share that its class has among the labels


def make_metrics(
    table: Table,
    module: training.ForestModule,
    named: Named,
    suspects: Suspects,
    confidence: NDArray[np.float64],
    scored: NDArray[np.int64],
    scores: list[dict[str, Any]],
    training_seconds: float,
) -> dict[str, Any]:
    """The content of ``metrics.json``. ``scored`` are the classes to score by, -1 for rows that are not scored."""
    found = named.partition
    evidence, warnings = found.evidence, _warnings(found, table.class_names)
    return {
        "headline": _headline(found, scored, scores),
        "n_rows": len(table),
        "n_clusters": found.n_clusters,
        "cluster_names": named.names,
        "cluster_colours": named.colours,
        "min_cluster_size": found.min_cluster_size,
        "scores": scores,
        "scored_rows": int((scored >= 0).sum()),
        "labelled_rows": int((found.knowledge.labels >= 0).sum()),
        "confidence": float(confidence.mean()),
        "scaling": module.scaling.chosen,
        "cut": evidence.cut,
        "cut_scores": dict(evidence.scores),
        "cut_agreement": dict(evidence.agreement),
        "cut_novelty": dict(evidence.novelty),
        "hidden_classes_ari": evidence.new_classes,
        "n_clusters_scores": {str(k): score for k, score in evidence.candidates.items()},
        "n_clusters_interval": None if evidence.interval is None else list(evidence.interval),
        "calibrated_on": evidence.n_hidden,
        "scored_classes": sorted({table.class_names[c] for c in np.unique(scored) if c >= 0}),
        "reliability": reliability(found, confidence, scored),
        "warnings": warnings,
        "reading": list(table.sentences),
        "suspects": [suspect._asdict() for suspect in suspects.labels],
        "suspect_pairs": [suspect._asdict() for suspect in suspects.pairs],
        "remarks": [*_remarks(module, found), *warnings, *named.sentences, *suspects.sentences()],
        "training_seconds": round(training_seconds, 2),
    }


def _remarks(module: training.ForestModule, found: Partition) -> list[str]:
    """What the user should know about the choices that were made."""
    evidence = found.evidence
    remarks = [f"Scaling of the columns: {module.scaling.chosen}."] if len(module.input_shape) == 1 else []
    one_class = len(np.unique(found.knowledge.labels[found.knowledge.labels >= 0])) == 1
    score = evidence.scores.get(evidence.cut)  # clusters of the model of pairs and weighted labels have none
    if score is not None:
        what = "hidden labels were found again with ARI"
        if one_class:
            what = "share of rows with hidden labels in the cluster of their class, less that of rows without labels:"
        remarks.append(f"Cut: {evidence.cut}, of {len(evidence.agreement)} that were compared; {what} {score:.2f}.")
    if evidence.interval is not None and one_class:
        remarks.append("Labels of one class say little about the number of clusters: give it if you know it.")
    elif evidence.interval is not None:
        low, high = evidence.interval
        remarks.append(f"There are probably {low} to {high} clusters, judging by labelled classes that were hidden.")
    return remarks


def _warnings(found: Partition, class_names: list[str]) -> list[str]:
    """A sentence for each labelled class whose cluster has far more than the share that its labels have."""
    known = found.knowledge.labels
    sizes = np.bincount(found.clusters)
    warnings = []
    for cluster, label in enumerate(found.classes):
        share = (known == label).sum() / max(1, (known >= 0).sum())
        if label >= 0 and (found.classes < 0).any() and sizes[cluster] > TOO_LARGE * share * len(known):
            warnings.append(
                f"The cluster of class {class_names[label]} has {sizes[cluster] / len(known):.0%} of the rows, but "
                f"only {share:.0%} of the labels are of that class: it may hold a class that nobody labelled."
            )
    return warnings


def _headline(found: Partition, scored: NDArray[np.int64], scores: list[dict[str, Any]]) -> list[str]:
    """What the score of the clusters is, which classes it covers, and what hidden classes say about new ones."""
    rows = f"{(scored >= 0).sum():,} rows whose labels nobody was told, {_scored_classes(found, scored)}"
    sentences = [f"ARI {row['ari']:.2f} on {rows}." for row in scores if row["ours"]]
    if not scores and (scored >= 0).any():
        sentences.append(f"No score: the rows whose labels nobody was told ({(scored >= 0).sum():,}) are of one class.")
    if found.evidence.new_classes is not None:
        sentences.append(
            "New classes: when some labelled classes were hidden, the clusters agreed with the hidden labels with ARI "
            f"{found.evidence.new_classes:.2f}."
        )
    return sentences


def _scored_classes(found: Partition, scored: NDArray[np.int64]) -> str:
    """The classes of the scored rows."""
    known = found.knowledge.labels
    labelled, classes = set(known[known >= 0].tolist()), set(scored[scored >= 0].tolist())
    n_new = len(classes - labelled)
    if n_new:
        return f"of {_n_classes(len(classes))}, {n_new} of which nobody labelled"
    part = "the" if classes == labelled else f"{len(classes)} of the"
    alone = "" if (found.classes >= 0).all() else "; classes that nobody labelled are not in it"
    return f"of {part} {_n_classes(len(labelled), 'labelled ')}{alone}"


def _n_classes(number: int, kind: str = "") -> str:
    return f"{number} {kind}class{'es' * (number != 1)}"


def reliability(found: Partition, confidence: NDArray[np.float64], scored: NDArray[np.int64]) -> dict[str, Any] | None:
    """How often rows of about the same confidence are in the right cluster; None where no row is scored.

    The right cluster of a class is the one that holds its labels. Other classes get the clusters that are left, see
    :func:`diffclust.evidence.matched_clusters`. Each of the ``bins`` has bounds, number of rows, mean confidence and
    share of right rows; ``expected_calibration_error`` is the mean distance of the last two over all rows.
    """
    rows = scored >= 0
    if not rows.any():
        return None
    known = found.knowledge.labels
    belongs = matched_clusters(found.clusters, np.where(rows, scored, known), known)
    right, sure = (belongs == found.clusters)[rows], confidence[rows]
    number = np.minimum((sure * N_BINS).astype(int), N_BINS - 1)
    bins = [
        {
            "low": each / N_BINS,
            "high": (each + 1) / N_BINS,
            "rows": int((number == each).sum()),
            "confidence": float(sure[number == each].mean()),
            "right": float(right[number == each].mean()),
        }
        for each in np.unique(number).tolist()
    ]
    error = sum(each["rows"] * abs(each["confidence"] - each["right"]) for each in bins) / len(sure)
    return {"rows": len(sure), "expected_calibration_error": float(error), "bins": bins}


def write_run_report(
    run: Run,
    table: Table,
    found: Partition,
    truth: NDArray[np.int64] | None,
    described: list[dict[str, Any]],
    suspects: Suspects,
    title: str,
    seconds: float,
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
        row_names=table.row_names,
        scored_rows=run.metrics["scored_rows"],
        headline=run.metrics["headline"],
        warnings=run.metrics["warnings"],
        evidence=found.evidence,
        reliability=run.metrics["reliability"],
        how_to_load=_how_to_load(run),
        described=described,
        reading=table.sentences,
        groupings=table.groupings,
        cluster_names=run.names,
        cluster_colours=run.metrics["cluster_colours"],
        asked=_asked(run, table, suspects),
    )
    write_report(data, run.folder / "report.html")


def _asked(run: Run, table: Table, suspects: Suspects) -> Asked:
    """What the report asks its reader."""
    from diffclust.report import Asked

    asked = Asked(
        rows=suggest(run, N_ROW_QUESTIONS),
        pairs=suggest(run, N_PAIR_QUESTIONS, "pairs"),
        suspects=suspects.labels[:N_SUSPECTS],
        command=_how_to_go_on(table.source, str(run.folder)),
    )
    return dataclasses.replace(asked, facts=_row_facts(table, asked.all_rows()))


def _how_to_go_on(source: str, folder: str) -> str:
    """The command that fits again with answers. A data frame has no file, and the digits need no name."""
    data = [source] if Path(source).exists() else ["DATA"] if source in ("The data frame", "adata") else []
    return shlex.join(
        ["diffclust", "fit", *data, "--more", "answers.csv", "--warm", folder, "--out", f"{folder.rstrip('/')}-2"]
    )


def _row_facts(table: Table, rows: Iterable[int]) -> dict[int, list[tuple[str, str]]]:
    """The text of each row, or the columns in which it is most unusual, with their values."""
    if table.texts is not None:
        return {row: [("text", str(table.texts[row]))] for row in rows}
    if table.columns is None or table.features.ndim != 2:
        return {row: [] for row in rows}
    kinds = table.column_kinds() or ["number"] * len(table.columns)
    middle, spread = table.features.mean(0, np.float64), table.features.std(0, np.float64)
    facts: dict[int, list[tuple[str, str]]] = {}
    for row in rows:
        values = table.features[row].astype(np.float64)
        unusual = np.abs(values - middle) / np.where(spread > 0, spread, np.inf)
        told = [c for c in np.argsort(-unusual, kind="stable") if kinds[c] != "category" or values[c] == 1]
        facts[row] = [_fact(table.columns[c], float(values[c]), kinds[c]) for c in told[:N_FACTS]]
    return facts


def _fact(column: str, value: float, kind: str) -> tuple[str, str]:
    """A column and its value; of the features "colour = red" and "colour = blue", the colour."""
    if kind == "category":
        name, _, category = column.partition(" = ")
        return name, category
    return column, show_value(value, kind)


def _curves(module: training.ForestModule) -> dict[str, list[tuple[int, float]]]:
    """Curves whose values can be compared from step to step: those at one size of the noise."""
    curves = {"loss of each batch": [(step, float(value)) for step, value in enumerate(module.loss_curve)]}
    if module.final_noise_losses:
        points = [(int(each["step"]), float(each["loss"])) for each in module.final_noise_losses]
        curves = {f"loss of one batch, noise {module.config.epsilon}": points}
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
