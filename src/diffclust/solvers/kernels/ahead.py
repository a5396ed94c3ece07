"""Kernels compiled ahead: all at the same time, in threads, while the host does something else.

With an empty cache Triton takes up to a second for a kernel, and a loss needs a dozen. A tenth of that is Python; the
passes, LLVM, the assembler and the C compiler run outside of Python's lock. A *rehearsal* is the host's code of a loss,
run once inside :func:`compile_only`: its launches say which kernels are needed, and for which types.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import triton
from triton.runtime.jit import JITFunction

if TYPE_CHECKING:  # JAX programs use the kernels without torch
    import torch

LOG = logging.getLogger("diffclust.cuda")
THREADS = 8  # more would only wait for Python's lock
_rehearsal: ContextVar[tuple[ThreadPoolExecutor, torch.device] | None] = ContextVar("_rehearsal", default=None)


def kernel(function: Any = None, **options: Any) -> Any:
    """``triton.jit`` of a kernel that the host launches."""
    if function is None:
        return functools.partial(kernel, **options)
    return triton.jit(function, **options) if triton.knobs.runtime.interpret else _Kernel(function, **options)


class _Kernel(JITFunction):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ahead: list[Future[None]] = []

    def run(self, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        """Launch; or in a rehearsal, let a thread compile what this launch needs."""
        if not warmup:
            if rehearsal := _rehearsal.get():
                pool, device = rehearsal
                self.cache_key  # noqa: B018 - it depends on the order in which the keys of kernels are first asked for
                kinds = map(_without_memory, arguments)
                self._ahead.append(pool.submit(self._compile, device, *kinds, grid=grid, **options))
                return None
            if self._ahead:
                for each in self._ahead:
                    if error := each.exception():  # compiled again below, which raises it where it is of use
                        LOG.debug("%s is not compiled ahead: %s: %s", self.__name__, type(error).__name__, error)
                self._ahead.clear()
        return super().run(*arguments, grid=grid, warmup=warmup, **options)

    def _compile(self, device: torch.device, *arguments: Any, **options: Any) -> None:
        import torch

        wait(start_triton())
        with torch.cuda.device(device):
            compiled = self.warmup(*arguments, **options)
            compiled.run  # noqa: B018 - compiles the function that launches it, and takes it to the device


def _without_memory(argument: Any) -> Any:
    """What is compiled for the same as this argument is."""
    is_aligned = hasattr(argument, "data_ptr") and argument.data_ptr() % 16 == 0
    return argument.new_empty(0) if is_aligned else argument


@contextmanager
def compile_only(device: torch.device) -> Iterator[None]:
    """Kernels that are launched inside, by this thread, are compiled for the device instead, and not waited for.

    Results are not computed, so nothing may read them. The first true launch of a kernel waits for it.
    """
    import torch

    start_triton()
    pool = ThreadPoolExecutor(THREADS, "diffclust-compile")
    token = _rehearsal.set((pool, device))
    try:
        with torch.autograd.set_multithreading_enabled(False):  # else another thread goes backward
            yield
    finally:
        _rehearsal.reset(token)
        pool.shutdown(wait=False)  # threads end with their work


def in_rehearsal() -> bool:
    """Whether this thread is inside :func:`compile_only`."""
    return _rehearsal.get() is not None


@functools.cache
def start_triton() -> list[Future[Any]]:
    """Start what Triton needs once in a process: its driver, which it compiles, and a hash of all its files."""
    pool = ThreadPoolExecutor(2, "diffclust-compile")
    started = [pool.submit(lambda: triton.runtime.driver.active), pool.submit(_hash_files)]
    pool.shutdown(wait=False)
    return started


def _hash_files() -> None:
    from triton.runtime.cache import triton_key  # not a promise of Triton's: without it, compiling is as correct

    triton_key()
