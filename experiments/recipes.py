"""Recipes: an experiment's settings, its work, and the folder that records both.

    @recipe("name")
    @dataclasses.dataclass(frozen=True)
    class Mine(Recipe):
        '''One line, which the list of recipes shows.'''
        n_points: int = 500

        def run(self, folder): ...    # writes figures and curves, returns the numbers

``reproduce(Mine(), folder)`` writes ``settings.json`` before the work and ``numbers.json`` after it. The numbers are
JSON. ``numbers["tables"]`` has a list of rows for each title; it is printed and written to ``numbers.md``. Values that
depend on the seed are made by :func:`over_seeds`.
"""

from __future__ import annotations

import dataclasses
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

from diffclust.files import csv_text, write_atomically

RECIPES: dict[str, type[Recipe]] = {}
SETTINGS, NUMBERS = "settings.json", "numbers.json"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """An experiment. Its numeric settings are at least 0.

    The fields of a field that is itself a dataclass, such as a :class:`TrainingConfig`, are settings of the recipe like
    its own.
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
        """The settings that the numbers depend on, as JSON."""
        kept = {name: getattr(owner, name) for name, owner in owners(self).items() if name not in NOT_RECORDED}
        return json.loads(json.dumps(kept, default=str))


# The place of the data and the number of ranks do not change the numbers.
NOT_RECORDED = ("data_dir", "devices", "num_nodes", "strategy", "timeout")


def owners(recipe: Recipe) -> dict[str, Any]:
    """For each setting the dataclass that has it: the recipe, or a field of it."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            found |= {inner.name: value for inner in dataclasses.fields(value) if inner.name not in SET_BY_RECIPE}
        else:
            found[field.name] = recipe
    return found


SET_BY_RECIPE = ("seed", "objective", "n_clusters")  # fields of a TrainingConfig that the recipe itself sets


def recipe(name: str) -> Callable[[type[Recipe]], type[Recipe]]:
    """Registers a class under a name, for the command line."""

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
        resume: continue the interrupted run in that folder, which must have the same settings. Its finished parts, see
            :func:`part`, are not done again.

    On several ranks the first one writes; the others return an empty dictionary.
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
    """Whether this is the first of the processes that Lightning, torchrun or Slurm started for one run."""
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")
    return all(int(os.environ.get(name) or 0) == 0 for name in names)


def part(path: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a part of the work, and its ``seconds``. It is read from its file if it was finished before."""
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
    """Writes ``numbers.json``, the numbers and what is needed to get them again, and returns its content.

    ``numbers.md`` gets the tables. The ``seconds`` of a resumed run are those of its last call.
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
    """Writes rows that have the same keys in the same order."""
    write_atomically(path, csv_text(list(rows[0]), (row.values() for row in rows)))


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, default=_plain, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as JSON can hold them."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON.")


# ------------------------------------------------------------------------------------------------------------------
# Numbers, and where they come from


def over_seeds(values: Iterable[float | None]) -> dict[str, Any]:
    """Mean, population standard deviation, and all values. None is left out of the first two."""
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
    """Heads and cells of a table. With more than seven columns it is transposed, to fit a screen."""
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
    """The commit of the repository, with "+" if files have changed since; None outside of a repository."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + "+" * bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None
