"""Many independent runs of a recipe over a grid of settings, on this machine or as a Slurm job array.

    python -m experiments.sweep mnist --grid n_labels=100,1000 --grid withheld=0,3 --jobs 2
    python -m experiments.sweep mnist --grid n_labels=100,1000 --engine slurm --partition gpu --gpus 1 -- --tiny

Each point of the grid is one ``python -m experiments run NAME --set ... --out FOLDER`` in a folder of its own. The same
command again does what is left: a folder with ``numbers.json`` is finished, one with ``settings.json`` is resumed.
Options after ``--`` are for every run. Failed runs are listed at the end with their logs, and the exit status is 1.
Slurm needs ``pip install submitit``.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

COMMAND = f"{shlex.quote(sys.executable)} -m experiments run"
LOG = "sweep.log"


def grid_points(grid: Iterable[str]) -> list[tuple[str, ...]]:
    """["a=1,2", "b=x"] → [("a=1", "b=x"), ("a=2", "b=x")]"""
    axes = []
    for axis in grid:
        name, equals, values = axis.partition("=")
        if not (name and equals and values):
            raise SystemExit(f"--grid needs SETTING=VALUE,VALUE,..., got {axis!r}.")
        axes.append([f"{name}={value}" for value in values.split(",")])
    return list(itertools.product(*axes))


def folder_of(out: Path, point: tuple[str, ...]) -> Path:
    return out / ("-".join(part.replace("/", "_") for part in point) or "run")


def is_finished(folder: Path) -> bool:
    return (folder / "numbers.json").exists()


def run_one(command: list[str], folder: str) -> int:
    """Run it, with its output in the folder's log; returns its exit status."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    again = ["--resume"] if (path / "settings.json").exists() else []
    with (path / LOG).open("a") as log:
        return subprocess.run([*command, *again], stdout=log, stderr=subprocess.STDOUT, check=False).returncode


def run_here(commands: dict[Path, list[str]], jobs: int, report: Callable[[Path, int], None]) -> None:
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run_one, command, str(folder)): folder for folder, command in commands.items()}
        for future in as_completed(futures):
            report(futures[future], future.result())


def run_on_cluster(
    commands: dict[Path, list[str]],
    jobs: int,
    report: Callable[[Path, int], None],
    out: Path,
    cluster: str,
    **options: object,
) -> None:
    """One job array, ``jobs`` at a time. Waits for all jobs. They continue if this process is stopped."""
    try:
        import submitit
    except ImportError as error:
        raise SystemExit("--engine slurm needs submitit. Install it with: pip install submitit") from error
    executor = submitit.AutoExecutor(folder=out / "submitit", cluster=cluster)
    executor.update_parameters(**options, **({"slurm_array_parallelism": jobs} if cluster == "slurm" else {}))
    submitted = executor.map_array(run_one, list(commands.values()), [str(folder) for folder in commands])
    print(f"submitted {len(submitted)} jobs: {submitted[0].job_id} ..., logs in {out / 'submitit'}", flush=True)
    for folder, job in zip(commands, submitted, strict=True):
        try:
            report(folder, job.result())
        except submitit.core.utils.UncompletedJobError:  # killed, or out of time
            report(folder, 1)


def main(arguments: list[str] | None = None, command: str = COMMAND) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("name", help="the recipe")
    parser.add_argument("--grid", action="append", default=[], metavar="SETTING=VALUE,...", help="may be repeated")
    parser.add_argument("--seeds", help="of every run, e.g. 0,1,2")
    parser.add_argument("--out", type=Path, help="folder of all runs (default: runs/NAME-sweep)")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (default: 1)")
    parser.add_argument("--engine", choices=["local", "slurm"], default="local")
    parser.add_argument("--partition", help="Slurm's")
    parser.add_argument("--gpus", type=int, default=0, help="of a Slurm job (default: 0)")
    parser.add_argument("--cpus", type=int, default=4, help="of a Slurm job (default: 4)")
    parser.add_argument("--hours", type=float, default=12, help="of a Slurm job at most (default: 12)")
    words = sys.argv[1:] if arguments is None else arguments
    end = words.index("--") if "--" in words else len(words)
    given, of_each = parser.parse_args(words[:end]), words[end + 1 :]
    out = given.out or Path("runs", f"{given.name}-sweep")

    commands = {}
    for point in grid_points(given.grid):
        folder = folder_of(out, point)
        settings = [word for part in point for word in ("--set", part)]
        seeds = ["--seeds", given.seeds] if given.seeds else []
        commands[folder] = [*shlex.split(command), given.name, *seeds, *settings, "--out", str(folder), *of_each]
    left = {folder: words for folder, words in commands.items() if not is_finished(folder)}
    print(f"{len(commands)} runs, {len(commands) - len(left)} finished before", flush=True)
    failed = []

    def report(folder: Path, status: int) -> None:
        done = status == 0 and is_finished(folder)
        print(f"{'done' if done else 'FAILED'}: {folder}", flush=True)
        if not done:
            failed.append(folder)

    if left and given.engine == "local":
        run_here(left, given.jobs, report)
    elif left:
        wanted = {"slurm_partition": given.partition, "gpus_per_node": given.gpus, "cpus_per_task": given.cpus}
        options = {name: value for name, value in wanted.items() if value}
        run_on_cluster(left, given.jobs, report, out, "slurm", timeout_min=int(given.hours * 60), **options)
    if failed:
        print(f"{len(failed)} of {len(left)} runs failed:", *(f"  {folder / LOG}" for folder in failed), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
