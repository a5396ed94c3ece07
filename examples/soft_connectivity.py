"""A clustering layer inside a network, trained by a loss of one's own on the soft connectivity.

Problems of 15 points in three clusters, hidden by two dimensions of noise. A linear map, a clustering layer, and binary
cross-entropy between its soft connectivity and the truth: the gradient goes through the clustering by the score of
the noise.

python examples/soft_connectivity.py
"""

import argparse

import torch
from torch import nn

import diffclust as dc

CENTRES = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 1.7]])


def make_problems(n_problems: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (n_problems, 15, 4), and whether two points are in the same cluster (n_problems, 15, 15)."""
    labels = torch.arange(3).repeat_interleave(5).expand(n_problems, -1)
    signal = CENTRES[labels] + 0.25 * torch.randn(n_problems, 15, 2)
    points = torch.cat([signal, 3 * torch.rand(n_problems, 15, 2)], dim=-1)
    return points, (labels[:, :, None] == labels[:, None, :]).float()


def main(n_steps: int = 200, seed: int = 0) -> list[float]:
    """Share of confused pairs, step by step."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(4, 2, bias=False), dc.nn.PerturbedClustering(n_clusters=3, epsilon=0.3, n_draws=200)
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-2)
    confused = []
    for step in range(n_steps):
        points, same = make_problems(n_problems=8)
        together = network(points)
        loss = nn.functional.binary_cross_entropy(together.clamp(0.01, 0.99), same)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        confused.append(((together > 0.5) != (same > 0.5)).float().mean().item())
        if (step + 1) % 25 == 0:
            print(f"step {step + 1:3d}: loss {loss.item():.3f}, pairs confused {confused[-1]:.3f}")
    print("learned map (the last two columns belong to the noise):")
    print(network[0].weight.detach().numpy().round(2))
    return confused


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.steps, arguments.seed)
