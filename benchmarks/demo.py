"""``diffclust fit`` on its own data, the digits, over several seeds: mean and spread of every method's scores.

    python benchmarks/demo.py                     # 100 labels, digits 7, 8 and 9 never labelled, as `make demo`
    python benchmarks/demo.py --withheld          # all ten digits labelled

A seed chooses the labelled images, the first weights and the noise. Scores are on rows whose labels nobody was
told; ours, in the first row, are those of the command, which sees no more than the others.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from diffclust import cli, runs, training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--withheld", type=int, nargs="*", default=[7, 8, 9], help="digits without labels")
    parser.add_argument("--backbone", default="cnn")
    arguments = parser.parse_args()
    cli.WITHHELD_DIGITS = tuple(arguments.withheld)
    found: dict[str, list[list[float]]] = {}
    names = ("error", "ari", "nmi", "accuracy")
    for seed in arguments.seeds:
        table, truth = cli.digits(seed)
        config = training.TrainingConfig(n_clusters=10, backbone=arguments.backbone, seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            run = runs.fit_run(
                table,
                config,
                Path(folder) / "run",
                truth=truth,
                progress=False,
                report=False,
                say=lambda text: None,
            )
        for row in run.metrics["scores"]:
            found.setdefault(row["method"], []).append([row[name] for name in names])
    print(f"digits, 100 labels, withheld {arguments.withheld}, seeds {arguments.seeds}, mean ± standard deviation")
    print("| method | " + " | ".join(names) + " |\n|---|" + "---:|" * len(names))
    for method, rows in found.items():
        mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0)
        print(f"| {method} | " + " | ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread, strict=True)) + " |")
    ours = [row[1] for row in found["diffclust"]]
    best = [max(rows[i][1] for method, rows in found.items() if method != "diffclust") for i in range(len(ours))]
    print(f"\nARI by seed: ours {np.round(ours, 3).tolist()}, best of the others {np.round(best, 3).tolist()}")


if __name__ == "__main__":
    main()
