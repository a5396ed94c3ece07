"""Fine-tuning the last layer of a BERT for sentences with our loss, cheaply: the layers below it run once.

    states = lower_layers(texts, "all-MiniLM-L6-v2")
    layer = tune(states, vectors, known, k, seed)
    vectors = layer.embed(states)

A head like that of ``ForestEmbedding`` is trained with it and thrown away.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffclust.backbones import Residual
from diffclust.nn import PartialFenchelYoungLoss
from diffclust.training.data import batch_constraints, batch_rows

LONGEST = 64  # tokens of a text
STEPS, BATCH, LABELLED = 150, 512, 0.2
RATE, HEAD_RATE = 1e-4, 1e-3
PIECES = 4  # of a batch, by length, so that little of it is padding


def _encoder(model: str) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(model, device="cpu")[0]


def lower_layers(texts: Sequence[str], model: str) -> list[Tensor]:
    """For each text the states (tokens, width) that the last layer reads."""
    encoder = _encoder(model)
    tokens = encoder.tokenizer(list(texts), truncation=True, max_length=LONGEST)["input_ids"]
    states: list[Any] = [None] * len(texts)
    with torch.no_grad():
        for rows in np.array_split(np.argsort([len(each) for each in tokens], kind="stable"), -(-len(texts) // 128)):
            batch = encoder.tokenizer.pad({"input_ids": [tokens[row] for row in rows]}, return_tensors="pt")
            found = encoder.auto_model.eval()(**batch, output_hidden_states=True).hidden_states[-2]
            for row, each in zip(rows, found, strict=True):
                states[row] = each[: len(tokens[row])].half()
    return states


class LastLayer(torch.nn.Module):
    """The last layer, the mean over tokens, and length one."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.layer = _encoder(model).auto_model.encoder.layer[-1]

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        padded = torch.nn.utils.rnn.pad_sequence([each.float() for each in states], batch_first=True)
        lengths = torch.tensor([len(each) for each in states])[:, None]
        there = torch.arange(padded.shape[1]) < lengths
        found = self.layer(padded, attention_mask=torch.where(there, 0.0, -1e9)[:, None, None, :])
        found = found[0] if isinstance(found, tuple) else found
        return torch.nn.functional.normalize((found * there[:, :, None]).sum(1) / lengths, dim=1)

    def in_pieces(self, states: Sequence[Tensor], n_pieces: int) -> Tensor:
        order = np.argsort([len(each) for each in states], kind="stable")
        found = [self([states[row] for row in rows]) for rows in np.array_split(order, n_pieces)]
        return torch.cat(found)[torch.from_numpy(np.argsort(order))]

    @torch.no_grad()
    def embed(self, states: Sequence[Tensor]) -> np.ndarray:
        return self.eval().in_pieces(states, -(-len(states) // 256)).numpy()


def tune(
    states: Sequence[Tensor], vectors: np.ndarray, known: np.ndarray, k: int, seed: int, model: str, steps: int = STEPS
) -> LastLayer:
    """The last layer, trained on the labels (-1 unknown) of some texts; ``vectors`` are those before."""
    torch.manual_seed(seed)
    layer, head = LastLayer(model).train(), Residual((vectors.shape[1],), 64)
    head.start_at(torch.from_numpy(vectors))
    loss = PartialFenchelYoungLoss(k, epsilon=0.5, seed=seed, must_link_first=False)
    parts = [{"params": layer.parameters(), "lr": RATE}, {"params": head.parameters(), "lr": HEAD_RATE}]
    optimizer = torch.optim.AdamW(parts, weight_decay=0.0)
    labelled, others = np.flatnonzero(known >= 0), np.flatnonzero(known < 0)
    for step in range(steps):
        rows = batch_rows(seed, step, labelled, others, min(BATCH, len(known)), round(LABELLED * BATCH))
        found = head(layer.in_pieces([states[row] for row in rows], PIECES))
        value = loss(found, batch_constraints(torch.from_numpy(known[rows]), None))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return layer
