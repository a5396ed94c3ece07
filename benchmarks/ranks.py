"""How one loss over all ranks scales: measured on gloo processes, modelled for 8 to 1,024 GPUs.

    python benchmarks/ranks.py --out results
    python benchmarks/ranks.py --only model                       # seconds, needs no ranks
    python benchmarks/ranks.py --only gpu --out results           # one GPU: what a rank with few draws takes

Loss and gradient, k=10, half of the rows labelled, 100 draws, 64 dimensions, one thread a process. Before anything is
timed, loss and gradient of every rank are compared with those of one process. A step takes as long as its slowest rank;
of all steps the fastest counts, because others use the machine, too.

Writes scaling.csv and scaling.png, prints tables. With scaling_gpu.csv (from --only gpu) in the folder, the model uses
its times instead of a bound.
"""

import os

os.environ["NUMBA_NUM_THREADS"] = "1"  # read when Numba is imported, in the ranks, too

import argparse
import csv
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import diffclust as dc
from diffclust import distributed

K, EPSILON, DRAWS, DIMENSION = 10, 0.1, 100, 64
PARTS = ("gather", "solve", "reduce")
Times = dict[tuple[int, int], float]  # (n, draws) → ms on one GPU


def table(heads: list[str], rows: list[list[str]]) -> None:
    print("\n| " + " | ".join(heads) + " |\n|" + "---:|" * len(heads))
    for row in rows:
        print("| " + " | ".join(row) + " |")


# ---------------------------------------------------------------------------------------------------------- measured


def make_rows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of ten overlapping classes, and labels of half of them."""
    rng = np.random.default_rng(n)
    truth = rng.integers(0, K, n)
    points = rng.normal(size=(K, DIMENSION))[truth] + rng.normal(size=(n, DIMENSION))
    return torch.tensor(points, dtype=torch.float32), torch.tensor(np.where(rng.random(n) < 0.5, truth, -1))


def make_loss(gather: bool) -> dc.nn.PartialFenchelYoungLoss:
    loss = dc.nn.PartialFenchelYoungLoss(K, epsilon=EPSILON, n_draws=DRAWS, must_link_first=True, seed=0, gather=gather)
    return loss.eval()  # the same draws in every step


def check(ranks: int, points: torch.Tensor, labels: torch.Tensor, mine: slice) -> None:
    whole, local = points.clone().requires_grad_(), points[mine].clone().requires_grad_()
    expected, found = make_loss(False)(whole, labels), make_loss(True)(local, labels[mine])
    gradient = torch.autograd.grad(expected, whole)[0][mine] * ranks  # which DistributedDataParallel divides by
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, local)[0], gradient, rtol=1e-4, atol=1e-6)


def step_in_parts(local: torch.Tensor, labels: torch.Tensor, loss: Any) -> list[float]:
    """Seconds of a step's parts, each after a barrier: none waits for another. And the processor's in solving."""
    times = []

    def part(work: Any) -> Any:
        dist.barrier()
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
        return result

    sizes_of = lambda: distributed.agree(local, labels, loss.noise_seed, loss.noise_counter)  # noqa: E731
    rows, known = part(lambda: distributed.gather_rows(local, labels, sizes_of()))
    leaf = rows.detach().requires_grad_()

    def solve() -> tuple[torch.Tensor, torch.Tensor]:
        start, count = distributed.share_of_draws(DRAWS)
        own = {**loss._draws(leaf), "n_draws": count}
        own["first_draw"] = own["first_draw"] + start
        value = loss._loss(leaf, known, own)
        return value.detach(), torch.autograd.grad(value, leaf)[0]

    busy = time.process_time()
    value, gradient = part(solve)
    busy = time.process_time() - busy
    part(lambda: (distributed.mean_over_ranks(value, 1.0), torch.autograd.grad(rows, local, gradient)))
    return [*times, busy]


def work(rank: int, ranks: int, meeting: str, sizes: list[int], seconds: float, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    for n in sizes:
        points, labels = make_rows(n)
        mine = slice(rank * n // ranks, (rank + 1) * n // ranks)
        check(ranks, points, labels, mine)
        local, known, loss = points[mine].clone().requires_grad_(), labels[mine], make_loss(True)
        # All ranks must take equally many steps.
        start = time.perf_counter()
        torch.autograd.grad(loss(local, known), local)
        n_steps = torch.tensor(max(5, math.ceil(seconds / (time.perf_counter() - start))))
        dist.broadcast(n_steps, src=0)
        times = []
        for _ in range(int(n_steps)):
            dist.barrier()
            start = time.perf_counter()
            torch.autograd.grad(loss(local, known), local)
            times.append([time.perf_counter() - start, *step_in_parts(local, known, loss)])
        slowest = torch.tensor(times)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if rank == 0:
            results[n] = slowest.amin(0).tolist()
    dist.destroy_process_group()


def measure(ranks: int, sizes: list[int], seconds: float) -> dict[int, list[float]]:
    """For each n: seconds of a step, and of its parts."""
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(work, (ranks, f"file://{folder}/ranks", sizes, seconds, results), nprocs=ranks)
        return dict(results)


def measured(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    cores, per_rank = len(os.sched_getaffinity(0)), arguments.rows_per_rank
    rows = []
    for ranks in arguments.ranks:
        sizes = sorted({*arguments.points, per_rank * ranks})
        for n, times in measure(ranks, sizes, arguments.seconds).items():
            named = dict(zip(("seconds", *PARTS, "busy"), times, strict=True))
            rows.append({"ranks": ranks, "n": n, **named, "oversubscribed": ranks > cores})
    one = {row["n"]: row for row in rows if row["ranks"] == 1}

    def line(row: dict[str, Any], base: dict[str, Any], linear: float) -> list[str]:
        mark = "*" if row["oversubscribed"] else ""
        times = [f"{row[name] * 1e3:.2f} ms" for name in ("seconds", *PARTS, "busy")]
        ratios = [f"{base[name] / row[name] * linear:.2f}" for name in ("seconds", "busy")]
        return [f"{row['ranks']}{mark}", str(row["n"]), *times, *ratios]

    heads = ["ranks", "n", "step", *PARTS, "solve, processor time"]
    print(f"\nmeasured: {cores} cores, one thread a rank; * more ranks than cores. Answers equal those of one process.")
    for n in arguments.points:
        table([*heads, "speed-up, step", "processor time"], [line(row, one[n], 1) for row in rows if row["n"] == n])
    weak = [row for row in rows if row["n"] == per_rank * row["ranks"]]
    # n doubles with the ranks, pairs quadruple, so that the work of a rank doubles.
    table(
        [*heads, "rows a second to one rank's", "processor time"],
        [line(row, one[per_rank], row["ranks"]) for row in weak],
    )
    return rows


def measure_gpu(out: Path, seconds: float) -> None:
    """What a rank with a share of 100 draws takes: one GPU with fewer draws."""
    from gpu import loss_step
    from loss import graph_ms

    out.mkdir(parents=True, exist_ok=True)
    with (out / "scaling_gpu.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["n", "draws", "ms"])
        for n in (64, 256, 1024, 4096, 8192):
            for n_draws in (400, 200, 100, 66, 50, 25, 13, 7, 1):
                milliseconds = graph_ms(loss_step(n, n_draws), seconds)
                writer.writerow([n, n_draws, round(milliseconds, 4)])
                print(f"n={n} draws={n_draws}: {milliseconds:.3f} ms", flush=True)


# ---------------------------------------------------------------------------------------------------------- modelled

# Measured on one H200, ms of loss and gradient with 100 draws (results/README.md)
H200 = {
    64: 0.042, 128: 0.072, 256: 0.163, 512: 0.544, 1024: 2.04, 2048: 8.29, 4096: 28.0, 8192: 112.0, 16384: 528.0,
}  # fmt: skip
# Assumed
NODE, NVLINK, INFINIBAND = 8, 450e9, 50e9  # GPUs of a node; bytes a second and GPU, in one direction
HOP = {True: 5e-6, False: 20e-6}  # latency of a collective, times log2 of the ranks: inside a node, between nodes
FLOATS, MEMORY = 50e12, 4e12  # float32 operations and bytes of memory a second, reached
LARGEST = 50_000  # points: their 14 n² floats (results/README.md) fill the memory of a GPU
FULL = 66  # draws that fill the GPU once: two solves each, 132 multiprocessors
LAUNCHES, REACHED = 2e-3, 300e12  # seconds of some 500 kernels that have nothing to do; FLOP/s in half precision
NETWORKS = {  # forward and backward: seconds a step, seconds a row. The numbers are multiply-adds of a forward pass.
    "LeNet, 28 x 28": (0.31e-3, 2.0e-6),  # measured: batches of 64 and 1,024 with cross-entropy, results/README.md
    "ResNet-50, 32 x 32": (LAUNCHES, 3 * 2 * 1.3e9 / REACHED),
    "ResNet-50, 224 x 224": (LAUNCHES, 3 * 2 * 4.1e9 / REACHED),
    "ViT-B/16, 224 x 224": (LAUNCHES, 3 * 2 * 17.5e9 / REACHED),
}
RANKS, MODEL_DIMENSION = (1, 8, 16, 64, 256, 1024), 128


def loss_seconds(n: float) -> float:
    """Of 100 draws on one H200: between two measured sizes a power law, beyond the last n²."""
    largest = max(H200)
    between = math.exp(np.interp(math.log(n), np.log(list(H200)), np.log(list(H200.values()))))
    return between * max(1.0, n / largest) ** 2 * 1e-3


def solve_seconds(n: float, n_draws: int, ranks: int, gpu: Times) -> float:
    """Of the rank with most draws: 100 draws' time, times a factor for its share of them."""
    share = math.ceil(n_draws / ranks)
    if gpu:
        sizes, draws = (sorted(set(axis)) for axis in zip(*gpu, strict=True))
        factors = [np.interp(share, draws, [gpu[size, draw] for draw in draws]) / gpu[size, 100] for size in sizes]
        return loss_seconds(n) * float(np.interp(math.log(n), np.log(sizes), factors))
    if n <= 128:  # one draw takes as long as 100 (measured at n = 64)
        return loss_seconds(n) * max(1.0, share / 100)
    # A draw is solved by one multiprocessor: 100 draws take two turns (seen at n = 8192), 66 and fewer take one.
    return loss_seconds(n) * (0.5 if share <= FULL else max(1.0, share / 100))


def similarity_seconds(n: float, d: int) -> float:
    """Every rank makes all similarities: three products n² d and some twenty passes over n² floats."""
    return 6 * n * n * d / FLOATS + 20 * 4 * n * n / MEMORY


def traffic(n: float, d: int, ranks: int) -> dict[str, tuple[float, float]]:
    """Bytes that a rank receives, and seconds, for each collective of a step."""
    if ranks == 1:
        return dict.fromkeys(("agree", "gather", "loss", "backward"), (0.0, 0.0))
    inside = ranks <= NODE
    share, bandwidth = (ranks - 1) / ranks, NVLINK if inside else INFINIBAND
    latency = HOP[inside] * math.log2(ranks)
    sent = {
        "agree": 40 * ranks * share,
        "gather": n * (4 * d + 8) * share,
        "loss": 8 * share,
        "backward": 4 * n * d * share,
    }
    return {name: (size, latency + size / bandwidth) for name, size in sent.items()}


def break_even(network: tuple[float, float], n_draws: int, ranks: int, gpu: Times) -> float:
    """The largest batch over all ranks in which the loss takes no longer than the network; NaN if there is none."""
    for n in np.geomspace(LARGEST, 64, 2000):
        loss = solve_seconds(n, n_draws, ranks, gpu) + similarity_seconds(n, MODEL_DIMENSION)
        loss += sum(seconds for _, seconds in traffic(n, MODEL_DIMENSION, ranks).values())
        if loss <= network[0] + network[1] * n / ranks:
            return float(n)
    return math.nan


def modelled(gpu: Times) -> None:
    d = MODEL_DIMENSION
    print(f"\nmodelled: H200, {DRAWS} draws, d = {d}; solving: {'measured' if gpu else 'a bound'} for few draws")
    for n in (1024, 4096):
        rows = []
        for ranks in RANKS:
            parts = traffic(n, d, ranks)
            talk = sum(seconds for _, seconds in parts.values())
            compute = solve_seconds(n, DRAWS, ranks, gpu), similarity_seconds(n, d)
            networks = [fixed + row * n / ranks for fixed, row in NETWORKS.values()]
            megabytes = [f"{parts[name][0] / 1e6:.2f}" for name in ("gather", "backward")]
            rows.append([str(ranks), *megabytes, *(f"{t * 1e3:.2f}" for t in (talk, *compute, *networks))])
        print(f"\nn = {n}, milliseconds a step and rank")
        table(["GPUs", "gather MB", "backward MB", "talk", "solve", "similarity", *NETWORKS], rows)

    def said(n: float) -> str:
        return "none" if math.isnan(n) else f"{n:,.0f}" if n < LARGEST else f"{n:,.0f} (memory)"

    print("\nbatch over all ranks at which the loss takes as long as the network")
    table(
        ["GPUs", *NETWORKS, "draws for the time of 66"],
        [
            [str(r), *(said(break_even(network, DRAWS, r, gpu)) for network in NETWORKS.values()), f"{FULL * r:,}"]
            for r in RANKS
        ],
    )


# ------------------------------------------------------------------------------------------------------------ output


def plot(rows: list[dict[str, Any]], largest: int, gpu: Times, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    blue, orange, green, pink, grey = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#777777"
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.9), constrained_layout=True)
    strong = [row for row in rows if row["n"] == largest]
    bottom = np.zeros(len(strong))
    names = {"gather": ("gather", orange), "busy": ("solve, processor time", blue), "reduce": ("reduce", green)}
    for name, (label, colour) in names.items():
        height = np.array([row[name] for row in strong]) * 1e3
        axes[0].bar([f"{row['ranks']}{'*' if row['oversubscribed'] else ''}" for row in strong], height, bottom=bottom,
                    color=colour, label=label)  # fmt: skip
        bottom += height
    axes[0].set(
        title=f"measured: gloo, one thread a rank, n = {largest}",
        xlabel="ranks (* more than cores)",
        ylabel="ms a step",
    )
    axes[0].legend(frameon=False)

    n, ranks = 4096, np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
    network = NETWORKS["ResNet-50, 224 x 224"]
    curves = {
        "network (ResNet-50, 224 x 224)": [(network[0] + network[1] * n / r) for r in ranks],
        "solve, 100 draws": [solve_seconds(n, DRAWS, int(r), gpu) for r in ranks],
        "similarity": [similarity_seconds(n, MODEL_DIMENSION) for _ in ranks],
        "communication": [sum(t for _, t in traffic(n, MODEL_DIMENSION, int(r)).values()) or np.nan for r in ranks],
    }
    for (name, seconds), colour in zip(curves.items(), (grey, blue, pink, orange), strict=True):
        axes[1].loglog(ranks, np.array(seconds) * 1e3, "o-", color=colour, label=name, markersize=3)
    axes[1].set(
        title=f"modelled: H200, n = {n} over all GPUs", xlabel="GPUs", ylabel="ms a step and GPU", ylim=(0.01, 2000)
    )
    axes[1].legend(frameon=False, fontsize=8)

    for (name, cost), colour in zip(NETWORKS.items(), (green, orange, blue, pink), strict=True):
        axes[2].loglog(
            ranks, [break_even(cost, DRAWS, int(r), gpu) for r in ranks], "o-", color=colour, label=name, markersize=3
        )
    axes[2].set(
        title="modelled: where the loss takes as long\nas the network", xlabel="GPUs", ylabel="batch over all GPUs"
    )
    axes[2].legend(frameon=False, fontsize=8)
    for axis in axes[1:]:
        axis.grid(alpha=0.3, which="major")
        axis.set_xticks([1, 8, 64, 1024], ["1", "8", "64", "1,024"])
        axis.minorticks_off()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--points", type=int, nargs="+", default=[256, 1024], help="of strong scaling")
    parser.add_argument("--rows-per-rank", type=int, default=256, help="of weak scaling (default: 256)")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each timing takes, about (default: 3)")
    parser.add_argument("--only", choices=["model", "gpu"])
    parser.add_argument("--out", type=Path, help="folder for scaling.csv and scaling.png")
    arguments = parser.parse_args()
    if arguments.only == "gpu":
        measure_gpu(arguments.out or Path("results"), arguments.seconds)
        return
    path = (arguments.out or Path("results")) / "scaling_gpu.csv"
    gpu = {}
    if path.exists():
        with path.open() as file:
            gpu = {(int(row["n"]), int(row["draws"])): float(row["ms"]) for row in csv.DictReader(file)}
    rows = [] if arguments.only == "model" else measured(arguments)
    modelled(gpu)
    if arguments.out and rows:
        arguments.out.mkdir(parents=True, exist_ok=True)
        with (arguments.out / "scaling.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(
                {**row, **{k: round(v, 6) for k, v in row.items() if isinstance(v, float)}} for row in rows
            )
        plot(rows, max(arguments.points), gpu, arguments.out / "scaling.png")


if __name__ == "__main__":
    main()
