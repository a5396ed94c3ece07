"""The forest solvers. A solver knows arrays and integers only; this table says which one serves which array.

``base.py`` is the contract that all of them keep. A new backend is one module here and one row of the table.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import TYPE_CHECKING, Any, cast

from diffclust.frameworks import device_of, framework_of
from diffclust.noise import Noise
from diffclust.solvers.base import Answer, Request, Solver, Sums

if TYPE_CHECKING:  # so that mypy compares every solver with the contract
    from diffclust.solvers import cpu, cuda, reference, sampled, xla
    from diffclust.solvers.cpu import sums as cpu_sums
    from diffclust.solvers.cpu import tensors
    from diffclust.solvers.cuda import sums as cuda_sums
    from diffclust.solvers.xla import host, kernels
    from diffclust.solvers.xla import sums as xla_sums

    _SOLVERS: tuple[Solver, ...] = (reference, cpu, sampled, tensors, cuda, xla, host, kernels)
    _SUMS: tuple[Sums, ...] = (reference, cpu_sums, tensors, cuda_sums, xla_sums)

__all__ = ["Answer", "Request", "Solver", "solver_for", "sums_for"]

TABLE = {  # framework and device: the solver, and the sums over its draws
    ("numpy", "cpu"): ("diffclust.solvers.cpu", "diffclust.solvers.cpu.sums"),
    ("torch", "cpu"): ("diffclust.solvers.cpu.tensors", "diffclust.solvers.cpu.tensors"),
    ("torch", "cuda"): ("diffclust.solvers.cuda", "diffclust.solvers.cuda.sums"),
    ("jax", "cpu"): ("diffclust.solvers.xla", "diffclust.solvers.xla.sums"),
    ("jax", "gpu"): ("diffclust.solvers.xla", "diffclust.solvers.xla.sums"),
}
ANY_NOISE = {  # on the host, whatever the device
    "numpy": "diffclust.solvers.sampled",
    "torch": "diffclust.solvers.cpu.tensors",
    "jax": "diffclust.solvers.xla.host",
}


def solver_for(array: Any, noise: str | Noise = "normal") -> Solver:
    """The solver that runs on this array.

    Torch tensors on a device that is not in the table, such as "mps", get that of the CPU, and the user a warning.

    Args:
        array: a similarity, of NumPy, torch or JAX.
        noise: "normal", "gumbel" or a :class:`diffclust.noise.Noise`, which may have no kernel.

    Returns:
        A module with the functions of :class:`Solver`.

    Raises:
        TypeError: there is no solver for such arrays.

    Example:
        >>> solver_for([[0.0]]).__name__
        'diffclust.solvers.cpu'
    """
    return cast(Solver, _module(_row(array)[0] if isinstance(noise, str) else ANY_NOISE[framework_of(array)]))


def sums_for(array: Any) -> Sums:
    """The module with the sums over draws for such arrays as this one."""
    return cast(Sums, _module(_row(array)[1]))


_module = functools.cache(importlib.import_module)


def _row(array: Any) -> tuple[str, str]:
    return _find(framework_of(array), device_of(array))


@functools.cache  # so that a device without a solver is warned about once
def _find(framework: str, device: str) -> tuple[str, str]:
    if framework == "torch" and device != "meta" and (framework, device) not in TABLE:
        warnings.warn(
            f"diffclust has no solver for torch tensors on {device}: the CPU solves in its place, and similarities and "
            f"results travel between the two. Results stay on {device}.",
            stacklevel=2,
        )
        device = "cpu"
    if (framework, device) not in TABLE:
        supported = ", ".join(f"{f} on {d}" for f, d in TABLE)
        raise TypeError(f"No solver for {framework} arrays on {device}: there are solvers for {supported}.")
    return TABLE[framework, device]
