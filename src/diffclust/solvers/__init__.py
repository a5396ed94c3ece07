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
from diffclust.solvers.base import Answer, Request, Solver

if TYPE_CHECKING:  # so that mypy compares every solver with the contract
    from diffclust.solvers import cpu, cuda, reference, sampled, xla
    from diffclust.solvers.cpu import tensors
    from diffclust.solvers.xla import host

    _SOLVERS: tuple[Solver, ...] = (reference, cpu, sampled, tensors, cuda, xla, host)

__all__ = ["Answer", "Request", "Solver", "solver_for"]

TABLE = {
    ("numpy", "cpu"): "diffclust.solvers.cpu",
    ("torch", "cpu"): "diffclust.solvers.cpu.tensors",
    ("torch", "cuda"): "diffclust.solvers.cuda",
    ("jax", "cpu"): "diffclust.solvers.xla",
    ("jax", "gpu"): "diffclust.solvers.xla",
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
    if isinstance(noise, str):
        return _load(framework_of(array), device_of(array))
    return cast(Solver, importlib.import_module(ANY_NOISE[framework_of(array)]))


@functools.cache  # so that a device without a solver is warned about once
def _load(framework: str, device: str) -> Solver:
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
    return cast(Solver, importlib.import_module(TABLE[framework, device]))
