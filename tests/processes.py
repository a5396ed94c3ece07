"""Processes to be killed, interrupted or run side by side, seconds sooner than a fresh Python.

A fresh interpreter imports torch and Lightning for six seconds of CPU. Here a server imports them once for each worker
of pytest, does nothing else, and forks. ``test_smoke.py`` starts the program as a user does.
"""

import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
from pathlib import Path

import torch

PRELOADED = (
    "torch.distributed.fsdp",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "lightning.pytorch",
    "diffclust.nn",
    "diffclust.solvers.cpu",
    "diffclust.cli",
    "diffclust.report",
    "diffclust.runs",
    "processes",
)
multiprocessing.set_forkserver_preload([*PRELOADED])
# Lightning asks whether there is a GPU, and a process that has asked cannot hand it on to a fork.
FORKED = "spawn" if torch.cuda.is_available() else "forkserver"


class Process:
    """``function(*arguments)`` in a process of its own, in the current folder; used as ``subprocess.Popen`` is."""

    def __init__(self, function, *arguments, threads=1):
        self._folder = tempfile.TemporaryDirectory()
        self._outputs = [Path(self._folder.name, name) for name in ("output", "errors")]
        for path in self._outputs:
            path.touch()
        context = multiprocessing.get_context(FORKED)
        self._process = context.Process(target=_call, args=(function, arguments, threads, self._outputs))
        self._process.start()

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self.returncode

    def kill(self):
        self._process.kill()

    def send_signal(self, number):
        os.kill(self._process.pid, number)

    def communicate(self, timeout=300):
        """What the process wrote, once it has ended: its output, its errors."""
        self._process.join(timeout)
        assert self.returncode is not None, f"still running after {timeout} s"
        return tuple(path.read_text() for path in self._outputs)


def python_m(module, *arguments, **variables):
    """``python -m module ...`` in a process of its own, on one thread, with variables added to its environment."""
    return Process(_run_module, module, arguments, variables)


def on_ranks(n_ranks, module, *arguments):
    """``python -m module ...`` in a process for each rank, with the variables that torchrun sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        **{"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1},
        **{"WORLD_SIZE": n_ranks, "LOCAL_WORLD_SIZE": n_ranks, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1},
    }
    each = [{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in range(n_ranks)]
    return [Process(_run_module, module, arguments, variables) for variables in each]


def python_c(code):
    """``python -c code`` in a process of its own, on one thread."""
    return Process(_run_code, code)


def _call(function, arguments, threads, outputs):
    for stream, path in zip((sys.stdout, sys.stderr), outputs, strict=True):
        with path.open("w") as file:
            os.dup2(file.fileno(), stream.fileno())
    torch.set_num_threads(threads)
    function(*arguments)


def _run_code(code):
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def _run_module(module, arguments, variables=None):
    os.environ.update({name: str(value) for name, value in (variables or {}).items()})
    sys.argv = [module, *(str(each) for each in arguments)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
