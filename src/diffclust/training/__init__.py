"""The one training loop: data and partial labels in, a trained embedding out. It runs on PyTorch Lightning.

    module = fit(TrainingConfig(n_clusters=10), x, y)          # y: -1 where unknown
    embeddings = embed(module, x)
    module = load("run/last.ckpt")

Everything random in step t is a pure function of (seed, t): the rows of its batch, dropout, augmentation; the loss
counts its draws of noise in its state. So a run that was killed and resumed is the run that was not.

``settings.py`` has the settings, ``data.py`` makes batches, ``module.py`` is network and loss, ``steps.py`` takes many
steps at once on a GPU, ``loop.py`` trains and embeds, ``retraining.py`` trains without some of the labels, beside the
main training where it can, ``checkpoints.py`` saves and loads, ``ranks.py`` is about several
ranks, ``fleet.py`` trains several networks side by side, and ``callbacks.py`` has the progress bar.
"""

try:
    import lightning.pytorch  # noqa: F401
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "Training needs PyTorch and Lightning. Install them with: pip install 'diffclust[fit]'"
    ) from error

from diffclust.training.checkpoints import LAST, check_checkpoint, load, save
from diffclust.training.data import resolve
from diffclust.training.fleet import fit_many
from diffclust.training.loop import classify, embed, fit, scaled_rows
from diffclust.training.module import ForestModule
from diffclust.training.ranks import is_first_rank, is_restartable, torchrun_settings
from diffclust.training.retraining import retrained_beside, retrainer
from diffclust.training.settings import TrainingConfig

__all__ = [
    "LAST",
    "ForestModule",
    "TrainingConfig",
    "check_checkpoint",
    "classify",
    "embed",
    "fit",
    "fit_many",
    "is_first_rank",
    "is_restartable",
    "load",
    "resolve",
    "retrained_beside",
    "retrainer",
    "save",
    "scaled_rows",
    "torchrun_settings",
]
