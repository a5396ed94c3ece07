"""Tables with named columns: csv, parquet, and data frames in memory. All become a pandas DataFrame."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from diffclust.files import separator
from diffclust.tables.table import ending

FORMATS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
_ID_NAME = re.compile(r"(.*[ _.-])?(id|uuid|guid|key|index|barcode|name)|Unnamed: \d+", re.IGNORECASE)


def read_frame(path: Path, text_columns: Collection[str] = ()) -> Any:
    """The table of a file. In a .csv file, ``text_columns`` and columns that are named like an id stay text."""
    return read_parquet(path) if ending(path) == ".parquet" else _read_csv(path, text_columns)


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
    with _parser_errors(path) as pd:
        with _open_text(path) as file:
            line = first_line(file)
        mark = separator_of(path, line)
        names = next(csv.reader([line], delimiter=mark, skipinitialspace=True), [])
        _check_header(path, names)
        # Blanks and words are not converted here: what "NA" means depends on the column.
        return pd.read_csv(
            path,
            sep=mark,
            dtype={name: str for name in names if name in text_columns or looks_like_id(name)},
            keep_default_na=False,
            low_memory=False,
            encoding="utf-8-sig",
            skipinitialspace=True,
            chunksize=chunksize,
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
        reason = [*str(error).strip().splitlines(), type(error).__name__][0].rstrip(".")
        raise ValueError(f"{path} cannot be read as a table: {reason}.") from error


def read_text(path: Path) -> str:
    """The text of a file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file in UTF-8 (byte {error.start}). Save it as one.") from error


def first_line(lines: Iterable[str]) -> str:
    """The first line that is not blank."""
    return next((line for line in lines if line.strip()), "")


def separator_of(path: Path, first_line: str) -> str:
    """The separator of a table in a text file."""
    return "\t" if ending(path).startswith(".tsv") else separator(first_line)


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
