"""Callbacks: a progress bar over all steps, and the checkpoints of networks that are trained side by side."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar


class StepBar(ProgressBar):
    """One bar over all steps, with the loss, the last validation and the time left."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: Any = None

    def disable(self) -> None:
        """Closes the bar."""
        self._close()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Opens the bar, on the first rank."""
        from tqdm.auto import tqdm

        if trainer.is_global_zero:
            self._bar = tqdm(total=pl_module.n_steps, initial=pl_module.done, unit="step", mininterval=0.2)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Moves the bar, and from time to time shows the metrics."""
        if self._bar is not None and self._bar.update(pl_module.done - self._bar.n):
            self._show(trainer, pl_module)

    def _show(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        metrics: dict[str, Any] = dict(trainer.progress_bar_metrics)
        if measured := getattr(pl_module, "final_noise_losses", None):  # the losses of growing noise only climb
            metrics.pop("loss", None)
            metrics["loss at final noise"] = measured[-1]["loss"]
        self._bar.set_postfix({name: f"{float(value):.4g}" for name, value in metrics.items()}, refresh=False)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Shows the last metrics, some of which the module measures when training ends, and closes the bar."""
        if self._bar is not None:
            self._show(trainer, pl_module)
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Closes the bar, so that the error stands on a line of its own."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class SaveBlocks(pl.Callback):
    """The checkpoint of a fleet, after a block of steps if the last one is old enough, and at the end."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self.seconds = path, seconds
        self._saved_at = time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves after a block of steps, if the last checkpoint is old enough."""
        if time.monotonic() - self._saved_at >= self.seconds:
            trainer.save_checkpoint(self.path)
            self._saved_at = time.monotonic()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Saves the last state."""
        trainer.save_checkpoint(self.path)
