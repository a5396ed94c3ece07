"""An adapter for pytorch-metric-learning: our loss as one of its losses, for code that asks for its base class.

Where only ``loss(embeddings, labels)`` is called, :class:`diffclust.nn.PartialFenchelYoungLoss` serves as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from pytorch_metric_learning.losses import BaseMetricLossFunction
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "diffclust.metric_learning needs pytorch-metric-learning. Install it with: pip install "
        "'diffclust[metric-learning]'"
    ) from error

import torch
from torch import Tensor

from diffclust import losses, nn


class PartialFenchelYoungLoss(BaseMetricLossFunction):
    """:class:`diffclust.nn.PartialFenchelYoungLoss` inside pytorch-metric-learning's wrappers.

    Clustering looks at all points of a batch at once, so mined tuples have no meaning here: ``indices_tuple`` must be
    None. Reference embeddings are clustered together with the batch.

    The arguments are those of :class:`diffclust.nn.PartialFenchelYoungLoss`, but for ``reduction`` and ``gather``.
    """

    def __init__(
        self,
        n_clusters: int,
        *,
        epsilon: float = losses.EPSILON,
        n_draws: int = losses.N_DRAWS,
        noise: str = "normal",
        antithetic: bool = False,
        seed: int | None = None,
        must_link_first: bool = losses.MUST_LINK_FIRST,
        similarity: str | Callable[[Tensor], Tensor] = "sqeuclidean",
        reachability: int | None = None,
        standardize: bool = True,
        strict: bool = False,
    ) -> None:
        super().__init__()
        self.loss = nn.PartialFenchelYoungLoss(
            n_clusters, epsilon=epsilon, n_draws=n_draws, noise=noise, antithetic=antithetic, seed=seed,
            must_link_first=must_link_first, similarity=similarity, reachability=reachability, standardize=standardize,
            strict=strict,
        )  # fmt: skip

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Any, ref_emb: Tensor | None, ref_labels: Tensor | None
    ) -> dict[str, Any]:
        if indices_tuple is not None:
            raise ValueError("Mined tuples have no meaning for a clustering loss: pass indices_tuple=None, no miner.")
        if ref_emb is not None and ref_labels is not None and ref_emb is not embeddings:
            embeddings, labels = torch.cat([embeddings, ref_emb]), torch.cat([labels, ref_labels])
        loss = self.loss(embeddings, labels)
        return {"loss": {"losses": loss, "indices": None, "reduction_type": "already_reduced"}}
