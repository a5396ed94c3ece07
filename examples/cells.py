"""
Cells, some types annotated
===========================

Counts of genes in single cells. An atlas names four types of cells, and the new sample has six. Which cells are of a
known type, and which form new ones? The counts are made up, so that the example needs no download.
"""

# %%
# 1,200 cells, 300 genes, six types. Each type raises 20 genes of its own. Depth differs from cell to cell.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

import diffclust as dc

rng = np.random.default_rng(0)
n_cells, n_genes, n_types = 1200, 300, 6
types = rng.choice(n_types, n_cells, p=[0.3, 0.25, 0.15, 0.12, 0.1, 0.08])
base = rng.gamma(0.6, 1.0, n_genes)
raised = np.ones((n_types, n_genes))
for cell_type in range(n_types):
    raised[cell_type, rng.choice(n_genes, 20, replace=False)] = 4
depth = rng.lognormal(0, 0.4, n_cells)
rates = depth[:, None] * base * raised[types]
counts = rng.poisson(rates * rng.gamma(2.0, 0.5, rates.shape))

# %%
# The usual preparation: counts for ten thousand, logarithm, principal components.
logarithms = np.log1p(counts / counts.sum(axis=1, keepdims=True) * 1e4)
components = PCA(30, random_state=0).fit_transform(logarithms).astype(np.float32)

# %%
# A tenth of the cells of types 0 to 3 are annotated; types 4 and 5 are new.
known = np.where((types < 4) & (rng.random(n_cells) < 0.1), types, -1)
model = dc.cluster.ForestEmbedding(n_clusters=6, cut="forest", n_steps=150, random_state=0).fit(components, known)
hidden = known < 0
clusterings = {
    "k-means, components": KMeans(6, n_init=10, random_state=0).fit_predict(components),
    "ours": model.labels_,
}
scores = {
    name: dc.metrics.clustering_scores(types[hidden], labels[hidden])["ari"] for name, labels in clusterings.items()
}
print({name: round(score, 3) for name, score in scores.items()})

# %%
# Clusters 4 and 5 are new. The right picture shows where the model sees none of the annotated types.
shown = PCA(2).fit_transform(model.embedding_)
figure, axes = plt.subplots(1, 3, figsize=(13, 4), constrained_layout=True)
for axis, (title, colour) in zip(axes, {"true types": types, "clusters": model.labels_}.items(), strict=False):
    axis.scatter(*shown.T, c=colour, cmap="tab10", vmax=9, s=6)
    axis.set_title(title)
image = axes[2].scatter(*shown.T, c=model.novelty_, s=6)
axes[2].set_title("novelty")
figure.colorbar(image, ax=axes[2])
for axis in axes:
    axis.set_axis_off()
plt.show()
