"""One thread for small jobs of torch, scikit-learn and BLAS.

Threads of OpenMP and BLAS wait for each other by spinning. For small matrices they gain little on a quiet machine, and
beside other busy processes they spin whole time slices away. So a job that is small runs in one thread, and its sums do
not depend on the number of cores. A large job keeps the settings of the process.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

SMALL_BATCH = 2**29  # multiply-adds of a network's forward pass
SMALL_SET = 2**36  # coordinates of all pairs of rows: a search for neighbours takes a few seconds in one thread


class _Inside:
    """How many threads are inside of :func:`one_thread`, and torch's number of threads before the first of them.

    To set it in one thread changes what torch says in another that has not asked before.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count, self.before = 0, 0  # 0: not known, torch was not loaded
        self.own = threading.local()

    @contextmanager
    def enter(self, torch: Any) -> Iterator[int]:
        """Gives the number to restore."""
        if getattr(self.own, "inside", False):
            yield torch.get_num_threads() if torch else 1
            return
        with self.lock:
            self.before = self.before if self.count else 0
            self.count += 1
            if torch and not self.before:
                self.before = torch.get_num_threads()
            before = self.before
        self.own.inside = True
        try:
            yield before
        finally:
            self.own.inside = False
            with self.lock:
                self.count -= 1


_INSIDE = _Inside()


@contextmanager
def one_thread(if_: bool = True) -> Iterator[None]:
    """Torch, and the OpenMP and BLAS libraries that are loaded, in one thread; restored afterwards."""
    if not if_:
        yield
        return
    from threadpoolctl import threadpool_limits

    torch = sys.modules.get("torch")
    with _INSIDE.enter(torch) as before, threadpool_limits(1):
        if torch:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if torch:
                torch.set_num_threads(before)


@contextmanager
def ignored_warnings(category: type[Warning] = Warning, message: str = "", module: str = "") -> Iterator[None]:
    """Ignores warnings of a category, and of a start of their text or name of their module; in several threads, too."""
    # warnings.catch_warnings restores the whole list of filters. Where two threads overlap, one keeps the other's.
    patterns = (re.compile(message, re.IGNORECASE) if message else None, re.compile(module) if module else None)
    ignored: Any = ("ignore", patterns[0], category, patterns[1], 0)
    filters: Any = warnings.filters
    filters.insert(0, ignored)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # another library may have put back a list of before
            filters.remove(ignored)


def small_in_one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function whose first argument is rows (n, ...): its job is small if n * rows.size < ``SMALL_SET``."""

    @functools.wraps(function)
    def limited(*arguments: P.args, **options: P.kwargs) -> R:
        shape = tuple(getattr(arguments[0], "shape", ())) if arguments else ()
        with one_thread(bool(shape) and shape[0] * math.prod(shape) < SMALL_SET):
            return function(*arguments, **options)

    return limited


def is_small(network: Any, rows: Any, n_rows: int) -> bool:
    """Whether a forward pass of ``n_rows`` rows is a small job. Tries the first of ``rows`` in evaluation mode."""
    from torch import no_grad
    from torch.utils.flop_counter import FlopCounterMode

    was_training = network.training
    try:
        with no_grad(), FlopCounterMode(display=False) as counter:
            network.eval()(rows[:1])
    finally:
        network.train(was_training)
    return counter.get_total_flops() // 2 * n_rows < SMALL_BATCH  # a multiply-add is two operations
