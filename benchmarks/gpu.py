"""How the loss scales on a GPU: in points, draws and problems; its memory; and a LeNet step with it and without.

    python benchmarks/gpu.py --out results
    python benchmarks/gpu.py --lenet        # only the LeNet steps

Loss and gradient, k=10, half of the points labelled, epsilon 0.1; must-links first, unless it says "one pass". With
views, every second point is the other view of the one before it. Times are medians of CUDA graph replays, by events.
Answers are compared with the CPU solver's before anything is timed. Writes gpu.csv, gpu.png and prints tables.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import diffclust as dc
from diffclust.noise import Draws
from diffclust.solvers import Request, cpu, cuda
from loss import EPSILON, K, graph_ms, make_problem

RULES = {  # name → (must_link_first, with views)
    "must-links first": (True, False),
    "one pass": (False, False),
    "one pass, views": (False, True),
}


def knowledge(labels: np.ndarray, views: bool) -> dict[str, np.ndarray]:
    """What a solver is told: labels; or the relation of labels and of views, which share what is known."""
    if not views:
        return {"labels": labels}
    row = np.arange(len(labels)) // 2 * 2  # a point and its other view
    closure = np.where(labels[row] >= 0, labels[row], K + row)
    known = closure < K
    apart = np.where(known[:, None] & known[None, :], 0, -1)
    return {"relation": np.where(closure[:, None] == closure[None, :], 1, apart).astype(np.int8)}


def check(n: int, rule: str, n_draws: int = 10) -> None:
    """The same forests, edge for edge, as on the CPU."""
    similarity, labels = make_problem(n)
    must_link_first, views = RULES[rule]
    known = {name: array[None] for name, array in knowledge(labels, views).items()}
    draws = Draws(seed=7, n_draws=n_draws, epsilon=EPSILON)
    request = Request(similarity[None], K, **known, must_link_first=must_link_first, draws=draws, detail="forests")
    expected = cpu.solve(request)
    on_device = {name: torch.as_tensor(array, device="cuda") for name, array in known.items()}
    found = cuda.solve(request._replace(similarity=torch.as_tensor(similarity[None], device="cuda"), **on_device))
    if not np.array_equal(found.edges.cpu().numpy(), expected.edges):
        raise SystemExit(f"n={n}, {rule}: the forests differ from the CPU solver's, nothing is timed.")


def loss_step(n: int, n_draws: int, n_problems: int = 1, rule: str = "must-links first") -> Callable[[], object]:
    similarity, labels = make_problem(n)
    must_link_first, views = RULES[rule]
    shape = (n_problems,) if n_problems > 1 else ()
    points = torch.as_tensor(similarity, device="cuda").expand(*shape, n, n).contiguous().requires_grad_()
    ((form, known),) = knowledge(labels, views).items()
    placed = torch.as_tensor(known, device="cuda").expand(*shape, *known.shape).contiguous()
    counter = torch.zeros((), dtype=torch.int64, device="cuda")

    def step() -> torch.Tensor:
        loss = dc.partial_fenchel_young_loss(
            points, dc.Constraints(**{form: placed}), K, epsilon=EPSILON, n_draws=n_draws, seed=counter.add_(1),
            must_link_first=must_link_first,
        )  # fmt: skip
        return torch.autograd.grad(loss, points)[0]

    return step


def peak_bytes(step: Callable[[], object]) -> int:
    """What a step allocates beyond what was there before it."""
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64 * 49, 256), nn.ReLU(), nn.Linear(256, 256),
    ).cuda()  # fmt: skip


def lenet_ms(loss: nn.Module, batch_size: int, seconds: float) -> float:
    """One captured training step, Adam included, with our loss or with a classifier and cross-entropy."""
    torch.manual_seed(0)
    is_classifier = isinstance(loss, nn.CrossEntropyLoss)
    network = nn.Sequential(lenet(), nn.ReLU(), nn.Linear(256, 10).cuda()) if is_classifier else lenet()
    criterion = loss.cuda()
    optimiser = torch.optim.Adam(network.parameters(), 3e-4, capturable=True, fused=True)
    images = torch.randn(batch_size, 1, 28, 28, device="cuda")
    labels = torch.randint(0, 10, (batch_size,), device="cuda")

    def step() -> None:
        optimiser.zero_grad(set_to_none=False)
        criterion(network(images), labels).backward()
        optimiser.step()

    return graph_ms(step, seconds)


def lenet_table(seconds: float) -> None:
    """A step with our loss as it is by default, and as the paper has it, beside one with cross-entropy."""
    ours = {
        "our loss": dc.nn.PartialFenchelYoungLoss(K),
        "must-links first, 100 draws": dc.nn.PartialFenchelYoungLoss(
            K, epsilon=EPSILON, n_draws=100, must_link_first=True
        ),
    }
    print("\n| LeNet step, captured | cross-entropy | " + "".join(f"{name} | ratio | " for name in ours).strip())
    print("|---|" + "---:|" * (1 + 2 * len(ours)))
    for batch_size in (64, 256, 1024):
        plain = lenet_ms(nn.CrossEntropyLoss(), batch_size, seconds)
        times = [lenet_ms(loss, batch_size, seconds) for loss in ours.values()]
        cells = "".join(f" {each:.3f} ms | {each / plain:.2f} |" for each in times)
        print(f"| batch of {batch_size} | {plain:.3f} ms |{cells}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each timing takes (default: 0.5)")
    parser.add_argument("--largest", type=int, default=16384, help="largest number of points")
    parser.add_argument("--lenet", action="store_true", help="only the LeNet steps")
    arguments = parser.parse_args()
    if arguments.lenet:
        lenet_table(arguments.seconds)
        return
    device = torch.cuda.get_device_name()
    for n in (2, 3, 17, 64, 255, 256, 1000):
        for rule in RULES:
            check(n, rule)
    print(f"{device}: forests equal to the CPU solver's, edge for edge")

    rows: list[dict[str, object]] = []

    def measure(kind: str, n: int, n_draws: int, n_problems: int = 1, rule: str = "must-links first") -> None:
        step = loss_step(n, n_draws, n_problems, rule)
        memory = peak_bytes(step)
        torch.cuda.empty_cache()
        milliseconds = graph_ms(step, arguments.seconds)
        rows.append(
            {"kind": kind, "points": n, "draws": n_draws, "problems": n_problems, "ms": round(milliseconds, 4),
             "peak_MiB": round(memory / 2**20, 2)}
        )  # fmt: skip
        print(f"| {kind} | {n} | {n_draws} | {n_problems} | {milliseconds:.4f} | {memory / 2**20:.1f} |", flush=True)

    print("\n| scan | points | draws | problems | ms | peak MiB |\n|---|---:|---:|---:|---:|---:|")
    for exponent in range(6, 15):
        if 2**exponent <= arguments.largest:
            measure("points", 2**exponent, 100)
    for rule in ("one pass", "one pass, views"):
        for n in (64, 256, 1024, 2048):
            if n <= arguments.largest:
                measure(rule, n, 100, rule=rule)
    for n_draws in (1, 10, 100, 1000, 10000):
        measure("draws", 64, n_draws)
    for n_problems in (1, 2, 4, 8, 16, 32, 64):
        measure("problems", 64, 100, n_problems)

    lenet_table(arguments.seconds)

    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "gpu.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    plot(rows, device, arguments.out / "gpu.png")


def plot(rows: list[dict[str, object]], device: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), constrained_layout=True)
    for axis, kind in zip(axes, ("points", "draws", "problems"), strict=True):
        chosen = [row for row in rows if row["kind"] == kind]
        axis.loglog([row[kind] for row in chosen], [row["ms"] for row in chosen], "o-", color="#0072B2")
        axis.set_xlabel(kind)
        axis.set_ylabel("ms, loss and gradient")
        axis.grid(alpha=0.3, which="both")
    axes[0].set_title("100 draws")
    axes[1].set_title("64 points")
    axes[2].set_title("64 points, 100 draws")
    figure.suptitle(f"{device}, CUDA graph replay")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
