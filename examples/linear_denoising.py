"""
Which columns matter?
=====================

A linear map learns it through the clustering, from cluster labels alone. The paper's own version of this experiment is
the recipe ``python -m experiments run denoising``.
"""

# %%
# Four blobs in the plane, and two columns of noise so wide that single linkage mixes the blobs.
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_blobs

import diffclust as dc

K = 4


def error(points: torch.Tensor, labels: np.ndarray) -> float:
    return dc.metrics.connectivity_error(labels, dc.Hierarchy.from_points(points).labels(K))


def train(seed: int) -> tuple[list[float], torch.nn.Linear]:
    """Clustering errors on points not trained on: of all columns, and of the map before and after training."""
    torch.manual_seed(seed)
    centers = [[1, 4], [2, 1], [-2, 3], [-1, 8]]
    blobs, labels = make_blobs(120, centers=centers, cluster_std=0.2, random_state=seed)
    noise = np.random.default_rng(seed).uniform(0, 8, size=blobs.shape)
    columns = torch.tensor(np.hstack([blobs, noise]), dtype=torch.float32)
    train, test = slice(0, 60), slice(60, 120)

    linear = torch.nn.Linear(4, 2, bias=False)
    loss_function = dc.nn.PartialFenchelYoungLoss(K, epsilon=0.1, n_draws=100, must_link_first=True, standardize=False)
    optimiser = torch.optim.Adam(linear.parameters(), lr=0.03)
    errors = [error(columns[test], labels[test]), error(linear(columns[test]).detach(), labels[test])]
    for _ in range(60):
        optimiser.zero_grad()
        loss_function(linear(columns[train]), torch.tensor(labels[train])).backward()
        optimiser.step()
    errors.append(error(linear(columns[test]).detach(), labels[test]))
    return errors, linear


# %%
# Three seeds. The error is the share of pairs that the clustering gets wrong.
errors = {}
for seed in range(3):
    errors[seed], linear = train(seed)
    print("all columns {:.3f}, first map {:.3f}, learned map {:.3f}".format(*errors[seed]))

# %%
# The learned map of the last seed. The last two columns belong to the noise.
figure, axis = plt.subplots(figsize=(5, 2.6), constrained_layout=True)
image = axis.imshow(linear.weight.detach().abs(), cmap="Blues")
axis.set(xticks=range(4), xticklabels=["blob x", "blob y", "noise", "noise"], yticks=range(2), ylabel="output")
figure.colorbar(image, label="absolute weight")
plt.show()
