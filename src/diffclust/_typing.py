"""Types that signatures share. Arrays are duck-typed, so to a type checker these are ``Any``: the names say more."""

from __future__ import annotations

from typing import Any, TypeAlias

Array: TypeAlias = Any
"""A NumPy array, torch tensor or JAX array; the result is of the same kind. Lists become NumPy arrays."""

Integers: TypeAlias = Any
"""An int, an integer scalar of the framework, or an array of integers, one for each problem."""

Seed: TypeAlias = Any
"""An int, an integer scalar of the framework, a JAX key, or None for one of the framework's global generator."""
