"""The folder of a run: one process at a time writes to it, and a manifest, written last, says what is in it.

Before training, :func:`prepare` locks the folder and writes the settings, and :func:`check_same_run` compares a resumed
run with the settings and the checkpoint of the run that was started.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffclust
from diffclust.files import write_atomically
from diffclust.training import LAST, check_checkpoint

SETTINGS, MANIFEST, LOCK, KNOWN = "settings.json", "manifest.json", ".lock", "known.npz"
# What load_run reads.
FILES = (SETTINGS, LAST, "embeddings.npy", "hierarchy.npz", "clusters.csv", "metrics.json", KNOWN)
FORMAT = 2  # the version of this layout
RANK_SETTINGS = ("devices", "num_nodes", "strategy", "capture", "timeout")  # settings that a resumed run may change


@contextlib.contextmanager
def prepare(folder: Path, settings: dict[str, Any], resume: bool) -> Iterator[None]:
    """Makes the folder, locks it and writes the settings."""
    _check_folder(folder, resume)  # before the folder is made
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(claim(folder))
            _check_folder(folder, resume)  # another process may have been faster
            (folder / MANIFEST).unlink(missing_ok=True)  # it describes the files before this run
            for left in folder.glob(".*.tmp"):  # half-written files of a killed run
                left.unlink()
            write_atomically(folder / SETTINGS, json.dumps(settings, indent=2) + "\n")
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise ValueError(f"folder={str(folder)!r} cannot be written: {error.strerror}.") from error
        yield


def _check_folder(folder: Path, resume: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is a file: name a folder.")
    if resume and not (folder / SETTINGS).exists():
        raise ValueError(f"resume=True: {folder} has no run to go on with.")
    if not resume and any((folder / name).exists() for name in (SETTINGS, LAST)):
        raise ValueError(f"{folder} has a run already. Go on with it by resume=True, or choose another folder.")


def check_same_run(folder: Path, settings: dict[str, Any]) -> None:
    """A ValueError unless the run in the folder and its checkpoint have these settings, ranks and size guard aside."""
    before = read_json(folder / SETTINGS)
    for name in ("data", "config", "clusters", "holdout"):
        then, now = (_comparable(each.get(name)) for each in (before, settings))
        if then != now:
            raise ValueError(f"resume=True: {folder} was started with {_difference(name, then, now)}.")
    last = folder / LAST
    if not last.exists():
        return
    state = check_checkpoint(last)
    asked = {"data": settings["data"], "config": _comparable(settings["config"])}
    asked["config"]["validate_every"] = min(asked["config"]["validate_every"], asked["config"]["n_steps"])
    try:
        trained = {"data": state["data"], "config": _comparable(dict(state["hyper_parameters"]["config"]))}
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(last, "it has no settings") from error
    for name in asked:
        if trained[name] != asked[name]:
            difference = _difference(name, trained[name], asked[name])
            raise ValueError(f"{last} is the checkpoint of another run, trained with {difference}. {remedy(last)}")


def _comparable(value: Any) -> Any:
    """Settings without those that a resumed run may change."""
    if not isinstance(value, dict):
        return value
    return {key: setting for key, setting in value.items() if key not in RANK_SETTINGS}


def _difference(name: str, before: Any, now: Any) -> str:
    if name == "data":
        return "other data, labels or pairs"
    if isinstance(before, dict):
        changed = next(key for key in (*now, *before) if before.get(key) != now.get(key))
        return f"{changed}={before.get(changed)!r}, now it is {now.get(changed)!r}"
    return f"{name}={before!r}, now it is {now!r}"


# ------------------------------------------------------------------------------------------------------------- The lock


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Holds a lock on the folder. Of several processes that start at once, one continues and the others raise.

    The system frees the lock when the process ends, even when it is killed, so a killed run does not block the next
    one. Some network disks have no such locks; there this has no effect.
    """
    path = folder / LOCK
    descriptor = _lock(path)
    while not _is_same_file(path, descriptor):  # its last holder has removed the file: this lock is on nothing
        os.close(descriptor)
        descriptor = _lock(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ValueError(
            f"Another process is writing a run to {path.parent}. Wait until it has ended, or choose another folder."
        ) from error
    except OSError:  # a disk without locks
        pass
    return descriptor


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


# --------------------------------------------------------------------------------------------------------- The manifest


def write_manifest(folder: Path) -> None:
    """Size and SHA-256 of each file that :func:`diffclust.load_run` reads."""
    files = {name: {"size": (folder / name).stat().st_size, "sha256": _sha256(folder / name)} for name in FILES}
    content = {"format": FORMAT, "diffclust": diffclust.__version__, "files": files}
    write_atomically(folder / MANIFEST, json.dumps(content, indent=2) + "\n")


def check_files(folder: Path) -> None:
    """Raises a ValueError unless the files are those that the manifest describes."""
    path = folder / MANIFEST
    if not path.exists():
        raise ValueError(_without_manifest(folder))
    manifest = read_json(path)
    if manifest.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {manifest.get('format')!r} and was written by diffclust {manifest.get('diffclust')}; "
            f"this is diffclust {diffclust.__version__}, which reads format {FORMAT}. "
            f"Use diffclust {manifest.get('diffclust')}, or run again into another folder."
        )
    for name in FILES:
        if not (folder / name).exists():
            raise ValueError(f"{folder / name} is missing. {remedy(folder / name)}")
        try:
            entry = manifest["files"][name]
            size, sha256 = entry["size"], entry["sha256"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged: it does not describe {name}. {remedy(path)}") from error
        found = (folder / name).stat().st_size
        if found != size:
            raise ValueError(_mismatch(folder / name, f"has {found} bytes, not the {size} of {MANIFEST}"))
        if _sha256(folder / name) != sha256:
            raise ValueError(_mismatch(folder / name, f"does not have the SHA-256 of {MANIFEST}"))


def _mismatch(path: Path, what: str) -> str:
    return f"{path} {what}: it is damaged, was changed, or is of another run. {remedy(path)}"


def _without_manifest(folder: Path) -> str:
    missing = [name for name in FILES if not (folder / name).exists()]
    again = "" if SETTINGS in missing else " Go on with it by resume=True."
    return f"{folder} is not the folder of a finished run: {folder / [*missing, MANIFEST][0]} is missing.{again}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remedy(path: Path) -> str:
    """What to do about a damaged or missing file of a run."""
    if path.name == SETTINGS:
        return "Take it from a copy of the folder, or run again into another folder."
    if path.name == LAST:
        return "Take it from a copy of the folder, or delete it and use resume=True, which then trains from the start."
    return "Take it from a copy of the folder, or use resume=True, which writes it again from the checkpoint."


def damaged(path: Path, why: object) -> ValueError:
    """The error for a damaged file of a run: why, and what to do."""
    return ValueError(f"{path} is damaged: {str(why).rstrip('.')}. {remedy(path)}")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(path, " ".join(str(error).split())) from error
    if not isinstance(content, dict):
        raise damaged(path, "it does not hold a JSON object")
    return content
