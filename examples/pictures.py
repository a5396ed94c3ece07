"""
Pictures
========

Images go in as arrays (n, height, width), or with channels. The network is then convolutional. Here they are drawings
of five shapes, one of which nobody named. A folder of files needs no code: ``diffclust fit photos``.
"""

# %%
# 750 drawings of 16 x 16 pixels, of random size and place, with noise.
import matplotlib.pyplot as plt
import numpy as np

import diffclust as dc

rng = np.random.default_rng(0)
SHAPES = ("disc", "square", "ring", "cross", "stripes")


def draw(shape: str) -> np.ndarray:
    size, (row, column) = rng.uniform(4, 5.5), rng.uniform(6, 9, 2)
    y, x = np.mgrid[:16, :16]
    y, x = y - row, x - column
    radius = np.hypot(x, y)
    picture = {
        "disc": radius < size,
        "square": np.maximum(abs(x), abs(y)) < 0.85 * size,
        "ring": abs(radius - size) < 1.2,
        "cross": (np.minimum(abs(x), abs(y)) < 1.3) & (np.maximum(abs(x), abs(y)) < size),
        "stripes": (np.maximum(abs(x), abs(y)) < size) & (np.floor(y) % 3 == 0),
    }[shape]
    return np.clip(255 * picture + 40 * rng.normal(size=(16, 16)), 0, 255).astype(np.uint8)


truth = np.arange(750) % 5
pictures = np.stack([draw(SHAPES[shape]) for shape in truth])

# %%
# Ten labels for each shape but the stripes.
known = np.full(750, -1)
for shape in range(4):
    known[rng.choice(np.flatnonzero(truth == shape), 10, replace=False)] = shape
model = dc.cluster.ForestEmbedding(n_clusters=5, cut="forest", n_steps=100, batch_size=128, random_state=0)
model.fit(pictures, known)
hidden = known < 0
scores = dc.metrics.clustering_scores(truth[hidden], model.labels_[hidden])
print({name: round(value, 3) for name, value in scores.items()})

# %%
# The pictures of each cluster of which the model is most sure, and the one of which it is least sure.
figure, axes = plt.subplots(5, 9, figsize=(9, 5.4), constrained_layout=True)
for row, cluster in zip(axes, np.unique(model.labels_), strict=True):
    members = np.flatnonzero(model.labels_ == cluster)
    members = members[np.argsort(-model.probabilities_[members], kind="stable")]
    for axis, member in zip(row, [*members[:8], members[-1]], strict=True):
        axis.imshow(pictures[member], cmap="gray")
        axis.set_axis_off()
    row[0].set_title(SHAPES[cluster] if cluster < 4 else "new", loc="left")
    row[8].set_title("least sure")
plt.show()
