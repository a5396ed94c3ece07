"""NumPy files: .npy, .npz (SciPy's sparse ones, too), and folders of .npy files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.tables.table import ending, listed

FORMATS = (".npy", ".npz")


def read_arrays(path: Path, key: str | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Features, and the labels of the array ``key`` of an ``.npz``; None without a key."""
    if ending(path) == ".npy":
        check_no_key(path, key)
        return load_array(path), None
    with load_arrays(path) as arrays:
        names = list(arrays)
        if {"format", "shape", "data"} <= set(names):
            return _read_sparse(path, key), None
        if key is not None and key not in names:
            raise ValueError(f"{path} has no array {key!r}. It has {listed(names)}.")
        labels = None if key is None else as_label_vector(member(arrays, key, path), f"{path}, array {key!r},")
        others = [name for name in names if name != key]
        usual = [name for name in ("x", "X", "data", "features", "arr_0") if name in others]
        if not usual and len(others) != 1:
            raise ValueError(f"{path} has the arrays {listed(names) or '(none)'}: name the features 'x'.")
        return member(arrays, (usual or others)[0], path), labels


def check_no_key(path: Path, key: str | None) -> None:
    """A ValueError if labels of an ``.npy`` file are asked for."""
    if key is not None:
        raise ValueError(f"labels={key!r}: {path} has no columns. Give a file with a label for each row.")


def _read_sparse(path: Path, key: str | None) -> NDArray[Any]:
    from scipy.sparse import load_npz

    from diffclust.frameworks import to_dense

    if key is not None:
        raise ValueError(
            f"labels={key!r}: {path} is a sparse array and has no other. Give a file with a label for each row."
        )
    with _numpy_errors(path):
        sparse = load_npz(path)
    try:
        return to_dense(sparse.astype(np.float32))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_folder(path: Path) -> NDArray[Any]:
    """The arrays of a folder, one for each row, in the order of their names."""
    files = sorted(path.glob("*.npy"))
    rows = [load_array(file) for file in files]
    for file, row in zip(files, rows, strict=True):
        if row.shape != rows[0].shape:
            raise ValueError(f"{file} has shape {row.shape}, {files[0]} has {rows[0].shape}. All rows must be alike.")
    return np.stack(rows)


@contextmanager
def _numpy_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read: it is no NumPy file, is not whole, or holds objects and not numbers."
        ) from error


def load_array(path: Path, mapped: bool = False) -> NDArray[Any]:
    """The array of an ``.npy`` file, in memory or mapped to it."""
    with _numpy_errors(path):
        array = np.load(path, "r" if mapped else None, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} holds several arrays: its name should end in .npz.")
    return array


def load_arrays(path: Path) -> Any:
    """The arrays of an ``.npz`` file."""
    with _numpy_errors(path):
        file = np.load(path, allow_pickle=False)
    if isinstance(file, np.ndarray):
        raise ValueError(f"{path} holds one array: its name should end in .npy.")
    return file


def member(arrays: Any, name: str, path: Path) -> NDArray[Any]:
    """One array of an ``.npz`` file."""
    with _numpy_errors(path):
        array = arrays[name]
    return array


def as_label_vector(labels: NDArray[Any], what: str) -> NDArray[Any]:
    """Labels of shape (n,)."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(f"{what} must have one label for each row, shape (n,), got {labels.shape}.")
    return labels
