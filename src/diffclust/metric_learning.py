"""An adapter for pytorch-metric-learning: our loss as one of its losses, for code that asks for its base class.

Where only ``loss(embeddings, labels)`` is called, :class:`diffclust.nn.PartialFenchelYoungLoss` serves as it is. The
package's wrappers accept losses of a fixed list of names, so those that make sense here are subclassed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from pytorch_metric_learning import losses as theirs
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "diffclust.metric_learning needs pytorch-metric-learning. Install it with: pip install "
        "'diffclust[metric-learning]'"
    ) from error

import torch
from torch import Tensor

from diffclust import losses, nn
from diffclust.constraints import Constraints
from diffclust.noise import Noise

NO_TUPLES = "Mined tuples have no meaning for a clustering loss: pass indices_tuple=None, no miner."


class PartialFenchelYoungLoss(theirs.BaseMetricLossFunction):
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
            raise ValueError(NO_TUPLES)
        if ref_emb is not None and ref_labels is not None and ref_emb is not embeddings:
            embeddings, labels = torch.cat([embeddings, ref_emb]), torch.cat([labels, ref_labels])
        loss = self.loss(embeddings, labels)
        return {"loss": {"losses": loss, "indices": None, "reduction_type": "already_reduced"}}


class CrossBatchMemory(theirs.CrossBatchMemory):
    """pytorch-metric-learning's CrossBatchMemory for our loss: a batch is clustered together with earlier rows.

    The package's own class refuses losses that it does not know, compares pairs, and puts the batch into its memory
    before the loss. A copy of each row at distance zero would mislead a clustering, so here the batch comes after it.

    Args:
        loss: a :class:`PartialFenchelYoungLoss`. Its ``n_clusters`` is that of batch and memory together.
        embedding_size: width of the embeddings.
        memory_size: earlier rows that are kept.

    Example:
        >>> memory = CrossBatchMemory(PartialFenchelYoungLoss(2, seed=0), embedding_size=1, memory_size=8)
        >>> batch, labels = torch.tensor([[0.0], [0.1], [5.0], [5.1]]), torch.tensor([0, -1, 1, -1])
        >>> [float(memory(batch + step, labels)) for step in (0.0, 0.2)], memory.queue_idx
        ([0.0, 0.0], 0)
    """

    embedding_memory: Tensor
    label_memory: Tensor

    def __init__(self, loss: PartialFenchelYoungLoss, embedding_size: int, memory_size: int = 1024) -> None:
        super().__init__(loss, embedding_size, memory_size)

    @staticmethod
    def supported_losses() -> list[str]:
        """The names of losses that may be wrapped."""
        return [PartialFenchelYoungLoss.__name__]

    def forward(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Any = None, enqueue_mask: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch and the memory.

        Args:
            embeddings: (n, d).
            labels: (n,), -1 where unknown.
            indices_tuple: None.
            enqueue_mask: (n,) which rows go to the memory, and only there (a momentum encoder's); None takes the loss
                of all rows, and then keeps them all.

        Returns:
            The loss, reduced as the wrapped one's.

        Raises:
            ValueError: ``indices_tuple`` is given.
        """
        if indices_tuple is not None:
            raise ValueError(NO_TUPLES)
        self.reset_stats()
        self.embedding_memory = self.embedding_memory.to(embeddings)
        self.label_memory = self.label_memory.to(labels)
        if enqueue_mask is not None:
            self.add_to_memory(embeddings[enqueue_mask], labels[enqueue_mask], int(enqueue_mask.sum()))
            embeddings, labels = embeddings[~enqueue_mask], labels[~enqueue_mask]
        kept = self.memory_size if self.has_been_filled else self.queue_idx
        earlier = self.embedding_memory[:kept].clone(), self.label_memory[:kept].clone()
        loss = self.loss(embeddings, labels, ref_emb=earlier[0], ref_labels=earlier[1])
        if enqueue_mask is None:
            self.add_to_memory(embeddings, labels, len(embeddings))
        return loss


class SelfSupervisedLoss(theirs.SelfSupervisedLoss):
    """pytorch-metric-learning's SelfSupervisedLoss for our loss: two views of a row are in one cluster.

    Rows may share a cluster, so what is known is only that views belong together. (The package's own class gives each
    row a class of its own.)

    Args:
        loss: a :class:`PartialFenchelYoungLoss`.

    Example:
        >>> loss = SelfSupervisedLoss(PartialFenchelYoungLoss(2, seed=0))
        >>> views = torch.tensor([[0.0], [0.3], [5.0]])
        >>> float(loss(views, views + 0.1)), float(loss(views, views.flip(0))) > 0
        (0.0, True)
    """

    def __init__(self, loss: PartialFenchelYoungLoss) -> None:
        super().__init__(loss)

    @staticmethod
    def supported_losses() -> list[str]:
        """The names of losses that may be wrapped."""
        return [PartialFenchelYoungLoss.__name__]

    def forward(self, embeddings: Tensor, ref_emb: Tensor) -> Tensor:
        """The loss of two views, (n, d) each, of the same rows in the same order."""
        n = len(embeddings)
        views = Constraints.from_pairs(2 * n, must_link=[(row, n + row) for row in range(n)])
        return self.loss.loss(torch.cat([embeddings, ref_emb]), views)
