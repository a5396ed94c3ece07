"""
Pairs that belong together, and pairs that do not
=================================================

Where nobody can name classes, people can often say of two rows whether they belong together. Such pairs constrain the
clusters, and a network can be trained on them.
"""

# %%
# Three rings, one inside the other, and noise between them: distances alone do not show the rings.
import matplotlib.pyplot as plt
import numpy as np

import diffclust as dc

rng = np.random.default_rng(0)
truth = np.repeat(np.arange(3), 100)
angle = rng.uniform(0, 2 * np.pi, 300)
radius = 1.0 + truth + 0.17 * rng.normal(size=300)
points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)

# %%
# Sixty pairs, each of two random rows. A real application would ask a person.
asked = rng.choice(300, size=(60, 2), replace=False)
same = truth[asked[:, 0]] == truth[asked[:, 1]]
constraints = dc.Constraints.from_pairs(300, must_link=asked[same], cannot_link=asked[~same])
print(f"{same.sum()} pairs belong together, {(~same).sum()} do not")

# %%
# The same estimator without the pairs and with them.
estimator = dc.cluster.SpanningForestClustering(n_clusters=3)
clusterings = {"no pairs": estimator.fit(points).labels_}
clusterings["sixty pairs"] = estimator.fit(points, constraints=constraints).labels_
scores = {name: dc.metrics.clustering_scores(truth, labels)["ari"] for name, labels in clusterings.items()}
print({name: round(score, 3) for name, score in scores.items()})

# %%
# Solid lines are pairs that belong together, dotted ones pairs that do not.
figure, axes = plt.subplots(1, 2, figsize=(9, 4.5), constrained_layout=True)
for axis, (name, labels) in zip(axes, clusterings.items(), strict=True):
    axis.scatter(*points.T, c=labels, cmap="tab10", vmax=9, s=12)
    axis.set_title(f"{name}: ARI {scores[name]:.2f}")
    axis.set_aspect("equal")
    axis.set_axis_off()
for pair, is_same in zip(asked, same, strict=True):
    axes[1].plot(*points[pair].T, "k-" if is_same else "k:", linewidth=0.6, alpha=0.6)
plt.show()

# %%
# Pairs that contradict each other are refused, with the chain of pairs that does:
try:
    dc.Constraints.from_pairs(4, must_link=[(0, 1), (1, 2)], cannot_link=[(0, 2)])
except ValueError as error:
    print(error)
