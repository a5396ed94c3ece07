"""Arrays as Numba likes them, and work spread over threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from diffclust.threads import solver_threads


def contiguous(array: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
    """Contiguous and writeable: Numba would compile everything once more for any other kind of array."""
    array = np.ascontiguousarray(array, dtype)
    return array if array.flags.writeable else array.copy()


PIECES = 4  # for each thread: the last of them to end keeps the others waiting for a quarter of its share at most

_pool: ThreadPoolExecutor | None = None
_pool_owner = 0


def max_threads() -> int:
    """NUMBA_NUM_THREADS, which is the number of cores unless the user sets it; fewer beside processes of ours."""
    return solver_threads(_numba_threads())


def _numba_threads() -> int:
    return int(vars(numba.config)["NUMBA_NUM_THREADS"])


def in_threads(
    work: Callable[..., None], n_items: int, grain: int = 1, scratch: Callable[[], tuple[Any, ...]] = tuple
) -> None:
    """Run ``work(start, stop, *scratch())`` over n_items in at most NUMBA_NUM_THREADS threads (default: all cores).

    Each thread makes its scratch once and takes the next piece, of at least ``grain`` items, until none is left. The
    calling thread never waits for a thread that has not started: on a busy machine it does the pieces itself.
    """
    global _pool, _pool_owner
    n_threads = min(max_threads(), n_items // max(grain, 1))
    if n_threads <= 1:
        if n_items:
            work(0, n_items, *scratch())
        return
    if _pool is None or _pool_owner != os.getpid():  # threads do not survive a fork
        _pool, _pool_owner = ThreadPoolExecutor(_numba_threads(), "diffclust"), os.getpid()
    n_pieces = min(PIECES * n_threads, n_items // max(grain, 1))
    pieces = deque((n_items * p // n_pieces, n_items * (p + 1) // n_pieces) for p in range(n_pieces))

    def take() -> None:
        own: tuple[Any, ...] | None = None
        while pieces:
            try:
                piece = pieces.popleft()
            except IndexError:  # another thread was faster
                return
            own = scratch() if own is None else own
            work(*piece, *own)

    others = [_pool.submit(take) for _ in range(n_threads - 1)]
    try:
        take()
    finally:
        pieces.clear()
        for other in others:
            if not other.cancel():
                other.result()
