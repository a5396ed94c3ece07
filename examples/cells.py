"""
Cells, some types annotated
===========================

Counts of genes in single cells. An atlas names four types of cells, and the new sample has six. Which cells are of a
known type, and which form new ones? The counts are made up, so that the example needs no download.

For an AnnData object, ``dc.cells.fit(adata, "cell_type")`` does this in one line; for a file,
``diffclust fit cells.h5ad --labels cell_type``.

How counts are made up decides which method looks good on them. So there are three kinds, three seeds of each, and
all scores are shown.
"""

# %%
# 1,200 cells, 300 genes, six types. Each type raises 20 genes of its own, and depth differs from cell to cell. In the
# first kind of sample types are round clouds. In the second the largest type develops: 40 genes grow with its age. In
# the third types differ less, and counts vary more than Poisson's.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

import diffclust as dc

N_CELLS, N_GENES, N_TYPES = 1200, 300, 6
KINDS = ("round types", "one type develops", "weak and noisy")


def make_cells(seed: int, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thirty principal components of the cells, their types, and what is annotated (-1: nothing)."""
    rng = np.random.default_rng(seed)
    types = rng.choice(N_TYPES, N_CELLS, p=[0.4, 0.2, 0.12, 0.1, 0.1, 0.08])
    base = rng.gamma(0.6, 1.0, N_GENES)
    raised = np.ones((N_TYPES, N_GENES))
    for genes in raised:
        genes[rng.choice(N_GENES, 20, replace=False)] = 4 if kind == "weak and noisy" else 6
    factor = raised[types]
    age = rng.uniform(0, 1, N_CELLS) * (types == 0)
    if kind == "one type develops":
        factor[:, rng.choice(N_GENES, 40, replace=False)] *= (1 + 8 * age)[:, None]
    if kind == "weak and noisy":
        factor *= rng.gamma(2.0, 0.5, factor.shape)
    counts = rng.poisson(rng.lognormal(0, 0.3, N_CELLS)[:, None] * base * factor)
    logarithms = np.log1p(counts / counts.sum(axis=1, keepdims=True) * 1e4)
    # A tenth of the cells of types 0 to 3 are annotated; types 4 and 5 are new.
    known = np.where((types < 4) & (rng.random(N_CELLS) < 0.1), types, -1)
    return PCA(30, random_state=0).fit_transform(logarithms).astype(np.float32), types, known


# %%
# The adjusted Rand index on cells without an annotation, beside k-means on the components. k-means uses no annotation,
# and it cannot say which of its clusters are new.
scores: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
for kind, rows in scores.items():
    for seed in (10, 11, 12):
        components, types, known = make_cells(seed, kind)
        model = dc.cluster.ForestEmbedding(n_clusters=6, cut="forest", n_steps=150, random_state=0)
        model.fit(components, known)
        plain = KMeans(6, n_init=10, random_state=0).fit_predict(components)
        hidden = known < 0
        ours, theirs = (
            dc.metrics.clustering_scores(types[hidden], labels[hidden])["ari"] for labels in (model.labels_, plain)
        )
        rows.append((ours, theirs))
        print(f"{kind}, seed {seed}: ours {ours:.3f}, k-means {theirs:.3f}")

# %%
# The last sample, of the hardest kind. Clusters 4 and 5 are new. The right picture shows where the model sees none of
# the annotated types.
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
