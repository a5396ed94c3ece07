"""Texts → vectors of a sentence-transformers model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.tables.columns import BLANK
from diffclust.tables.table import no_column, reason_of

MODEL = "all-MiniLM-L6-v2"


@dataclass(frozen=True)
class TextColumn:
    """The column of a frame that is read as texts, and the model that reads it.

    Attributes:
        name: of the column.
        model: the name of a model of the Hugging Face hub, or the folder of one.
        id: the column whose values name the rows; None for the frame's index, or none.
        trusted: whether ``model`` may be a folder. A folder can hold code, so one that a stranger's run names is not
            opened.
        cache: a folder of a run that may have the vectors already.
    """

    name: str
    model: str = MODEL
    id: str | None = None
    trusted: bool = True
    cache: Path | None = None

    @classmethod
    def from_dict(cls, content: dict[str, Any], model: str | None = None) -> TextColumn:
        """From the JSON of a run. The model that it names is not trusted; a ``model`` that the caller gives is."""
        return cls(content["column"], model or content["model"], content["id"], trusted=model is not None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": "text", "column": self.name, "model": self.model, "id": self.id}

    def transform(self, frame: Any, source: str) -> tuple[NDArray[np.float32], list[str]]:
        """Embeds the texts: (n, d) vectors, and the texts. One that is blank is a ValueError."""
        if self.name not in frame.columns:
            raise no_column(source, self.name, frame.columns)
        texts = ["" if value is None else str(value).strip() for value in frame[self.name]]
        for row, text in enumerate(texts):
            if text.lower() in BLANK:
                raise ValueError(f"{source}: column {self.name!r} is blank in row {row}. Fill or remove it.")
        if self.cache is not None and (path := vectors_file(self.cache, texts, self.model)).exists():
            return np.load(path, allow_pickle=False), texts
        return embed_texts(texts, self.model, trusted=self.trusted), texts


def embed_texts(texts: Sequence[str], model: str, *, trusted: bool = True) -> NDArray[np.float32]:
    """(n, d) vectors of texts by a model of the Hugging Face hub, or of a folder unless it is not ``trusted``."""
    if not trusted and Path(model).exists():
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
        raise ValueError(
            f"model={model!r} cannot be loaded: {reason_of(error)}. Give the name of a sentence-transformers model, or "
            "a folder."
        ) from error
    vectors = loaded.encode(list(texts), show_progress_bar=len(texts) > 2000)
    return np.asarray(vectors, np.float32)


def vectors_file(folder: Path, texts: Sequence[str], model: str) -> Path:
    """Where a run keeps the vectors of its texts. The name has a hash of the texts and of the name of the model."""
    digest = hashlib.sha256(json.dumps([model, *texts]).encode()).hexdigest()
    return folder / f"texts-{digest[:16]}.npy"
