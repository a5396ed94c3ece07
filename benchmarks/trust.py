"""Defaults on tables that nobody tuned for: which labels are found, how many clusters, how sure.

    python benchmarks/trust.py OUT/report/*.npz --seeds 24 25 --out results/trust.csv      # k given
    python benchmarks/trust.py OUT/report/*.npz --seeds 32 33 --protocols half 5 20 --choose-k --out results/trust_k.csv

The .npz files are those of benchmarks/trust_sets.py. Protocols: "1", "5" and "20" per cent of the labels of every
class, at least one; "half": a tenth of the labels of a random half of the classes. Scores are the adjusted Rand index
over all rows whose label was not given. Of the other methods, those named "plain" see the columns as they are, and all
others standardised ones. Leiden's resolution is the best one by the truth, so it is no fair peer. Needs igraph beside
the extra `fit`. A csv file that is there already is continued. (The semi-supervised mode of fast_hdbscan 0.3.2 and
0.3.4 does not compile with Numba 0.68, so it is missing.)
"""

import argparse
import csv
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import rankdata
from sklearn.cluster import HDBSCAN, AgglomerativeClustering, KMeans
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import adjusted_rand_score, roc_auc_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import kneighbors_graph
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading

import diffclust as dc
from diffclust.confidence import mean_vote
from diffclust.cuts import kmeans

SHARES = {"1": 0.01, "5": 0.05, "20": 0.2, "half": 0.1}
OURS = "diffclust"
SEES_TRUTH = "Leiden, best resolution"


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


# ------------------------------------------------------------------------------------------------------------- peers


def hidden_layer(model: MLPClassifier, x: np.ndarray) -> np.ndarray:
    for weight, bias in zip(model.coefs_[:-1], model.intercepts_[:-1], strict=True):
        x = np.maximum(x @ weight + bias, 0)
    return x


def leiden(x: np.ndarray, y: np.ndarray, hidden: np.ndarray, seed: int) -> np.ndarray:
    import random

    import igraph

    random.seed(seed)
    graph = kneighbors_graph(x, 15)
    rows, columns = graph.nonzero()
    graph = igraph.Graph(len(x), np.stack([rows, columns], 1)).simplify()
    found = [
        np.array(graph.community_leiden("modularity", resolution=each, n_iterations=5).membership)
        for each in (0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0)
    ]
    return max(found, key=lambda labels: adjusted_rand_score(y[hidden], labels[hidden]))


def peers(x: np.ndarray, y: np.ndarray, known: np.ndarray, k: int, seed: int) -> dict[str, Callable[[], np.ndarray]]:
    raw = StandardScaler().fit_transform(x)
    labelled = known >= 0
    codes = np.where(labelled, np.searchsorted(np.unique(known[labelled]), known), -1)
    smallest = max(5, len(x) // (5 * k))
    mlp = MLPClassifier((256, 64), max_iter=300, random_state=seed).fit(raw[labelled], known[labelled])
    spread = LabelSpreading("knn").fit(raw, known)
    mixture = GaussianMixture(
        k, reg_covar=1e-3, random_state=seed, covariance_type="full" if x.shape[1] < 200 else "diag"
    )
    return {
        "k-means": lambda: KMeans(k, n_init=10, random_state=seed).fit_predict(raw),
        "k-means, plain": lambda: KMeans(k, n_init=10, random_state=seed).fit_predict(x),
        "Gaussian mixture": lambda: mixture.fit_predict(raw),
        "Ward": lambda: AgglomerativeClustering(k).fit_predict(raw),
        "Ward, plain": lambda: AgglomerativeClustering(k).fit_predict(x),
        "constrained k-means": lambda: kmeans(raw, dc.Knowledge.join(codes), k, seed),
        "constrained k-means, plain": lambda: kmeans(x, dc.Knowledge.join(codes), k, seed),
        "label spreading": lambda: spread.predict(raw),
        "label spreading and k-means": lambda: KMeans(k, n_init=10, random_state=seed).fit_predict(
            np.hstack([raw / np.sqrt(x.shape[1]), spread.label_distributions_])
        ),
        "MLP": lambda: mlp.predict(raw),
        "random forest": lambda: (
            RandomForestClassifier(random_state=seed).fit(raw[labelled], known[labelled]).predict(raw)
        ),
        "MLP, k-means of its layer": lambda: KMeans(k, n_init=10, random_state=seed).fit_predict(
            hidden_layer(mlp, raw)
        ),
        "HDBSCAN": lambda: HDBSCAN(min_cluster_size=smallest).fit_predict(raw),
        SEES_TRUTH: lambda: leiden(raw, y, ~labelled, seed),
    }


# -------------------------------------------------------------------------------------------------------------- ours


def expected_calibration_error(confidence: np.ndarray, right: np.ndarray, n_bins: int = 10) -> float:
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    return float(sum((bins == b).mean() * abs((confidence - right)[bins == b].mean()) for b in np.unique(bins)))


def ours(x: np.ndarray, y: np.ndarray, known: np.ndarray, k: int | str, seed: int) -> dict[str, object]:
    """Scores of our defaults, over the rows without a label.

    A row is right if its cluster is the one matched with its class, so that as many rows as possible are right.
    """
    model = dc.cluster.ForestEmbedding(k, random_state=seed).fit(x, known)
    hidden, clusters = known < 0, model.partition_.clusters
    table = contingency_matrix(y, clusters)
    classes, matched = linear_sum_assignment(table, maximize=True)
    right = np.isin(clusters * len(table) + y, matched * len(table) + classes)
    new = ~np.isin(y, known[known >= 0])
    evidence = model.partition_.evidence
    told = known[~hidden]
    return {
        "ari": adjusted_rand_score(y[hidden], clusters[hidden]),
        "how": f"{model.module_.scaling.chosen}, {evidence.cut}",
        "n_clusters": model.n_clusters_,
        "interval": "" if evidence.interval is None else "{} to {}".format(*evidence.interval),
        "calibration_error": expected_calibration_error(model.probabilities_[hidden], right[hidden]),
        "auroc_new": roc_auc_score(new[hidden], model.novelty_[hidden]) if new.any() else "",
        "right": right[hidden].mean(),
        "mean_probability": model.probabilities_[hidden].mean(),
        "vote": mean_vote(clusters, model.partition_.others),
        "agreement": evidence.agreement[evidence.cut],
        "score": evidence.scores.get(evidence.cut, ""),
        "labelled_classes": len(np.unique(told)),
    }


# -------------------------------------------------------------------------------------------------------------- main

COLUMNS = ("set", "protocol", "seed", "method", "ari", "how", "n_clusters", "true_n_clusters", "interval")
COLUMNS += ("calibration_error", "auroc_new", "right", "mean_probability", "vote", "agreement", "score")
COLUMNS += ("labelled_classes", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--protocols", nargs="+", choices=SHARES, default=list(SHARES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--ours", action="store_true", help="ours only")
    parser.add_argument("--choose-k", action="store_true", help="ours only, the number of clusters not given")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[dict[str, object]] = []
    if arguments.out.exists():
        with arguments.out.open(newline="") as file:
            rows = list(csv.DictReader(file))
    done = {(row["set"], row["protocol"], str(row["seed"]), row["method"]) for row in rows}
    for path in arguments.sets:
        with np.load(path) as data:
            x, y = data["X"].astype(np.float64), data["y"]
        k = int(y.max()) + 1
        for protocol in arguments.protocols:
            for seed in arguments.seeds:
                known = choose_known(y, protocol, seed)
                hidden = known < 0
                case = {"set": path.stem, "protocol": protocol, "seed": seed, "true_n_clusters": k}
                todo: dict[str, Callable[[], object]] = {
                    OURS: lambda: ours(x, y, known, "auto" if arguments.choose_k else k, seed)  # noqa: B023
                }
                if not (arguments.choose_k or arguments.ours):
                    todo |= peers(x, y, known, k, seed)
                for method, run in todo.items():
                    if (path.stem, protocol, str(seed), method) in done:
                        continue
                    start = time.perf_counter()
                    found = run()
                    seconds = round(time.perf_counter() - start, 1)
                    if isinstance(found, np.ndarray):
                        found = {"ari": adjusted_rand_score(y[hidden], found[hidden])}
                    found = {name: round(v, 4) if isinstance(v, float) else v for name, v in found.items()}
                    rows.append(case | {"method": method, "seconds": seconds} | found)
                print(path.stem, protocol, seed, flush=True)
                with arguments.out.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
                    writer.writeheader()
                    writer.writerows(rows)
    summarise(rows)


def summarise(rows: list[dict[str, object]]) -> None:
    """Means over sets of the mean over seeds; ranks; how far ours is below the best peer that sees no truth."""
    table: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        table.setdefault((row["protocol"], row["set"]), {}).setdefault(row["method"], []).append(float(row["ari"]))
    for protocol in dict.fromkeys(key[0] for key in table):
        scores = {s: {m: np.mean(v) for m, v in each.items()} for (p, s), each in table.items() if p == protocol}
        methods = [m for m in next(iter(scores.values())) if all(m in each for each in scores.values())]
        ranks = np.mean([rankdata([-each[m] for m in methods]) for each in scores.values()], axis=0)
        print(f"\n{protocol}: {len(scores)} sets\n\n| method | mean ARI | mean rank |\n|---|---:|---:|")
        for method, rank in zip(methods, ranks, strict=True):
            print(f"| {method} | {np.mean([each[method] for each in scores.values()]):.3f} | {rank:.1f} |")
        if len(methods) > 1:
            fair = [m for m in methods if m not in (OURS, SEES_TRUTH)]
            below = {s: max(each[m] for m in fair) - each[OURS] for s, each in scores.items()}
            print("\nBelow the best peer by more than 0.05:", {s: round(v, 3) for s, v in below.items() if v > 0.05})
    own = [row for row in rows if row["method"] == OURS]
    error = [abs(int(row["n_clusters"]) - int(row["true_n_clusters"])) / int(row["true_n_clusters"]) for row in own]
    news = [float(row["auroc_new"]) for row in own if row["auroc_new"] != ""]
    print(f"\n|k' - k| / k: median {np.median(error):.3f}, largest {np.max(error):.3f}")
    for protocol in dict.fromkeys(row["protocol"] for row in own):
        errors = [float(row["calibration_error"]) for row in own if row["protocol"] == protocol]
        print(f"{protocol}: calibration error, mean {np.mean(errors):.3f}")
    print(f"AUROC new against known: mean {np.mean(news):.3f}" if news else "")


if __name__ == "__main__":
    main()
