"""The figures of the experiments, as PNG files. Colours are those of Okabe and Ito, for the colour-blind."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from PIL import Image

from diffclust.files import write_atomically

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000", "#8C564B", "#7F7F7F")
MUTED, INK, GRID = "#D3D3D3", "#333333", "#E6E6E6"
MAP_POINTS = 3000  # t-SNE of more takes long and shows no more


def save(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Writes a PNG with a palette of 128 colours: a third of the size, and it looks the same."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(packed, format="png", optimize=True)
    write_atomically(path, packed.getvalue())


def clusters_figure(
    points: Sequence[NDArray[Any]], clusters: Sequence[Mapping[str, NDArray[Any]]], notes: Sequence[Mapping[str, str]],
    names: Sequence[str], path: Path,
) -> None:  # fmt: skip
    """A row for each data set, a column for each method; a note stands in the corner of its panel."""
    methods = list(clusters[0])
    shape = (len(points), len(methods))
    figure = Figure(figsize=(1.75 * shape[1], 1.75 * shape[0]), layout="constrained")
    axes = figure.subplots(*shape, squeeze=False)
    for row, (x, found) in enumerate(zip(points, clusters, strict=True)):
        for column, method in enumerate(methods):
            axis = axes[row, column]
            axis.scatter(*x.T, c=_colours(x, found[method]), s=4, linewidths=0)
            axis.set(xticks=[], yticks=[], box_aspect=1)
            axis.margins(0.12)
            axis.spines[:].set_color(MUTED)
            axis.text(
                0.97, 0.03, notes[row][method], transform=axis.transAxes, ha="right", fontsize=8, color=INK,
                bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
            )  # fmt: skip
            if row == 0:
                axis.set_title(method, fontsize=10, color=INK)
        axes[row, 0].set_ylabel(names[row], fontsize=10, color=INK)
    save(figure, path)


def _colours(x: NDArray[Any], clusters: NDArray[Any]) -> list[str]:
    """Colours by position from left to right, so that clusters at the same place look the same in all panels."""
    names, number = np.unique(clusters, return_inverse=True)
    rank = np.argsort(np.argsort([x[clusters == name, 0].mean() for name in names]))
    return [COLOURS[rank[each] % len(COLOURS)] for each in number]


def matrices_figure(
    matrices: Mapping[str, NDArray[Any]], theta: NDArray[Any], path: Path, theta_title: str = "θ after training"
) -> None:
    """Connectivity matrices side by side, points in the order of their true clusters, and a (d, 2) map with numbers."""
    figure = Figure(figsize=(2.5 * len(matrices) + 1.9, 2.9), layout="constrained")
    axes = figure.subplots(1, len(matrices) + 1, width_ratios=[1] * len(matrices) + [0.6])
    for axis, (title, matrix) in zip(axes[:-1], matrices.items(), strict=True):
        axis.imshow(np.asarray(matrix), cmap="Blues", vmin=0, vmax=1.3, interpolation="nearest")
        axis.set_title(title, fontsize=10, color=INK)
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_color(MUTED)
    largest = np.abs(theta).max()
    axis = axes[-1]
    axis.imshow(theta, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
    axis.set_box_aspect(1 / 0.6)  # as high as the others
    for (i, j), value in np.ndenumerate(theta):
        ink = "white" if abs(value) > 0.6 * largest else INK
        axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=9, color=ink)
    axis.set_title(theta_title, fontsize=10, color=INK)
    rows = ["signal 1", "signal 2", *(f"noise {i}" for i in range(1, len(theta) - 1))]
    axis.set_xticks([])
    axis.set_yticks(range(len(theta)), rows, fontsize=9, color=INK)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    save(figure, path)


# ------------------------------------------------------------------------------------------------------------------
# Images


PANELS = {"error": "clustering error", "probe_error": "error of a linear probe", "ari": "ARI"}
METHODS = {"forest": ("ours", "-"), "cross-entropy": ("cross-entropy", "--")}


def grid_figure(table: Sequence[Mapping[str, Any]], path: Path, with_ari: bool = False, title: str = "") -> None:
    """Errors against the number of labels, for each number of withheld classes: mean and standard deviation.

    Args:
        table: a row for each model: n_labels, withheld, method ("forest" or "cross-entropy"), seed, error, probe_error
            and ari. A value that is missing or None is left out.
    """
    panels = [name for name in PANELS if with_ari or name != "ari"]
    figure = Figure(figsize=(4.2 * len(panels), 3.7), layout="constrained")
    withheld = sorted({row["withheld"] for row in table})
    numbers = sorted({row["n_labels"] for row in table})
    for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for colour, hidden in zip(COLOURS, withheld, strict=False):
            for method, (_, style) in METHODS.items():
                rows = [row for row in table if row["withheld"] == hidden and row["method"] == method]
                _curve(axis, rows, panel, colour, style)
        axis.set_xscale("log")
        axis.set_xticks(numbers, [f"{number:,}" for number in numbers], fontsize=8)
        axis.minorticks_off()
        axis.set_xlabel("number of labels", color=INK)
        axis.set_title(PANELS[panel], fontsize=11, color=INK)
        axis.set_ylim(bottom=min(0, axis.get_ylim()[0]) if panel == "ari" else 0)
        axis.grid(color=GRID, linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8, color=MUTED)
    keys = [
        Line2D([], [], color=colour, linewidth=2, label=f"{hidden} classes withheld" if hidden else "no class withheld")
        for colour, hidden in zip(COLOURS, withheld, strict=False)
    ]
    present = {row["method"] for row in table}
    for method, (label, style) in METHODS.items():
        if method in present:
            keys.append(Line2D([], [], color=INK, linestyle=style, label=label))  # type: ignore[arg-type]
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False, fontsize=9)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    save(figure, path)


def _curve(axis: Axes, rows: Sequence[Mapping[str, Any]], value: str, colour: str, style: str) -> None:
    found: dict[int, list[float]] = {}
    for row in rows:
        if row.get(value) is not None:
            found.setdefault(row["n_labels"], []).append(row[value])
    if not found:
        return
    x = sorted(found)
    mean = np.array([np.mean(found[each]) for each in x])
    spread = np.array([np.std(found[each]) for each in x])
    axis.plot(x, mean, style, color=colour, linewidth=1.8, marker="o", markersize=3.5)
    axis.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)


def curves_figure(curves: Mapping[str, Sequence[Sequence[float]]], path: Path) -> None:
    """Losses against steps; with more curves than colours they are not named."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axis = figure.subplots()
    named = len(curves) <= len(COLOURS)
    for position, (name, curve) in enumerate(curves.items()):
        steps, losses = np.array(curve).T
        axis.plot(
            steps, losses, color=COLOURS[position] if named else MUTED, linewidth=1, label=name if named else None
        )
    axis.set_xlabel("step", color=INK)
    axis.set_ylabel("loss", color=INK)
    axis.set_yscale("symlog", linthresh=0.01)
    axis.spines[["top", "right"]].set_visible(False)
    if named:
        axis.legend(frameon=False, fontsize=7)
    save(figure, path)


def tsne_figure(
    embeddings: NDArray[Any], labels: NDArray[Any], highlighted_classes: Sequence[int], path: Path, title: str = "",
    class_names: Sequence[str] | None = None, seed: int = 0,
) -> None:  # fmt: skip
    """A t-SNE map of at most 3,000 points: highlighted classes in colour, the others muted; all named at their centres.

    With no highlighted class, every class has a colour.
    """
    from sklearn.manifold import TSNE

    rows = np.arange(len(labels))
    if len(rows) > MAP_POINTS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, MAP_POINTS, replace=False))
    labels = np.asarray(labels)[rows]
    points = np.asarray(embeddings, np.float32)[rows]
    place = TSNE(init="pca", perplexity=min(30, (len(rows) - 1) / 3), random_state=seed).fit_transform(points)
    classes = np.unique(labels).tolist()
    coloured = dict(zip(sorted(highlighted_classes) or classes, COLOURS, strict=False))
    figure = Figure(figsize=(4.6, 4.6), layout="constrained")
    axis = figure.subplots()
    for label in sorted(classes, key=lambda label: label in coloured):  # the muted ones first, below
        here = place[labels == label]
        axis.scatter(here[:, 0], here[:, 1], s=5, linewidths=0, color=coloured.get(label, MUTED))
    for label in classes:
        strong = label in coloured
        axis.annotate(
            str(label) if class_names is None else class_names[label], np.median(place[labels == label], axis=0),
            ha="center", va="center", fontsize=11 if strong else 9, weight="bold" if strong else "normal", color=INK,
            bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "alpha": 0.85,
                  "edgecolor": coloured.get(label, MUTED)},
        )  # fmt: skip
    axis.set(xticks=[], yticks=[], aspect="equal")
    axis.spines[:].set_visible(False)
    if title:
        axis.set_title(title, fontsize=11, color=INK)
    save(figure, path)
