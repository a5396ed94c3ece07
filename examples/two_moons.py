"""
Two moons
=========

Single linkage fails on two noisy moons. Five labels a moon mend it.
"""

# %%
# The points, and five labels of each moon; -1 means unknown.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

import diffclust as dc

points, truth = make_moons(n_samples=300, noise=0.13, random_state=3)
known = np.full(len(points), -1)
rng = np.random.default_rng(0)
for moon in (0, 1):
    known[rng.choice(np.flatnonzero(truth == moon), 5, replace=False)] = moon

# %%
# Two forests with two trees each: without the labels, and the best one that agrees with them.
similarity = dc.negative_squared_distances(points)
forests = {
    "no labels": dc.spanning_forest(similarity, n_clusters=2),
    "5 labels a moon": dc.spanning_forest(similarity, n_clusters=2, constraints=dc.Constraints.from_labels(known)),
}

# %%
# An ARI (adjusted Rand index) of 1 is a perfect clustering, and 0 is chance. Without labels the forest cuts off a
# single point at the rim, because the moons touch.
scores = {name: dc.metrics.clustering_scores(truth, forest.labels) for name, forest in forests.items()}
for name, row in scores.items():
    print(f"{name:>16}: " + ", ".join(f"{key} {value:.3f}" for key, value in row.items()))

# %%
# Circles mark the labelled points.
colours = np.array(["#0072B2", "#E69F00"])  # told apart by the colour-blind, too
figure, axes = plt.subplots(1, 2, figsize=(10, 3.9), constrained_layout=True)
for axis, (name, forest) in zip(axes, forests.items(), strict=True):
    for i, j in forest.edges[forest.edges[:, 0] >= 0]:
        axis.plot(*points[[i, j]].T, color="#999999", linewidth=0.8, zorder=1)
    axis.scatter(*points.T, c=colours[forest.labels], s=16, zorder=2)
    axis.set_title(f"{name}: ARI {scores[name]['ari']:.2f}, accuracy {scores[name]['accuracy']:.2f}")
    axis.set_aspect("equal")
    axis.set_axis_off()
axes[1].scatter(*points[known >= 0].T, s=110, facecolors="none", edgecolors="black", linewidths=1.6, zorder=3)
plt.show()
