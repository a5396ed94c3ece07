"""
Inside pytorch-metric-learning
==============================

The loss takes ``(embeddings, labels)``, so that it stands where a loss of pytorch-metric-learning stood. Labels of -1
are unknown, and such rows take part.
"""

# %%
# Digits 0 to 4 for training, a fifth of them labelled; digits 5 to 9 are classes that training never sees.
import matplotlib.pyplot as plt
import numpy as np
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from sklearn.datasets import load_digits

import diffclust as dc

images, digits = load_digits(return_X_y=True)
rows, digits = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
seen = digits < 5
points, classes = rows[seen], digits[seen]
generator = torch.Generator().manual_seed(0)
known = torch.where(torch.rand(len(classes), generator=generator) < 0.2, classes, -1)


# %%
# The same loop with both losses. The triplet loss has no use for rows without a label.
def train(loss_function: torch.nn.Module, only_labelled: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 16))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    usable = torch.nonzero(known >= 0)[:, 0] if only_labelled else torch.arange(len(known))
    for _ in range(200):
        batch = usable[torch.randperm(len(usable))[:128]]
        optimiser.zero_grad()
        loss_function(network(points[batch]), known[batch]).backward()
        optimiser.step()
    return network.eval()


networks = {
    "forest": train(dc.metric_learning.PartialFenchelYoungLoss(n_clusters=5), only_labelled=False),
    "triplet": train(TripletMarginLoss(), only_labelled=True),
}

# %%
# Scores of pytorch-metric-learning on all digits, those of training and the new ones.
calculator = AccuracyCalculator(
    include=("precision_at_1", "mean_average_precision_at_r"),
    k="max_bin_count",
    knn_func=CustomKNN(LpDistance(normalize_embeddings=False)),  # the default needs faiss
)
scores: dict[str, list[float]] = {}
for name, network in networks.items():
    with torch.no_grad():
        embedded = network(rows)
    parts = {"seen": seen, "new": ~seen}
    found = {part: calculator.get_accuracy(embedded[mask], digits[mask]) for part, mask in parts.items()}
    scores[name] = [found[part][key] for part in parts for key in ("precision_at_1", "mean_average_precision_at_r")]
    print(name, np.round(scores[name], 3))

# %%
figure, axis = plt.subplots(figsize=(7, 3.2), constrained_layout=True)
for position, (name, values) in enumerate(scores.items()):
    axis.bar(np.arange(4) + 0.4 * position, values, width=0.38, label=name)
axis.set(xticks=np.arange(4) + 0.2, xticklabels=["seen, P@1", "seen, MAP@R", "new, P@1", "new, MAP@R"], ylim=(0, 1))
axis.legend(loc="lower left")
plt.show()
