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
from diffclust.noise import Noise


class PartialFenchelYoungLoss(BaseMetricLossFunction):
    """:class:`diffclust.nn.PartialFenchelYoungLoss` inside pytorch-metric-learning's wrappers.

    Clustering looks at all points of a batch at once, so mined tuples have no meaning here: ``indices_tuple`` must be
    None. Reference embeddings are clustered together with the batch.

    Args:
        n_clusters: k. A batch that misses classes, or shows more than k, moves it into the feasible range.
        epsilon: scale of the noise.
        n_draws: number of Monte-Carlo draws.
        noise: "normal", "gumbel" or a :class:`diffclust.noise.Noise`.
        antithetic: draws come in pairs Z, -Z.
        seed: of the noise; None draws one from torch's global generator, now.
        must_link_first: True takes must-link pairs before all others, as the paper does; see
            :func:`diffclust.spanning_forest`.
        similarity: "sqeuclidean" (negative squared distances), "cosine", or a function (..., n, d) → (..., n, n).
        reachability: m for robust linkage, the :func:`diffclust.mutual_reachability` of m neighbours; None for the
            similarity itself.
        standardize: give the similarities zero mean and unit deviation in every batch, as the paper's code does.
        strict: raise instead of moving k.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an argument is out of its range.

    Example:
        >>> loss = PartialFenchelYoungLoss(n_clusters=2, seed=0)
        >>> float(loss(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), torch.tensor([0, 0, 1, 1])))
        0.0
    """

    def __init__(
        self,
        n_clusters: int,
        *,
        epsilon: float = losses.EPSILON,
        n_draws: int = losses.N_DRAWS,
        noise: str | Noise = "normal",
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
            n_clusters,
            epsilon=epsilon,
            n_draws=n_draws,
            noise=noise,
            antithetic=antithetic,
            seed=seed,
            must_link_first=must_link_first,
            similarity=similarity,
            reachability=reachability,
            standardize=standardize,
            strict=strict,
        )

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Any, ref_emb: Tensor | None, ref_labels: Tensor | None
    ) -> dict[str, Any]:
        """What the base class reduces: one loss over all rows."""
        if indices_tuple is not None:
            raise ValueError("Mined tuples have no meaning for a clustering loss: pass indices_tuple=None, no miner.")
        if ref_emb is not None and ref_labels is not None and ref_emb is not embeddings:
            embeddings, labels = torch.cat([embeddings, ref_emb]), torch.cat([labels, ref_labels])
        loss = self.loss(embeddings, labels)
        return {"loss": {"losses": loss, "indices": None, "reduction_type": "already_reduced"}}
