"""Going on from an earlier run: what it was told, and the names, numbers and colours of its clusters."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust.answers import Answers
from diffclust.continuation import continue_clusters, continue_colours, row_keys
from diffclust.knowledge import Knowledge
from diffclust.labels import UNKNOWN_NAMES
from diffclust.partition import Partition
from diffclust.runs.results import Known, Run
from diffclust.tables import Table
from diffclust.tables.known import label_text

Pairs = list[tuple[int, int]]


class RefitInput(NamedTuple):
    """What a run that goes on from another one is told."""

    table: Table
    must_link: Pairs
    cannot_link: Pairs
    held_out: NDArray[np.bool_]  # (n,) rows whose labels are kept for scoring, as they were before
    must_weights: NDArray[np.float64]  # of the last must-links, those of the run; those of answers have none
    cannot_weights: NDArray[np.float64]
    label_weights: NDArray[np.float64]  # (n,) inf where a label is hard


def refit_input(table: Table, run: Run | None, answers: Answers, drop_suspects: bool = False) -> RefitInput:
    """The labels and pairs of a table, of an earlier run and of answers together.

    An answer counts before a label of the table, and that before one of the run; "unknown" takes a label back. Rows of
    the run that are not in the table are forgotten. A label of the table that is the same as the run's has its weight,
    too.

    Args:
        table: the rows.
        run: the earlier run; None has none.
        answers: what a person said.
        drop_suspects: leave out the labels that look wrong in the earlier run, unless an answer confirms them.

    Returns:
        The table with all labels, and the rest of what to tell :func:`fit_run`.
    """
    names = [table.class_names[label] if label >= 0 else "" for label in table.labels]
    held_out, label_weights = np.zeros(len(table), bool), np.full(len(table), np.inf)
    must_link, cannot_link = list(answers.must_link), list(answers.cannot_link)
    must_weights = cannot_weights = np.empty(0)
    if run is not None:
        known = run.known
        matches = record_known(table).matches(known)
        soft = {int(row): weight for row, _, weight in known.soft_labels.tolist()}
        before = np.maximum(known.labels, known.held_out)
        before[list(soft)] = known.soft_labels[:, 1]  # those that were not believed, too
        wrong = {suspect["row"] for suspect in run.metrics.get("suspects", ())} if drop_suspects else set()
        for row, old in enumerate(matches.tolist()):
            if old in wrong:
                names[row] = ""
            elif old >= 0 and before[old] >= 0:
                given = run.settings["class_names"][before[old]]
                names[row] = names[row] or given
                label_weights[row] = soft.get(old, np.inf) if names[row] == given else np.inf
                held_out[row] = known.held_out[old] >= 0
        more_must, must_weights = _pairs_still_present(known.must_link, known.soft_must, matches)
        more_cannot, cannot_weights = _pairs_still_present(known.cannot_link, known.soft_cannot, matches)
        must_link, cannot_link = must_link + more_must, cannot_link + more_cannot
    for row, name in answers.labels.items():
        given = label_text(name)
        names[row] = "" if given.lower() in UNKNOWN_NAMES else given
        held_out[row], label_weights[row] = False, np.inf
    classes = [*table.class_names, *sorted(set(names) - {"", *table.class_names})]
    number = {name: position for position, name in enumerate(classes)} | {"": -1}
    labels = np.array([number[name] for name in names], np.int64)
    told = dataclasses.replace(table, labels=labels, class_names=classes)
    return RefitInput(told, must_link, cannot_link, held_out, must_weights, cannot_weights, label_weights)


def _pairs_still_present(
    pairs: NDArray[np.int64], soft: NDArray[np.float64], matches: NDArray[np.int64]
) -> tuple[Pairs, NDArray[np.float64]]:
    """Pairs of old rows as pairs of rows, and their weights, without pairs that have lost a row."""
    now = {old: row for row, old in enumerate(matches.tolist()) if old >= 0}
    weights = {(int(i), int(j)): weight for i, j, weight in soft.tolist()}
    weights |= {(i, j): np.inf for i, j in pairs.tolist() if (i, j) not in weights}
    found = {(now[i], now[j]): weight for (i, j), weight in weights.items() if i in now and j in now}
    return list(found), np.array(list(found.values()))


def record_known(
    table: Table,
    knowledge: Knowledge | None = None,
    held_out: NDArray[np.int64] | None = None,
    told: Knowledge | None = None,
) -> Known:
    """What a run was told, with the weights of ``told``, what was known before it was decided what to believe."""
    nothing = np.full(len(table), -1, np.int64)
    knowledge = Knowledge.join(nothing) if knowledge is None else knowledge
    told = knowledge if told is None else told
    of_rows = np.stack([np.arange(len(table)), told.labels], axis=1)
    said = zip((told.must_link, told.cannot_link, of_rows), told.weights, strict=True)
    return Known(
        knowledge.labels,
        nothing if held_out is None else held_out,
        knowledge.must_link,
        knowledge.cannot_link,
        row_keys(table.features),
        np.array(table.row_names or [], str),
        *(np.column_stack([pairs, weights])[~np.isinf(weights)] for pairs, weights in said),
    )


class Named(NamedTuple):
    """Clusters with names and colours; ``sentences`` say what became of those of an earlier run."""

    partition: Partition
    names: list[str]
    colours: list[int]
    sentences: list[str]


def name_clusters(found: Partition, class_names: list[str], known: Known, like: Run | None) -> Named:
    """Names and colours for clusters: those of the clusters of an earlier run that they continue."""
    if like is None:
        return Named(found, found.names(class_names), list(range(found.n_clusters)), [])
    matches = known.matches(like.known)
    if (matches < 0).all():
        raise ValueError(f"No row of the data is in {like.folder}: names of its clusters cannot be kept.")
    old = np.where(matches >= 0, like.clusters[matches], -1)
    found = found.like(old)
    continuation = continue_clusters(found.clusters, old)
    names = continuation.names(found.names(class_names), found.classes, like.names)
    old_colours = like.metrics["cluster_colours"]
    colours = continue_colours(continuation.continues, old_colours)
    return Named(found, names, colours, continuation.sentences(like.names, names))
