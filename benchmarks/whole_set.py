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
from sklearn.cluster import HDBSCAN

import diffclust as dc
from diffclust import training

sys.path.insert(0, str(Path(__file__).parents[1]))
from experiments.data import choose_labels, load
from experiments.evaluation import clusterings, part_scores


def all_clusterings(embeddings: np.ndarray, guard: int) -> dict[str, np.ndarray]:
    """Ten clusters of the embeddings by several methods; HDBSCAN finds its own number."""
    small = len(embeddings) // 100
    tree = dc.Hierarchy.from_points(embeddings)
    chosen = dc.choose_n_clusters(tree, min_cluster_size=small).n_clusters
    return {
        **clusterings(embeddings, 10, guard),
        "forest, no guard": tree.labels(10),
        "forest, k chosen": tree.labels(chosen, min_cluster_size=small),
        "HDBSCAN": HDBSCAN(min_cluster_size=small, copy=True).fit_predict(embeddings),
    }


def report(embeddings: np.ndarray, y: np.ndarray, hidden: np.ndarray, guard: int) -> dict[str, list[float]]:
    """ARI and accuracy on all images, on the labelled classes' and on the withheld classes'."""
    rows = {}
    for name, labels in all_clusterings(embeddings, guard).items():
        scores = part_scores(y, labels, hidden)
        parts = [scores.get(part, {}) for part in ("all", "seen", "withheld")]
        rows[name] = [part.get(score, np.nan) for part in parts for score in ("ari", "accuracy")] + [labels.max() + 1]
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
    parser.add_argument("--guard", type=int, default=200, help="smallest cluster of the forests")
    arguments = parser.parse_args()
    data = load("mnist", arguments.data_dir)
    for withheld in arguments.withheld:
        tables = []
        for seed in arguments.seeds:
            known, hidden = choose_labels(data.y_train, arguments.labels, withheld, seed)
            config = training.TrainingConfig(
                n_clusters=10, backbone="cnn", embedding_dim=arguments.dim, batch_size=arguments.batch_size,
                n_steps=arguments.steps, epsilon=arguments.epsilon, n_draws=arguments.draws,
                learning_rate=arguments.rate, weight_decay=arguments.decay, schedule="cosine", warmup_steps=100,
                labelled_fraction=arguments.labelled_fraction, must_link_first=arguments.must_link_first,
                reachability=arguments.reachability, augment=arguments.augment, seed=seed,
            )  # fmt: skip
            start = time.perf_counter()
            module = training.fit(config, data.x_train, known, progress=False)
            seconds = time.perf_counter() - start
            embeddings = training.embed(module, data.x_test)
            tables.append(report(embeddings, data.y_test, hidden, arguments.guard))
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
