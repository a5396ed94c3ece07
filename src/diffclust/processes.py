"""Tasks in processes beside this one: forks of it, which have its arrays and its imports already.

Small networks and cuts are many small operations of Python, NumPy and torch, which hold Python's lock: threads gain
little by them. A process that starts anew imports torch for seconds, a fork takes milliseconds. So tasks are shared
with forks where a fork is safe, and run in this process where it is not (:func:`why_not`). Whatever a fork does not
bring back, because it failed or was killed, is done here.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Generic, TypeVar

from diffclust.threads import allowed_threads, at_most_threads, ignored_warnings, one_thread

LOG = logging.getLogger("diffclust.processes")
R = TypeVar("R")

IDLE_THREADS = ("diffclust", "tqdm")  # how names or modules of Python threads begin that hold no lock for long
MEMORY_SHARE = 0.5  # of the memory that is available, which forks may fill with copies of all that this process has
SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
HANGS_AFTER = 20.0  # seconds in which a fork sleeps and does nothing

_shown: dict[Any, Any] = {}  # which warnings of forks were shown, as modules have it of their own


@contextmanager
def beside(tasks: Sequence[Callable[[], R]], when: bool = True) -> Iterator[Callable[[], list[R]]]:
    """Starts tasks in forks of this process, as many as there are cores besides the one that this process keeps.

    A fork takes the next task until none is left. So does this process once it asks for the results, by the function
    that this yields; an error of a task is raised there. Each task runs in one thread of torch, OpenMP and BLAS, with
    forks or without, so results do not depend on the number of cores. Results are pickled, and a task draws no random
    numbers but from generators that it seeds.

    ``when=False`` starts nothing, because the tasks are too small, or too large for one thread. They are done with the
    threads that they find.

    >>> with beside([lambda: 1, lambda: 2]) as results:
    ...     results()
    [1, 2]
    """
    reason = "the tasks are not for processes" if not when else why_not() if tasks else "there are no tasks"
    n_forks = 0 if reason else min(len(tasks), allowed_threads() - 1, _how_many_fit())
    if reason:
        LOG.debug("No processes: %s.", reason)
    shared = _Shared(tasks, when)
    with shared.stack:
        if n_forks:
            shared.stack.enter_context(at_most_threads(allowed_threads() - n_forks))
        try:
            for _ in range(n_forks):
                shared.fork()
        except OSError as error:  # no more processes are allowed, or there is no place for a temporary file
            LOG.debug("Not %d processes: %s.", n_forks, error)
        yield shared.results


def why_not() -> str:
    """Why a fork of this process is not safe or gains nothing; "" where it may be made."""
    torch = sys.modules.get("torch")
    strangers = [each for each in threading.enumerate() if each is not threading.current_thread() and not _idle(each)]
    reasons = {
        "only Linux has safe forks": sys.platform != "linux",
        "this process is a worker itself": multiprocessing.parent_process() is not None,
        "this is not the main thread": threading.current_thread() is not threading.main_thread(),
        f"there are other threads: {', '.join(each.name for each in strangers)}": bool(strangers),
        "JAX is loaded, whose threads a fork does not have": "jax" in sys.modules,
        "there is a GPU, of which torch has threads": torch is not None and torch.accelerator.is_available(),
        "there are several ranks": torch is not None and _has_ranks(torch.distributed),
        "there is one core, or one thread is allowed": allowed_threads() < 2,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _idle(thread: threading.Thread) -> bool:
    """Whether it is the solver's, which wait for work, or tqdm's, which looks after progress bars."""
    return thread.name.startswith(IDLE_THREADS) or type(thread).__module__.startswith(IDLE_THREADS)


def _has_ranks(distributed: Any) -> bool:
    return bool(distributed.is_available() and distributed.is_initialized())


def _how_many_fit() -> int:
    """How many forks there is memory for, if each copied all that this process has. Most of it stays shared."""
    try:
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        with open("/proc/meminfo") as file:
            available = {name: int(rest.split()[0]) * 1024 for name, rest in (line.split(":") for line in file)}
    except (OSError, ValueError):
        return 0
    return int(MEMORY_SHARE * available.get("MemAvailable", 0) / resident)  # WSL 1 does not say it


class _Shared(Generic[R]):
    """Tasks, of which this process and its forks take the next one until none is left."""

    def __init__(self, tasks: Sequence[Callable[[], R]], in_one_thread: bool) -> None:
        self.tasks, self.in_one_thread = list(tasks), in_one_thread
        self.stack = ExitStack()  # what ends with the last result, or before it on an error
        self.done: dict[int, R] = {}
        self.forks: list[tuple[multiprocessing.process.BaseProcess, IO[bytes]]] = []
        # A pipe with the numbers of the tasks: a read takes one of them from all others.
        self.numbers, end = os.pipe()
        self.stack.callback(os.close, self.numbers)
        os.write(end, bytes(range(len(self.tasks))))
        os.close(end)

    def fork(self) -> None:
        """Starts one more process."""
        file = tempfile.TemporaryFile()  # noqa: SIM115
        self.stack.callback(file.close)
        process = multiprocessing.get_context("fork").Process(target=self._work, args=(file, os.getpid()), daemon=True)
        # A signal to all processes of a terminal or a job is for this one, which then kills its forks. Slurm sends
        # SIGUSR1 before it ends a job. Handlers of the user, or Lightning's, which requeues the job, run here alone.
        of_a_job = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, of_a_job)
        try:
            with ignored_warnings(DeprecationWarning, ".*multi-threaded"):  # of Python 3.12: see why_not
                process.start()
            self.stack.callback(_end, process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.forks.append((process, file))

    def results(self) -> list[R]:
        """All results. What no fork has begun or brought back is done here."""
        numbers = range(len(self.tasks))
        if len(self.done) < len(numbers):
            for number in self._taken():
                self.done[number] = self._do(number)
            for process, file in self.forks:
                _wait(process)
                self._collect(process, file)
            self.stack.close()
            for number in numbers:
                if number not in self.done:
                    self.done[number] = self._do(number)
        return [self.done[number] for number in numbers]

    def _taken(self) -> Iterator[int]:
        while number := os.read(self.numbers, 1):
            yield number[0]

    def _do(self, number: int) -> R:
        with one_thread(self.in_one_thread):
            return self.tasks[number]()

    def _collect(self, process: multiprocessing.process.BaseProcess, file: IO[bytes]) -> None:
        """Takes what a fork has written as far as it is whole."""
        file.seek(0)
        errors = [f"it ended with exit code {process.exitcode}"] if process.exitcode else []
        while True:
            try:
                number, result, error, caught = pickle.load(file)
            except (EOFError, pickle.UnpicklingError):
                break
            if error:
                errors.append(error)
            else:
                self.done[number] = result
            for message, category, name, line in caught:
                warnings.warn_explicit(message, category, name, line, registry=_shown)
        for error in errors:
            LOG.warning("A task is done again in the main process, because a process beside it failed: %s.", error)

    def _work(self, file: IO[bytes], parent: int) -> None:
        """What a fork does."""
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before
            return
        with at_most_threads(1):
            for number in self._taken():
                try:
                    with warnings.catch_warnings(record=True) as caught:
                        result = self._do(number)
                    shown = [(each.message, each.category, each.filename, each.lineno) for each in caught]
                    found = pickle.dumps((number, result, "", shown))
                except Exception as error:  # the task is done again, and raises it where it is no accident of a fork
                    found = pickle.dumps((number, None, repr(error), []))
                try:
                    file.write(found)
                    file.flush()
                except OSError as error:  # a full disk, a quota
                    LOG.warning("A process cannot write its result: %s.", error)
                    sys.exit(1)


def _wait(process: multiprocessing.process.BaseProcess) -> None:
    """Until it has ended. One that hangs is killed: a thread that it does not have may have held a lock."""
    used, since = "", time.monotonic()
    while process.exitcode is None:
        process.join(1.0)
        try:
            with open(f"/proc/{process.pid}/stat") as file:
                state, *numbers = file.read().rpartition(")")[2].split()
        except OSError:  # it has ended, and its parent may not want to know how
            return
        before, used = used, " ".join(numbers[10:12])  # processor time of itself and of the system for it
        if state != "S" or used != before:
            since = time.monotonic()
        elif time.monotonic() - since > HANGS_AFTER:
            process.kill()


def _end(process: multiprocessing.process.BaseProcess) -> None:
    process.kill()
    process.join()
    if process.exitcode is None:  # SIGCHLD is ignored, or its handler has asked how the process ended
        vars(process)["_popen"].returncode = -signal.SIGKILL  # else multiprocessing keeps the process and its pipes
        process.join()
