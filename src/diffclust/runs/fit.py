"""A table and some knowledge → a finished run: training, clusters, scores, files and a report."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.callbacks import LambdaCallback
from numpy.typing import NDArray

import diffclust
from diffclust import training
from diffclust.files import write_atomically
from diffclust.knowledge import Knowledge, Weights
from diffclust.mistakes import Suspects, suspect_labels, suspect_pairs
from diffclust.partition import Partition, check_cut, partition, what_retrain_is_told
from diffclust.runs.again import name_clusters, record_known
from diffclust.runs.baselines import score_methods
from diffclust.runs.describe import describe_clusters
from diffclust.runs.folder import FORMAT, SETTINGS, check_same_run, prepare, write_manifest
from diffclust.runs.results import Run, save_run
from diffclust.runs.summary import make_metrics, write_run_report
from diffclust.tables import Table, listed
from diffclust.tables.texts import vectors_file
from diffclust.training.loop import with_own_backbone

COLD_STEPS = training.TrainingConfig.n_steps  # of trainings that do not start with the weights of an earlier run


def fit_run(
    table: Table,
    config: training.TrainingConfig,
    folder: str | Path,
    *,
    must_link: Iterable[tuple[int, int]] = (),
    cannot_link: Iterable[tuple[int, int]] = (),
    must_weights: Weights = None,
    cannot_weights: Weights = None,
    label_weights: Weights = None,
    truth: NDArray[np.int64] | None = None,
    holdout: float = 0.0,
    held_out: NDArray[np.bool_] | None = None,
    min_cluster_size: int | str = "auto",
    cut: str = "auto",
    warm: Run | None = None,
    like: Run | None = None,
    resume: bool = False,
    progress: bool = True,
    report: bool = True,
    title: str = "diffclust",
    say: Callable[[str], None] = print,
) -> Run | None:
    """Trains on a table, clusters all of its rows, scores the clusters and writes a report.

    Args:
        table: features, and labels of some rows.
        config: the settings of the training. With ``n_clusters=None`` the number of clusters is chosen from the trained
            embedding; training then has room for the known groups.
        folder: where everything is written.
        must_link: pairs of rows of one cluster.
        cannot_link: pairs of rows of different clusters.
        must_weights: how sure the must-links are, see :meth:`Knowledge.join`; None is hard.
        cannot_weights: the same of the cannot-links.
        label_weights: the same of the labels, (n,).
        truth: (n,) classes of all rows, where they are known. They are used for scores and never for training.
        holdout: share of the labels of each class that is kept for scoring, where there is no ``truth``.
        held_out: (n,) rows whose labels are kept for scoring, in place of a share of each class.
        min_cluster_size: the size guard, see :func:`diffclust.partition.partition`.
        cut: how the embedding is cut into clusters, see :func:`diffclust.partition.partition`.
        warm: an earlier run with whose weights and scaling training starts. What it was told is not used: see
            :func:`diffclust.runs.refit_input`. Cuts are compared by trainings from the start, of 300 steps or more.
        like: an earlier run. Clusters that continue one of its clusters have its name, number and colour; by default
            those of ``warm``.
        resume: continue the interrupted run in the folder. Its settings must be the same.
        progress: show a progress bar.
        report: draw the report, which takes most of the time of a small run.
        title: the title of the report.
        say: called with sentences about what is being done.

    Returns:
        The run, as :func:`load_run` reads it from the folder. On several ranks all train, and the first does the rest;
        the others return None.

    Raises:
        ValueError: an argument is wrong, which is found before anything is written; or the trained embedding does not
            fall into ``n_clusters`` clusters of ``min_cluster_size`` rows.
    """
    started, folder = time.perf_counter(), Path(folder)
    weights = {"must_weights": must_weights, "cannot_weights": cannot_weights, "label_weights": label_weights}
    knowledge = Knowledge.join(table.labels, must_link, cannot_link, **weights)
    knowledge, scored = _choose_scored(knowledge, truth, holdout if held_out is None else held_out, config.seed)
    if knowledge.is_empty:
        raise ValueError("Nothing is known: give labels of some rows, or must_link or cannot_link pairs.")
    n_clusters = config.n_clusters
    check_cut(cut, n_clusters, knowledge)
    if min_cluster_size != "auto" and int(min_cluster_size) > len(table):
        raise ValueError(f"min_cluster_size={min_cluster_size} is more than the {len(table)} rows there are.")
    config = training.resolve(config, table.features, knowledge)
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
        "encoding": table.encoding,
    }
    if resume and (folder / SETTINGS).exists():
        check_same_run(folder, settings)  # before training makes the backbone, which imports it
    if training.is_first_rank():
        for sentence in table.sentences:
            say(sentence)
    with contextlib.ExitStack() as stack:

        def make_folder() -> None:
            if training.is_first_rank():
                stack.enter_context(prepare(folder, settings, resume))
                if table.texts is not None and table.encoding is not None:  # a resumed run need not embed them again
                    path = vectors_file(folder, table.texts, table.encoding["model"])
                    write_atomically(path, lambda file: np.save(file, table.features))

        def note_data(trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
            checkpoint["data"] = settings["data"]  # so that a checkpoint of another run is recognised

        cold = config if warm is None else dataclasses.replace(config, n_steps=max(config.n_steps, COLD_STEPS))
        cutting: dict[str, Any] = {"min_cluster_size": min_cluster_size, "cut": cut, "seed": config.seed}
        told = what_retrain_is_told(knowledge, n_clusters, **cutting)
        retrain = stack.enter_context(training.retrained_beside(cold, table.features, told))
        last = folder / training.LAST
        module = training.fit(
            with_own_backbone(config),  # the baseline and the choice of a cut start from an untrained one
            table.features,
            knowledge,
            folder=folder,
            resume=last if resume and last.exists() else None,
            progress=progress,
            callbacks=[LambdaCallback(on_save_checkpoint=note_data)],
            on_ready=make_folder,
            warm=None if warm is None else warm.module,
        )
        trained = time.perf_counter()
        is_first = training.is_first_rank()
        tell = say if is_first else lambda text: None
        if module.not_captured:
            tell(f"The GPU took the steps one by one: {module.not_captured}.")
        baseline = None
        if len(np.unique(scored[scored >= 0])) > 1 and (knowledge.labels >= 0).any():
            tell("Training with cross-entropy on the same labels ...")
            baseline = _train_baseline(table, cold, knowledge)
        if not is_first:
            return None
        say("Embedding and clustering all rows ...")
        embeddings, rows = training.embed(module, table.features), training.scaled_rows(module, table.features)
        try:
            found = partition(embeddings, knowledge, n_clusters, rows=rows, retrain=retrain, **cutting)
        except ValueError as error:
            raise ValueError(f"{error} The network is trained: go on with resume=True.") from error
        if n_clusters not in (None, found.n_clusters):
            say(f"With these pairs {found.n_clusters} clusters were found, not {n_clusters}.")
        known = record_known(
            table, found.knowledge if knowledge.is_soft else knowledge, np.where(truth is None, scored, -1), knowledge
        )
        named = name_clusters(found, table.class_names, known, warm if like is None else like)
        found = named.partition
        for sentence in _doubts(found):
            say(sentence)
        say("Scoring other methods on the same rows and labels ...")
        scores = score_methods(table, scored, found.clusters, found.n_clusters, baseline, config.seed)
        confidence = found.probabilities()[np.arange(len(table)), found.clusters]
        flat = rows.reshape(len(rows), -1)
        suspects = Suspects(suspect_labels(found, table.class_names, flat), suspect_pairs(found, flat))
        metrics = make_metrics(table, module, named, suspects, confidence, scored, scores, trained - started)
        for sentence in metrics["remarks"]:
            say(sentence)
        run = Run(
            folder,
            module,
            embeddings,
            found.clusters.astype(np.int64),
            named.names,
            confidence,
            found.novelty(),
            found.hierarchy,
            metrics,
            settings,
            known,
        )
        described = describe_clusters(table, run.clusters, run.names, embeddings)
        labels = [table.class_names[label] if label >= 0 else "" for label in knowledge.labels]
        save_run(run, labels, table.row_names, described, suspects)
        if report:
            say("Drawing the report ...")
            write_run_report(run, table, found, truth, described, suspects, title, time.perf_counter() - started)
        write_manifest(folder)
        return run


def _doubts(found: Partition) -> list[str]:
    """What to say about soft pairs and labels that the clusters do not agree with."""
    given = found.knowledge.given
    if given is None:
        return []
    doubted, n = found.knowledge.violated(found.clusters), int((~np.isinf(given.statements().weight)).sum())
    if not doubted:
        return [f"The clusters agree with all {n:,} pairs that might have been wrong."]
    examples = listed([f"{each.kind} {each.pair[0]} {each.pair[1]}" for each in doubted], most=3)
    return [f"{len(doubted):,} of {n:,} pairs that may be wrong look wrong, the surest first: {examples}."]


def _train_baseline(table: Table, config: training.TrainingConfig, knowledge: Knowledge) -> training.ForestModule:
    """The same network, trained with cross-entropy on the same labels."""
    changes: dict[str, Any] = {
        "objective": "cross-entropy",
        "n_clusters": len(table.class_names),
        "patience": None,
        "neighbours": 0,  # pairs of rows, which cross-entropy cannot use
    }
    config = with_own_backbone(dataclasses.replace(config, **changes))
    return training.fit(config, table.features, knowledge.labels, progress=False)


def _choose_scored(
    knowledge: Knowledge, truth: NDArray[np.int64] | None, holdout: float | NDArray[np.bool_], seed: int
) -> tuple[Knowledge, NDArray[np.int64]]:
    """What training and clustering are told, and (n,) the classes to score by, -1 where a row is not scored."""
    if truth is not None:  # all rows are scored that have no label; else those whose labels are held out
        return knowledge, np.where(knowledge.labels >= 0, -1, truth)
    if isinstance(holdout, np.ndarray):
        return knowledge.forget(holdout), np.where(holdout, knowledge.labels, -1)
    return hold_out(knowledge, holdout, seed)


def hold_out(knowledge: Knowledge, share: float, seed: int) -> tuple[Knowledge, NDArray[np.int64]]:
    """The knowledge without a share of the labels of each class, and (n,) these labels, -1 elsewhere."""
    if not 0 <= share <= 1:
        raise ValueError(f"holdout must be from 0 to 1, a share of the labels of each class, got {share}.")
    held_out = np.full(knowledge.n_points, -1, np.int64)
    rng = np.random.default_rng(seed)
    for label in np.unique(knowledge.labels[knowledge.labels >= 0]):
        rows = np.flatnonzero(knowledge.labels == label)
        held_out[rng.choice(rows, int(share * len(rows)), replace=False)] = label
    return (knowledge.forget(held_out >= 0) if (held_out >= 0).any() else knowledge), held_out


def _fingerprint(table: Table, knowledge: Knowledge) -> str:
    """A hash of the data and of all that is known about it. A run is resumed only with the same."""
    digest = hashlib.sha256(repr((table.features.shape, str(table.features.dtype))).encode())
    soft = (knowledge.must_link, knowledge.cannot_link, *knowledge.weights) if knowledge.is_soft else ()
    for array in (table.features, knowledge.group, knowledge.apart, *soft):
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()
