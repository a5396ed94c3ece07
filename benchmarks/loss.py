"""Loss and gradient against the authors' JAX code, on the same machine, in the same run, as ratios.

    git clone https://github.com/LawrenceMMStewart/DiffClust_NeurIPS2023 reference
    python benchmarks/loss.py --reference reference --points 32 64 128 --draws 100 1000
    python benchmarks/loss.py --reference reference --device cuda --points 64 256

Their code needs JAX and is never part of this repository. Without --reference only ours is timed, on torch and, where
it is installed, on JAX (--frameworks). k=10, half the batch labelled. Answers are checked first: the exact solvers on
the same perturbed matrices must return the same forests. Ours is timed with both rules: one pass, which is the default
of our losses, and must-links first, which is theirs. On a GPU, JAX is timed with seeds that come from the host, one a
step, and with a counter that stays on the device, theirs as well as ours. Times are medians; each contender has a
process of its own, one after the other, because a program that uses torch has no JAX, with its threads, beside it. On a
GPU the time of (s * s).sum() and its gradient says how much of an eager call is torch and the machine. Torch hands the
backward pass of CUDA tensors to a thread of its own, which on some machines takes longer to wake up than all the rest:
both are also timed with torch.autograd.set_multithreading_enabled(False), which leaves it to the thread that asks.
"""

import argparse
import csv
import importlib.util
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import diffclust as dc
from diffclust.frameworks import to_numpy

EPSILON, K, SEED = 0.1, 10, 0
COUNTED = ", counter on the device"
RULES = {"": True, ", one pass": False}  # what a column is called, and must_link_first


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


def their_step(
    authors: ModuleType, similarity: np.ndarray, labels: np.ndarray, n_draws: int, *, counted: bool
) -> Callable[[], object]:
    """Compiled; another key in every step, ``counted`` as in :func:`our_jax_step`."""
    import jax
    import jax.numpy as jnp

    free = authors.make_perturbed_mwst(n_draws, EPSILON)
    constrained = authors.make_perturbed_mwst_constrained(n_draws, EPSILON)
    known = jnp.asarray(their_constraints(labels))

    def loss(s: jax.Array, key: jax.Array) -> jax.Array:
        return free(s, K, key)[1] - constrained(s, known, K, key)[1]

    s, step = jnp.asarray(similarity), jax.value_and_grad(loss)
    if counted:
        return counted_step(lambda s, count: step(s, jax.random.PRNGKey(count)), s)
    step, keys = jax.jit(step), iter(range(10**9))
    return lambda: jax.block_until_ready(step(s, jax.random.PRNGKey(next(keys))))


def their_constraints(labels: np.ndarray) -> np.ndarray:
    """Their convention: 1 must link, -1 must not, 0 unknown."""
    matrix = dc.Constraints.from_labels(labels).matrix()
    return np.where(np.isnan(matrix), 0.0, 2 * matrix - 1).astype(np.float32)


def check_answers(
    authors: ModuleType, similarity: np.ndarray, labels: np.ndarray, place: Callable[[np.ndarray], Any]
) -> None:
    """The same forests from both exact solvers, on the same perturbed matrices; ``place`` makes our arrays."""
    n = len(labels)
    for draw, z in enumerate(dc.noise.sample(SEED, 3, n)):
        perturbed = similarity + np.float32(EPSILON) * z
        ours = place(similarity)
        options = {"n_draws": 1, "first_draw": draw, "seed": SEED, "epsilon": EPSILON}
        constraints = dc.Constraints.from_labels(place(labels))
        for theirs, known in (
            (authors.mwst(perturbed, K)[0], None),
            (authors.mwst_constrained(perturbed, their_constraints(labels), K)[0], constraints),
        ):
            mine = to_numpy(dc.perturbed_adjacency(ours, K, constraints=known, **options))
            if not np.array_equal(np.asarray(theirs) - np.eye(n), mine):
                raise SystemExit(f"n={n}, draw {draw}: the forests differ, nothing is timed.")


# ------------------------------------------------------------------------------------------------------------- ours


def our_step(
    similarity: np.ndarray, labels: np.ndarray, n_draws: int, device: str, *, first: bool, in_graph: bool = False
) -> Callable[[], object]:
    """Fresh noise in every step: another seed, or in a graph a counter on the device that the graph moves on.

    ``first``: must-links first instead of one pass.
    """
    s = torch.as_tensor(similarity, device=device).requires_grad_()
    y = torch.as_tensor(labels, device=device)
    counter = torch.zeros((), dtype=torch.int64, device=device)
    seeds = itertools.count()

    def step() -> torch.Tensor:
        seed = counter.add_(1) if in_graph else next(seeds)
        loss = dc.partial_fenchel_young_loss(
            s, dc.Constraints.from_labels(y), K, epsilon=EPSILON, n_draws=n_draws, seed=seed, must_link_first=first
        )
        return torch.autograd.grad(loss, s)[0]

    return step


def counted_step(step: Callable[..., Any], *arrays: Any) -> Callable[[], object]:
    """A compiled ``step(*arrays, count)`` whose counter stays on the device, as the state of a training does."""
    import jax
    import jax.numpy as jnp

    compiled = jax.jit(lambda *inputs: (step(*inputs), inputs[-1] + 1))
    count = jnp.int32(0)

    def run() -> object:
        nonlocal count
        result, count = compiled(*arrays, count)
        return jax.block_until_ready(result)

    return run


def our_jax_step(
    similarity: np.ndarray, labels: np.ndarray, n_draws: int, *, first: bool, counted: bool
) -> Callable[[], object]:
    """Compiled; another seed in every step, from the host, or ``counted`` on the device."""
    import jax
    import jax.numpy as jnp

    def loss(s: jax.Array, y: jax.Array, seed: jax.Array) -> jax.Array:
        constraints = dc.Constraints.from_labels(y)
        return dc.partial_fenchel_young_loss(
            s, constraints, K, epsilon=EPSILON, n_draws=n_draws, seed=seed, must_link_first=first
        )

    s, y = jnp.asarray(similarity), jnp.asarray(labels)
    if counted:
        return counted_step(jax.value_and_grad(loss), s, y)
    step, seeds = jax.jit(jax.value_and_grad(loss)), itertools.count()
    return lambda: jax.block_until_ready(step(s, y, np.int32(next(seeds))))


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


def time_one(
    name: str, n: int, n_draws: int, device: str, reference: Path | None, frameworks: list[str], seconds: float
) -> dict[str, float]:
    """Milliseconds of one contender (column → time); it has this process to itself. "check" compares answers."""
    similarity, labels = make_problem(n)
    seeds = {"": False} | ({COUNTED: True} if device == "cuda" else {})
    if name in ("check", "authors"):
        assert reference is not None
        authors = load_reference(reference)
        if name == "authors":
            return {
                name + kind: median_ms(their_step(authors, similarity, labels, n_draws, counted=counted), seconds)
                for kind, counted in seeds.items()
            }
        for framework in frameworks:
            check_answers(authors, similarity, labels, placers(device)[framework])
        return {}
    if name == "jax":
        return {
            f"ours, jax{rule}{kind}": median_ms(
                our_jax_step(similarity, labels, n_draws, first=first, counted=counted), seconds
            )
            for kind, counted in seeds.items()
            for rule, first in RULES.items()
        }
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    steps = {rule: our_step(similarity, labels, n_draws, device, first=first) for rule, first in RULES.items()}
    step = steps[""]
    times = {f"ours, torch{rule}": median_ms(lambda run=run: (run(), finish()), seconds) for rule, run in steps.items()}
    if device == "cuda":
        nothing = torch.as_tensor(similarity, device=device).requires_grad_()

        def floor() -> object:
            return torch.autograd.grad((nothing * nothing).sum(), nothing), finish()

        times["(s * s).sum() in torch"] = median_ms(floor, seconds)
        with torch.autograd.set_multithreading_enabled(False):
            times["ours, torch, backward in this thread"] = median_ms(lambda: (step(), finish()), seconds)
            times["(s * s).sum(), backward in this thread"] = median_ms(floor, seconds)
        for rule, first in RULES.items():
            captured = our_step(similarity, labels, n_draws, device, first=first, in_graph=True)
            times[f"ours, torch in a graph{rule}"] = graph_ms(captured, seconds)
    return times


def placers(device: str) -> dict[str, Callable[[np.ndarray], Any]]:
    """How each framework gets an array to where it is timed."""

    def to_jax(array: np.ndarray) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(array)

    return {"torch": lambda array: torch.as_tensor(array, device=device), "jax": to_jax}


def in_a_process(*arguments: Any) -> dict[str, float]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(time_one, *arguments).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, help="checkout of the authors' repository")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--points", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--draws", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each timing takes (default: 2)")
    parser.add_argument("--frameworks", nargs="+", choices=["torch", "jax"], help="of ours (default: all installed)")
    parser.add_argument("--out", type=Path, help="a csv file for the times: a line for each contender")
    arguments = parser.parse_args()
    lines = []
    frameworks = arguments.frameworks or [name for name in ("torch", "jax") if importlib.util.find_spec(name)]
    contenders = ["check", "authors", *frameworks] if arguments.reference else frameworks
    print(f"loss and gradient, k={K}, epsilon={EPSILON}, half the points labelled, {arguments.device}")
    for position, (n, n_draws) in enumerate(itertools.product(arguments.points, arguments.draws)):
        options = (n, n_draws, arguments.device, arguments.reference, frameworks, arguments.seconds)
        times = {column: ms for name in contenders for column, ms in in_a_process(name, *options).items()}
        lines += [(arguments.device, n, n_draws, contender, f"{ms:.4g}") for contender, ms in times.items()]
        theirs = {kind: times.pop(f"authors{kind}", None) for kind in ("", COUNTED)}
        if position == 0:
            header = ["n", "draws", "authors", *itertools.chain(*((name, "ratio") for name in times))]
            print("| " + " | ".join(header) + " |\n|" + "---:|" * len(header))
        row = [str(n), str(n_draws), " / ".join(f"{t:.1f} ms" for t in theirs.values() if t)]
        for name, t in times.items():
            reference = theirs[COUNTED if name.endswith(COUNTED) else ""]
            row += [f"{t:.3f} ms", "" if reference is None else f"{reference / t:.0f}x"]
        print("| " + " | ".join(row) + " |", flush=True)
    if arguments.out:
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([("device", "n", "draws", "contender", "ms"), *lines])


if __name__ == "__main__":
    main()
