"""``training.fit`` on a GPU: the captured step against single steps, its time beside ``fit_many``'s, and a cold start.

    PYTHONPATH=src python benchmarks/fit_gpu.py            # about five minutes
    PYTHONPATH=src python benchmarks/fit_gpu.py 3 7        # two of the sections

The digits and the CNN of `make demo`. Seven sections, each with what to expect:

1. Agreement: losses of the first steps, and k-means of the embeddings, captured and one by one.
2. Times in one process after a first call, best of three: fit / fit_many of one network is to be at most 1.2.
3. The first call in a fresh process, cut into its parts; with Triton's cache empty and full, kernels compiled ahead in
   threads and one after the other at their first launch. A training of 300 steps with checkpoints, as the command does
   it, is to take under 3 s, and its losses are to be the same bits each time.
4. The kernels of a captured step.
5. A training with the cuDNN benchmark that `fit_many` switches on and `fit` does not.
6. LeNet steps (`benchmarks/gpu.py --lenet`), with Triton's kernels of the similarity and with torch's. Goals for "our
   loss": batch 64 at most 1.10, 256 1.15, 1024 1.3.
7. NCCL on one GPU: what a CUDA graph holds of one rank's collectives, and what two ranks on one GPU are told.
"""

import argparse
import dataclasses
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

AFTER_TORCH = time.perf_counter()

from diffclust import cli, training  # noqa: E402
from diffclust.training import steps as steps_of_training  # noqa: E402

AFTER_IMPORTS = time.perf_counter()


def make_config(n_steps: int, **changes: Any) -> training.TrainingConfig:
    return training.TrainingConfig(n_clusters=10, n_steps=n_steps, device="cuda", **changes)


def train(n_steps: int, many: bool = False, folder: str | None = None, **changes: Any) -> training.ForestModule:
    table, _ = cli.digits(0)
    config = make_config(n_steps, **changes)
    if many:
        return training.fit_many([config], table.features, [table.labels], progress=False)[0]
    return training.fit(config, table.features, table.labels, progress=False, folder=folder)


def seconds(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def agreement() -> None:
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score

    table, truth = cli.digits(0)
    found = {}
    for name, capture in (("captured", True), ("one by one", False)):
        module = train(300, capture=capture)
        clusters = KMeans(10, n_init=5, random_state=0).fit_predict(training.embed(module, table.features))
        found[name] = module.loss_curve, clusters
        print(f"| {name} | {module.not_captured or '-'} | {adjusted_rand_score(truth, clusters):.3f} |")
    (a, first), (b, second) = found.values()
    gap = np.abs(a - b) / np.abs(b)
    print(f"relative difference of losses: first 5 steps {gap[:5].max():.1e}, first 20 {gap[:20].max():.1e}")
    print(f"ARI of the two clusterings with each other: {adjusted_rand_score(first, second):.3f}")
    print("EXPECTED: not_captured is '-' where captured; first 5 below 1e-2; both ARI within 0.05 of each other")


def warm_times() -> None:
    train(20), train(20, many=True)
    print("| steps | fit | fit_many of one | ratio |\n|---:|---:|---:|---:|")
    for n_steps in (300, 1500):
        fit, many = (min(seconds(lambda: train(n_steps, many=m)) for _ in range(3)) for m in (False, True))  # noqa: B023
        print(f"| {n_steps} | {fit:.2f} s | {many:.2f} s | {fit / many:.2f} |", flush=True)
    print(f"step by step (capture=False): 300 steps {seconds(lambda: train(300, capture=False)):.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        as_command = seconds(lambda: train(300, folder=folder, validate_every=15))
    print(f"as the command trains, a checkpoint every 15 steps: 300 steps {as_command:.2f} s")


def compile_at_first_launch() -> None:
    """Kernels as they were compiled before: one after the other, others for losses without a gradient."""
    from diffclust.solvers import cuda
    from diffclust.solvers.kernels import ahead

    training.loop._get_ready = lambda *problem: None
    ahead.start_triton = lambda: []
    cuda.COUNTED = 0


def cold(how: str, folder: str) -> None:
    """In a process of its own: where the first seconds go."""
    many = how == "many"
    if how == "before":
        compile_at_first_launch()
    logging.basicConfig()
    for logger in ("diffclust.cuda", "diffclust.training"):
        logging.getLogger(logger).setLevel(logging.DEBUG)  # what was not compiled ahead
    torch.backends.cudnn.deterministic = True  # so that losses can be compared
    now = time.perf_counter
    marks: list[tuple[str, float]] = [("import torch", AFTER_TORCH), ("import diffclust.training", AFTER_IMPORTS)]

    def mark(name: str) -> None:
        torch.cuda.synchronize()
        marks.append((name, now()))

    cli.digits(0)
    marks.append(("digits", now()))
    torch.zeros(1, device="cuda")
    mark("CUDA context")
    Steps = steps_of_training.Steps
    prepare, take, capture, run = Steps.__init__, Steps._take_step, Steps._capture, Steps.run

    def marked(function: Callable[..., Any], name: str, before: str | None = None) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if before is not None:
                mark(before)
            result = function(*arguments, **options)
            mark(name)
            return result

        return wrapped

    ranks = training.ranks
    ranks.make_trainer = marked(ranks.make_trainer, "trainer", "data, network")
    Steps.__init__ = marked(prepare, "rows to the device", "Lightning's setup")  # type: ignore[method-assign]
    Steps._take_step = marked(take, "a step without graph")  # type: ignore[method-assign]
    Steps._capture = marked(capture, "capture")  # type: ignore[method-assign]
    Steps.run = marked(run, "replays of a block")  # type: ignore[method-assign]
    start = now()
    module = train(300, many=many, folder=None if many else folder, validate_every=100 if many else 15)
    mark("last checkpoint, back to the CPU")
    name, steps = "fit_many" if many else "fit", module.not_captured or "captured"
    print(f"training.{name}: {now() - start:.2f} s for 300 steps, {steps}")
    threads = [each.name for each in threading.enumerate() if each.name.startswith("diffclust-compile")]
    print(f"    threads left: {threads}; kernels in the cache: {len(cubins())}")
    measured = [each["loss"] for each in module.final_noise_losses]
    np.savez(Path(folder) / "losses.npz", curve=module.loss_curve, measured=measured)
    spent: dict[str, list[float]] = defaultdict(list)
    before = STARTED
    for name, at in marks:
        spent[name].append(at - before)
        before = at
    for name, times in spent.items():
        shown = ", ".join(f"{each:.3f}" for each in times[:4]) + (
            f" ... sum {sum(times):.3f}" if len(times) > 4 else ""
        )
        print(f"    {name:38} {shown} s", flush=True)


def cubins() -> list[Path]:
    return list(Path(os.environ["TRITON_CACHE_DIR"]).glob("*/*.cubin"))


def cold_starts() -> None:
    found: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
    with tempfile.TemporaryDirectory() as caches:
        # The first process reads torch's libraries from the disk.
        for name, how, cache in (
            ("first process, empty", "before", "first"),
            ("empty, as before", "before", "before"),
            ("full, as before", "before", "before"),
            ("empty", "ahead", "ahead"),
            ("full", "ahead", "ahead"),
            ("empty, again", "ahead", "again"),
            ("full, again", "ahead", "again"),
            ("full, fit_many", "many", "ahead"),
        ):
            print(f"\nTriton's cache {name}:", flush=True)
            environment = {**os.environ, "TRITON_CACHE_DIR": f"{caches}/{cache}"}
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, __file__, "--cold", how, "--folder", folder]
                subprocess.run(command, env=environment, timeout=100, check=True)
                with np.load(f"{folder}/losses.npz") as file:
                    found[name] = file["curve"], file["measured"]
    del found["full, fit_many"]  # it chooses other convolutions
    curve, measured = found["empty, as before"]
    for name, (other, at_final_noise) in found.items():
        n_same = int((curve == other).cumprod().sum())
        same = np.array_equal(measured, at_final_noise)
        print(f"{name}: the same bits in the first {n_same} of {len(curve)} losses; all at the final noise: {same}")
    print("EXPECTED: under 3 s for fit with a full cache, and with an empty one; no threads left; all losses the same")


def kernels() -> None:
    from torch.profiler import ProfilerActivity, profile

    train(20)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        train(80, noise_start=1.0)  # no losses at the final noise between the steps
    averages = sorted(profiled.key_averages(), key=lambda each: -each.self_device_time_total)
    total = sum(each.self_device_time_total for each in averages)
    print(
        f"{sum(each.count for each in averages) / 80:.0f} kernels and copies a step, {total / 80 / 1000:.3f} ms of them"
    )
    for each in averages[:25]:
        print(f"    {each.count / 80:6.2f} a step {each.self_device_time_total / 80:8.1f} us  {each.key[:90]}")


def cudnn() -> None:
    for benchmark in (False, True):
        torch.backends.cudnn.benchmark = benchmark
        print(f"cudnn.benchmark={benchmark}: 1,500 steps {min(seconds(lambda: train(1500)) for _ in range(2)):.2f} s")
    torch.backends.cudnn.benchmark = False


def lenet() -> None:
    import gpu
    from diffclust import similarity

    gpu.lenet_table(0.3)
    print("\nwithout the kernels of solvers/cuda/similarity.py:")
    similarity.kernels_for = lambda embeddings: None
    gpu.lenet_table(0.3)


def nccl() -> None:
    print("one rank, all_reduce and all_gather in a CUDA graph:", flush=True)
    run_ranks(1)
    print("two ranks on one GPU:", flush=True)
    run_ranks(2)
    print("EXPECTED: one rank replays its graph; two ranks are refused (duplicate GPU)")


def run_ranks(n: int) -> None:
    """Starts ``n`` ranks of this script, and prints what they say or that they hang."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--ranks", str(n), "--folder", folder, "--rank"]
        started = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank in range(n)
        ]
        for rank, process in enumerate(started):
            try:
                said = process.communicate(timeout=90)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                said = "no answer within 90 s\n" + process.communicate()[0]
            lines = said.strip().splitlines()
            print(*(f"    rank {rank}: {line[:300]}" for line in lines[-12:]), sep="\n", flush=True)


def be_rank(rank: int, n: int, folder: str) -> None:
    """In a process of its own: collectives, then the same in a graph that is replayed; results are checked."""
    import datetime

    from torch import distributed

    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    store, patience = f"file://{folder}/store", datetime.timedelta(seconds=30)
    try:
        torch.cuda.set_device(0)
        distributed.init_process_group("nccl", init_method=store, rank=rank, world_size=n, timeout=patience)
        given, total = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
        parts = torch.zeros(n, 1000, device="cuda")

        def collect() -> None:
            total.copy_(given * 2)
            distributed.all_reduce(total)
            distributed.all_gather_into_tensor(parts, given)

        collect()  # the first call makes the communicator, which a capture may not
        torch.cuda.synchronize()
        print(f"NCCL {torch.cuda.nccl.version()}, not captured: works", flush=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            collect()
        right = []
        for replay in range(1, 4):
            given.fill_(replay + rank)
            graph.replay()
            torch.cuda.synchronize()
            sums, each = sum(2 * (replay + r) for r in range(n)), torch.arange(n, device="cuda") + replay
            right.append(bool((total == sums).all()) and bool((parts == each[:, None]).all()))
        print(f"captured: {len(right)} replays, right: {right}", flush=True)
        del graph
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)  # a group that failed may not end
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", type=int, default=range(1, 8), metavar="SECTION")
    parser.add_argument("--cold", choices=("before", "ahead", "many"), help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cold is not None:
        cold(arguments.cold, arguments.folder)
        return
    if arguments.rank is not None:
        be_rank(arguments.rank, arguments.ranks, arguments.folder)
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {dataclasses.asdict(make_config(300))}\n")
    sections = (agreement, warm_times, cold_starts, kernels, cudnn, lenet, nccl)
    for number, section in enumerate(sections, 1):
        if number not in arguments.sections:
            continue
        print(f"\n--- {number}. {section.__name__} ({time.perf_counter() - STARTED:.0f} s)", flush=True)
        try:
            section()
        except Exception as error:  # the other sections are worth their time
            print(f"FAILED: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
