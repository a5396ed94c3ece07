"""
Record linkage
==============

Which rows of a list of customers are the same person? There are hundreds of small clusters, and what is known are
pairs. The tree of all rows is cut where it best agrees with these pairs.
"""

# %%
# 150 people, one to four records each, with typing errors.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

import diffclust as dc

rng = np.random.default_rng(0)
FIRST = "anna ben carla david elena felix greta hugo irene jonas klara leo maria noah olga paul rosa simon"
LAST = "abel brandt costa dupont eriksen fischer garcia hansen ivanov jansen keller lopez moreau novak"
TOWNS = "aachen bergen cadiz dresden essen florence geneva hamburg innsbruck"


def mistype(text: str) -> str:
    """One letter less, more, or exchanged with the next."""
    place = int(rng.integers(len(text) - 1))
    letter = "abcdefghijklmnopqrstuvwxyz"[int(rng.integers(26))]
    swapped = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    return [text[:place] + text[place + 1 :], text[:place] + letter + text[place:], swapped][int(rng.integers(3))]


people, records = [], []
for person in range(150):
    words = [rng.choice(names.split()) for names in (FIRST, LAST, TOWNS)]
    name = f"{' '.join(words)} {rng.integers(1940, 2005)}"
    for copy in range(int(rng.integers(1, 5))):
        people.append(person)
        records.append(mistype(mistype(name)) if copy else name)
people = np.array(people)
print(f"{len(records)} records of {len(np.unique(people))} people, e.g. {records[:3]}")

# %%
# Records as vectors: pieces of two and three letters. The tree of all records, by cosine.
vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 3)).fit_transform(records).toarray()
tree = dc.Hierarchy.from_points(vectors, metric="cosine")

# %%
# Pairs that a clerk has looked at: 150 neighbours in the tree, and 50 at random.
neighbours = tree.edges[rng.choice(len(tree.edges), 150, replace=False)]
at_random = rng.choice(len(records), (50, 2), replace=False)
asked = np.concatenate([neighbours, at_random])
same = people[asked[:, 0]] == people[asked[:, 1]]


# %%
# Every number of clusters is in the tree. Which agrees best with the pairs?
def f1(labels: np.ndarray) -> float:
    together = labels[asked[:, 0]] == labels[asked[:, 1]]
    return 2 * np.sum(together & same) / (np.sum(together) + np.sum(same))


candidates = np.arange(20, len(records), 2)
agreement = [f1(tree.labels(k)) for k in candidates]
n_clusters = int(candidates[np.argmax(agreement)])

# %%
# The pairs also constrain the clusters themselves.
constraints = dc.Constraints.from_pairs(len(records), must_link=asked[same], cannot_link=asked[~same])
constrained = tree.constrained(constraints)
lowest, highest = constrained.feasible_clusters()
clusterings = {
    "tree": tree.labels(n_clusters),
    "tree and pairs": constrained.labels(int(np.clip(n_clusters, lowest, highest))),
}
pairs_true = people[:, None] == people[None]
scores = {}
for name, labels in clusterings.items():
    pairs_found = labels[:, None] == labels[None]
    both = np.triu(pairs_true & pairs_found, 1).sum()
    precision, recall = both / np.triu(pairs_found, 1).sum(), both / np.triu(pairs_true, 1).sum()
    scores[name] = 2 * precision * recall / (precision + recall)
    print(f"{name}: {len(np.unique(labels))} people, precision {precision:.3f}, recall {recall:.3f}")

# %%
figure, axis = plt.subplots(figsize=(6, 3.2), constrained_layout=True)
axis.plot(candidates, agreement)
axis.axvline(n_clusters, color="#D55E00", label=f"chosen: {n_clusters}")
axis.axvline(150, color="#999999", linestyle=":", label="true: 150")
axis.set(xlabel="number of clusters", ylabel="F1 on the pairs that were asked")
axis.legend()
plt.show()
