"""Tables with named columns: csv, parquet, and data frames in memory. All become a pandas DataFrame."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from diffclust.files import separator
from diffclust.tables.table import ending, listed, reason_of

FORMATS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
_ID_NAME = re.compile(r"(.*[ _.-])?(id|uuid|guid|key|index|barcode|name)|Unnamed: \d+", re.IGNORECASE)


def read_frame(path: Path, text_columns: Collection[str] = ()) -> Any:
    """The table of a file. In a .csv file, ``text_columns`` and columns that are named like an id stay text."""
    if ending(path) == ".parquet":
        return read_parquet(path)
    frame = _read_csv(path, text_columns)
    twice = [name for name in text_columns if f"{name}.1" in frame.columns and _head(path).names.count(name) > 1]
    if twice:  # the second one would be a feature
        raise ValueError(f"{path} has several columns of the name {listed(twice)}. Rename them.")
    if not frame.index.is_unique:
        raise _too_many_values(path, _head(path))
    return frame


def read_pieces(path: Path, text_columns: Collection[str], n_rows: int) -> Iterator[Any]:
    """The table of a file in pieces of at most so many rows; memory holds one of them."""
    if ending(path) != ".parquet":
        with _read_csv(path, text_columns, chunksize=n_rows) as pieces, _parser_errors(path):
            yield from pieces
        return
    with _parser_errors(path):
        import pyarrow.parquet as pq

        with pq.ParquetFile(path, pre_buffer=False) as file:  # a buffer would keep what was read
            for batch in file.iter_batches(n_rows):
                yield batch.to_pandas()


def looks_like_id(name: Any) -> bool:
    """Whether a column is named like an id."""
    return _ID_NAME.fullmatch(str(name).strip()) is not None


def is_frame(x: Any) -> bool:
    """Whether x is a data frame of pandas, polars or Arrow."""
    return hasattr(x, "columns") and (hasattr(x, "to_pandas") or hasattr(x, "iloc"))


def as_frame(x: Any) -> Any:
    """A data frame of pandas, polars or Arrow as one of pandas."""
    return x if hasattr(x, "iloc") else x.to_pandas()


def read_parquet(path: Path) -> Any:
    """The table of a parquet file."""
    with _parser_errors(path) as pd:
        return pd.read_parquet(path)


def _read_csv(path: Path, text_columns: Collection[str], chunksize: int | None = None) -> Any:
    with _parser_errors(path):
        head = _head(path)
    _check_header(path, head.names)
    more = head.first_row[len(head.names) :]
    ends_blank = bool(more) and not any(cell.strip() for cell in more)  # separators at the ends of lines
    if len(more) > 1 and not ends_blank:  # one more is the row's name, as R writes tables
        raise _too_many_values(path, head)
    unnamed = [f"Unnamed: {place}" for place in range(len(head.names), len(head.first_row))]
    with _parser_errors(path) as pd:
        # Blanks and words are not converted here: what "NA" means depends on the column.
        return pd.read_csv(
            path,
            sep=head.separator,
            dtype={name: str for name in head.names if name in text_columns or looks_like_id(name)},
            names=[*head.names, *unnamed] if ends_blank else None,
            header=0,
            keep_default_na=False,
            low_memory=False,
            encoding="utf-8-sig",
            skipinitialspace=True,
            chunksize=chunksize,
        )


class _Head(NamedTuple):
    """The beginning of a table in a text file."""

    separator: str
    names: list[str]
    first_row: list[str]


def _head(path: Path) -> _Head:
    with _open_text(path) as file:
        line = first_line(file)
        mark = separator_of(path, line)
        records = csv.reader(chain([line], file), delimiter=mark, skipinitialspace=True)
        names = next(records, [])
        try:
            return _Head(mark, names, next((record for record in records if any(record)), []))
        except csv.Error:  # a text that is longer than this parser takes
            return _Head(mark, names, [])


def _too_many_values(path: Path, head: _Head) -> ValueError:
    n, mark = len(head.names), "a tab" if head.separator == "\t" else repr(head.separator)
    return ValueError(
        f"{path}: the first line names {n} column{'s' * (n != 1)}, but the next row has {len(head.first_row)} values. "
        f"The first line must name every column, and values that contain {mark} need quotes."
    )


def _open_text(path: Path) -> IO[str]:
    opened: IO[str] = (gzip.open if ending(path).endswith(".gz") else open)(
        path, "rt", encoding="utf-8-sig", errors="replace"
    )
    return opened


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
        raise ValueError(f"{path} cannot be read as a table: {reason_of(error)}.") from error


def first_line(lines: Iterable[str]) -> str:
    """The first line that is not blank."""
    return next((line for line in lines if line.strip()), "")


def separator_of(path: Path, first_line: str) -> str:
    """The separator of a table in a text file."""
    return "\t" if ending(path).startswith(".tsv") else separator(first_line)


def split_lines(path: Path, text: str) -> list[list[str]]:
    """The cells of each line of a text file with labels."""
    try:
        return list(csv.reader(io.StringIO(text), delimiter=separator_of(path, first_line(text.splitlines()))))
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as labels: {error}.") from error


def _check_header(path: Path, names: list[str]) -> None:
    """A ValueError if the first line is data: it would be taken for the names of columns, and lost."""
    try:
        numbers = np.array([float(name) for name in names])
    except ValueError:
        return
    # Names may be numbers if they count the columns or, as wavelengths do, increase or decrease.
    steps = np.diff(numbers)
    counts = any(np.array_equal(numbers, np.arange(len(numbers)) + first) for first in (0, 1))
    runs = len(numbers) > 2 and ((steps > 0).all() or (steps < 0).all())
    if not (counts or runs):
        raise ValueError(
            f"{path} starts with a row of numbers, not with the names of its columns. Put a line with names above it."
        )
