"""Functions that Numba compiles, and where their machine code is kept between processes."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numba
from numba.core.caching import FunctionCache, NullCache
from numba.core.registry import CPUDispatcher

_warned = False


def _warn_once(trouble: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"{trouble}. Every process compiles it again, which takes seconds to a minute. "
            "To keep it, set the environment variable NUMBA_CACHE_DIR to a folder that can be written.",
            stacklevel=2,
        )


class _NoCache(NullCache):
    """Where there is no folder to write to. Warns on the first compilation rather than at import."""

    def load_overload(self, sig: Any, target_context: Any) -> None:
        _warn_once("Compiled code cannot be kept: neither the installed package nor a home folder can be written")


class _Cache(FunctionCache):
    """A cache that can only save time: what cannot be read is compiled again, what cannot be written is not kept."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        # A damaged file raises whatever unpickling it leads to: EOFError, UnpicklingError, ValueError, ...
        with contextlib.suppress(Exception):
            return super().load_overload(sig, target_context)
        with contextlib.suppress(OSError):
            self.flush()  # an index that cannot be read cannot be added to
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:  # a full disk, a quota, a folder that was writable when the module was imported
            _warn_once(f"Compiled code cannot be kept ({error})")


class _Compiled(CPUDispatcher):
    """Compiles without collections of garbage, which take a twentieth of the time where torch is loaded."""

    def compile(self, sig: Any) -> Any:
        if not gc.isenabled():
            return super().compile(sig)
        gc.disable()
        try:
            return super().compile(sig)
        finally:
            gc.enable()


class _Inner(_Compiled):
    """A compiled function that has nothing for calls from Python. A call would end the process."""

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.py_func.__name__} is for compiled functions only; call its py_func.")


def jit(
    function: Callable[..., Any] | None = None,
    *,
    error_model: Literal["numpy", "python"] = "numpy",
    fastmath: bool | set[str] = False,
    allocates: bool = False,
    inner: bool = False,
) -> Any:
    """``numba.njit`` with the options of this package, and with a cache where one can be written.

    Say ``allocates=True`` where the function makes arrays. The others do not count references to theirs, which takes
    longer than the work of a small function, and as long to compile. Say ``inner=True`` where only compiled functions
    call it: what Python would need for a call is half of the time that a small function takes to compile.

    Numba keeps compiled code until the function's own file changes, not the files that it calls. After an edit in
    ``solvers``, run the tests (their cache depends on all files) or delete ``__pycache__``.
    """
    if function is None:
        return partial(jit, error_model=error_model, fastmath=fastmath, allocates=allocates, inner=inner)
    # Nothing calls these functions from C, so the wrapper for that need not be compiled.
    options: Any = {
        "error_model": error_model,
        "fastmath": fastmath,
        "_nrt": allocates,
        "no_cfunc_wrapper": True,
        "no_cpython_wrapper": inner,
    }
    compile_: Any = numba.njit(nogil=True, boundscheck=False, **options)
    compiled = compile_(function)
    compiled.__class__ = _Inner if inner else _Compiled
    try:
        compiled._cache = _Cache(function)  # numba.njit(cache=True) would be Numba's own, which raises
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        compiled._cache = _NoCache()
    return compiled
