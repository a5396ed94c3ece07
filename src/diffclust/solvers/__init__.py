"""The forest solvers. A solver knows arrays and integers only; this table says which one serves which array.

``base.py`` is the contract that all of them keep. A new backend is one module here and one row of the table.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import TYPE_CHECKING, Any, cast

from diffclust.frameworks import device_of, framework_of
from diffclust.solvers.base import Answer, Request, Solver

if TYPE_CHECKING:  # so that mypy compares every solver with the contract
    from diffclust.solvers import cpu, cuda, reference, xla
    from diffclust.solvers.cpu import tensors

    _SOLVERS: tuple[Solver, ...] = (reference, cpu, tensors, cuda, xla)

__all__ = ["Answer", "Request", "Solver", "solver_for"]

TABLE = {
    ("numpy", "cpu"): "diffclust.solvers.cpu",
    ("torch", "cpu"): "diffclust.solvers.cpu.tensors",
    ("torch", "cuda"): "diffclust.solvers.cuda",
    ("jax", "cpu"): "diffclust.solvers.xla",
    ("jax", "gpu"): "diffclust.solvers.xla",
}


def solver_for(array: Any) -> Solver:
    """The solver that runs on this array, e.g. ``solver_for(x).__name__ == "diffclust.solvers.cpu"``.

    Torch tensors on a device that is not in the table, such as "mps", get that of the CPU, and the user a warning.
    """
    return _load(framework_of(array), device_of(array))


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
