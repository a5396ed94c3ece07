"""
A clustering layer inside a network
===================================

The layer maps embeddings to a soft connectivity: for each pair, how often two points are in one cluster. Any loss on
it can be trained. Here it is binary cross-entropy with the truth.
"""

# %%
# Problems of 15 points in three clusters, hidden by two dimensions of noise.
import matplotlib.pyplot as plt
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


# %%
# A linear map and the layer. The gradient goes through the clustering by the score of the noise.
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(4, 2, bias=False), dc.nn.PerturbedClustering(n_clusters=3, epsilon=0.3, n_draws=200))
optimiser = torch.optim.Adam(network.parameters(), lr=3e-2)
confused = []  # share of confused pairs, step by step
for _ in range(150):
    points, same = make_problems(n_problems=8)
    together = network(points)
    loss = nn.functional.binary_cross_entropy(together.clamp(0.01, 0.99), same)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    confused.append(((together > 0.5) != (same > 0.5)).float().mean().item())

# %%
# The map has learned which columns are noise: the last two.
print(network[0].weight.detach().numpy().round(2))
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
axes[0].plot(confused)
axes[0].set(xlabel="step", ylabel="share of confused pairs")
axes[1].imshow(together[0].detach(), vmin=0, vmax=1)
axes[1].set_title("soft connectivity of one problem")
plt.show()
