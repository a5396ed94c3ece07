"""The experiments on images: one network for every cell of (labels, withheld classes, method, seed).

``side_by_side`` cells are trained at a time, and scored in other processes meanwhile. Each finished cell has a file of
its own, and training writes checkpoints, so an interrupted run continues where it stopped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from diffclust.training import LAST, ForestModule, TrainingConfig, embed, fit, fit_many, load, save, torchrun_settings
from experiments import data, evaluation
from experiments.figures import curves_figure, grid_figure, tsne_figure
from experiments.recipes import Recipe, is_first_rank, over_seeds, part, recipe, write_csv

N_CLASSES, EVALUATION_BATCH = 10, 64


class Cell(NamedTuple):
    n_labels: int  # 0: all
    withheld: int  # classes 0, 1, ... are never labelled
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}-labels{self.n_labels or 'all'}-withheld{self.withheld}-seed{self.seed}"


PAPER = TrainingConfig(
    n_clusters=N_CLASSES,
    backbone="experiments.networks:lenet",
    batch_size=64,
    labelled_fraction=0.5,
    least_labels=1,
    neighbours=0,
    epsilon=0.1,
    n_draws=100,
    must_link_first=True,
    n_steps=30_000,
    learning_rate=3e-4,
    weight_decay=1e-4,
    validate_every=500,
    monitor="val_error",
    patience=20,
)


@dataclasses.dataclass(frozen=True)
class ImageRecipe(Recipe):
    """Networks trained through the clustering, or with cross-entropy, where some classes have few or no labels."""

    seeds: tuple[int, ...] = (0, 1, 2)
    images: str = "mnist"
    data_dir: Path | None = None
    n_labels: tuple[int, ...] = (0,)
    withheld: tuple[int, ...] = (0,)
    methods: tuple[str, ...] = ("forest",)
    training: TrainingConfig = PAPER
    n_probe: int = 1000
    side_by_side: int = 36
    processes: int = 0
    figures: bool = True

    @classmethod
    def tiny(cls) -> Self:
        return cls(
            seeds=(0, 1),
            images="digits",
            n_labels=tuple(100 if each else 0 for each in cls.n_labels[:1]),
            withheld=cls.withheld[:2],
            training=dataclasses.replace(
                cls.training,
                backbone="cnn",
                n_steps=10,
                n_draws=10,
                validate_every=5,
                batch_size=64,
                precision="32-true",
                device="cpu",
                warmup_steps=0,
            ),
            n_probe=100,
            side_by_side=3,
            processes=1,
        )

    # ------------------------------------------------------------------------------------------------------- cells

    def cells(self) -> list[Cell]:
        """All cells, seed by seed, so that an interrupted run has finished whole seeds."""
        order = itertools.product(self.seeds, self.methods, self.n_labels, self.withheld)
        return [Cell(n_labels, withheld, method, seed) for seed, method, n_labels, withheld in order]

    def config(self, cell: Cell) -> TrainingConfig:
        """The training of a cell. Cross-entropy uses labelled rows only."""
        changes: dict[str, Any] = {"seed": cell.seed, "objective": cell.method, **torchrun_settings()}
        if cell.method != "forest":
            changes |= {"labelled_fraction": 1.0, "views": 1}
        return dataclasses.replace(self.training, **changes)

    def labels(self, cell: Cell, y: NDArray[np.int64]) -> NDArray[np.int64]:
        return data.choose_labels(y, cell.n_labels or None, range(cell.withheld), cell.seed)[0]

    # --------------------------------------------------------------------------------------------------------- run

    def run(self, folder: Path) -> dict[str, Any]:
        validate = self.training.patience is not None
        parts = data.split(data.load(self.images, self.data_dir), self.n_probe, validate)
        missing = [cell for cell in self.cells() if not _file(folder, cell).exists()]
        with other_processes(self.processes) as pool:
            waiting: list[tuple[Cell, dict[str, Any], Future[dict[str, Any]]]] = []
            for start in range(0, len(missing), self.side_by_side):
                for cell, trained, embedded in self._train(folder, missing[start : start + self.side_by_side], parts):
                    arguments = (*embedded, range(cell.withheld), len(self.cells()) <= 12)
                    score = pool.submit(score_cell, *arguments)
                    waiting.append((cell, trained, score))
            if not is_first_rank():
                return {}
            for cell, trained, score in waiting:
                part(_file(folder, cell), lambda a=trained, b=score: {**a, **b.result()})  # type: ignore[misc]
        for place in folder.glob("training-*"):
            shutil.rmtree(place)
        found = {cell: part(_file(folder, cell), dict) for cell in self.cells()}
        return self._report(folder, found, parts)

    def _train(
        self, folder: Path, cells: list[Cell], parts: data.Parts
    ) -> Iterator[tuple[Cell, dict[str, Any], tuple[Any, ...]]]:
        """Trains cells. On the first rank, gives each one's curves and the embeddings of probe and test images."""
        names = "\n".join(cell.name for cell in cells)
        place = folder / f"training-{hashlib.sha256(names.encode()).hexdigest()[:8]}"
        started = time.perf_counter()
        x, y = parts.training
        configs, labels = [self.config(cell) for cell in cells], [self.labels(cell, y) for cell in cells]
        if (configs[0].devices, configs[0].num_nodes) == (1, 1):
            modules = fit_many(
                configs,
                x,
                labels,
                validation=parts.validation,
                folder=place,
                resume=_last(place),
                progress=False,
                workers=max(0, min(6, (os.cpu_count() or 1) // 2 - 1)),
            )
        else:  # one after the other, each on all ranks
            places = [place / cell.name for cell in cells]
            modules = [
                fit(config, x, known, validation=parts.validation, folder=own, resume=_last(own), progress=False)
                for config, known, own in zip(configs, labels, places, strict=True)
            ]
        if not is_first_rank():
            return
        seconds = time.perf_counter() - started
        for cell, module in zip(cells, modules, strict=True):
            save(module, _file(folder, cell, "ckpt"))
            trained = {
                **cell._asdict(),
                "steps": len(module.loss_curve),
                "training_seconds": seconds,
                "beside": len(cells),
                "validations": module.validations,
                "loss": _thinned(module),
            }
            embedded = embed(module, parts.probe[0]), parts.probe[1], embed(module, parts.test[0]), parts.test[1]
            yield cell, trained, embedded

    # ------------------------------------------------------------------------------------------------------ report

    def _report(self, folder: Path, found: dict[Cell, dict[str, Any]], parts: data.Parts) -> dict[str, Any]:
        rows = [{**cell._asdict(), **_flat(result)} for cell, result in found.items()]
        write_csv(folder / "scores.csv", rows)
        steps = [{"cell": cell.name, **each} for cell, result in found.items() for each in result["validations"]]
        if steps:
            write_csv(folder / "validations.csv", steps)
        if self.figures:
            self._draw(folder, found, rows, parts)
        kinds = itertools.product(self.methods, self.n_labels, self.withheld)
        batches, whole = [], []
        for method, n_labels, withheld in kinds:
            chosen = [
                row for row in rows if (row["method"], row["n_labels"], row["withheld"]) == (method, n_labels, withheld)
            ]
            head = {"cell": f"{method}, {n_labels or 'all'} labels, {withheld} withheld"}
            means = {name: over_seeds(row[name] for row in chosen) for name in chosen[0] if name not in Cell._fields}
            batches.append({**head, **{k: means[k] for k in ("precision", "ari", "nmi", "accuracy", "probe_error")}})
            whole.append({**head, **{k.removeprefix("whole_"): v for k, v in means.items() if k.startswith("whole_")}})
        images = "the first half of the test images" if parts.validation else "all test images"
        return {
            "tables": {
                f"{self.images}, batches of {EVALUATION_BATCH} of {images}": batches,
                f"{self.images}, {images} at once": whole,
            },
            "cells": {cell.name: result for cell, result in found.items()},
        }

    def _draw(
        self, folder: Path, found: dict[Cell, dict[str, Any]], rows: list[dict[str, Any]], parts: data.Parts
    ) -> None:
        if len(self.n_labels) > 1:
            grid_figure(rows, folder / "grid.png", with_ari=True, title=self.images)
        curves_figure({cell.name: result["loss"] for cell, result in found.items()}, folder / "loss.png")
        cell = max(found, key=lambda each: (each.method == "forest", each.withheld == 3, each.n_labels, -each.seed))
        module = load(_file(folder, cell, "ckpt"), self.training.backbone)
        x, y = (each[:3000] for each in parts.test)
        tsne_figure(embed(module, x), y, range(cell.withheld), folder / "tsne.png")


def _file(folder: Path, cell: Cell, kind: str = "json") -> Path:
    """A cell's scores, or its network."""
    return folder / "cells" / f"{cell.name}.{kind}"


def _last(place: Path) -> Path | None:
    """The checkpoint to go on from, if there is one."""
    return place / LAST if (place / LAST).exists() else None


@contextmanager
def other_processes(n: int) -> Iterator[Executor]:
    """``n`` processes for scoring. They use no GPU and one thread each.

    0 is one process for each core but two. 1 is a thread of this process.
    """
    if n == 1:
        with ThreadPoolExecutor(1) as thread:
            yield thread
        return
    n = n or max(1, (os.cpu_count() or 1) - 2)
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    before = {name: os.environ.get(name) for name in single}
    os.environ.update(single)  # read when a process starts
    try:
        with ProcessPoolExecutor(n, mp_context=multiprocessing.get_context("spawn"), initializer=_no_gpu) as pool:
            yield pool
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _no_gpu() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def score_cell(
    probe_x: NDArray[Any], probe_y: NDArray[Any], x: NDArray[Any], y: NDArray[Any], hidden: Any, all_methods: bool
) -> dict[str, Any]:
    """Scores in batches, of the whole set, and of the linear probe."""
    started = time.perf_counter()
    methods = None if all_methods else ("forest", "k-means")
    return {
        "batches": evaluation.batch_scores(x, y, N_CLASSES, EVALUATION_BATCH),
        "whole": evaluation.whole_set_scores(x, y, N_CLASSES, hidden=list(hidden), methods=methods),
        "probe_error": evaluation.probe_error(probe_x, probe_y, x, y),
        "scoring_seconds": time.perf_counter() - started,
    }


def _flat(result: dict[str, Any]) -> dict[str, Any]:
    """One row of numbers: the scores in batches, of each method on the whole set, and of the probe."""
    row = {**result["batches"], "probe_error": result["probe_error"]}
    for method, scores in result["whole"].items():
        short = method.replace(" ", "_").replace("-", "")
        row |= {f"whole_{short}_{name}": scores["all"][name] for name in ("ari", "nmi", "accuracy")}
    return {**row, "steps": result["steps"], "seconds": result["training_seconds"], "beside": result["beside"]}


def _thinned(module: ForestModule, n_points: int = 200) -> list[list[float]]:
    """The loss curve as at most ``n_points`` pairs (step, mean loss since the previous one)."""
    curve = module.loss_curve
    parts = np.array_split(np.arange(len(curve)), min(n_points, len(curve)))
    return [[int(each[-1]) + 1, float(curve[each].mean())] for each in parts]


# ------------------------------------------------------------------------------------------------------------------
# The paper's

PAPER_CIFAR = dataclasses.replace(
    PAPER,
    backbone="experiments.networks:resnet50",
    n_steps=75_000,
    augment="shift-flip",
    precision="bf16-mixed",
)


@recipe("supervised-mnist")
@dataclasses.dataclass(frozen=True)
class SupervisedMnist(ImageRecipe):
    """MNIST with all labels, as in the paper."""


@recipe("supervised-fashion")
@dataclasses.dataclass(frozen=True)
class SupervisedFashion(ImageRecipe):
    """Fashion-MNIST with all labels, as in the paper."""

    images: str = "fashion_mnist"


@recipe("supervised-cifar10")
@dataclasses.dataclass(frozen=True)
class SupervisedCifar(ImageRecipe):
    """CIFAR-10 with all labels, ResNet-50, as in the paper."""

    seeds: tuple[int, ...] = (0,)
    images: str = "cifar10"
    training: TrainingConfig = PAPER_CIFAR
    side_by_side: int = 3


@recipe("semi-mnist")
@dataclasses.dataclass(frozen=True)
class SemiMnist(ImageRecipe):
    """MNIST with few labels and withheld classes, beside cross-entropy, as in the paper."""

    n_labels: tuple[int, ...] = (100, 250, 500, 1000, 2000, 5000)
    withheld: tuple[int, ...] = (0, 3, 6)
    methods: tuple[str, ...] = ("forest", "cross-entropy")


@recipe("semi-cifar10")
@dataclasses.dataclass(frozen=True)
class SemiCifar(SupervisedCifar):
    """CIFAR-10 with few labels and withheld classes, beside cross-entropy, as in the paper."""

    seeds: tuple[int, ...] = (0, 1, 2)
    n_labels: tuple[int, ...] = (1000, 2500, 5000, 7500, 10_000)
    withheld: tuple[int, ...] = (0, 3, 6)
    methods: tuple[str, ...] = ("forest", "cross-entropy")


# ------------------------------------------------------------------------------------------------------------------
# Ours

OURS = dataclasses.replace(
    PAPER,
    n_steps=3000,
    batch_size=256,
    labelled_fraction=0.4,
    epsilon=1.0,
    n_draws=10,
    must_link_first=False,
    augment="shift",
    learning_rate=1e-3,
    schedule="cosine",
    warmup_steps=100,
    patience=None,
)
OURS_SUPERVISED = dataclasses.replace(OURS, must_link_first=True)
OURS_CIFAR = dataclasses.replace(
    PAPER_CIFAR,
    backbone="experiments.networks:resnet18",
    n_steps=9000,
    batch_size=512,
    epsilon=2.0,
    n_draws=50,
    augment="shift-flip-cut",
    learning_rate=2e-3,
    weight_decay=0.05,
    schedule="cosine",
    warmup_steps=400,
    patience=None,
)
OURS_FASHION = dataclasses.replace(OURS_CIFAR, n_steps=5000)


@recipe("ours-mnist")
@dataclasses.dataclass(frozen=True)
class OursMnist(ImageRecipe):
    """MNIST, 1,000 labels, withheld classes: must-links not first, larger batches, more noise, fewer draws."""

    n_labels: tuple[int, ...] = (1000,)
    withheld: tuple[int, ...] = (0, 3, 6)
    training: TrainingConfig = OURS


@recipe("ours-fashion")
@dataclasses.dataclass(frozen=True)
class OursFashion(OursMnist):
    """Fashion-MNIST, the same."""

    images: str = "fashion_mnist"


@recipe("ours-supervised-mnist")
@dataclasses.dataclass(frozen=True)
class OursSupervisedMnist(OursMnist):
    """MNIST with all labels."""

    n_labels: tuple[int, ...] = (0,)
    withheld: tuple[int, ...] = (0,)
    training: TrainingConfig = OURS_SUPERVISED


@recipe("ours-cifar10")
@dataclasses.dataclass(frozen=True)
class OursCifar(SupervisedCifar):
    """CIFAR-10 with all labels: ResNet-18 without the pool, larger batches, much noise, images with a hole."""

    training: TrainingConfig = OURS_CIFAR


@recipe("ours-supervised-fashion")
@dataclasses.dataclass(frozen=True)
class OursSupervisedFashion(OursCifar):
    """Fashion-MNIST with all labels, as CIFAR-10."""

    seeds: tuple[int, ...] = (0, 1, 2)
    images: str = "fashion_mnist"
    training: TrainingConfig = OURS_FASHION
