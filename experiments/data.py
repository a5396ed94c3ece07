"""MNIST, Fashion-MNIST and CIFAR-10 as arrays, their parts, and the choice of labels.

A data set is one file, ``mnist.npz``, ``fashion_mnist.npz`` or ``cifar10.npz``, with uint8 arrays ``x_train``,
``y_train``, ``x_test``, ``y_test`` in the original order. What is not in the folder is downloaded with scikit-learn's
``fetch_openml`` and written there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust.files import write_atomically

# name → (name at OpenML, number of training images, shape of an image)
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
    if name == "digits":
        return _digits()
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
    arrays = Images(images[:n_train], labels[:n_train], images[n_train:], labels[n_train:])
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays._asdict()))


def _digits() -> Images:
    """The digits of scikit-learn, 8 x 8 pixels, for recipes that run in seconds."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    return Images(x[:1200], y[:1200].astype(np.int64), x[1200:], y[1200:].astype(np.int64))


class Parts(NamedTuple):
    """The parts of a data set, (images, labels) each."""

    training: tuple[NDArray[np.uint8], NDArray[np.int64]]
    probe: tuple[NDArray[np.uint8], NDArray[np.int64]]
    test: tuple[NDArray[np.uint8], NDArray[np.int64]]
    validation: tuple[NDArray[np.uint8], NDArray[np.int64]] | None


def split(images: Images, n_probe: int, validate: bool, seed: int = 0) -> Parts:
    """The parts that the paper uses.

    ``n_probe`` of the training images, equally many of each class, are held out for the linear probe. The second half
    of the test images is for validation. Without validation all test images are for the test.
    """
    x, y = images.x_train, images.y_train
    rng = np.random.default_rng([seed, 17])
    classes = np.unique(y)
    chosen = [rng.choice(np.flatnonzero(y == label), n_probe // len(classes), replace=False) for label in classes]
    held_out = np.isin(np.arange(len(y)), np.concatenate(chosen))
    half = (len(images.y_test) + 1) // 2 if validate else len(images.y_test)
    return Parts(
        (x[~held_out], y[~held_out]),
        (x[held_out], y[held_out]),
        (images.x_test[:half], images.y_test[:half]),
        (images.x_test[half:], images.y_test[half:]) if validate else None,
    )


def choose_labels(
    y: NDArray[np.int64], n_labels: int | None, withheld: int | Sequence[int] = 0, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels with -1 for unknown, and the classes that are never labelled.

    Args:
        n_labels: number of known labels, about equally many of each class that is labelled; None is all.
        withheld: classes that have no labels, or how many of them the seed chooses.
    """
    n_hidden = withheld if isinstance(withheld, int) else len(withheld)
    rng = np.random.default_rng([seed, n_hidden])
    classes = np.unique(y)
    hidden = np.sort(rng.choice(classes, n_hidden, replace=False))
    if not isinstance(withheld, int):  # after the draw, so that the labels below do not depend on which classes
        hidden = np.sort(np.asarray(withheld, np.int64))
    seen = np.setdiff1d(classes, hidden)
    known = np.full(len(y), -1, np.int64)
    if n_labels is None:
        return np.where(np.isin(y, seen), y, known), hidden
    for position, label in enumerate(seen):
        share = n_labels // len(seen) + (position < n_labels % len(seen))
        rows = np.flatnonzero(y == label)
        if share > len(rows):
            raise ValueError(f"n_labels={n_labels} asks for {share} labels of class {label}, which has {len(rows)}.")
        known[rng.choice(rows, share, replace=False)] = label
    return known, hidden
