"""A loss for sentence-transformers' trainer: texts, and the labels of some of them.

``SentenceTransformerTrainer(model, train_dataset=texts, loss=PartialFenchelYoungLoss(model, n_clusters=77)).train()``
trains a model on a dataset with a column of texts and a column "label" of integers, -1 where unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from diffclust import nn
from diffclust.training.data import batch_constraints


class PartialFenchelYoungLoss(torch.nn.Module):
    """:class:`diffclust.nn.PartialFenchelYoungLoss` as sentence-transformers calls a loss.

    Further columns of texts are other views of the same row, which belong together: a paraphrase, a neighbour, or the
    same text once more, which dropout makes another view.

    Args:
        model: the SentenceTransformer that is trained.
        n_clusters: k.
        **settings: of :class:`diffclust.nn.PartialFenchelYoungLoss`.

    Example:
        >>> def model(texts):  # in place of a SentenceTransformer
        ...     return {"sentence_embedding": texts["input"]}
        >>> loss = PartialFenchelYoungLoss(model, n_clusters=2, seed=0)
        >>> texts = {"input": torch.tensor([[0.0], [0.1], [5.0], [5.1]])}
        >>> float(loss([texts], torch.tensor([0, 0, 1, -1]))), float(loss([texts, texts], torch.tensor([0, 0, 1, -1])))
        (0.0, 0.0)
    """

    def __init__(self, model: Any, n_clusters: int, **settings: Any) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.PartialFenchelYoungLoss(n_clusters, **settings)

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """The loss of a batch.

        Args:
            sentence_features: the tokens of each column of texts.
            labels: (n,) integers, -1 where unknown.

        Returns:
            The loss, a scalar.
        """
        views = [self.model(tokens)["sentence_embedding"] for tokens in sentence_features]
        known = batch_constraints(labels.repeat(len(views)), None, len(views))
        return self.loss(torch.cat(views), known)
