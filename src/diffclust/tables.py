"""Files → arrays: features, labels and pairs. Errors name the file, the column and the row."""

from __future__ import annotations

import csv
import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.answers import parse_answers

FORMATS = (".npy", ".npz", ".csv", ".tsv", ".parquet")
# Texts that stand for an unknown label, in lower case.
UNKNOWN = frozenset(("", "-1", "nan", "nat", "none", "null", "na", "n/a", "#n/a", "<na>", "?", "unknown"))
_DECIMAL = re.compile(r"-?\d+\.\d*(e[+-]\d+)?", re.ASCII)


@dataclass(frozen=True)
class Table:
    """Rows of features and the labels of some of them.

    Attributes:
        features: (n, d), or images (n, H, W) or (n, C, H, W).
        labels: (n,) the class number of each row, -1 where unknown.
        class_names: the name of each class number.
        source: where the rows come from, for messages.
        columns: the names of the features, where they have any.
        row_names: the id of each row, where there are ids.
    """

    features: NDArray[Any]
    labels: NDArray[np.int64]
    class_names: list[str]
    source: str
    columns: list[str] | None = None
    row_names: list[str] | None = None

    def __len__(self) -> int:
        return len(self.features)


def read_table(path: Path, labels: str | None = None, at_least: int = 2) -> Table:
    """Reads features, and labels if there are any.

    Args:
        path: a file of one of ``FORMATS``, or a folder of ``.npy`` files with one row each.
        labels: the name of a column of the table, a key of an ``.npz``, or a file with one label for each row. Blank or
            -1 is unknown. With None, no row is labelled.
        at_least: the smallest number of rows that is accepted.

    Raises:
        ValueError: a file cannot be used. The message names the file, and where possible the column and the row.
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
    rows = [_load_array(file) for file in files]
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
    with _numpy_errors(path):
        array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} holds several arrays: its name should end in .npz.")
    return array


def _load_arrays(path: Path) -> Any:
    with _numpy_errors(path):
        file = np.load(path, allow_pickle=False)
    if isinstance(file, np.ndarray):
        raise ValueError(f"{path} holds one array: its name should end in .npy.")
    return file


def _member(arrays: Any, name: str, path: Path) -> NDArray[Any]:
    with _numpy_errors(path):
        array = arrays[name]
    return array


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
    """The table. The column of labels stays text."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first_line = _first_line(file)
    separator = _separator(path, first_line)
    _check_header(path, first_line, separator)
    with _parser_errors(path) as pd:
        # Blanks and words are not converted here: what "NA" means depends on the column.
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
    """Gives pandas, and turns what it raises into a ValueError that names the file."""
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
    except Exception as error:  # parsers raise errors of many types
        reason = [*str(error).strip().splitlines(), type(error).__name__][0].rstrip(".")
        raise ValueError(f"{path} cannot be read as a table: {reason}.") from error


def _first_line(lines: Iterable[str]) -> str:
    """The first line that is not blank."""
    return next((line for line in lines if line.strip()), "")


def _separator(path: Path, first_line: str) -> str:
    """The separator that the first line has most of. csv.Sniffer, which reads more, takes decimal points for one."""
    return "\t" if _ending(path) == ".tsv" else max(",;\t", key=first_line.count)


def _check_header(path: Path, first_line: str, separator: str) -> None:
    """Raises a ValueError if the first line is data: it would be taken for the names of columns, and lost.

    Names may be numbers if they count the columns or, as wavelengths do, increase or decrease.
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
    """Whether a column has no name and integers that are all different: pandas and R write one in front of a table.

    The integers need not be 0, 1, 2, ...: the table may be shuffled, or a part of another one.
    """
    return str(name).startswith("Unnamed: ") and series.dtype.kind in "iu" and bool(series.is_unique)


def _numbers(series: Any, name: str, path: Path) -> NDArray[np.float64]:
    import pandas as pd

    # As text, times are not converted to nanoseconds, and integers of hundreds of digits are infinite, not an error.
    as_text = series.dtype.kind in "mMO"
    numbers = pd.to_numeric(series.astype(str) if as_text else series, errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(np.isnan(numbers))
    if len(wrong):
        value = series.iloc[wrong[0]]
        blank = str(value).strip().lower() in UNKNOWN
        what = "is blank" if blank else f"is {_short(str(value))!r}, not a number,"
        advice = "Fill or remove it" if blank else "Turn it into numbers or remove it"
        raise ValueError(f"{path}: column {name!r} {what} in row {wrong[0]}. {advice}.")
    return numbers


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."


def check_columns(table: Table, expected: list[str] | None) -> None:
    """Raises a ValueError unless a table has the expected columns. Tables without names of columns are not compared."""
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
    """The names, separated by commas. After ``most`` of them only their number is given."""
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
        features = np.ascontiguousarray(np.moveaxis(features, -1, 1))  # training wants channels first
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
    """One label for each row, from an array or a text file. Of a table the last column is read.

    A text file with one line more than there are rows starts with a header, or ends with a blank line. With the columns
    row and label, as ``diffclust ask`` writes them, it has labels of some rows only.
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
    answers = parse_answers(text, str(path), n_rows)
    if answers is not None:
        return np.array([answers.labels.get(row, "") for row in range(n_rows)], object)
    lines = csv.reader(io.StringIO(text), delimiter=_separator(path, _first_line(text.splitlines())))
    try:
        values = [line[-1] if line else "" for line in lines]
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as labels: {error}.") from error
    return np.array(_without_header(values, n_rows), object)


def _without_header(values: list[str], n_rows: int) -> list[str]:
    while len(values) > n_rows + 1 and not values[-1]:  # blank lines at the end
        values = values[:-1]
    if len(values) != n_rows + 1:
        return values
    first, *others = values
    starts_with_label = first in others or not _order(first)[0]
    return values[:-1] if starts_with_label and not values[-1] else others


def encode_labels(found: NDArray[Any]) -> tuple[NDArray[np.int64], list[str]]:
    """(n,) class numbers, -1 where unknown, and the name of each. Names are sorted, those that are numbers by size."""
    texts = [_text(value) for value in found]
    names = sorted({text for text in texts if text.lower() not in UNKNOWN}, key=_order)
    number = {name: position for position, name in enumerate(names)}
    return np.array([number.get(text, -1) for text in texts], np.int64), names


def _text(value: Any) -> str:
    """A label as text. 1.0, 1 and 1.000e+00, which np.savetxt writes, are the same label. 2E5 and 02 are names."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    text = "" if value is None else str(value).strip()
    if _DECIMAL.fullmatch(text) and float(text).is_integer():
        return str(int(float(text)))
    return text


def _order(name: str) -> tuple[bool, float, str]:
    """A sort key: numbers first, by size."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name


def read_pairs(path: Path, n_rows: int, kind: str = "must_link") -> list[tuple[int, int]]:
    """Pairs of row numbers, counted from 0: two on each line, or an (m, 2) array. A header is skipped.

    Of answers to pairs, as ``diffclust ask`` writes them, those of the kind "must_link" or "cannot_link" are read.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    if _ending(path) == ".npy":
        pairs = _load_array(path)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
            raise ValueError(f"{path} must be integers of shape (m, 2), got {pairs.dtype} {pairs.shape}.")
        found = [(int(i), int(j)) for i, j in pairs]
    elif answers := parse_answers(_read_text(path), str(path), n_rows):
        found = list(getattr(answers, kind))
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
