"""The command line: ``diffclust fit``, ``ask``, ``cluster``, ``bench``. How errors are shown is in ``messages.py``."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

import diffclust
from diffclust.all_cuts import CUTS
from diffclust.answers import Answers, questions_csv, read_answers
from diffclust.messages import exit_with_message, fail, in_flags
from diffclust.metrics import SCORES
from diffclust.tables import Table, listed, read_pairs, read_table
from diffclust.tables.table import ending
from diffclust.tables.texts import MODEL as TEXT_MODEL
from diffclust.tables.texts import TextColumn

app = typer.Typer(
    help="Clustering you can train through: a table and a few labels in, clusters and a report out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
WITHHELD_DIGITS = (7, 8, 9)


def _say(text: str) -> None:
    Console(stderr=True, highlight=False).print(in_flags(text), soft_wrap=True, markup=False)


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


def _check_weight(value: str) -> str:
    try:
        wrong = value not in ("hard", "auto") and not float(value) >= 0
    except ValueError:
        wrong = True
    if wrong:
        raise typer.BadParameter(f"must be hard, auto or a number from 0, got {value!r}.")
    return value


def _pair_weights(
    in_file: NDArray[np.float64], n_pairs: int, default: str, run_weights: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    """Weights of pairs: first those of a file, with a default, last those of an earlier run; None if all are hard."""
    weights = np.full(n_pairs, float({"hard": "inf", "auto": "nan"}.get(default, default)))
    weights[: len(in_file)] = np.where(np.isnan(in_file), weights[: len(in_file)], in_file)
    weights[n_pairs - len(run_weights) :] = run_weights
    return None if np.isinf(weights).all() else weights


def _path(value: str | Path) -> Path:
    """A path that is not empty: an unset variable of a shell is an empty text, which would be the current folder."""
    if not str(value).strip():
        raise typer.BadParameter(f"must name a file or a folder, got {value!r}.")
    return Path(value)


def _option(panel: str) -> Callable[..., Any]:
    """Makes options of ``fit`` that its help shows in one group."""

    def option(metavar: str | None, text: str, *flags: str, **more: Any) -> Any:
        return typer.Option(*flags, metavar=metavar, help=text, rich_help_panel=panel, **more)

    return option


def _default(text: str) -> str:
    """What help shows for a default that is not a value."""
    return f" [dim]\\[default: {text}][/]"


_known, _training = _option("What is known"), _option("Training")
_ranks, _run = _option("Several devices"), _option("The run")
DATA = (
    "A .csv, .tsv (or either with .gz), .parquet, .npy, .npz or .h5ad file, a folder of pictures, or a folder of .npy "
    "files, one for each row, in the order of their names (10.npy comes before 2.npy). Without it: handwritten digits."
)
LABELS = (
    "A column of the table, or a file with a label for each row; of pictures, a file with file name and label in each "
    "line. Blank or -1 is unknown." + _default("folders in a folder of pictures")
)
ID = "The column with the names of the rows. It is shown beside them and not used as a feature." + _default(
    "found by its values"
)
USE_REP = "What represents the cells of an .h5ad file: a key of obsm, a layer, or X." + _default(
    "X_pca, or else components of X"
)
TEXT = "The column with texts. Each text becomes a vector; other columns are left out."
MODEL = "The sentence-transformers model that reads texts: a name on the Hugging Face hub, or a folder." + _default(
    TEXT_MODEL
)
IMAGE_SIZE = "Longer side of pictures, in pixels." + _default("that of the files, at most 64")
MUST_LINK = (
    "Pairs of rows that belong together: two row numbers, counted from 0, on each line, and perhaps a weight: log-odds "
    "of being right."
)
PAIR_WEIGHT = "Weight of pairs that have none in their file: hard (never wrong), a number, or auto (estimated)."
CLUSTERS = "How many clusters. If this is more than the labelled classes, the rest are new." + _default("auto")
CUT = (
    f"How clusters are cut out of the embedding: {', '.join(repr(name) if ' ' in name else name for name in CUTS)}, "
    "or auto: the one that best recovers labels that were hidden."
)
HOLDOUT = "Share of the labels that is held out, to score the result."
BACKBONE = "The network: linear, mlp, residual, committee, cnn, or your own as package.module:attribute." + _default(
    "cnn for images, residual for tables, committee for tables with more than 20 clusters"
)
SCALING = (
    "column (different units), global (one unit), unit (rows of length 1), counts (log-normalised), none, or auto: "
    "column or global, decided by the columns and the labels."
)
BATCH_SIZE = "Rows of a training step. Larger batches find new classes better." + _default(
    "256; more than 20 clusters: 512"
)
EPSILON = "Size of the noise that makes the clustering differentiable." + _default("0.5; images: growing from 0.5 to 2")
DEVICES = "GPUs, or processes on the CPU, that share each step. torchrun sets this by itself."
TIMEOUT = "How long a device waits for another one before it gives up."
MORE = "Answers to questions: the filled-in .csv file of `diffclust ask`, or the one that a report saves."
WARM = "An earlier run to continue from: its labels, pairs, weights and names are used."
LIKE = "An earlier run whose clusters give their names, numbers and colours to those that continue them."
DROP = "Leave out the labels that look wrong in the run of --warm."
STEPS = "Training steps." + _default("300, or 100 with --warm")
WARM_STEPS = 100
RESUME = "Continue the interrupted run in that folder. A run that torchrun or Slurm restarts does so by itself."


@app.command()
@exit_with_message
def fit(
    data: Annotated[Path | None, typer.Argument(metavar="DATA", show_default=False, parser=_path, help=DATA)] = None,
    labels: Annotated[str | None, _known("COLUMN|FILE", LABELS)] = None,
    id_column: Annotated[str | None, _known("COLUMN", ID, "--id")] = None,
    use_rep: Annotated[str | None, _known("NAME", USE_REP)] = None,
    text: Annotated[str | None, _known("COLUMN", TEXT)] = None,
    model: Annotated[str | None, _known("NAME|FOLDER", MODEL)] = None,
    image_size: Annotated[int | None, _known("PIXELS", IMAGE_SIZE, min=8)] = None,
    must_link: Annotated[Path | None, _known("FILE", MUST_LINK, parser=_path)] = None,
    cannot_link: Annotated[Path | None, _known("FILE", "Pairs of rows that belong apart.", parser=_path)] = None,
    pair_weight: Annotated[str, _known("hard|auto|NUMBER", PAIR_WEIGHT, callback=_check_weight)] = "hard",
    more: Annotated[Path | None, _known("FILE", MORE, parser=_path)] = None,
    warm: Annotated[Path | None, _known("RUN", WARM, parser=_path)] = None,
    drop_suspects: Annotated[bool, _known(None, DROP, "--drop-suspects")] = False,
    clusters: Annotated[str | None, _known("K|auto", CLUSTERS, callback=_check_clusters)] = None,
    min_cluster_size: Annotated[
        int | None, _known("ROWS", "Smallest new cluster." + _default("a third of an average one"), min=1)
    ] = None,
    cut: Annotated[str, _known("NAME", CUT)] = "auto",
    holdout: Annotated[float, _known("SHARE", HOLDOUT, min=0.0, max=0.9)] = 0.2,
    steps: Annotated[int | None, _training("N", STEPS, min=1)] = None,
    batch_size: Annotated[int | None, _training("ROWS", BATCH_SIZE, min=2)] = None,
    backbone: Annotated[str | None, _training("NAME", BACKBONE)] = None,
    scaling: Annotated[str, _training("NAME", SCALING)] = "auto",
    epsilon: Annotated[float | None, _training("SIZE", EPSILON, min=1e-6)] = None,
    draws: Annotated[int, _training("N", "Draws of that noise in a step.", min=1)] = 10,
    device: Annotated[str, _training("auto|cpu|cuda", "Where to train.")] = "auto",
    seed: Annotated[int, _training("N", "The same seed gives the same clusters.", min=0)] = 0,
    devices: Annotated[int, _ranks("N", DEVICES, min=1)] = 1,
    num_nodes: Annotated[int, _ranks("N", "Machines, each with that many devices.", min=1)] = 1,
    timeout: Annotated[float, _ranks("SECONDS", TIMEOUT, min=1)] = 45,
    out: Annotated[Path, _run("FOLDER", "Where everything is written.", parser=_path)] = Path("diffclust-run"),
    like: Annotated[Path | None, _run("RUN", LIKE, parser=_path)] = None,
    resume: Annotated[bool, _run(None, RESUME, "--resume")] = False,
    quiet: Annotated[bool, _run(None, "No progress bar, only the result.", "--quiet", "-q")] = False,
) -> None:
    """Train an embedding on a table and the labels of some rows, cluster all rows, write a report.

    With no DATA it runs on the handwritten digits of scikit-learn: 100 labels are known, three digits have none.
    """
    from diffclust import training
    from diffclust.runs import SETTINGS, fit_run, load_run, refit_input

    if model is not None and text is None:
        raise ValueError(f"model={model!r} reads texts: name their column, text=COLUMN.")
    before, named = (None if path is None else load_run(path, backbone) for path in (warm, like))
    truth = None
    if data is None:
        if labels or id_column or use_rep or image_size or text or must_link or cannot_link:
            raise ValueError("Labels, ids, sizes and pairs are about your own DATA: name its file first.")
        table, truth = digits(seed)
        title = "Handwritten digits"
        if warm is None and more is None:
            title += ": 100 labels, three digits never labelled"
        clusters = clusters or "10"
    else:
        column = None if text is None else TextColumn(text, model or TEXT_MODEL, cache=out if resume else None)
        how: dict[str, Any] = {"id_column": id_column, "use_rep": use_rep, "image_size": image_size, "text": column}
        if before is not None and before.settings.get("encoding") is not None and not any(how.values()):
            table = read_table(data, labels, encoding=before.encoding)
            table = replace(table, sentences=[f"The columns are read as in {warm}.", *table.sentences])
        else:
            table = read_table(data, labels, **how)
        title = f"{data.name}: clusters by diffclust"
    given = {
        name: read_pairs(path, len(table), name) if path else ([], np.empty(0))
        for name, path in (("must_link", must_link), ("cannot_link", cannot_link))
    }
    pairs: dict[str, Any] = {name: found for name, (found, _) in given.items()}
    if drop_suspects and warm is None:
        raise ValueError("--drop-suspects needs --warm, the run in which labels look wrong.")
    run_weights = (np.empty(0), np.empty(0))  # of must-links and cannot-links that come from the earlier run
    if before is not None or more is not None:
        answers = Answers() if more is None else read_answers(more, len(table), table.row_names)
        told = refit_input(table, before, answers, drop_suspects)
        table, run_weights = told.table, (told.must_weights, told.cannot_weights)
        pairs = {name: pairs[name] + getattr(told, name) for name in pairs}
    if before is not None:
        pairs["held_out"], pairs["label_weights"] = told.held_out, told.label_weights
        clusters = clusters or _clusters_before(before, table)
    steps = steps or (300 if before is None else WARM_STEPS)
    ranks: dict[str, Any] = {"devices": devices, "num_nodes": num_nodes, **training.torchrun_settings()}
    config = training.TrainingConfig(
        n_clusters=None if clusters in (None, "auto") else int(clusters),
        backbone=backbone or "auto",
        scaling="unit" if text is not None and scaling == "auto" else scaling,
        epsilon="auto" if epsilon is None else epsilon,
        n_draws=draws,
        n_steps=steps,
        batch_size=batch_size or "auto",
        device=device,
        seed=seed,
        validate_every=min(50, max(1, steps // 20)),  # a killed run loses the steps since the last checkpoint
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
        warm=before,
        like=named,
        # torchrun and Slurm restart a run by the same command.
        resume=resume or (training.is_restartable() and (out / SETTINGS).exists()),
        progress=not quiet,
        title=title,
        say=(lambda text: None) if quiet else _say,
        must_weights=_pair_weights(given["must_link"][1], len(pairs["must_link"]), pair_weight, run_weights[0]),
        cannot_weights=_pair_weights(given["cannot_link"][1], len(pairs["cannot_link"]), pair_weight, run_weights[1]),
        **pairs,
    )
    if result is not None:
        _print_result(result)


def _clusters_before(run: Any, table: Table) -> str | None:
    """As many clusters as an earlier run was asked for, or more where more classes are labelled now."""
    asked = run.settings.get("clusters")
    return None if asked is None else str(max(asked, len(np.unique(table.labels[table.labels >= 0]))))


def digits(seed: int) -> tuple[Table, NDArray[np.int64]]:
    """scikit-learn's digits as images with 100 labels, of seven of the ten digits; and the labels of all."""
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


def _print_result(result: Any) -> None:
    metrics = result.metrics
    printer = Console(highlight=False)
    if metrics["scores"]:
        shown = RichTable(title=f"Scored on {metrics['scored_rows']:,} rows whose labels nobody was told")
        shown.add_column("method")
        titles = {name: score.title for name, score in SCORES.items() if score.in_terminal}
        for title in titles.values():
            shown.add_column(title, justify="right")
        for row in metrics["scores"]:
            shown.add_row(
                row["method"], *(f"{row[name]:.3f}" for name in titles), style="bold" if row["ours"] else None
            )
        printer.print(shown)
    for sentence in metrics["headline"]:
        printer.print(sentence, soft_wrap=True)
    sizes = np.bincount(result.clusters)
    printer.print(
        f"{metrics['n_clusters']} cluster{'s' * (metrics['n_clusters'] > 1)} of {metrics['n_rows']:,} rows: "
        + listed([f"{name} ({size})" for name, size in zip(result.names, sizes, strict=True)], most=20),
        soft_wrap=True,
        markup=False,
    )
    printer.print(f"Report: {result.folder / 'report.html'}", soft_wrap=True, markup=False)


OwnBackbone = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The network of the run, if it was your own (package.module:attribute)."),
]


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
    labels: Annotated[str | None, typer.Option(metavar="COLUMN", help="A column of labels, which is ignored.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_path, help="A .csv or .parquet file to write." + _default("print")),
    ] = None,
    backbone: OwnBackbone = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME|FOLDER", help="The model for the texts, if the run used one in a folder."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, only the result.")] = False,
) -> None:
    """Place new rows in the clusters of a run: each joins the row of the run that is most like it.

    A .csv, .parquet or .npy file is read in pieces, so it may be larger than the memory.
    """
    from diffclust.runs import load_run, place_file

    if not checkpoint.exists():
        raise ValueError(f"{checkpoint} does not exist.")
    loaded = load_run(checkpoint, backbone)
    n_rows, n_unlike = place_file(
        loaded, data, out, labels=labels, model=model, progress=not quiet and out is not None, say=_say
    )
    if out is not None:
        _say(f"{n_rows:,} rows placed: {out}")
    if n_unlike:
        _say(f"{n_unlike:,} of these rows are unlike anything in the run (column unlike).")


@app.command()
@exit_with_message
def ask(
    run: Annotated[Path, typer.Argument(metavar="RUN", parser=_path, help="The folder of a run.")],
    n: Annotated[int, typer.Option("-n", metavar="N", min=1, help="How many questions.")] = 20,
    kind: Annotated[str, typer.Option(metavar="rows|pairs", help="Ask for labels of rows, or about pairs.")] = "rows",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_path, help="A .csv file to fill in, for `diffclust fit --more`."),
    ] = None,
    backbone: OwnBackbone = None,
) -> None:
    """Say which rows, or pairs of rows, to label next: those whose answers help most."""
    from diffclust.files import write_atomically
    from diffclust.runs import load_run

    loaded = load_run(run, backbone)
    if out is not None:
        _check_questions(out, loaded)
    text = questions_csv(diffclust.suggest(loaded, n, kind), loaded.row_names)  # type: ignore[call-overload]
    header, *lines = csv.reader(io.StringIO(text))
    shown = RichTable()
    for column in header[:-1]:
        shown.add_column(column, justify="right" if column in ("row", "other", "confidence", "same") else "left")
    for line in lines:
        shown.add_row(*map(escape, line[:-1]))
    Console(highlight=False).print(shown)
    if out is not None:
        write_atomically(out, text)
        again = shlex.join(["--more", str(out), "--warm", str(run)])
        _say(f"Fill in the column {header[-1]} of {out}, then: diffclust fit DATA {again} --out FOLDER")


def _check_questions(out: Path, run: Any) -> None:
    """A ValueError if a file of questions would replace answers, or another file."""
    if ending(out) not in (".csv", ""):
        raise ValueError(f"Cannot write {ending(out)}: {out} must be a .csv file.")
    if not out.exists():
        return
    try:
        found = read_answers(out, len(run.clusters), run.row_names)
        free = not (found.labels or found.must_link or found.cannot_link)
    except (ValueError, OSError):
        free = False
    if not free:
        raise ValueError(f"{out} exists already and has more than unanswered questions: name another file.")


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def reproduce(context: typer.Context) -> None:
    """Moved to ``python -m experiments run``; this command goes in the next version."""
    words = " ".join(["python -m experiments run", *context.args])
    fail(f"The experiments are now a program of their own. In the source repository, run `{words}`.")


@app.command()
@exit_with_message
def bench(
    points: Annotated[list[int] | None, typer.Option(min=2, help="How many points. May be repeated.")] = None,
    draws: Annotated[int, typer.Option(min=1, help="Draws of noise.")] = 100,
    clusters: Annotated[int, typer.Option(min=1, help="How many clusters.")] = 10,
) -> None:
    """How fast the solver is on this machine, against plain Kruskal on the same draws; answers are checked first.

    It times the free forest and both rules for labels, on a GPU, too, if there is one.
    """
    from diffclust.bench import find_gpu, timings

    sizes = points or [64]
    if min(sizes) < clusters:
        raise ValueError(f"{min(sizes)} points cannot be {clusters} clusters: take more points or fewer --clusters.")
    table = RichTable(title=f"{draws} draws, {clusters} clusters, milliseconds")
    device = find_gpu()
    for column in ("points", "solve", "plain Kruskal", "diffclust", "ratio", *(["GPU", "ratio"] if device else [])):
        table.add_column(column, justify="left" if column == "solve" else "right")
    for size in sizes:
        for row in timings(size, draws, clusters, device=device):
            ours = [time for time in (row.ours, row.gpu) if time is not None]
            cells = [cell for time in ours for cell in (f"{time:.3f}", f"{row.plain / time:.0f}x")]
            table.add_row(str(size), row.solve, f"{row.plain:.1f}", *cells)
    Console(highlight=False).print(table)
