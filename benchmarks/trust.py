"""Defaults on tables that nobody tuned for: scaling, cut and new classes, beside simple methods.

    python benchmarks/trust.py FOLDER/*.npz --protocols 5 half --seeds 11 --out results/trust.csv

Each .npz file has X (n, d) and y (n,), classes from 0. Protocols: "1", "5" and "20" per cent of the labels of every
class, at least one; "half": a tenth of the labels of a random half of the classes. k is given. Scores are the adjusted
Rand index over all rows whose label was not given. Methods on raw data see standardised columns.
"""

import argparse
import csv
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading

import diffclust as dc
from diffclust.cuts import kmeans

SHARES = {"1": 0.01, "5": 0.05, "20": 0.2, "half": 0.1}


def choose_known(y: np.ndarray, protocol: str, seed: int) -> np.ndarray:
    """The labels that are given, -1 elsewhere."""
    rng = np.random.default_rng([seed, 77])
    classes = np.unique(y)
    if protocol == "half":
        classes = np.sort(rng.choice(classes, (len(classes) + 1) // 2, replace=False))
    known = np.full(len(y), -1)
    for label in classes:
        rows = np.flatnonzero(y == label)
        known[rng.choice(rows, max(1, round(SHARES[protocol] * len(rows))), replace=False)] = label
    return known


def ours(x: np.ndarray, known: np.ndarray, k: int, seed: int, cut: str = "auto") -> tuple[np.ndarray, str]:
    model = dc.cluster.ForestEmbedding(k, random_state=seed, cut=cut).fit(x, known)
    return model.labels_, f"{model.module_.scaling.chosen}, {model.partition_.evidence.cut}"


def compare(x: np.ndarray, known: np.ndarray, k: int, seed: int) -> dict[str, tuple[np.ndarray, str]]:
    raw = StandardScaler().fit_transform(x)
    labelled = known >= 0
    names = np.unique(known[labelled])
    codes = np.where(labelled, np.searchsorted(names, known), -1)
    mlp = MLPClassifier((256, 64), max_iter=300, random_state=seed)
    return {
        "diffclust": ours(x, known, k, seed),
        "k-means": (KMeans(k, n_init=10, random_state=seed).fit_predict(raw), ""),
        "k-means, unscaled": (KMeans(k, n_init=10, random_state=seed).fit_predict(x), ""),
        "Gaussian mixture": (GaussianMixture(k, n_init=1, reg_covar=1e-3, random_state=seed).fit_predict(raw), ""),
        "Ward": (AgglomerativeClustering(k).fit_predict(raw), ""),
        "constrained k-means": (kmeans(raw, dc.Knowledge.join(codes), k, seed), ""),
        "constrained k-means, unscaled": (kmeans(x, dc.Knowledge.join(codes), k, seed), ""),
        "label spreading": (LabelSpreading("knn").fit(raw, known).predict(raw), ""),
        "MLP": (mlp.fit(raw[labelled], known[labelled]).predict(raw), ""),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--protocols", nargs="+", choices=SHARES, default=list(SHARES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for path in arguments.sets:
        with np.load(path) as data:
            x, y = data["X"].astype(np.float64), data["y"]
        for protocol in arguments.protocols:
            for seed in arguments.seeds:
                known = choose_known(y, protocol, seed)
                start = time.perf_counter()
                hidden = known < 0
                for method, (labels, how) in compare(x, known, int(y.max()) + 1, seed).items():
                    score = adjusted_rand_score(y[hidden], labels[hidden])
                    rows.append([path.stem, protocol, seed, method, round(score, 4), how])
                print(path.stem, protocol, seed, f"{time.perf_counter() - start:.0f} s", flush=True)
                with arguments.out.open("w", newline="") as file:
                    writer = csv.writer(file, lineterminator="\n")
                    writer.writerow(["set", "protocol", "seed", "method", "ari", "scaling and cut"])
                    writer.writerows(rows)
    for protocol in arguments.protocols:
        print(f"\n{protocol}\n")
        for method in dict.fromkeys(row[3] for row in rows):
            scores = [row[4] for row in rows if row[1] == protocol and row[3] == method]
            print(f"| {method} | {np.mean(scores):.3f} |")


if __name__ == "__main__":
    main()
