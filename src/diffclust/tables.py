"""Files → arrays: features, labels and pairs, checked, with errors that name the file, the column and the row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMATS = (".npy", ".npz", ".csv", ".tsv", ".parquet")
UNKNOWN = frozenset(("", "-1", "nan", "none", "null", "na", "?", "unknown"))  # as text, in any case


@dataclass(frozen=True)
class Table:
    """Rows of features (n, d) or images (n, H, W[, C]), and what was said about their classes."""

    features: NDArray[Any]
    labels: NDArray[np.int64]  # (n,) numbers of classes, -1 unknown
    class_names: list[str]
    source: str

    def __len__(self) -> int:
        return len(self.features)


def read_table(path: Path, labels: str | None = None) -> Table:
    """Features from a file, or from a folder of ``.npy`` files with a row each; labels from a column, a key or a file.

    Args:
        labels: a column of the table (its name), a key of an ``.npz``, or a file with one label for each row; blank or
            -1 is unknown. Without, no row is labelled.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    label_file = Path(labels) if labels is not None and Path(labels).suffix in (*FORMATS, ".txt") else None
    column = labels if label_file is None else None
    if path.is_dir():
        features, found = _read_folder(path), None
        if column is not None:
            raise ValueError(
                f"--labels {column}: a folder of arrays has no columns. Give a file with a label for each row."
            )
    elif path.suffix not in FORMATS:
        raise ValueError(
            f"{path}: cannot read {path.suffix or 'a file without ending'}. Give one of {', '.join(FORMATS)}."
        )
    elif path.suffix in (".npy", ".npz"):
        features, found = _read_arrays(path, column)
    else:
        features, found = _read_columns(path, column)
    features = _check_features(features, path)
    if label_file is not None:
        found = read_labels(label_file)
    if found is None:
        found = np.full(len(features), "", object)
    if len(found) != len(features):
        raise ValueError(
            f"{labels} has {len(found)} labels, {path} has {len(features)} rows. There must be one for each."
        )
    codes, names = encode_labels(found)
    return Table(features, codes, names, str(path))


def _read_folder(path: Path) -> NDArray[Any]:
    files = sorted(path.glob("*.npy"))
    if not files:
        raise ValueError(f"{path} has no .npy files.")
    rows = [_load(file) for file in files]
    for file, row in zip(files, rows, strict=True):
        if row.shape != rows[0].shape:
            raise ValueError(f"{file} has shape {row.shape}, {files[0]} has {rows[0].shape}. All rows must be alike.")
    return np.stack(rows)


def _load(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} cannot be read as a NumPy file: {error}.") from error


def _read_arrays(path: Path, key: str | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if path.suffix == ".npy":
        if key is not None:
            raise ValueError(f"--labels {key}: {path} has no columns. Give a file with a label for each row.")
        return _load(path), None
    with _load(path) as file:
        names = list(file)
        labels = None
        if key is not None:
            if key not in names:
                raise ValueError(f"{path} has no array {key!r}. It has {', '.join(names)}.")
            labels = file[key]
        others = [name for name in names if name != key]
        chosen = next((name for name in ("x", "X", "data", "features", "arr_0") if name in others), None)
        if chosen is None:
            if len(others) != 1:
                raise ValueError(f"{path} has arrays {', '.join(names)}: name the features 'x'.")
            chosen = others[0]
        return file[chosen], labels


def _read_columns(path: Path, column: str | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    try:
        import pandas as pd
    except ImportError as error:
        raise ValueError("Tables need pandas. Install it with: pip install 'diffclust[fit]'") from error
    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        else:
            # Text stays text: whether "NA" is a missing number or a name depends on the column.
            frame = pd.read_csv(
                path, sep="\t" if path.suffix == ".tsv" else None, engine="python", dtype=str, keep_default_na=False
            )
    except ImportError as error:
        raise ValueError(f"{path}: parquet files need pyarrow. Install it with: pip install pyarrow") from error
    except Exception as error:  # whatever a parser may raise
        raise ValueError(f"{path} cannot be read as a table: {str(error).splitlines()[0]}.") from error
    labels = None
    if column is not None:
        if column not in frame.columns:
            raise ValueError(f"{path} has no column {column!r}. It has {_listed(list(map(str, frame.columns)))}.")
        labels = frame.pop(column).to_numpy(object)
    if frame.shape[1] == 0:
        raise ValueError(f"{path} has no column of features.")
    columns = [_numbers(frame[name], str(name), path) for name in frame.columns]
    return np.stack(columns, axis=1), labels


def _numbers(series: Any, name: str, path: Path) -> NDArray[np.float64]:
    import pandas as pd

    numbers = pd.to_numeric(series, errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(np.isnan(numbers))
    if len(wrong):
        value = series.iloc[wrong[0]]
        blank = str(value).strip().lower() in UNKNOWN
        what = "is blank" if blank else f"is {value!r}, not a number"
        advice = "Fill or remove it" if blank else "Turn it into numbers or remove it"
        raise ValueError(f"{path}: column {name!r} {what} in row {wrong[0]}. {advice}.")
    return numbers


def _listed(names: list[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _check_features(features: NDArray[Any], path: Path) -> NDArray[Any]:
    if features.dtype.kind not in "iubf":
        raise ValueError(f"{path} must hold numbers, got {features.dtype}.")
    if features.ndim not in (2, 3, 4):
        raise ValueError(
            f"{path} must be rows of features (n, d) or images (n, H, W[, C]), got shape {features.shape}."
        )
    if len(features) < 2:
        raise ValueError(f"{path} has {len(features)} row(s): at least two are needed.")
    if features.dtype != np.uint8:
        features = features.astype(np.float32)
        wrong = np.argwhere(~np.isfinite(features))
        if len(wrong):
            raise ValueError(f"{path}: row {wrong[0][0]} has a value that is not a finite number. Fill or remove it.")
    return features


def read_labels(path: Path) -> NDArray[Any]:
    """One label for each row, from an array or from the lines of a text file (of a table, the last column)."""
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    if path.suffix == ".npy":
        labels = _load(path)
        if labels.ndim != 1:
            raise ValueError(f"{path} must have shape (n,), got {labels.shape}.")
        return labels
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    values = [line.split(",")[-1].strip() for line in lines]
    if values and path.suffix == ".csv" and not _is_label(values[0]) and any(map(_is_label, values[1:])):
        values = values[1:]  # a header over numbers
    return np.array(values, object)


def _is_label(text: str) -> bool:
    """A number, or blank."""
    if text.lower() in UNKNOWN:
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def encode_labels(found: NDArray[Any]) -> tuple[NDArray[np.int64], list[str]]:
    """Numbers from 0 in the order of the names (of numbers, by size), -1 unknown; and the names."""
    texts = [_text(value) for value in found]
    names = sorted({text for text in texts if text.lower() not in UNKNOWN}, key=_order)
    number = {name: position for position, name in enumerate(names)}
    return np.array([number.get(text, -1) for text in texts], np.int64), names


def _text(value: Any) -> str:
    """1.0 and 1 are the same label."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    text = "" if value is None else str(value).strip()
    return text[:-2] if text.endswith(".0") and text[:-2].lstrip("-").isdigit() else text


def _order(name: str) -> tuple[bool, float, str]:
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name


def read_pairs(path: Path, n_rows: int) -> list[tuple[int, int]]:
    """Pairs of row numbers, counted from 0: two to a line, or an (m, 2) array; a header is skipped."""
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    if path.suffix == ".npy":
        pairs = _load(path)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
            raise ValueError(f"{path} must be integers of shape (m, 2), got {pairs.dtype} {pairs.shape}.")
        found = [(int(i), int(j)) for i, j in pairs]
    else:
        found = []
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines()):
            parts = line.replace(",", " ").replace(";", " ").split()
            if not parts:
                continue
            if len(parts) == 2 and all(part.lstrip("-").isdigit() for part in parts):
                found.append((int(parts[0]), int(parts[1])))
            elif number:
                raise ValueError(f"{path}, line {number + 1}: expected two row numbers, got {line.strip()!r}.")
    for i, j in found:
        if not (0 <= i < n_rows and 0 <= j < n_rows):
            raise ValueError(f"{path}: pair ({i}, {j}) is out of range, rows are numbered 0 to {n_rows - 1}.")
    return found
