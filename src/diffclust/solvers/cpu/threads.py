"""Arrays as Numba likes them, and work spread over threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray


def plain(array: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
    """Contiguous and writeable: Numba would compile everything once more for any other kind of array."""
    array = np.ascontiguousarray(array, dtype)
    return array if array.flags.writeable else array.copy()


_pool: ThreadPoolExecutor | None = None
_pool_owner = 0


def max_threads() -> int:
    return int(vars(numba.config)["NUMBA_NUM_THREADS"])


def in_threads(work: Callable[[int, int], None], n_items: int) -> None:
    """Run ``work(start, stop)`` over n_items, split evenly over NUMBA_NUM_THREADS threads (default: all cores)."""
    global _pool, _pool_owner
    n_threads = min(max_threads(), n_items)
    if n_threads <= 1:
        if n_items:
            work(0, n_items)
        return
    if _pool is None or _pool_owner != os.getpid():  # threads do not survive a fork
        _pool, _pool_owner = ThreadPoolExecutor(max_threads(), "diffclust"), os.getpid()
    bounds = [n_items * t // n_threads for t in range(n_threads + 1)]
    others = [_pool.submit(work, bounds[t], bounds[t + 1]) for t in range(1, n_threads)]
    work(bounds[0], bounds[1])
    for other in others:
        other.result()
