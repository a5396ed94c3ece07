"""The command line: ``diffclust fit``, ``cluster``, ``bench``. Errors are a sentence and exit code 2.

The library's errors speak of Python arguments; :func:`in_flags` turns these into options of the command line.
"""

from __future__ import annotations

import csv
import errno
import functools
import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

import diffclust
from diffclust.tables import Table, check_columns, listed, read_pairs, read_table, spreadsheet_text

app = typer.Typer(
    help="Clustering you can train through: a table and a few labels in, clusters and a report out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
WITHHELD_DIGITS = (7, 8, 9)
QUOTES = "'\""


def run() -> None:
    """The program."""
    app(prog_name="diffclust")


FLAGS = {
    "n_clusters": "clusters",
    "min_cluster_size": "min-cluster-size",
    "n_steps": "steps",
    "n_draws": "draws",
    "batch_size": "batch-size",
    "must_link": "must-link",
    "cannot_link": "cannot-link",
    "num_nodes": "num-nodes",
    "labels": "labels",
    "folder": "out",
    "backbone": "backbone",
    "epsilon": "epsilon",
    "device": "device",
    "devices": "devices",
    "seed": "seed",
    "holdout": "holdout",
    "timeout": "timeout",
}
WITH_VALUE = re.compile(rf"(?<![\w./\\'\"-])({'|'.join(FLAGS)})=('[^']*'|\"[^\"]*\"|[^\s,;:)]*[^\s,;:).])")
# Words that are nothing else; "labels" and "folder" are English.
ALONE = re.compile(rf"(?<![\w./\\'\"-])({'|'.join(name for name in FLAGS if '_' in name)})(?![\w'\"=/\\-]|\.\w)")


def in_flags(message: str) -> str:
    """A message about Python arguments in terms of options.

    >>> in_flags("n_clusters=2 is too small: give must_link pairs, or resume=True and a smaller min_cluster_size.")
    '--clusters 2 is too small: give --must-link pairs, or --resume and a smaller --min-cluster-size.'
    """
    message = message.replace("resume=True", "--resume")
    message = WITH_VALUE.sub(lambda match: f"--{FLAGS[match[1]]} {match[2].strip(QUOTES)}", message)
    return ALONE.sub(lambda match: f"--{FLAGS[match[1]]}", message)


def exit_with_message(command: Callable[..., None], translate: Callable[[str], str] = in_flags) -> Callable[..., None]:
    """What a user can mend is one sentence and exit code 2; what we must mend is a traceback.

    Args:
        command: a function of keyword arguments.
        translate: makes the sentence of the command line out of the message of the library.
    """

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> None:
        try:
            command(**arguments)
        except KeyboardInterrupt:
            out = arguments.get("out")
            started = out is not None and (out / "settings.json").exists()
            _fail("Interrupted." + " Go on with the same command and --resume." * started, 130)
        except ConnectionError as error:
            if os.environ.get("DIFFCLUST_TRACEBACK") or error.errno == errno.EPIPE:
                raise
            _fail(f"{error} Go on from the last checkpoint with --resume.")
        except (ValueError, TypeError, FloatingPointError, OSError, MemoryError, ImportError) as error:
            if os.environ.get("DIFFCLUST_TRACEBACK") or getattr(error, "errno", None) == errno.EPIPE:
                raise
            _fail(translate(_sentence(error)))

    return wrapped


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"There is not enough memory. {error}"
    if isinstance(error, OSError):
        where = "" if error.filename is None else f" {error.filename}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"The disk is full: cannot write{where}. Make room and use --resume."
        return f"Cannot read or write{where}: {error.strerror or error}."
    return str(error)


def _say(text: str) -> None:
    Console(stderr=True, highlight=False).print(text, soft_wrap=True, markup=False)


def _fail(message: str, code: int = 2) -> NoReturn:
    Console(stderr=True, highlight=False).print(f"[bold red]Error:[/] {escape(message)}", soft_wrap=True)
    raise typer.Exit(code)


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
    if value is not None and value != "auto" and not (value.isdecimal() and len(value) < 20 and int(value) >= 1):
        raise typer.BadParameter(f"must be a number from 1, or auto, got {value!r}.")
    return value


def _path(value: str | Path) -> Path:
    """An empty name, which an unset variable of a shell leaves, would be the current folder."""
    if not str(value).strip():
        raise typer.BadParameter(f"must name a file or a folder, got {value!r}.")
    return Path(value)


KNOWN, TRAINING, RANKS, RUN = "What is known", "Training", "Several devices", "The run"  # the groups of options


RESUME = (
    "Go on with the interrupted run in that folder. Where torchrun or Slurm starts a run again, it goes on by itself."
)


@app.command()
@exit_with_message
def fit(
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA",
            show_default=False,
            parser=_path,
            help="A .npy, .npz, .csv, .tsv or .parquet file, or a folder of .npy files, one for each row, in the order "
            "of their names (10.npy comes before 2.npy). Without it: handwritten digits.",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN|FILE",
            rich_help_panel=KNOWN,
            help="A column of the table, or a file with a label for each row. Blank or -1 is unknown.",
        ),
    ] = None,
    must_link: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=KNOWN,
            parser=_path,
            help="Pairs of rows that belong together: two row numbers, counted from 0, on each line.",
        ),
    ] = None,
    cannot_link: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=KNOWN, parser=_path, help="Pairs of rows that belong apart."),
    ] = None,
    clusters: Annotated[
        str | None,
        typer.Option(
            metavar="K|auto",
            rich_help_panel=KNOWN,
            callback=_check_clusters,
            help="How many clusters. With more than there are labelled classes, the others are new ones. "
            "[dim]\\[default: auto][/]",
        ),
    ] = None,
    min_cluster_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="ROWS",
            rich_help_panel=KNOWN,
            help="Smallest new cluster. [dim]\\[default: a third of an average one][/]",
        ),
    ] = None,
    cut: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel=KNOWN,
            help="How clusters are cut out of the embedding: forest, 'robust forest', k-means, spectral, or auto: the "
            "one that best finds hidden labels again.",
        ),
    ] = "auto",
    holdout: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=0.9,
            metavar="SHARE",
            rich_help_panel=KNOWN,
            help="Share of the labels that is kept back, to score the result by.",
        ),
    ] = 0.2,
    steps: Annotated[int, typer.Option(min=1, metavar="N", rich_help_panel=TRAINING, help="Training steps.")] = 300,
    batch_size: Annotated[
        int,
        typer.Option(
            min=2, metavar="ROWS", rich_help_panel=TRAINING, help="Rows in a step. More finds new classes better."
        ),
    ] = 256,
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=TRAINING,
            help="The network: linear, mlp, residual, cnn, or your own as package.module:attribute. "
            "[dim]\\[default: cnn for images, residual for tables][/]",
        ),
    ] = None,
    scaling: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel=TRAINING,
            help="column (different units), global (one unit), unit (rows of length 1), counts (log-normalised), none, "
            "or auto: column or global, by what columns and labels say.",
        ),
    ] = "auto",
    epsilon: Annotated[
        float | None,
        typer.Option(
            min=1e-6,
            metavar="SIZE",
            rich_help_panel=TRAINING,
            help="Size of the noise through which the clustering can be trained. "
            "[dim]\\[default: 0.5; images: growing from 0.5 to 2][/]",
        ),
    ] = None,
    draws: Annotated[
        int, typer.Option(min=1, metavar="N", rich_help_panel=TRAINING, help="Draws of that noise in a step.")
    ] = 10,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda", rich_help_panel=TRAINING, help="Where to train.")
    ] = "auto",
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", rich_help_panel=TRAINING, help="The same seed gives the same clusters.")
    ] = 0,
    devices: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            rich_help_panel=RANKS,
            help="GPUs, or processes on the CPU, that share each step. Under torchrun, its own number counts.",
        ),
    ] = 1,
    num_nodes: Annotated[
        int, typer.Option(min=1, metavar="N", rich_help_panel=RANKS, help="Machines with so many devices each.")
    ] = 1,
    timeout: Annotated[
        float,
        typer.Option(
            min=1, metavar="SECONDS", rich_help_panel=RANKS, help="How long a device waits for one that says nothing."
        ),
    ] = 45,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", rich_help_panel=RUN, parser=_path, help="Where everything is written.")
    ] = Path("diffclust-run"),
    resume: Annotated[bool, typer.Option("--resume", rich_help_panel=RUN, help=RESUME)] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", rich_help_panel=RUN, help="No progress bar, only the result.")
    ] = False,
) -> None:
    """Train an embedding on a table and the labels of some rows, cluster all rows, write a report.

    With no DATA it runs on the handwritten digits of scikit-learn: 100 labels are known, three digits have none.
    """
    from diffclust import training
    from diffclust.runs import SETTINGS, fit_run

    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device={device} must be auto, cpu or cuda.")
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
    ranks: dict[str, Any] = {"devices": devices, "num_nodes": num_nodes, **training.torchrun_settings()}
    config = training.TrainingConfig(
        n_clusters=None if clusters in (None, "auto") else int(clusters),
        backbone=backbone or "auto",
        scaling=scaling,
        epsilon="auto" if epsilon is None else epsilon,
        n_draws=draws,
        n_steps=steps,
        batch_size=batch_size,
        device=device,
        seed=seed,
        validate_every=min(50, max(1, steps // 20)),  # so little is lost when a run is killed
        timeout=timeout,
        **ranks,
    )
    result = fit_run(
        table,
        config,
        out,
        truth=truth,
        holdout=holdout,
        min_cluster_size=min_cluster_size or "auto",
        cut=cut,
        # torchrun and Slurm start the same command again.
        resume=resume or (training.is_restartable() and (out / SETTINGS).exists()),
        progress=not quiet,
        title=title,
        say=(lambda text: None) if quiet else _say,
        **pairs,
    )
    if result is not None:
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


def _scored_on(metrics: dict[str, Any]) -> str:
    """Which rows, and which classes, a score is about."""
    title = f"Scored on {metrics['scored_rows']:,} rows whose labels nobody was told"
    labelled = [name for name in metrics["cluster_names"] if name in metrics["scored_classes"]]
    if len(labelled) == len(metrics["scored_classes"]) < metrics["n_clusters"]:
        title += ", of labelled classes only"
    return title


def _print_result(result: Any, file: Any) -> None:
    metrics = result.metrics
    printer = Console(file=file, highlight=False)
    if metrics["scores"]:
        shown = RichTable(title=_scored_on(metrics))
        shown.add_column("method")
        names = {"error": "error", "ari": "ARI", "nmi": "NMI", "accuracy": "accuracy"}
        for name in names.values():
            shown.add_column(name, justify="right")
        for row in metrics["scores"]:
            shown.add_row(row["method"], *(f"{row[key]:.3f}" for key in names), style="bold" if row["ours"] else None)
        printer.print(shown)
    if metrics["hidden_classes_ari"] is not None:
        printer.print(
            f"New classes: with some labelled classes hidden, all labelled rows had ARI "
            f"{metrics['hidden_classes_ari']:.3f}.",
            soft_wrap=True,
        )
    sizes = np.bincount(result.clusters)
    printer.print(
        f"{metrics['n_clusters']} cluster{'s' * (metrics['n_clusters'] > 1)} of {metrics['n_rows']:,} rows: "
        + listed([f"{name} ({size})" for name, size in zip(result.names, sizes, strict=True)], most=20),
        soft_wrap=True,
        markup=False,
    )
    printer.print(f"Report: {result.folder / 'report.html'}", soft_wrap=True, markup=False)


@app.command()
@exit_with_message
def cluster(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="RUN", parser=_path, help="The folder of a run, or the checkpoint in it.")
    ],
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", parser=_path, help="New rows, in any form that fit takes; of a table, the same columns."
        ),
    ],
    labels: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="A column of labels: it is left out, and not used.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_path, help="A .csv file to write. [dim]\\[default: print][/]"),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The network of the run again, if it was one of your own (package.module:attribute)."
        ),
    ] = None,
) -> None:
    """Place new rows in the clusters of a run: each joins the row of the run that is most like it."""
    from diffclust.files import write_atomically
    from diffclust.runs import load_run

    if not checkpoint.exists():
        raise ValueError(f"{checkpoint} does not exist.")
    table = read_table(data, labels, at_least=1)
    loaded = load_run(checkpoint, backbone)
    check_columns(table, loaded.settings.get("columns"))
    placed = loaded.place(table.features)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "cluster", "name", "confidence", "novelty", "unlike"])
    for row, (number, sure, new, unlike) in enumerate(zip(*placed, strict=True)):
        name = spreadsheet_text(loaded.names[number])
        writer.writerow([row, number, name, f"{sure:.4f}", f"{new:.4f}", int(unlike)])
    if out is None:
        sys.stdout.write(text.getvalue())
    else:
        write_atomically(out, text.getvalue())
        _say(f"{len(placed.clusters):,} rows placed: {out}")
    if placed.unlike.any():
        _say(f"{int(placed.unlike.sum()):,} of these rows are unlike anything in the run (column unlike).")


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def reproduce(context: typer.Context) -> None:
    """Moved to ``python -m experiments run``; this command goes in the next version."""
    words = " ".join(["python -m experiments run", *context.args])
    _fail(f"The experiments are now a program of their own. In the source repository, run `{words}`.")


@app.command()
@exit_with_message
def bench(
    points: Annotated[list[int] | None, typer.Option(min=2, help="How many. May be given several times.")] = None,
    draws: Annotated[int, typer.Option(min=1, help="Draws of noise.")] = 100,
    clusters: Annotated[int, typer.Option(min=1, help="How many clusters.")] = 10,
) -> None:
    """How fast the solver is on this machine, against plain Kruskal on the same draws; answers are checked first."""
    from diffclust.bench import timings

    sizes = points or [64]
    if min(sizes) < clusters:
        raise ValueError(f"{min(sizes)} points cannot be {clusters} clusters: take more points or fewer --clusters.")
    table = RichTable(title=f"{draws} draws, {clusters} clusters, milliseconds")
    for column in ("points", "solve", "plain Kruskal", "diffclust", "ratio"):
        table.add_column(column, justify="left" if column == "solve" else "right")
    for size in sizes:
        for row in timings(size, draws, clusters):
            table.add_row(str(size), row.solve, f"{row.plain:.1f}", f"{row.ours:.3f}", f"{row.plain / row.ours:.0f}x")
    Console(highlight=False).print(table)
