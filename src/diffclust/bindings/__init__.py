"""Forests and their expectations over draws, for each framework.

A binding connects a solver to a framework's automatic differentiation, with the formulas of ``perturbed.py``. All
bindings have the same functions: ``value``, ``adjacency``, ``connectivity``, and the sums over draws that others need.
"""

from __future__ import annotations

from typing import Any

from diffclust.frameworks import framework_of


def backend_of(array: Any) -> Any:
    """The binding for this kind of array."""
    framework = framework_of(array)
    if framework == "torch":  # import statements, which torch.compile can trace
        from diffclust.bindings import torch

        return torch
    if framework == "jax":
        from diffclust.bindings import jax

        return jax
    from diffclust.bindings import numpy

    return numpy
