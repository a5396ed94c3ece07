"""
Digits with unknown classes
===========================

Some rows have a label, and three classes have none at all. The estimator clusters all rows into ten clusters and says
which rows look like none of the labelled classes.
"""

# %%
# Fifteen labels for each of the digits 0 to 6. Nothing says what 7, 8 and 9 look like.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import diffclust as dc

images, digits = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
known = np.full(len(digits), -1)
for digit in range(7):
    known[rng.choice(np.flatnonzero(digits == digit), 15, replace=False)] = digit

# %%
# ``cut="forest"`` saves the time of choosing the cut. The default, "auto", trains two more times with hidden labels.
model = dc.cluster.ForestEmbedding(n_clusters=10, cut="forest", n_steps=200, random_state=0)
model.fit(images.reshape(-1, 8, 8), known)
hidden = known < 0
scores = dc.metrics.clustering_scores(digits[hidden], model.labels_[hidden])
print({name: round(value, 3) for name, value in scores.items()})

# %%
# Clusters that hold a labelled class have its number, new clusters have numbers above. This is what is in each cluster:
numbers = np.unique(model.labels_)
table = np.array([[np.sum((model.labels_ == c) & (digits == d)) for d in range(10)] for c in numbers])
figure, axes = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
axes[0].imshow(table, cmap="Blues")
axes[0].set(xlabel="true digit", ylabel="cluster", xticks=range(10), yticks=range(len(numbers)), yticklabels=numbers)
for (row, column), count in np.ndenumerate(table):
    if count:
        axes[0].text(column, row, count, ha="center", va="center", fontsize=8)
axes[0].set_title("clusters from 7 on are new")

# %%
# ``novelty_`` is the probability that a row is of none of the labelled classes.
new = digits >= 7
axes[1].hist([model.novelty_[hidden & ~new], model.novelty_[hidden & new]], bins=20, label=["digits 0 to 6", "7, 8, 9"])
axes[1].set(xlabel="novelty", ylabel="unlabelled rows")
axes[1].legend()
plt.show()
