"""What is known about rows: labels and pairs, from files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.answers import parse_answers
from diffclust.files import read_text
from diffclust.labels import UNKNOWN_NAMES
from diffclust.tables import arrays
from diffclust.tables.frames import read_parquet, split_lines
from diffclust.tables.table import ending, listed, shortened

_UNNAMED = re.compile(r'\s*("")?[,;\t]')
_DECIMAL = re.compile(r"-?\d+\.\d*(e[+-]\d+)?", re.ASCII)


def read_labels(
    path: Path, n_rows: int, row_names: Sequence[str] | None = None, id_column: str | None = None
) -> NDArray[Any]:
    """Reads a label for each row, (n,), from an array or a text file. Of a table the last column is read.

    A text file with one line more than there are rows starts with a header, or ends with a blank line. With the columns
    row and label, as ``diffclust ask`` writes them, it has labels of some rows only, and also with a column of ids. In
    a text file that has the ``id_column`` of the data, labels go by ids, in any order, and so they do by an index that
    pandas has written beside both.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    if ending(path) == ".npy":
        return arrays.as_label_vector(arrays.load_array(path), str(path))
    if ending(path) == ".npz":
        with arrays.load_arrays(path) as members:
            names = list(members)
            if len(names) != 1:
                raise ValueError(f"{path} has the arrays {listed(names) or '(none)'}: a file of labels has one.")
            return arrays.as_label_vector(arrays.member(members, names[0], path), str(path))
    if ending(path) == ".parquet":
        frame = read_parquet(path)
        if frame.shape[1] == 0:
            raise ValueError(f"{path} has no column.")
        labels = frame.iloc[:, -1].to_numpy(object)
        index = frame.index
        plain = index.equals(frame.reset_index(drop=True).index)
        return labels if plain else _by_unnamed(path, list(map(str, index)), labels, row_names, id_column)
    text = read_text(path)
    answers = parse_answers(text, str(path), n_rows, row_names)
    if answers is not None:
        return np.array([answers.labels.get(row, "") for row in range(n_rows)], object)
    lines = split_lines(path, text)
    header = [name.strip() for name in lines[0]] if lines else []
    if row_names is not None and id_column in header and len(header) > 1:
        return _by_id(path, lines, row_names, header.index(str(id_column)))
    if len(header) > 1 and not header[0]:
        filled = [line for line in lines[1:] if any(line)]
        labels = np.array([line[-1] for line in filled], object)
        return _by_unnamed(path, [line[0].strip() for line in filled], labels, row_names, id_column)
    return np.array(_without_header([line[-1] if line else "" for line in lines], n_rows), object)


def _by_id(path: Path, lines: list[list[str]], row_names: Sequence[str], column: int) -> NDArray[Any]:
    """Labels of rows by the ids in one column of a file with a header; the last other column has the labels."""
    ids = set(row_names)
    labels: dict[str, str] = {}
    last = len(lines[0]) - (2 if column == len(lines[0]) - 1 else 1)
    for number, line in enumerate(lines[1:], 2):
        if any(line):
            name, label = (line[each].strip() if each < len(line) else "" for each in (column, last))
            if name not in ids:
                raise ValueError(f"{path}, line {number}: no row of the data has the id {name!r}.")
            if labels.setdefault(name, label) != label:
                raise ValueError(f"{path}, line {number}: {name!r} has two labels, {labels[name]!r} and {label!r}.")
    return np.array([labels.get(name, "") for name in row_names], object)


def _by_unnamed(
    path: Path, names: list[str], labels: NDArray[Any], row_names: Sequence[str] | None, id_column: str | None
) -> NDArray[Any]:
    """Labels of rows by a column without a name, in which pandas and R write the index of a table."""
    unique = len(set(names)) == len(names)
    has_ids = id_column is not None and not id_column.startswith("Unnamed: ")
    if unique and not has_ids and row_names is not None and set(names) <= set(row_names):
        label_of = dict(zip(names, labels, strict=True))
        return np.array([label_of.get(name, "") for name in row_names], object)
    if unique and all(map(str.isdecimal, names)) and sorted(names, key=int) != names:
        raise ValueError(
            f"{path}: the index, in a first column without a name, does not count up. If labels are in the order of "
            "the data, leave it out. If it has row numbers, counted from 0, name the columns row and label."
        )
    return labels


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
    texts = [label_text(value) for value in found]
    names = sorted({text for text in texts if text.lower() not in UNKNOWN_NAMES}, key=_order)
    number = {name: position for position, name in enumerate(names)}
    return np.array([number.get(text, -1) for text in texts], np.int64), names


def label_text(value: Any) -> str:
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


def read_pairs(path: Path, n_rows: int, kind: str) -> tuple[list[tuple[int, int]], NDArray[np.float64]]:
    """Reads pairs of row numbers, counted from 0: two on each line, or an (m, 2) array; and their weights.

    A third number on a line is the weight of the pair, nan where there is none. A header is skipped. Of answers to
    pairs, as ``diffclust ask`` writes them, those of the kind "must_link" or "cannot_link" are read.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    found: list[tuple[int, int]] = []
    weights: list[float] = []
    if ending(path) == ".npy":
        pairs = arrays.load_array(path)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
            raise ValueError(f"{path} must be integers of shape (m, 2), got {pairs.dtype} {pairs.shape}.")
        found = [(int(i), int(j)) for i, j in pairs]
    elif answers := parse_answers(read_text(path), str(path), n_rows):
        found = list(getattr(answers, kind))
    else:
        for number, line in enumerate(read_text(path).splitlines()):
            parts = re.sub(r"[,;\"]", " ", line).split()
            if not parts:
                continue
            if not number and _UNNAMED.match(line):  # the pairs would be read from it and the column after it
                raise ValueError(f"{path}, line 1: the first column has no name. If it numbers lines, leave it out.")
            weight = np.nan if len(parts) == 2 else _weight(parts[2]) if len(parts) == 3 else None
            numeric = all(part.removeprefix("-").isdecimal() and len(part) <= 20 for part in parts[:2])
            if numeric and weight is not None:
                found.append((int(parts[0]), int(parts[1])))
                weights.append(weight)
            elif number or any(map(_is_number, parts)):  # only the first line may be a header
                raise ValueError(
                    f"{path}, line {number + 1}: expected two row numbers and perhaps a weight, got "
                    f"{shortened(line.strip())!r}."
                )
    for i, j in found:
        if not (0 <= i < n_rows and 0 <= j < n_rows):
            raise ValueError(f"{path}: pair ({i}, {j}) is out of range, rows are numbered 0 to {n_rows - 1}.")
    return found, np.array(weights or [np.nan] * len(found))


def _is_number(text: str) -> bool:
    try:
        float(text.strip("[](){}"))
    except ValueError:
        return False
    return True


def _weight(text: str) -> float | None:
    """A number from 0 to inf, else None."""
    try:
        weight = float(text)
    except ValueError:
        return None
    return weight if weight >= 0 else None
