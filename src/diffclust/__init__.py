"""Clustering you can train through: perturbed maximum spanning forests. See https://arxiv.org/abs/2305.16358."""

from __future__ import annotations

from diffclust import constraints, forest, metrics, noise, similarity, solvers
from diffclust.constraints import Constraints
from diffclust.forest import Forest, Hierarchy, spanning_forest
from diffclust.similarity import cosine_similarities, mutual_reachability, negative_squared_distances, standardize

__version__ = "0.1.0"

__all__ = [
    "Constraints",
    "Forest",
    "Hierarchy",
    "constraints",
    "cosine_similarities",
    "forest",
    "metrics",
    "mutual_reachability",
    "negative_squared_distances",
    "noise",
    "similarity",
    "solvers",
    "spanning_forest",
    "standardize",
]
