"""Input scaling, backbone and loss in one Lightning module."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from diffclust import nn as modules
from diffclust.backbones import Committee, InputScaling, Residual, is_image, make_backbone
from diffclust.constraints import Constraints
from diffclust.forest import spanning_forest
from diffclust.frameworks import to_numpy
from diffclust.groups import UNKNOWN
from diffclust.metrics import SCORES
from diffclust.training.data import LONGEST_BLOCK, Block, shape_of_batch
from diffclust.training.settings import MONITORS, TrainingConfig
from diffclust.training.steps import Steps, seed_step

LOG = logging.getLogger("diffclust.training")
START_ROWS = 10_000  # a residual network starts from the principal components of about this many rows
CURVE_POINTS = 30  # at most, of the curve at the final noise
LEAST_STEPS = 20  # between two of them, so that they cost little


@contextmanager
def usual_tensors() -> Iterator[None]:
    """A context, or a decorator, in which new tensors are 32-bit floats on the CPU, whatever torch's defaults are."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    torch.set_default_dtype(torch.float32)
    try:
        with nullcontext() if device.type == "cpu" else torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)


class CrossEntropy(modules._OnEmbeddings):
    """The baseline's loss: cross-entropy of a linear layer, on the labelled rows. Labels are below k."""

    noise_scale: Tensor | None = None

    def __init__(self, n_clusters: int, *, similarity: Any, reachability: int | None) -> None:
        super().__init__(n_clusters, similarity=similarity, reachability=reachability)
        self.logits = nn.LazyLinear(n_clusters)

    def forward(self, embeddings: Tensor, labels: Tensor | Constraints) -> Tensor:
        """The loss of a batch."""
        if self._gathers():
            embeddings, labels = self._gather_known(embeddings, labels)
        logits, classes = self.logits(embeddings), self._constraints(embeddings, labels).labels
        if embeddings.ndim == 2:
            return nn.functional.cross_entropy(logits, classes, ignore_index=UNKNOWN)
        problems = zip(logits, classes, strict=True)  # one by one, because their numbers of labels may differ
        return torch.stack([nn.functional.cross_entropy(*each, ignore_index=UNKNOWN) for each in problems]).mean()


def check_finite(loss: Tensor, n_steps: int, config: TrainingConfig, name: str = "The loss") -> None:
    """Raises a FloatingPointError for a loss that is NaN or infinite. It waits for the GPU: not for every step."""
    if not torch.isfinite(loss):
        raise FloatingPointError(
            f"{name} is {float(loss.detach())} after {n_steps} steps: training diverged. Lower learning_rate "
            f"({config.learning_rate}) or look for extreme values in x."
        )


def count_steps(trainer: pl.Trainer, n: int) -> None:
    """Counts ``n`` more steps. Lightning counts a block as one step, and a checkpoint must have the number of steps."""
    loop = trainer.fit_loop.epoch_loop
    loop.batch_progress.increment_by(n, loop.batch_progress.is_last_batch)
    loop.automatic_optimization.optim_progress.optimizer.step.increment_by(n)
    loop._batches_that_stepped += n
    for each in trainer.lr_scheduler_configs:
        each.scheduler.last_epoch += n
        each.scheduler._step_count += n


def pair_scores(found: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Clustering errors (...) and adjusted Rand indices (...) of clusters (..., n), over the labelled points.

    >>> [each.tolist() for each in pair_scores(torch.tensor([[5, 5, 5, 7]]), torch.tensor([[0, 0, 1, 1]]))]
    [[0.375], [0.0]]
    """
    problems = zip(*(to_numpy(each).reshape(-1, each.shape[-1]) for each in (labels, found)), strict=True)
    scores = [
        [SCORES[name].function(true[true >= 0], pred[true >= 0]) for name in ("error", "ari")]
        for true, pred in problems
    ]
    error, ari = torch.tensor(scores, dtype=torch.float64).reshape(*labels.shape[:-1], 2).unbind(-1)
    return error, ari


def make_loss(config: TrainingConfig) -> modules.PartialFenchelYoungLoss | CrossEntropy:
    """The loss of a step."""
    if config.objective == "cross-entropy":
        return CrossEntropy(config.k, similarity=config.similarity, reachability=config.reachability)
    loss = modules.PartialFenchelYoungLoss(
        config.k,
        epsilon=float(config.epsilon),
        n_draws=config.n_draws,
        noise=config.noise,
        seed=config.seed,
        must_link_first=config.must_link_first,
        similarity=config.similarity,
        reachability=config.reachability,
    )
    if config.noise_start != 1:
        loss.noise_scale = torch.ones(())
    return loss


def rehearse(config: TrainingConfig, labels: Tensor, apart: NDArray[np.bool_] | None, gpu: torch.device) -> None:
    """Starts to compile what the loss of a step needs on a GPU. Nothing waits for it but the loss.

    Args:
        config: without "auto".
        labels: of all rows; a batch of them is as one of training, in its shapes.
        apart: as in :func:`diffclust.training.data.batch_constraints`.
        gpu: the device.
    """
    from diffclust.solvers.kernels.ahead import compile_only

    try:
        with compile_only(gpu):
            known = shape_of_batch(config, labels.to(gpu), apart)
            n, width = known.n_points, int(config.embedding_dim)
            embeddings = torch.linspace(0, 1, n * width, device=gpu).reshape(n, width)
            make_loss(config)(embeddings.requires_grad_(), known).backward()
    except Exception as error:  # the first step raises it, too
        LOG.debug("Kernels are not compiled ahead: %s: %s", type(error).__name__, error)


class ForestModule(pl.LightningModule):
    """Input scaling, backbone and loss. ``module(x)`` gives the embeddings of a tensor of rows.

    Attributes:
        loss_curve: the loss of every step so far.
        validations: a dictionary for every validation, with step, val_loss, val_error and val_ari.
        final_noise_losses: where the noise changes from step to step, a dictionary of step and loss for some steps: the
            loss of the first batch, always with the noise of the last step. These losses can be compared.
        not_captured: why it was trained on a GPU without the replay of a captured step; "" where the step was captured,
            and on the CPU.
    """

    losses: Tensor

    def __init__(self, config: TrainingConfig, input_shape: tuple[int, ...], backbone: Any = None) -> None:
        super().__init__()
        config = config.resolve(tuple(input_shape))
        backbone = config.backbone if backbone is None else backbone
        self.save_hyperparameters({"config": config.to_dict(), "input_shape": list(input_shape)})
        self.config, self.input_shape = config, tuple(input_shape)
        if config.augment is not None and not is_image(self.input_shape):
            raise ValueError(
                f"augment={config.augment!r} is for images (H, W) or (C, H, W), got rows of shape {self.input_shape}."
            )
        self.scaling = InputScaling(self.input_shape, config.scaling)
        self.backbone = make_backbone(backbone, self.input_shape, int(config.embedding_dim))
        self.loss = make_loss(config)
        self.register_buffer("losses", torch.full((config.n_steps,), torch.nan))
        self.validations: list[dict[str, float]] = []
        self.final_noise_losses: list[dict[str, float]] = []
        self.not_captured = ""
        self._steps: Steps | None = None  # that take blocks, if batches are blocks
        self._first_batch: tuple[Tensor, Constraints] | None = None

    @property
    def n_steps(self) -> int:
        """Steps in all."""
        return self.config.n_steps

    @property
    def done(self) -> int:
        """Steps so far."""
        return self.global_step

    @property
    def loss_curve(self) -> NDArray[np.float32]:
        """The loss of every step so far."""
        curve = self.losses.cpu().numpy()
        return curve[~np.isnan(curve)]

    def forward(self, x: Tensor) -> Tensor:
        """(n, embedding_dim) embeddings of rows (n, ...)."""
        return self.backbone(self.scaling(x))

    def check_backbone(self, rows: Tensor) -> Tensor:
        """The embeddings of some rows, or a ValueError if the backbone does not fit them."""
        name, shape = f"backbone {self.config.backbone!r}", tuple(rows.shape[1:])
        try:
            with torch.no_grad():
                embeddings = self.eval()(rows)
        except Exception as error:  # a network of the user may raise anything
            raise ValueError(f"{name} does not take rows of shape {shape}: {error}.") from error
        self.train()
        if embeddings.ndim != 2 or len(embeddings) != len(rows):
            raise ValueError(
                f"{name} must give a vector for each row, shape ({len(rows)}, ...), got {tuple(embeddings.shape)} for "
                f"{len(rows)} rows."
            )
        if not any(parameter.requires_grad for parameter in self.backbone.parameters()):
            raise ValueError(f"{name} has no parameters to train.")
        return embeddings

    def on_fit_start(self) -> None:
        """On several ranks, the loss is one over the rows of all."""
        self.loss.gather = self.trainer.world_size > 1

    def on_fit_end(self) -> None:
        """The trained module stands alone again."""
        self.loss.gather = False
        self._first_batch = None

    def on_train_start(self) -> None:
        """Where batches are blocks, prepares their steps."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if data.in_blocks:
            longest = min(LONGEST_BLOCK[self.device.type], self.config.validate_every)
            self._steps = Steps([self], [data], self.trainer.optimizers, self.done, longest)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seeds the step and sets its noise."""
        if self._steps is not None:
            return
        self._measure_before(self.global_step)  # before the seed of the step, so that the step does not depend on it
        seed_step(self.device, self.config.seed, self.global_step, self.global_rank)
        if self.loss.noise_scale is not None:
            self.loss.noise_scale.fill_(self.config.noise_scale(self.global_step))

    def on_train_end(self) -> None:
        """Measures the last point of the curve at the final noise, and frees what only steps need."""
        if self.loss.noise_scale is not None and self.global_step == self.n_steps:
            self._measure_at_final_noise(self.n_steps)
        self._read_measured()
        if self._steps is not None:
            self._steps = None
            for parameter in self.parameters():
                parameter.grad = None  # it may be in the memory of the graph

    def _measure_before(self, step: int) -> None:
        """Measures the loss at the final noise before every so many steps."""
        every = max(LEAST_STEPS, -(-self.n_steps // CURVE_POINTS))
        if self.loss.noise_scale is not None and step % every == 0:
            self._measure_at_final_noise(step)

    @torch.no_grad()
    def _measure_at_final_noise(self, step: int) -> None:
        """Appends to ``final_noise_losses``. Batch and draws are those of the first step; nothing else changes."""
        if self._first_batch is None:
            self._first_batch = self.trainer.datamodule.first_batch(self.device)  # type: ignore[attr-defined]
        x, known = self._first_batch
        counter, modes = self.loss.get_buffer("noise_counter"), [(each, each.training) for each in self.modules()]
        self.eval()  # the loss then has the final noise and does not move its counter
        self.loss.noise_counter = torch.zeros_like(counter)
        try:
            with self.trainer.precision_plugin.forward_context():
                loss = self.loss(self(x), known)
        finally:
            self.loss.noise_counter = counter
            for each, mode in modes:  # not self.train(): a backbone may keep some of its parts in evaluation mode
                each.training = mode
        torch.clear_autocast_cache()  # within a block of steps: the weights move on, and their casts must not stay
        self.final_noise_losses.append({"step": step, "loss": loss})  # not read yet, which would wait for the GPU

    def _read_measured(self) -> None:
        for each in self.final_noise_losses:
            each["loss"] = float(each["loss"])

    def half_precision(self) -> torch.autocast:
        """A context for the forward pass of a step."""
        halved = self.config.precision == "bf16-mixed"
        # Without a cache: cast weights must not be used after the graph that holds them.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=halved, cache_enabled=False)

    def loss_of_step(self, embeddings: Tensor, known: Constraints) -> Tensor:
        """The loss of what the network gives in training; of a committee the mean over its networks."""
        if not isinstance(self.backbone, Committee):
            return self.loss(embeddings, known)
        return torch.stack([self.loss(each, known) for each in embeddings]).mean()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        """The loss of a batch, which is recorded; or all steps of a block, after which Lightning has nothing to do."""
        if self._steps is not None:
            self._take_block(self._steps, batch)
            return None
        x, known = batch
        loss = self.loss_of_step(self(x), known)
        self.losses[self.global_step] = loss.detach()
        self.log("loss", loss, prog_bar=True, batch_size=len(x))
        if (self.global_step + 1) % self.config.validate_every == 0:
            check_finite(loss, self.global_step + 1, self.config)
        return loss

    def _take_block(self, steps: Steps, block: Block) -> None:
        first = steps.done
        steps.run([block], [0], self._measure_before, lambda: self.trainer.should_stop)
        self.not_captured = steps.not_captured
        losses = self.losses[first : steps.done].cpu()
        check_finite(losses[-1], steps.done, self.config)
        count_steps(self.trainer, steps.done - first - 1)
        for step, loss in enumerate(losses[:-1].tolist(), first):
            if (step + 1) % self.trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
                for logger in self.trainer.loggers:
                    logger.log_metrics({"loss": loss, "epoch": 0}, step)
        self.log("loss", losses[-1], prog_bar=True, batch_size=block[0].shape[1])

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None, **options: Any
    ) -> None:
        """Lightning calls this for the step of a batch; a block has taken its steps when its closure ends."""
        if self._steps is not None:
            optimizer_closure()
        else:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure, **options)

    def validation_step(self, batch: tuple[Tensor, Constraints], batch_idx: int) -> None:
        """Logs loss, clustering error and ARI of a batch."""
        x, known = batch
        embeddings = self(x)
        similarity = self.loss.similarities(self.loss.gathered(embeddings))
        forest = spanning_forest(similarity, min(self.config.k, len(similarity)))
        labels = known.labels if known.relation is None else known.groups()[0]
        error, ari = pair_scores(forest.labels, torch.as_tensor(labels, device=similarity.device))
        values = {"val_loss": self.loss(embeddings, known), "val_error": float(error), "val_ari": float(ari)}
        self.log_dict(values, on_epoch=True, prog_bar=True, batch_size=1)

    def on_validation_epoch_end(self) -> None:
        """Records the means over all batches."""
        measured = {name: float(self.trainer.callback_metrics[name]) for name in MONITORS}
        self.validations.append({"step": self.global_step, **measured})

    def configure_optimizers(self) -> Any:
        """AdamW with the schedule of the config."""
        optimizer = self.make_optimizer(fused=self.device.type == "cuda")
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.config.rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def make_optimizer(self, **options: Any) -> torch.optim.AdamW:
        """AdamW of all parameters that are trained."""
        config, parameters = self.config, [each for each in self.parameters() if each.requires_grad]
        return torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay, **options)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what was measured."""
        self._read_measured()
        checkpoint["validations"] = self.validations
        checkpoint["final_noise_losses"] = self.final_noise_losses

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes over what was measured, for the number of steps of this run."""
        self.validations = list(checkpoint["validations"])
        self.final_noise_losses = list(checkpoint["final_noise_losses"])
        losses = torch.full_like(self.losses, torch.nan, device="cpu")
        saved = checkpoint["state_dict"]["losses"].cpu()[: len(losses)]  # a resumed run may be longer or shorter
        losses[: len(saved)] = saved
        checkpoint["state_dict"]["losses"] = losses


def make_module(config: TrainingConfig, rows: Tensor, scaling: InputScaling) -> ForestModule:
    """The network before its first step. Its weights depend on ``config.seed`` and the rows alone."""
    torch.manual_seed(config.seed)
    module = ForestModule(config, tuple(rows.shape[1:]))
    module.scaling = scaling
    embeddings = module.check_backbone(rows[:2].cpu())
    if isinstance(module.backbone, (Residual, Committee)):
        some = rows[:: max(1, len(rows) // START_ROWS)]
        module.backbone.start_at(scaling(some.cpu()))
    if isinstance(module.loss, CrossEntropy):
        seed_step(module.device, config.seed, 0)
        module.loss.logits(embeddings)  # the lazy layer gets its shape, which all ranks have to know
    return module
