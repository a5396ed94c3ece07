"""Time and memory of ``diffclust cluster`` on a file of many rows, which is read and written in pieces.

    python benchmarks/place.py --rows 1000000 4000000 --out results/place.csv

Rows of 16 floats in ten overlapping classes, in a .parquet file. The run that they are placed in has 20,000 rows, and
is trained for ten steps only: placing takes as long however well it is trained. Each file is placed by a process of its
own, by the command line. Times are processor time; the peak is that of the resident memory.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

N_COLUMNS, N_CLASSES, N_FITTED, PIECE = 16, 10, 20_000, 500_000


def write_rows(path: Path, n_rows: int, seed: int, *, labels: bool = False) -> None:
    """A .parquet file of points; with labels, one row in fifty has one."""
    rng = np.random.default_rng(seed)
    centres = 3 * np.random.default_rng(0).normal(size=(N_CLASSES, N_COLUMNS))
    writer = None
    for first in range(0, n_rows, PIECE):
        truth = rng.integers(0, N_CLASSES, min(PIECE, n_rows - first))
        points = (centres[truth] + rng.normal(size=(len(truth), N_COLUMNS))).astype(np.float32)
        columns = {f"x{i}": points[:, i] for i in range(N_COLUMNS)}
        if labels:
            columns["kind"] = [f"class {c}" if i % 50 == 0 else "" for i, c in enumerate(truth)]
        piece = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, piece.schema)
        writer.write_table(piece)
    writer.close()


def measured(*arguments: object) -> tuple[float, float]:
    """Seconds of processor time and GB of resident memory of the command line, in a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", "diffclust", *map(str, arguments)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("diffclust failed; nothing is written.")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--out", type=Path, help="a csv file for the numbers")
    arguments = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "sample.parquet", N_FITTED, seed=1, labels=True)
        fit = ["--labels", "kind", "--clusters", N_CLASSES, "--steps", 10, "--cut", "forest", "--out", folder / "run"]
        measured("fit", folder / "sample.parquet", *fit, "--quiet")
        for n_rows in arguments.rows:
            write_rows(folder / "big.parquet", n_rows, seed=2)
            seconds, peak = measured(
                "cluster", folder / "run", folder / "big.parquet", "--out", folder / "placed.parquet"
            )
            size = (folder / "placed.parquet").stat().st_size / 1e6
            lines.append((n_rows, f"{seconds:.0f}", f"{n_rows / seconds:.0f}", f"{peak:.2f}", f"{size:.0f}"))
            print(json.dumps(lines[-1]), flush=True)
    if arguments.out:
        header = ("rows", "processor_seconds", "rows_per_second", "peak_GB", "output_MB")
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *lines])


if __name__ == "__main__":
    main()
