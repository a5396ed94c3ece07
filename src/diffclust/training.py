"""The one training loop: data and partial labels in, a trained embedding out. It runs on PyTorch Lightning.

    module = fit(TrainingConfig(n_clusters=10), x, y)          # y: -1 where unknown
    embeddings = embed(module, x)
    module = load("run/last.ckpt")

Everything random in step t is a pure function of (seed, t): the rows of its batch, dropout, augmentation; the loss
counts its draws of noise in its state. So a run that was killed and resumed is the run that was not.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import math
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, ProgressBar
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
    from lightning.pytorch.plugins.io import TorchCheckpointIO
    from torch import Tensor, nn
    from torch.utils.data import DataLoader, IterableDataset
except ImportError as error:
    raise ImportError(
        "Training needs PyTorch and Lightning. Install them with: pip install 'diffclust[fit]'"
    ) from error

from diffclust import nn as modules
from diffclust.backbones import InputScaling, is_image, make_backbone
from diffclust.constraints import Constraints
from diffclust.files import write_whole
from diffclust.forest import spanning_forest
from diffclust.frameworks import to_numpy
from diffclust.metrics import clustering_scores

AUGMENTATIONS = ("shift", "shift-flip")
SCHEDULES = ("constant", "cosine")
OBJECTIVES = ("forest", "cross-entropy")
MONITORS = {"val_loss": "min", "val_error": "min", "val_ari": "max"}
LAST = "last.ckpt"


# ------------------------------------------------------------------------------------------------------------------
# Settings


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """What a run is made of. ``dataclasses.replace`` changes it, ``to_dict`` makes it JSON.

    Attributes:
        n_clusters: k. Above the number of labelled classes it makes room for clusters of classes never labelled.
        objective: "forest", or "cross-entropy" of a linear layer on the embedding, the baseline.
        backbone, embedding_dim: see :func:`diffclust.backbones.make_backbone`.
        scaling: of the input, see :class:`diffclust.backbones.InputScaling`.
        augment: of training images: "shift" (by up to an eighth of the side), "shift-flip" (and mirrored), or None.
        epsilon, n_draws, noise, similarity, must_link_first: see :class:`diffclust.nn.PartialFenchelYoungLoss`.
        n_neighbors: trains on the mutual reachability of that many neighbours instead of on the similarity itself.
        batch_size: rows of a batch; large batches find the classes that are never labelled.
        labelled_fraction: share of every batch that is labelled, as far as there are labels.
        max_steps, learning_rate, weight_decay: of AdamW.
        schedule, warmup_steps: of the learning rate, "constant" or "cosine" (down to 0), after a linear warm-up.
        validation_fraction: share of the labelled rows that is held out of training.
        validate_every: steps from one validation, and one checkpoint, to the next.
        monitor: "val_loss", "val_error" or "val_ari": which validation is the best.
        patience: validations without a better one after which training stops, and then, or at the end, the best
            weights are taken. None trains to the end and takes the last.
        precision, accelerator, devices, num_nodes, strategy: of Lightning's Trainer; "auto" is CUDA or the CPU.
        seed: of everything random.
    """

    n_clusters: int
    objective: str = "forest"
    backbone: Any = "mlp"
    embedding_dim: int = 16
    scaling: str = "auto"
    augment: str | None = None
    epsilon: float = 0.5
    n_draws: int = 10
    noise: str = "normal"
    similarity: Any = "sqeuclidean"
    must_link_first: bool = False
    n_neighbors: int | None = None
    batch_size: int = 256
    labelled_fraction: float = 0.2
    max_steps: int = 300
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: str = "constant"
    warmup_steps: int = 0
    validation_fraction: float = 0.0
    validate_every: int = 100
    monitor: str = "val_loss"
    patience: int | None = None
    precision: str = "32-true"
    accelerator: str = "auto"
    devices: Any = 1
    num_nodes: int = 1
    strategy: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_clusters", "embedding_dim", "n_draws", "batch_size", "max_steps", "validate_every"):
            _check(self, name, _is_count(getattr(self, name)), "an integer, at least 1")
        for name in ("n_neighbors", "patience"):
            value = getattr(self, name)
            _check(self, name, value is None or _is_count(value), "None or an integer, at least 1")
        _check(self, "warmup_steps", self.warmup_steps == 0 or _is_count(self.warmup_steps), "an integer, at least 0")
        _check(self, "seed", self.seed == 0 or _is_count(self.seed), "an integer, at least 0")
        _check(self, "epsilon", 0 < self.epsilon < math.inf, "above 0 and finite")
        _check(self, "learning_rate", self.learning_rate > 0, "above 0")
        _check(self, "weight_decay", self.weight_decay >= 0, "at least 0")
        _check(self, "labelled_fraction", 0 < self.labelled_fraction <= 1, "above 0 and at most 1")
        _check(self, "validation_fraction", 0 <= self.validation_fraction < 1, "at least 0 and below 1")
        _check(self, "augment", self.augment in (None, *AUGMENTATIONS), f"None or one of {AUGMENTATIONS}")
        _check(self, "objective", self.objective in OBJECTIVES, f"one of {OBJECTIVES}")
        _check(self, "schedule", self.schedule in SCHEDULES, f"one of {SCHEDULES}")
        _check(self, "monitor", self.monitor in MONITORS, f"one of {tuple(MONITORS)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a backbone or similarity that is an object is named only."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: v if _is_plain(v) else f"{_OBJECT}{type(v).__qualname__}" for name, v in plain.items()}


_OBJECT = "object of type "


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 1


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str)) or (
        isinstance(value, (list, tuple)) and all(_is_plain(each) for each in value)
    )  # fmt: skip


def _check(config: TrainingConfig, name: str, ok: bool, expected: str) -> None:
    if not ok:
        raise ValueError(f"{name} must be {expected}, got {getattr(config, name)!r}.")


# ------------------------------------------------------------------------------------------------------------------
# Data


def as_rows(x: Any) -> Tensor:
    """Features (n, d) or images (n, H, W), (n, C, H, W), (n, H, W, C) as a tensor, channels first; bytes stay bytes.

    The last axis is taken for the channels where it is at most 4 long and the second one is not.
    """
    x = torch.from_numpy(np.ascontiguousarray(x)) if not isinstance(x, Tensor) else x.detach()
    if x.ndim not in (2, 3, 4):
        raise ValueError(f"x must be features (n, d) or images (n, H, W[, C]), got shape {tuple(x.shape)}.")
    if x.ndim == 4 and x.shape[-1] <= 4 < x.shape[1]:
        x = x.movedim(-1, 1)
    return x.contiguous() if x.dtype in (torch.uint8, torch.float32) else x.to(torch.float32)


def as_labels(y: Any, n_rows: int) -> Tensor:
    """(n,) integers, -1 unknown, as int64."""
    labels = torch.as_tensor(to_numpy(Constraints.from_labels(to_numpy(y)).labels))
    if labels.shape != (n_rows,):
        raise ValueError(f"y must have one label per row of x, {n_rows}, got shape {tuple(labels.shape)}.")
    return labels


def batch_rows(
    seed: int, step: int, labelled: NDArray[np.int64], unlabelled: NDArray[np.int64], size: int, n_labelled: int,
    rank: int = 0,
) -> NDArray[np.int64]:  # fmt: skip
    """The rows of the batch of one step, a pure function of (seed, step, rank).

    ``n_labelled`` of ``size`` are labelled; where there are not enough of one kind, the other fills up.
    """
    rng = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, step, rank]))
    n_unlabelled = min(size - min(n_labelled, len(labelled)), len(unlabelled))
    n_labelled = min(size - n_unlabelled, len(labelled))
    return np.concatenate([
        rng.choice(labelled, n_labelled, replace=False), rng.choice(unlabelled, n_unlabelled, replace=False)
    ])  # fmt: skip


class ForestData(pl.LightningDataModule):
    """Rows and labels, kept on the training device; only the numbers of the rows of a batch travel there.

    A batch is (rows of x, what is known about them).
    """

    def __init__(
        self, config: TrainingConfig, x: Tensor, labels: Tensor, validation: tuple[Tensor, Tensor] | None,
        apart: NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.apart = apart
        self.config = config
        known = np.flatnonzero(labels.numpy() >= 0)
        if len(known) == 0:
            raise ValueError("y has no known label: label some rows (0, 1, 2, ...), -1 where unknown.")
        self.labelled, self.unlabelled = known, np.flatnonzero(labels.numpy() < 0)
        self.sets = {"training": (x, labels)}
        self.validation_rows: list[Tensor] = []
        if validation is not None:
            self._validate_on(*validation, np.arange(len(validation[0])), np.empty(0, np.int64))
        elif n_held_out := round(config.validation_fraction * len(known)):
            order = np.random.default_rng(config.seed).permutation(known)
            held_out, self.labelled = order[:n_held_out], np.sort(order[n_held_out:])
            if len(self.labelled) == 0:
                raise ValueError(
                    f"validation_fraction={config.validation_fraction} of {len(known)} labels leaves none to train on."
                )
            self._validate_on(x, labels, held_out, self.unlabelled)

    def _n_labelled(self) -> int:
        return max(1, round(self.config.labelled_fraction * self.config.batch_size))

    def _validate_on(self, x: Tensor, labels: Tensor, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        """Batches like those of training, ``rows`` in turn and the same ``others`` always; no short last one."""
        size = self.config.batch_size
        rng = np.random.default_rng([self.config.seed, 1])
        n_others = min(size - min(self._n_labelled(), len(rows)), len(others))
        others = rng.choice(others, n_others, replace=False)
        parts = np.split(rng.permutation(rows), range(size - n_others, len(rows), size - n_others))
        if len(parts) > 1 and len(parts[-1]) < len(parts[0]):
            parts.pop()
        self.sets["validation"] = (x, labels)
        self.validation_rows = [torch.from_numpy(np.concatenate([part, others])) for part in parts]

    def train_dataloader(self) -> Any:
        return DataLoader(_Steps(self), batch_size=None)

    def val_dataloader(self) -> Any:
        return DataLoader([("validation", rows) for rows in self.validation_rows], batch_size=None)  # type: ignore[arg-type]

    def rows_of_step(self, step: int, rank: int) -> Tensor:
        config, size = self.config, min(self.config.batch_size, len(self.labelled) + len(self.unlabelled))
        rows = batch_rows(config.seed, step, self.labelled, self.unlabelled, size, self._n_labelled(), rank)
        return torch.from_numpy(rows)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> tuple[Tensor, Constraints]:
        name, rows = batch
        x, labels = self.sets[name]
        x, labels = self.sets[name] = x.to(rows.device), labels.to(rows.device)  # moves once
        return x[rows], known_of(labels[rows], self.apart)


def known_of(labels: Tensor, apart: NDArray[np.bool_] | None) -> Constraints:
    """What is known about the rows of a batch: the one place where knowledge enters training."""
    if apart is None:
        return Constraints.from_labels(labels)
    return Constraints.from_groups(to_numpy(labels), apart)


class _Steps(IterableDataset):
    """An endless epoch that starts where the trainer stands."""

    def __init__(self, data: ForestData) -> None:
        self.data = data

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        trainer = self.data.trainer
        assert trainer is not None
        step = trainer.global_step
        while True:
            yield "training", self.data.rows_of_step(step, trainer.global_rank)
            step += 1


def augment_images(x: Tensor, kind: str) -> Tensor:
    """Every image (n, [C,] H, W) moved by up to an eighth of its side, zeros coming in, and perhaps mirrored."""
    *_, height, width = x.shape
    images = x.reshape(len(x), -1, height, width)
    reach = max(1, min(height, width) // 8)
    padded = nn.functional.pad(images, (reach,) * 4)
    down, right = torch.randint(0, 2 * reach + 1, (2, len(x), 1), device=x.device)
    across = torch.arange(width, device=x.device).expand(len(x), -1)
    if kind == "shift-flip":
        across = torch.where(torch.rand(len(x), 1, device=x.device) < 0.5, across, across.flip(1))
    i = torch.arange(len(x), device=x.device)[:, None, None]
    down = (down + torch.arange(height, device=x.device))[:, :, None]
    moved = padded.movedim(1, -1)[i, down, (right + across)[:, None, :]]
    return moved.movedim(-1, 1).reshape(x.shape)


# ------------------------------------------------------------------------------------------------------------------
# The module


class CrossEntropy(modules.PartialFenchelYoungLoss):
    """The baseline in place of the loss: cross-entropy of a linear layer, on the labelled rows; labels are below k."""

    def __init__(self, n_clusters: int, **options: Any) -> None:
        super().__init__(n_clusters, **options)
        self.logits = nn.LazyLinear(n_clusters)

    def forward(self, embeddings: Tensor, labels: Tensor | Constraints) -> Tensor:
        classes = self._constraints(embeddings, labels).labels
        return nn.functional.cross_entropy(self.logits(embeddings), classes, ignore_index=-1)


class ForestModule(pl.LightningModule):
    """Input scaling, backbone and loss. ``module(x)`` gives the embeddings of a tensor of rows.

    Attributes:
        loss_curve: the loss of every step so far.
        validations: a dictionary for every validation: step, val_loss, val_error, val_ari.
    """

    losses: Tensor

    def __init__(self, config: TrainingConfig, input_shape: tuple[int, ...], backbone: Any = None) -> None:
        super().__init__()
        backbone = config.backbone if backbone is None else backbone
        self.save_hyperparameters({"config": config.to_dict(), "input_shape": list(input_shape)})
        self.config, self.input_shape = config, tuple(input_shape)
        if config.augment is not None and not is_image(self.input_shape):
            raise ValueError(
                f"augment={config.augment!r} is for images (H, W) or (C, H, W), got rows of shape {self.input_shape}."
            )
        self.scaling = InputScaling(self.input_shape, config.scaling)
        self.backbone = make_backbone(backbone, self.input_shape, config.embedding_dim)
        kind = modules.PartialFenchelYoungLoss if config.objective == "forest" else CrossEntropy
        self.loss = kind(
            config.n_clusters, epsilon=config.epsilon, n_draws=config.n_draws, noise=config.noise,
            similarity=config.similarity, reachability=config.n_neighbors, must_link_first=config.must_link_first,
            seed=config.seed,
        )  # fmt: skip
        self.register_buffer("losses", torch.full((config.max_steps,), torch.nan))
        self.validations: list[dict[str, float]] = []

    @property
    def loss_curve(self) -> NDArray[np.float32]:
        curve = self.losses.cpu().numpy()
        return curve[~np.isnan(curve)]

    def forward(self, x: Tensor) -> Tensor:
        return self.backbone(self.scaling(x))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Dropout and augmentation of a step are a function of (seed, step), too.
        sequence = np.random.SeedSequence([self.config.seed, self.global_step, self.global_rank])
        seed = int(sequence.generate_state(1, np.uint64)[0]) >> 1
        # Not torch.manual_seed, which keeps a stack trace for every kind of device that is not there: a millisecond.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index].manual_seed(seed)

    def training_step(self, batch: tuple[Tensor, Constraints], batch_idx: int) -> Tensor:
        x, known = batch
        if self.config.augment is not None:
            x = augment_images(x, self.config.augment)
        loss = self.loss(self(x), known)
        self.losses[self.global_step] = loss.detach()
        self.log("loss", loss, prog_bar=True, batch_size=len(x))
        if (self.global_step + 1) % self.config.validate_every == 0 and not torch.isfinite(loss):
            raise FloatingPointError(
                f"The loss is {float(loss.detach())} after {self.global_step + 1} steps: training diverged. Lower "
                f"learning_rate ({self.config.learning_rate}) or look for extreme values in x."
            )
        return loss

    def validation_step(self, batch: tuple[Tensor, Constraints], batch_idx: int) -> None:
        x, known = batch
        embeddings = self(x)
        forest = spanning_forest(self.loss.similarities(embeddings), min(self.config.n_clusters, len(x)))
        labels = to_numpy(known.labels) if known.relation is None else known.groups()[0]
        scores = clustering_scores(labels[labels >= 0], to_numpy(forest.labels)[labels >= 0])
        values = {"val_loss": self.loss(embeddings, known), "val_error": scores["error"], "val_ari": scores["ari"]}
        self.log_dict(values, on_epoch=True, prog_bar=True, batch_size=1)

    def on_validation_epoch_end(self) -> None:
        measured = {name: float(self.trainer.callback_metrics[name]) for name in MONITORS}
        self.validations.append({"step": self.global_step, **measured})

    def configure_optimizers(self) -> Any:
        config = self.config
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=self.device.type == "cuda"
        )

        def rate(step: int) -> float:
            if step < config.warmup_steps:
                return (step + 1) / (config.warmup_steps + 1)
            if config.schedule == "constant":
                return 1.0
            done = (step - config.warmup_steps) / max(1, config.max_steps - config.warmup_steps)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["validations"] = self.validations

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.validations = list(checkpoint["validations"])
        losses = torch.full_like(self.losses, torch.nan, device="cpu")
        saved = checkpoint["state_dict"]["losses"].cpu()[: len(losses)]  # a resumed run may be longer or shorter
        losses[: len(saved)] = saved
        checkpoint["state_dict"]["losses"] = losses


# ------------------------------------------------------------------------------------------------------------------
# Fitting, loading, embedding


def fit(
    config: TrainingConfig, x: Any, y: Any, *, validation: tuple[Any, Any] | None = None,
    apart: NDArray[np.bool_] | None = None, folder: str | Path | None = None, resume: str | Path | None = None,
    callbacks: Sequence[Callback] = (), progress: bool = True, logger: Any = None,
) -> ForestModule:  # fmt: skip
    """Trains a network so that the forest of its embeddings agrees with the labels.

    Args:
        x: features (n, d) or images (n, H, W), (n, C, H, W), (n, H, W, C); bytes stay bytes in memory.
        y: integer labels (n,), -1 where unknown.
        apart: (classes, classes), which classes are known to be apart; None is all. Pairs that belong together or apart
            come in this form, see :func:`diffclust.constraints.join_knowledge`.
        validation: rows and labels to validate on, in batches of ``config.batch_size``, in place of a share of y.
        folder: where ``last.ckpt``, ``best.ckpt`` (with validation) and the log go; None writes nothing.
        resume: a checkpoint to go on from, with the same config and data; ``config.max_steps`` may have grown.
        callbacks: further callbacks of Lightning.
        progress: show a progress bar.
        logger: of Lightning; None is TensorBoard (CSV where it is not installed) with a folder, and none without.

    Returns:
        The trained module, on the CPU, in evaluation mode.

    Ctrl-C ends training after the step in hand, writes ``last.ckpt`` and raises KeyboardInterrupt.

    >>> x = np.concatenate([np.zeros((20, 2)), np.ones((20, 2))]) + np.linspace(0, 0.3, 40)[:, None]
    >>> y = np.where(np.arange(40) % 4 == 0, np.arange(40) // 20, -1)
    >>> module = fit(TrainingConfig(n_clusters=2, max_steps=3, accelerator="cpu"), x, y, progress=False)
    >>> embed(module, x).shape, len(module.loss_curve)
    ((40, 16), 3)
    """
    rows = as_rows(x)
    labels = as_labels(y, len(rows))
    if resume is not None:
        _read_checkpoint(resume)  # a damaged one is found out here
    if validation is not None:
        held_out = as_rows(validation[0])
        validation = held_out, as_labels(validation[1], len(held_out))
    config = dataclasses.replace(config, validate_every=min(config.validate_every, config.max_steps))
    data = ForestData(config, rows, labels, validation, apart)
    if config.patience is not None and not data.validation_rows:
        raise ValueError(
            f"patience={config.patience} needs something to validate on: validation_fraction above 0 (so that at "
            "least one of the labelled rows is held out), or validation=(x, y)."
        )
    with _random_numbers_of_its_own(), _quiet(), _folder(folder, config) as place:
        torch.manual_seed(config.seed)
        module = ForestModule(config, tuple(rows.shape[1:]))
        module.scaling.fit(rows)
        best = _checkpoints(config, place, bool(data.validation_rows))
        trainer = pl.Trainer(
            max_steps=config.max_steps, max_epochs=-1, precision=config.precision,  # type: ignore[arg-type]
            accelerator=_resolve(config.accelerator), devices=config.devices, num_nodes=config.num_nodes,
            strategy=config.strategy, check_val_every_n_epoch=None, val_check_interval=config.validate_every,
            limit_val_batches=len(data.validation_rows), num_sanity_val_steps=0, use_distributed_sampler=False,
            callbacks=[*_stopping(config), *best, *([StepBar()] if progress else []), *callbacks],
            logger=_logger(folder) if logger is None else logger, log_every_n_steps=10, plugins=[WholeCheckpoints()],
            enable_progress_bar=progress, enable_checkpointing=bool(best), enable_model_summary=False,
            default_root_dir=place,
        )  # fmt: skip
        with _interruptible(trainer) as interrupted:
            trainer.fit(module, datamodule=data, ckpt_path=None if resume is None else str(resume), weights_only=True)
        if folder is not None:
            trainer.save_checkpoint(Path(folder) / LAST)
        if interrupted:
            raise KeyboardInterrupt
        if config.patience is not None and best[0].best_model_path:  # type: ignore[attr-defined]
            state = torch.load(best[0].best_model_path, map_location="cpu", weights_only=True)  # type: ignore[attr-defined]
            weights = {name: value for name, value in state["state_dict"].items() if name != "losses"}
            module.load_state_dict(weights, strict=False)
    module.trainer = None  # so that the module pickles
    return module.cpu().eval()


def rehearse(config: TrainingConfig, x: Any) -> None:
    """Raises what :func:`fit` would raise because of the device or the backbone, without writing anything."""
    rows = as_rows(x[:2])
    _resolve(config.accelerator)
    shape = tuple(rows.shape[1:])
    with _random_numbers_of_its_own(), torch.no_grad():
        module = ForestModule(config, shape).eval()
        try:
            embeddings = module(rows)
        except Exception as error:  # whatever a network of the user's own may raise
            raise ValueError(f"backbone {config.backbone!r} does not take rows of shape {shape}: {error}.") from error
    if embeddings.ndim != 2 or len(embeddings) != len(rows):
        raise ValueError(
            f"backbone {config.backbone!r} must give a vector for each row, shape ({len(rows)}, ...), got "
            f"{tuple(embeddings.shape)} for {len(rows)} rows."
        )
    if not any(parameter.requires_grad for parameter in module.backbone.parameters()):
        raise ValueError(f"backbone {config.backbone!r} has no parameters to train.")


def classify(module: ForestModule, x: Any) -> NDArray[np.int64]:
    """The classes of rows by the linear layer of a module trained with cross-entropy."""
    if not isinstance(module.loss, CrossEntropy):
        raise ValueError(f"classify needs objective='cross-entropy', got {module.config.objective!r}.")
    with torch.no_grad():
        return to_numpy(module.loss.logits(torch.from_numpy(embed(module, x))).argmax(1))


def load(checkpoint: str | Path, backbone: Any = None) -> ForestModule:
    """The module of a checkpoint, on the CPU, in evaluation mode.

    Args:
        backbone: needed again where the run was given a module or function instead of a name.
    """
    state = _read_checkpoint(checkpoint)
    saved = state["hyper_parameters"]
    config = TrainingConfig(**saved["config"])
    if backbone is None and str(config.backbone).startswith(_OBJECT):
        raise ValueError(
            f"The backbone of {checkpoint} was an {config.backbone}: pass it again, load(checkpoint, backbone=...)."
        )
    if str(config.similarity).startswith(_OBJECT):  # only training needs it
        config = dataclasses.replace(config, similarity="sqeuclidean")
    module = ForestModule(config, tuple(saved["input_shape"]), backbone)
    module.validations = state["validations"]
    module.load_state_dict(state["state_dict"])
    return module.eval()


def _read_checkpoint(path: str | Path) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # of every kind, depending on where the file is damaged
        raise ValueError(f"{path} is not a checkpoint, or is damaged.") from error
    if not isinstance(state, dict) or not {"hyper_parameters", "state_dict", "validations"} <= state.keys():
        raise ValueError(f"{path} is not a checkpoint of diffclust.")
    return state


def embed(module: ForestModule, x: Any, *, batch_size: int = 4096, device: str = "auto") -> NDArray[np.float32]:
    """The embeddings of rows, (n, embedding_dim); the module is left where it was."""
    rows = as_rows(x)
    if tuple(rows.shape[1:]) != module.input_shape:
        raise ValueError(f"x must have rows of shape {module.input_shape}, got {tuple(rows.shape[1:])}.")
    was_on, was_training = module.device, module.training
    target = torch.device(
        "cuda" if device == "auto" and torch.cuda.is_available() else "cpu" if device == "auto" else device
    )
    module.eval().to(target)
    try:
        with torch.no_grad():
            parts = [module(part.to(target)).float().cpu() for part in rows.split(batch_size)]
    finally:
        module.train(was_training).to(was_on)
    return torch.cat(parts).numpy()


def _resolve(device: str) -> str:
    """The solvers run on the CPU and on CUDA, so "auto" is one of these."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("There is no CUDA device that PyTorch can use. Take device 'cpu' or 'auto'.")
    return device


def _stopping(config: TrainingConfig) -> list[Callback]:
    if config.patience is None:
        return []
    return [EarlyStopping(config.monitor, patience=config.patience, mode=MONITORS[config.monitor])]


def _checkpoints(config: TrainingConfig, folder: Path | None, validates: bool) -> list[Callback]:
    """Best and last at every validation; without one, the last every ``validate_every`` steps."""
    if folder is None:
        return []
    names: dict[str, Any] = {"dirpath": folder, "enable_version_counter": False}
    if validates:
        return [
            ModelCheckpoint(
                filename="best", monitor=config.monitor, mode=MONITORS[config.monitor], save_last=True,
                save_on_train_epoch_end=False, **names,
            )
        ]  # fmt: skip
    return [ModelCheckpoint(filename="last", every_n_train_steps=config.validate_every, save_top_k=1, **names)]


class WholeCheckpoints(TorchCheckpointIO):
    """Lightning writes to the system's temporary folder first; from another disk, moving is copying, and can be cut."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_whole(Path(path), buffer.getvalue())


def _logger(folder: str | Path | None) -> Any:
    if folder is None:
        return False
    try:
        return TensorBoardLogger(folder, name="", version="log")
    except ModuleNotFoundError:
        return CSVLogger(folder, name="", version="log")


@contextmanager
def _folder(folder: str | Path | None, config: TrainingConfig) -> Iterator[Path | None]:
    """The run's folder; a temporary one where none is given but the best weights have to be kept somewhere."""
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield Path(folder)
    elif config.patience is not None:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
    else:
        yield None


@contextmanager
def _random_numbers_of_its_own() -> Iterator[None]:
    """Training neither depends on torch's global generators nor disturbs them."""
    with torch.random.fork_rng():
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Lightning's banners, tips and advice about workers are not for users of this library."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        for each in loggers:
            each.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.setLevel(level)


@contextmanager
def _interruptible(trainer: pl.Trainer) -> Iterator[list[bool]]:
    """The first Ctrl-C ends training after the step in hand, the second at once. The list is then not empty."""
    interrupted: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def stop(signum: int, frame: Any) -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append(True)
        trainer.should_stop = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


class StepBar(ProgressBar):
    """One bar over all steps, with the loss, the last validation and the time left."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: Any = None

    def disable(self) -> None:
        self._close()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        from tqdm.auto import tqdm

        if trainer.is_global_zero:
            self._bar = tqdm(total=trainer.max_steps, initial=trainer.global_step, unit="step", mininterval=0.2)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._bar is not None and self._bar.update(trainer.global_step - self._bar.n):
            self._show(trainer)

    def _show(self, trainer: pl.Trainer) -> None:
        shown = {name: f"{float(value):.4g}" for name, value in trainer.progress_bar_metrics.items()}
        self._bar.set_postfix(shown, refresh=False)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._bar is not None:
            self._show(trainer)
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
