"""Kernels compiled ahead: all at the same time, while the host does something else.

With an empty cache Triton takes up to a second for a kernel, and a loss needs a dozen. A *rehearsal* is the host's code
of a loss, run once inside :func:`compile_only`: its launches say which kernels are needed, and for which types. The
large ones are compiled by another process (``helper.py``), where they wait for no lock of Python; the others in
threads.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from diffclust.solvers.kernels.helper import HANGS_AFTER, Helper, start_helper

if TYPE_CHECKING:  # JAX programs use the kernels without torch
    import torch

LOG = logging.getLogger("diffclust.cuda")
THREADS = 12  # most of which wait for another process


class _Rehearsal(NamedTuple):
    pool: ThreadPoolExecutor
    device: torch.device
    target: GPUTarget
    helper: Helper | None


_rehearsal: ContextVar[_Rehearsal | None] = ContextVar("_rehearsal", default=None)


def kernel(function: Any = None, **options: Any) -> Any:
    """``triton.jit`` of a kernel that the host launches."""
    if function is None:
        return functools.partial(kernel, **options)
    return triton.jit(function, **options) if triton.knobs.runtime.interpret else _Kernel(function, **options)


class _Kernel(JITFunction):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ahead: list[Future[None]] = []

    @property
    def cache_key(self) -> str:
        """A key of the code, in Triton's cache.

        Triton's own depends on the order in which the keys of functions are first asked for. Those of the functions
        that are called come first here, so that it is the same in every process.
        """
        _ask_for_keys(self, set())
        return super().cache_key

    def run(self, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        """Launch; or in a rehearsal, let something else compile what this launch needs."""
        if not warmup:
            if rehearsal := _rehearsal.get():
                kinds, options = [*map(_without_memory, arguments)], {"grid": grid, **options}
                pool, device, target, helper = rehearsal
                elsewhere = helper.compile(self, kinds, options, target) if helper else None
                self._ahead.append(pool.submit(self._compile, device, elsewhere, kinds, options))
                return None
            if self._ahead:
                for each in self._ahead:
                    if error := each.exception():  # compiled again below, which raises it where it is of use
                        LOG.debug("%s is not compiled ahead: %s: %s", self.__name__, type(error).__name__, error)
                self._ahead.clear()
        return super().run(*arguments, grid=grid, warmup=warmup, **options)

    def _compile(
        self, device: torch.device, elsewhere: threading.Event | None, arguments: list[Any], options: dict[str, Any]
    ) -> None:
        import torch

        self.cache_key  # noqa: B018 - takes a while
        if elsewhere:
            elsewhere.wait(HANGS_AFTER)
        wait(start_triton())
        with torch.cuda.device(device):
            compiled = self.warmup(*arguments, **options)
            compiled.run  # noqa: B018 - compiles the function that launches it, and takes it to the device


def _ask_for_keys(function: JITFunction, asked: set[int]) -> None:
    """Ask for the keys of all functions that one calls, of each after those that it calls."""
    for name in function.fn.__code__.co_names:
        called = function.fn.__globals__.get(name)
        if isinstance(called, JITFunction) and id(called) not in asked:
            asked.add(id(called))
            _ask_for_keys(called, asked)
            called.cache_key  # noqa: B018


def _without_memory(argument: Any) -> Any:
    """What is compiled for the same as this argument is."""
    is_aligned = hasattr(argument, "data_ptr") and argument.data_ptr() % 16 == 0
    return argument.new_empty(0) if is_aligned else argument


def _target_of(device: torch.device) -> GPUTarget:
    """As Triton's driver says, which it does not before it is compiled."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return GPUTarget("cuda", 10 * major + minor, 32)


@contextmanager
def compile_only(device: torch.device) -> Iterator[None]:
    """Kernels that are launched inside, by this thread, are compiled for the device instead, and not waited for.

    Results are not computed, so nothing may read them. The first true launch of a kernel waits for it.
    """
    import torch

    global _helper
    start_triton()
    helper, _helper = _helper, None
    pool = ThreadPoolExecutor(THREADS, "diffclust-compile")
    token = _rehearsal.set(_Rehearsal(pool, device, _target_of(device), helper))
    try:
        with torch.autograd.set_multithreading_enabled(False):  # else another thread goes backward
            yield
    finally:
        _rehearsal.reset(token)
        pool.shutdown(wait=False)  # threads end with their work
        if helper:
            helper.close()


def in_rehearsal() -> bool:
    """Whether this thread is inside :func:`compile_only`."""
    return _rehearsal.get() is not None


_helper: Helper | None = None  # for the first rehearsal


@functools.cache
def start_triton() -> list[Future[Any]]:
    """Start what Triton needs once in a process: its driver, which it compiles, and a hash of all its files.

    And a helper for the first rehearsal, if the cache is empty.
    """
    global _helper
    pool = ThreadPoolExecutor(2, "diffclust-compile")
    started = [pool.submit(lambda: triton.runtime.driver.active), key := pool.submit(_hash_files)]
    pool.shutdown(wait=False)
    _helper = start_helper(key)
    return started


def _hash_files() -> str | None:
    try:
        from triton.runtime.cache import triton_key  # not a promise of Triton's: without it, compiling is as correct

        return str(triton_key())
    except ImportError:
        return None
