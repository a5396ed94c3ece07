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
figure, axis = plt.subplots(figsize=(5.5, 4.5), constrained_layout=True)
axis.imshow(table, cmap="Blues")
axis.set(xlabel="true digit", ylabel="cluster", xticks=range(10), yticks=range(len(numbers)), yticklabels=numbers)
for (row, column), count in np.ndenumerate(table):
    if count:
        axis.text(column, row, count, ha="center", va="center", fontsize=8)
axis.set_title("clusters from 7 on are new")
plt.show()

# %%
# ``novelty_`` is the probability that a row is of none of the labelled classes.
new = digits >= 7
figure, axis = plt.subplots(figsize=(6, 3.5), constrained_layout=True)
axis.hist([model.novelty_[hidden & ~new], model.novelty_[hidden & new]], bins=20, label=["digits 0 to 6", "7, 8, 9"])
axis.set(xlabel="novelty", ylabel="unlabelled rows")
axis.legend()
plt.show()
