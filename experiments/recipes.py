"""What a recipe is: settings, the work, and a folder in which everything about it is written down.

    @recipe("name")
    @dataclasses.dataclass(frozen=True)
    class Mine(Recipe):
        '''One line, which the list of recipes shows.'''
        n_points: int = 500

        def run(self, folder): ...    # writes figures and curves, returns the numbers

``reproduce(Mine(), folder)`` writes ``settings.json`` before the work and ``numbers.json`` after it. Numbers are
JSON; ``numbers["tables"]``, by title a list of rows, is what is printed and ``numbers.md`` shows, with
:func:`over_seeds` for what a seed changes.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import platform
import subprocess
import time
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from diffclust.files import write_atomically

RECIPES: dict[str, type[Recipe]] = {}
SETTINGS, NUMBERS = "settings.json", "numbers.json"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """An experiment. Numbers among its settings are at least 0.

    A field that is itself a dataclass, such as a :class:`TrainingConfig`, stands for its own fields: they are settings
    of the recipe like any other.
    """

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    name: ClassVar[str]

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ValueError("seeds must have at least one number.")
        for name, value in self.settings().items():
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, (int, float)) and not 0 <= each < math.inf:
                    raise ValueError(f"{name} must be at least 0 and finite, got {each}.")

    def run(self, folder: Path) -> dict[str, Any]:
        """The work: curves and figures go into the folder, numbers are returned."""
        raise NotImplementedError

    @classmethod
    def tiny(cls) -> Self:
        """The same in seconds, on data that is made or comes with scikit-learn."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """As JSON has them; without where the data lie and on how many ranks it runs, which changes nothing."""
        kept = {name: getattr(owner, name) for name, owner in owners(self).items() if name not in UNIMPORTANT}
        return json.loads(json.dumps(kept, default=str))


# Where the data lie and on how many ranks a recipe runs changes nothing.
UNIMPORTANT = ("data_dir", "devices", "num_nodes", "strategy", "timeout")


def owners(recipe: Recipe) -> dict[str, Any]:
    """All settings by name, and the dataclass that has each: the recipe or a field of it."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            found |= {inner.name: value for inner in dataclasses.fields(value) if inner.name not in SET_BY_RECIPE}
        else:
            found[field.name] = recipe
    return found


SET_BY_RECIPE = ("seed", "objective", "n_clusters")  # of a training: one for each cell


def recipe(name: str) -> Callable[[type[Recipe]], type[Recipe]]:
    """Enters a class under its name, for the command line."""

    def enter(cls: type[Recipe]) -> type[Recipe]:
        cls.name = name
        RECIPES[name] = cls
        return cls

    return enter


# ------------------------------------------------------------------------------------------------------------------
# Settings from text


def change(recipe: Recipe, assignments: Iterable[str]) -> Recipe:
    """The recipe with other settings, from texts such as ``n_points=100`` or ``seeds=0,1,2``."""
    places = owners(recipe)
    own: dict[str, Any] = {}
    inner: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"A setting is written as name=value, got {assignment!r}.")
        if name not in places:
            raise ValueError(f"{recipe.name} has no setting {name!r}: it has {', '.join(places)}.")
        kind = typing.get_type_hints(type(places[name]))[name]
        try:
            value = _parse(text, kind)
        except ValueError as error:
            raise ValueError(f"{name} must be {error}, got {text!r}.") from None
        (own if places[name] is recipe else inner)[name] = value
    for field in dataclasses.fields(recipe):
        part: Any = getattr(recipe, field.name)
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            changes = {name: value for name, value in inner.items() if places[name] is part}
            own[field.name] = dataclasses.replace(part, **changes)
    return dataclasses.replace(recipe, **own)


def _parse(text: str, kind: Any) -> Any:
    """A value of a type; a ValueError says what was expected."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if text.lower() == "none" and types.NoneType in arguments:
            return None
        try:
            return _parse(text, next(each for each in arguments if each is not types.NoneType))
        except ValueError:
            if str in arguments:
                return text
            raise
    if kind is Any:
        return int(text) if text.isdecimal() else text
    if origin is tuple:
        return tuple(_parse(each.strip(), arguments[0]) for each in text.split(",") if each.strip())
    if origin is typing.Literal:
        if text not in arguments:
            raise ValueError(f"one of {', '.join(arguments)}")
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("true or false")
        return text.lower() == "true"
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise ValueError("an integer" if kind is int else "a number") from None
    return kind(text)


# ------------------------------------------------------------------------------------------------------------------
# The folder


def reproduce(recipe: Recipe, folder: Path, resume: bool = False) -> dict[str, Any]:
    """Runs the recipe and writes down what came out; returns the content of ``numbers.json``.

    Args:
        resume: go on with the interrupted run in that folder, which must have the same settings; what is finished of
            it, see :func:`part`, is not done again.

    Of several ranks the first writes; the others return nothing.
    """
    if not is_first_rank():
        recipe.run(folder)
        return {}
    path = folder / SETTINGS
    asked = {"recipe": recipe.name, **recipe.settings()}
    if resume:
        if not path.exists():
            raise ValueError(f"--resume: {folder} has no run to go on with.")
        before = json.loads(path.read_text(encoding="utf-8"))
        for name in {**before, **asked}:
            if before.get(name) != asked.get(name):
                raise ValueError(f"--resume: {folder} was started with {name} = {before.get(name)}.")
    elif path.exists():
        raise ValueError(f"{folder} has a run already. Go on with it by --resume, or choose another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _json(asked))
    started = time.perf_counter()
    numbers = recipe.run(folder)
    return record(folder, recipe, numbers, time.perf_counter() - started, resumed=resume)


def is_first_rank() -> bool:
    """Of the processes that Lightning, torchrun or Slurm started for one run."""
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")
    return all(int(os.environ.get(name) or 0) == 0 for name in names)


def part(path: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a piece of work, with its ``seconds``, from its file if it was finished before."""
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    started = time.perf_counter()
    result = work()
    result["seconds"] = round(time.perf_counter() - started, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _json(result))
    return json.loads(_json(result))  # the same types as when it is read


def record(
    folder: Path, recipe: Recipe, numbers: Mapping[str, Any], seconds: float, resumed: bool = False
) -> dict[str, Any]:
    """Writes ``numbers.json``: the numbers, and what is needed to get them again. Returns its content.

    ``numbers.md`` has the tables.

    ``seconds`` of a resumed run are those of its last call.
    """
    content = {
        "recipe": recipe.name,
        "settings": recipe.settings(),
        "numbers": numbers,
        "seconds": round(seconds, 2),
        "resumed": resumed,
        "hardware": hardware(),
        "versions": versions(),
        "commit": commit(),
    }
    write_atomically(folder / NUMBERS, _json(content))
    tables = [f"{title}\n\n{markdown(rows)}" for title, rows in numbers["tables"].items()]
    write_atomically(folder / "numbers.md", "\n".join(tables))
    return json.loads(_json(content))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with the same keys."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, default=_plain, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays are not JSON's."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON.")


# ------------------------------------------------------------------------------------------------------------------
# Numbers, and where they come from


def over_seeds(values: Iterable[float | None]) -> dict[str, Any]:
    """Mean, standard deviation (of these values, not of a larger population) and the values; None is left out."""
    values = list(values)
    known = [float(value) for value in values if value is not None]
    return {
        "mean": float(np.mean(known)) if known else None,
        "spread": float(np.std(known)) if known else None,
        "values": values,
    }


def shown(value: Any) -> str:
    """A cell of a table: a text, a number or what :func:`over_seeds` returns."""
    if isinstance(value, Mapping):
        return "–" if value["mean"] is None else f"{value['mean']:.3f} ± {value['spread']:.3f}"
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def layout(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of a table. More than seven columns are turned into lines: that still fits a screen."""
    if len(rows[0]) <= 7:
        return list(rows[0]), [[shown(value) for value in row.values()] for row in rows]
    first, *others = rows[0]
    return [first, *(shown(row[first]) for row in rows)], [[key, *(shown(row[key]) for row in rows)] for key in others]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    heads, cells = layout(rows)
    ruler = ["---", *["---:"] * (len(heads) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, ruler, *cells))


def hardware() -> dict[str, Any]:
    found: dict[str, Any] = {"cpu": _cpu_name(), "cores": os.cpu_count(), "system": platform.system()}
    try:
        import torch
    except ImportError:
        return found
    return {**found, "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None}


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    import diffclust

    found = {"python": platform.python_version(), "diffclust": diffclust.__version__}
    for name in ("numpy", "scipy", "numba", "scikit-learn", "torch", "lightning", "triton"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Of the repository, with "+" where files have been changed since; None outside of one."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + "+" * bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None
