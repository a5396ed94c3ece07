"""Files that are there whole or not at all, and the texts of .csv files."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replaced_atomically(path: Path) -> Iterator[Path]:
    """Gives a temporary name in the same folder, and renames it at the end: the final name never shows half a file."""
    if path.is_dir():  # found before the work, not after it
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:  # the system's own error for a full disk names no file
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | str | Callable[[io.BytesIO], Any]) -> None:
    """Writes a file so that the final name never shows half of it.

    A function gets a buffer in memory to write to, because NumPy and torch do not report a full disk when they write to
    a file themselves.
    """
    if callable(content):
        buffer = io.BytesIO()
        content(buffer)
        content = buffer.getvalue()
    with replaced_atomically(path) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def read_text(path: Path) -> str:
    """The text of a file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file in UTF-8 (byte {error.start}). Save it as one.") from error


def separator(first_line: str) -> str:
    """The separator that occurs most often in the first line. csv.Sniffer takes decimal points for separators."""
    return max(",;\t", key=first_line.count)


def csv_text(header: Sequence[str] | None, rows: Iterable[Iterable[Any]]) -> str:
    """The text of a .csv file that a spreadsheet can open, see :func:`spreadsheet_text`; None leaves the header out."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header is not None:
        writer.writerow(header)
    writer.writerows([spreadsheet_text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return text.getvalue()


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
# What OWASP lists for "CSV injection", full-width signs included.
_FORMULA_STARTS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def spreadsheet_text(text: str) -> str:
    """The text, with a quote before it where a spreadsheet would take it for a formula.

    >>> [spreadsheet_text(text) for text in ("=1+1", "-1", "+3.5e2", "-x", "cat")]
    ["'=1+1", '-1', '+3.5e2', "'-x", 'cat']
    """
    return f"'{text}" if text.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(text) else text


def from_spreadsheet(text: str) -> str:
    """The inverse of :func:`spreadsheet_text`.

    >>> [from_spreadsheet(text) for text in ("'=1+1", "'quoted", "cat")]
    ['=1+1', "'quoted", 'cat']
    """
    return text[1:] if text.startswith("'") and spreadsheet_text(text[1:]) == text else text
