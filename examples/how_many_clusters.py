"""
How many clusters?
==================

One tree has the clusterings for every k. Three rules choose among them: the largest gap, the stability under noise, and
the agreement with a few labels.
"""

# %%
# Six groups of points, two of which are close to each other.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_blobs

import diffclust as dc

centres = [[0, 0], [1.6, 0], [6, 1], [3, 5], [-3, 5], [7, 6]]
points, truth = make_blobs(300, centers=centres, cluster_std=0.35, random_state=1)
similarity = dc.negative_squared_distances(points)
tree = dc.Hierarchy.from_similarity(similarity)
rng = np.random.default_rng(0)
known = np.full(300, -1)
for group in range(6):
    known[rng.choice(np.flatnonzero(truth == group), 3, replace=False)] = group

# %%
# ``n_clusters`` of each answer is the choice, ``scores`` says how good the other candidates are.
answers = {
    "gap": dc.choose_n_clusters(tree, "gap"),
    "stability": dc.choose_n_clusters(tree, "stability", similarity=similarity),
    "labels": dc.choose_n_clusters(tree, "labels", labels=known),
}
figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), constrained_layout=True)
for axis, (name, answer) in zip(axes, answers.items(), strict=True):
    axis.bar(answer.candidates, answer.scores, color="#bbbbbb")
    axis.axvline(answer.n_clusters, color="#D55E00")
    axis.set(title=f"{name}: {answer.n_clusters}", xlabel="k", xlim=(1, 16))
    print(f"{name}: {answer.n_clusters} clusters")
plt.show()

# %%
# How sure is each point of its cluster? The soft memberships repeat the cut with noise on the similarities.
n_clusters = answers["labels"].n_clusters
clusters = tree.labels(n_clusters, min_cluster_size=10)
memberships = dc.soft_memberships(similarity, clusters, min_cluster_size=10)
figure, axis = plt.subplots(figsize=(5.5, 4), constrained_layout=True)
image = axis.scatter(*points.T, c=memberships.max(axis=1), s=10, vmin=0.5, vmax=1)
axis.set(title=f"share of its own cluster, k = {n_clusters}")
figure.colorbar(image)
plt.show()
