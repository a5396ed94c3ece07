"""
Tickets, some topics named
==========================

Short texts to a help desk. The team has named some topics and suspects that there are others. The texts are made up
from templates, and their vectors are TF-IDF and a singular value decomposition; sentence vectors go in the same way.
"""

# %%
# Six topics, each with its own words, 100 tickets a topic.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

import diffclust as dc
from diffclust.runs.describe import telling_words

TOPICS = {
    "password": ["password", "login", "locked", "reset", "account", "expired", "username", "sign"],
    "invoice": ["invoice", "payment", "charged", "refund", "billing", "card", "amount", "twice"],
    "delivery": ["parcel", "delivery", "courier", "late", "tracking", "address", "arrived", "shipped"],
    "printer": ["printer", "paper", "jam", "toner", "print", "scanner", "tray", "ink"],
    "network": ["wifi", "network", "slow", "router", "connection", "cable", "offline", "signal"],
    "holiday": ["holiday", "leave", "vacation", "days", "approve", "calendar", "manager", "absence"],
}
FILLERS = "please help my the is not working since yesterday urgent thanks team hello again cannot today"
rng = np.random.default_rng(0)
topics = np.repeat(np.arange(6), 100)
tickets = [
    " ".join(rng.permutation([*rng.choice(words, 3, replace=False), *rng.choice(FILLERS.split(), 5)]))
    for words in TOPICS.values()
    for _ in range(100)
]
print(tickets[0])

# %%
# Vectors of 32 numbers.
vectors = TruncatedSVD(32, random_state=0).fit_transform(TfidfVectorizer().fit_transform(tickets)).astype(np.float32)

# %%
# Eight named tickets of each of the first four topics. The model may use six clusters.
known = np.full(600, -1)
for topic in range(4):
    known[rng.choice(np.flatnonzero(topics == topic), 8, replace=False)] = topic
model = dc.cluster.ForestEmbedding(n_clusters=6, cut="forest", n_steps=150, random_state=0).fit(vectors, known)
hidden = known < 0
scores = dc.metrics.clustering_scores(topics[hidden], model.labels_[hidden])
print({name: round(value, 3) for name, value in scores.items()})

# %%
# New topics are described by the words that are more frequent in their cluster than elsewhere. With sentence vectors,
# ``diffclust fit tickets.csv --text message --labels topic`` does all of this and writes a report.
names = list(TOPICS)
clusters = model.partition_.clusters
for number, words in enumerate(telling_words(tickets, clusters, 6)):
    title = names[model.cluster_numbers_[number]] if model.cluster_numbers_[number] < 4 else "new"
    print(f"{title:>10}, {np.sum(clusters == number):3d} tickets: {', '.join(word.column for word in words)}")

# %%
table = np.array([[np.sum((model.labels_ == c) & (topics == t)) for t in range(6)] for c in np.unique(model.labels_)])
figure, axis = plt.subplots(figsize=(6, 4), constrained_layout=True)
axis.imshow(table, cmap="Blues")
axis.set(xticks=range(6), xticklabels=names, ylabel="cluster")
for (row, column), count in np.ndenumerate(table):
    axis.text(column, row, count or "", ha="center", va="center")
plt.show()
