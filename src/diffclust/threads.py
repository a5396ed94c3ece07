"""How many threads there are: one for small jobs of torch, scikit-learn and BLAS, and a limit for those of the solver.

Threads of OpenMP and BLAS wait for each other by spinning. For small matrices they gain little on a quiet machine, and
beside other busy processes they spin whole time slices away. So a job that is small runs in one thread, and its sums do
not depend on the number of cores. A large job keeps the settings of the process.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
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


class _OneThreadState:
    """How many threads are inside of :func:`one_thread`, and torch's number of threads before the first of them.

    Setting it in one thread changes what torch reports in other threads that have not asked yet.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count, self.before = 0, 0  # 0: not known, torch was not loaded
        self.blas_is_limited = False  # by a thread that is inside
        self.own = threading.local()

    @contextmanager
    def enter(self, torch: Any) -> Iterator[tuple[int, bool]]:
        """Gives the number to restore, and whether another thread has limited BLAS already."""
        if getattr(self.own, "inside", False):
            yield torch.get_num_threads() if torch else 1, self.own.limited
            return
        with self.lock:
            limited, self.blas_is_limited = self.blas_is_limited, True
            self.before = self.before if self.count else 0
            self.count += 1
            if torch and not self.before:
                self.before = torch.get_num_threads()
            before = self.before
        self.own.inside, self.own.limited = True, limited
        try:
            yield before, limited
        finally:
            self.own.inside = False
            with self.lock:
                self.count -= 1
                self.blas_is_limited = self.blas_is_limited and limited

    def threads_outside(self, torch: Any) -> int:
        """Torch's number of threads, as it is or was before."""
        with self.lock:
            return int(self.before if self.count and self.before else torch.get_num_threads())


_STATE = _OneThreadState()


@contextmanager
def one_thread(when: bool = True) -> Iterator[None]:
    """Torch, and the OpenMP and BLAS libraries that are loaded, in one thread; restored afterwards."""
    if not when:
        yield
        return
    from threadpoolctl import ThreadpoolController

    torch, controller = sys.modules.get("torch"), ThreadpoolController()
    with _STATE.enter(torch) as (before, limited), contextlib.ExitStack() as stack:
        # BLAS has one number for all threads. One thread limits it: a second would find and restore one.
        stack.enter_context((controller.select(user_api="openmp") if limited else controller).limit(limits=1))
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
        with contextlib.suppress(ValueError):  # another library may have restored an older list
            filters.remove(ignored)


_limit: float = math.inf


def allowed_threads() -> int:
    """The number of cores that this process may use, or of threads where the user allows fewer of them.

    The user says it by OMP_NUM_THREADS, ``torch.set_num_threads`` or NUMBA_NUM_THREADS; :func:`one_thread` does not
    count.
    """
    import joblib
    import numba

    torch = sys.modules.get("torch")
    cores = joblib.cpu_count()
    of_user = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # one number for each level of nesting
    of_torch = _STATE.threads_outside(torch) if torch else int(of_user) if of_user.isdecimal() else cores
    return int(min(cores, of_torch, vars(numba.config)["NUMBA_NUM_THREADS"], _limit))


@contextmanager
def at_most_threads(n: int) -> Iterator[None]:
    """Limits the threads of the CPU solver while other processes of ours use the other cores."""
    global _limit
    before, _limit = _limit, n
    try:
        yield
    finally:
        _limit = before


def solver_threads(wanted: int) -> int:
    """As many as wanted, or as few as :func:`at_most_threads` says."""
    return int(min(wanted, _limit))


def is_small_set(rows: Any) -> bool:
    """Whether work on all pairs of rows (n, ...) is a small job. Of anything but an array that is not known."""
    shape = tuple(getattr(rows, "shape", ()))
    return bool(shape) and shape[0] * math.prod(shape) < SMALL_SET


def small_in_one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function whose first argument is rows (n, ...): its job is small if n * rows.size < ``SMALL_SET``."""

    @functools.wraps(function)
    def limited(*arguments: P.args, **options: P.kwargs) -> R:
        with one_thread(bool(arguments) and is_small_set(arguments[0])):
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
