"""Images with classes that nobody labelled, over choices of these classes: training settings, and ways to cut.

    python benchmarks/image_choices.py mnist --choices 0 1 2 3 4 --variations noise --out OUT

1,000 labels of the training images, all 10,000 test images clustered. A choice is a seed: it says which classes are
withheld, which rows are labelled, and where training starts. Cuts named "free" see the test embeddings alone. All
others see the labelled training rows, too, and their labels; "auto" is the library's own choice among them. Inputs of
the cuts are the "whole" embedding, "20" leading principal components, and "moved 20", those of the mean embedding of
five moved copies of each image. Choices 100 to 104 are for development, 0 to 4 for the report.

Writes OUT/NAME.csv, and OUT/NAME-*.npz with the components (float16) of the test images and then of the labelled ones.
"""

import argparse
import csv
import dataclasses
import time
import zipfile
from collections.abc import Iterable
from concurrent.futures import Executor, Future, wait
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diffclust.cuts import leading_components
from diffclust.evidence import Split, choose_cut, hide_labels
from diffclust.knowledge import Knowledge
from diffclust.partition import CUTS, partition
from diffclust.training import ForestModule, TrainingConfig, embed, fit_many
from experiments import data, evaluation
from experiments.images import N_CLASSES, OURS, _other_processes
from experiments.networks import lenet

NOISE = {"epsilon": 2.0}
RESNET = {"backbone": "experiments.networks:resnet18", "precision": "bf16-mixed", "weight_decay": 0.05, **NOISE}
VARIATIONS: dict[str, dict[str, Any]] = {
    "recipe": {},
    "noise": NOISE,
    "growing": NOISE | {"noise_start": 0.25},
    "growing to 4": {"epsilon": 4.0, "noise_start": 0.25},
    "views": NOISE | {"views": 2, "batch_size": 512},
    "four views": NOISE | {"views": 4, "batch_size": 512},
    "large batches": NOISE | {"batch_size": 512},
    "fewer labelled": NOISE | {"labelled_fraction": 0.2},
    "15 clusters": NOISE | {"n_clusters": 15},
    "narrow": NOISE | {"backbone": partial(lenet, width=32)},
    "mirrored": NOISE | {"augment": "shift-flip"},
    "holes": NOISE | {"augment": "shift-flip-cut"},
    "long": NOISE | {"n_steps": 9000},
    "draws": NOISE | {"n_draws": 30},
    "decay": NOISE | {"weight_decay": 0.05},
    "resnet": RESNET | {"augment": "shift"},
    "resnet mirrored": RESNET | {"augment": "shift-flip"},
    "resnet holes": RESNET | {"augment": "shift-flip-cut"},
    "resnet views": RESNET | {"augment": "shift-flip", "views": 2, "batch_size": 512},
}
N_LABELS, N_PROBE, GUARD = 1000, 1000, 200
KEPT = 20  # components that are cut, and written
MOVES = ((0, 0), (2, 0), (-2, 0), (0, 2), (0, -2))
SECOND_ROWS = 10_000  # training images that are cut for the second round
FILE_BYTES = 14e6


class Cell(NamedTuple):
    """A data set's withheld classes, and how a network is trained for them."""

    variation: str
    withheld: int
    choice: int


class Job(NamedTuple):
    """One network."""

    cell: Cell
    member: int
    config: TrainingConfig
    known: np.ndarray  # (n,) labels of the training images, -1 unknown


def hidden_classes(choice: int, size: int) -> list[int]:
    return sorted(np.random.default_rng(choice).choice(N_CLASSES, size, replace=False).tolist())


def moved(x: np.ndarray, down: int, right: int) -> np.ndarray:
    """Images (n, H, W), zeros coming in."""
    reach = max(abs(down), abs(right))
    height, width = x.shape[1:]
    wide = np.pad(x, ((0, 0), (reach, reach), (reach, reach)))
    return wide[:, reach - down : reach - down + height, reach - right : reach - right + width]


def joined(embeddings: Iterable[np.ndarray]) -> np.ndarray:
    """Several embeddings of the same rows side by side: their squared distances are added."""
    return np.concatenate([leading_components(each, each.shape[1]) for each in embeddings], axis=1)


# ------------------------------------------------------------------------------------------- in processes without GPU


def cut_all(points: np.ndarray, knowledge: Knowledge, k: int = N_CLASSES) -> dict[str, np.ndarray]:
    found = {}
    for name, cut in CUTS.items():
        try:
            found[name] = cut(np.asarray(points, np.float64), knowledge, k)
        except ValueError:  # a classifier has labels of all classes, or cannot cut
            continue
    return found


def score(
    whole: np.ndarray,
    mean: np.ndarray,
    cuts_whole: bool,
    known: np.ndarray,
    truth: np.ndarray,
    hidden: list[int],
    splits: list[tuple[np.ndarray, Knowledge]],
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Scores of all cuts of all inputs, and the components of the mean embedding of moved images.

    Rows are the test images, whose ``known`` is -1, and then the labelled images.
    """
    n, rows, knowledge = len(truth), [], Knowledge.join(known)
    inputs = {"20": leading_components(whole, KEPT), "moved 20": leading_components(mean, KEPT)}
    inputs = {"whole": whole, **inputs} if cuts_whole else inputs
    for title, points in inputs.items():
        started = time.perf_counter()
        found = {
            f"free {name}": clusters
            for name, clusters in evaluation.clusterings(
                np.asarray(points[:n], np.float64), N_CLASSES, min(GUARD, n // (5 * N_CLASSES))
            ).items()
        }
        informed = cut_all(points, knowledge)
        chosen = {"auto": choose_cut(informed, [], cut_all, known).cut}
        if splits:
            told = [Split(leading_components(each, KEPT), rest) for each, rest in splits]
            chosen["auto, hidden labels"] = choose_cut(informed, told, cut_all, known).cut
        found |= informed | {way: informed[name] for way, name in chosen.items()}
        seconds = round(time.perf_counter() - started, 1)
        for name, clusters in found.items():
            scores = evaluation.part_scores(truth, clusters[:n], hidden)
            rows.append(
                {
                    "input": title,
                    "cut": name,
                    "chosen": chosen.get(name, ""),
                    "clusters": len(np.unique(clusters)),
                    **{part: round(each["ari"], 4) for part, each in scores.items()},
                    "accuracy": round(scores["all"]["accuracy"], 4),
                    "seconds": seconds,
                }
            )
    return rows, inputs["moved 20"].astype(np.float16)


def certain_clusters(points: np.ndarray, known: np.ndarray, share: float) -> np.ndarray:
    """(n,) clusters of the most certain rows of each, -1 elsewhere, numbered like the labels where they hold some."""
    found = partition(leading_components(points, KEPT), Knowledge.join(known), N_CLASSES, cut="auto")
    sure, numbers = found.probabilities().max(1), found.classes.copy()
    numbers[numbers < 0] = np.setdiff1d(np.arange(N_CLASSES), numbers)[: int((numbers < 0).sum())]
    labels = np.full(len(points), -1)
    for cluster, number in enumerate(numbers):
        members = np.flatnonzero(found.clusters == cluster)
        best = members[np.argsort(-sure[members], kind="stable")[: max(1, int(share * len(members)))]]
        labels[best] = number
    return np.where(known >= 0, known, labels)


# -------------------------------------------------------------------------------------------------------------- study


class Study:
    """Trains the networks of a data set side by side, and has them scored in other processes meanwhile."""

    def __init__(self, arguments: argparse.Namespace, pool: Executor) -> None:
        self.arguments, self.pool = arguments, pool
        images = data.load(arguments.images, arguments.data_dir)
        if arguments.rows:  # a small trial
            n = arguments.rows
            images = data.Images(images.x_train[:n], images.y_train[:n], images.x_test[:n], images.y_test[:n])
        self.parts = data.split(images, min(N_PROBE, len(images.y_train) // 10), validate=False)
        self.name = "-".join([arguments.images, *([arguments.name] if arguments.name else [])])
        self.started = time.perf_counter()
        self.members: dict[tuple[Cell, int], list[np.ndarray]] = {}
        self.training_rows: dict[Cell, list[np.ndarray]] = {}
        self.splits: dict[Cell, list[tuple[np.ndarray, Knowledge]]] = {}
        self.waiting: list[Future[Any]] = []
        self.second: list[tuple[Cell, np.ndarray, Future[np.ndarray]]] = []
        self.queue = [job for cell in self.cells() for job in self.jobs(cell)]

    def cells(self) -> list[Cell]:
        a = self.arguments
        return [Cell(v, size, choice) for v in a.variations for size in a.withheld for choice in a.choices]

    def known(self, cell: Cell) -> np.ndarray:
        hidden, n = hidden_classes(cell.choice, cell.withheld), min(N_LABELS, len(self.parts.training[1]) // 10)
        return data.choose_labels(self.parts.training[1], n, hidden, cell.choice)[0]

    def config(self, cell: Cell, member: int) -> TrainingConfig:
        steps = {"n_steps": self.arguments.steps} if self.arguments.steps else {}
        changes = VARIATIONS[cell.variation.removesuffix(" again")] | {"validate_every": 100} | steps
        return dataclasses.replace(OURS, **changes, seed=1000 * member + cell.choice)

    def jobs(self, cell: Cell) -> list[Job]:
        """Networks with all labels, and, for the first variation, without those that are hidden to compare cuts."""
        known = self.known(cell)
        members = self.arguments.members if cell.variation == self.arguments.variations[0] else 1
        jobs = [Job(cell, member, self.config(cell, member), known) for member in range(members)]
        if self.arguments.hide and cell.variation == self.arguments.variations[0]:
            labelled = np.flatnonzero(known >= 0)
            self.splits[cell] = []
            for number, rest in enumerate(hide_labels(self.knowledge(known), N_CLASSES, cell.choice)):
                told = np.full(len(known), -1)
                told[labelled] = rest.labels[len(self.parts.test[1]) :]
                config = self.config(cell, 0)
                jobs.insert(0, Job(cell, -1 - number, dataclasses.replace(config, n_steps=config.n_steps // 2), told))
                self.splits[cell].append((np.empty(0), rest))
        return jobs

    def knowledge(self, known: np.ndarray) -> Knowledge:
        """Of the rows that are cut: the test images, then the labelled ones."""
        return Knowledge.join(np.concatenate([np.full(len(self.parts.test[1]), -1), known[known >= 0]]))

    def run(self) -> None:
        while self.queue and time.perf_counter() - self.started < self.arguments.seconds:
            precision = self.queue[0].config.precision
            alike = [i for i, job in enumerate(self.queue) if job.config.precision == precision]
            taken = alike[: self.arguments.side_by_side]
            fleet = [self.queue[i] for i in taken]
            self.queue = [job for i, job in enumerate(self.queue) if i not in set(taken)]
            began = time.perf_counter()
            modules = fit_many(
                [job.config for job in fleet],
                self.parts.training[0],
                [job.known for job in fleet],
                progress=False,
                workers=self.arguments.workers,
            )
            trained = time.perf_counter() - began
            for job, module in zip(fleet, modules, strict=True):
                self.finish(job, module)
            names = sorted({job.cell.variation for job in fleet})
            self.say(f"{len(fleet)} networks in {trained:.0f} s, all in {time.perf_counter() - began:.0f} s: {names}")
            if not self.queue and self.second:
                wait([future for _, _, future in self.second])
            self.queue = [*self.second_jobs(), *self.queue]
        self.say(f"{len(self.queue)} networks left, {sum(not each.done() for each in self.waiting)} to score")
        wait(self.waiting)
        self.say("done")

    def say(self, text: str) -> None:
        print(f"{self.name} {time.perf_counter() - self.started:4.0f} s: {text}", flush=True)

    def finish(self, job: Job, module: ForestModule) -> None:
        cell, test = job.cell, self.parts.test[0]
        known = self.known(cell)
        rows = np.concatenate([test, self.parts.training[0][known >= 0]])
        whole = embed(module, rows)
        if job.member < 0:
            _, rest = self.splits[cell][-1 - job.member]
            self.splits[cell][-1 - job.member] = whole, rest
            return
        mean = np.mean([embed(module, moved(rows, *move)) for move in MOVES], axis=0)
        splits = self.splits.get(cell, []) if job.member == 0 else []
        self.submit(job, str(job.member), whole, mean, splits)
        of_cell = self.members.setdefault((cell, 0), []), self.members.setdefault((cell, 1), [])
        of_cell[0].append(whole)
        of_cell[1].append(mean)
        if cell.variation != self.arguments.variations[0]:
            return
        n_members = self.arguments.members
        if 1 < n_members == len(of_cell[0]):
            self.submit(job, f"all {n_members}", joined(of_cell[0]), joined(of_cell[1]), [])
        if self.arguments.second:
            x, labelled = self.parts.training[0], np.flatnonzero(known >= 0)
            others = np.setdiff1d(np.random.default_rng(cell.choice).permutation(len(x))[:SECOND_ROWS], labelled)
            chosen = np.concatenate([labelled, others])
            self.training_rows.setdefault(cell, []).append(embed(module, x[chosen]))
            if len(self.training_rows[cell]) == n_members:
                points = joined(self.training_rows.pop(cell))
                future = self.pool.submit(certain_clusters, points, known[chosen], self.arguments.second)
                self.second.append((cell, chosen, future))

    def second_jobs(self) -> list[Job]:
        """Networks that are told what the clusters of the first ones are sure of."""
        ready = [each for each in self.second if each[2].done()]
        self.second = [each for each in self.second if not each[2].done()]
        jobs = []
        for cell, chosen, future in ready:
            told = self.known(cell)
            told[chosen] = future.result()
            again = cell._replace(variation=f"{cell.variation} again")
            jobs.append(Job(again, 0, self.config(cell, 100), told))
        return jobs

    def submit(self, job: Job, member: str, whole: np.ndarray, mean: np.ndarray, splits: list[Any]) -> None:
        cell, truth = job.cell, self.parts.test[1]
        known = self.knowledge(self.known(cell)).labels
        hidden = hidden_classes(cell.choice, cell.withheld)
        future = self.pool.submit(score, whole, mean, self.arguments.whole, known, truth, hidden, splits)
        head = {"images": self.arguments.images, **cell._asdict(), "classes": "".join(map(str, hidden))}
        future.add_done_callback(lambda done: self.write({**head, "member": member}, *done.result()))
        self.waiting.append(future)

    def write(self, head: dict[str, Any], rows: list[dict[str, Any]], components: np.ndarray) -> None:
        """Called in one thread, so lines do not mix."""
        path = self.arguments.out / f"{self.name}.csv"
        new = not path.exists()
        with path.open("a", newline="") as file:
            for row in rows:
                row = {**head, **{f"ari_{part}": row.pop(part, "") for part in PARTS}, **row}
                writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
                if new:
                    writer.writeheader()
                    new = False
                writer.writerow(row)
        if head["member"].isdecimal():
            self.keep("|".join(str(head[name]) for name in ("variation", "withheld", "choice", "member")), components)

    def keep(self, name: str, components: np.ndarray) -> None:
        """Adds the components to the last file, or to a new one where that is full."""
        files = sorted(self.arguments.out.glob(f"{self.name}-*.npz"))
        path = self.arguments.out / f"{self.name}-{len(files) - 1}.npz"
        if not files or path.stat().st_size > FILE_BYTES:
            if len(files) == self.arguments.files:
                return
            path = self.arguments.out / f"{self.name}-{len(files)}.npz"
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{name}.npy", "w") as file:
            np.lib.format.write_array(file, components)


PARTS = ("all", "seen", "withheld")
COLUMNS = [
    *("images", "variation", "withheld", "choice", "classes", "member", "input", "cut", "chosen", "clusters"),
    *(f"ari_{part}" for part in PARTS),
    *("accuracy", "seconds"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", help="mnist or fashion_mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", default="", help="added to the names of the files")
    parser.add_argument("--choices", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--withheld", type=int, nargs="+", default=[3, 6])
    parser.add_argument("--variations", nargs="+", default=["noise"], choices=VARIATIONS)
    parser.add_argument("--members", type=int, default=1, help="networks of the first variation, which are joined")
    parser.add_argument("--hide", action="store_true", help="hide labels to choose the cut, for the first variation")
    parser.add_argument("--second", type=float, default=0.0, help="share of each cluster that a second round is told")
    parser.add_argument("--whole", action="store_true", help="also cut the whole embedding")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no networks are started")
    parser.add_argument("--side-by-side", type=int, default=24)
    parser.add_argument("--processes", type=int, default=0, help="that score")
    parser.add_argument("--workers", type=int, default=2, help="that choose the rows of batches")
    parser.add_argument("--files", type=int, default=4, help="with embeddings, at most")
    parser.add_argument("--rows", type=int, default=0, help="only the first training and test images, for a trial")
    parser.add_argument("--steps", type=int, default=0, help="instead of those of the variations, for a trial")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with _other_processes(arguments.processes) as pool:
        Study(arguments, pool).run()


if __name__ == "__main__":
    main()
