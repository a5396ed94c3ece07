"""The paper's linear denoising experiment: learn to drop two noise dimensions, from cluster labels alone.

60 points in four Gaussians in the plane, with two dimensions of uniform noise appended, so wide (8; of unit width they
would not hurt) that single linkage in four dimensions mixes the clusters. A linear map to two dimensions is trained
through the clustering: SGD 0.01, batches of 32, epsilon 0.1, 1000 draws, similarities as they are.

python examples/linear_denoising.py
"""

import argparse

import numpy as np
import torch

import diffclust as dc

N_CLUSTERS, N_PER_CLUSTER, NOISE_WIDTH = 4, 15, 8.0
MEANS = np.array([[0.976, 4.304], [2.055, 0.898], [-1.527, 2.918], [-1.248, 7.835]])  # those of the paper


def make_data(rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    labels = np.repeat(np.arange(N_CLUSTERS), N_PER_CLUSTER)
    signal = MEANS[labels] + 0.2 * rng.normal(size=(len(labels), 2))
    noise = NOISE_WIDTH * rng.uniform(size=(len(labels), 2))
    return torch.tensor(np.hstack([signal, noise]), dtype=torch.float32), torch.tensor(labels)


def clustering_error(points: torch.Tensor, labels: torch.Tensor) -> float:
    forest = dc.spanning_forest(dc.negative_squared_distances(points), N_CLUSTERS)
    return dc.metrics.connectivity_error(labels, forest.labels)


def main(seed: int = 0, n_batches: int = 25) -> list[float]:
    """Validation errors, before training and after each batch."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    points, labels = make_data(rng)
    test_points, test_labels = make_data(rng)
    print(f"error of single linkage in all four dimensions: {clustering_error(test_points, test_labels):.3f}")

    theta = torch.randn(4, 2, requires_grad=True)
    loss_function = dc.nn.PartialFenchelYoungLoss(N_CLUSTERS, epsilon=0.1, n_draws=1000, standardize=False)
    optimiser = torch.optim.SGD([theta], lr=0.01)
    errors = [clustering_error(test_points @ theta.detach(), test_labels)]
    for batch in range(n_batches):
        chosen = torch.randperm(len(points))[:32]
        optimiser.zero_grad()
        loss = loss_function(points[chosen] @ theta, labels[chosen])
        loss.backward()
        optimiser.step()
        errors.append(clustering_error(test_points @ theta.detach(), test_labels))
        print(f"batch {batch + 1:2d}: loss {loss.item():9.4f}, validation error {errors[-1]:.3f}")
    print("learned map (the last two rows belong to the noise):")
    print(theta.detach().numpy().round(3))
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args().seed)
