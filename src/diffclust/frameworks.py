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


def namespace_of(array: Any) -> Any:
    """The module with the functions for this array: ``numpy``, ``torch`` or ``jax.numpy``."""
    framework = framework_of(array)
    return np if framework == "numpy" else sys.modules["torch" if framework == "torch" else "jax.numpy"]


def to_numpy(array: Any) -> np.ndarray:
    """The array on the host, detached; no copy where it is there already."""
    return array.detach().cpu().numpy() if framework_of(array) == "torch" else np.asarray(array)


def device_of(array: Any) -> str:
    """Where the array lives, in its framework's words: "cpu", torch's "cuda", JAX's "gpu"."""
    framework = framework_of(array)
    if framework == "jax":
        jax = sys.modules["jax"]
        return jax.default_backend() if is_traced(array) else next(iter(array.devices())).platform
    return array.device.type if framework == "torch" else "cpu"


def is_integer(value: Any) -> bool:
    """Whether this is an integer, of Python or NumPy; True and False are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_traced(array: Any) -> bool:
    """Whether JAX traces this array, so that there is nothing to read yet."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.core.Tracer)


def is_captured(array: Any) -> bool:
    """Whether a CUDA graph is being captured, so that nothing of the GPU can be read now."""
    return device_of(array) == "cuda" and sys.modules["torch"].cuda.is_current_stream_capturing()


def sort(array: Any) -> Any:
    """Sorted along the last axis."""
    return array.sort(-1).values if framework_of(array) == "torch" else namespace_of(array).sort(array, -1)


def identity_mask(n: int, like: Any) -> Any:
    """The (n, n) identity as booleans, where ``like`` lives."""
    placed = {"device": like.device} if framework_of(like) == "torch" else {}
    return namespace_of(like).eye(n, dtype=namespace_of(like).bool if placed else bool, **placed)
