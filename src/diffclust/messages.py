"""Errors as the command line shows them: one sentence, and exit code 2.

The library's errors speak of Python arguments. :func:`in_flags` turns these into options of the command line.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from collections.abc import Callable
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

QUOTES = "'\""
# Python argument -> option.
SAME_NAME = (
    *("labels", "must_link", "cannot_link", "min_cluster_size", "holdout", "batch_size", "backbone", "epsilon"),
    *("device", "seed", "devices", "num_nodes", "timeout", "use_rep", "image_size", "text", "model"),
)
FLAGS = {name: name.replace("_", "-") for name in SAME_NAME} | {
    "n_clusters": "clusters",
    "n_steps": "steps",
    "n_draws": "draws",
    "folder": "out",
    "id_column": "id",
}
WITH_VALUE = re.compile(rf"(?<![\w./\\'\"-])({'|'.join(FLAGS)})=('[^']*'|\"[^\"]*\"|[^\s,;:)]*[^\s,;:).])")
# Without a value only names with an underscore are replaced: "labels" and "folder" are English words, too.
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
    """A command whose errors are shown as one sentence, with exit code 2. Faults of this program keep their traceback.

    ``translate`` turns a message of the library into one of the command line.
    """

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> None:
        try:
            command(**arguments)
        except KeyboardInterrupt:
            out = arguments.get("out")
            started = out is not None and (out / "settings.json").exists()
            fail("Interrupted." + " Go on with the same command and --resume." * started, 130)
        except (ValueError, TypeError, FloatingPointError, OSError, MemoryError, ImportError) as error:
            if os.environ.get("DIFFCLUST_TRACEBACK") or getattr(error, "errno", None) == errno.EPIPE:
                raise
            fail(translate(_sentence(error)))

    return wrapped


def _sentence(error: Exception) -> str:
    if isinstance(error, ConnectionError):
        return f"{error} Go on from the last checkpoint with --resume."
    if isinstance(error, MemoryError):
        return f"There is not enough memory. {error}"
    if isinstance(error, OSError):
        where = "" if error.filename is None else f" {error.filename}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"The disk is full: cannot write{where}. Make room and use --resume."
        return f"Cannot read or write{where}: {error.strerror or error}."
    return str(error)


def fail(message: str, code: int = 2) -> NoReturn:
    """Prints an error and ends the program."""
    Console(stderr=True, highlight=False).print(f"[bold red]Error:[/] {escape(message)}", soft_wrap=True)
    raise typer.Exit(code)
