"""Which framework an array belongs to, without importing any: a framework whose arrays we see is already imported."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def framework_of(array: Any) -> str:
    """ "torch", "jax", or "numpy" for everything else (lists and scalars become NumPy arrays)."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return "jax"
    return "numpy"


def to_numpy(array: Any) -> np.ndarray:
    """The array on the host, detached; no copy where it is there already."""
    return array.detach().cpu().numpy() if framework_of(array) == "torch" else np.asarray(array)
