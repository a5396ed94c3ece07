"""Which solver serves a JAX program: XLA's, Triton's kernels on a GPU, or the CPU solver by a callback."""

from __future__ import annotations

import functools
from typing import Any

import jax

from diffclust.solvers import xla
from diffclust.solvers.base import Request, Solver
from diffclust.solvers.xla import host
from diffclust.solvers.xla.calls import Arrays


def fastest(settings: Request, arrays: Arrays) -> Solver:
    """The fastest solver of these constants and arrays; where noise has no kernel, the only one."""
    if not isinstance(settings.draws.noise, str) or host.is_faster(settings, arrays):
        return host
    kernels = _kernels()
    return xla if kernels is None or not kernels.fit(settings, arrays) else kernels


@functools.cache
def _kernels() -> Any:
    """The solver of Triton's kernels, if there is one NVIDIA GPU and nothing else, and Triton is installed."""
    if jax.default_backend() != "gpu" or jax.device_count() > 1:
        return None
    try:
        from diffclust.solvers.xla import kernels
        from diffclust.solvers.xla.launches import can_launch
    except ImportError:  # Triton comes with torch, or alone
        return None
    return kernels if can_launch() else None
