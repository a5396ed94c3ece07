"""The rows of a file → their clusters, a piece at a time, so that the file may be larger than the memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from diffclust.files import replaced_atomically
from diffclust.runs.folder import FILES
from diffclust.runs.results import Placed, Run, clusters_csv
from diffclust.tables import read_pieces
from diffclust.tables.table import ending
from diffclust.tables.texts import TextColumn

PIECE_ROWS = 65_536


def place_file(
    run: Run,
    data: Path,
    out: Path | None = None,
    *,
    labels: str | None = None,
    model: str | None = None,
    progress: bool = False,
    say: Callable[[str], None] = print,
) -> tuple[int, int]:
    """Places the rows of a file in the clusters of a run, and writes a table of them.

    Args:
        run: a finished run.
        data: new rows, in any form that :func:`diffclust.tables.read_table` takes. Files of .csv, .tsv, .parquet and
            .npy are read in pieces of 65,536 rows.
        out: a .parquet file, or else a .csv file; None prints.
        labels: a column that is left out.
        model: the model that read the texts of the run; it has to be named again where it is a folder.
        progress: show a progress bar.
        say: called with sentences about what was not as in the table of the run, once for each column.

    Returns:
        The number of rows, and how many of them are unlike anything in the run.

    Raises:
        ValueError: ``out`` has another ending, or is the file of the new rows or one of the run.
    """
    if out is not None:
        _check_out(run, data, out)
    from tqdm import tqdm

    encoding = run.encoding
    text = TextColumn.from_dict(encoding, model) if encoding["kind"] == "text" else None
    n_rows = n_unlike = 0
    said = set()
    with _writer(run, out) as write, tqdm(unit=" rows", disable=not progress, delay=1) as bar:
        for table in read_pieces(data, labels, PIECE_ROWS, text=text, encoding=encoding):
            for sentence in table.sentences:
                about = sentence.partition(":")[0]
                if about not in said:
                    said.add(about)
                    say(sentence)
            placed = run.place(table.features)
            write(placed, table.row_names, n_rows)
            n_rows += len(table)
            n_unlike += int(placed.unlike.sum())
            bar.update(len(table))
    return n_rows, n_unlike


def _check_out(run: Run, data: Path, out: Path) -> None:
    if ending(out) not in (".csv", ".parquet", ""):
        raise ValueError(f"Cannot write {ending(out)}: {out} must be a .csv or .parquet file.")
    read = (path.resolve() for path in (data, *(run.folder / name for name in FILES)))
    if out.resolve() in read:
        raise ValueError(f"{out} is read here, and would be overwritten: name another file.")


@contextmanager
def _writer(run: Run, out: Path | None) -> Iterator[Callable[[Placed, Any, int], Any]]:
    """A function (placed, row names, number of the first row) that writes the lines of one piece."""

    def csv_lines(placed: Placed, row_names: Any, first_row: int) -> str:
        numbers = placed.clusters, placed.confidence, placed.novelty
        return clusters_csv(run.names, *numbers, row_names, first_row, unlike=placed.unlike.astype(int))

    if out is None:
        yield lambda *piece: sys.stdout.write(csv_lines(*piece))
        return
    with replaced_atomically(out) as path:
        if ending(out) == ".parquet":
            with _parquet_writer(path) as write:
                yield lambda placed, row_names, first_row: write(run.placed_columns(placed, row_names), first_row)
        else:
            with path.open("w", encoding="utf-8", newline="") as file:
                yield lambda *piece: file.write(csv_lines(*piece))


@contextmanager
def _parquet_writer(path: Path) -> Iterator[Callable[[dict[str, Any], int], None]]:
    """A function (columns, number of the first row) that adds a row group to a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with ExitStack() as opened:
        writer: Any = None

        def write(columns: dict[str, Any], first_row: int) -> None:
            nonlocal writer
            piece = pa.table({"row": range(first_row, first_row + len(columns["cluster"])), **columns})
            if writer is None:
                writer = opened.enter_context(pq.ParquetWriter(path, piece.schema))
            writer.write_table(piece)

        yield write
