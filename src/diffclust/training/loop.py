"""Fitting, loading, embedding."""

from __future__ import annotations

import dataclasses
import logging
import signal
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from numpy.typing import NDArray
from torch.nn.parameter import is_lazy

from diffclust.backbones import BACKBONES
from diffclust.frameworks import to_numpy
from diffclust.knowledge import Knowledge
from diffclust.threads import is_small, one_thread
from diffclust.training import ranks
from diffclust.training.callbacks import StepBar, WholeCheckpoints
from diffclust.training.data import ForestData, as_problem, as_rows, as_set
from diffclust.training.module import CrossEntropy, ForestModule
from diffclust.training.settings import MONITORS, OBJECT, TrainingConfig, current_names

LAST = "last.ckpt"


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
) -> ForestModule:
    """Trains a network so that the forest of its embeddings agrees with the labels.

    Args:
        config: what the run is made of.
        x: features (n, d) or images (n, H, W), (n, C, H, W), (n, H, W, C); bytes stay bytes in memory.
        y: integer labels (n,), -1 where unknown; or labels and pairs, as :class:`diffclust.Knowledge`.
        validation: rows and labels to validate on, in batches of ``config.batch_size``, in place of a share of y.
        folder: where ``last.ckpt``, ``best.ckpt`` (with validation) and the log go; None writes nothing.
        resume: a checkpoint to go on from, with the same config and data; ``config.n_steps`` may have grown.
        callbacks: further callbacks of Lightning.
        progress: show a progress bar.
        logger: of Lightning; None is TensorBoard (CSV where it is not installed) with a folder, and none without.
        on_ready: called once all arguments are checked, before the first step and before anything is written.

    Returns:
        The trained module, on the CPU, in evaluation mode.

    Raises:
        ValueError: of the arguments, devices included, before anything is written.
        KeyboardInterrupt: Ctrl-C or SIGTERM ended training after the step in hand; ``last.ckpt`` was written.
        ConnectionError: another rank is gone.

    On several ranks (``config.devices``, ``config.num_nodes``) every process calls this with the same arguments and
    gets the module; Lightning starts the processes of a node by running the script again, or torchrun or srun do. The
    first rank writes; ``folder`` must be on a disk that all nodes share. The checkpoint to go on from may be of another
    number of ranks.

    >>> x = np.concatenate([np.zeros((20, 2)), np.ones((20, 2))]) + np.linspace(0, 0.3, 40)[:, None]
    >>> y = np.where(np.arange(40) % 4 == 0, np.arange(40) // 20, -1)
    >>> module = fit(TrainingConfig(n_clusters=2, n_steps=3, device="cpu"), x, y, progress=False)
    >>> embed(module, x).shape, len(module.loss_curve)
    ((40, 16), 3)
    """
    rows, labels, apart, config = as_problem(config, x, y)
    config = dataclasses.replace(config, validate_every=min(config.validate_every, config.n_steps))
    state = None if resume is None else check_checkpoint(resume)
    data = ForestData(config, rows, labels, None if validation is None else as_set(*validation), apart)
    with random_numbers_of_its_own(), quiet(), _folder(folder, config) as place:
        torch.manual_seed(config.seed)
        module = ForestModule(config, tuple(rows.shape[1:]))
        module.scaling = data.scaling
        module.make_layers(rows)
        if state is not None:
            _check_resumable(state, module, resume)
        rank_group = ranks.RankGroup(config.timeout)
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
            callbacks=[*_stopping(config), rank_group, *best, *([StepBar()] if progress else []), *callbacks],
            logger=_logger(folder) if logger is None else logger,
            log_every_n_steps=10,
            plugins=[WholeCheckpoints()],
            enable_progress_bar=progress,
            enable_checkpointing=bool(best),
            enable_model_summary=False,
            default_root_dir=place,
        )
        if on_ready is not None:
            on_ready()
        with ranks.explain_lost_ranks(trainer, config.timeout):
            ranks.meet(trainer)
            with interruptible(rank_group), one_thread(needs_one_thread(module, rows, config.batch_size)):
                trainer.fit(
                    module, datamodule=data, ckpt_path=None if resume is None else str(resume), weights_only=True
                )
            if folder is not None:
                trainer.save_checkpoint(Path(folder) / LAST)
            if rank_group.stopped:
                raise KeyboardInterrupt
            if config.patience is not None and best[0].best_model_path:  # type: ignore[attr-defined]
                _take_best(module, trainer, best[0].best_model_path)  # type: ignore[attr-defined]
    module.trainer = None  # so that the module pickles
    return module.cpu().eval()


def _take_best(module: ForestModule, trainer: pl.Trainer, path: str) -> None:
    """The weights of a checkpoint that the first rank alone may be able to read."""
    weights: dict[str, Any] = {}
    if trainer.is_global_zero:
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
        weights = {name: value for name, value in state.items() if name != "losses"}
    module.load_state_dict(trainer.strategy.broadcast(weights), strict=False)


def classify(module: ForestModule, x: Any) -> NDArray[np.int64]:
    """The classes of rows by the linear layer of a module trained with cross-entropy."""
    if not isinstance(module.loss, CrossEntropy):
        raise ValueError(f"classify needs objective='cross-entropy', got {module.config.objective!r}.")
    with torch.no_grad():
        return to_numpy(module.loss.logits(torch.from_numpy(embed(module, x))).argmax(1))


def load(checkpoint: str | Path, backbone: Any = None) -> ForestModule:
    """The module of a checkpoint, on the CPU, in evaluation mode.

    A checkpoint of a stranger is safe to load: it is read without unpickling objects, and only the backbones of this
    library are made by the name that is recorded in it.

    Args:
        backbone: needed again where the run was given a backbone of its own: a module, a function, or the same
            "package.module:attribute". Another name than the recorded one is an error.

    Raises:
        ValueError: the file is damaged, is no checkpoint, or needs the backbone.
    """
    state = check_checkpoint(checkpoint)
    if "hyper_parameters" not in state:
        raise ValueError(f"{checkpoint} holds several networks: it is for fit_many(..., resume=...).")
    config, input_shape = _saved_settings(state["hyper_parameters"], checkpoint)
    _check_backbone(config.backbone, backbone, checkpoint)
    if str(config.similarity).startswith(OBJECT):  # only training needs it
        config = dataclasses.replace(config, similarity="sqeuclidean")
    module = ForestModule(config, input_shape, backbone)
    module.validations = state["validations"]
    _check_weights(state["state_dict"], module, checkpoint)
    if state["state_dict"]["losses"].shape != module.losses.shape:
        raise ValueError(f"{checkpoint} is damaged: it has the losses of another number of steps. {_FROM_A_COPY}")
    module.load_state_dict(state["state_dict"])
    return module.eval()


def _saved_settings(saved: Any, path: str | Path) -> tuple[TrainingConfig, tuple[int, ...]]:
    try:
        return TrainingConfig(**current_names(saved["config"])), tuple(int(length) for length in saved["input_shape"])
    except (TypeError, KeyError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise ValueError(
            f"{path} has settings that this version of diffclust does not know ({reason}): it is damaged, or of "
            f"another version. {_FROM_A_COPY}"
        ) from error


def _check_backbone(recorded: Any, given: Any, path: str | Path) -> None:
    """A name in a file is not imported: it could be any code."""
    if given is None and str(recorded).startswith(OBJECT):
        raise ValueError(
            f"The backbone of {path} was an {recorded}, which the file does not hold: name it again, backbone=...."
        )
    if given is None and recorded not in BACKBONES:
        raise ValueError(
            f"The backbone of {path} is {recorded!r}, which is not part of diffclust, and a file does not decide what "
            f"is imported: if you trust it, name it again, backbone={recorded!r}."
        )
    is_name = isinstance(given, str) and not str(recorded).startswith(OBJECT)
    if is_name and given != recorded:
        raise ValueError(f"The backbone of {path} is {recorded!r}, not {given!r}.")


def save(module: ForestModule, path: str | Path) -> None:
    """Writes a trained module to a file that :func:`load` reads; training cannot be resumed from it."""
    saved = {"config": module.config.to_dict(), "input_shape": list(module.input_shape)}
    state = {"hyper_parameters": saved, "state_dict": module.state_dict(), "validations": module.validations}
    WholeCheckpoints().save_checkpoint(state, path)


_FROM_A_COPY = "Take it from a copy, or delete it and train from the start."


def check_checkpoint(path: str | Path) -> dict[str, Any]:
    """The contents of a checkpoint; a damaged one is a ValueError."""
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not look at the checksums
            whole = archive.testzip() is None
        state = torch.load(path, map_location="cpu", weights_only=True) if whole else None
    except FileNotFoundError:
        raise
    except Exception as error:  # of every kind, depending on where the file is damaged
        raise ValueError(f"{path} is not a checkpoint, or is damaged. {_FROM_A_COPY}") from error
    if not whole:
        raise ValueError(f"{path} is not a checkpoint, or is damaged. {_FROM_A_COPY}")
    if not isinstance(state, dict) or not {"state_dict", "validations"} <= state.keys():
        raise ValueError(f"{path} is not a checkpoint of diffclust. {_FROM_A_COPY}")
    return state


def _check_weights(saved: Any, module: ForestModule, path: str | Path) -> None:
    """The names and shapes of a state are those of the module; a resumed run may have another number of losses."""
    expected = module.state_dict()
    if not isinstance(saved, dict) or saved.keys() != expected.keys():
        names = sorted(expected.keys() ^ saved.keys()) if isinstance(saved, dict) else sorted(expected)
        raise ValueError(
            f"{path} is damaged, or of another backbone: it has other weights than the network ({names[0]}). "
            f"{_FROM_A_COPY}"
        )
    for name, value in expected.items():
        if not isinstance(saved[name], torch.Tensor):
            raise ValueError(f"{path} is damaged: {name} is not a tensor. {_FROM_A_COPY}")
        if is_lazy(value) or name == "losses":
            continue
        if saved[name].shape != value.shape:
            raise ValueError(
                f"{path} is damaged, or of another backbone: {name} has shape {tuple(saved[name].shape)}, the network "
                f"needs {tuple(value.shape)}. {_FROM_A_COPY}"
            )


# What Lightning needs to go on, besides the weights.
_OF_TRAINING = ("optimizer_states", "lr_schedulers", "loops", "callbacks", "epoch", "global_step")


def _check_resumable(state: dict[str, Any], module: ForestModule, path: str | Path | None) -> None:
    """Training can go on from a state: Lightning does not check all of it, or raises errors that name no file."""
    assert path is not None
    missing = [name for name in _OF_TRAINING if name not in state]
    if missing:
        raise ValueError(f"Training cannot go on from {path}: it has no {missing[0]}. {_FROM_A_COPY}")
    _check_weights(state["state_dict"], module, path)
    parameters = [each for each in module.parameters() if each.requires_grad]
    try:
        (saved,) = state["optimizer_states"]
        (group,) = saved["param_groups"]
        moments = saved["state"]
        fits = (
            len(group["params"]) == len(parameters)
            and (state["global_step"] == 0 or len(moments) > 0)
            and all(
                each[name].shape == parameters[i].shape
                for i, each in moments.items()
                for name in ("exp_avg", "exp_avg_sq")
            )
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        fits = False
    if not fits:
        raise ValueError(f"Training cannot go on from {path}: its optimiser is not that of the network. {_FROM_A_COPY}")


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
        with torch.no_grad(), one_thread(needs_one_thread(module, rows, min(len(rows), batch_size))):
            parts = [module(part.to(target)).float().cpu() for part in rows.split(batch_size)]
    finally:
        module.train(was_training).to(was_on)
    return torch.cat(parts).numpy()


def needs_one_thread(module: ForestModule, rows: torch.Tensor, n_rows: int) -> bool:
    """Whether one thread is enough for the network. A network of the user's own keeps torch's settings."""
    return module.config.backbone in BACKBONES and is_small(module, rows[:1].to(module.device), n_rows)


def retrainer(config: TrainingConfig, x: Any) -> Callable[[Knowledge], NDArray[np.float32]]:
    """A function that trains on other knowledge and returns the embeddings of all rows.

    It takes half as many steps: enough to compare what comes after training.
    """
    short = dataclasses.replace(
        config,
        n_steps=-(-config.n_steps // 2),
        validation_fraction=0.0,
        patience=None,
        devices=1,  # only the first rank gets here
        num_nodes=1,
        strategy="auto",
    )

    def retrain(knowledge: Knowledge) -> NDArray[np.float32]:
        return embed(fit(short, x, knowledge, progress=False), x, device=config.device)

    return retrain


def choose_device(device: str) -> str:
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
    if not validates:
        return [ModelCheckpoint(filename="last", every_n_train_steps=config.validate_every, **names)]
    names["save_on_train_epoch_end"] = False
    best = ModelCheckpoint(filename="best", monitor=config.monitor, mode=MONITORS[config.monitor], **names)
    return [best, ModelCheckpoint(filename="last", **names)]  # not save_last, which waits for a better one


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
        yield Path(folder)
    elif config.patience is not None:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
    else:
        yield None


@contextmanager
def random_numbers_of_its_own() -> Iterator[None]:
    """Training neither depends on torch's global generators nor disturbs them."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Lightning's banners, tips and advice about workers are not for users of this library."""
    wanted = {
        "lightning.pytorch": logging.ERROR,
        "lightning.fabric": logging.ERROR,
        "lightning.fabric.strategies.launchers.subprocess_script": logging.INFO,  # that a rank is gone
    }
    levels = {name: logging.getLogger(name).level for name in wanted}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        for name, level in wanted.items():
            logging.getLogger(name).setLevel(level)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


@contextmanager
def interruptible(rank_group: ranks.RankGroup) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends training after the step in hand, the second at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, rank_group.on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
