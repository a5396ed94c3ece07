"""New-intent discovery on short texts: our estimator beside others on the same sentence vectors.

    git clone https://github.com/thuiar/TEXTOIR
    pip install -c constraints.txt -e '.[text,bench]' umap-learn fast_hdbscan
    python benchmarks/text.py TEXTOIR/data/banking --model all-MiniLM-L6-v2 --out results

TEXTOIR's protocol: a share of the intents is known, and a tenth of their training rows is labelled; the number of
intents is given; methods see all training rows and are scored on the test split. Its loader draws intents and rows at
random; the draws here are of the same kind but not its own. Vectors are kept beside the data (``--cache``).
``--fine-tune`` trains the last layer of the model first, for each draw of labels, and clusters its vectors.
Writes text.csv, and prints the means as a table.
"""

import argparse
import csv
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.semi_supervised import LabelSpreading

import diffclust as dc
from diffclust.cuts import kmeans
from diffclust.knowledge import Knowledge
from diffclust.placing import joined_rows

SPLITS = ("train", "test")
LABELLED = 0.1
HDBSCAN_SIZE = 5  # rows of the smallest cluster; of 5, 10 and 20 the best on HWU64


def read_split(folder: Path, split: str) -> tuple[list[str], list[str]]:
    """Texts and intents as TEXTOIR reads them: no quotes, and only lines with two cells."""
    with (folder / f"{split}.tsv").open(encoding="utf-8") as file:
        lines = [line for line in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if len(line) == 2][1:]
    return [line[0] for line in lines], [line[1] for line in lines]


def load(folder: Path, model: str, cache: Path) -> dict[str, np.ndarray]:
    """Vectors ("train", "test") and class numbers ("train_label", "test_label")."""
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"{folder.name}.npz"
    if not path.exists():
        from diffclust.tables.texts import embed_texts

        found = {}
        for split in SPLITS:
            texts, intents = read_split(folder, split)
            found |= {split: embed_texts(texts, model), f"{split}_label": np.array(intents)}
        np.savez(path, **found)
    with np.load(path) as saved:
        data = {name: saved[name] for split in SPLITS for name in (split, f"{split}_label")}
    names = np.unique(data["train_label"])
    return data | {f"{split}_label": np.searchsorted(names, data[f"{split}_label"]) for split in SPLITS}


def choose_known(y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Labels of a tenth of the rows of a share of the intents, -1 elsewhere."""
    rng, n_intents, known = np.random.default_rng(seed), int(y.max()) + 1, np.full(len(y), -1)
    for intent in rng.choice(n_intents, round(share * n_intents), replace=False):
        rows = np.flatnonzero(y == intent)
        known[rng.choice(rows, round(LABELLED * len(rows)), replace=False)] = intent
    return known


# ------------------------------------------------------------------------------------------------------------- methods
# (training vectors, known labels, k, seed, test vectors) -> clusters of the test vectors


def ours(x: np.ndarray, known: np.ndarray, k: int, seed: int, test: np.ndarray) -> np.ndarray:
    """All defaults; vectors of texts have no other scaling than their length."""
    model = dc.cluster.ForestEmbedding(k, options={"scaling": "unit"}, random_state=seed).fit(x, known)
    print("   cut:", model.partition_.evidence.cut, flush=True)
    return model.predict(test)


def fine_tuned(folder: Path, model: str) -> Callable[..., np.ndarray]:
    """``ours``, on the vectors of a model whose last layer is trained with our loss on the same labels."""
    from text_tuning import lower_layers, tune

    states = {split: lower_layers(read_split(folder, split)[0], model) for split in SPLITS}

    def method(x: np.ndarray, known: np.ndarray, k: int, seed: int, test: np.ndarray) -> np.ndarray:
        layer = tune(states["train"], x, known, k, seed, model)
        return ours(layer.embed(states["train"]), known, k, seed, layer.embed(states["test"]))

    return method


def plain_kmeans(x: np.ndarray, known: np.ndarray, k: int, seed: int, test: np.ndarray) -> np.ndarray:
    return KMeans(k, n_init=10, random_state=seed).fit(x).predict(test)


def constrained_kmeans(x: np.ndarray, known: np.ndarray, k: int, seed: int, test: np.ndarray) -> np.ndarray:
    """Basu et al. (2002): labelled rows keep their cluster; new centres start as k-means++ does."""
    rng, intents = np.random.default_rng(seed), np.unique(known[known >= 0])
    best, lowest = None, np.inf
    for _ in range(10):
        centres = np.stack([x[known == intent].mean(0) for intent in intents])
        while len(centres) < k:
            nearest = _distances(x, centres).min(1).astype(np.float64)
            centres = np.concatenate([centres, x[[rng.choice(len(x), p=nearest / nearest.sum())]]])
        found = None
        for _ in range(100):
            distances = _distances(x, centres)
            new = distances.argmin(1)
            new[known >= 0] = np.searchsorted(intents, known[known >= 0])
            if found is not None and np.array_equal(new, found):
                break
            found = new
            centres = np.stack([x[found == c].mean(0) if (found == c).any() else centres[c] for c in range(k)])
        inertia = distances[np.arange(len(x)), found].sum()
        if inertia < lowest:
            best, lowest = centres, inertia
    return _distances(test, best).argmin(1)


def our_kmeans(x: np.ndarray, known: np.ndarray, k: int, seed: int, test: np.ndarray) -> np.ndarray:
    """The cut "k-means" of this library on the vectors themselves."""
    found = kmeans(x, Knowledge.join(known), k, seed)
    return _distances(test, np.stack([x[found == c].mean(0) for c in range(k)])).argmin(1)


def label_spreading(x: np.ndarray, known: np.ndarray, k: int, seed: int, test: np.ndarray) -> np.ndarray:
    """It knows the labelled intents only."""
    return LabelSpreading(kernel="knn", n_neighbors=15).fit(x, known).predict(test)


def umap_kmeans(x: np.ndarray, known: np.ndarray, k: int, seed: int, test: np.ndarray) -> np.ndarray:
    import umap

    reduced = umap.UMAP(n_components=10, n_neighbors=15, min_dist=0.0, metric="cosine", random_state=seed)
    found = KMeans(k, n_init=10, random_state=seed).fit(reduced.fit_transform(x))
    return found.labels_[joined_rows(x, found.labels_, test)]  # new rows are placed as ours are


def semi_supervised_hdbscan(x: np.ndarray, known: np.ndarray, k: int, seed: int, test: np.ndarray) -> np.ndarray:
    """It finds the number of clusters by itself. Test rows are placed by the vote of rows that are not noise."""
    from fast_hdbscan import HDBSCAN

    interpret_bcubed()
    found = HDBSCAN(min_cluster_size=HDBSCAN_SIZE, semi_supervised=True).fit(x, known).labels_
    kept = found >= 0
    return found[kept][joined_rows(x[kept], found[kept], test)]


def interpret_bcubed() -> None:
    """Numba does not compile fast_hdbscan's semi-supervised functions: they are run as the plain Python they are."""
    from fast_hdbscan import cluster_trees, hdbscan

    class PlainDict(dict):
        empty = classmethod(lambda cls, **types: cls())

    class PlainList(list):
        empty_list = classmethod(lambda cls, kind: cls())

    cluster_trees.Dict, cluster_trees.List = PlainDict, PlainList  # only those functions use them
    for name in dir(cluster_trees):
        function = getattr(cluster_trees, name)
        if "bcubed" in name and hasattr(function, "py_func"):
            setattr(cluster_trees, name, function.py_func)
    hdbscan.extract_clusters_bcubed = cluster_trees.extract_clusters_bcubed


def _distances(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return np.maximum((x**2).sum(1)[:, None] - 2 * x @ centres.T + (centres**2).sum(1), 0)


METHODS: dict[str, Callable[..., np.ndarray]] = {
    "ForestEmbedding": ours,
    "k-means": plain_kmeans,
    "constrained k-means": constrained_kmeans,
    "k-means cut of this library": our_kmeans,
    "label spreading": label_spreading,
    "UMAP and k-means": umap_kmeans,
    "fast_hdbscan, semi-supervised": semi_supervised_hdbscan,
}


def scores(truth: np.ndarray, found: np.ndarray) -> dict[str, float]:
    """In percent, as papers about intents give them."""
    found = np.unique(found, return_inverse=True)[1]
    table = np.zeros((max(truth.max(), found.max()) + 1,) * 2)
    np.add.at(table, (truth, found), 1)
    accuracy = table[linear_sum_assignment(table, maximize=True)].sum() / len(truth)
    values = (adjusted_rand_score(truth, found), normalized_mutual_info_score(truth, found), accuracy)
    return {name: round(100 * value, 2) for name, value in zip(("ari", "nmi", "accuracy"), values, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder with train.tsv and test.tsv")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="a sentence-transformers model")
    parser.add_argument("--cache", type=Path, help="where vectors are kept; beside the data by default")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.25, 0.75], help="of intents that are known")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--fine-tune", action="store_true", help="ForestEmbedding on vectors of a trained last layer")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    data = load(arguments.data, arguments.model, arguments.cache or arguments.data.parent / "vectors")
    k, path = int(data["train_label"].max()) + 1, arguments.out / "text.csv"
    rows = list(csv.DictReader(path.open())) if path.exists() else []
    methods = METHODS
    if arguments.fine_tune:
        methods = {"fine-tuned, ForestEmbedding": fine_tuned(arguments.data, arguments.model)}
    for method in methods if arguments.fine_tune else arguments.methods:
        for share in arguments.shares:
            for seed in arguments.seeds:
                known = choose_known(data["train_label"], share, seed)
                started = time.process_time()
                found = methods[method](data["train"], known, k, seed, data["test"])
                key = {"set": arguments.data.name, "method": method, "known": f"{share:g}", "seed": str(seed)}
                row = key | scores(data["test_label"], found) | {"seconds": round(time.process_time() - started, 1)}
                rows = [other for other in rows if any(other[name] != key[name] for name in key)] + [row]
                print(row, flush=True)
                with path.open("w", newline="") as file:
                    writer = csv.DictWriter(file, list(row), lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(rows)


if __name__ == "__main__":
    main()
