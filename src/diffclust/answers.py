"""Questions as a table for a person to fill in, and the answers read back.

The columns are those of :func:`questions_csv`. Of a filled-in table only some are read: ``row`` (or ``id``, where the
rows have ids) and ``label`` of rows; ``row``, ``other`` (``id``, ``other_id``) and ``answer`` of pairs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffclust.files import csv_text, from_spreadsheet, read_text, separator

SAME, DIFFERENT = "same", "different"
ROW_COLUMNS = {"row": "id", "other": "other_id"}  # columns of row numbers, and of the ids beside them
UNSURE = ("", "unsure", "?")  # no answer


@dataclass(frozen=True)
class Answers:
    """What a person said.

    Attributes:
        labels: the class of each row that has an answer, by row number.
        must_link: pairs of rows of one class.
        cannot_link: pairs of rows of different classes.
    """

    labels: Mapping[int, str] = field(default_factory=dict)
    must_link: Sequence[tuple[int, int]] = ()
    cannot_link: Sequence[tuple[int, int]] = ()


def questions_csv(questions: Iterable[Any], row_names: Sequence[str] | None = None) -> str:
    """The text of a .csv file with an empty column to fill in: ``label`` of rows, ``answer`` of pairs.

    Questions are named tuples of :func:`diffclust.suggest` or :mod:`diffclust.mistakes`, all of rows or all of pairs.
    ``row_names`` are the ids of all rows, for the column ``id``.

    >>> from diffclust.suggestions import RowQuestion
    >>> print(questions_csv([RowQuestion(7, "new 1", 0.25, "why")], ["a"] * 8), end="")
    row,id,cluster,confidence,why,label
    7,a,new 1,0.2500,why,
    """
    records = []
    for question in questions:
        record: dict[str, object] = {}
        for name, value in question._asdict().items():
            record[name] = f"{value:.4f}" if isinstance(value, float) else value
            if row_names is not None and name in ROW_COLUMNS:
                record[ROW_COLUMNS[name]] = row_names[value]
        records.append(record | {"answer" if "other" in record else "label": ""})
    return csv_text(list(records[0]), [record.values() for record in records]) if records else "row,label\n"


def read_answers(path: Path, n_rows: int, row_names: Sequence[str] | None = None) -> Answers:
    """Reads a filled-in table of :func:`questions_csv`, or the one that a report saves. Empty answers are left out.

    Where the table has ids and ``row_names`` are given, they count, and not the row numbers. What cannot be used is a
    ValueError that names the line.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    found = parse_answers(read_text(path), str(path), n_rows, row_names)
    if found is None:
        raise ValueError(f"{path} must have the columns row and label, or row, other and answer.")
    return found


def parse_answers(text: str, source: str, n_rows: int, row_names: Sequence[str] | None = None) -> Answers | None:
    r"""Reads answers as :func:`read_answers` does, from the text of a file that is called ``source`` in messages.

    None where its first line lacks the columns of answers.

    >>> parse_answers("row,other,answer\n0,1,same\n1,2,different\n0,2,\n", "a.csv", 3)
    Answers(labels={}, must_link=[(0, 1)], cannot_link=[(1, 2)])
    """
    header = text.partition("\n")[0]
    mark = separator(header)
    columns = [name.strip('" \r') for name in header.split(mark)]
    if "row" not in columns or not ("label" in columns or {"other", "answer"} <= set(columns)):
        return None
    table = csv.DictReader(io.StringIO(text), columns, delimiter=mark)
    next(table, None)  # the header
    place = None if row_names is None else _places(row_names)
    labels: dict[int, str] = {}
    pairs: dict[str, list[tuple[int, int]]] = {SAME: [], DIFFERENT: []}
    for line in table:
        where = f"{source}, line {table.line_num}"
        label = from_spreadsheet((line.get("label") or "").strip())
        answer = (line.get("answer") or "").strip().lower()
        if label.lower() not in UNSURE:
            row = _row(line, "row", place, n_rows, where)
            if labels.setdefault(row, label) != label:
                raise ValueError(f"{where}: row {row} has two labels, {labels[row]!r} and {label!r}. Keep one.")
        if answer in pairs:
            first, second = (_row(line, name, place, n_rows, where) for name in ROW_COLUMNS)
            pairs[answer].append((first, second))
        elif answer not in UNSURE:
            raise ValueError(f"{where}: answer must be {SAME}, {DIFFERENT} or empty, got {answer!r}.")
    return Answers(labels, pairs[SAME], pairs[DIFFERENT])


def _places(row_names: Sequence[str]) -> dict[str, int]:
    """The row of each id, -1 for an id of several rows."""
    place: dict[str, int] = {}
    for row, name in enumerate(row_names):
        place[name] = -1 if name in place else row
    return place


def _row(line: dict[str, str], column: str, place: dict[str, int] | None, n_rows: int, where: str) -> int:
    """The number of the row that a line is about, by its id where there are ids, and only one row has this one."""
    name = line.get(ROW_COLUMNS[column])
    if place is not None and name is not None:
        if name not in place:
            raise ValueError(f"{where}: no row of the data has the id {name!r}.")
        if place[name] >= 0:
            return place[name]
    text = (line.get(column) or "").strip()
    if not text.isdecimal() or int(text) >= n_rows:
        raise ValueError(f"{where}: {column} must be a row number from 0 to {n_rows - 1}, got {text!r}.")
    return int(text)
