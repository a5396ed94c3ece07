"""Checkpoints: writing them whole, reading them safely, and the checks before a run continues from one."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from diffclust.backbones import BACKBONES
from diffclust.files import write_atomically
from diffclust.training.module import ForestModule, usual_tensors
from diffclust.training.settings import OBJECT, TrainingConfig, current_names

LAST = "last.ckpt"
_FROM_A_COPY = "Take it from a copy, or delete it and train from the start."


class WholeCheckpoints(TorchCheckpointIO):
    """Checkpoints are written beside their final place and renamed.

    Lightning writes to the system's temporary folder. Where that is another disk, moving the file is copying it, and a
    copy can be interrupted.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Writes a checkpoint; Lightning calls this."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path), lambda file: torch.save(checkpoint, file))


def save(module: ForestModule, path: str | Path) -> None:
    """Writes a trained module to a file that :func:`load` reads. Training cannot be resumed from it."""
    saved = {"config": module.config.to_dict(), "input_shape": list(module.input_shape)}
    state = {"hyper_parameters": saved, "state_dict": module.state_dict()}
    module.on_save_checkpoint(state)
    WholeCheckpoints().save_checkpoint(state, path)


@usual_tensors()
def load(checkpoint: str | Path, backbone: Any = None) -> ForestModule:
    """The module of a checkpoint, on the CPU, in evaluation mode.

    A checkpoint from a stranger is safe to load. It is read without unpickling objects, and only backbones of this
    library are made by the name that it records.

    Args:
        checkpoint: the file.
        backbone: needed where the run was given a backbone of its own: a module, a function, or the same
            "package.module:attribute". Another name than the recorded one is an error.

    Returns:
        The module.

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
    module.final_noise_losses = state["final_noise_losses"]
    _load_weights(module, state["state_dict"], checkpoint)
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
    """Raises a ValueError where the backbone must be given. A name in a file is not imported: it could be any code."""
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


def check_checkpoint(path: str | Path) -> dict[str, Any]:
    """The content of a checkpoint. A damaged one is a ValueError."""
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not verify the checksums
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"the checksum of {damaged} is wrong")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # its type depends on where the file is damaged
        raise ValueError(f"{path} is not a checkpoint, or is damaged. {_FROM_A_COPY}") from error
    if not isinstance(state, dict) or not {"state_dict", "validations"} <= state.keys():
        raise ValueError(f"{path} is not a checkpoint of diffclust. {_FROM_A_COPY}")
    return state


def _load_weights(module: ForestModule, saved: dict[str, Any], path: str | Path) -> None:
    try:
        module.load_state_dict(saved)
    except RuntimeError as error:  # its second line names what does not fit
        reason = str(error).splitlines()[1].strip().rstrip(".")
        raise ValueError(f"{path} is damaged, or of another backbone: {reason}. {_FROM_A_COPY}") from error


# What Lightning needs to resume training, besides the weights.
_RESUME_KEYS = ("optimizer_states", "lr_schedulers", "loops", "callbacks", "epoch", "global_step")


def check_resumable(state: dict[str, Any], module: ForestModule, path: str | Path) -> None:
    """A ValueError unless training can go on from a state. Lightning checks less, and its errors name no file."""
    missing = [name for name in _RESUME_KEYS if name not in state]
    if missing:
        raise ValueError(f"Training cannot go on from {path}: it has no {missing[0]}. {_FROM_A_COPY}")
    _load_weights(module, {**state["state_dict"], "losses": module.losses}, path)  # which may have another length
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
