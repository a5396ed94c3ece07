"""The input of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.evidence import Evidence
from diffclust.forest import Hierarchy
from diffclust.mistakes import Suspect
from diffclust.suggestions import PairQuestion, RowQuestion

MOST_GROUPS = 36  # as many as the page has colours


@dataclass(frozen=True)
class Asked:
    """Questions of a run, for the reader of its report.

    Attributes:
        rows, pairs: of :func:`diffclust.suggest`.
        suspects: labels that look wrong, see :mod:`diffclust.mistakes`.
        facts: by row number, names and values to judge the row by.
        command: how to go on with the answers.
    """

    rows: Sequence[RowQuestion] = ()
    pairs: Sequence[PairQuestion] = ()
    suspects: Sequence[Suspect] = ()
    facts: Mapping[int, Sequence[tuple[str, str]]] = field(default_factory=dict)
    command: str = ""

    def all_rows(self) -> list[int]:
        """The numbers of all rows that the questions are about."""
        questions: list[Any] = [*self.rows, *self.pairs, *self.suspects]
        return sorted({each.row for each in questions} | {each.other for each in self.pairs})


@dataclass(frozen=True, eq=False)
class ReportData:
    """A finished run.

    Attributes:
        raw: (n, d) features, or images, (n, H, W) or (n, H, W, C): then the page shows them.
        embeddings: (n, e), learned.
        hierarchy: of the embeddings, constrained or not; the page cuts it at every k.
        clusters: (n,) the clustering with ``n_clusters`` and ``min_cluster_size``, numbered from 0.
        confidence: (n,) from 0 to 1: the probability that a row is in its cluster.
        known: (n,) class codes that the training was given, -1 unknown.
        truth: (n,) all class codes where they are known afterwards, else None. A class that is in ``truth`` and never
            in ``known`` was withheld, and the page marks it.
        class_names: of the class codes.
        curves: name -> [(step, value), ...].
        scores: rows of the table, {"method": name, "ours": True or False, "error": ..., "ari": ..., ...}. Titles of
            columns, and whether large or small is best, are in :data:`diffclust.metrics.SCORES`.
        scored_rows: number of rows that the scores cover; None shows no number.
        facts: settings, seed, times, versions, by name.
        row_names: names to show for the rows; None shows their numbers.
        how_to_load: Python code that loads the run.
        headline: sentences that say what the scores cover.
        warnings: sentences about clusters to look at.
        evidence: how the cut and the number of clusters were chosen; None says nothing about it.
        reliability: how often rows of about the same confidence are right, see
            :func:`diffclust.runs.summary.reliability`; None where no row was scored.
        described: what is in each cluster, see :func:`diffclust.runs.describe.describe_clusters`.
        reading: sentences about how the data became numbers.
        groupings: by name, (n,) texts: other columns that can be shown as colours. Those with more than
            :data:`MOST_GROUPS` different values are not.
        cluster_names: of the run's clusters, by number. Without them, those that hold no labels are "new 1", "new 2", …
        cluster_colours: the colour number of each of the run's clusters, by default its own number.
        asked: what to label next, and labels that look wrong.
    """

    title: str
    raw: NDArray[Any]
    embeddings: NDArray[Any]
    hierarchy: Hierarchy
    n_clusters: int
    min_cluster_size: int
    clusters: NDArray[Any]
    confidence: NDArray[Any]
    known: NDArray[Any]
    truth: NDArray[Any] | None
    class_names: list[str]
    curves: dict[str, list[tuple[int, float]]]
    scores: list[dict[str, Any]]
    facts: dict[str, str]
    row_names: list[str] | None
    how_to_load: str = ""
    scored_rows: int | None = None
    headline: Sequence[str] = ()
    warnings: Sequence[str] = ()
    evidence: Evidence | None = None
    reliability: dict[str, Any] | None = None
    described: Sequence[dict[str, Any]] = ()
    reading: Sequence[str] = ()
    groupings: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    cluster_names: Sequence[str] = ()
    cluster_colours: Sequence[int] = ()
    asked: Asked = field(default_factory=lambda: Asked())

    def __post_init__(self) -> None:
        n = self.hierarchy.n_points
        for name in ("raw", "embeddings", "clusters", "confidence", "known", "truth", "row_names"):
            value = getattr(self, name)
            if value is not None and len(value) != n:
                raise ValueError(
                    f"{name} must have one entry for each of the hierarchy's {n} points, got {len(value)}."
                )
        if np.ndim(self.raw) not in (2, 3, 4) or np.ndim(self.embeddings) != 2:
            raise ValueError(
                "raw must have shape (n, d), (n, H, W) or (n, H, W, C), and embeddings (n, e), got "
                f"{np.shape(self.raw)} and {np.shape(self.embeddings)}."
            )

    @property
    def has_images(self) -> bool:
        """Whether rows are images."""
        return np.ndim(self.raw) > 2

    def class_name(self, code: int) -> str:
        """The name of a class code, or the code where it has none."""
        return str(self.class_names[code]) if 0 <= code < len(self.class_names) else str(code)

    def class_codes(self) -> list[int]:
        """The codes of all classes that occur in ``known`` or ``truth``, in order."""
        codes = np.asarray(self.known) if self.truth is None else np.concatenate([self.known, self.truth])
        return [int(code) for code in np.unique(codes) if code >= 0]

    def withheld(self) -> list[int]:
        """The codes of classes that were never labelled; none if no class was."""
        labelled = set(np.unique(self.known).tolist()) - {-1}
        return [code for code in self.class_codes() if code not in labelled] if labelled else []
