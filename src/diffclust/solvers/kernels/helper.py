"""A process that compiles kernels into Triton's cache, beside this one, whose lock of Python it does not need.

It starts anew and imports Triton and the kernels, neither torch nor JAX. For each kernel it makes a fork, which does no
harm, because it has no threads. What it does not compile, for whatever reason, this process compiles itself.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import MockTensor

HANGS_AFTER = 120  # seconds
KERNELS = __package__ + "."  # modules that need no torch
_CODE = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import serve; serve()"


class _Tensor(NamedTuple):
    """Of a tensor, what a kernel is compiled for."""

    dtype: str


class Helper:
    """The process, from this side. It ends after the last kernel once it is closed, or with this process.

    Args:
        key: Triton's own, in the keys of its cache: a hash of all its files, which takes a while.
    """

    def __init__(self, key: Future[str | None]) -> None:
        arguments = [sys.executable, "-c", _CODE, json.dumps(sys.path), triton.knobs.cache.dir]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        self._key, self._requests = key, queue.SimpleQueue[Any]()
        self._done: list[threading.Event] = []
        threading.Thread(target=self._talk, name="diffclust-compile-helper", daemon=True).start()

    def compile(
        self, kernel: Any, arguments: list[Any], options: dict[str, Any], target: GPUTarget
    ) -> threading.Event | None:
        """Start to compile a kernel for such arguments. The event is set when it is in the cache, or will not be.

        None if it cannot be compiled there. Tensors are at multiples of 16 bytes, as memory that torch allocates is.
        """
        is_aligned = not any(each.data_ptr() % 16 for each in arguments if hasattr(each, "data_ptr"))
        if not kernel.__module__.startswith(KERNELS) or not is_aligned:
            return None
        kinds = [_Tensor(str(each.dtype).split(".")[-1]) if hasattr(each, "data_ptr") else each for each in arguments]
        event = threading.Event()
        self._done.append(event)
        on = target.backend, target.arch, target.warp_size
        self._requests.put((kernel.__module__, kernel.__name__, kinds, options, on))
        return event

    def close(self) -> None:
        """No more kernels follow."""
        self._requests.put(None)

    def _talk(self) -> None:
        requests = iter(self._requests.get, None)
        with contextlib.suppress(Exception), self._process.stdin as to_process:  # type: ignore[union-attr]
            print(json.dumps((triton.__version__, self._key.result())), file=to_process)
            for request in requests:
                print(json.dumps(request), file=to_process, flush=True)
        for _ in requests:  # to a process that has died
            pass
        for line in self._process.stdout:  # type: ignore[union-attr]
            self._done[int(line)].set()
        for event in self._done:  # what it has not done
            event.set()
        self._process.wait()


def start_helper(key: Future[str | None]) -> Helper | None:
    """A helper, where this process is a Python that has one beside it, and Triton's cache has no tree of ours yet."""
    if not os.path.basename(sys.executable or "").startswith("python"):
        return None
    if any(glob.iglob(os.path.join(glob.escape(triton.knobs.cache.dir), "*", "solve_*.cubin"))):
        return None
    try:
        return Helper(key)
    except OSError:
        return None


# ------------------------------------------------------------------------------------------------------------------
# In the process


class _Driver:
    """In place of Triton's: a GPU that is known, and not touched."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


class _Metadata:
    """Of a kernel, before it is compiled: of what a launcher's code depends on, none of ours has anything."""

    tensordesc_meta = None

    def __getattr__(self, name: str) -> int:
        return 0


def serve() -> None:
    """Compile what comes in, each in a fork, and say when it is done."""
    triton.knobs.cache.dir = sys.argv[2]
    for name in ("greedy", "inside", "small"):  # and what these import
        importlib.import_module(KERNELS + name)
    version, key = json.loads(sys.stdin.readline())
    if version != triton.__version__:  # of a process that has begun before another one was installed
        return
    if key:
        triton.runtime.cache.triton_key = lambda: key
    at_once, running = len(os.sched_getaffinity(0)), 0
    for number, line in enumerate(sys.stdin):
        if running == at_once:
            os.wait()
            running -= 1
        if not os.fork():
            _compile(number, *json.loads(line))
        running += 1
    for _ in range(running):
        os.wait()


def _compile(
    number: int, module: str, name: str, kinds: list[Any], options: dict[str, Any], target: tuple[str, int, int]
) -> None:
    """In a fork: compile a kernel, and beside it the function that launches it, where Triton compiles such; and end."""
    try:
        signal.alarm(HANGS_AFTER)
        threads = []

        def make_launcher(*, fn: Any, compile: dict[str, Any], **_: Any) -> None:
            source = SimpleNamespace(fn=fn.jit_function, **{name: compile[name] for name in ("signature", "constants")})
            threads.append(threading.Thread(target=_make_launcher, args=[source]))
            threads[0].start()

        triton.runtime.driver.set_active(_Driver(GPUTarget(*target)))
        triton.knobs.runtime.jit_cache_hook = make_launcher
        arguments = [MockTensor(*each) if isinstance(each, list) else each for each in kinds]
        getattr(importlib.import_module(module), name).warmup(*arguments, **options)
        for each in threads:
            each.join()
    finally:
        os.write(1, f"{number}\n".encode())
        os._exit(0)


def _make_launcher(source: Any) -> None:
    with contextlib.suppress(Exception):
        from triton.backends.nvidia.driver import CudaLauncher  # not a promise of Triton's

        CudaLauncher(source, _Metadata())
