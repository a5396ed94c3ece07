"""Which solver serves a JAX program: XLA's, Triton's kernels on a GPU, or the CPU solver by a callback."""

from __future__ import annotations

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
    return kernels if kernels is not None and kernels.can_run() and kernels.fit(settings, arrays) else xla


def _kernels() -> Any:
    try:
        from diffclust.solvers.xla import kernels
    except ImportError:  # without Triton, which comes with torch or alone
        return None
    return kernels
