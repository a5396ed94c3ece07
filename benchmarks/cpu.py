"""CPU solver against plain Kruskal on the same draws, in the same run. Answers are checked before anything is timed.

python benchmarks/cpu.py
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

import diffclust as dc
from diffclust.solvers import cpu, reference


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def print_row(n: int, name: str, seconds: np.ndarray) -> None:
    plain, ours = seconds * 1e3
    print(f"{n:>6} {name:>12} {plain:>11.1f} ms {ours:>9.3f} ms {plain / ours:>7.0f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, nargs="+", default=[64], help="numbers of points (default: 64)")
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--clusters", type=int, default=10)
    arguments = parser.parse_args()
    n_draws, k, epsilon, seed = arguments.draws, arguments.clusters, 0.1, 0

    print(f"{n_draws} draws, k={k}, half the points labelled; solve of all draws, noise included\n")
    print(f"{'n':>6} {'solve':>12} {'plain Kruskal':>14} {'diffclust':>12} {'ratio':>8}")
    for n in arguments.points:
        rng = np.random.default_rng(n)
        truth = rng.integers(0, k, n)
        points = rng.normal(size=(k, 8))[truth] * 2 + rng.normal(size=(n, 8))
        labels = np.where(rng.random(n) < 0.5, truth, -1)
        similarity = dc.standardize(dc.negative_squared_distances(points)).astype(np.float32)[None]
        relation = np.nan_to_num(dc.Constraints.from_labels(labels).matrix(), nan=-1).astype(int).tolist()
        common = {"seed": seed, "n_draws": n_draws, "epsilon": epsilon}

        def plain(known: list[list[int]] | None, n: int = n, similarity: np.ndarray = similarity) -> list[list]:
            perturbed = similarity + np.float32(epsilon) * dc.noise.sample(seed, n_draws, n)
            return [reference.kruskal(draw.tolist(), k, known) for draw in perturbed]

        totals = np.zeros(2)
        for name, known, given in (("free", None, {}), ("labels", relation, {"labels": labels[None], "free": False})):

            def fast(given: dict = {**given, **common}, similarity: np.ndarray = similarity) -> cpu.Forests:  # noqa: B006
                return cpu.solve(similarity, np.array([k]), **given)

            ours = fast().edges[0, 0]
            theirs = plain(known)
            if not all(a[: n - k].tolist() == [list(e) for e in b] for a, b in zip(ours, theirs, strict=True)):
                raise SystemExit("the answers differ: nothing is timed")
            times = np.array([median_seconds(lambda known=known: plain(known), 3), median_seconds(fast, 50)])
            totals += times
            print_row(n, name, times)
        print_row(n, "together", totals)


if __name__ == "__main__":
    main()
