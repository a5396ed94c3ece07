"""The linear denoising experiment: a linear map learns, through the clustering, to drop two dimensions of noise.

60 points in four Gaussians in the plane, two dimensions of uniform noise appended, and a linear map θ of the four
dimensions to two, from a standard normal start, trained by SGD on batches. What it has to bring back is the clustering
of the points without noise.

Noise of unit width, which the paper says, does not mix the clusters whose means the paper gives: their forest is right
before any training. So there is a run with noise of width 8, where it is wrong, and one with width 1.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

import diffclust as dc
from experiments.figures import matrices_figure
from experiments.recipes import Recipe, over_seeds, part, recipe, write_csv

MEANS = np.array(  # those of the paper
    [[0.97627008, 4.30378733], [2.05526752, 0.89766366], [-1.52690401, 2.91788226], [-1.24825577, 7.83546002]]
)
N_CLUSTERS = len(MEANS)
PAPER_BATCHES = 25  # after which the paper reports no error


def clusters_of(points: torch.Tensor) -> torch.Tensor:
    return dc.spanning_forest(dc.negative_squared_distances(points), N_CLUSTERS).labels


@recipe("denoising")
@dataclasses.dataclass(frozen=True)
class Denoising(Recipe):
    """A linear map learns through the clustering to drop two dimensions of noise."""

    noise_widths: tuple[float, ...] = (8.0, 1.0)
    spread: float = 0.2
    n_per_cluster: int = 15
    n_batches: int = 100
    batch_size: int = 32
    learning_rate: float = 0.01
    epsilon: float = 0.1
    n_draws: int = 1000

    @classmethod
    def tiny(cls) -> Self:
        return cls(seeds=(0, 1), n_batches=25, n_draws=50)

    def points(self, rng: np.random.Generator, noise_width: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Points in four dimensions, and the clusters of the first two, which are to be found again."""
        means = np.repeat(MEANS, self.n_per_cluster, axis=0)
        signal = means + self.spread * rng.normal(size=means.shape)
        noise = noise_width * rng.uniform(size=signal.shape)
        target = clusters_of(torch.tensor(signal))
        return torch.tensor(np.hstack([signal, noise]), dtype=torch.float32), target

    def train(self, noise_width: float, seed: int) -> dict[str, Any]:
        """One run: validation errors before training and after each batch, and the map before and after."""
        rng = np.random.default_rng(seed)
        points, target = self.points(rng, noise_width)
        test_points, test_target = self.points(rng, noise_width)
        generator = torch.Generator().manual_seed(seed)
        theta = torch.randn(4, 2, generator=generator).requires_grad_()
        first = theta.detach().clone()
        loss_function = dc.nn.PartialFenchelYoungLoss(
            N_CLUSTERS, epsilon=self.epsilon, n_draws=self.n_draws, must_link_first=True, standardize=False, seed=seed
        )
        optimiser = torch.optim.SGD([theta], lr=self.learning_rate)
        errors, losses = [], []
        for batch in range(self.n_batches + 1):
            found = clusters_of(test_points @ theta.detach())
            errors.append(dc.metrics.connectivity_error(test_target, found))
            if batch < self.n_batches:
                chosen = torch.randperm(len(points), generator=generator)[: self.batch_size]
                loss = loss_function(points[chosen] @ theta, target[chosen])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                losses.append(loss.item())
        return {
            "raw_error": dc.metrics.connectivity_error(test_target, clusters_of(test_points)),
            "errors": errors,
            "losses": losses,
            "theta_before": first.tolist(),
            "theta": theta.detach().tolist(),
        }

    def run(self, folder: Path) -> dict[str, Any]:
        table, curves = [], []
        for width in self.noise_widths:
            runs = [
                part(folder / "parts" / f"width_{width:g}_seed_{seed}.json", functools.partial(self.train, width, seed))
                for seed in self.seeds
            ]
            table.append(_summary(width, runs))
            curves += [
                {"noise_width": width, "seed": seed, "batch": batch, "validation_error": error}
                for seed, run in zip(self.seeds, runs, strict=True)
                for batch, error in enumerate(run["errors"])
            ]
            if width == self.noise_widths[0]:
                self._draw(width, self.seeds[0], runs[0], folder / "denoising.png")
        write_csv(folder / "curves.csv", curves)
        return {"tables": {"by width of the noise": table}}

    def _draw(self, width: float, seed: int, run: dict[str, Any], path: Path) -> None:
        """Matrices of the training points, as in the paper."""
        points, target = self.points(np.random.default_rng(seed), width)
        theta = torch.tensor(run["theta"])
        clusters = {
            "M of the signal": target,
            "M with the noise": clusters_of(points),
            "M before training": clusters_of(points @ torch.tensor(run["theta_before"])),
            "M after training": clusters_of(points @ theta),
        }
        matrices = {title: (labels[:, None] == labels[None]).numpy() for title, labels in clusters.items()}
        matrices_figure(matrices, theta.numpy(), path)


def _summary(width: float, runs: list[dict[str, Any]]) -> dict[str, Any]:
    # The first batch with error 0, and the one after which it stays 0. A run that ends above 0 has no such batch.
    reached = [next((b for b, e in enumerate(run["errors"]) if e == 0), None) for run in runs]
    stays = [max((b + 1 for b, e in enumerate(run["errors"]) if e > 0), default=0) for run in runs]
    return {
        "noise width": width,
        "error in four dimensions": over_seeds(run["raw_error"] for run in runs),
        "error, first map": over_seeds(run["errors"][0] for run in runs),
        f"error after {PAPER_BATCHES} batches": over_seeds(run["errors"][: PAPER_BATCHES + 1][-1] for run in runs),
        "error, last map": over_seeds(run["errors"][-1] for run in runs),
        "batches to error 0": over_seeds(reached),
        "batches after which it stays 0": over_seeds(b if b < len(runs[0]["errors"]) else None for b in stays),
        "share of θ on noise before": over_seeds(_noise_share(run["theta_before"]) for run in runs),
        "share of θ on noise": over_seeds(_noise_share(run["theta"]) for run in runs),
    }


def _noise_share(theta: list[list[float]]) -> float:
    """How much of the square of θ belongs to the noise: 1/2 on average at the start, 0 for a perfect map."""
    squares = np.square(theta)
    return float(squares[2:].sum() / squares.sum())
