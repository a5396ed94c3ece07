"""Clustering you can train through: perturbed maximum spanning forests. See https://arxiv.org/abs/2305.16358."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from diffclust import constraints, forest, losses, metrics, noise, perturbed, similarity, solvers, stability
from diffclust.constraints import Constraints
from diffclust.forest import Forest, Hierarchy, spanning_forest
from diffclust.knowledge import Knowledge
from diffclust.losses import connectivity_loss, fenchel_young_loss, partial_fenchel_young_loss
from diffclust.perturbed import perturbed_adjacency, perturbed_connectivity, perturbed_value
from diffclust.similarity import cosine_similarities, mutual_reachability, negative_squared_distances, standardize
from diffclust.stability import choose_n_clusters, soft_memberships

if TYPE_CHECKING:
    from diffclust import cells as cells  # not in __all__: it needs an extra
    from diffclust import cluster, nn, training
    from diffclust import metric_learning as metric_learning  # not in __all__: it needs an extra
    from diffclust.runs import load_run
    from diffclust.suggestions import suggest

__version__: str

__all__ = [
    "Constraints",
    "Forest",
    "Hierarchy",
    "Knowledge",
    "choose_n_clusters",
    "cluster",
    "connectivity_loss",
    "constraints",
    "cosine_similarities",
    "fenchel_young_loss",
    "forest",
    "load_run",
    "losses",
    "metrics",
    "mutual_reachability",
    "negative_squared_distances",
    "nn",
    "noise",
    "partial_fenchel_young_loss",
    "perturbed",
    "perturbed_adjacency",
    "perturbed_connectivity",
    "perturbed_value",
    "similarity",
    "soft_memberships",
    "solvers",
    "spanning_forest",
    "stability",
    "standardize",
    "suggest",
    "training",
]

LAZY = ["cells", "cluster", "continuation", "metric_learning", "mistakes", "nn", "sentence_transformers", "training"]


def __getattr__(name: str) -> Any:
    """``diffclust.nn`` imports torch, ``diffclust.cluster`` scikit-learn: loaded when they are first asked for."""
    if name in LAZY:
        return import_module(f"diffclust.{name}")
    if name == "load_run":
        return import_module("diffclust.runs").load_run
    if name == "suggest":
        return import_module("diffclust.suggestions").suggest
    if name == "__version__":
        return _version()
    raise AttributeError(f"module 'diffclust' has no attribute {name!r}")


def _version() -> str:
    """The version of the installed package, which comes from the tag; a source tree by itself has none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("diffclust")
    except PackageNotFoundError:
        return "0+unknown"
