"""Clustering you can train through: perturbed maximum spanning forests. See https://arxiv.org/abs/2305.16358."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from diffclust import constraints, forest, losses, metrics, noise, perturbed, similarity, solvers
from diffclust.constraints import Constraints
from diffclust.forest import Forest, Hierarchy, spanning_forest
from diffclust.losses import connectivity_loss, fenchel_young_loss, partial_fenchel_young_loss
from diffclust.perturbed import perturbed_adjacency, perturbed_connectivity, perturbed_value
from diffclust.similarity import cosine_similarities, mutual_reachability, negative_squared_distances, standardize

if TYPE_CHECKING:
    from diffclust import nn

__version__ = "0.1.0"

__all__ = [
    "Constraints", "Forest", "Hierarchy", "connectivity_loss", "constraints", "cosine_similarities",
    "fenchel_young_loss", "forest", "losses", "metrics", "mutual_reachability", "negative_squared_distances", "nn",
    "noise", "partial_fenchel_young_loss", "perturbed", "perturbed_adjacency", "perturbed_connectivity",
    "perturbed_value", "similarity", "solvers", "spanning_forest", "standardize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """``diffclust.nn`` imports torch, so it is loaded when it is first asked for."""
    if name == "nn":
        return import_module("diffclust.nn")
    raise AttributeError(f"module 'diffclust' has no attribute {name!r}")
