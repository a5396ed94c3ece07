"""What a training run is made of."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from diffclust.backbones import is_image
from diffclust.cuts import MANY_CLUSTERS
from diffclust.frameworks import is_integer
from diffclust.knowledge import Knowledge

AUGMENTATIONS = ("shift", "shift-flip", "shift-flip-cut")
SCHEDULES = ("constant", "cosine")
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true")
OBJECTIVES = ("forest", "cross-entropy")
MONITORS = {"val_loss": "min", "val_error": "min", "val_ari": "max"}
NEIGHBOURS = 15
MOST_IMAGES = 20_000  # that "auto" links with neighbours
RENAMED = {"max_steps": "n_steps", "accelerator": "device", "n_neighbors": "reachability"}


def current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under their names of today: files of older versions have other ones."""
    renamed = {RENAMED[name]: value for name, value in settings.items() if name in RENAMED}
    return {name: value for name, value in settings.items() if name not in RENAMED} | renamed


def _accept_old_names(cls: type[TrainingConfig]) -> type[TrainingConfig]:
    init = cls.__init__

    @functools.wraps(init)
    def with_old_names(self: TrainingConfig, *arguments: Any, **settings: Any) -> None:
        for name in settings.keys() & RENAMED.keys():
            _warn_of_old_name(name)
        init(self, *arguments, **current_names(settings))

    cls.__init__ = with_old_names  # type: ignore[method-assign]
    return cls


def _warn_of_old_name(name: str) -> None:
    message = f"TrainingConfig's {name} is now {RENAMED[name]}; the old name goes in the next version."
    warnings.warn(message, DeprecationWarning, stacklevel=3)


@_accept_old_names
@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """What a training run is made of. ``dataclasses.replace`` changes it, ``to_dict`` makes it JSON.

    Attributes:
        n_clusters: k. Above the number of labelled classes it makes room for clusters of classes never labelled. None
            is half as many again as the labels and pairs need, and at least 2.
        objective: "forest", or "cross-entropy" of a linear layer on the embedding, the baseline.
        backbone, embedding_dim: see :func:`diffclust.backbones.make_backbone`. "auto" is "cnn" for images of at least
            8 x 8, "committee" for more than 20 clusters of a table, and "residual" otherwise. ``embedding_dim`` "auto"
            is 16, and 64 for more than 20 clusters, which 16 dimensions are too few to hold apart.
        scaling: of the input, see :class:`diffclust.backbones.InputScaling`.
        augment: of training images: "shift" (by up to an eighth of the side), "shift-flip" (and mirrored),
            "shift-flip-cut" (and with a hole, half as wide as the image), or None.
        views: how often each row is in its batch, every time augmented anew; its views must link, labelled or not.
        neighbours: each row of a batch comes with one of so many nearest others of it (in the scaled input), and the
            two must link unless their labels differ; 0 for none. It is to tables what augmented views are to images.
            "auto" is 15 where there are labels, and 0 for pairs, for more than 20 clusters, and where an average
            cluster has fewer than 100 rows. It is 15 for images only if there are at most 20,000, at most a tenth of
            them has a label, and pixels tell the classes: for 80 % of the labelled images the nearest labelled one is
            of the same class. Neighbours of an image are mutual: each is among the nearest of the other, by the 50
            leading components of their pixels.
        epsilon, n_draws, noise, similarity, must_link_first: see :class:`diffclust.nn.PartialFenchelYoungLoss`.
            epsilon "auto" is 0.5, and 2 for images.
        noise_start: the noise of the first step as a share of epsilon, to which it grows (or falls) until the last
            one, by the same factor in each step. None is 1, the same noise in all steps, and 0.25 for images where
            epsilon is "auto".
        reachability: trains on the mutual reachability of that many neighbours instead of on the similarity itself.
        batch_size: rows of a batch, over all ranks together; large batches find the classes that are never labelled.
            "auto" is 256, and 512 for more than 20 clusters, of which 256 rows show too little each.
        labelled_fraction: share of every batch that is labelled, as far as there are labels.
        least_labels: a class with fewer labelled rows lends its label, in training, to unlabelled rows in its middle,
            until it has so many (or a fifth of an average cluster); 1 lends none. See
            :func:`diffclust.training.data.lend_labels`.
        n_steps, learning_rate, weight_decay: of AdamW.
        schedule, warmup_steps: of the learning rate, "constant" or "cosine" (down to 0), after a linear warm-up.
        validation_fraction: share of the labelled rows that is held out of training.
        validate_every: steps from one validation, and one checkpoint, to the next.
        monitor: "val_loss", "val_error" or "val_ari": which validation is the best.
        patience: validations without a better one after which training stops, and then, or at the end, the best
            weights are taken. None trains to the end and takes the last.
        precision: of Lightning's Trainer.
        device: "auto" (CUDA, or else the CPU), "cpu" or "cuda".
        devices, num_nodes: of Lightning's Trainer, too. Each device is a rank; the run is that of one rank, but for
            rounding and dropout.
        strategy: "auto" is "ddp" on several ranks; "ddp_find_unused_parameters_true" is for a backbone that does not
            use all of its parameters in every step.
        capture: on one GPU, steps are replays of one captured step (a CUDA graph), wherever they can be. A network
            whose Python does something else from step to step, such as counting them, needs False. On the CPU, too,
            False takes each step in Lightning's own loop, which is slower.
        timeout: seconds that a rank waits for the others in a step before it gives them up.
        seed: of everything random, an integer from 0 to 2**64 - 1.
    """

    n_clusters: int | None = None
    objective: str = "forest"
    backbone: Any = "auto"
    embedding_dim: int | str = "auto"
    scaling: str = "auto"
    augment: str | None = None
    views: int = 1
    neighbours: int | str = "auto"
    epsilon: float | str = "auto"
    noise_start: float | None = None
    n_draws: int = 10
    noise: str = "normal"
    similarity: Any = "sqeuclidean"
    must_link_first: bool = False
    reachability: int | None = None
    batch_size: int | str = "auto"
    labelled_fraction: float = 0.2
    least_labels: int = 5
    n_steps: int = 300
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: str = "constant"
    warmup_steps: int = 0
    validation_fraction: float = 0.0
    validate_every: int = 100
    monitor: str = "val_loss"
    patience: int | None = None
    precision: str = "32-true"
    device: str = "auto"
    devices: Any = 1
    num_nodes: int = 1
    strategy: str = "auto"
    capture: bool = True
    timeout: float = 45.0
    seed: int = 0

    def __post_init__(self) -> None:
        counts = "views n_draws least_labels n_steps validate_every num_nodes"
        for name in counts.split():
            _check(self, name, _is_count(getattr(self, name)), "an integer, at least 1")
        for name in ("embedding_dim", "batch_size"):
            value = getattr(self, name)
            _check(self, name, value == "auto" or _is_count(value), "an integer, at least 1, or 'auto'")
        neighbours = self.neighbours
        is_number = neighbours == 0 or _is_count(neighbours)
        _check(self, "neighbours", neighbours == "auto" or is_number, "an integer, at least 0, or 'auto'")
        _check(self, "neighbours", neighbours in ("auto", 0) or self.views == 1, "0 with views above 1")
        for name in ("n_clusters", "reachability", "patience"):
            value = getattr(self, name)
            _check(self, name, value is None or _is_count(value), "None or an integer, at least 1")
        _check(self, "warmup_steps", self.warmup_steps == 0 or _is_count(self.warmup_steps), "an integer, at least 0")
        _check(self, "seed", is_integer(self.seed) and 0 <= self.seed < 2**64, "an integer from 0 to 2**64 - 1")
        for name, automatic in (("epsilon", "auto"), ("noise_start", None)):
            value = getattr(self, name)
            ok = value == automatic or (_is_real(value) and 0 < value < math.inf)
            _check(self, name, ok, f"above 0 and finite, or {automatic!r}")
        for name in ("learning_rate", "weight_decay", "labelled_fraction", "validation_fraction", "timeout"):
            _check(self, name, _is_real(getattr(self, name)), "a number")
        _check(self, "learning_rate", self.learning_rate > 0, "above 0")
        _check(self, "weight_decay", self.weight_decay >= 0, "at least 0")
        _check(self, "labelled_fraction", 0 < self.labelled_fraction <= 1, "above 0 and at most 1")
        _check(self, "validation_fraction", 0 <= self.validation_fraction < 1, "at least 0 and below 1")
        _check(self, "views", self.views == 1 or self.augment is not None, "1 without augment")
        _check(self, "augment", self.augment in (None, *AUGMENTATIONS), f"None or one of {AUGMENTATIONS}")
        _check(self, "objective", self.objective in OBJECTIVES, f"one of {OBJECTIVES}")
        _check(self, "schedule", self.schedule in SCHEDULES, f"one of {SCHEDULES}")
        _check(self, "strategy", self.strategy in STRATEGIES, f"one of {STRATEGIES}")
        _check(self, "timeout", 0 < self.timeout < math.inf, "above 0 and finite")
        _check(self, "monitor", self.monitor in MONITORS, f"one of {tuple(MONITORS)}")

    @property
    def k(self) -> int:
        """``n_clusters``, once it is decided."""
        if self.n_clusters is None:
            raise ValueError("n_clusters=None is decided by what is known: use config.resolve(row_shape, knowledge).")
        return self.n_clusters

    @property
    def has_kernels(self) -> bool:
        """Whether the loss of a step on a GPU is kernels that Triton compiles, and no code of the user's."""
        return self.objective == "forest" and isinstance(self.noise, str) and isinstance(self.similarity, str)

    def rate(self, step: int) -> float:
        """The learning rate of a step as a share of ``learning_rate``."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.schedule == "constant":
            return 1.0
        done = (step - self.warmup_steps) / max(1, self.n_steps - self.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def noise_scale(self, step: int) -> float:
        """The size of the noise of a step as a share of ``epsilon``."""
        done = min(1.0, step / max(1, self.n_steps - 1))
        return (1.0 if self.noise_start is None else self.noise_start) ** (1.0 - done)

    def resolve(self, row_shape: tuple[int, ...], knowledge: Knowledge | None = None) -> TrainingConfig:
        """This config with all that is "auto" decided, for rows of a shape, (d,), (H, W) or (C, H, W).

        Images bear, and want, far more noise than tables: digits with three classes withheld gain 0.08 in ARI by the
        settings of images. On tables growing noise gained nothing.

        Args:
            row_shape: of one row.
            knowledge: what is known about the rows; without it, what depends on it stays "auto". ``neighbours`` of
                images may stay "auto" with it, too: that depends on the images (:func:`diffclust.training.fit`).

        Returns:
            The decided config.
        """
        image = is_image(row_shape)
        changes: dict[str, Any] = {}
        if self.epsilon == "auto":
            changes["epsilon"] = 2.0 if image else 0.5
        if self.noise_start is None:
            changes["noise_start"] = 0.25 if image and self.epsilon == "auto" else 1.0
        if self.n_clusters is None and knowledge is not None:
            # Half as many again: room for classes that nobody labelled. Training forgives too large a number.
            changes["n_clusters"] = min(max(-(-3 * knowledge.min_clusters // 2), 2), knowledge.max_clusters)
        k = changes.get("n_clusters", self.n_clusters)
        many = k is not None and k > MANY_CLUSTERS
        if self.backbone == "auto":
            of_table = "committee" if many and not image and self.objective == "forest" else "residual"
            changes["backbone"] = "cnn" if image and min(row_shape[-2:]) >= 8 else of_table
        if self.embedding_dim == "auto" and k is not None:
            changes["embedding_dim"] = 64 if many else 16
        if self.batch_size == "auto" and k is not None:
            changes["batch_size"] = 512 if many else 256
        if self.neighbours == "auto" and k is not None and knowledge is not None:
            useful = self.views == 1 and knowledge.all_apart and not many and self.objective == "forest"
            if not useful or knowledge.n_points < 100 * k or (image and knowledge.n_points > MOST_IMAGES):
                changes["neighbours"] = 0
            elif not image:
                changes["neighbours"] = NEIGHBOURS
        return dataclasses.replace(self, **changes)

    def __getattr__(self, name: str) -> Any:
        if name not in RENAMED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        _warn_of_old_name(name)
        return getattr(self, RENAMED[name])

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a backbone or similarity that is an object is named only."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: v if _is_plain(v) else f"{OBJECT}{type(v).__qualname__}" for name, v in plain.items()}


OBJECT = "object of type "


def _is_count(value: Any) -> bool:
    return is_integer(value) and value >= 1


def _is_real(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _is_plain(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, (bool, int, float, str))
        or (isinstance(value, (list, tuple)) and all(_is_plain(each) for each in value))
    )


def _check(config: TrainingConfig, name: str, ok: bool, expected: str) -> None:
    if not ok:
        raise ValueError(f"{name} must be {expected}, got {getattr(config, name)!r}.")
