"""ForestEmbedding with all cores and with one thread, alone and beside busy processes: wall, processor time.

    python benchmarks/threads.py --busy 0 4                   # the digits
    python benchmarks/threads.py --busy 0 4 --rows 19000      # ten blobs in 30 dimensions

Settings take turns, each in a process of its own, and labels must be the same. "One thread" is OMP_NUM_THREADS=1 and
NUMBA_NUM_THREADS=1, with which there are no processes beside the main one. The processor time is that of all of them.
A busy process is a loop of Python. Times are of the fit alone, after a short one that compiles.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def measure(n_steps: int, images: bool, n_rows: int) -> dict[str, object]:
    import numpy as np
    from sklearn.datasets import load_digits, make_blobs

    from diffclust.cluster import ForestEmbedding

    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 8, 8) if images else x
    if n_rows:
        x, y = make_blobs(n_rows, 30, centers=10, cluster_std=4.0, random_state=0)
    known = np.where((np.random.default_rng(0).random(len(y)) < 0.1) & (y < 5), y, -1)
    ForestEmbedding(10, n_steps=2, random_state=0).fit(x, known)
    wall, before = time.perf_counter(), processor_times()
    labels = ForestEmbedding(10, n_steps=n_steps, random_state=0).fit_predict(x, known)
    return {
        "wall": time.perf_counter() - wall,
        "processor": sum(processor_times()) - sum(before),
        "in forks": processor_times()[1] - before[1],
        "labels": labels.tolist(),
    }


def processor_times() -> tuple[float, float]:
    """Seconds of this process, and of those that it started and that have ended."""
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime, others.ru_utime + others.ru_stime


def in_a_process(n_steps: int, images: bool, n_rows: int, settings: dict[str, str]) -> dict[str, object]:
    command = [sys.executable, __file__, "--measure", "--steps", str(n_steps), "--rows", str(n_rows)]
    command += ["--images"] if images else []
    return json.loads(subprocess.check_output(command, env={**os.environ, **settings}).splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 4], help="numbers of busy processes beside it")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", action="store_true", help="a convolutional network in place of a dense one")
    parser.add_argument("--rows", type=int, default=0, help="so many rows of blobs in place of the digits")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.steps, arguments.images, arguments.rows)))
        return
    print("| busy processes | threads | wall | processor | of it in forks |\n|---:|---|---:|---:|---:|")
    for n_busy in arguments.busy:
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_busy)]
        try:
            found = [
                [
                    in_a_process(arguments.steps, arguments.images, arguments.rows, settings)
                    for settings in ({}, ONE_THREAD)
                ]
                for _ in range(arguments.repeats)
            ]
        finally:
            for process in busy:
                process.kill()
        if len({str(each["labels"]) for pair in found for each in pair}) > 1:
            raise SystemExit("The clusters depend on the number of threads: no times are given.")
        for name, of in zip(("all", "one"), zip(*found, strict=True), strict=True):
            times = [statistics.median(each[time] for each in of) for time in ("wall", "processor", "in forks")]
            print(f"| {n_busy} | {name} | " + " | ".join(f"{time:.2f} s" for time in times) + " |", flush=True)


if __name__ == "__main__":
    main()
