"""Training on several ranks: how they start, how they stop together, and the error when one of them is lost.

Lightning, torchrun or Slurm start the processes; DistributedDataParallel averages the gradients. A rank embeds its
share of the rows of a step, see ``data.py``; the loss is one over all of them, see :mod:`diffclust.distributed`.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import (
    LightningEnvironment,
    LSFEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from diffclust.training.settings import TrainingConfig


def torchrun_settings() -> dict[str, int]:
    """``devices`` and ``num_nodes`` of the torchrun that started this process; empty if none did."""
    if not TorchElasticEnvironment.detect():
        return {}
    return {"devices": int(os.environ["LOCAL_WORLD_SIZE"]), "num_nodes": int(os.environ["GROUP_WORLD_SIZE"])}


def is_first_rank() -> bool:
    """Whether this process is the one that writes, of those that train together. It is known once a trainer is made."""
    return rank_zero_only.rank == 0  # type: ignore[attr-defined]


def is_restartable() -> bool:
    """Whether this process may be a restart: torchrun was told to restart, or Slurm has requeued the job."""
    # torchrun's count of restarts is not used: only the node that failed counts it.
    return any(int(os.environ.get(name) or 0) > 0 for name in ("TORCHELASTIC_MAX_RESTARTS", "SLURM_RESTART_COUNT"))


def own_environment() -> list[LightningEnvironment]:
    """A plugin that spares Lightning the look for MPI, where nothing has launched this process as a rank."""
    # If mpi4py is installed, Lightning starts MPI to see whether it is there, which takes half a second.
    launchers = TorchElasticEnvironment, SLURMEnvironment, LSFEnvironment
    by_mpi = any(name.startswith(("OMPI_", "PMI_", "PMIX_", "MPI_")) for name in os.environ)
    return [] if by_mpi or any(each.detect() for each in launchers) else [LightningEnvironment()]


def make_trainer(config: TrainingConfig, accelerator: str, *, plugins: list[Any], **options: Any) -> pl.Trainer:
    """Lightning's Trainer on the ranks of the config."""
    try:
        trainer = pl.Trainer(
            accelerator=accelerator,
            devices=config.devices,
            num_nodes=config.num_nodes,
            strategy=config.strategy,
            sync_batchnorm=accelerator == "cuda" and (config.devices, config.num_nodes) != (1, 1),
            plugins=[*plugins, *own_environment()],
            **options,
        )
    except MisconfigurationException as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"Training cannot start on these devices: {reason}.") from error
    if trainer.world_size > 1 and getattr(trainer.strategy.launcher, "is_interactive_compatible", False):
        raise ValueError(
            "Several devices need a script or the command line: what forks of a notebook learn is lost when they end."
        )
    if trainer.num_nodes > 1 and _restarts_in_one_store():
        raise ValueError(
            "For torchrun to restart on several nodes, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 where it is started: "
            "ranks would find the addresses from before the restart (pytorch issue 135712)."
        )
    return trainer


def _restarts_in_one_store() -> bool:
    """Whether torchrun may restart, and keeps the addresses of ranks in a store that outlives a restart."""
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return shared and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS") or 0) > 0


def prepare_process_group(trainer: pl.Trainer) -> None:
    """Does what Lightning does not: connects ranks after a restart, and disconnects them when the process ends."""
    if trainer.world_size == 1:
        return
    atexit.unregister(_disconnect)
    atexit.register(_disconnect)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if _restarts_in_one_store() and attempt != "0" and not dist.is_initialized():
        # A prefix for this attempt: the store still has the addresses from before the restart (pytorch issue 135712).
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        dist.init_process_group(
            dist.get_default_backend_for_device(trainer.strategy.root_device),
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            store=dist.PrefixStore(f"attempt {attempt}", store),
        )


def _disconnect() -> None:
    """Lightning disconnects NCCL only. With gloo, too, a process that does not disconnect may abort when it ends."""
    if dist.is_initialized():
        dist.destroy_process_group()


class RankGroup(Callback):
    """Makes all ranks begin at the same step and stop after the same one, whichever of them got a signal.

    Attributes:
        timeout: seconds that a rank waits for the others in a step.
        stopped: whether a signal ended training: Ctrl-C, or SIGTERM, which torchrun and Slurm send.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.signalled = self.stopped = False
        self._alone: pl.Trainer | None = None  # the trainer, if there is one rank

    def on_signal(self, signum: int, frame: Any) -> None:
        """The first signal lets the current step finish, the second does not."""
        if self.signalled:
            raise KeyboardInterrupt
        self.signalled = True
        if self._alone is not None:
            self._alone.should_stop = True  # ends a block of steps, too

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Sets the time that a rank waits for the others."""
        if trainer.world_size == 1:
            self._alone = trainer
        else:
            # Not before: starting and reading the data may take one rank longer than another. There is no public way.
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self.timeout))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Handles SIGTERM, and raises a ValueError unless all ranks begin at the same step."""
        if threading.current_thread() is threading.main_thread():
            # Replaces Lightning's handler, which communicates at any point of a step: the other ranks would not answer.
            signal.signal(signal.SIGTERM, self.on_signal)
        steps = _gather_number(trainer, trainer.global_step)
        if min(steps) < max(steps):
            raise ValueError(
                f"The ranks begin at different steps, {min(steps)} to {max(steps)}: the checkpoint must be on a disk "
                "that all nodes share."
            )

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Stops training if a rank got a signal."""
        self._agree(trainer)
        trainer.should_stop = trainer.should_stop or self.stopped

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Agrees about signals once more: one may have come after the last step."""
        self._agree(trainer)

    def _agree(self, trainer: pl.Trainer) -> None:
        self.stopped = any(_gather_number(trainer, int(self.signalled)))


def _gather_number(trainer: pl.Trainer, value: int) -> list[int]:
    """The value of each rank."""
    if trainer.world_size == 1:
        return [value]
    values = torch.zeros(trainer.world_size, dtype=torch.int64, device=trainer.strategy.root_device)
    values[trainer.global_rank] = value
    dist.all_reduce(values)
    return values.tolist()


@contextmanager
def explain_lost_ranks(trainer: pl.Trainer, timeout: float) -> Iterator[None]:
    """Turns the error of a lost rank into a ConnectionError. gloo raises a RuntimeError like any other."""
    try:
        yield
    except RuntimeError as error:
        if trainer.world_size == 1 or not (isinstance(error, dist.DistError) or "/gloo/" in str(error)):
            raise
        reason = re.sub(r"\[/\S*\] ", "", str(error)).split(". ")[0].splitlines()[0].rstrip(".")
        raise ConnectionError(
            f"Rank {trainer.global_rank} of {trainer.world_size} has lost another rank, which ended, cannot be reached "
            f"or let the others wait for more than {timeout:g} s ({reason})."
        ) from error
