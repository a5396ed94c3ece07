"""
A forest, a draw, a gradient
============================

The three things that the library is made of, as pictures. The page *How it works* shows and explains them.
"""

# %%
# A forest
# --------
# Thirty points around three centres, and their maximum spanning forest with three trees.
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

import diffclust as dc

rng = np.random.default_rng(11)
centres = np.array([[0.0, 0.0], [1.4, 2.0], [2.8, 0.3]])
truth = np.repeat(np.arange(3), 10)
points = centres[truth] + 0.45 * rng.normal(size=(30, 2))
similarity = dc.standardize(dc.negative_squared_distances(points))
colours = np.array(["#0072B2", "#E69F00", "#009E73"])


def draw(axis: Axes, forest: dc.Forest, title: str) -> None:
    """Trees have their colours from left to right."""
    left_to_right = np.argsort([points[forest.labels == tree, 0].mean() for tree in range(3)])
    for i, j in forest.edges[forest.edges[:, 0] >= 0]:
        axis.plot(*points[[i, j]].T, color="#777777", linewidth=1.2, zorder=1)
    axis.scatter(*points.T, c=colours[np.argsort(left_to_right)[forest.labels]], s=40, zorder=2)
    axis.set_title(title, pad=12)
    axis.set(aspect="equal", xticks=[], yticks=[])
    axis.margins(0.08)
    axis.spines[:].set_color("#cccccc")


figure, axis = plt.subplots(figsize=(5, 4), constrained_layout=True)
draw(axis, dc.spanning_forest(similarity, 3), "a forest with three trees")
plt.show()

# %%
# A draw
# ------
# Noise on the similarities gives another forest. The noise is a function of (seed, draw, i, j), so that these are the
# forests of the first three draws of every operator with this seed.
epsilon = 0.2
noise = dc.noise.sample(seed=0, n_draws=3, n=len(points))
figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), constrained_layout=True)
for b, axis in enumerate(axes):
    draw(axis, dc.spanning_forest(similarity + epsilon * noise[b], 3), f"draw {b}")
plt.show()

# %%
# The soft connectivity is the share of draws in which two points are in one tree.
figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), constrained_layout=True)
for axis, noise_scale in zip(axes, (0.05, 0.2), strict=True):
    together = dc.perturbed_connectivity(similarity, 3, epsilon=noise_scale, n_draws=500, seed=0)
    image = axis.imshow(together, vmin=0, vmax=1, cmap="viridis")
    axis.set_title(f"soft connectivity, epsilon = {noise_scale}")
figure.colorbar(image, ax=axes)
plt.show()

# %%
# A gradient
# ----------
# Five points get labels. The gradient of the loss in the similarities is the average free forest minus the average
# forest that agrees with the labels. A step of training raises similarities where it is negative.
known = np.full(30, -1)
known[[0, 1, 10, 11]] = 0, 0, 1, 1
known[int(np.argmax(points[truth == 2][:, 1])) + 20] = 2
tensor = torch.tensor(similarity, requires_grad=True)
loss = dc.partial_fenchel_young_loss(
    tensor, dc.Constraints.from_labels(torch.tensor(known)), 3, epsilon=epsilon, n_draws=500, seed=0
)
loss.backward()
gradient = tensor.grad.numpy()
print(f"loss {loss.item():.3f}")

figure, axis = plt.subplots(figsize=(6, 4.5), constrained_layout=True)
largest = np.abs(gradient).max()
for i, j in zip(*np.nonzero(np.triu(np.abs(gradient) > 0.05 * largest)), strict=True):
    share = abs(gradient[i, j]) / largest
    colour = "#D55E00" if gradient[i, j] > 0 else "#0072B2"
    axis.plot(*points[[i, j]].T, color=colour, linewidth=0.8 + 4 * share, alpha=0.5 + 0.5 * share, zorder=1)
axis.scatter(*points.T, c="#bbbbbb", s=40, zorder=2)
axis.scatter(*points[known >= 0].T, c=colours[known[known >= 0]], s=90, edgecolors="black", zorder=3)
axis.plot([], [], color="#0072B2", linewidth=3, label="gets more similar")
axis.plot([], [], color="#D55E00", linewidth=3, label="gets less similar")
axis.legend(loc="upper left")
axis.set_title("what a step of training does; coloured points are labelled")
axis.set_axis_off()
plt.show()
