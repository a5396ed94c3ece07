"""Two noisy moons: single linkage fails on them, five labels a moon mend it. Prints scores, writes a picture.

python examples/two_moons.py --out demo
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from sklearn.datasets import make_moons

import diffclust as dc

COLOURS = np.array(["#0072B2", "#E69F00", "#009E73", "#CC79A7"])  # told apart by the colour-blind, too


def main(out: Path) -> dict[str, dict[str, float]]:
    points, truth = make_moons(n_samples=300, noise=0.13, random_state=3)
    known = np.full(len(points), -1)
    rng = np.random.default_rng(0)
    for moon in (0, 1):
        chosen = rng.choice(np.flatnonzero(truth == moon), 5, replace=False)
        known[chosen] = moon
    similarity = dc.negative_squared_distances(points)

    plain = dc.spanning_forest(similarity, n_clusters=2)
    constrained = dc.spanning_forest(similarity, n_clusters=2, constraints=dc.Constraints.from_labels(known))
    scores = {}
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.9), constrained_layout=True)
    panels = [("no labels", plain, np.full(len(points), -1)), ("5 labels a moon", constrained, known)]
    for axis, (name, forest, labels) in zip(axes, panels, strict=True):
        scores[name] = dc.metrics.clustering_scores(truth, forest.labels)
        edges = forest.edges[forest.edges[:, 0] >= 0]
        for i, j in edges:
            axis.plot(*points[[i, j]].T, color="#999999", linewidth=0.8, zorder=1)
        axis.scatter(*points.T, c=COLOURS[forest.labels], s=16, zorder=2)
        axis.scatter(*points[labels >= 0].T, s=110, facecolors="none", edgecolors="black", linewidths=1.6, zorder=3)
        axis.set_title(f"{name}: ARI {scores[name]['ari']:.2f}, accuracy {scores[name]['accuracy']:.2f}")
        axis.set_aspect("equal")
        axis.set_axis_off()

    print(f"{'':>16}  " + "  ".join(f"{key:>8}" for key in scores["no labels"]))
    for name, row in scores.items():
        print(f"{name:>16}  " + "  ".join(f"{value:8.3f}" for value in row.values()))
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "two_moons.png"
    figure.savefig(picture, dpi=110)
    print(f"picture: {picture}")
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the picture (default: demo)")
    main(parser.parse_args().out)
