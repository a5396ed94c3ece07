"""
Ask and refit
=============

Which rows should a person label next? ``dc.suggest`` names those whose answer would settle most. Each round asks for
ten labels and trains again.
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


def fit(known: np.ndarray) -> tuple[float, dc.cluster.ForestEmbedding]:
    """ARI on rows without a label, and the model."""
    model = dc.cluster.ForestEmbedding(n_clusters=3, cut="forest", n_steps=60, random_state=0).fit(X, known)
    hidden = known < 0
    return dc.metrics.clustering_scores(truth[hidden], model.labels_[hidden])["ari"], model


# %%
# Two ways of asking, from the same three starts: what ``dc.suggest`` says, and random rows.
curves: dict[str, np.ndarray] = {}
for name in ("suggested", "random"):
    curves[name] = np.empty((3, 5))
    for start in range(3):
        rng = np.random.default_rng(start)
        known = first_labels(rng)
        for step in range(5):
            curves[name][start, step], model = fit(known)
            if name == "suggested":
                asked = [question.row for question in dc.suggest(model, n=10)]
            else:
                asked = rng.choice(np.flatnonzero(known < 0), 10, replace=False)
            known[asked] = truth[asked]  # the person's answer
    print(f"{name}: " + ", ".join(f"{ari:.3f}" for ari in curves[name].mean(axis=0)))

# %%
# A question says why it is asked. ``diffclust ask`` writes such a table, and the report shows it with pictures.
for question in dc.suggest(model, n=3):
    print(question)

# %%
# Thick lines are means, thin ones the three starts. Three starts on one table show how to ask, and not which way of
# asking is better. A single fit on so few labels can go wrong, too, as thin lines show.
figure, axis = plt.subplots(figsize=(6, 3.5), constrained_layout=True)
for colour, (name, rows) in zip(("#0072B2", "#E69F00"), curves.items(), strict=True):
    axis.plot(6 + 10 * np.arange(5), rows.T, color=colour, linewidth=0.7, alpha=0.6)
    axis.plot(6 + 10 * np.arange(5), rows.mean(axis=0), color=colour, marker="o", linewidth=2.5, label=name)
axis.set(xlabel="labels", ylabel="ARI on rows without a label")
axis.legend()
plt.show()
