"""Folders of pictures. Folders inside name the classes, or a file has a label for some of the file names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.files import read_text
from diffclust.labels import UNKNOWN_NAMES
from diffclust.tables.frames import split_lines
from diffclust.tables.table import listed, shortened

FORMATS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
LARGEST_SIDE, SMALLEST_SIDE = 64, 8
GREY_MODES = ("1", "L", "LA", "I", "I;16", "F")


def find_pictures(folder: Path) -> list[Path]:
    """The pictures of a folder and the folders inside, in order of their names. Hidden files are left out."""
    files = (path for path in folder.rglob("*") if path.suffix.lower() in FORMATS and path.is_file())
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def read_pictures(
    files: Sequence[Path], size: int | None = None, encoding: dict[str, Any] | None = None
) -> tuple[NDArray[np.uint8], dict[str, Any], list[str]]:
    """Pictures of one size, their encoding, and a sentence about it.

    They are (n, H, W) bytes, or (n, 3, H, W) where some picture has colours. ``size`` is the longer side in pixels;
    None is the median of the files, at most ``LARGEST_SIDE``. With the ``encoding`` of other pictures, these get the
    same size and colours.
    """
    if encoding is None:
        encoding = _choose_encoding(files, size)
    width, height = encoding["size"]
    mode = "L" if encoding["grey"] else "RGB"
    shape = (len(files), height, width) if encoding["grey"] else (len(files), 3, height, width)
    pixels = np.empty(shape, np.uint8)
    for row, file in enumerate(files):
        picture = np.asarray(_load(file, mode, (width, height)))
        pixels[row] = picture if encoding["grey"] else np.moveaxis(picture, -1, 0)
    colours = "greys" if encoding["grey"] else "colours"
    return pixels, encoding, [f"Pictures are read in {colours}, {width} x {height} pixels."]


def folder_classes(folder: Path, files: Sequence[Path]) -> NDArray[Any]:
    """(n,) the folder inside ``folder`` that each file is in, "" for those that are in none."""
    inside = [file.relative_to(folder).parts[:-1] for file in files]
    names = [parts[0] if parts else "" for parts in inside]
    return np.array(["" if name.lower() in UNKNOWN_NAMES else name for name in names], object)


def labels_by_name(path: Path, names: Sequence[str], source: str) -> NDArray[Any]:
    """(n,) labels from lines with a file name and a label, "" for files that are in no line. A header is skipped."""
    row_of = _lookup(names)
    found = np.full(len(names), "", object)
    for number, cells in enumerate(split_lines(path, read_text(path))):
        if not any(cell.strip() for cell in cells):
            continue
        where, name = f"{path}, line {number + 1}", cells[0].strip()
        if len(cells) < 2:
            raise ValueError(f"{where}: expected a file name and a label, got {shortened(name)!r}.")
        row = row_of.get(name)
        if row is not None:
            found[row] = cells[-1].strip()
        elif number:  # the first line may be a header
            raise ValueError(f"{where}: {source} has no picture {shortened(name)!r}. It has {listed(names, 3)}.")
    return found


def _lookup(names: Sequence[str]) -> dict[str, int]:
    """Row numbers by path, and by file name with or without its ending, where only one file has it."""
    paths = [PurePosixPath(name) for name in names]
    short = [[path.name for path in paths], [path.stem for path in paths]]
    found: dict[str, int] = {}
    for keys in reversed(short):
        counts = Counter(keys)
        found |= {key: row for row, key in enumerate(keys) if counts[key] == 1}
    return found | {name: row for row, name in enumerate(names)}


def _choose_encoding(files: Sequence[Path], size: int | None) -> dict[str, Any]:
    sizes, modes = [], set()
    for file in files:
        with _opened(file) as picture:
            sizes.append(picture.size)
            modes.add(picture.mode)
    width, height = np.median(sizes, axis=0)
    longest = min(max(width, height), LARGEST_SIDE) if size is None else size
    scale = longest / max(width, height)
    side = [max(SMALLEST_SIDE, round(float(length * scale))) for length in (width, height)]
    return {"kind": "pictures", "size": side, "grey": modes <= set(GREY_MODES)}


def _load(file: Path, mode: str, size: tuple[int, int]) -> Any:
    from PIL import Image, ImageOps

    with _opened(file) as picture:
        try:
            picture.draft(mode, size)  # a JPEG is decoded at about this size
            if picture.mode in ("I", "I;16", "F"):
                picture = _as_bytes(picture)
            turned = ImageOps.exif_transpose(picture)
            return turned.convert(mode).resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)
        except (OSError, ValueError, SyntaxError) as error:
            raise _unreadable(file) from error


def _as_bytes(picture: Any) -> Any:
    """A picture of more than 256 greys, as bytes: its values are stretched from the smallest to the largest."""
    from PIL import Image

    values = np.asarray(picture, np.float64)
    low, high = values.min(), values.max()
    return Image.fromarray(np.round((values - low) / ((high - low) or 1.0) * 255).astype(np.uint8))


def _opened(file: Path) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("Pictures need Pillow. Install it with: pip install 'diffclust[fit]'") from error
    try:
        return Image.open(file)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _unreadable(file) from error


def _unreadable(file: Path) -> ValueError:
    return ValueError(f"{file} cannot be read as a picture: it is damaged or of another form. Remove it.")
