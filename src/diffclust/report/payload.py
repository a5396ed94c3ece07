"""What the page draws: numbers, names and packed arrays, ready for JSON."""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.constraints import Constraints
from diffclust.evidence import Evidence
from diffclust.metrics import SCORES, Score
from diffclust.report.data import MOST_GROUPS, ReportData
from diffclust.report.images import sprite_sheet
from diffclust.report.maps import positions
from diffclust.report.rows import choose_rows, edges_between
from diffclust.report.slider import Cuts, cut, guards, renumber, slider_range
from diffclust.similarity import negative_squared_distances
from diffclust.stability import soft_connectivity

MOST_SHOWN = 2000  # points on a map, at most
MATRIX_ROWS = 240  # rows of the connectivity matrix, at most
CURVE_POINTS = 400  # points of a curve, about
EPSILON, DRAWS = 0.1, 100  # of the connectivity matrix


def make_payload(data: ReportData) -> dict[str, Any]:
    """The data of the page, as its script reads them."""
    clusters, known = np.asarray(data.clusters), np.asarray(data.known)
    confidence = np.clip(np.nan_to_num(np.asarray(data.confidence, np.float64)), 0, 1)
    first, last = slider_range(data.hierarchy, data.n_clusters)
    cuts = [
        renumber(cut(data.hierarchy, guard, first, last), clusters, data.n_clusters)
        for guard in guards(len(clusters), data.min_cluster_size)
    ]
    rows = choose_rows(MOST_SHOWN, clusters, known >= 0, [c.finest for c in cuts], data.asked.all_rows())
    edges, must_link = edges_between(data.hierarchy, rows)
    learned, learned_how = positions(data.embeddings[rows])
    raw, raw_how = positions(data.raw[rows], standardise=not data.has_images)
    codes = data.class_codes()
    known_class = _positions_in(codes, known)
    true_class = None if data.truth is None else _positions_in(codes, np.asarray(data.truth))
    return {
        "title": data.title,
        "nRows": len(clusters),
        "nClusters": data.n_clusters,
        "guard": data.min_cluster_size,
        "slider": [first, last],
        "rows": {
            "row": pack(rows, "i4"),
            "name": None if data.row_names is None else [str(data.row_names[row]) for row in rows],
            "confidence": pack(confidence[rows], "f4"),
            "known": pack(known_class[rows], "i4"),
            "truth": None if true_class is None else pack(true_class[rows], "i4"),
        },
        "maps": [
            {"title": "Learned embedding", "xy": pack(learned, "f4"), "how": learned_how},
            {"title": "Raw data", "xy": pack(raw, "f4"), "how": raw_how},
        ],
        "edges": pack(edges, "i4"),
        "mustLink": pack(must_link, "i4"),
        "images": sprite_sheet(np.asarray(data.raw[rows])) if data.has_images else None,
        "classes": [{"name": data.class_name(code), "withheld": code in data.withheld()} for code in codes],
        "cuts": [_describe(c, rows, confidence, known_class, true_class, len(codes)) for c in cuts],
        "matrix": _matrix(data, rows, clusters, known),
        "curves": _curves(data.curves),
        "scores": _scores(data.scores),
        "scoredRows": data.scored_rows,
        "headline": list(data.headline),
        "warnings": list(data.warnings),
        "made": None if data.evidence is None else _how_made(data.evidence, known),
        "reliability": data.reliability,
        "described": [_described(cluster) for cluster in data.described],
        "reading": list(data.reading),
        "groupings": _groupings(data, rows),
        "names": list(data.cluster_names),
        "colours": _colours(data.cluster_colours, cuts),
        "asked": _asked(data, rows),
        "sure": {"mean": float(confidence.mean()), "share": float((confidence >= 0.9).mean())},
        "labelled": int((known >= 0).sum()),
        "facts": [[str(name), str(value)] for name, value in data.facts.items()],
        "howToLoad": data.how_to_load,
    }


def pack(array: Any, dtype: str) -> dict[str, str]:
    """A flat little-endian array, in base64."""
    return {"type": dtype, "data": base64.b64encode(np.ascontiguousarray(array, "<" + dtype).tobytes()).decode()}


def finite(value: Any) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(value) if math.isfinite(value) else None


def _positions_in(codes: list[int], values: NDArray[Any]) -> NDArray[np.int64]:
    """The positions of class codes in the list of classes; -1 stays -1."""
    if not codes:
        return np.full(len(values), -1)
    return np.where(values >= 0, np.searchsorted(codes, values), -1)


def _describe(
    cuts: Cuts, rows: NDArray[np.int64], confidence: NDArray[np.float64], known: NDArray[np.int64],
    truth: NDArray[np.int64] | None, n_classes: int,
) -> dict[str, Any]:  # fmt: skip
    """One size guard: how its clusterings arise, and what is in the finest clusters, over all rows of the data."""
    size = int(cuts.finest.max()) + 1
    return {
        "guard": cuts.guard,
        "lowest": cuts.lowest,
        "highest": cuts.highest,
        "first": cuts.first,
        "last": cuts.last,
        "splits": [[split.child, split.parent, finite(split.height)] for split in cuts.splits],
        "finest": pack(cuts.finest[rows], "i4"),
        "size": np.bincount(cuts.finest, minlength=size).tolist(),
        "confidence": np.bincount(cuts.finest, confidence, size).round(4).tolist(),
        "known": _counts(cuts.finest, known, n_classes),
        "truth": None if truth is None else _counts(cuts.finest, truth, n_classes),
    }


def _counts(clusters: NDArray[Any], classes: NDArray[np.int64], n_classes: int) -> list[list[int]]:
    """[cluster, class, number of rows] for all that occur together; class -1 does not count."""
    cells = clusters.astype(np.int64) * n_classes + classes
    found, numbers = np.unique(cells[classes >= 0], return_counts=True)
    return [[int(c // n_classes), int(c % n_classes), int(m)] for c, m in zip(found, numbers, strict=True)]


def _matrix(data: ReportData, shown: NDArray[np.int64], clusters: NDArray[Any], known: NDArray[Any]) -> dict[str, Any]:
    """Soft connectivity of some of the shown rows. Rows are ordered by cluster, then so that similar ones are close."""
    picked = choose_rows(MATRIX_ROWS, clusters[shown], np.zeros(len(shown), bool))
    rows = shown[picked]
    guard = max(1, data.min_cluster_size * len(rows) // len(clusters))
    labels = known[rows]
    constraints = Constraints.from_labels(labels) if data.hierarchy.n_fixed and (labels >= 0).any() else None
    n_clusters = min(data.n_clusters, len(rows))
    shares = soft_connectivity(
        negative_squared_distances(np.asarray(data.embeddings[rows], np.float64)), n_clusters, min_cluster_size=guard,
        constraints=constraints, epsilon=EPSILON, n_draws=DRAWS,
    )  # fmt: skip
    order = _order_rows(shares, clusters[rows])
    return {
        "shown": pack(picked[order], "i4"),
        "percent": pack((shares * 100).round()[np.ix_(order, order)], "u1"),
        "cluster": pack(clusters[rows][order], "i4"),
        "epsilon": EPSILON,
        "draws": DRAWS,
    }


def _order_rows(shares: NDArray[np.float64], clusters: NDArray[Any]) -> NDArray[np.int64]:
    """An order by cluster; within a cluster, rows that are often together are close."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(shares) < 3:
        return np.argsort(clusters, kind="stable")
    leaves = leaves_list(linkage(squareform(1 - shares, checks=False), "average"))
    return leaves[np.argsort(clusters[leaves], kind="stable")]


def _curves(curves: dict[str, list[tuple[int, float]]]) -> list[dict[str, Any]]:
    found = []
    for name, points in curves.items():
        step = max(1, math.ceil(len(points) / CURVE_POINTS))
        kept = [*points[:-1:step], *points[-1:]]
        if kept:
            found.append({"name": name, "x": [int(x) for x, _ in kept], "y": [finite(y) for _, y in kept]})
    return found


def _scores(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """The table of scores: its columns, with a title and which value is best, and a row for each method."""
    columns = {name: score for name, score in SCORES.items() if any(name in row for row in scores)}
    return {
        "columns": [{"name": name, "title": _title(score), "best": score.best} for name, score in columns.items()],
        "rows": [
            {
                "method": row["method"],
                "ours": row["ours"],
                "values": [finite(row.get(name, math.nan)) for name in columns],
            }
            for row in scores
        ],
    }


def _title(score: Score) -> str:
    return f"{score.title[0].upper()}{score.title[1:]} {'↓' if score.best == 'min' else '↑'}"


def _how_made(evidence: Evidence, known: NDArray[np.int64]) -> dict[str, Any]:
    """How the clusters were made: the cuts that were compared, and the numbers of clusters."""
    one_class = len(np.unique(known[known >= 0])) == 1  # no class was hidden, and no ARI of labels was taken
    names = list(dict.fromkeys([*evidence.scores, *evidence.agreement]))
    return {
        "cut": evidence.cut,
        "cuts": [
            {
                "name": name,
                "score": evidence.scores.get(name),
                "agreement": evidence.agreement.get(name),
                "novelty": evidence.novelty.get(name),
            }
            for name in names
        ],
        "newClasses": evidence.new_classes,
        "calibrated": evidence.n_hidden > 0,
        "oneClass": one_class,
        "candidates": [] if one_class else [[k, evidence.candidates[k]] for k in sorted(evidence.candidates)],
        "interval": None if evidence.interval is None else list(evidence.interval),
    }


def _described(cluster: dict[str, Any]) -> dict[str, Any]:
    """A cluster of ``clusters.json`` in texts."""
    return {
        "cluster": cluster["cluster"],
        "telling": [[each["column"], each["text"].removeprefix(f"{each['column']}: ")] for each in cluster["telling"]],
        "typical": [each.get("text") or each["id"] or f"row {each['row']}" for each in cluster["typical"]],
    }


def _colours(given: Sequence[int], cuts: list[Cuts]) -> list[int]:
    """The colour number of each cluster that the sliders can make: those given first, then such as no cluster has."""
    n_more = max(int(each.finest.max()) + 1 for each in cuts) - len(given)
    free = (colour for colour in itertools.count() if colour not in set(given))
    return [*map(int, given), *itertools.islice(free, max(0, n_more))]


def _asked(data: ReportData, rows: NDArray[np.int64]) -> dict[str, Any]:
    """The questions, in which rows are their positions among those that are shown."""
    place = {row: position for position, row in enumerate(rows.tolist())}
    asked = data.asked
    labelled = [data.class_name(code) for code in data.class_codes() if code not in data.withheld()]
    return {
        "rows": [
            {"at": place[each.row], "why": f"In {each.cluster}, {each.confidence:.0%} sure: {each.why}."}
            for each in asked.rows
        ],
        "pairs": [{"at": place[each.row], "other": place[each.other], "why": each.why} for each in asked.pairs],
        "suspects": [{"at": place[each.row], "why": each.why} for each in asked.suspects],
        "facts": {str(row): [[name, value] for name, value in facts] for row, facts in asked.facts.items()},
        "classes": labelled,
        "command": asked.command,
    }


def _groupings(data: ReportData, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Other columns to colour by: the names and sizes of their groups, and the group of each shown row."""
    found = []
    for name, values in data.groupings.items():
        groups, codes, sizes = np.unique(np.asarray(values, str), return_inverse=True, return_counts=True)
        if 1 < len(groups) <= MOST_GROUPS:
            found.append(
                {"name": str(name), "groups": groups.tolist(), "sizes": sizes.tolist(), "code": pack(codes[rows], "i4")}
            )
    return found
