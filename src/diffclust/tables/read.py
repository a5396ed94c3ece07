"""Any form of rows → a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.frameworks import lost_digits
from diffclust.tables import arrays, cells, frames, pictures
from diffclust.tables.columns import Encoding, category_texts, choose_columns, choose_id, row_names
from diffclust.tables.known import encode_labels, read_labels
from diffclust.tables.table import Table, ending, listed, no_column
from diffclust.tables.texts import TextColumn

FORMATS = (*arrays.FORMATS, *frames.FORMATS, *cells.FORMATS)

# What a file or a folder may be.
TABLE, CELLS, PICTURES, ARRAYS = "a table with columns", "an .h5ad file", "a folder of pictures", "an array"
MANY_CLASSES = 10  # from which on classes with fewer than two labels each look like ids
OPTION_OF = {"id_column": TABLE, "text": TABLE, "use_rep": CELLS, "image_size": PICTURES}
LABELS_OF_FOLDERS = {
    ARRAYS: "Give a file with a label for each row.",
    PICTURES: "Put pictures into folders named by their class, or give a .csv file of file names and labels.",
}


def read_table(
    data: Any,
    labels: str | None = None,
    at_least: int = 2,
    *,
    id_column: str | None = None,
    use_rep: str | None = None,
    text: str | TextColumn | None = None,
    image_size: int | None = None,
    encoding: dict[str, Any] | None = None,
) -> Table:
    """Reads features, and labels if there are any.

    Args:
        data: a file of one of ``FORMATS``, a folder of pictures or of ``.npy`` files with one row each, a data frame of
            pandas, polars or Arrow, or an AnnData object.
        labels: the name of a column of the table (of cells: of ``obs``), a key of an ``.npz``, or a file with one label
            for each row; of pictures, a file of lines with a file name and a label. Blank or -1 is unknown. With None,
            pictures in folders are labelled by these, and else no row is labelled.
        at_least: the smallest number of rows that is accepted.
        id_column: the column of the table that names the rows; None looks for one.
        use_rep: what stands for cells, see :func:`diffclust.tables.cells.represent`.
        text: the column whose texts become vectors. All others, but those of labels and ids, are left out.
        image_size: the longer side of pictures, see :func:`diffclust.tables.pictures.read_pictures`.
        encoding: of an earlier table, ``Table.encoding``: the rows are treated as those were. ``{"kind": "array"}``
            takes every column as numbers.

    Returns:
        The table.

    Raises:
        ValueError: the data cannot be used. The message names the file, and where possible the column and the row.
    """
    is_file = labels is not None and ending(Path(labels)) in (*FORMATS, ".txt")
    label_file = Path(str(labels)) if is_file else None
    column = labels if label_file is None else None
    if isinstance(text, str):
        text = TextColumn(text)
    elif text is None and encoding is not None and encoding["kind"] == "text":
        text = TextColumn.from_dict(encoding)
    if column is not None and column in (id_column, None if text is None else text.name):
        raise ValueError(f"labels={column!r} and id_column or text name the same column.")
    if frames.is_frame(data):
        table = read_columns(frames.as_frame(data), "The data frame", column, id_column, text, encoding)
    elif cells.is_anndata(data):
        table = read_cells(data, "adata", column, use_rep, encoding)
    elif not isinstance(data, (str, PathLike)):
        raise ValueError(
            f"data must be a file, a folder, a data frame or an AnnData object, got {type(data).__name__}. A lazy "
            "frame becomes one by .collect(). For arrays use ForestEmbedding, or save them with numpy.save."
        )
    else:
        options: dict[str, Any] = {"id_column": id_column, "use_rep": use_rep, "image_size": image_size, "text": text}
        table = _read_path(Path(data), column, {name: o for name, o in options.items() if o is not None}, encoding)
    lost = lost_digits(table.features, table.source, table.columns)
    table = _checked(table, at_least)
    if label_file is not None:
        if table.encoding is not None and table.encoding["kind"] == "pictures" and table.row_names is not None:
            found = pictures.labels_by_name(label_file, table.row_names, table.source)
        else:
            found = read_labels(label_file, len(table), table.row_names, (table.encoding or {}).get("id"))
        table = _labelled(table, found, labels)
    if encoding is not None:
        return table
    return replace(table, sentences=[*table.sentences, *([lost] if lost else []), *_about_classes(table)])


def read_pieces(
    path: Path, labels: str | None, n_rows: int, *, text: TextColumn | None = None, encoding: dict[str, Any]
) -> Iterator[Table]:
    """Reads the rows of a file, treated as ``encoding`` says; a column of labels is left out.

    Yields:
        Tables of at most ``n_rows`` rows of csv, parquet and .npy files; other forms are one piece.

    Raises:
        ValueError: as :func:`read_table`; rows are counted within a piece, and the message says where it begins.
    """
    if not path.is_file() or ending(path) not in (*frames.FORMATS, ".npy"):
        yield read_table(path, labels, at_least=1, text=text, encoding=encoding)
        return
    first = 0
    for piece in _pieces(path, labels, n_rows, text, encoding):
        source = f"{path}, from row {first} on" if first else str(path)
        if frames.is_frame(piece):
            table = read_columns(piece, source, labels, None, text, encoding)
        else:
            table = _unlabelled(piece, source)
        yield _checked(table, 1)
        first += len(table)
    if first == 0:
        raise ValueError(f"{path} has 0 rows.")


def _pieces(
    path: Path, labels: str | None, n_rows: int, text: TextColumn | None, encoding: dict[str, Any]
) -> Iterator[Any]:
    if ending(path) == ".npy":
        arrays.check_no_key(path, labels)
        array = arrays.load_array(path, mapped=True)
        yield from (array[first : first + n_rows] for first in range(0, len(array), n_rows))
        return
    # Texts stay texts in every piece, even where all of its values look like numbers.
    texts = {column["name"] for column in encoding.get("columns", ()) if column["kind"] == "category"}
    texts |= {name for name in (labels, encoding.get("id"), text.name if text else None) if name is not None}
    yield from frames.read_pieces(path, texts, n_rows)


def _read_path(path: Path, column: str | None, options: dict[str, Any], encoding: dict[str, Any] | None) -> Table:
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    form = _form_of(path)
    for name, value in options.items():
        if OPTION_OF[name] != form:
            value = value.name if isinstance(value, TextColumn) else value
            raise ValueError(f"{name}={value!r} is for {OPTION_OF[name]}, but {path} is {form}.")
    if form == TABLE:
        text_columns = (column, options.get("id_column"), options["text"].name if "text" in options else None)
        texts = [name for name in text_columns if name is not None]
        return read_columns(frames.read_frame(path, texts), str(path), column, **options, encoding=encoding)
    if form == CELLS:
        return read_cells(cells.read_anndata(path), str(path), column, **options, encoding=encoding)
    if path.is_dir() and column is not None:
        raise ValueError(f"labels={column!r}: {path} is {form}, which has no columns. {LABELS_OF_FOLDERS[form]}")
    if form == PICTURES:
        return _read_pictures(path, **options, encoding=encoding)
    if path.is_dir():
        return _unlabelled(arrays.read_folder(path), str(path))
    features, found = arrays.read_arrays(path, column)
    return _labelled(_unlabelled(features, str(path)), found, column)


def _form_of(path: Path) -> str:
    """What a file or a folder holds."""
    if path.is_dir():
        if any(path.glob("*.npy")):
            return ARRAYS
        if pictures.find_pictures(path):
            return PICTURES
        raise ValueError(f"{path} has no .npy files and no pictures ({', '.join(pictures.FORMATS)}).")
    for form, formats in ((TABLE, frames.FORMATS), (CELLS, cells.FORMATS), (ARRAYS, arrays.FORMATS)):
        if ending(path) in formats:
            return form
    what = ending(path) or "a file without ending"
    raise ValueError(f"{path}: cannot read {what}. Give one of {', '.join(FORMATS)}, or a folder of pictures.")


def _read_pictures(path: Path, image_size: int | None = None, encoding: dict[str, Any] | None = None) -> Table:
    if encoding is not None and encoding["kind"] != "pictures":
        raise _other_kind(PICTURES, path, encoding)
    files = pictures.find_pictures(path)
    features, encoding, sentences = pictures.read_pictures(files, image_size, encoding)
    names = [file.relative_to(path).as_posix() for file in files]
    table = _unlabelled(features, str(path), row_names=names, encoding=encoding, sentences=sentences)
    return _labelled(table, pictures.folder_classes(path, files), str(path))


def _other_kind(form: str, source: Any, encoding: dict[str, Any]) -> ValueError:
    return ValueError(f"{source} is {form}, but the run was made from another form of data, {encoding['kind']}.")


def read_columns(
    frame: Any,
    source: str,
    labels: str | None,
    id_column: str | None = None,
    text: TextColumn | None = None,
    encoding: dict[str, Any] | None = None,
) -> Table:
    """A pandas DataFrame as a table."""
    found = None
    names = [" ".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in frame.columns]
    frame = frame.set_axis(names, axis=1)
    if labels is not None:
        if labels not in names:
            raise no_column(source, labels, names)
        if names.count(labels) > 1:
            raise ValueError(f"{source} has several columns of the name {labels}. Rename them.")
        found = frame[labels].to_numpy(object)
        frame = frame.drop(columns=labels)
    if len(frame) == 0:
        raise ValueError(f"{source} has 0 rows.")
    if text is not None:
        return _labelled(_read_texts(frame, source, text, id_column), found, labels)
    if encoding is None:
        chosen, sentences = choose_columns(frame, source, id_column)
    elif encoding["kind"] == "array":
        # pandas and R write row numbers in a column without a name.
        chosen, sentences = Encoding.numbers([name for name in frame.columns if not name.startswith("Unnamed: ")]), []
    elif encoding["kind"] != "columns":
        raise _other_kind(TABLE, source, encoding)
    else:
        chosen, sentences = Encoding.from_dict(encoding), []
    features, more = chosen.transform(frame, source)
    table = _unlabelled(
        features,
        source,
        columns=chosen.feature_names(),
        row_names=row_names(frame, chosen),
        encoding=chosen.to_dict(),
        sentences=[*sentences, *more],
        groupings={c.name: category_texts(frame[c.name]) for c in chosen.columns if c.kind == "category"},
    )
    return _labelled(table, found, labels)


def read_cells(
    adata: Any, source: str, labels: str | None, use_rep: str | None = None, encoding: dict[str, Any] | None = None
) -> Table:
    """An AnnData object as a table."""
    found = None if labels is None else cells.annotation(adata, labels, source)
    if encoding is not None and encoding["kind"] != "cells":
        raise _other_kind(CELLS, source, encoding)
    features, encoding, sentences = cells.represent(adata, source, use_rep, encoding)
    table = _unlabelled(
        features,
        source,
        row_names=list(map(str, adata.obs_names)),
        encoding=encoding,
        sentences=sentences,
        measured=None if adata.X is None else cells.expression(adata),
        groupings=cells.groupings(adata, labels),
    )
    return _labelled(table, found, labels)


def _read_texts(frame: Any, source: str, text: TextColumn, id_column: str | None) -> Table:
    """A pandas DataFrame of which one column is read."""
    features, texts = text.transform(frame, source)
    others = frame.drop(columns=text.name)
    text = replace(text, id=choose_id(others, source, id_column) if text.id is None else text.id)
    left_out = [repr(name) for name in others.columns if name != text.id]
    sentences = [f"Column {text.name!r} is read by the model {text.model!r}, as {features.shape[1]} numbers a text."]
    sentences += [f"Other columns are left out: {listed(left_out)}."] if left_out else []
    return _unlabelled(
        features,
        source,
        row_names=row_names(others, Encoding([], text.id)),
        encoding=text.to_dict(),
        sentences=sentences,
        texts=texts,
    )


def _unlabelled(features: NDArray[Any], source: str, **more: Any) -> Table:
    return Table(features, np.full(len(features), -1, np.int64), [], source, **more)


def _labelled(table: Table, found: NDArray[Any] | None, what: str | None) -> Table:
    """The table with these labels, if there are any."""
    if found is None:
        return table
    if len(found) != len(table):
        raise ValueError(
            f"{what} has {len(found)} labels, {table.source} has {len(table)} rows. There must be one for each."
        )
    codes, names = encode_labels(found)
    return replace(table, labels=codes, class_names=names)


def _about_classes(table: Table) -> list[str]:
    """What looks like a mistake in labels: nearly as many classes as labels, or names that are almost the same."""
    n_labels, n_classes = int((table.labels >= 0).sum()), len(table.class_names)
    if n_classes >= MANY_CLASSES and n_classes > n_labels / 2:
        return [f"The {n_labels:,} labels are of {n_classes:,} classes. Are they numbers or ids, not classes?"]
    negative = [repr(name) for name in table.class_names if re.fullmatch(r"-\d+", name)]
    if negative:
        return [f"Labels that are negative numbers are classes, except -1, which means unknown: {listed(negative)}."]
    groups: dict[str, list[str]] = {}
    for name in table.class_names:
        groups.setdefault("".join(name.casefold().split()), []).append(repr(name))
    alike = [" and ".join(names) for names in groups.values() if len(names) > 1]
    return [f"Classes that differ only in case or blanks count as different: {listed(alike)}."] if alike else []


def _checked(table: Table, at_least: int) -> Table:
    """The table with features that are bytes or finite numbers of 32 bits, images with channels first."""
    features, path = table.features, table.source
    if features.dtype.kind not in "iubf":
        raise ValueError(f"{path} must hold numbers, got {features.dtype}.")
    if features.ndim not in (2, 3, 4):
        raise ValueError(
            f"{path} must be rows of features (n, d) or images (n, H, W), (n, H, W, C) or (n, C, H, W), got shape "
            f"{features.shape}."
        )
    if features.ndim == 4 and features.shape[-1] <= 4 < features.shape[1]:
        features = np.ascontiguousarray(np.moveaxis(features, -1, 1))  # training wants channels first
    if len(features) < at_least:
        raise ValueError(f"{path} has {len(features)} rows: at least {at_least} are needed.")
    if features.size == 0:
        raise ValueError(f"{path} has rows without features, shape {features.shape}.")
    if features.dtype != np.uint8:
        with np.errstate(over="ignore"):
            features = features.astype(np.float32, copy=False)
        wrong = np.flatnonzero(~np.isfinite(features).reshape(len(features), -1).all(1))
        if len(wrong):
            raise ValueError(
                f"{path}: row {wrong[0]} has a value that is not a finite number (of 32 bits). Fill or remove it."
            )
    return replace(table, features=features)
