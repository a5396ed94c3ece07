"""Files → arrays: features, labels and pairs, checked, with errors that name the file, the column and the row."""

from __future__ import annotations

import csv
import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMATS = (".npy", ".npz", ".csv", ".tsv", ".parquet")
# As text, in any case.
UNKNOWN = frozenset(("", "-1", "nan", "nat", "none", "null", "na", "n/a", "#n/a", "<na>", "?", "unknown"))


_DECIMAL = re.compile(r"-?\d+\.\d*(e[+-]\d+)?", re.ASCII)


@dataclass(frozen=True)
class Table:
    """Rows of features (n, d) or images (n, H, W) or (n, C, H, W), and what was said about their classes."""

    features: NDArray[Any]
    labels: NDArray[np.int64]  # (n,) numbers of classes, -1 unknown
    class_names: list[str]
    source: str
    columns: list[str] | None = None  # names of the features, where they have any

    def __len__(self) -> int:
        return len(self.features)


def read_table(path: Path, labels: str | None = None, at_least: int = 2) -> Table:
    """Features from a file, or from a folder of ``.npy`` files with a row each; labels from a column, a key or a file.

    Args:
        labels: a column of the table (its name), a key of an ``.npz``, or a file with one label for each row; blank or
            -1 is unknown. Without, no row is labelled.
        at_least: so many rows there must be.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    label_file = Path(labels) if labels is not None and _ending(Path(labels)) in (*FORMATS, ".txt") else None
    column = labels if label_file is None else None
    columns = None
    if path.is_dir():
        if column is not None:
            raise ValueError(
                f"labels={column!r}: a folder of arrays has no columns. Give a file with a label for each row."
            )
        features, found = _read_folder(path), None
    elif _ending(path) not in FORMATS:
        raise ValueError(
            f"{path}: cannot read {path.suffix or 'a file without ending'}. Give one of {', '.join(FORMATS)}."
        )
    elif _ending(path) in (".npy", ".npz"):
        features, found = _read_arrays(path, column)
    else:
        features, found, columns = _read_columns(path, column)
    features = _check_features(features, path, at_least)
    if label_file is not None:
        found = read_labels(label_file, len(features))
    if found is None:
        found = np.full(len(features), "", object)
    if len(found) != len(features):
        raise ValueError(
            f"{labels} has {len(found)} labels, {path} has {len(features)} rows. There must be one for each."
        )
    codes, names = encode_labels(found)
    return Table(features, codes, names, str(path), columns)


def _ending(path: Path) -> str:
    return path.suffix.lower()


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file in UTF-8 (byte {error.start}). Save it as one.") from error


def _read_folder(path: Path) -> NDArray[Any]:
    files = sorted(path.glob("*.npy"))
    if not files:
        raise ValueError(f"{path} has no .npy files.")
    rows = [_load(file) for file in files]
    for file, row in zip(files, rows, strict=True):
        if row.shape != rows[0].shape:
            raise ValueError(f"{file} has shape {row.shape}, {files[0]} has {rows[0].shape}. All rows must be alike.")
    return np.stack(rows)


_DAMAGED = "{} cannot be read: it is no NumPy file, is not whole, or holds objects and not numbers."


def _load(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(_DAMAGED.format(path)) from error


def _read_arrays(path: Path, key: str | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if _ending(path) == ".npy":
        if key is not None:
            raise ValueError(f"labels={key!r}: {path} has no columns. Give a file with a label for each row.")
        return _load_array(path), None
    with _load_arrays(path) as arrays:
        names = list(arrays)
        if key is not None and key not in names:
            raise ValueError(f"{path} has no array {key!r}. It has {listed(names)}.")
        labels = None if key is None else _one_each(_member(arrays, key, path), f"{path}, array {key!r},")
        others = [name for name in names if name != key]
        usual = [name for name in ("x", "X", "data", "features", "arr_0") if name in others]
        if not usual and len(others) != 1:
            raise ValueError(f"{path} has the arrays {listed(names) or '(none)'}: name the features 'x'.")
        return _member(arrays, (usual or others)[0], path), labels


def _load_array(path: Path) -> NDArray[Any]:
    array = _load(path)
    if not isinstance(array, np.ndarray):  # an .npz by another name
        raise ValueError(f"{path} holds several arrays: its name should end in .npz.")
    return array


def _load_arrays(path: Path) -> Any:
    file = _load(path)
    if isinstance(file, np.ndarray):
        raise ValueError(f"{path} holds one array: its name should end in .npy.")
    return file


def _member(arrays: Any, name: str, path: Path) -> NDArray[Any]:
    try:
        return arrays[name]
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(_DAMAGED.format(path)) from error


def _one_each(labels: NDArray[Any], what: str) -> NDArray[Any]:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(f"{what} must have one label for each row, shape (n,), got {labels.shape}.")
    return labels


def _read_columns(path: Path, column: str | None) -> tuple[NDArray[Any], NDArray[Any] | None, list[str]]:
    frame = _read_parquet(path) if _ending(path) == ".parquet" else _read_csv(path, column)
    labels = None
    if column is not None:
        if column not in frame.columns:
            raise ValueError(f"{path} has no column {column!r}. It has {listed(list(map(str, frame.columns)))}.")
        labels = frame.pop(column).to_numpy(object)
    if frame.shape[1] and _is_row_number(frame.columns[0], frame.iloc[:, 0]):
        frame = frame.iloc[:, 1:]
    if frame.shape[1] == 0:
        raise ValueError(f"{path} has no column of features.")
    names = list(map(str, frame.columns))
    columns = [_numbers(frame.iloc[:, place], name, path) for place, name in enumerate(names)]
    return np.stack(columns, axis=1), labels, names


def _read_parquet(path: Path) -> Any:
    with _parser_errors(path) as pd:
        return pd.read_parquet(path)


def _read_csv(path: Path, column: str | None) -> Any:
    """The table; the column of labels stays text."""
    first_line = _first_line(path)
    separator = _separator(path, first_line)
    _check_header(path, first_line, separator)
    with _parser_errors(path) as pd:
        # Columns with a blank or a word stay text, too: what "NA" means depends on the column.
        return pd.read_csv(
            path,
            sep=separator,
            dtype=None if column is None else {column: str},
            keep_default_na=False,
            low_memory=False,
            encoding="utf-8-sig",
            skipinitialspace=True,
        )


@contextmanager
def _parser_errors(path: Path) -> Iterator[Any]:
    """pandas; what it raises becomes a ValueError that names the file."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ValueError("Tables need pandas. Install it with: pip install 'diffclust[fit]'") from error
    try:
        yield pd
    except ImportError as error:
        raise ValueError(f"{path}: parquet files need pyarrow. Install it with: pip install pyarrow") from error
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"{path} is empty.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file in UTF-8 (byte {error.start}). Save it as one.") from error
    except Exception as error:  # whatever a parser may raise
        reason = [*str(error).strip().splitlines(), type(error).__name__][0].rstrip(".")
        raise ValueError(f"{path} cannot be read as a table: {reason}.") from error


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return next((line for line in file if line.strip()), "")


def _separator(path: Path, first_line: str) -> str:
    """The one that the first line has most of. Guessing from all of the text takes decimal points for separators."""
    return "\t" if _ending(path) == ".tsv" else max(",;\t", key=first_line.count)


def _check_header(path: Path, first_line: str, separator: str) -> None:
    """A table without a header would lose its first row.

    Names may be numbers, too, if they count the columns or, as wavelengths do, run up or down.
    """
    names = next(csv.reader([first_line], delimiter=separator), [])
    try:
        numbers = np.array([float(name) for name in names])
    except ValueError:
        return
    steps = np.diff(numbers)
    counts = any(np.array_equal(numbers, np.arange(len(numbers)) + first) for first in (0, 1))
    runs = len(numbers) > 2 and ((steps > 0).all() or (steps < 0).all())
    if not (counts or runs):
        raise ValueError(
            f"{path} starts with a row of numbers, not with the names of its columns. Put a line with names above it."
        )


def _is_row_number(name: Any, series: Any) -> bool:
    """A column without a name of numbers that are all different: what pandas and R write in front of a table.

    They count the rows, but not in a table that was shuffled, nor in a part of one.
    """
    return str(name).startswith("Unnamed: ") and series.dtype.kind in "iu" and bool(series.is_unique)


def _numbers(series: Any, name: str, path: Path) -> NDArray[np.float64]:
    import pandas as pd

    as_text = series.dtype.kind in "mM"  # pandas takes times for numbers of nanoseconds
    try:
        numbers = pd.to_numeric(series.astype(str) if as_text else series, errors="coerce").to_numpy(np.float64)
    except OverflowError:  # an integer of hundreds of digits, which no float holds
        numbers = np.array([_as_float(value) for value in series])
    wrong = np.flatnonzero(np.isnan(numbers))
    if len(wrong):
        value = series.iloc[wrong[0]]
        blank = str(value).strip().lower() in UNKNOWN
        what = "is blank" if blank else f"is {_short(str(value))!r}, not a number,"
        advice = "Fill or remove it" if blank else "Turn it into numbers or remove it"
        raise ValueError(f"{path}: column {name!r} {what} in row {wrong[0]}. {advice}.")
    return numbers


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf
    except (TypeError, ValueError):
        return np.nan


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."


def check_columns(table: Table, expected: list[str] | None) -> None:
    """New rows have the columns of the table that was fitted; where either has no names, only their number counts."""
    if table.columns is None or expected is None or table.columns == expected:
        return
    missing = [name for name in expected if name not in table.columns]
    more = [name for name in table.columns if name not in expected]
    problems = [f"{what} {listed(names)}" for what, names in (("it lacks", missing), ("it also has", more)) if names]
    raise ValueError(
        f"{table.source} must have the same columns as the table of the run, in the same order: "
        + (" and ".join(problems) or f"that is {listed(expected)}")
        + "."
    )


def listed(names: list[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _check_features(features: NDArray[Any], path: Path, at_least: int) -> NDArray[Any]:
    if features.dtype.kind not in "iubf":
        raise ValueError(f"{path} must hold numbers, got {features.dtype}.")
    if features.ndim not in (2, 3, 4):
        raise ValueError(
            f"{path} must be rows of features (n, d) or images (n, H, W), (n, H, W, C) or (n, C, H, W), got shape "
            f"{features.shape}."
        )
    if features.ndim == 4 and features.shape[-1] <= 4 < features.shape[1]:
        features = np.ascontiguousarray(np.moveaxis(features, -1, 1))  # as training takes it
    if len(features) < at_least:
        raise ValueError(f"{path} has {len(features)} rows: at least {at_least} are needed.")
    if features.size == 0:
        raise ValueError(f"{path} has rows without features, shape {features.shape}.")
    if features.dtype != np.uint8:
        with np.errstate(over="ignore"):
            features = features.astype(np.float32, copy=False)
        wrong = np.flatnonzero(~np.isfinite(features).reshape(len(features), -1).all(1))
        if len(wrong):
            raise ValueError(
                f"{path}: row {wrong[0]} has a value that is not a finite number (of 32 bits). Fill or remove it."
            )
    return features


def read_labels(path: Path, n_rows: int) -> NDArray[Any]:
    """One label for each row, from an array or a text file (of a table, the last column).

    A text file with one line more than there are rows starts with a header, or ends with a blank line.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    if _ending(path) == ".npy":
        return _one_each(_load_array(path), str(path))
    if _ending(path) == ".npz":
        with _load_arrays(path) as arrays:
            names = list(arrays)
            if len(names) != 1:
                raise ValueError(f"{path} has the arrays {listed(names) or '(none)'}: a file of labels has one.")
            return _one_each(_member(arrays, names[0], path), str(path))
    if _ending(path) == ".parquet":
        frame = _read_parquet(path)
        if frame.shape[1] == 0:
            raise ValueError(f"{path} has no column.")
        return frame.iloc[:, -1].to_numpy(object)
    text = _read_text(path)
    first_line = next((line for line in text.splitlines() if line.strip()), "")
    lines = csv.reader(io.StringIO(text), delimiter=_separator(path, first_line))
    try:
        values = [line[-1] if line else "" for line in lines]
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as labels: {error}.") from error
    return np.array(_without_header(values, n_rows), object)


def _without_header(values: list[str], n_rows: int) -> list[str]:
    while len(values) > n_rows + 1 and not values[-1]:  # blank lines that no row is left for
        values = values[:-1]
    if len(values) != n_rows + 1:
        return values
    first, *others = values
    starts_with_label = first in others or not _order(first)[0]
    return values[:-1] if starts_with_label and not values[-1] else others


def encode_labels(found: NDArray[Any]) -> tuple[NDArray[np.int64], list[str]]:
    """Numbers from 0 in the order of the names (of numbers, by size), -1 unknown; and the names."""
    texts = [_text(value) for value in found]
    names = sorted({text for text in texts if text.lower() not in UNKNOWN}, key=_order)
    number = {name: position for position, name in enumerate(names)}
    return np.array([number.get(text, -1) for text in texts], np.int64), names


def _text(value: Any) -> str:
    """1.0 and 1 are the same label, and so is 1.000e+00, as np.savetxt writes it; 2E5 and 02 are names."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    text = "" if value is None else str(value).strip()
    if _DECIMAL.fullmatch(text) and float(text).is_integer():
        return str(int(float(text)))
    return text


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
# What OWASP lists for "CSV injection", the full-width signs included.
_FORMULA_STARTS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def spreadsheet_text(text: str) -> str:
    """The text as a cell of a .csv file: with a quote before it where a spreadsheet would take it for a formula.

    >>> [spreadsheet_text(text) for text in ("=1+1", "-1", "+3.5e2", "-x", "cat")]
    ["'=1+1", '-1', '+3.5e2', "'-x", 'cat']
    """
    return f"'{text}" if text.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(text) else text


def _order(name: str) -> tuple[bool, float, str]:
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name


def read_pairs(path: Path, n_rows: int) -> list[tuple[int, int]]:
    """Pairs of row numbers, counted from 0: two to a line, or an (m, 2) array; a header is skipped."""
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    if _ending(path) == ".npy":
        pairs = _load_array(path)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
            raise ValueError(f"{path} must be integers of shape (m, 2), got {pairs.dtype} {pairs.shape}.")
        found = [(int(i), int(j)) for i, j in pairs]
    else:
        found = []
        for number, line in enumerate(_read_text(path).splitlines()):
            parts = line.replace(",", " ").replace(";", " ").split()
            if not parts:
                continue
            numeric = [part.removeprefix("-").isdecimal() for part in parts]
            if len(parts) == 2 and all(numeric) and max(map(len, parts)) <= 20:  # no table has more rows
                found.append((int(parts[0]), int(parts[1])))
            elif number or any(numeric):  # only the first line may be a header
                raise ValueError(f"{path}, line {number + 1}: expected two row numbers, got {_short(line.strip())!r}.")
    for i, j in found:
        if not (0 <= i < n_rows and 0 <= j < n_rows):
            raise ValueError(f"{path}: pair ({i}, {j}) is out of range, rows are numbered 0 to {n_rows - 1}.")
    return found
