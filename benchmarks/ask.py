"""What to label next, labels that look wrong, names that stay: how well each works, beside other methods.

    python benchmarks/ask.py queries --out results      # ask.csv and ask.png: ARI after so many answers
    python benchmarks/ask.py pairs --out results        # ask_pairs.csv: ARI after so many answers about pairs
    python benchmarks/ask.py mistakes --out results     # ask_mistakes.csv: wrong labels found
    python benchmarks/ask.py names --out results        # ask_names.csv: names kept in a second fit
    python benchmarks/ask.py warm --out results         # ask_warm.csv: training from the weights of an earlier fit

Sets are those of small_sets.py, and with --mnist and --pbmc 50 principal components of MNIST images and of blood cells.
A seed takes 600 rows of a set at most. COBRAS (pip install cobras-ts) and NPU (pip install
active-semi-supervised-clustering) are written for old versions of NumPy; `old_names` gives them what they look for.

Queries: the model in the loop is cheap, because a network would have to be trained after every few answers. It is
`partition(cut="auto")` of the input with three of its seven cuts (forest, k-means, classifier), which hides labels to
choose one. Ours, random rows and uncertainty sampling (the smallest margin of a logistic regression) all use it. COBRAS
and NPU ask about pairs and bring their own clusters; each pair counts as one query.
"""

import argparse
import csv
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score, roc_auc_score

import diffclust as dc
from diffclust import mistakes, partition
from small_sets import SETS, load

MOST_ROWS, MOST_QUERIES, MOST_PAIRS = 600, 300, 200
NPU_ROWS, NPU_QUERIES = 200, 60  # its similarity matrix is a loop in Python: 0.2 s a question for 150 rows
DEVELOPMENT = ("digits", "vehicle", "penguins", "vowel")  # on which the recipe of dc.suggest was chosen, with seed 10
Curve = list[tuple[int, float]]


def load_any(name: str, files: dict[str, Path]) -> tuple[np.ndarray, np.ndarray]:
    if name == "mnist":
        with np.load(files[name]) as arrays:
            images = next(arrays[key] for key in ("x_train", "x", "images", "train_images") if key in arrays)
            labels = next(arrays[key] for key in ("y_train", "y", "labels", "train_labels") if key in arrays)
        some = np.random.default_rng(0).choice(len(images), 2000, replace=False)
        return PCA(50, random_state=0).fit_transform(images[some].reshape(2000, -1) / 255.0), labels[some].astype(int)
    if name == "pbmc":
        import h5py

        with h5py.File(files[name]) as file:
            counts, labels = np.asarray(file["X"], np.float64), np.asarray(file["Y"])
        scaled = np.log1p(1e4 * counts / np.maximum(counts.sum(1, keepdims=True), 1))
        return PCA(50, random_state=0).fit_transform(scaled), np.unique(labels, return_inverse=True)[1]
    return load(name)


def some_rows(X: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """90 % of the rows, 600 at most: so that seeds differ for methods that are not random."""
    rows = np.random.default_rng(seed).permutation(len(y))[: min(MOST_ROWS, int(0.9 * len(y)))]
    return X[rows], np.unique(y[rows], return_inverse=True)[1]


# ------------------------------------------------------------------------------------------------------------- queries


def model(X: np.ndarray, known: np.ndarray, k: int) -> partition.Partition:
    knowledge = dc.Knowledge.join(known)
    return partition.partition(X, knowledge, max(k, knowledge.min_clusters), cut="auto", retrain=lambda rest: X)


def ask_ours(found: partition.Partition, n: int, rng: np.random.Generator) -> list[int]:
    return [question.row for question in dc.suggest(found, n)]


def ask_random(found: partition.Partition, n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(np.flatnonzero(found.knowledge.labels < 0), n, replace=False)


def ask_uncertain(found: partition.Partition, n: int, rng: np.random.Generator) -> np.ndarray:
    known = found.knowledge.labels
    free = np.flatnonzero(known < 0)
    if len(np.unique(known[known >= 0])) < 2:
        return ask_random(found, n, rng)
    classifier = LogisticRegression(max_iter=300).fit(found.points[known >= 0], known[known >= 0])
    chances = np.sort(classifier.predict_proba(found.points[free]), axis=1)
    return free[np.argsort(chances[:, -1] - chances[:, -2], kind="stable")[:n]]


def batches(n_rows: int) -> Iterator[int]:
    """Five questions at a time, then ten from 40 on, then 25 from 100 on."""
    n_asked = 0
    while n_asked < min(MOST_QUERIES, n_rows):
        n = min(5 if n_asked < 40 else 10 if n_asked < 100 else 25, n_rows - n_asked)
        n_asked += n
        yield n


def at_batches(curve: Curve, n_rows: int) -> Curve:
    """A curve after each query, at the numbers of queries at which the others are scored."""
    wanted = {0, *np.cumsum(list(batches(n_rows))).tolist()}
    return [(n, ari) for n, ari in curve if n in wanted]


def row_curve(ask: Callable, X: np.ndarray, y: np.ndarray, seed: int, target: float) -> Curve:
    """ARI of all rows after so many answers; it ends where two in a row are above the target."""
    rng, known, k = np.random.default_rng(seed), np.full(len(y), -1), int(y.max()) + 1
    found = model(X, known, k)
    curve = [(0, adjusted_rand_score(y, found.clusters))]
    for n in batches(len(y)):
        rows = ask(found, n, rng)
        known[rows] = y[rows]
        found = model(X, known, k)
        curve.append((int((known >= 0).sum()), adjusted_rand_score(y, found.clusters)))
        if min(curve[-1][1], curve[-2][1]) >= target:
            break
    return curve


def old_names() -> None:
    """Names that cobras-ts and active-semi-supervised-clustering look for, and that are gone or not needed."""
    for name, kind in (("int", int), ("float", float), ("bool", bool)):
        if name not in vars(np):
            setattr(np, name, kind)
    stub = types.ModuleType("metric_learn")
    stub.__getattr__ = lambda name: object
    sys.modules.setdefault("metric_learn", stub)


def cobras_curve(X: np.ndarray, y: np.ndarray, seed: int, target: float) -> Curve:
    old_names()
    from cobras_ts.cobras_kmeans import COBRAS_kmeans

    np.random.seed(seed)  # noqa: NPY002 (its k-means takes NumPy's global generator)
    querier = types.SimpleNamespace(
        query_points=lambda i, j: y[i] == y[j],
        continue_cluster_process=lambda: True,
        update_clustering=lambda found: None,
        update_clustering_detailed=lambda found: None,
    )
    found = COBRAS_kmeans(X, querier, MOST_QUERIES).cluster()[1]
    return at_batches([(n, adjusted_rand_score(y, labels)) for n, labels in enumerate(found, 1)], len(y))


def npu_curve(X: np.ndarray, y: np.ndarray, seed: int, target: float) -> Curve:
    """Its own pairwise constrained k-means, after each of its queries."""
    if len(y) > NPU_ROWS:
        return []
    old_names()
    with np.errstate():  # importing it makes every underflow an error
        from active_semi_clustering.active.pairwise_constraints import NPU, ExampleOracle
        from active_semi_clustering.semi_supervised.pairwise_constraints import PCKMeans

    np.random.seed(seed)  # noqa: NPY002
    curve: Curve = []
    npu = NPU(PCKMeans(n_clusters=int(y.max()) + 1))

    class Oracle(ExampleOracle):
        def query(self, i: int, j: int) -> bool:
            curve.append((self.queries_cnt, adjusted_rand_score(y, npu.clusterer.labels_)))
            return super().query(i, j)

    npu.fit(X, oracle=Oracle(y, max_queries_cnt=NPU_QUERIES))
    return at_batches(curve, len(y))


METHODS: dict[str, Callable[[np.ndarray, np.ndarray, int, float], Curve]] = {
    "random rows": lambda *given: row_curve(ask_random, *given),
    "dc.suggest": lambda *given: row_curve(ask_ours, *given),
    "uncertainty": lambda *given: row_curve(ask_uncertain, *given),
    "COBRAS": cobras_curve,
    "NPU": npu_curve,
}


def queries(arguments: argparse.Namespace) -> None:
    # Three cuts are enough, and cheaper.
    for name in ("gaussian", "gaussian of k-means", "spectral", "robust forest"):
        partition.CUTS.pop(name, None)
    path = arguments.out / "ask.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["set", "seed", "method", "target", "queries", "ari"])
        for name in arguments.sets:
            X, y = load_any(name, arguments.files)
            data = {seed: some_rows(X, y, seed) for seed in arguments.seeds}
            reached = {seed: METHODS["random rows"](*data[seed], seed, 2.0) for seed in arguments.seeds}
            target = min(0.9, 0.95 * float(np.mean([curve[-1][1] for curve in reached.values()])))
            for seed in arguments.seeds:
                for method in arguments.methods:
                    run = METHODS[method]
                    curve = reached[seed] if method == "random rows" else run(*data[seed], seed, target)
                    for n, ari in curve:
                        writer.writerow([name, seed, method, round(target, 4), n, round(ari, 4)])
                    print(f"{name}, seed {seed}, {method}: {needed(curve, target)} for ARI {target:.2f}", flush=True)
                file.flush()
    report_queries(path)


def needed(curve: Curve, target: float) -> float:
    """Queries after which the target is reached and held once more; infinite where it never is."""
    scores = np.array([ari for _, ari in curve])
    held = (scores >= target) & (np.append(scores[1:], scores[-1:]) >= target)
    return curve[int(held.argmax())][0] if held.any() else float("inf")


def read_curves(path: Path) -> dict[str, dict[str, dict[str, Curve]]]:
    """Set -> method -> seed -> curve, and the targets under the method "target"."""
    found: dict = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            methods = found.setdefault(row["set"], {"target": float(row["target"])})
            seeds = methods.setdefault(row["method"], {})
            seeds.setdefault(row["seed"], []).append((int(row["queries"]), float(row["ari"])))
    return found


def report_queries(path: Path) -> None:
    """A table of medians over seeds, and a picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = read_curves(path)
    print(f"\n| set | target | {' | '.join(METHODS)} | ours / random |\n|---|{'---:|' * (len(METHODS) + 2)}")
    for name, methods in found.items():
        medians = {
            method: np.median([needed(curve, methods["target"]) for curve in methods[method].values()])
            for method in METHODS
            if method in methods
        }
        cells = [
            "–" if m not in medians else f"{medians[m]:.0f}" if np.isfinite(medians[m]) else "more" for m in METHODS
        ]
        ratio = f"{medians['dc.suggest'] / medians['random rows']:.2f}" if medians["random rows"] else "–"
        star = "*" if name in DEVELOPMENT else ""
        print(f"| {name}{star} | {methods['target']:.2f} | {' | '.join(cells)} | {ratio} |")
    figure, axes = plt.subplots(2, 5, figsize=(13, 5), constrained_layout=True)
    colours = dict(zip(METHODS, ("#999999", "#0072B2", "#E69F00", "#009E73", "#CC79A7"), strict=True))
    for axis, (name, methods) in zip(axes.flat, found.items(), strict=False):
        for method in (m for m in METHODS if m in methods):
            curves = list(methods[method].values())
            ends = min(curve[-1][0] for curve in curves)
            at = np.unique([n for curve in curves for n, _ in curve if n <= ends])
            mean = np.mean([np.interp(at, *zip(*curve, strict=True)) for curve in curves], axis=0)
            axis.plot(at, mean, color=colours[method], label=method, linewidth=2 if method == "dc.suggest" else 1.2)
        axis.axhline(methods["target"], color="black", linewidth=0.6, linestyle=":")
        axis.set(title=name, xlim=(0, 200), ylim=(0, 1.02))
    axes.flat[0].legend(fontsize=7)
    figure.supxlabel("queries")
    figure.supylabel("ARI, mean over seeds")
    figure.savefig(path.with_suffix(".png"), dpi=80)


# --------------------------------------------------------------------------------------------------------------- pairs


def pair_answers(name: str, seed: int) -> dict:
    """ARI of all rows after answers about pairs, 25 at a time: those of dc.suggest, or random ones."""
    X, y = some_rows(*load(name), seed)
    k, rng, record = int(y.max()) + 1, np.random.default_rng(seed), {"set": name, "seed": seed}
    asks = {
        "dc.suggest": lambda found: [question[:2] for question in dc.suggest(found, 25, kind="pairs")],
        "random pairs": lambda found: [rng.choice(len(y), 2, replace=False) for _ in range(25)],
    }
    for method, ask in asks.items():
        pairs = np.empty((0, 2), np.int64)
        for n_asked in range(0, MOST_PAIRS + 1, 25):
            same = y[pairs[:, 0]] == y[pairs[:, 1]]
            knowledge = dc.Knowledge.join(np.full(len(y), -1), pairs[same], pairs[~same])
            found = partition.partition(X, knowledge, k, cut="auto")
            record[f"{method}, {n_asked}"] = round(adjusted_rand_score(y, found.clusters), 4)
            pairs = np.concatenate([pairs, np.reshape(ask(found), (-1, 2)).astype(np.int64)])
    return record


# ------------------------------------------------------------------------------------------------------------ mistakes


def wrong_labels(name: str, seed: int) -> dict:
    """Half of the rows are labelled, 5 % of the labels are another class; how well these are found."""
    from cleanlab.rank import get_label_quality_scores

    X, y = load(name)
    k, rng, labels = int(y.max()) + 1, np.random.default_rng(seed), np.full(len(y), -1)
    for code in range(k):
        rows = np.flatnonzero(y == code)
        labels[rng.choice(rows, len(rows) // 2, replace=False)] = code
    told = np.flatnonzero(labels >= 0)
    flipped = rng.choice(told, max(2, round(0.05 * len(told))), replace=False)
    labels[flipped] = (labels[flipped] + rng.integers(1, k, len(flipped))) % k
    fitted = dc.cluster.ForestEmbedding(k, random_state=seed).fit(X, labels)
    found = fitted.partition_
    chances = mistakes.label_chances(found, X)[told]
    hidden = found.evidence.hidden_chances[told]  # of the network alone, for rows whose label was hidden from it
    judged = ~np.isnan(hidden).any(1)
    is_wrong = np.isin(told, flipped)
    quality = get_label_quality_scores(labels[told][judged], hidden[judged] / hidden[judged].sum(1, keepdims=True))
    suspects = {suspect.row for suspect in mistakes.suspect_labels(found, [str(code) for code in range(k)], X)}
    own, right = chances[np.arange(len(told)), labels[told]], len(suspects & set(flipped.tolist()))
    return {
        "set": name,
        "seed": seed,
        "labels": len(told),
        "wrong": len(flipped),
        "ours": round(roc_auc_score(is_wrong, -own), 4),
        "ours, same rows": round(roc_auc_score(is_wrong[judged], -own[judged]), 4),
        "cleanlab, same rows": round(roc_auc_score(is_wrong[judged], -quality), 4),
        "listed": len(suspects),
        "listed and wrong": right,
    }


# --------------------------------------------------------------------------------------------------------------- names


def kept_names(name: str, seed: int) -> dict:
    """A run on 90 % of the rows, then one on all of them: rows that keep their name, by warm=, by like=, by neither."""
    from diffclust import runs, training
    from diffclust.tables import Table

    X, y = load(name)
    X, k = X.astype(np.float32), int(y.max()) + 1
    order = np.random.default_rng(seed).permutation(len(y))
    classes = max(1, k // 2)  # the others are never labelled, so their clusters have names that could change
    labels = np.where((np.random.default_rng(seed).random(len(y)) < 0.1) & (y < classes), y, -1)
    names = [str(code) for code in range(k)]
    old, every = order[: int(0.9 * len(y))], np.random.default_rng(seed + 1).permutation(len(y))
    config = training.TrainingConfig(n_clusters=k, seed=seed, device="cpu", n_steps=100)
    options = {"progress": False, "report": False, "say": lambda text: None, "cut": "k-means"}
    record = {"set": name, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        first = runs.fit_run(Table(X[old], labels[old], names, name), config, Path(folder) / "a", **options)
        table = Table(X[every], labels[every], names, name)
        place = {row: position for position, row in enumerate(every)}
        again = [place[row] for row in old]
        for how, given in (("warm", {"warm": first}), ("like", {"like": first}), ("neither", {})):
            second = runs.fit_run(table, config, Path(folder) / how, **given, **options)
            then, now = (np.array(run.names)[run.clusters] for run in (first, second))
            colours = [np.array(run.metrics["cluster_colours"])[run.clusters] for run in (first, second)]
            record[how] = round(float((then == now[again]).mean()), 4)
            record[f"{how}, colours"] = round(float((colours[0] == colours[1][again]).mean()), 4)
            record[f"{how}, at best"] = round(dc.metrics.clustering_scores(then, now[again])["accuracy"], 4)
    return record


# ---------------------------------------------------------------------------------------------------------------- warm


def warm_start(name: str, seed: int) -> dict:
    """ARI of rows without a label after 5 % more labels: 100 steps from the earlier weights, 300 or 100 from none."""
    from diffclust import training

    X, y = load(name)
    k, chance = int(y.max()) + 1, np.random.default_rng(seed).random(len(y))
    first, more = (np.where(chance < share, y, -1) for share in (0.05, 0.1))
    for code in range(k):  # a label of each class at least
        rows = np.flatnonzero(y == code)
        first[rows[chance[rows].argmin()]] = more[rows[chance[rows].argmin()]] = code

    def fit(labels: np.ndarray, n_steps: int, **start: object) -> training.ForestModule:
        config = training.TrainingConfig(n_clusters=k, n_steps=n_steps, seed=seed, device="cpu")
        return training.fit(config, X, labels, progress=False, **start)

    earlier = fit(first, 300)
    modules = {
        "warm, 100 steps": fit(more, 100, warm=earlier),
        "300 steps": fit(more, 300),
        "100 steps": fit(more, 100),
    }
    record: dict = {"set": name, "seed": seed}
    for how, module in modules.items():
        found = partition.partition(training.embed(module, X), dc.Knowledge.join(more), k, cut="classifier")
        record[how] = round(adjusted_rand_score(y[more < 0], found.clusters[more < 0]), 4)
    return record


def each(arguments: argparse.Namespace, file: str, measure: Callable[[str, int], dict]) -> None:
    records = []
    for name in (name for name in arguments.sets if name in SETS):
        for seed in arguments.seeds:
            records.append(measure(name, seed))
            print(records[-1], flush=True)
            with (arguments.out / file).open("w", newline="") as handle:
                writer = csv.DictWriter(handle, records[0].keys(), lineterminator="\n")
                writer.writeheader()
                writer.writerows(records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("queries", "pairs", "mistakes", "names", "warm", "table"))
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), metavar="SET")
    parser.add_argument("--mnist", type=Path, help="an .npz file of images and labels")
    parser.add_argument("--pbmc", type=Path, help="an .h5 file with X (cells, genes) and Y")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    arguments.files = {name: getattr(arguments, name) for name in ("mnist", "pbmc") if getattr(arguments, name)}
    arguments.sets = [*arguments.sets, *arguments.files]
    warnings.simplefilter("ignore")
    if arguments.what == "queries":
        queries(arguments)
    elif arguments.what == "table":
        report_queries(arguments.out / "ask.csv")
    elif arguments.what == "pairs":
        each(arguments, "ask_pairs.csv", pair_answers)
    elif arguments.what == "mistakes":
        each(arguments, "ask_mistakes.csv", wrong_labels)
    elif arguments.what == "names":
        each(arguments, "ask_names.csv", kept_names)
    else:
        each(arguments, "ask_warm.csv", warm_start)


if __name__ == "__main__":
    main()
