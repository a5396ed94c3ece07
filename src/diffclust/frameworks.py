"""Which framework an array belongs to, without importing any: a framework whose arrays we see is already imported."""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

MOST_DENSE_BYTES = 2 * 10**9  # up to which sparse rows are made dense
FEW_VALUES = 64  # of a column, to which 32-bit floats round its values


def framework_of(array: Any) -> str:
    """One of "torch", "jax" and "numpy", which is everything else: lists and scalars become NumPy arrays."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return "jax"
    return "numpy"


def namespace_of(array: Any) -> Any:
    """The module with the functions for this array: ``numpy``, ``torch`` or ``jax.numpy``."""
    framework = framework_of(array)
    return np if framework == "numpy" else sys.modules["torch" if framework == "torch" else "jax.numpy"]


def to_numpy(array: Any, name: str = "the array") -> np.ndarray:
    """The array on the host, detached; no copy where it is there already. ``name`` is for the error."""
    if framework_of(array) == "torch":
        on_host = array.detach().cpu()
        return (on_host.float() if "bfloat16" in str(array.dtype) else on_host).numpy()
    refuse_masked(name, array)
    return np.asarray(array)


@contextmanager
def explain_words() -> Iterator[None]:
    """Extends NumPy's error about a word in place of a number by what to do about it."""
    try:
        yield
    except ValueError as error:
        if "could not convert string to float" not in str(error):
            raise
        raise ValueError(
            f"X must be numbers: {error}. diffclust.tables.read_table(frame).features makes numbers of words and dates."
        ) from error


def plain(transformer: Any) -> Any:
    """A transformer of scikit-learn that gives arrays, also where its global ``transform_output`` asks for frames."""
    return transformer.set_output(transform="default")


def refuse_masked(name: str, array: Any) -> None:
    """A ValueError if entries are masked (``numpy.ma``): NumPy's conversions would take what is under the mask."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        where = tuple(int(i) for i in np.argwhere(np.ma.getmaskarray(array))[0])
        raise ValueError(
            f"{name} has masked entries, the first at {where}. Fill them with .filled(value), e.g. -np.inf where a "
            "similarity has no edge, or leave those points out."
        )


def to_dense(X: Any) -> Any:
    """Sparse rows as an array, if it is not too large."""
    if not hasattr(X, "toarray"):
        return X
    size = math.prod(X.shape) * X.dtype.itemsize
    if size > MOST_DENSE_BYTES:
        raise ValueError(
            f"X is sparse, and as a dense array it would need {size / 1e9:.1f} GB, more than "
            f"{MOST_DENSE_BYTES / 1e9:.1f}. Reduce its columns first, e.g. by sklearn.decomposition.TruncatedSVD."
        )
    return X.toarray()


def lost_digits(x: np.ndarray, what: str = "x", names: Sequence[str] | None = None) -> str:
    """A sentence about columns of which 32-bit floats tell few values apart, such as times in seconds since 1970.

    Returns:
        The sentence, "" if there are no such columns.
    """
    if x.ndim != 2 or x.size == 0 or x.dtype.kind not in "iuf" or x.dtype.itemsize < 4 or x.dtype == np.float32:
        return ""
    low, high = x.min(0).astype(np.float64), x.max(0).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        step = np.spacing(np.maximum(abs(low), abs(high)).astype(np.float32))
        few = np.flatnonzero((low < high) & (high - low < FEW_VALUES * step))
    lost = [column for column in few if (x[:, column] != x[:, column].astype(np.float32)).any()]
    if not lost:
        return ""
    first = int(lost[0])
    which = f"number {first}" if names is None else repr(names[first])
    return (
        f"{len(lost)} column{'s' * (len(lost) > 1)} of {what}, the first {which}, with values from {low[first]} to "
        f"{high[first]}: 32-bit floats, with which networks are trained, hardly tell these apart. Subtract the minimum "
        "of such a column first."
    )


def fill_unknown(labels: Any, unknown: Any) -> Any:
    """Labels, or what else may be unknown, with ``unknown`` where they are masked (``numpy.ma``)."""
    if not isinstance(labels, np.ma.MaskedArray):
        return labels
    return np.where(np.ma.getmaskarray(labels), unknown, labels.data) if np.ma.is_masked(labels) else labels.data


def device_of(array: Any) -> str:
    """Where the array lives, in its framework's words: "cpu", torch's "cuda", JAX's "gpu"."""
    framework = framework_of(array)
    if framework == "jax":
        jax = sys.modules["jax"]
        return jax.default_backend() if is_traced(array) else next(iter(array.devices())).platform
    return array.device.type if framework == "torch" else "cpu"


def is_integer(value: Any) -> bool:
    """Whether this is an integer of Python or NumPy, or a size that torch traces. True and False are not."""
    return (isinstance(value, (int, np.integer)) and not isinstance(value, bool)) or is_symbolic(value)


def check_at_least(name: str, value: Any, lowest: int = 1) -> int:
    """An integer that is not below ``lowest``."""
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer, got {reprlib.repr(value)}.")
    if value < lowest:
        raise ValueError(f"{name} must be at least {lowest}, got {value}.")
    return int(value)


def is_symbolic(size: Any) -> bool:
    """Whether this is a size that torch traces for all values. Comparing it would limit the program to the answer."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(size, torch.SymInt)


def smaller(number: int, size: int) -> int:
    """``min(number, size)`` without a comparison where the size is symbolic, see :func:`is_symbolic`."""
    return sys.modules["torch"].sym_min(number, size) if is_symbolic(size) else min(number, size)


def is_traced(array: Any) -> bool:
    """Whether JAX traces this array, so that there is nothing to read yet."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.core.Tracer)


def is_captured(array: Any) -> bool:
    """Whether a CUDA graph is being captured, so that nothing of the GPU can be read now."""
    return device_of(array) == "cuda" and sys.modules["torch"].cuda.is_current_stream_capturing()


_rehearsed = False  # not a context variable: torch.compile cannot trace these


@contextmanager
def rehearsed_capture() -> Iterator[None]:
    """A context in which code does what it does while a CUDA graph is captured: it reads nothing of the GPU."""
    global _rehearsed
    before, _rehearsed = _rehearsed, True
    try:
        yield
    finally:
        _rehearsed = before


def is_rehearsed() -> bool:
    """Whether this is in :func:`rehearsed_capture`."""
    return _rehearsed


def as_like(array: Any, other: Any, name: str = "the array") -> Any:
    """The array in the framework of another one, with its dtype and on its device. ``name`` is for the error."""
    framework, xp = framework_of(other), namespace_of(other)
    if framework_of(array) == "numpy" or framework == "numpy":
        array = to_numpy(array, name)
    if framework == "torch":
        return xp.as_tensor(array, dtype=other.dtype, device=other.device)
    return xp.asarray(array, other.dtype)


def sort(array: Any) -> Any:
    """Sorted along the last axis."""
    return array.sort(-1).values if framework_of(array) == "torch" else namespace_of(array).sort(array, -1)


def take_last(array: Any, index: int) -> Any:
    """``array[..., index]``; while torch compiles, the index may be symbolic, and then it is not compared."""
    if framework_of(array) == "torch" and (torch := sys.modules["torch"]).compiler.is_compiling():
        return array.index_select(-1, torch.full((1,), index, device=array.device))[..., 0]
    return array[..., index]


def identity_mask(n: int, like: Any) -> Any:
    """The (n, n) identity as booleans, where ``like`` lives."""
    placed = {"device": like.device} if framework_of(like) == "torch" else {}
    return namespace_of(like).eye(n, dtype=namespace_of(like).bool if placed else bool, **placed)
