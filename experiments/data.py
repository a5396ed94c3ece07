"""MNIST, Fashion-MNIST and CIFAR-10 as arrays, and the choice of labels.

A data set is one file, ``mnist.npz``, ``fashion_mnist.npz`` or ``cifar10.npz``, with uint8 arrays ``x_train``,
``y_train``, ``x_test``, ``y_test`` in the original order. What is not in the folder is downloaded with scikit-learn's
``fetch_openml`` and written there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# name → (name at OpenML, images for training, shape of an image)
DATASETS = {
    "mnist": ("mnist_784", 60_000, (28, 28)),
    "fashion_mnist": ("Fashion-MNIST", 60_000, (28, 28)),
    "cifar10": ("CIFAR_10", 50_000, (3, 32, 32)),
}
DEFAULT_FOLDER = Path(os.environ.get("DIFFCLUST_DATA", "~/.cache/diffclust")).expanduser()


class Images(NamedTuple):
    x_train: NDArray[np.uint8]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.uint8]
    y_test: NDArray[np.int64]


def load(name: str, folder: str | Path | None = None) -> Images:
    """The images of a data set, from the folder or, the first time, from OpenML."""
    if name not in DATASETS:
        raise ValueError(f"data set must be one of {tuple(DATASETS)}, got {name!r}.")
    path = Path(folder or DEFAULT_FOLDER) / f"{name}.npz"
    if not path.exists():
        _download(name, path)
    with np.load(path) as file:
        x_train, y_train, x_test, y_test = (file[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    return Images(x_train, y_train.ravel().astype(np.int64), x_test, y_test.ravel().astype(np.int64))


def _download(name: str, path: Path) -> None:
    from sklearn.datasets import fetch_openml

    title, n_train, shape = DATASETS[name]
    x, y = fetch_openml(title, version=1, as_frame=False, return_X_y=True, parser="auto")
    images = x.astype(np.uint8).reshape(-1, *shape)
    if len(shape) == 3:
        images = images.transpose(0, 2, 3, 1)
    labels = y.astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial.npz")
    np.savez_compressed(
        temporary, x_train=images[:n_train], y_train=labels[:n_train], x_test=images[n_train:], y_test=labels[n_train:]
    )
    temporary.replace(path)


def choose_labels(
    y: NDArray[np.int64], n_labels: int | None, withheld: int = 0, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels with -1 for unknown, and the classes that are never labelled.

    ``withheld`` classes, chosen by the seed, have no labels; of the others ``n_labels`` in all are known, as balanced
    as possible, or every one if ``n_labels`` is None.
    """
    rng = np.random.default_rng([seed, withheld])
    classes = np.unique(y)
    hidden = np.sort(rng.choice(classes, withheld, replace=False))
    seen = np.setdiff1d(classes, hidden)
    known = np.full(len(y), -1, np.int64)
    if n_labels is None:
        rows = np.isin(y, seen)
        known[rows] = y[rows]
        return known, hidden
    for position, label in enumerate(seen):
        share = n_labels // len(seen) + (position < n_labels % len(seen))
        known[rng.choice(np.flatnonzero(y == label), share, replace=False)] = label
    return known, hidden
