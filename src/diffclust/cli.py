"""The command line: ``diffclust fit`` and ``diffclust cluster``. Errors are one sentence and exit code 2."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as RichTable

import diffclust
from diffclust.tables import Table, read_pairs, read_table

app = typer.Typer(
    help="Clustering you can train through: a table and a few labels in, clusters and a report out.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
console = Console(stderr=True, highlight=False)
WITHHELD_DIGITS = (7, 8, 9)


def run() -> None:
    """The program. What a user can mend is one sentence; what we must mend is a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        _fail("Interrupted. Go on with the same command and --resume.", 130)
    except (ValueError, TypeError, FloatingPointError) as error:
        if os.environ.get("DIFFCLUST_TRACEBACK"):
            raise
        _fail(str(error))
    except OSError as error:
        if os.environ.get("DIFFCLUST_TRACEBACK"):
            raise
        where = f" {error.filename}" if error.filename else ""
        full = "The disk is full:" if error.errno == errno.ENOSPC else "Cannot read or write"
        _fail(f"{full}{where}: {error.strerror or error}.")


def _fail(message: str, code: int = 2) -> None:
    console.print(f"[bold red]Error:[/] {_escape(message)}", soft_wrap=True)
    sys.exit(code)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"diffclust {diffclust.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _check_clusters(value: str | None) -> str | None:
    if value is not None and value != "auto" and not (value.isdigit() and int(value) >= 1):
        raise typer.BadParameter(f"must be a number from 1, or auto, got {value!r}.")
    return value


@app.command()
def fit(
    data: Annotated[
        Path | None,
        typer.Argument(
            help="A .npy, .npz, .csv, .tsv or .parquet file, or a folder of .npy files. Without: handwritten digits.",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="A column of the table, or a file with a label for each row. Blank or -1 is unknown."),
    ] = None,
    must_link: Annotated[
        Path | None, typer.Option(help="File of pairs of row numbers (from 0) that belong together.")
    ] = None,
    cannot_link: Annotated[Path | None, typer.Option(help="File of pairs that belong apart.")] = None,
    clusters: Annotated[
        str | None,
        typer.Option(
            callback=_check_clusters,
            help="How many, or [b]auto[/], the default. More than there are labelled classes finds new ones.",
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(help="linear, mlp, cnn or package.module:attribute. Default: cnn for images, mlp for tables."),
    ] = None,
    epsilon: Annotated[
        float, typer.Option(min=1e-6, help="Size of the noise that makes the forest differentiable.")
    ] = 0.5,
    draws: Annotated[int, typer.Option(min=1, help="Draws of noise in a training step.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 300,
    batch_size: Annotated[int, typer.Option(min=2, help="Rows of a training step.")] = 256,
    min_cluster_size: Annotated[
        int | None,
        typer.Option(min=1, help="Smallest new cluster. Default: a third of the average one.", show_default=False),
    ] = None,
    holdout: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of the labels kept back to score the result by.")
    ] = 0.2,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same clusters.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("diffclust-run"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, only the table at the end.")] = False,
) -> None:  # fmt: skip
    """Train an embedding on a table and the labels of some rows, cluster all rows, write a report.

    With no DATA it runs on the handwritten digits that ship with scikit-learn, of which 100 labels are known and three
    digits have none. Try: [b]diffclust fit[/]
    """
    from diffclust import training
    from diffclust.runs import fit_run

    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"--device must be auto, cpu or cuda, got {device!r}.")
    truth = None
    if data is None:
        if labels or must_link or cannot_link:
            raise ValueError("Labels and pairs are about your own DATA: name its file first.")
        table, truth = digits(seed)
        title = "Handwritten digits: 100 labels, three digits never labelled"
        clusters = clusters or "10"
    else:
        table = read_table(data, labels)
        title = f"{data.name}: clusters by diffclust"
    pairs: dict[str, Any] = {
        name: read_pairs(path, len(table)) if path else []
        for name, path in (("must_link", must_link), ("cannot_link", cannot_link))
    }
    image = table.features.ndim > 2
    big_enough = image and min(table.features.shape[1:3]) >= 8
    config = training.TrainingConfig(
        n_clusters=1, backbone=backbone or ("cnn" if big_enough else "mlp"), epsilon=epsilon, n_draws=draws,
        max_steps=steps, batch_size=batch_size, accelerator=device, seed=seed,
    )  # fmt: skip
    result = fit_run(
        table, config, out, n_clusters=None if clusters in (None, "auto") else int(clusters), truth=truth,
        holdout=holdout, min_cluster_size=min_cluster_size, resume=resume, progress=not quiet, title=title,
        say=(lambda text: None) if quiet else console.print, **pairs,
    )  # fmt: skip
    _print_result(result, sys.stdout)


def digits(seed: int) -> tuple[Table, NDArray[np.int64]]:
    """scikit-learn's digits as images, the labels of 100 of seven digits, and all labels."""
    from sklearn.datasets import load_digits

    images, truth = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    seen = np.setdiff1d(np.arange(10), WITHHELD_DIGITS)
    known = np.full(len(truth), -1, np.int64)
    for position, digit in enumerate(seen):
        count = 100 // len(seen) + (position < 100 % len(seen))
        known[rng.choice(np.flatnonzero(truth == digit), count, replace=False)] = digit
    pictures = np.round(images * 255 / 16).astype(np.uint8).reshape(-1, 8, 8)
    names = [str(digit) for digit in range(10)]
    return Table(pictures, known, names, "digits of scikit-learn"), truth.astype(np.int64)


def _print_result(result: Any, file: Any) -> None:
    metrics = result.metrics
    printer = Console(file=file, highlight=False)
    if metrics["scores"]:
        shown = RichTable(title=f"Scored on {metrics['scored_rows']:,} rows whose labels nobody was told")
        shown.add_column("method")
        names = {"error": "error", "ari": "ARI", "nmi": "NMI", "accuracy": "accuracy"}
        for name in names.values():
            shown.add_column(name, justify="right")
        for row in metrics["scores"]:
            shown.add_row(row["method"], *(f"{row[key]:.3f}" for key in names), style="bold" if row["ours"] else None)
        printer.print(shown)
    sizes = np.bincount(result.clusters)
    printer.print(
        f"{metrics['n_clusters']} clusters of {metrics['n_rows']:,} rows: "
        + ", ".join(f"{name} ({size})" for name, size in zip(result.names, sizes, strict=True)),
        soft_wrap=True,
    )
    printer.print(f"Report: {result.folder / 'report.html'}", soft_wrap=True)


@app.command()
def cluster(
    checkpoint: Annotated[Path, typer.Argument(help="The folder of a run, or the checkpoint in it.")],
    data: Annotated[Path, typer.Argument(help="New rows, in a form that fit takes.")],
    labels: Annotated[str | None, typer.Option(help="Column of labels to leave out of the features.")] = None,
    out: Annotated[Path | None, typer.Option(help="A .csv file. Default: print.", show_default=False)] = None,
) -> None:
    """Place new rows in the clusters of a run: each joins the row whose embedding is nearest."""
    from diffclust.files import write_whole
    from diffclust.runs import load_run

    if not checkpoint.exists():
        raise ValueError(f"{checkpoint} does not exist.")
    run_ = load_run(checkpoint)
    table = read_table(data, labels)
    found, confidence = run_.place(table.features)
    lines = ["row,cluster,name,confidence"]
    lines += [
        f'{row},{number},"{run_.names[number]}",{sure:.4f}'
        for row, (number, sure) in enumerate(zip(found, confidence, strict=True))
    ]
    text = "\n".join(lines) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        write_whole(out, text)
        console.print(f"{len(found):,} rows placed: {out}")
