"""Must-link and cannot-link pairs drawn from the truth: are they kept, do they help, and what if some are wrong?

    pip install --no-deps active-semi-supervised-clustering
    python benchmarks/pairs.py OUT/*/pbmc-components.npz OUT/*/bladder-components.npz --seeds 0 1 2

First 200 random cases with 10 to 2,000 pairs: how many of the partitions have k clusters and satisfy all pairs. Then
the .npz files (benchmarks/trust_sets.py), 500 pairs of each kind: `ForestEmbedding` beside PCKMeans, adjusted Rand
index over all rows.

    python benchmarks/pairs.py OUT/*/pbmc-components.npz iris wine --seeds 0 --flip 0 0.1 0.2 --out results/pairs.csv

With --flip, a share of the pairs of each kind says the opposite; --pairs is how many there are of each kind. The rows
are clustered as they are, without training, by cut "auto": under hard pairs, those left out that contradict earlier
ones (in random order), and with weights found automatically. Method "told" is a yardstick that knows the share of wrong
pairs, and of each row the class probabilities by a support vector machine that was told the true labels of nine tenths
of the rows, without this one: belief propagation finds the clusters. A set is an .npz file, or a name of
benchmarks/small_sets.py.
"""

import argparse
import csv
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.svm import SVC

import diffclust as dc
from diffclust import cuts, doubt
from diffclust.groups import consistent
from diffclust.partition import partition
from small_sets import load


def pairs_of_truth(rng: np.random.Generator, y: np.ndarray, n_pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Random pairs, by whether their rows are of one class."""
    pairs = rng.integers(0, len(y), (n_pairs, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    same = y[pairs[:, 0]] == y[pairs[:, 1]]
    return pairs[same], pairs[~same]


def load_set(name: str) -> tuple[np.ndarray, np.ndarray]:
    if not name.endswith(".npz"):
        return load(name)
    with np.load(name) as data:
        return data["X"].astype(np.float64), data["y"]


def satisfied(clusters: np.ndarray, must: np.ndarray, cannot: np.ndarray) -> bool:
    together = (clusters[must[:, 0]] == clusters[must[:, 1]]).all()
    return bool(together and (clusters[cannot[:, 0]] != clusters[cannot[:, 1]]).all())


def random_cases(n_cases: int) -> int:
    kept = 0
    for seed in range(n_cases):
        rng = np.random.default_rng([seed, 5])
        k = int(rng.integers(2, 13))
        y = rng.permutation(np.append(np.arange(k), rng.integers(0, k, int(rng.integers(40, 600)))))
        x = rng.normal(size=(len(y), 6)) + rng.normal(size=(k, 6))[y] * rng.uniform(0, 3)
        must, cannot = pairs_of_truth(rng, y, int(rng.integers(10, 2001)))
        found = partition(x, dc.Knowledge.join(np.full(len(x), -1), must, cannot), k, cut="auto")
        kept += satisfied(found.clusters, must, cannot) and found.n_clusters == k
    return kept


def pckmeans(x: np.ndarray, k: int, must: np.ndarray, cannot: np.ndarray, seed: int) -> np.ndarray:
    with np.errstate():  # the package changes NumPy's settings when it is imported
        from active_semi_clustering.semi_supervised.pairwise_constraints import PCKMeans

    np.random.seed(seed)  # noqa: NPY002 (it draws from the global generator)
    as_tuples = ([tuple(map(int, pair)) for pair in pairs] for pairs in (must, cannot))
    must_link, cannot_link = as_tuples
    model = PCKMeans(n_clusters=k)
    model.fit(x, ml=must_link, cl=cannot_link)
    return model.labels_


def told_labels(x: np.ndarray, y: np.ndarray, pairs: np.ndarray, same: np.ndarray, share: float) -> np.ndarray:
    """Clusters by a classifier that was told the labels of other rows, and by pairs of a known share of wrong ones."""
    points = cuts.leading_components(x, doubt.DIMENSIONS)
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    machine = SVC(C=10, probability=True, random_state=0)
    chances = cross_val_predict(machine, points, y, cv=folds, method="predict_proba")
    links = doubt._Links(pairs, same, np.full(len(pairs), max(share, doubt.LEAST_WRONG)))
    messages = None
    for _ in range(doubt.LAST_ROUNDS):
        belief, messages, _ = doubt.spread(np.log(np.maximum(chances, 1e-3)), links, messages)
    return belief.argmax(1)


def compare_flipped(
    title: str, x: np.ndarray, y: np.ndarray, seed: int, share: float, methods: list[str], n_each: int
) -> list[dict]:
    """Hard pairs and pairs of automatic weight, of which a share is wrong."""
    k, unknown = int(y.max()) + 1, np.full(len(x), -1)
    rng = np.random.default_rng([seed, 6])
    must, cannot = pairs_of_truth(rng, y, 200 * k + 20_000)
    pairs = np.concatenate([must[:n_each], cannot[:n_each]])
    wrong = np.zeros(len(pairs), bool)
    wrong[rng.choice(len(pairs), round(share * len(pairs)), replace=False)] = True
    same = (y[pairs[:, 0]] == y[pairs[:, 1]]) ^ wrong
    order = rng.permutation(len(pairs))
    kept = np.zeros(len(pairs), bool)
    kept[order] = consistent(pairs[order], same[order])
    known = {
        "hard": dc.Knowledge.join(unknown, pairs[same & kept], pairs[~same & kept]),
        "auto": dc.Knowledge.join(unknown, pairs[same], pairs[~same], must_weights="auto", cannot_weights="auto"),
    }
    rows = []
    for method in methods:
        start, found = time.process_time(), None
        row = {"set": title, "seed": seed, "pairs": len(pairs), "flipped": share, "method": method}
        row |= {"ari": "", "cut": "error", "wrong": ""}
        if method == "told":
            ari = adjusted_rand_score(y, told_labels(x, y, pairs, same, share))
            rows.append(row | {"ari": round(ari, 4), "cut": "", "seconds": round(time.process_time() - start, 1)})
            print(*rows[-1].values(), flush=True)
            continue
        knowledge = known[method]
        try:
            found = partition(x, knowledge, k, cut="auto", seed=seed)
        except ValueError as error:
            print(error)
        if found is not None:
            row |= {"ari": round(adjusted_rand_score(y, found.clusters), 4), "cut": found.evidence.cut}
        if found is not None and found.knowledge.given is not None:
            row["wrong"] = round(float(1 / (1 + np.exp(found.knowledge.given.must_weights[0]))), 3)
        rows.append(row | {"seconds": round(time.process_time() - start, 1)})
        print(*rows[-1].values(), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--flip", nargs="+", type=float, help="shares of wrong pairs")
    parser.add_argument("--pairs", nargs="+", type=int, default=[500], help="of each kind")
    parser.add_argument("--methods", nargs="+", choices=["hard", "auto", "told"], default=["hard", "auto"])
    parser.add_argument("--out", type=Path, help="csv file of what --flip gives")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sets = {Path(name).stem: load_set(name) for name in arguments.sets}
    if arguments.flip:
        rows = [
            row
            for title, (x, y) in sets.items()
            for seed in arguments.seeds
            for n_each in arguments.pairs
            for share in arguments.flip
            for row in compare_flipped(title, x, y, seed, share, arguments.methods, n_each)
        ]
        if arguments.out:
            with arguments.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        return
    print(f"k reached and all pairs satisfied: {random_cases(arguments.cases)} of {arguments.cases}", flush=True)
    for title, (x, y) in sets.items():
        k = int(y.max()) + 1
        for seed in arguments.seeds:
            rng = np.random.default_rng([seed, 6])
            must, cannot = pairs_of_truth(rng, y, 200 * k + 20_000)
            must, cannot = must[:500], cannot[:500]
            model = dc.cluster.ForestEmbedding(k, random_state=seed)
            model.fit(x, constraints=dc.Knowledge.join(np.full(len(x), -1), must, cannot))
            ours = f"{adjusted_rand_score(y, model.labels_):.3f}"
            kept = satisfied(model.labels_, must, cannot) and model.n_clusters_ == k
            theirs = f"{adjusted_rand_score(y, pckmeans(x, k, must, cannot, seed)):.3f}"
            print(f"{title} seed {seed}: ours {ours} (kept: {kept}), PCKMeans {theirs}", flush=True)


if __name__ == "__main__":
    main()
