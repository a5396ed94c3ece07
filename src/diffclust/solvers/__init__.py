"""The forest solvers. A solver knows arrays and integers only; this table says which one serves which array.

Every solver has the same functions: ``solve`` and the sums over draws that expectations and gradients are made of. A
new backend is one module here and one row of the table.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from types import ModuleType
from typing import Any, NamedTuple

from diffclust.frameworks import device_of, framework_of

TABLE = {
    ("numpy", "cpu"): "diffclust.solvers.cpu",
    ("torch", "cpu"): "diffclust.solvers.cpu",
    ("torch", "cuda"): "diffclust.solvers.cuda",
    ("jax", "cpu"): "diffclust.solvers.xla",
    ("jax", "gpu"): "diffclust.solvers.xla",
}


class Forests(NamedTuple):
    """What ``solve`` returns for ``problems x solves x draws``; the solves are (free, constrained) or one of them."""

    edges: Any  # (problems, solves, draws, n - 1, 2) int32, by decreasing perturbed similarity, then (-1, -1)
    labels: Any  # (problems, solves, draws, n) int32, trees numbered by their smallest point
    values: Any  # (problems, solves, draws) <A, similarity + epsilon * noise>, every edge counted twice


def solver_for(array: Any) -> ModuleType:
    """The solver that runs on this array, e.g. ``solver_for(x).__name__ == "diffclust.solvers.cpu"``.

    Torch tensors on a device that is not in the table, such as "mps", get that of the CPU, and the user a warning.
    """
    return _load(framework_of(array), device_of(array))


@functools.cache  # so that a device without a solver is warned about once
def _load(framework: str, device: str) -> ModuleType:
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
    return importlib.import_module(TABLE[framework, device])
