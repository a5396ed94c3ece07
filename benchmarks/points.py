"""Hierarchy.from_points against other single linkage on the same points, in the same run. Answers are checked first.

    pip install 'diffclust[neighbors,bench]'
    python benchmarks/points.py                                     # 20,000 points, against all peers
    python benchmarks/points.py --task scale --points 100000        # time and memory of the exact tree
    python benchmarks/points.py --task graph --points 1000000       # time and memory of the neighbour graph
    python benchmarks/points.py --task loss --points 20000 100000   # what the neighbour graph loses

Times are the best of a few runs, in turn, because other work on the machine only ever adds. Memory is the
peak of a process of its own in all: Python, libraries, compiler, making the points, and the tree.
"""

import argparse
import csv
import itertools
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

import diffclust as dc


def make_points(data: str, n: int, d: int) -> np.ndarray:
    rng = np.random.default_rng([n, d])
    if data == "uniform":
        return rng.random((n, d))
    if data == "blobs":  # ten clusters, ten deviations apart in each coordinate
        return rng.normal(size=(n, d)) + 10 * rng.normal(size=(10, d))[rng.integers(0, 10, n)]
    if data == "embedding":  # fifty clusters that share eight directions, and a little noise in all of them
        inner = rng.normal(size=(n, 8)) @ rng.normal(size=(8, d)) / 2 + 0.1 * rng.normal(size=(n, d))
        return 2 * rng.normal(size=(50, d))[rng.integers(0, 50, n)] + inner
    return rng.normal(size=(n, d))


# ------------------------------------------------------------------------------------- peers: points → sorted lengths


def fastcluster(x: np.ndarray) -> np.ndarray:
    from fastcluster import linkage_vector

    return linkage_vector(x, method="single")[:, 2]


def scikit_learn(x: np.ndarray) -> np.ndarray:
    from sklearn.cluster import AgglomerativeClustering

    return AgglomerativeClustering(None, distance_threshold=0, linkage="single").fit(x).distances_


def quitefastmst(x: np.ndarray) -> np.ndarray:
    from quitefastmst import mst_euclid

    return mst_euclid(x)[0]


def fast_hdbscan(x: np.ndarray) -> np.ndarray:
    from fast_hdbscan.hdbscan import compute_minimum_spanning_tree

    return np.sort(compute_minimum_spanning_tree(x, min_samples=1)[0][:, 2])


PEERS = {f.__name__: f for f in (fastcluster, scikit_learn, quitefastmst, fast_hdbscan)}
# Above 30 dimensions fast_hdbscan's tree is that of an approximate neighbour graph, which is no comparison.
EXACT_UP_TO = {"fast_hdbscan": 30}


def ours(x: np.ndarray) -> np.ndarray:
    return -dc.Hierarchy.from_points(x, "euclidean").weights


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(arguments: argparse.Namespace) -> list[dict]:
    rows = []
    names = ["ours", *arguments.peers]
    print(f"{'data':>10} {'n':>8} {'d':>4}" + "".join(f"{name:>14}" for name in names) + "  ratio")
    for data, n, d in cases(arguments):
        peers = [name for name in arguments.peers if d <= EXACT_UP_TO.get(name, d)]
        best = compare_one(make_points(data, n, d), peers, arguments)
        ratio = min(best[name] for name in peers) / best["ours"]
        times = "".join(f"{best[name]:>13.3f}s" if name in best else f"{'-':>14}" for name in names)
        print(f"{data:>10} {n:>8} {d:>4}{times} {ratio:>5.2f}x", flush=True)
        rows.append({"data": data, "points": n, "dimensions": d, **dict.fromkeys(names), **best, "ratio": ratio})
    return rows


def compare_one(x: np.ndarray, peers: list[str], arguments: argparse.Namespace) -> dict[str, float]:
    """The best time of each, in turn; a slow peer's is that of the run that is checked."""
    expected = ours(x)
    best = {"ours": np.inf}
    for name in peers:
        PEERS[name](x[:1000])  # compile
        best[name] = seconds(lambda name=name: check(name, PEERS[name](x), expected))
    for _ in range(arguments.repeats):
        best["ours"] = min(best["ours"], seconds(lambda: ours(x)))
        for name in peers:
            if best[name] < arguments.patience:
                best[name] = min(best[name], seconds(lambda name=name: PEERS[name](x)))
    return best


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    return itertools.product(arguments.data, arguments.points, arguments.dimensions)


def check(name: str, lengths: np.ndarray, expected: np.ndarray) -> None:
    """All lengths of a minimum spanning tree are determined, whichever one it is."""
    tolerance = 1e-6 if name == "fast_hdbscan" else 1e-12  # of the largest; that one computes in float32
    if np.abs(lengths - expected).max() > tolerance * expected[-1]:
        raise SystemExit(f"{name} has another tree than ours: nothing is timed.")


# ------------------------------------------------------------------------------------------------- scale, graph, loss


def measure(data: str, n: int, d: int, options: dict, results: multiprocessing.Queue) -> None:
    """Time and peak memory of one tree, in a process of its own."""
    x = make_points(data, n, d).astype(np.float32)
    few = 20_000 if "n_neighbors" in options else 2_000
    dc.Hierarchy.from_points(x[:few], **options)  # compile
    took = seconds(lambda: dc.Hierarchy.from_points(x, progress=True, **options))
    results.put((took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20))


def scale(arguments: argparse.Namespace) -> list[dict]:
    rows = []
    options = {"n_neighbors": arguments.neighbors} if arguments.task == "graph" else {}
    context = multiprocessing.get_context("spawn")
    for data, n, d in cases(arguments):
        results = context.Queue()
        process = context.Process(target=measure, args=(data, n, d, options, results))
        process.start()
        took, gib = results.get()
        process.join()
        print(f"{data}, {n} points, {d} dimensions: {took:.1f} s, {gib:.2f} GiB", flush=True)
        rows.append({"data": data, "points": n, "dimensions": d, "seconds": took, "peak GiB": gib})
    return rows


def loss(arguments: argparse.Namespace) -> list[dict]:
    rows = []
    for data, n, d in cases(arguments):
        x = make_points(data, n, d).astype(np.float32)
        exact = dc.Hierarchy.from_points(x, "euclidean")
        graph = dc.Hierarchy.from_points(x, "euclidean", n_neighbors=arguments.neighbors)
        same = set(map(tuple, exact.edges.tolist())) & set(map(tuple, graph.edges.tolist()))
        row = {"data": data, "points": n, "dimensions": d, "edges that differ": 1 - len(same) / (n - 1)}
        row["length ratio"] = graph.weights.sum() / exact.weights.sum()
        for k, size in ((50, 1), (10, 50)):
            try:
                agreement = adjusted_rand_score(exact.labels(k, size), graph.labels(k, size))
            except ValueError:  # a tree has fewer clusters of that size
                agreement = float("nan")
            row[f"ARI k={k} size>={size}"] = agreement
        print(row, flush=True)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=["compare", "scale", "graph", "loss"], default="compare")
    parser.add_argument("--points", type=int, nargs="+", default=[20_000])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[2, 16, 64])
    parser.add_argument("--data", nargs="+", default=["normal"], choices=["normal", "uniform", "blobs", "embedding"])
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--neighbors", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--patience", type=float, default=1.0, help="seconds from which on a peer runs only once")
    parser.add_argument("--out", type=Path, help="a csv file for the rows")
    arguments = parser.parse_args()
    tasks = {"compare": compare, "scale": scale, "graph": scale, "loss": loss}
    rows = tasks[arguments.task](arguments)
    if arguments.out:
        with arguments.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
