"""Which solver serves a JAX program: XLA's, Triton's kernels on a GPU, or the CPU solver by a callback."""

from __future__ import annotations

import functools
from typing import Any

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
    """The solver of Triton's kernels, if it can run here. Triton comes with torch, or alone."""
    try:
        from diffclust.solvers.xla import kernels
        from diffclust.solvers.xla.launches import can_run
    except ImportError:
        return None
    return kernels if can_run() else None
