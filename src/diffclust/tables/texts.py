"""Texts → vectors of a sentence-transformers model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.tables.table import UNKNOWN

MODEL = "all-MiniLM-L6-v2"
BLANK = UNKNOWN - {"-1", "none", "unknown"}


def column_texts(series: Any, source: str) -> list[str]:
    """The texts of a column.

    Raises:
        ValueError: a text is missing.
    """
    texts = ["" if value is None else str(value).strip() for value in series]
    for row, text in enumerate(texts):
        if text.lower() in BLANK:
            raise ValueError(f"{source}: column {str(series.name)!r} is blank in row {row}. Fill or remove it.")
    return texts


def embed_texts(texts: Sequence[str], model: str, *, may_be_folder: bool = True) -> NDArray[np.float32]:
    """(n, d) the vectors of texts.

    Args:
        texts: n of them.
        model: the name of a model of the Hugging Face hub, or the folder of one.
        may_be_folder: False refuses a folder. A folder can hold code, so one that a stranger's run names is not opened.

    Raises:
        ImportError: sentence-transformers is not installed.
        ValueError: there is no such model, or the hub cannot be reached.
    """
    if not may_be_folder and Path(model).exists():
        raise ValueError(
            f"The texts of the run were embedded by a model in the folder {model}, which can hold code. If you trust "
            f"it, name it again: model={model!r}."
        )
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError("Texts need sentence-transformers. Install it with: pip install 'diffclust[text]'") from error
    try:
        loaded = SentenceTransformer(model)
    except Exception as error:  # hub, tokenizer and weights raise errors of many types
        reason = [*str(error).strip().splitlines(), type(error).__name__][0].rstrip(".")
        raise ValueError(
            f"model={model!r} cannot be loaded: {reason}. Give the name of a sentence-transformers model, or a folder."
        ) from error
    vectors = loaded.encode(list(texts), show_progress_bar=len(texts) > 2000)
    return np.asarray(vectors, np.float32)


def vectors_file(folder: Path, texts: Sequence[str], model: str) -> Path:
    """Where a run keeps the vectors of its texts. The name has a hash of the texts and of the name of the model."""
    digest = hashlib.sha256(json.dumps([model, *texts]).encode()).hexdigest()
    return folder / f"texts-{digest[:16]}.npy"
