"""A whole test set clustered: embeddings trained on MNIST with few labels, the guarded forest beside other methods.

    python benchmarks/whole_set.py --data-dir DATA --labels 1000 --withheld 0 3 --seeds 0 1 2

Trains on the training images (half of each batch labelled), then clusters the embeddings of all 10,000 test images, of
which no label is used. Scores are printed for all images, for those of labelled and for those of withheld classes.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.cluster import HDBSCAN, AgglomerativeClustering, KMeans

import diffclust as dc
from diffclust import training

sys.path.insert(0, str(Path(__file__).parents[1]))
from experiments.data import choose_labels, load


def clusterings(embeddings: np.ndarray, guards: list[int]) -> dict[str, np.ndarray]:
    """Ten clusters of the embeddings by several methods; HDBSCAN finds its own number."""
    n = len(embeddings)
    tree = dc.Hierarchy.from_points(embeddings)
    robust = dc.Hierarchy.from_points(embeddings, reachability=5)
    found = {}
    for guard in guards:
        for name, hierarchy in (("forest", tree), ("robust forest", robust)):
            highest = hierarchy.feasible_clusters(guard)[1]
            found[f"{name}, at least {guard}"] = hierarchy.labels(min(10, highest), guard)
    found["forest, no guard"] = tree.labels(10)
    found["forest, k chosen"] = tree.labels(
        dc.choose_n_clusters(tree, min_cluster_size=n // 100).n_clusters, min_cluster_size=n // 100
    )
    found["k-means"] = KMeans(10, n_init=10, random_state=0).fit_predict(embeddings)
    found["Ward"] = AgglomerativeClustering(10).fit_predict(embeddings)
    found["HDBSCAN"] = HDBSCAN(min_cluster_size=n // 100, copy=True).fit_predict(embeddings)
    return found


def report(embeddings: np.ndarray, y: np.ndarray, hidden: np.ndarray, guards: list[int]) -> dict[str, list[float]]:
    """ARI and accuracy on all images, on the labelled classes' and on the withheld classes'."""
    rows = {}
    for name, labels in clusterings(embeddings, guards).items():
        row = []
        for part in (np.full(len(y), True), ~np.isin(y, hidden), np.isin(y, hidden)):
            scores = dc.metrics.clustering_scores(y[part], labels[part]) if part.any() else {}
            row += [scores.get("ari", np.nan), scores.get("accuracy", np.nan)]
        rows[name] = [*row, labels.max() + 1]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--labels", type=int, help="how many are known; without, all of them")
    parser.add_argument("--withheld", type=int, nargs="+", default=[0], help="number of classes without labels")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--epsilon", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--decay", type=float, default=1e-4)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--labelled-fraction", type=float, default=0.5)
    parser.add_argument("--must-link-first", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--augment", choices=["shift"])
    parser.add_argument("--reachability", type=int)
    parser.add_argument("--guards", type=int, nargs="+", default=[100, 200])
    arguments = parser.parse_args()
    data = load("mnist", arguments.data_dir)
    for withheld in arguments.withheld:
        tables = []
        for seed in arguments.seeds:
            known, hidden = choose_labels(data.y_train, arguments.labels, withheld, seed)
            config = training.TrainingConfig(
                n_clusters=10, backbone="cnn", embedding_dim=arguments.dim, batch_size=arguments.batch_size,
                max_steps=arguments.steps, epsilon=arguments.epsilon, n_draws=arguments.draws,
                learning_rate=arguments.rate, weight_decay=arguments.decay, schedule="cosine", warmup_steps=100,
                labelled_fraction=arguments.labelled_fraction, must_link_first=arguments.must_link_first,
                n_neighbors=arguments.reachability, augment=arguments.augment, seed=seed,
            )  # fmt: skip
            start = time.perf_counter()
            module = training.fit(config, data.x_train, known, progress=False)
            seconds = time.perf_counter() - start
            embeddings = training.embed(module, data.x_test)
            tables.append(report(embeddings, data.y_test, hidden, arguments.guards))
            print(f"seed {seed}: withheld {hidden.tolist()}, trained {seconds:.0f} s", flush=True)
        n_labels = "all labels" if arguments.labels is None else f"{arguments.labels} labels"
        print(f"\nMNIST, {n_labels}, {withheld} classes withheld, mean over seeds {arguments.seeds} of the test set")
        columns = [f"{score}{part}" for part in ("", " seen", " withheld") for score in ("ARI", "accuracy")]
        print(f"| clusters of the embedding | {' | '.join(columns)} | k |")
        print("|---|" + "---:|" * 7)
        for name in tables[0]:
            values = np.array([table[name] for table in tables])
            cells = [f"{mean:.3f} ± {spread:.3f}" for mean, spread in zip(values.mean(0), values.std(0), strict=True)]
            print(f"| {name} | " + " | ".join(cells[:-1]) + f" | {values[:, -1].mean():.1f} |", flush=True)


if __name__ == "__main__":
    main()
