"""Which column of a frame is what, and how each becomes numbers.

:func:`choose_columns` looks at a frame once and decides. The decisions are an :class:`Encoding`, which is plain JSON,
so a run stores it and treats new rows alike. :meth:`Encoding.transform` makes the numbers.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.labels import UNKNOWN_NAMES
from diffclust.tables.frames import looks_like_id
from diffclust.tables.known import label_text
from diffclust.tables.table import listed, no_column, shortened

MOST_CATEGORIES = 50  # a text column with more different values is text, not a category
MISSING = "missing"  # the category of blank cells
_LIST = re.compile(r"\[[-+0-9.eE,\s]*\d[-+0-9.eE,\s]*\]")
# Numbers, dates and times that are not read as such: 1.234,5, $5, 12 %, 3 kg, 31.05.2024, 8:30. Not 18-25.
_OTHERWISE = re.compile(
    r"(?!\d+\s*[-–]\s*\d+$)[-+(]?\s*[€$£¥]?\s*\d[-\d.,:/'’\s]*\)?(%|[€$£¥]|(?<=\s)[A-Za-zµ°]{1,3})?"
)
ONLY_AS = "numbers and dates are read only as 1234.5 and 2024-05-31"
# As categories, these are values like any other.
BLANK = UNKNOWN_NAMES - {"-1", "-1.0", "none", "unknown", "unlabelled", "unlabeled"}


@dataclasses.dataclass(frozen=True)
class Column:
    """A column that is used.

    Attributes:
        name: of the column.
        kind: "number"; "date", as days since 1970; "category", as a 0 or 1 for each value; or "vector", a list of
            numbers in each row.
        fill: what a missing number or date becomes; None if none may be missing.
        categories: the values of a category.
        width: the length of a vector.
    """

    name: str
    kind: str
    fill: float | None = None
    categories: list[str] = dataclasses.field(default_factory=list)
    width: int = 1

    def feature_names(self) -> list[str]:
        """The names of the features that the column becomes."""
        if self.kind == "category":
            return [f"{self.name} = {value}" for value in self.categories]
        return [f"{self.name} {place}" for place in range(self.width)] if self.kind == "vector" else [self.name]


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How rows of a frame become rows of numbers.

    Attributes:
        columns: those that are used, in order.
        id: the column whose values name the rows; None for the frame's index, or none.
    """

    columns: Sequence[Column]
    id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": "columns", "id": self.id, "columns": [dataclasses.asdict(column) for column in self.columns]}

    @classmethod
    def numbers(cls, names: Sequence[str]) -> Encoding:
        """The encoding of a table that has numbers only, and none missing."""
        return cls([Column(name, "number") for name in names])

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Encoding:
        """From JSON."""
        return cls([Column(**column) for column in content["columns"]], content["id"])

    def feature_names(self) -> list[str]:
        """The name of each feature."""
        return [name for column in self.columns for name in column.feature_names()]

    def transform(self, frame: Any, source: str) -> tuple[NDArray[Any], list[str]]:
        """The features (n, d) of rows, and a sentence for each thing that was not as in the table of the run.

        A column that is missing or has a value that does not fit is a ValueError, which names the row.
        """
        missing = [column.name for column in self.columns if column.name not in frame.columns]
        if missing:
            there = listed(list(map(str, frame.columns)))
            raise ValueError(
                f"{source} must have the columns of the run's table: it lacks {listed(missing)}. It has {there}."
            )
        parts, sentences, empty = [], [], []
        for column in self.columns:
            series = frame[column.name]
            if column.kind == "vector":
                parts.append(_vectors(series, column, source))
            elif column.kind == "category":
                part, unseen = _one_hot(series, column)
                parts.append(part)
                sentences += [f"Column {column.name!r}: {unseen}"] if unseen else []
            else:
                values = _to_numbers(series, column.kind, source)
                blank = np.flatnonzero(np.isnan(values))
                if len(blank):
                    if column.fill is None:
                        where = f"{source}: column {column.name!r} is blank in row {blank[0]}"
                        raise ValueError(f"{where}. Fill or remove it.")
                    empty.append(repr(column.name))
                    values = np.where(np.isnan(values), column.fill, values)
                parts.append(values[:, None])
        if empty:
            sentences.append(f"Missing values become the median of their column: {listed(empty)}.")
        return np.concatenate(parts, axis=1), sentences


def choose_columns(frame: Any, source: str, id_column: str | None = None) -> tuple[Encoding, list[str]]:
    """Decides what each column of a pandas frame is, and says so in sentences. The column of labels is not in it.

    ``id_column`` names the rows; None looks for one. A column that mixes numbers and words is a ValueError, and so is a
    frame without a column that can be used.
    """
    if not frame.columns.is_unique:
        twice = list(map(str, frame.columns[frame.columns.duplicated()]))
        raise ValueError(f"{source} has several columns of the name {listed(twice)}. Rename them.")
    found = choose_id(frame, source, id_column)
    used: list[Column] = []
    said: dict[str, list[str]] = defaultdict(list)
    if found is not None and not str(found).startswith("Unnamed: "):
        said["The rows are named by {}, which is no feature."].append(str(found))
    for name in frame.columns:
        if name != found:
            column, remark = _choose(frame[name], source)
            used += [column] if column is not None else []
            if remark:
                said[remark].append(str(name))
    sentences = [text.format(listed([repr(name) for name in names])) for text, names in said.items()]
    if not used:
        raise ValueError(" ".join([f"{source} has no column of features.", *sentences]))
    return Encoding(used, found), sentences


def choose_id(frame: Any, source: str, id_column: str | None = None) -> Any:
    """The column that names the rows: the given one, or one that is found, or None."""
    if id_column is not None and id_column not in frame.columns:
        raise no_column(source, id_column, frame.columns)
    return id_column if id_column is not None else _find_id(frame)


def row_names(frame: Any, encoding: Encoding) -> list[str] | None:
    """The ids of the rows: those of the id column, or else of an index that is more than row numbers."""
    if encoding.id is not None and encoding.id in frame.columns:
        return [str(value) for value in frame[encoding.id]]
    plain = type(frame.index).__name__ == "RangeIndex" or frame.index.equals(frame.reset_index(drop=True).index)
    return None if plain else [str(value) for value in frame.index]


def _find_id(frame: Any) -> Any:
    """The first column that is named like an id, or text in first place, whose values are all different."""
    for place, name in enumerate(frame.columns):
        series = frame[name]
        kind = _kind(series)
        named = looks_like_id(name) and (kind == "text" or _are_integers(series, kind))
        if (named or (place == 0 and kind == "text")) and len(series) > 1 and series.is_unique and series.notna().all():
            return name
    return None


def _choose(series: Any, source: str) -> tuple[Column | None, str]:
    """What one column is, None if it is left out; and a sentence with {} for its name, or ""."""
    name, kind, missing = str(series.name), _kind(series), _missing(series)
    known = series[~missing]
    if len(known) == 0:
        return None, "Left out, because they have no values: {}."
    if kind == "record":
        return None, "Left out, because they hold records: {}."
    if kind == "vector":
        width = len(_as_vector(known.iloc[0]))
        return Column(name, kind, width=width), "Lists become a feature for each of their numbers: {}."
    if kind == "text":
        return _choose_text(name, _texts(known), bool(missing.any()))
    values = _to_numbers(series, kind, source)
    empty = np.isnan(values)
    if len(series) > 1 and np.ptp(values[~empty]) == 0 and not empty.any():
        return None, "Left out, because all values are the same: {}."
    unit = "days" if series.dtype.kind == "m" else "days since 1970"
    return Column(name, kind, float(np.nanmedian(values))), f"Dates become {unit}: {{}}." if kind == "date" else ""


def _choose_text(name: str, known: Any, any_missing: bool) -> tuple[Column | None, str]:
    values = sorted(known.unique())
    if len(values) == 1 and not any_missing:
        return None, "Left out, because all values are the same: {}."
    otherwise = all(_OTHERWISE.fullmatch(value) for value in values)
    if len(values) > min(MOST_CATEGORIES, max(2, len(known) // 2)):
        if otherwise:
            return None, f"Left out, because {ONLY_AS}: {{}}."
        return None, (
            "Left out, because it is text of many different values: {}. To read a text, use text=COLUMN; to name the "
            "rows by it, use id_column=COLUMN."
        )
    categories = [*values, MISSING] if any_missing and MISSING not in values else values
    blank = f", blank is {MISSING!r}" if any_missing else ""
    but = f"; {ONLY_AS}" if otherwise else ""
    remark = f"Categories become a 0 or 1 for each value{blank}{but}: {{}}."
    return Column(name, "category", categories=categories), remark


# --------------------------------------------------------------------------------------------------------------- Values


def _kind(series: Any) -> str:
    """One of "number", "date", "vector", "record", "text". Text of which half or more holds numbers is "number"."""
    if series.dtype.kind in "biuf":
        return "number"
    if series.dtype.kind in "mM":
        return "date"
    known = series[~_missing(series)]
    if _is_vector(known):
        return "vector"
    if len(known) and isinstance(known.iloc[0], dict):
        return "record"
    if str(series.dtype) == "category" or len(known) == 0:
        return "text"
    texts = known.astype(str).str.strip()
    if texts.str.fullmatch(_LIST).all():
        return "vector"
    if not set(texts.unique()) <= {"True", "False"} and (~np.isnan(_parsed(known))).mean() >= 0.5:
        return "number"
    return "date" if texts.str.match(r"\d{4}-\d{2}-\d{2}").all() and _times(texts).notna().all() else "text"


def _is_text(series: Any) -> bool:
    return series.dtype.kind not in "biufmM"


def _is_vector(known: Any) -> bool:
    return len(known) > 0 and isinstance(known.iloc[0], (list, tuple, np.ndarray))


def _as_vector(value: Any) -> NDArray[Any]:
    """A list, also as csv files have it: "[0.1, 0.2]", with commas or blanks."""
    return (
        np.array(value.strip("[] ").replace(",", " ").split(), np.float64)
        if isinstance(value, str)
        else np.asarray(value)
    )


def _missing(series: Any) -> Any:
    """Whether each value is missing: what pandas says, and blank texts."""
    missing = series.isna()
    if _is_text(series) and not _is_vector(series[~missing]):
        missing = missing | series.astype(str).str.strip().str.lower().isin(BLANK)
    return missing


def _parsed(series: Any) -> NDArray[np.float64]:
    """Numbers, NaN for all else. "True" and "False" are 1 and 0."""
    import pandas as pd

    if not _is_text(series):
        return pd.to_numeric(series).astype("Float64").to_numpy(np.float64, na_value=np.nan)
    # As text, integers of hundreds of digits are infinite, not an error.
    texts = series.astype(str).str.strip().replace({"True": "1", "False": "0"})
    return pd.to_numeric(texts, errors="coerce").to_numpy(np.float64)


def _are_integers(series: Any, kind: str) -> bool:
    """Whether all values are whole numbers, written without a decimal point."""
    if kind != "number" or not _is_text(series):
        return series.dtype.kind in "iu"
    return bool(series.astype(str).str.fullmatch(r"\s*\d+\s*").all())


def _times(texts: Any) -> Any:
    """Texts as times, where they are written as ISO 8601 says: 2024-05-31."""
    import pandas as pd

    return pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce")


def _days(series: Any, missing: Any) -> NDArray[np.float64]:
    """Days, since 1970 or of a span of time."""
    import pandas as pd

    times = _times(series.astype(str).where(~missing)) if _is_text(series) else series
    if times.dtype.kind == "M":
        times = times - pd.Timestamp(0, tz=times.dt.tz)
    return (times / pd.Timedelta(days=1)).to_numpy(np.float64)


def _to_numbers(series: Any, kind: str, source: str) -> NDArray[np.float64]:
    """(n,) numbers, or days since 1970, NaN where missing."""
    missing = _missing(series)
    values = _days(series, missing) if kind == "date" else _parsed(series)
    if kind == "number" and _is_text(series):
        missing = missing | series.astype(str).str.strip().str.lower().isin(UNKNOWN_NAMES)
    unfit = np.flatnonzero(~np.isfinite(values) & ~missing.to_numpy(bool))
    if len(unfit):
        what, value = "a date" if kind == "date" else "a finite number", shortened(str(series.iloc[unfit[0]]))
        raise ValueError(
            f"{source}: column {str(series.name)!r} is {value!r}, not {what}, in row {unfit[0]}. "
            f"Turn it into {what}, or leave it blank."
        )
    return values


def _vectors(series: Any, column: Column, source: str) -> NDArray[np.float64]:
    rows = [_as_vector(value) for value in series]
    for number, row in enumerate(rows):
        if row.shape != (column.width,) or row.dtype.kind not in "biuf":
            raise ValueError(
                f"{source}: column {column.name!r} must have a list of {column.width} numbers in each row, but not in "
                f"row {number}."
            )
    return np.stack(rows).astype(np.float64)


def category_texts(series: Any) -> NDArray[Any]:
    """(n,) the values of a category as texts; those that are missing are called so."""
    return _texts(series).where(~_missing(series), MISSING).to_numpy(object)


def _texts(series: Any) -> Any:
    """Values as texts, as labels are: 1 is also 1.0, which pandas makes of it in a column with missing values."""
    texts = series.astype(str).astype(object)
    return texts.map({text: label_text(text) for text in texts.unique()})


def _one_hot(series: Any, column: Column) -> tuple[NDArray[np.float64], str]:
    """(n, categories), and what to say about values that the encoding does not know."""
    import pandas as pd

    values = category_texts(series)
    codes = pd.Index(column.categories, dtype=object).get_indexer(values)
    features = (codes[:, None] == np.arange(len(column.categories))).astype(np.float64)
    new = values[codes < 0]
    if len(new) == 0:
        return features, ""
    return features, (
        f"{len(new):,} {'rows have' if len(new) > 1 else 'row has'} a value that the run does not know "
        f"({listed([shortened(value) for value in sorted(set(new))], 5)}). It counts as none of the known ones."
    )
