"""
Digits with 100 labels
======================

A training loop of one's own: an embedding is trained on labelled and unlabelled images, then all test images are
clustered. No label of a test image is used.
"""

# %%
# Half of the images are for training; ten of each digit have a label.
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.manifold import TSNE
from sklearn.model_selection import train_test_split
from torch import nn

import diffclust as dc

rng = np.random.default_rng(0)
torch.manual_seed(0)
images, digits = load_digits(return_X_y=True)
train, test, train_digits, test_digits = train_test_split(
    (images / 16).astype(np.float32), digits, test_size=0.5, stratify=digits, random_state=0
)
known = np.full(len(train), -1)
for digit in range(10):
    known[rng.choice(np.flatnonzero(train_digits == digit), 10, replace=False)] = digit
labelled, unlabelled = np.flatnonzero(known >= 0), np.flatnonzero(known < 0)

# %%
# All labelled images are in every batch, and as many unlabelled ones. Unlabelled images take part: the forest may
# go through them.
network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 16))
loss_function = dc.nn.PartialFenchelYoungLoss(n_clusters=10, epsilon=0.3, n_draws=20)
optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
losses = []
for _ in range(200):
    batch = np.concatenate([labelled, rng.choice(unlabelled, 100, replace=False)])
    loss = loss_function(network(torch.from_numpy(train[batch])), torch.from_numpy(known[batch]))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at the end")

# %%
# The tree of the test images is cut into ten clusters of at least forty.
with torch.no_grad():
    embedded = network(torch.from_numpy(test))
tree = dc.Hierarchy.from_points(embedded)
clusterings = {
    "ours": tree.labels(10, min_cluster_size=40),
    "k-means, our embedding": KMeans(10, n_init=10, random_state=0).fit_predict(embedded.numpy()),
    "k-means, pixels": KMeans(10, n_init=10, random_state=0).fit_predict(test),
}
scores = {name: dc.metrics.clustering_scores(test_digits, labels) for name, labels in clusterings.items()}
for name, row in scores.items():
    print(f"{name:>24}: " + ", ".join(f"{key} {value:.3f}" for key, value in row.items()))

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), constrained_layout=True)
for axis, (name, rows) in zip(axes, {"pixels": test, "embedding": embedded.numpy()}.items(), strict=True):
    axis.scatter(*TSNE(random_state=0).fit_transform(rows).T, c=test_digits, cmap="tab10", s=6)
    axis.set_title(f"{name}; colours are the true digits")
    axis.set_axis_off()
plt.show()
