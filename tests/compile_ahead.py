"""Compiles kernels ahead for an H100, without a GPU: with a driver for Triton that launches nothing.

    python tests/compile_ahead.py FOLDER

It fails at the first thing that is not as it should be.
"""

import functools
import sys
import threading
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from diffclust import nn, training
from diffclust.bindings import torch as binding
from diffclust.bindings import torch_similarity
from diffclust.solvers import cuda
from diffclust.solvers.cuda import similarity as triton_similarity
from diffclust.solvers.kernels import ahead, helper

HERE = torch.device("cpu")
launched: list[str] = []
compiled: list[tuple[str, str]] = []  # kernel, and the thread that did it


class Launcher:
    def __init__(self, source, metadata):
        self.name = source.fn.__name__

    def __call__(self, *arguments):
        launched.append(self.name)


class Driver:
    launcher_cls = Launcher
    utils = property(lambda self: self)

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def load_binary(self, name, code, shared, device):
        return None, 1, 32, 0, 1024

    def get_device_properties(self, device):
        return {"max_shared_mem": 232_448}


class NoDevice(torch.cuda.device):
    def __init__(self, device):
        pass

    def __enter__(self):
        pass

    def __exit__(self, *error):
        pass


@ahead.kernel
def broken(x, WIDTH: tl.constexpr):
    no_such_function(x)  # noqa: F821


def note(*, src, cache_hit, **_):
    if not cache_hit:
        compiled.append((src.name, threading.current_thread().name))


def only_in_threads():
    return bool(compiled) and all(thread.startswith("diffclust") for _, thread in compiled)


def forget(cache):
    """As in another process, with another folder."""
    for module in (
        triton_similarity,
        *(each for name, each in sys.modules.items() if name.startswith("diffclust.solvers.")),
    ):
        for each in vars(module).values():
            if isinstance(each, JITFunction):
                each.device_caches.clear()
                each.hash, each.used_global_vals = None, {}
    triton.knobs.cache.dir = str(cache)
    compiled.clear()
    launched.clear()


def ptx(folder):
    """The code of each kernel, by its place in the cache."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.glob("*/*.ptx")}


def main(folder):
    triton.runtime.driver.set_active(Driver())
    triton.knobs.compilation.listener = note
    torch.cuda.device = NoDevice
    ahead._target_of = lambda device: GPUTarget("cuda", 90, 32)
    binding.solver_for = lambda *_: cuda
    torch_similarity.similarity.kernels_for = lambda embeddings: triton_similarity

    rng = np.random.default_rng(0)
    labels = np.where(np.arange(600) < 60, rng.integers(0, 3, 600), -1)
    config = training.TrainingConfig(3, neighbours=5, batch_size=256, device="cpu")
    config = training.resolve(config, np.zeros((600, 4)), labels)
    rows = torch.from_numpy(rng.normal(size=(600, 4))).float()
    data = training.data.ForestData(config, rows, torch.from_numpy(labels), None)
    module = training.module.make_module(config, rows, data.scaling)
    batch = data.first_batch(HERE)

    def step():
        embeddings = torch.from_numpy(np.random.default_rng(1).normal(size=(256, 16))).float().requires_grad_()
        with torch.autograd.set_multithreading_enabled(False):
            module.loss(embeddings, batch[1]).backward()
        return list(launched)

    forget(folder / "first launch")
    expected = step()
    assert len(set(expected)) == 12
    assert not only_in_threads()

    # A rehearsal launches nothing; a step after it compiles nothing.
    def rehearse(name, n_here):
        """With how many kernels compiled by threads of this process; all others by another one."""
        forget(folder / name)
        training.module.rehearse(config, torch.from_numpy(labels), None, HERE)
        assert not launched
        assert step() == expected
        assert only_in_threads(), compiled
        assert len(compiled) == n_here
        assert ptx(folder / name) == ptx(folder / "first launch")

    triton.knobs.cache.dir = str(folder / "rehearsal")
    rehearse("rehearsal", 7)  # those whose modules import torch
    triton.knobs.cache.dir = str(folder / "dead helper")
    key = ahead.start_triton()[1]
    ahead._helper = helper.start_helper(key)
    ahead._helper._process.kill()
    rehearse("dead helper", 12)
    forget(folder / "rehearsal")
    assert helper.start_helper(key) is None

    # The next process, with a full cache.
    training.module.rehearse(config, torch.from_numpy(labels), None, HERE)
    assert step() == expected
    assert not compiled

    # A loss without a gradient needs no other kernels.
    with torch.no_grad():
        module.loss.eval()(torch.zeros(256, 16), batch[1])
    assert not compiled

    # A small problem is launched without Triton's look at all arguments, but not in a rehearsal.
    known = training.data.batch_constraints(torch.arange(64) % 4, None, 2)
    small = functools.partial(nn.PartialFenchelYoungLoss(3), torch.ones(64, 4), known)
    small(), small()
    assert launched.count("solve_and_mean") == 2
    with ahead.compile_only(HERE):
        small()
    assert launched.count("solve_and_mean") == 2

    # An error is raised by the launch.
    x = torch.zeros(1)
    with ahead.compile_only(HERE):
        broken[(1,)](x, WIDTH=1)
    try:
        broken[(1,)](x, WIDTH=1)
    except triton.CompilationError:
        pass
    else:
        raise AssertionError("a kernel that cannot be compiled was launched")

    for each in threading.enumerate():
        if each.name.startswith("diffclust"):
            each.join(60)
            assert not each.is_alive(), each.name
    print("compiled ahead")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
