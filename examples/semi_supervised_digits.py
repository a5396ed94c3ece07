"""Digits with 100 labels: train an embedding on labelled and unlabelled images, cluster all test images.

python examples/semi_supervised_digits.py
"""

import argparse

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import diffclust as dc


def choose_labels(digits: np.ndarray, n_labels: int, rng: np.random.Generator) -> np.ndarray:
    """Labels of a balanced random choice of images; -1 elsewhere."""
    known = np.full(len(digits), -1)
    for digit in range(10):
        known[rng.choice(np.flatnonzero(digits == digit), n_labels // 10, replace=False)] = digit
    return known


def main(n_steps: int = 300, n_labels: int = 100, batch_size: int = 256, seed: int = 0) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    images, digits = load_digits(return_X_y=True)
    train, test, train_digits, test_digits = train_test_split(
        (images / 16).astype(np.float32), digits, test_size=0.5, stratify=digits, random_state=seed
    )
    known = choose_labels(train_digits, n_labels, rng)
    labelled, unlabelled = np.flatnonzero(known >= 0), np.flatnonzero(known < 0)

    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 16))
    loss_function = dc.nn.PartialFenchelYoungLoss(n_clusters=10, epsilon=0.3, n_draws=50)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    for step in range(n_steps):
        half = min(batch_size // 2, n_labels)
        batch = np.concatenate([rng.choice(labelled, half, False), rng.choice(unlabelled, batch_size - half, False)])
        loss = loss_function(network(torch.from_numpy(train[batch])), torch.from_numpy(known[batch]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}")

    with torch.no_grad():
        embedded = network(torch.from_numpy(test))
    tree = dc.Hierarchy.from_similarity(dc.negative_squared_distances(embedded))
    clusterings = {
        "ours": tree.labels(10, min_cluster_size=40),
        "k-means, our embedding": KMeans(10, n_init=10, random_state=0).fit_predict(embedded.numpy()),
        "k-means, pixels": KMeans(10, n_init=10, random_state=0).fit_predict(test),
    }
    scores = {name: dc.metrics.clustering_scores(test_digits, labels) for name, labels in clusterings.items()}
    print(f"\n{'':>24}  " + "  ".join(f"{key:>8}" for key in scores["ours"]))
    for name, row in scores.items():
        print(f"{name:>24}  " + "  ".join(f"{value:8.3f}" for value in row.values()))
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.steps, arguments.labels, seed=arguments.seed)
