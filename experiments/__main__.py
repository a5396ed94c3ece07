"""``python -m experiments list`` and ``python -m experiments run NAME``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from diffclust.messages import exit_with_message
from experiments import denoising, images, toy  # noqa: F401, they register their recipes
from experiments.recipes import NUMBERS, RECIPES, Recipe, change, layout, owners, reproduce

app = typer.Typer(
    help="The paper's experiments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
with_message = functools.partial(exit_with_message, translate=str)  # settings have their Python names here
HELP = {"help_option_names": ["-h", "--help"]}


@app.command("list", context_settings=HELP)
def list_recipes(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show the settings of this one.")] = None,
) -> None:
    """The recipes, or the settings of one of them."""
    _list(name=name)


@with_message
def _list(*, name: str | None) -> None:
    table = Table()
    if name is None:
        rows = [(each, (cls.__doc__ or "").splitlines()[0]) for each, cls in RECIPES.items()]
        heads = ("recipe", "what it does")
    else:
        rows = [(each, _written(getattr(owner, each))) for each, owner in owners(_find(name)()).items()]
        heads = ("setting", "value, as --set reads it")
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def _find(name: str) -> type[Recipe]:
    if name not in RECIPES:
        raise ValueError(f"There is no recipe {name!r}: the recipes are {', '.join(RECIPES)}.")
    return RECIPES[name]


def _written(value: Any) -> str:
    """As ``--set`` reads it."""
    return ",".join(map(_written, value)) if isinstance(value, tuple) else str(value)


@app.command(context_settings=HELP)
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A recipe: see `python -m experiments list`.")],
    tiny: Annotated[bool, typer.Option("--tiny", help="The same in seconds, on data that needs no download.")] = False,
    seeds: Annotated[
        list[str] | None, typer.Option(metavar="N,N,...", help="The seeds to run. May be given several times.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the images are, or are downloaded to.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where everything is written. [dim]\\[default: runs/NAME][/]")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SETTING=VALUE", help="Another value of a setting. May be given several times."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in that folder.")] = False,
    devices: Annotated[int | None, typer.Option(min=1, help="GPUs, or processes on a CPU, of each node.")] = None,
    num_nodes: Annotated[int | None, typer.Option(min=1, help="Machines.")] = None,
) -> None:
    """Run an experiment: numbers with mean and spread over seeds, curves and figures, in a folder."""
    assignments = list(settings or [])
    if seeds is not None:
        assignments.append(f"seeds={','.join(seeds)}")
    for setting, value in (("data_dir", data_dir), ("devices", devices), ("num_nodes", num_nodes)):
        if value is not None:
            assignments.append(f"{setting}={value}")
    _run(name=name, tiny=tiny, assignments=assignments, out=out or Path("runs", name), resume=resume)


@with_message
def _run(*, name: str, tiny: bool, assignments: list[str], out: Path, resume: bool) -> None:
    cls = _find(name)
    recipe = change(cls.tiny() if tiny else cls(), assignments)
    content = reproduce(recipe, out, resume)
    if not content:
        return
    console = Console(highlight=False)
    for title, rows in content["numbers"]["tables"].items():
        heads, cells = layout(rows)
        table = Table(title=title)
        for position, head in enumerate(heads):
            table.add_column(head, justify="right" if position else "left")
        for line in cells:
            table.add_row(*line)
        console.print(table)
    written = sorted(path.name for path in out.iterdir() if path.suffix in (".csv", ".png"))
    console.print(
        f"Mean ± standard deviation over {len(recipe.seeds)} seeds, {content['seconds']:.1f} s: {out / NUMBERS}, "
        + ", ".join(written),
        soft_wrap=True,
        markup=False,
    )


if __name__ == "__main__":
    app(prog_name="python -m experiments")
