"""Training a network, and embedding rows with it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import logging
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from numpy.typing import NDArray

from diffclust.backbones import BACKBONES, is_image
from diffclust.frameworks import to_numpy
from diffclust.threads import ignored_warnings, is_small, one_thread
from diffclust.training import ranks
from diffclust.training.callbacks import StepBar
from diffclust.training.checkpoints import LAST, WholeCheckpoints, check_checkpoint, check_resumable
from diffclust.training.data import ForestData, as_problem, as_rows, as_rows_and_labels
from diffclust.training.module import CrossEntropy, ForestModule, make_module, rehearse, usual_tensors
from diffclust.training.settings import MONITORS, TrainingConfig
from diffclust.training.steps import PRECISIONS

LOG = logging.getLogger("diffclust.training")
OF_EVERY_STEP = (  # hooks of callbacks that Lightning calls between the parts of a step
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)


P = ParamSpec("P")
R = TypeVar("R")
TRAINING = threading.RLock()


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a training: in several threads, they take turns. Torch's defaults have no effect on it."""

    # It seeds torch's global generators and quiets Lightning's loggers, which all threads share.
    @functools.wraps(function)
    def alone(*arguments: P.args, **options: P.kwargs) -> R:
        with TRAINING, usual_tensors():
            return function(*arguments, **options)

    return alone


@one_at_a_time
def fit(
    config: TrainingConfig,
    x: Any,
    y: Any,
    *,
    validation: tuple[Any, Any] | None = None,
    folder: str | Path | None = None,
    resume: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    logger: Any = None,
    on_ready: Callable[[], None] | None = None,
    warm: ForestModule | None = None,
) -> ForestModule:
    """Trains a network so that the forest of its embeddings agrees with the labels.

    Args:
        config: the settings.
        x: features (n, d) or images (n, H, W), (n, C, H, W), (n, H, W, C); bytes stay bytes in memory.
        y: integer labels (n,), -1 where unknown; or labels and pairs, as :class:`diffclust.Knowledge`.
        validation: rows and labels to validate on, in batches of ``config.batch_size``, in place of a share of y.
        folder: where ``last.ckpt``, ``best.ckpt`` (with validation) and the log go; None writes nothing.
        resume: a checkpoint to continue from, with the same config and data; ``config.n_steps`` may have grown.
        callbacks: more callbacks for Lightning's Trainer.
        progress: show a progress bar.
        logger: a logger of Lightning. None is TensorBoard (CSV where it is not installed) with a folder, and no logger
            without one.
        warm: a trained module, with whose weights and scaling of the input training starts.
        on_ready: called when all arguments are checked, before the first step and before anything is written.

    Returns:
        The trained module, on the CPU, in evaluation mode.

    Raises:
        ValueError: an argument or a device is wrong, which is found before anything is written.
        KeyboardInterrupt: Ctrl-C or SIGTERM ended training after the current step; ``last.ckpt`` was written.
        ConnectionError: another rank ended or cannot be reached.

    In several threads of one process, trainings take turns.

    On one GPU, steps are replays of a captured step where they can be; ``module.not_captured`` says why they were not.
    See ``TrainingConfig.capture``.

    On several ranks (``config.devices``, ``config.num_nodes``) every process calls this with the same arguments and
    gets the module; Lightning starts the processes of a node by running the script again, or torchrun or srun do. The
    first rank writes; ``folder`` must be on a disk that all nodes share. A run may be resumed on another number of
    ranks.

    >>> x = np.concatenate([np.zeros((20, 2)), np.ones((20, 2))]) + np.linspace(0, 0.3, 40)[:, None]
    >>> y = np.where(np.arange(40) % 4 == 0, np.arange(40) // 20, -1)
    >>> module = fit(TrainingConfig(n_clusters=2, n_steps=3, device="cpu"), x, y, progress=False)
    >>> embed(module, x).shape, len(module.loss_curve)
    ((40, 16), 3)
    """
    rows, labels, apart, config = as_problem(config, x, y)
    config = dataclasses.replace(config, validate_every=min(config.validate_every, config.n_steps))
    getting_ready = _get_ready(config, rows, labels, apart)
    state = None if resume is None else check_checkpoint(resume)
    data = ForestData(config, rows, labels, None if validation is None else as_rows_and_labels(*validation), apart)
    with private_random_state(), quiet_lightning(), ExitStack() as stack:
        place = None if folder is None else Path(folder)
        if place is None and config.patience is not None:  # the best weights have to be kept somewhere
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        module = make_module(config, rows, data.scaling)
        if warm is not None:
            _start_from(module, warm)
        if state is not None and resume is not None:
            check_resumable(state, module, resume)
        rank_group, stopping = ranks.RankGroup(config.timeout), []
        if config.patience is not None:
            stopping = [EarlyStopping(config.monitor, patience=config.patience, mode=MONITORS[config.monitor])]
        best = _checkpoints(config, place, bool(data.validation_rows))
        trainer = ranks.make_trainer(
            config,
            choose_device(config.device),
            max_steps=config.n_steps,
            max_epochs=-1,
            precision=config.precision,
            check_val_every_n_epoch=None,
            val_check_interval=config.validate_every,
            limit_val_batches=len(data.validation_rows),
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            callbacks=[*stopping, rank_group, *best, *([StepBar()] if progress else []), *callbacks],
            logger=_logger(folder) if logger is None else logger,
            log_every_n_steps=10,
            plugins=[WholeCheckpoints()],
            enable_progress_bar=progress,
            enable_checkpointing=bool(best),
            enable_model_summary=False,
            default_root_dir=place,
        )
        reason = why_single_steps(config, trainer, callbacks)
        data.in_blocks = not reason
        module.not_captured = reason if trainer.strategy.root_device.type == "cuda" else ""
        if on_ready is not None:
            on_ready()
        with ranks.explain_lost_ranks(trainer, config.timeout):
            ranks.prepare_process_group(trainer)
            if getting_ready is not None:
                getting_ready.join()
            with interruptible(rank_group), one_thread(needs_one_thread(module, rows, int(config.batch_size))):
                trainer.fit(
                    module, datamodule=data, ckpt_path=None if resume is None else str(resume), weights_only=True
                )
            if folder is not None:
                trainer.save_checkpoint(Path(folder) / LAST)
            if rank_group.stopped:
                raise KeyboardInterrupt
            if config.patience is not None and best[0].best_model_path:  # type: ignore[attr-defined]
                _load_best(module, trainer, best[0].best_model_path)  # type: ignore[attr-defined]
    if module.not_captured:
        LOG.info("Training did not replay a captured step: %s.", module.not_captured)
    module.trainer = None  # so that the module pickles
    return module.cpu().eval()


def why_single_steps(config: TrainingConfig, trainer: pl.Trainer, callbacks: Sequence[Callback]) -> str:
    """Why each step needs Lightning's own loop; "" where steps go in blocks, which a GPU may replay."""
    if not config.capture:
        return "capture is False"
    if trainer.world_size > 1:
        return "there are several ranks"
    if config.precision not in PRECISIONS:
        return f"precision is {config.precision!r}, not one of {PRECISIONS}"
    for callback in callbacks:
        hooks = {name: getattr(callback, name) for name in OF_EVERY_STEP}  # Lightning's LambdaCallback has them itself
        if any(getattr(hook, "__func__", None) is not getattr(Callback, name) for name, hook in hooks.items()):
            return f"the callback {type(callback).__name__} is for every step"
    return ""


def _start_from(module: ForestModule, warm: ForestModule) -> None:
    """Takes over the weights, and the scaling that they were trained with."""
    try:
        module.backbone.load_state_dict(warm.backbone.state_dict())
    except RuntimeError as error:
        settings = [
            f"backbone={each.config.backbone!r}, embedding_dim={each.config.embedding_dim}, rows of {each.input_shape}"
            for each in (warm, module)
        ]
        raise ValueError(
            f"The network of warm has {settings[0]}, the new one {settings[1]}. Give the settings of warm."
        ) from error
    module.scaling = copy.deepcopy(warm.scaling)


def _load_best(module: ForestModule, trainer: pl.Trainer, path: str) -> None:
    """Gives all ranks the weights of a checkpoint. It may be on a disk that only the first rank can read."""
    weights: dict[str, Any] = {}
    if trainer.is_global_zero:
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
        weights = {name: value for name, value in state.items() if name != "losses"}
    module.load_state_dict(trainer.strategy.broadcast(weights), strict=False)


def classify(module: ForestModule, x: Any) -> NDArray[np.int64]:
    """The class of each row by the linear layer of a module that was trained with cross-entropy."""
    if not isinstance(module.loss, CrossEntropy):
        raise ValueError(f"classify needs objective='cross-entropy', got {module.config.objective!r}.")
    with torch.no_grad():
        return to_numpy(module.loss.logits(torch.from_numpy(embed(module, x))).argmax(1))


def embed(module: ForestModule, x: Any, *, batch_size: int = 4096, device: str = "auto") -> NDArray[np.float32]:
    """The embeddings of rows, (n, embedding_dim). The module stays on its device and in its mode."""
    rows = as_rows(x)
    if tuple(rows.shape[1:]) != module.input_shape:
        raise ValueError(f"x must have rows of shape {module.input_shape}, got {tuple(rows.shape[1:])}.")
    was_on, was_training = module.device, module.training
    target = torch.device(choose_device(device))
    module.eval().to(target)
    try:
        with torch.no_grad(), one_thread(needs_one_thread(module, rows, min(len(rows), batch_size))):
            parts = [module(part.to(target)).float().cpu() for part in rows.split(batch_size)]
    finally:
        module.train(was_training).to(was_on)
    return torch.cat(parts).numpy()


def scaled_rows(module: ForestModule, x: Any) -> NDArray[np.float32]:
    """The input (n, ...) as the network sees it: scaled."""
    return module.scaling(as_rows(x).to(module.device)).cpu().numpy()


def needs_one_thread(module: ForestModule, rows: torch.Tensor, n_rows: int) -> bool:
    """Whether one thread is enough for the network. A network of the user's own keeps torch's settings."""
    return module.config.backbone in BACKBONES and is_small(module, rows[:1].to(module.device), n_rows)


def with_own_backbone(config: TrainingConfig) -> TrainingConfig:
    """The settings with a copy of the backbone if that is a module, so that training leaves the given one as it is."""
    if not isinstance(config.backbone, torch.nn.Module):
        return config
    return dataclasses.replace(config, backbone=copy.deepcopy(config.backbone))


def choose_device(device: str) -> str:
    """The device to use, "cuda" or "cpu": the solvers run on these."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    device = "cuda" if device == "gpu" else device  # Lightning's name for it
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r} must be 'auto', 'cpu' or 'cuda'.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("There is no CUDA device that PyTorch can use. Take device 'cpu' or 'auto'.")
    return device


def _get_ready(
    config: TrainingConfig, rows: torch.Tensor, labels: torch.Tensor, apart: NDArray[np.bool_] | None
) -> threading.Thread | None:
    """On one GPU, a thread that does now what the first step would: compile kernels, load torch's libraries."""
    devices = [0] if config.devices == 1 else config.devices
    if choose_device(config.device) != "cuda" or config.num_nodes != 1:
        return None
    if not isinstance(devices, list) or len(devices) != 1:
        return None
    gpu = torch.device("cuda", devices[0])

    def get_ready() -> None:
        if config.has_kernels:
            rehearse(config, labels, apart, gpu)
        if is_image(tuple(rows.shape[1:])):
            with contextlib.suppress(RuntimeError), torch.no_grad():
                image = torch.zeros(1, 1, 8, 8, device=gpu)
                torch.nn.functional.conv2d(image, image)

    thread = threading.Thread(target=get_ready, name="diffclust-get-ready", daemon=True)
    thread.start()
    return thread


def _checkpoints(config: TrainingConfig, folder: Path | None, validates: bool) -> list[Callback]:
    """Writes the best and the last checkpoint at every validation, or the last one every ``validate_every`` steps."""
    if folder is None:
        return []
    names: dict[str, Any] = {"dirpath": folder, "enable_version_counter": False}
    if not validates:
        return [ModelCheckpoint(filename="last", every_n_train_steps=config.validate_every, **names)]
    names["save_on_train_epoch_end"] = False
    best = ModelCheckpoint(filename="best", monitor=config.monitor, mode=MONITORS[config.monitor], **names)
    return [best, ModelCheckpoint(filename="last", **names)]  # not save_last, which writes only after a better one


def _logger(folder: str | Path | None) -> Any:
    if folder is None:
        return False
    try:
        return TensorBoardLogger(folder, name="", version="log")
    except ModuleNotFoundError:
        return CSVLogger(folder, name="", version="log")


def private_random_state() -> AbstractContextManager[None]:
    """Training neither depends on torch's global generators nor changes them."""
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()))


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hides Lightning's banners, tips and advice about workers, which are not for users of this library."""
    wanted = {
        "lightning.pytorch": logging.ERROR,
        "lightning.fabric": logging.ERROR,
        "lightning.fabric.strategies.launchers.subprocess_script": logging.INFO,  # it reports a rank that ended
    }
    levels = {name: logging.getLogger(name).level for name in wanted}
    with ignored_warnings(module=r"lightning\..*"):
        for name, level in wanted.items():
            logging.getLogger(name).setLevel(level)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


@contextmanager
def interruptible(rank_group: ranks.RankGroup) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends training after the current step, the second ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, rank_group.on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
