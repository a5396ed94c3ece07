"""Partial labels as people have them: integers, names, categories; masked, missing or -1 where unknown."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.frameworks import framework_of, to_numpy

ADVICE = "Give the classes of some points as integers from 0 or as names, and -1 where unknown."
# Texts that stand for an unknown label or a missing number, in lower case.
UNKNOWN_NAMES = frozenset(
    (
        "",
        "-1",
        "-1.0",
        "nan",
        "nat",
        "none",
        "null",
        "na",
        "n/a",
        "#n/a",
        "<na>",
        "?",
        "unknown",
        "unlabelled",
        "unlabeled",
    )
)


@dataclass(frozen=True, eq=False)
class ClassLabels:
    """Labels of n points, some of them unknown. Build it with :func:`parse_labels`.

    Attributes:
        codes: (n,) position of each point's class in ``classes``, -1 where unknown.
        classes: the classes as they were given, sorted: integers or names.
    """

    codes: NDArray[np.int64]
    classes: NDArray[Any]

    def cluster_names(self, held: NDArray[np.int64]) -> NDArray[Any]:
        """What each cluster is called that holds the class with a code of ``held``, -1 for a new cluster.

        Returns:
            (clusters,) classes. New clusters are "new 1", "new 2", ... where classes are names, and else numbers above
            the largest class.

        >>> parse_labels(["cat", None, "dog"], 3).cluster_names(np.array([1, -1, 0, -1])).tolist()
        ['dog', 'new 1', 'cat', 'new 2']
        """
        number = np.cumsum(held < 0)
        if self.classes.dtype.kind in "OU":
            free = new_names(self.classes)
            new = np.array([next(free) for _ in range(int(number[-1]))], self.classes.dtype.kind)
            names = np.empty(len(held), np.result_type(self.classes, new))
            names[held < 0] = new
        else:
            names = int(self.classes.max(initial=-1)) + number
        names[held >= 0] = self.classes[held[held >= 0]]
        return names


def new_names(taken: Iterable[str]) -> Iterator[str]:
    """The names "new 1", "new 2", ... of clusters without a label, but for those that are taken."""
    others = set(taken)
    return (name for i in itertools.count(1) if (name := f"new {i}") not in others)


def parse_labels(y: Any, n_points: int) -> ClassLabels:
    """Classes and their codes, from labels of which some are unknown.

    Args:
        y: (n,) or (n, 1) integers, whole floats, booleans (0 and 1), names, or categories, as a list, array, tensor, or
            column of a data frame. Unknown is what is negative, NaN, None, pandas.NA or masked, and among names, as
            in tables, those of ``UNKNOWN_NAMES``: "", "-1", "?", "nan", "NA", "unknown" and the like.
        n_points: n.

    Returns:
        The labels.

    Raises:
        ValueError: there is not one label for each point, or they are neither integers nor names.

    >>> labels = parse_labels([7, -1, 3, None, 7], 5)
    >>> labels.classes.tolist(), labels.codes.tolist()
    ([3, 7], [1, -1, 0, -1, 1])
    """
    masked = np.ma.getmaskarray(y).ravel() if isinstance(y, np.ma.MaskedArray) else None
    values = _as_array(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (n_points,):
        raise ValueError(f"y must have one label for each of the {n_points} points, got shape {values.shape}.")
    known = np.ones(n_points, bool) if masked is None else ~masked
    if values.dtype.kind == "O":
        values = _decoded(values)
        known &= np.array([not (is_missing(value) or _is_negative(value)) for value in values], bool)
        values = _of_one_kind(values, known)
    if values.dtype.kind == "S":
        values = _decoded(values.astype(object)).astype(str)
    if values.dtype.kind in "OU":
        known &= [name.strip().lower() not in UNKNOWN_NAMES for name in values.astype(str)]
    else:
        if values.dtype.kind == "f":
            known &= ~np.isnan(values)
        values = _whole_numbers(values, known)
        known &= values >= 0
    classes, numbers = np.unique(values[known], return_inverse=True)
    codes = np.full(n_points, -1, np.int64)
    codes[known] = numbers
    return ClassLabels(codes, classes)


def _as_array(y: Any) -> NDArray[Any]:
    """As NumPy has it. A list becomes objects, because NumPy would turn None and nan among names into names."""
    if isinstance(y, np.ma.MaskedArray):
        return np.asarray(y.data)
    if framework_of(y) != "numpy":
        return to_numpy(y)
    return np.asarray(y) if hasattr(y, "__array__") else np.asarray(y, object)


def _decoded(values: NDArray[Any]) -> NDArray[Any]:
    """Objects with the text of those that are bytes, which is what HDF5 files hold."""
    are_bytes = np.array([isinstance(value, bytes) for value in values], bool)
    if not are_bytes.any():
        return values
    values = values.copy()
    values[are_bytes] = [value.decode("utf-8", "backslashreplace") for value in values[are_bytes]]
    return values


def is_missing(value: Any) -> bool:
    """Whether this is None, nan, NaT, or pandas.NA, which does not say whether it is equal to itself."""
    return value is None or type(value).__name__ == "NAType" or (np.ndim(value) == 0 and bool(value != value))


def _is_negative(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and bool(value < 0)


def _of_one_kind(values: NDArray[Any], known: NDArray[np.bool_]) -> NDArray[Any]:
    """Objects as they are if all known ones are names, and as numbers if all of them are."""
    kinds = {isinstance(value, str) for value in values[known]}
    if kinds == {True, False}:
        raise ValueError(f"y has names and numbers among its labels. {ADVICE}")
    if kinds == {True}:
        return np.where(known, values, "")
    try:
        numbers = np.array(values[known].tolist() or [0])
    except ValueError:  # lists of different lengths
        numbers = np.empty(0, object)
    if numbers.dtype.kind not in "biuf" or numbers.ndim != 1:
        raise _unknown_type(type(values[known][0]).__name__)
    filled = np.zeros(len(values), numbers.dtype)
    filled[known] = numbers[: int(known.sum())]
    return filled


def _whole_numbers(values: NDArray[Any], known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """As int64, -1 where unknown."""
    if values.dtype.kind not in "biuf":
        raise _unknown_type(str(values.dtype))
    given = values[known]
    given = given.astype(np.float64) if given.dtype == np.float16 else given  # which overflows beside int64
    if given.dtype.kind == "f" and not (np.isfinite(given).all() and np.array_equal(given, np.floor(given))):
        raise _unknown_type(str(values.dtype))
    if given.size and given.max() > np.iinfo(np.int64).max:
        raise ValueError(f"labels must fit into int64, got {given.max()}. Number the classes from 0.")
    whole = np.full(len(values), -1, np.int64)
    whole[known] = given.astype(np.int64)
    return whole


def _unknown_type(kind: str) -> ValueError:
    return ValueError(
        f"Unknown label type {kind}: y must be integers, names or categories. {ADVICE} "
        "pandas.factorize numbers classes, -1 where one is missing."
    )
