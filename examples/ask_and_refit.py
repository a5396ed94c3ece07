"""
Ask and refit
=============

Which rows should a person label next? Those of which the model is least sure. Each round asks for ten labels and trains
again.
"""

# %%
# Scikit-learn's wine: three cultivars, thirteen columns. The first six labels are random, at least one of each class.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

import diffclust as dc

X, truth = load_wine(return_X_y=True)


def first_labels(rng: np.random.Generator) -> np.ndarray:
    known = np.full(len(X), -1)
    for cultivar in range(3):
        known[rng.choice(np.flatnonzero(truth == cultivar), 2, replace=False)] = cultivar
    return known


def score(known: np.ndarray) -> tuple[float, np.ndarray]:
    """ARI on rows without a label, and how sure the model is of each row."""
    model = dc.cluster.ForestEmbedding(n_clusters=3, cut="forest", n_steps=60, random_state=0).fit(X, known)
    hidden = known < 0
    return dc.metrics.clustering_scores(truth[hidden], model.labels_[hidden])["ari"], model.probabilities_


# %%
# Two ways of asking, from the same start: the least sure rows, and random rows.
curves: dict[str, list[float]] = {"least sure": [], "random": []}
for name, curve in curves.items():
    rng = np.random.default_rng(0)
    known = first_labels(rng)
    for _ in range(5):
        ari, sure = score(known)
        curve.append(ari)
        order = np.argsort(sure) if name == "least sure" else rng.permutation(len(X))
        asked = order[known[order] < 0][:10]
        known[asked] = truth[asked]  # the person's answer
    print(f"{name}: " + ", ".join(f"{ari:.3f}" for ari in curve))

# %%
# One start and one seed, so that the curves show how to do it and not which way is better.
figure, axis = plt.subplots(figsize=(6, 3.5), constrained_layout=True)
for name, curve in curves.items():
    axis.plot(6 + 10 * np.arange(5), curve, marker="o", label=name)
axis.set(xlabel="labels", ylabel="ARI on rows without a label")
axis.legend()
plt.show()
