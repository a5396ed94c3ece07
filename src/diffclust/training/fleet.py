"""Several networks trained side by side on one device. One step of all of them is one CUDA graph.

    modules = fit_many([config_a, config_b], x, [y_a, y_b])

Each network is trained as :func:`diffclust.training.fit` would train it, on the same rows and with the same noise.
``steps.py`` takes the steps of all of them together. Lightning handles devices, checkpoints and logs; what it takes for
a batch is a block of steps that ends with a validation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from diffclust.forest import spanning_forest
from diffclust.threads import one_thread
from diffclust.training import loop
from diffclust.training.callbacks import SaveBlocks, StepBar
from diffclust.training.checkpoints import LAST, WholeCheckpoints, check_checkpoint
from diffclust.training.data import Block, ForestData, as_problem, as_rows, as_rows_and_labels, warn_of_lost_digits
from diffclust.training.module import ForestModule, check_finite, make_module, pair_scores, rehearse
from diffclust.training.ranks import RankGroup, own_environment
from diffclust.training.settings import MONITORS, TrainingConfig
from diffclust.training.steps import PRECISIONS, Steps

SHARED = ("validate_every", "precision", "device")  # settings that must be the same for all networks


@loop.one_at_a_time
def fit_many(
    configs: Sequence[TrainingConfig],
    x: Any,
    ys: Sequence[Any],
    *,
    validation: tuple[Any, Any] | None = None,
    folder: str | Path | None = None,
    resume: str | Path | None = None,
    save_every: float = 60.0,
    progress: bool = True,
    workers: int = 0,
) -> list[ForestModule]:
    """Trains one network for each config and its labels, all of them on the rows ``x``, side by side on one device.

    Args:
        configs: may differ in everything but validate_every, precision and device.
        x: see :func:`diffclust.training.fit`.
        ys: integer labels (n,) for each config, -1 where unknown.
        validation: rows and labels; every network is measured on them after each ``validate_every`` steps, as in
            :func:`diffclust.training.fit`. A network with ``patience`` stops after so many validations without a better
            value of its ``monitor``, and returns with its best weights.
        folder: where ``last.ckpt`` is written; None writes none.
        resume: such a checkpoint, to continue from with the same arguments.
        save_every: seconds between two checkpoints, at least. They are written after a block and at the end.
        progress: show a progress bar.
        workers: number of processes that choose the rows of the next blocks meanwhile.

    Returns:
        The trained modules, on the CPU, in evaluation mode.

    Raises:
        ValueError: an argument is wrong, or settings differ that must be the same for all networks.
        KeyboardInterrupt: Ctrl-C or SIGTERM ended training after the current block of steps.

    >>> import numpy as np
    >>> x = np.concatenate([np.zeros((20, 2)), np.ones((20, 2))]) + np.linspace(0, 0.3, 40)[:, None]
    >>> y = np.where(np.arange(40) % 4 == 0, np.arange(40) // 20, -1)
    >>> configs = [TrainingConfig(n_clusters=2, n_steps=3, device="cpu", seed=seed) for seed in (0, 1)]
    >>> [len(module.loss_curve) for module in fit_many(configs, x, [y, y], progress=False)]
    [3, 3]
    """
    if len(configs) == 0 or len(configs) != len(ys):
        raise ValueError(f"fit_many needs labels for each config, at least one, got {len(configs)} and {len(ys)}.")
    for name in SHARED:
        if len(different := {getattr(config, name) for config in configs}) > 1:
            raise ValueError(f"{name} must be the same for all networks of a fleet, got {sorted(different, key=str)}.")
    if configs[0].precision not in PRECISIONS:
        raise ValueError(
            f"precision must be one of {PRECISIONS} for networks side by side, got {configs[0].precision!r}."
        )
    warn_of_lost_digits(x)
    rows = as_rows(x)
    if resume is not None:
        _check_fleet(resume)
    held_out = None if validation is None else as_rows_and_labels(*validation)
    data = []
    for config, y in zip(configs, ys, strict=True):
        _, labels, apart, config = as_problem(config, rows, y)
        data.append(ForestData(config, rows, labels, held_out, apart))
    with loop.private_random_state(), loop.quiet_lightning():
        members = [make_module(each.config, rows, each.scaling) for each in data]
        fleet, rank_group = Fleet(members, data), RankGroup(configs[0].timeout)
        saving = [] if folder is None else [SaveBlocks(Path(folder) / LAST, save_every)]
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator=loop.choose_device(configs[0].device),
            devices=1,
            limit_val_batches=0,
            callbacks=[rank_group, *saving, *([StepBar()] if progress else [])],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=progress,
            enable_model_summary=False,
            plugins=[WholeCheckpoints(), *own_environment()],
        )
        first, gpu = data[0], trainer.strategy.root_device
        if gpu.type == "cuda" and first.config.has_kernels:
            rehearse(first.config, first.sets["training"][1], first.apart, gpu)
        small = all(loop.needs_one_thread(each, rows, int(each.config.batch_size)) for each in members)
        with loop.interruptible(rank_group), one_thread(small):
            trainer.fit(
                fleet,
                DataLoader(_Blocks(fleet), batch_size=None, num_workers=workers),
                ckpt_path=None if resume is None else str(resume),
                weights_only=True,
            )
        if rank_group.stopped:
            raise KeyboardInterrupt
    return fleet.finish()


def _check_fleet(path: str | Path) -> None:
    """Raises a ValueError if a fleet cannot be resumed from a checkpoint."""
    state = check_checkpoint(path)
    if "best" not in state:
        raise ValueError(f"{path} holds one network: it is for fit(..., resume=...).")


class _Blocks(IterableDataset):
    """Rows and moves of all networks for each block of steps, from the step that the fleet has reached."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def __iter__(self) -> Iterator[list[Block]]:
        worker = get_worker_info()
        mine, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        edges = self.fleet.block_edges()
        for start, stop in list(pairwise(edges))[mine::stride]:
            yield [data.block(range(start, stop)) for data in self.fleet.data]


class Fleet(pl.LightningModule):
    """The networks of :func:`fit_many`, each with its data and its optimizer.

    Attributes:
        done: steps so far.
        best: for each network the best value of its monitor, its weights at that time, the number of validations
            since, and whether patience has stopped it.
    """

    def __init__(self, members: Sequence[ForestModule], data: Sequence[ForestData]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.members = nn.ModuleList(members)  # registers them
        self.networks = list(members)  # the same, as ForestModule for the type checker
        self.data = list(data)
        self.config: TrainingConfig = members[0].config
        self.n_steps = max(data.config.n_steps for data in self.data)
        self.done = 0
        self.best: list[dict[str, Any]] = [{"value": None, "state": {}, "waited": 0, "stopped": False} for _ in members]
        self._steps: Steps | None = None

    # ---------------------------------------------------------------------------------------------------- training

    def configure_optimizers(self) -> Any:
        """An optimizer for each network."""
        return [member.make_optimizer(fused=self.device.type == "cuda") for member in self.networks]

    def on_train_start(self) -> None:
        """Prepares the steps."""
        self._steps = Steps(
            self.networks, self.data, self.trainer.optimizers, self.done, longest=self.config.validate_every
        )

    def training_step(self, block: list[Block], batch_idx: int) -> None:
        """A block of steps of all networks, and the validation at its end."""
        assert self._steps is not None
        trained = self._active()
        if not trained:  # a run goes on from a checkpoint in which all have stopped
            self.trainer.should_stop = True
            return
        cudnn = torch.backends.cudnn
        benchmark = cudnn.benchmark
        cudnn.benchmark = benchmark or not cudnn.deterministic  # the fastest algorithm is not always the same one
        try:
            self._steps.run(block, trained)
        finally:
            cudnn.benchmark = benchmark
        self.done = self._steps.done
        for i in trained:
            self.networks[i].not_captured = self._steps.not_captured
            loss = self.networks[i].losses[self.done - 1]
            check_finite(loss, self.done, self.data[i].config, f"The loss of network {i}")
        if self.data[0].validation_rows:
            self._validate(trained)
        if not self._active():
            self.trainer.should_stop = True

    def _active(self) -> list[int]:
        """The networks that have steps to do and that patience has not stopped."""
        return [
            i for i, best in enumerate(self.best) if not best["stopped"] and self.done < self.data[i].config.n_steps
        ]

    def block_edges(self) -> list[int]:
        """The steps at which blocks begin and end, from the current one on: validations, and ends of networks."""
        ends = {data.config.n_steps for data in self.data}
        return sorted({self.done, *ends, *range(0, self.n_steps, self.config.validate_every)} - {*range(self.done)})

    # -------------------------------------------------------------------------------------------------- validation

    @torch.no_grad()
    def _validate(self, trained: list[int]) -> None:
        """Measures each network that is due for a validation, and keeps its best weights."""
        for i in trained:
            member, config = self.networks[i], self.networks[i].config
            if self.done % min(config.validate_every, config.n_steps):
                continue  # the block ended because another network is done
            measured = self._measure(member, self.data[i])
            member.validations.append({"step": self.done, **measured})
            self._remember(i, measured[config.monitor])

    def _remember(self, i: int, value: float) -> None:
        """Updates best weights and patience by the rules of Lightning's ModelCheckpoint and EarlyStopping."""
        member, best, patience = self.networks[i], self.best[i], self.networks[i].config.patience
        maximised = MONITORS[member.config.monitor] == "max"
        if best["value"] is None or (value > best["value"] if maximised else value < best["value"]):
            state = {name: tensor.clone() for name, tensor in member.state_dict().items() if name != "losses"}
            best.update(value=value, state=state, waited=0)
        else:
            best["waited"] += 1
        best["stopped"] = patience is not None and (best["waited"] >= patience or not math.isfinite(value))

    def _measure(self, member: ForestModule, data: ForestData) -> dict[str, float]:
        """The measures of ``fit``, as means over all validation batches, which are solved together."""
        rows = torch.stack(data.validation_rows).to(self.device)
        member.eval()
        embeddings = []
        for part in rows.flatten().split(4096):
            x, _ = data.take("validation", part, None)
            with member.half_precision():
                embeddings.append(member(x).float())
        points = torch.cat(embeddings).reshape(*rows.shape, -1)
        labels = data.sets["validation"][1][rows]
        loss = member.loss(points, labels)
        member.train()
        found = spanning_forest(member.loss.similarities(points), min(member.config.k, rows.shape[1])).labels
        error, ari = pair_scores(found, labels)
        return {"val_loss": float(loss), "val_error": float(error.mean()), "val_ari": float(ari.mean())}

    # ------------------------------------------------------------------------------------------------- checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what is needed to go on from the checkpoint."""
        checkpoint["validations"] = [member.validations for member in self.networks]
        checkpoint["done"], checkpoint["best"] = self.done, self.best

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Goes on where the checkpoint was written."""
        self.done, self.best = checkpoint["done"], checkpoint["best"]
        for member, validations in zip(self.networks, checkpoint["validations"], strict=True):
            member.validations = list(validations)

    def finish(self) -> list[ForestModule]:
        """The networks on the CPU. Those with patience have their best weights."""
        self._steps = None
        for best, member in zip(self.best, self.networks, strict=True):
            if member.config.patience is not None:
                member.load_state_dict(best["state"], strict=False)
            for parameter in member.parameters():
                parameter.grad = None  # it may be in the memory of the graph
            member.cpu().eval()
        return self.networks
