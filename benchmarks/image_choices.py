"""Images with classes that nobody labelled, over choices of these classes: training settings, and ways to cut.

    python benchmarks/image_choices.py mnist --data-dir DATA --out results/image_choices.csv

1,000 labels of the training images, all 10,000 test images clustered. A choice is a seed: it says which classes are
withheld, which rows are labelled, and where training starts. Several networks are trained for each, which differ in
their seeds.

Cuts named "free" see the embedding of the test images alone. All others see the leading 20 principal components of the
mean embedding of five moved copies of each image, and the labelled training images with their labels. "auto" is the
library's choice among them, and "vote" puts together the images that most of them put together: k-means of the
memberships. Members are the networks; "joined" are their embeddings side by side, and "all" is the vote of all cuts of
all networks. Choices 100 to 102 were for development, 0 to 4 are for the report. A csv file that is there is continued.
"""

import argparse
import csv
import dataclasses
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, as_completed
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD

from diffclust.all_cuts import CUTS
from diffclust.cuts import leading_components
from diffclust.evidence import choose_cut
from diffclust.knowledge import Knowledge
from diffclust.training import embed, fit_many
from experiments import data, evaluation
from experiments.images import N_CLASSES, OURS, other_processes
from experiments.networks import lenet

NOISE = {"epsilon": 2.0}
VARIATIONS: dict[str, dict[str, Any]] = {
    "recipe": {},
    "noise": NOISE,
    "noise 4": {"epsilon": 4.0},
    "growing to 4": {"epsilon": 4.0, "noise_start": 0.25},
    "four views": NOISE | {"views": 4, "batch_size": 512},
    "large batches": NOISE | {"batch_size": 512},
    "narrow": NOISE | {"backbone": partial(lenet, width=32)},
    "mirrored": NOISE | {"augment": "shift-flip"},
}
N_LABELS, N_PROBE, N_COMPONENTS = 1000, 1000, 20
MOVES = ((0, 0), (2, 0), (-2, 0), (0, 2), (0, -2))
Partitions = dict[str, np.ndarray]


class Cell(NamedTuple):
    """A way to train, and what is known."""

    variation: str
    withheld: int
    choice: int

    @property
    def hidden(self) -> list[int]:
        return sorted(np.random.default_rng(self.choice).choice(N_CLASSES, self.withheld, replace=False).tolist())


def moved(x: np.ndarray, down: int, right: int) -> np.ndarray:
    """Images (n, H, W), zeros coming in."""
    reach = max(abs(down), abs(right))
    height, width = x.shape[1:]
    wide = np.pad(x, ((0, 0), (reach, reach), (reach, reach)))
    return wide[:, reach - down : reach - down + height, reach - right : reach - right + width]


# ------------------------------------------------------------------------------------------- in processes without GPU


def free_cuts(points: np.ndarray) -> Partitions:
    """Of an embedding of the test images."""
    found = evaluation.clusterings(points, N_CLASSES, len(points) // (5 * N_CLASSES))
    return {f"free {name}": clusters for name, clusters in found.items()}


def cuts(embeddings: list[np.ndarray], known: np.ndarray) -> Partitions:
    """The library's cuts of the joined embeddings of the test images and the labelled ones, its choice, and a vote."""
    # Centred and of one size: side by side, their squared distances are added.
    points = leading_components(
        np.concatenate([leading_components(each, each.shape[1]) for each in embeddings], 1), N_COMPONENTS
    )
    found: Partitions = {}
    for name, cut in CUTS.items():
        if name != "classifier":  # it needs labels of all classes
            found[name] = cut(points, Knowledge.join(known), N_CLASSES)
    chosen = choose_cut(found, [], [], known).cut
    return found | {"auto": found[chosen], "vote": vote(found.values())}


def vote(partitions: Iterable[np.ndarray]) -> np.ndarray:
    """What most of the partitions say: k-means of all memberships, in as many dimensions as there are classes."""
    memberships = np.concatenate([np.eye(N_CLASSES)[clusters] for clusters in partitions], axis=1)
    rows = TruncatedSVD(N_CLASSES, random_state=0).fit_transform(memberships)
    return KMeans(N_CLASSES, n_init=10, random_state=0).fit_predict(rows)


# ----------------------------------------------------------------------------------------------------------- training


def study(arguments: argparse.Namespace, pool: Executor, write: Callable[..., None]) -> None:
    started = time.perf_counter()
    images = data.load(arguments.images, arguments.data_dir)
    if arguments.rows:
        n = arguments.rows
        images = data.Images(images.x_train[:n], images.y_train[:n], images.x_test[:n], images.y_test[:n])
    parts = data.split(images, min(N_PROBE, len(images.y_train) // 10), validate=False)
    (x, y), (test, truth) = parts.training, parts.test
    changes = {"validate_every": 100} | ({"n_steps": arguments.steps} if arguments.steps else {})
    cells = [Cell(*each) for each in product(arguments.variations, arguments.withheld, arguments.choices)]
    jobs = [(cell, member) for cell in cells for member in range(arguments.members)]
    waiting: dict[Future[Partitions], tuple[Cell, str]] = {}
    members: dict[Cell, list[np.ndarray]] = {cell: [] for cell in cells}
    for first in range(0, len(jobs), arguments.side_by_side):
        fleet = jobs[first : first + arguments.side_by_side]
        n_labels = min(N_LABELS, len(y) // 10)
        labels = [data.choose_labels(y, n_labels, cell.hidden, cell.choice)[0] for cell, _ in fleet]
        configs = [
            dataclasses.replace(OURS, **VARIATIONS[cell.variation] | changes, seed=1000 * member + cell.choice)
            for cell, member in fleet
        ]
        modules = fit_many(configs, x, labels, progress=False, workers=2)
        for (cell, member), module, known in zip(fleet, modules, labels, strict=True):
            rows = np.concatenate([test, x[known >= 0]])
            mean = np.mean([embed(module, moved(rows, *move)) for move in MOVES], axis=0)
            known = np.concatenate([np.full(len(test), -1), known[known >= 0]])
            members[cell].append(mean)
            waiting[pool.submit(free_cuts, embed(module, test))] = cell, str(member)
            waiting[pool.submit(cuts, [mean], known)] = cell, str(member)
            if len(members[cell]) == arguments.members > 1:
                waiting[pool.submit(cuts, members[cell], known)] = cell, "joined"
        print(f"{arguments.images} {time.perf_counter() - started:.0f} s: {first + len(fleet)} networks", flush=True)
    of_cell: dict[Cell, list[Partitions]] = {cell: [] for cell in cells}
    for future in as_completed(waiting):
        cell, name = waiting[future]
        found = future.result()
        write(cell, name, found, truth)
        if name.isdecimal() and "vote" in found:
            of_cell[cell].append(found)
            if len(of_cell[cell]) == arguments.members > 1:
                every = [each[name] for each in of_cell[cell] for name in CUTS if name in each]
                write(cell, "all", {"vote": vote(every)}, truth)
    print(f"{arguments.images} {time.perf_counter() - started:.0f} s: done", flush=True)


def write(path: Path, images: str, cell: Cell, member: str, found: Partitions, truth: np.ndarray) -> None:
    """Adds a line for each partition."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            names = ("images", "variation", "withheld", "choice", "classes", "member", "cut", "clusters")
            writer.writerow([*names, "ari", "ari_seen", "ari_withheld", "accuracy"])
        head = [images, *cell, "".join(map(str, cell.hidden)), member]
        for name, clusters in found.items():
            scores = evaluation.part_scores(truth, clusters[: len(truth)], cell.hidden)
            numbers = [scores[part]["ari"] for part in ("all", "seen", "withheld")] + [scores["all"]["accuracy"]]
            writer.writerow([*head, name, len(np.unique(clusters)), *(f"{each:.4f}" for each in numbers)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", help="mnist or fashion_mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--choices", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--withheld", type=int, nargs="+", default=[3, 6])
    parser.add_argument("--variations", nargs="+", default=["noise"], choices=VARIATIONS)
    parser.add_argument("--members", type=int, default=5, help="networks")
    parser.add_argument("--side-by-side", type=int, default=25, help="networks at a time")
    parser.add_argument("--processes", type=int, default=0, help="that cut")
    parser.add_argument("--rows", type=int, default=0, help="only the first images, for a trial")
    parser.add_argument("--steps", type=int, default=0, help="instead of 3,000, for a trial")
    arguments = parser.parse_args()
    with other_processes(arguments.processes) as pool:
        study(arguments, pool, partial(write, arguments.out, arguments.images))


if __name__ == "__main__":
    main()
