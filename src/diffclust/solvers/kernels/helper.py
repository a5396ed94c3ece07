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
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

HANGS_AFTER = 120  # seconds
KERNELS = __package__ + "."  # modules that need no torch
_CODE = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import serve; serve()"


class Helper:
    """The process, from this side. It ends after the last kernel once it is closed, or with this process."""

    def __init__(self) -> None:
        arguments = [sys.executable, "-c", _CODE, json.dumps(sys.path), triton.knobs.cache.dir]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        self._done: list[threading.Event] = []
        self._has_ended = False

    def compile(self, kernel: Any, specialization: str, target: GPUTarget) -> threading.Event:
        """Start to compile a kernel. The event is set when it is in the cache, or will not be."""
        event = threading.Event()
        self._done.append(event)
        if len(self._done) == 1:
            threading.Thread(target=self._listen, name="diffclust-compile-helper", daemon=True).start()
        request = kernel.__module__, kernel.__name__, specialization, (target.backend, target.arch, target.warp_size)
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except OSError:
            self._has_ended = True
        if self._has_ended:
            event.set()
        return event

    def _listen(self) -> None:
        for line in self._process.stdout:  # type: ignore[union-attr]
            self._done[int(line)].set()
        self._has_ended = True
        for event in self._done:
            event.set()
        self._process.wait()

    def close(self) -> None:
        """No more kernels follow."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]


def start_helper() -> Helper | None:
    """A helper, where this process is a Python that has one beside it, and Triton's cache has no tree of ours yet."""
    if not os.path.basename(sys.executable or "").startswith("python"):
        return None
    if any(glob.iglob(os.path.join(glob.escape(triton.knobs.cache.dir), "*", "solve_*.cubin"))):
        return None
    try:
        return Helper()
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

    def get_current_target(self) -> GPUTarget:
        return self._target


class _Metadata:
    """Of a kernel, before it is compiled: of what a launcher's code depends on, none of ours has anything."""

    tensordesc_meta = None

    def __getattr__(self, name: str) -> int:
        return 0


def serve() -> None:
    """Compile what comes in, each in a fork, and say when it is done."""
    from triton.runtime.cache import triton_key

    triton.knobs.cache.dir = sys.argv[2]
    hashing = threading.Thread(target=triton_key)  # of all files of Triton, once; forks know it
    hashing.start()
    for name in ("greedy", "inside", "small"):  # and what these import
        importlib.import_module(KERNELS + name)
    hashing.join()
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


def _compile(number: int, module: str, name: str, specialization: str, target: tuple[str, int, int]) -> None:
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
        getattr(importlib.import_module(module), name).preload(specialization)
        for each in threads:
            each.join()
    finally:
        os.write(1, f"{number}\n".encode())
        os._exit(0)


def _make_launcher(source: Any) -> None:
    with contextlib.suppress(Exception):
        from triton.backends.nvidia.driver import CudaLauncher  # not a promise of Triton's

        CudaLauncher(source, _Metadata())
