"""PyTorch modules: ``loss(embeddings, labels)`` as metric-learning users expect, and a clustering layer.

The modules keep their place in the stream of noise in two buffers, so that ``state_dict`` saves it, a resumed run
goes on with the same noise, and a captured CUDA graph draws fresh noise at every replay. The stream moves on in
training mode only: evaluation is repeatable and does not disturb training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:  # pragma: no cover
    raise ImportError("diffclust.nn needs PyTorch. Install it with: pip install 'diffclust[torch]'") from error

from diffclust import losses, perturbed
from diffclust import similarity as similarities
from diffclust.bindings import torch as binding
from diffclust.bindings.torch_similarity import standardized_distances
from diffclust.constraints import Constraints
from diffclust.frameworks import check_at_least, is_integer, smaller
from diffclust.noise import Noise
from diffclust.validation import check_choice, check_draws, check_hard, prepare

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

SIMILARITIES: dict[str, Callable[[Any], Any]] = {
    "sqeuclidean": similarities.negative_squared_distances,
    "cosine": similarities.cosine_similarities,
}


def _distributed() -> ModuleType:
    """The module for several ranks. It makes torch import its compiler, which takes a second."""
    from diffclust import distributed

    return distributed


class _OnEmbeddings(nn.Module):
    """What the modules share: embeddings, of all ranks if asked for, → similarity."""

    def __init__(
        self,
        n_clusters: int,
        *,
        similarity: str | Callable[[Tensor], Tensor] = "sqeuclidean",
        reachability: int | None = None,
        standardize: bool = True,
        gather: bool | ProcessGroup = False,
    ) -> None:
        super().__init__()
        self.n_clusters = check_at_least("n_clusters", n_clusters)
        is_name = isinstance(similarity, str)
        if not callable(similarity) and not (is_name and similarity in SIMILARITIES):
            wrong = ValueError if is_name else TypeError
            raise wrong(f"similarity must be one of {tuple(SIMILARITIES)} or a function, got {similarity!r}.")
        if reachability is not None and not (is_integer(reachability) and reachability >= 1):
            raise ValueError(f"reachability must be None or an integer from 1, got {reachability!r}.")
        self.similarity = similarity
        self.reachability = reachability
        self.standardize = standardize
        self.gather = gather

    def similarities(self, embeddings: Tensor) -> Tensor:
        """(..., n, d) → (..., n, n), standardised unless ``standardize=False``."""
        if self.similarity == "sqeuclidean" and self.standardize and self.reachability is None:
            return standardized_distances(embeddings)
        function = SIMILARITIES[self.similarity] if isinstance(self.similarity, str) else self.similarity
        result = function(embeddings)
        if self.reachability is not None and result.shape[-1] > 1:
            neighbors = smaller(self.reachability, result.shape[-1] - 1)
            result = similarities._mutual_reachability(result, neighbors)
        return similarities.standardize(result) if self.standardize else result

    def _gathers(self) -> bool:
        return bool(self.gather) and _distributed().n_ranks(self._group()) > 1

    def _group(self) -> Any:
        """A process group, or None for all ranks."""
        return None if self.gather is True else self.gather

    def gathered(self, embeddings: Tensor) -> Tensor:
        """The embeddings of all ranks with ``gather=True``, else those given."""
        return self._of_all_ranks(embeddings)[0] if self._gathers() else embeddings

    def _of_all_ranks(self, embeddings: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Embeddings and labels of all ranks; the place in the stream of noise becomes rank 0's."""
        if embeddings.ndim != 2:
            raise ValueError(f"gather=True is for one problem, embeddings (n, d), got {tuple(embeddings.shape)}.")
        sizes = _distributed().agree(embeddings, labels, *self._noise_position(), group=self._group())
        return _distributed().gather_rows(embeddings, labels, sizes, self._group())

    def _gather_known(self, embeddings: Tensor, labels: Tensor | Constraints) -> tuple[Tensor, Constraints]:
        """Embeddings of all ranks and what is known about them; constraints are those of all ranks already."""
        if isinstance(labels, Constraints):
            return self.gathered(embeddings), labels
        embeddings, gathered = self._of_all_ranks(embeddings, labels)
        return embeddings, Constraints.from_labels(gathered)

    def _noise_position(self) -> tuple[Tensor, ...]:
        """Where in the stream of noise the module is, if it has one."""
        return ()

    def _constraints(self, embeddings: Tensor, labels: Tensor | Constraints) -> Constraints:
        known = labels if isinstance(labels, Constraints) else Constraints.from_labels(labels)
        if known.n_points != embeddings.shape[-2]:
            raise ValueError(
                f"labels are for {known.n_points} points, embeddings of shape {tuple(embeddings.shape)} are "
                f"{embeddings.shape[-2]}."
            )
        return known


class _Perturbed(_OnEmbeddings):
    """A module with noise, and its place in the stream of it."""

    noise_seed: Tensor
    noise_counter: Tensor

    def _set_noise(self, epsilon: float, n_draws: int, noise: str | Noise, antithetic: bool, seed: int | None) -> None:
        check_draws(torch.empty(0), epsilon, n_draws, noise, 0, 0, antithetic)
        self.epsilon = epsilon
        self.n_draws = n_draws
        self.noise = noise
        self.antithetic = antithetic
        if seed is None:
            seed = int(torch.randint(0, 2**63 - 1, ()))
        self.register_buffer("noise_seed", binding.as_integer("seed", seed, torch.device("cpu")).clone())
        self.register_buffer("noise_counter", torch.zeros((), dtype=torch.int64))

    def _noise_position(self) -> tuple[Tensor, ...]:
        return self.noise_seed, self.noise_counter

    def _draws(self, embeddings: Tensor) -> dict[str, Any]:
        """Arguments that say which noise, and a step along the stream."""
        first, seed = self.noise_counter.clone(), self.noise_seed
        if self.training:
            self.noise_counter += self.n_draws
        if embeddings.device != first.device:  # a module left on the CPU still serves
            first, seed = first.to(embeddings.device), seed.to(embeddings.device)
        return {
            "epsilon": self.epsilon,
            "n_draws": self.n_draws,
            "noise": self.noise,
            "antithetic": self.antithetic,
            "seed": seed,
            "first_draw": first,
        }

    def _connectivity(self) -> Callable[..., Tensor]:
        """The function that makes the soft connectivity, of the draws of all ranks if they share one clustering."""
        if self._gathers():
            return functools.partial(_distributed().connectivity, group=self._group())
        return binding.connectivity

    def extra_repr(self) -> str:
        """The settings that ``print`` shows."""
        return (
            f"n_clusters={self.n_clusters}, epsilon={self.epsilon}, n_draws={self.n_draws}, noise={self.noise!r}, "
            f"similarity={self.similarity!r}, standardize={self.standardize}"
        )


class _Loss(_Perturbed):
    """A loss.

    ``noise_scale`` is None or a 0-d tensor that multiplies epsilon in training: noise that changes, in a captured step,
    too. Evaluation has epsilon.
    """

    noise_scale: Tensor | None

    def _set_reduction(self, reduction: str, strict: bool) -> None:
        check_choice("reduction", reduction, losses.REDUCTIONS)
        self.reduction = reduction
        self.strict = strict
        # After the other buffers: torch.export mistakes their order behind one that is None.
        self.register_buffer("noise_scale", None, persistent=False)

    def forward(self, embeddings: Tensor, labels: Tensor | Constraints) -> Tensor:
        """The loss of a batch.

        Args:
            embeddings: (n, d), or (..., n, d) for several problems.
            labels: integers (n,) or (..., n), negative where unknown; or what is known as :class:`Constraints`.

        Returns:
            A scalar, or with ``reduction="none"`` one loss per problem.
        """
        if not self._gathers():
            return self._loss(embeddings, labels, self._draws(embeddings))
        embeddings, known = self._gather_known(embeddings, labels)
        return self._loss_over_ranks(embeddings, known, self._draws(embeddings))

    def _scale(self) -> Tensor | None:
        return self.noise_scale if self.training else None

    def _scaled_similarities(self, embeddings: Tensor) -> Tensor:
        """Divided by the noise's scale, because Σ / c + εZ has the forests of Σ + cεZ."""
        similarity, scale = self.similarities(embeddings), self._scale()
        return similarity if scale is None else similarity / scale

    def _loss(self, embeddings: Tensor, labels: Tensor | Constraints, draws: dict[str, Any]) -> Tensor:
        raise NotImplementedError

    def _loss_over_ranks(self, embeddings: Tensor, labels: Constraints, draws: dict[str, Any]) -> Tensor:
        raise NotImplementedError


class PartialFenchelYoungLoss(_Loss):
    """The partial Fenchel-Young loss of embeddings and labels, some or most of which may be unknown.

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
        reachability: m for robust linkage, the :func:`diffclust.mutual_reachability` of m neighbours (fewer in a batch
            that has fewer); None for the similarity itself.
        standardize: give the similarities zero mean and unit deviation in every batch, as the paper's code does.
        reduction: over a batch of problems, "mean", "sum" or "none".
        strict: raise instead of moving k.
        gather: True for one loss over the batches of all ranks of ``torch.distributed``, the same for any number of
            them, or a process group for one loss in each group; each rank solves a share of the draws. Labels are those
            of a rank's own rows; :class:`Constraints`, and they only, are those of the rows of all ranks. See
            :mod:`diffclust.distributed` about gradients. No effect on one rank.

    Call it with embeddings (n, d), or (..., n, d) for several problems, and integer labels (n,), -1 where unknown, or
    another negative number, such as torch's -100.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an argument is out of its range.

    Example:
        >>> loss = PartialFenchelYoungLoss(n_clusters=2, seed=0)
        >>> embeddings = torch.tensor([[0.0], [0.1], [5.0], [5.1]], requires_grad=True)
        >>> float(loss(embeddings, torch.tensor([0, 0, 1, -1])).detach())
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
        reduction: str = "mean",
        strict: bool = False,
        gather: bool | ProcessGroup = False,
    ) -> None:
        super().__init__(
            n_clusters, similarity=similarity, reachability=reachability, standardize=standardize, gather=gather
        )
        self._set_noise(epsilon, n_draws, noise, antithetic, seed)
        self._set_reduction(reduction, strict)
        self.must_link_first = must_link_first

    def _loss(self, embeddings: Tensor, labels: Tensor | Constraints, draws: dict[str, Any]) -> Tensor:
        similarity, scale = self._scaled_similarities(embeddings), self._scale()
        known = self._constraints(embeddings, labels)
        if known.soft is not None and scale is not None:
            known = replace(known, soft=torch.as_tensor(known.soft, device=scale.device) / scale)  # as the similarities
        loss = losses.partial_fenchel_young_loss(
            similarity,
            known,
            self.n_clusters,
            must_link_first=self.must_link_first,
            strict=self.strict,
            reduction=self.reduction,
            **draws,
        )
        return loss if scale is None else loss * scale

    def _loss_over_ranks(self, embeddings: Tensor, labels: Constraints, draws: dict[str, Any]) -> Tensor:
        start, count = _distributed().share_of_draws(self.n_draws, self.antithetic, self._group())
        if count == 0:
            # Without a draw of its own: 0 in the dtype of the other ranks' losses.
            local = embeddings[:0].sum().to(torch.promote_types(embeddings.dtype, torch.float32))
        else:
            own = {**draws, "first_draw": draws["first_draw"] + start, "n_draws": count}
            local = self._loss(embeddings, labels, own)
        return _distributed().mean_over_ranks(local, count / self.n_draws, self._group())


class ConnectivityLoss(_Loss):
    """Squared distance of the soft connectivity to what the labels say, over known pairs.

    Args:
        n_clusters: k. A batch that misses classes, or shows more than k, moves it into the feasible range.
        epsilon: scale of the noise.
        n_draws: number of Monte-Carlo draws.
        noise: "normal", "gumbel" or a :class:`diffclust.noise.Noise`.
        antithetic: draws come in pairs Z, -Z.
        seed: of the noise; None draws one from torch's global generator, now.
        similarity: "sqeuclidean" (negative squared distances), "cosine", or a function (..., n, d) → (..., n, n).
        reachability: m for robust linkage, the :func:`diffclust.mutual_reachability` of m neighbours (fewer in a batch
            that has fewer); None for the similarity itself.
        standardize: give the similarities zero mean and unit deviation in every batch, as the paper's code does.
        reduction: over a batch of problems, "mean", "sum" or "none".
        strict: raise instead of moving k.
        gather: True for one loss over the batches of all ranks of ``torch.distributed``, or a process group for one
            loss in each group, see :class:`PartialFenchelYoungLoss`.

    Call it with embeddings and labels as :class:`PartialFenchelYoungLoss`.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an argument is out of its range.

    Example:
        >>> loss = ConnectivityLoss(n_clusters=2, seed=0)
        >>> embeddings = torch.tensor([[0.0], [0.1], [5.0], [5.1]], requires_grad=True)
        >>> float(loss(embeddings, torch.tensor([0, 0, 1, -1])).detach())
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
        similarity: str | Callable[[Tensor], Tensor] = "sqeuclidean",
        reachability: int | None = None,
        standardize: bool = True,
        reduction: str = "mean",
        strict: bool = False,
        gather: bool | ProcessGroup = False,
    ) -> None:
        super().__init__(
            n_clusters, similarity=similarity, reachability=reachability, standardize=standardize, gather=gather
        )
        self._set_noise(epsilon, n_draws, noise, antithetic, seed)
        self._set_reduction(reduction, strict)

    def _loss(self, embeddings: Tensor, labels: Tensor | Constraints, draws: dict[str, Any]) -> Tensor:
        similarity, known = self._scaled_similarities(embeddings), self._constraints(embeddings, labels)
        check_hard(known, "ConnectivityLoss")
        problem = losses._prepare(similarity, self.n_clusters, known, self.strict)
        checked = check_draws(similarity, **draws)
        return losses._connectivity_loss(problem, checked, self.reduction, self._connectivity())

    _loss_over_ranks = _loss


class PerturbedClustering(_Perturbed):
    """A layer: embeddings (..., n, d) → soft connectivity (..., n, n), differentiable.

    Args:
        n_clusters: k.
        epsilon: scale of the noise.
        n_draws: number of Monte-Carlo draws.
        noise: "normal", "gumbel" or a :class:`diffclust.noise.Noise`.
        antithetic: draws come in pairs Z, -Z.
        seed: of the noise; None draws one from torch's global generator, now.
        must_link_first: of the constraints that a call may have, see :func:`diffclust.spanning_forest`.
        similarity: "sqeuclidean" (negative squared distances), "cosine", or a function (..., n, d) → (..., n, n).
        reachability: m for robust linkage, the :func:`diffclust.mutual_reachability` of m neighbours (fewer in a batch
            that has fewer); None for the similarity itself.
        standardize: give the similarities zero mean and unit deviation in every batch, as the paper's code does.
        gather: True, or a process group, for the rows of all ranks together. Constraints are then those of all ranks'
            rows, the same on all ranks.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an argument is out of its range.

    Example:
        >>> layer = PerturbedClustering(n_clusters=2, seed=0)
        >>> layer(torch.tensor([[0.0], [0.1], [5.0]]))[0].tolist()
        [1.0, 1.0, 0.0]
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
        gather: bool | ProcessGroup = False,
    ) -> None:
        super().__init__(
            n_clusters, similarity=similarity, reachability=reachability, standardize=standardize, gather=gather
        )
        self._set_noise(epsilon, n_draws, noise, antithetic, seed)
        self.must_link_first = must_link_first

    def forward(self, embeddings: Tensor, constraints: Constraints | None = None) -> Tensor:
        """The soft connectivity of a batch.

        Args:
            embeddings: (..., n, d).
            constraints: what is known about these points.

        Returns:
            For each pair the share of draws in which it is in one cluster, (..., n, n).
        """
        similarity = self.similarities(self.gathered(embeddings))
        draws = check_draws(similarity, **self._draws(embeddings))
        problem = prepare(similarity, self.n_clusters, constraints)
        return self._connectivity()(problem.given, perturbed.request_of(problem, draws, self.must_link_first))
