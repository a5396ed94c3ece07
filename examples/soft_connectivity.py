"""A clustering layer inside a network, trained by a loss of one's own on the soft connectivity.

Rings cannot be told apart by distances in the plane. A small network, a clustering layer, and binary cross-entropy on pairs whose
relation is known: the gradient goes through the clustering.

python examples/soft_connectivity.py
"""

import argparse

import torch
from sklearn.datasets import make_circles
from torch import nn

import diffclust as dc


def main(n_steps: int = 150, seed: int = 0) -> list[float]:
    torch.manual_seed(seed)
    points, rings = make_circles(96, factor=0.6, noise=0.08, random_state=seed)
    points, rings = torch.tensor(points, dtype=torch.float32), torch.tensor(rings)
    network = nn.Sequential(
        nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 4), dc.nn.PerturbedClustering(n_clusters=2, epsilon=0.3, n_draws=200)
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    same_ring = (rings[:, None] == rings[None, :]).float()
    losses = []
    for step in range(n_steps):
        together = network(points)
        loss = nn.functional.binary_cross_entropy(together.clamp(0.01, 0.99), same_ring)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if (step + 1) % 25 == 0:
            error = ((together > 0.5) != (same_ring > 0.5)).float().mean()
            print(f"step {step + 1:3d}: loss {losses[-1]:.3f}, pairs confused {error:.3f}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    main(arguments.steps)
