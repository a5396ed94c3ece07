"""What every reader returns, and words that their messages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of features and the labels of some of them.

    Attributes:
        features: (n, d), or images (n, H, W) or (n, C, H, W).
        labels: (n,) the class number of each row, -1 where unknown.
        class_names: the name of each class number.
        source: where the rows come from, for messages.
        columns: the names of the features, where they have any.
        row_names: the id of each row, where there are ids.
        encoding: how the source became features, as JSON: ``read_table(..., encoding=...)`` treats new rows alike.
            None where the source is an array of numbers.
        sentences: one for each decision that was made in reading.
        measured: a matrix, dense or sparse, with one row for each row, and the names of its columns: what clusters are
            described by where that is not the features, e.g. genes.
        groupings: by name, (n,) texts: other ways to group the rows, which the report can show as colours.
        texts: the text of each row, where rows are texts.
    """

    features: NDArray[Any]
    labels: NDArray[np.int64]
    class_names: list[str]
    source: str
    columns: list[str] | None = None
    row_names: list[str] | None = None
    encoding: dict[str, Any] | None = None
    sentences: Sequence[str] = ()
    measured: tuple[Any, list[str]] | None = None
    groupings: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    texts: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.features)

    def column_kinds(self) -> list[str] | None:
        """The kind of each feature, as :class:`diffclust.tables.columns.Column` has it; None without an encoding."""
        if self.encoding is None or self.encoding["kind"] != "columns":
            return None
        from diffclust.tables.columns import Encoding

        return [column.kind for column in Encoding.from_dict(self.encoding).columns for _ in column.feature_names()]


def ending(path: Path) -> str:
    """The end of a file's name that tells its form, in lower case: ".csv", and ".csv.gz" for a compressed one."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:]) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def listed(names: Sequence[str], most: int = 12) -> str:
    """The names, separated by commas. After ``most`` of them only their number is given."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def no_column(source: str, name: str, columns: Sequence[Any], where: str = "") -> ValueError:
    """What to say about a column that is not there: those there are, and the one that may be meant."""
    names = {str(column).strip().lower(): str(column) for column in columns}
    meant = get_close_matches(name.strip().lower(), names, n=1)
    guess = f" Did you mean {names[meant[0]]!r}?" if meant else ""
    return ValueError(f"{source} has no column {name!r}{where}. It has {listed(list(map(str, columns)))}.{guess}")


def reason_of(error: Exception) -> str:
    """The first line of an error's message, or its type where it has none, to be put into a sentence."""
    return [*str(error).strip().splitlines(), type(error).__name__][0].rstrip(".")


def shortened(text: str) -> str:
    """The first 60 characters of a text."""
    return text if len(text) <= 60 else f"{text[:60]}..."
