"""Loss and gradient against the authors' JAX code, on the same machine, in the same run, as ratios.

    git clone https://github.com/LawrenceMMStewart/DiffClust_NeurIPS2023 reference
    python benchmarks/loss.py --reference reference --points 32 64 128 --draws 100 1000
    python benchmarks/loss.py --reference reference --device cuda --points 64 256

Their code needs JAX and is never part of this repository. Without --reference only ours is timed. k=10, half the batch
labelled. Answers are checked first: both exact solvers on the same perturbed matrices must return the same forests.
Times are medians.
"""

import argparse
import importlib.util
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

import diffclust as dc

EPSILON, K, SEED = 0.1, 10, 0


def make_problem(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Standardised similarities of points in ten overlapping classes, and labels of half of them."""
    rng = np.random.default_rng(n)
    truth = rng.integers(0, K, n)
    points = 2 * rng.normal(size=(K, 16))[truth] + rng.normal(size=(n, 16))
    similarity = dc.standardize(dc.negative_squared_distances(points)).astype(np.float32)
    return similarity, np.where(np.arange(n) < n // 2, truth, -1)


def median_ms(run: Callable[[], object], seconds: float) -> float:
    run()
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < deadline:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


# ------------------------------------------------------------------------------------------------------- the authors


def load_reference(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("authors_forests", folder / "src" / "forests.py")
    if spec is None or spec.loader is None or not (folder / "src" / "forests.py").exists():
        raise SystemExit(f"{folder} is not a checkout of DiffClust_NeurIPS2023: src/forests.py is missing.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def their_step(authors: ModuleType, similarity: np.ndarray, labels: np.ndarray, n_draws: int) -> Callable[[], object]:
    import jax
    import jax.numpy as jnp

    free = authors.make_perturbed_mwst(n_draws, EPSILON)
    constrained = authors.make_perturbed_mwst_constrained(n_draws, EPSILON)
    known = jnp.asarray(their_constraints(labels))

    def loss(s: jax.Array, key: jax.Array) -> jax.Array:
        return free(s, K, key)[1] - constrained(s, known, K, key)[1]

    step = jax.jit(jax.value_and_grad(loss))
    s, keys = jnp.asarray(similarity), iter(range(10**9))
    return lambda: jax.block_until_ready(step(s, jax.random.PRNGKey(next(keys))))


def their_constraints(labels: np.ndarray) -> np.ndarray:
    """Their convention: 1 must link, -1 must not, 0 unknown."""
    matrix = dc.Constraints.from_labels(labels).matrix()
    return np.where(np.isnan(matrix), 0.0, 2 * matrix - 1).astype(np.float32)


def check_answers(authors: ModuleType, similarity: np.ndarray, labels: np.ndarray, device: str) -> None:
    """The same forests from both exact solvers, on the same perturbed matrices."""
    n = len(labels)
    for draw, z in enumerate(dc.noise.sample(SEED, 3, n)):
        perturbed = similarity + np.float32(EPSILON) * z
        ours = torch.as_tensor(similarity, device=device)
        options = {"n_draws": 1, "first_draw": draw, "seed": SEED, "epsilon": EPSILON}
        constraints = dc.Constraints.from_labels(torch.as_tensor(labels, device=device))
        for theirs, known in (
            (authors.mwst(perturbed, K)[0], None),
            (authors.mwst_constrained(perturbed, their_constraints(labels), K)[0], constraints),
        ):
            mine = dc.perturbed_adjacency(ours, K, constraints=known, **options).cpu().numpy()
            if not np.array_equal(np.asarray(theirs) - np.eye(n), mine):
                raise SystemExit(f"n={n}, draw {draw}: the forests differ, nothing is timed.")


# ------------------------------------------------------------------------------------------------------------- ours


def our_step(
    similarity: np.ndarray, labels: np.ndarray, n_draws: int, device: str, in_graph: bool = False
) -> Callable[[], object]:
    """Fresh noise in every step: another seed, or in a graph a counter on the device that the graph moves on."""
    s = torch.as_tensor(similarity, device=device).requires_grad_()
    y = torch.as_tensor(labels, device=device)
    counter = torch.zeros((), dtype=torch.int64, device=device)
    seeds = itertools.count()

    def step() -> torch.Tensor:
        seed = counter.add_(1) if in_graph else next(seeds)
        loss = dc.partial_fenchel_young_loss(
            s, dc.Constraints.from_labels(y), K, epsilon=EPSILON, n_draws=n_draws, seed=seed
        )
        return torch.autograd.grad(loss, s)[0]

    return step


def graph_ms(step: Callable[[], object], seconds: float) -> float:
    """Median time of replays of the captured step, by CUDA events."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < deadline:
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, help="checkout of the authors' repository")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--points", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--draws", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each timing takes (default: 2)")
    arguments = parser.parse_args()
    authors = load_reference(arguments.reference) if arguments.reference else None
    on_gpu = arguments.device == "cuda"
    print(f"loss and gradient, k={K}, epsilon={EPSILON}, half the points labelled, {arguments.device}")
    header = ["n", "draws", "authors", "ours", "ratio"] + (["ours in a graph", "ratio"] if on_gpu else [])
    print("| " + " | ".join(header) + " |\n|" + "---:|" * len(header))
    for n in arguments.points:
        similarity, labels = make_problem(n)
        if authors is not None:
            check_answers(authors, similarity, labels, arguments.device)
        for n_draws in arguments.draws:
            step = our_step(similarity, labels, n_draws, arguments.device)
            finish = torch.cuda.synchronize if on_gpu else lambda: None
            ours = [median_ms(lambda step=step, finish=finish: (step(), finish()), arguments.seconds)]
            if on_gpu:
                step = our_step(similarity, labels, n_draws, arguments.device, in_graph=True)
                ours.append(graph_ms(step, arguments.seconds))
            row = [str(n), str(n_draws), "", *(f"{t:.3f} ms" for t in ours)]
            theirs = None
            if authors is not None:
                theirs = median_ms(their_step(authors, similarity, labels, n_draws), arguments.seconds)
                row[2] = f"{theirs:.1f} ms"
            for position, t in enumerate(ours):
                row.insert(4 + 2 * position, "" if theirs is None else f"{theirs / t:.0f}x")
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
