"""Rows and partial labels → batches. Which rows, and how images are moved, is a pure function of (seed, step)."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from diffclust.backbones import InputScaling, is_image, share_of_alike
from diffclust.constraints import Constraints
from diffclust.cuts import leading_components
from diffclust.doubt import believe
from diffclust.frameworks import framework_of, lost_digits, plain, to_dense, to_numpy
from diffclust.groups import DIFFERENT, SAME, UNKNOWN
from diffclust.knowledge import Knowledge
from diffclust.threads import ignored_warnings, small_in_one_thread
from diffclust.training.settings import NEIGHBOURS, TrainingConfig

Block = tuple[Tensor, Tensor | None]  # row numbers (steps, n) of a block of steps, and moves (steps, n, ...) of images

ALIKE = 0.8  # least share of labelled images whose nearest one is of their class, for neighbours of images
FEW_LABELS = 0.1  # share of labelled images, above which neighbours no longer gain
PIXEL_COMPONENTS = 50  # leading ones of the pixels, by which images are near
LENDING_ROWS = 20_000  # among which labels are lent, at most
LONGEST_BLOCK = {"cpu": 10, "cuda": 100}  # steps, after which a progress bar moves
CHECKED_ROWS = 65_536  # at a time, so that rows in a mapped file need not fit into memory


def as_rows(x: Any) -> Tensor:
    """Features (n, d) or images (n, H, W), (n, C, H, W), (n, H, W, C) as a tensor, channels first; bytes stay bytes.

    The last axis is taken for the channels where it is at most 4 long and the second one is not. Rows of 32-bit floats
    or bytes are not copied, so they may be a file that is mapped to memory. A number that is not finite is a
    ValueError, what is no real number a TypeError.
    """
    with ignored_warnings(message="The given NumPy array is not writable"):  # we do not write to it
        x = torch.from_numpy(np.ascontiguousarray(_real_numbers(x))) if not isinstance(x, Tensor) else x.detach()
    if x.is_complex():
        raise TypeError(f"x must be real numbers, got {x.dtype}.")
    if x.ndim not in (2, 3, 4):
        raise ValueError(f"x must be features (n, d) or images (n, H, W[, C]), got shape {tuple(x.shape)}.")
    if x.ndim == 4 and x.shape[-1] <= 4 < x.shape[1]:  # then the last axis is taken for the channels
        x = x.movedim(-1, 1)
    if x.dtype == torch.uint8:
        return x.contiguous()
    x = x.to(torch.float32).contiguous()
    for first in range(0, len(x), CHECKED_ROWS):
        finite = x[first : first + CHECKED_ROWS].isfinite().flatten(1).all(1)
        if not finite.all():
            row = first + int((~finite).nonzero()[0])
            raise ValueError(f"row {row} of x has a value that is not a finite number (of 32 bits). Fill or remove it.")
    return x


def _real_numbers(x: Any) -> NDArray[Any]:
    """An array of a type that torch knows. Sparse rows become dense, objects of nullable columns numbers."""
    array = to_numpy(to_dense(x), "x")
    if array.dtype.kind == "O":
        with contextlib.suppress(TypeError, ValueError):
            array = array.astype(np.float64)
    if array.dtype.kind not in "iubfc":
        raise TypeError(
            f"x must be real numbers, got dtype {array.dtype}. Of a data frame, "
            "diffclust.tables.read_table(frame).features are such numbers."
        )
    if array.dtype == np.longdouble:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def warn_of_lost_digits(x: Any) -> None:
    """A warning about columns of which 32-bit floats tell few values apart."""
    if framework_of(x) == "numpy" and not hasattr(x, "toarray") and (sentence := lost_digits(np.asarray(x))):
        warnings.warn(sentence, stacklevel=3)


def as_labels(y: Any, n_rows: int) -> Tensor:
    """(n,) integers, negative or masked where unknown, as int64 with -1 there."""
    on_host = y if framework_of(y) == "numpy" else to_numpy(y)
    labels = torch.as_tensor(Constraints.from_labels(on_host).labels)
    if labels.shape != (n_rows,):
        raise ValueError(f"y must have one label per row of x, {n_rows}, got shape {tuple(labels.shape)}.")
    return labels


def as_rows_and_labels(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Rows and their labels, see above."""
    rows = as_rows(x)
    return rows, as_labels(y, len(rows))


def as_problem(
    config: TrainingConfig, x: Any, y: Any
) -> tuple[Tensor, Tensor, NDArray[np.bool_] | None, TrainingConfig]:
    """Rows, labels (groups of Knowledge), which labels are apart (None: all), and the config without "auto"."""
    warn_of_lost_digits(x)
    if isinstance(y, Knowledge) and y.is_soft:
        rows = as_rows(x)
        scale = InputScaling(tuple(rows.shape[1:]), config.scaling).fit(rows)
        y = believe(scale(rows).numpy(), y, config.n_clusters, config.seed).knowledge
    rows, labels = as_rows_and_labels(x, y.group if isinstance(y, Knowledge) else y)
    knowledge = y if isinstance(y, Knowledge) else Knowledge.join(labels.numpy())
    apart = None if knowledge.all_apart else knowledge.apart
    return rows, labels, apart, resolve(config, rows, knowledge)


def resolve(config: TrainingConfig, x: Any, knowledge: Knowledge) -> TrainingConfig:
    """:meth:`TrainingConfig.resolve`, and the neighbours of images, which depend on the images."""
    rows = as_rows(x)
    config = config.resolve(tuple(rows.shape[1:]), knowledge)
    if config.neighbours == "auto":  # of images that may have some
        labels = torch.as_tensor(knowledge.group)
        few = float((labels >= 0).double().mean()) <= FEW_LABELS
        useful = few and share_of_alike(rows, labels) >= ALIKE
        config = dataclasses.replace(config, neighbours=NEIGHBOURS if useful else 0)
    return config


def batch_rows(
    seed: int, step: int, labelled: NDArray[np.int64], unlabelled: NDArray[np.int64], size: int, n_labelled: int
) -> NDArray[np.int64]:
    """The ``size`` rows of a step, a function of (seed, step); where one kind has too few, the other fills up."""
    rng = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, step, 0]))
    n_unlabelled = min(size - min(n_labelled, len(labelled)), len(unlabelled))
    n_labelled = min(size - n_unlabelled, len(labelled))
    return np.concatenate(
        [rng.choice(labelled, n_labelled, replace=False), rng.choice(unlabelled, n_unlabelled, replace=False)]
    )


@small_in_one_thread
def lend_labels(x: Tensor, labels: Tensor, least: int, n_clusters: int, scaling: str = "auto", seed: int = 0) -> Tensor:
    """The labels, and those of rows in the middle of their class for classes that have fewer than ``least``.

    One or two labelled rows of a class say nothing about where it ends: the easiest way to tell them from the other
    labelled rows is to move them away from everything, their own class included. All rows together say more:
    k-means on the scaled input, started at the means of the labelled classes (and at rows far from these for clusters
    that nobody labelled), finds the middle of each class, and the unlabelled rows nearest to it get its label. Labels
    below -1 are unknown and not to be changed.

    >>> x = torch.tensor([[0.0], [0.4], [0.5], [0.9], [5.0], [6.0]])
    >>> lend_labels(x, torch.tensor([0, -1, -1, -1, 1, -1]), 2, n_clusters=2).tolist()
    [0, -1, 0, -1, 1, 1]
    """
    names, counts = labels[labels >= 0].unique(return_counts=True)
    free = (labels == -1).nonzero()[:, 0]
    if len(free) == 0 or bool((counts >= least).all()):
        return labels
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    rng = np.random.default_rng([seed, 2])
    takers = np.sort(rng.choice(free.numpy(), min(len(free), LENDING_ROWS), replace=False))
    known = (labels >= 0).nonzero()[:, 0]
    scale = InputScaling(tuple(x.shape[1:]), scaling).fit(x)
    rows = scale(x[torch.cat([torch.from_numpy(takers), known])].cpu()).flatten(1).numpy()
    classes = np.searchsorted(names.numpy(), labels[known].numpy())
    middles = np.stack([rows[len(takers) :][classes == number].mean(0) for number in range(len(names))])
    middles = _with_far_rows(middles, rows, max(n_clusters, len(names)), rng)
    with ignored_warnings(ConvergenceWarning):  # where rows are equal there are fewer clusters
        found = plain(KMeans(len(middles), init=middles, n_init=1, tol=0, random_state=0)).fit(rows)
    distances, clusters = found.transform(rows[: len(takers)]), found.labels_[: len(takers)]
    lent = labels.clone()
    for number, (name, count) in enumerate(zip(names.tolist(), counts.tolist(), strict=True)):
        members = np.flatnonzero(clusters == number)
        nearest = members[distances[members, number].argsort(kind="stable")]
        lent[takers[nearest[: max(0, least - count)]]] = name
    return lent


def _with_far_rows(
    middles: NDArray[np.float32], rows: NDArray[np.float32], n: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """``n`` points, or fewer if there are not so many: these, and rows drawn by their squared distance from them."""
    from sklearn.metrics import pairwise_distances_argmin_min

    while len(middles) < min(n, len(rows)):
        chances = pairwise_distances_argmin_min(rows, middles)[1].astype(np.float64) ** 2
        if chances.sum() == 0:
            break
        middles = np.concatenate([middles, rows[[rng.choice(len(rows), p=chances / chances.sum())]]])
    return middles


@small_in_one_thread
def nearest_others(rows: Tensor, n_neighbours: int) -> NDArray[np.int64]:
    """(n, n_neighbours) numbers of the rows that are nearest to each row."""
    from sklearn.neighbors import NearestNeighbors

    flat = rows.flatten(1).cpu().numpy()
    return NearestNeighbors(n_neighbors=n_neighbours).fit(flat).kneighbors(return_distance=False)


def mutual_others(rows: Tensor, n_neighbours: int) -> NDArray[np.int64]:
    """:func:`nearest_others` of images, by their leading components, without those that are not nearest in turn.

    By their pixels some images are near to many others, of any class; few of these are near to them in turn. Those that
    are left are repeated, and a row without any has itself.
    """
    components = leading_components(rows.flatten(1).double().cpu().numpy(), PIXEL_COMPONENTS)
    nearest = nearest_others(torch.from_numpy(components), n_neighbours)
    n, k = nearest.shape
    row = np.repeat(np.arange(n), k)
    mutual = np.isin(row * n + nearest.ravel(), nearest.ravel() * n + row).reshape(n, k)
    count = mutual.sum(1, keepdims=True)
    first = np.take_along_axis(nearest, np.argsort(~mutual, axis=1, kind="stable"), 1)  # mutual ones first
    repeated = np.take_along_axis(first, np.arange(k) % np.maximum(count, 1), 1)
    return np.where(count > 0, repeated, np.arange(n)[:, None])


class ForestData(pl.LightningDataModule):
    """Rows and labels, kept on the training device; only the numbers of the rows of a batch travel there.

    A batch is (rows of x, what is known about them). On several ranks each has its share of the rows, and all know what
    is known about all of them.

    Attributes:
        in_blocks: whether a batch is a block of steps instead, for :class:`diffclust.training.steps.Steps`.
    """

    def __init__(
        self,
        config: TrainingConfig,
        x: Tensor,
        labels: Tensor,
        validation: tuple[Tensor, Tensor] | None,
        apart: NDArray[np.bool_] | None = None,
    ) -> None:
        super().__init__()
        self.in_blocks = False
        self.apart = apart
        self.config = config
        known = np.flatnonzero(labels.numpy() >= 0)
        if len(known) == 0:
            raise ValueError("y has no known label: label some rows (0, 1, 2, ...), -1 where unknown.")
        self.labelled, self.unlabelled = known, np.flatnonzero(labels.numpy() < 0)
        self.sets = {"training": (x, labels)}
        self.scaling = InputScaling(tuple(x.shape[1:]), config.scaling).fit(x, labels)
        self.nearest: NDArray[np.int64] | None = None  # others of each row, if rows come with a neighbour
        self.validation_rows: list[Tensor] = []
        if validation is not None:
            if validation[0].shape[1:] != x.shape[1:]:
                shapes = tuple(x.shape[1:]), tuple(validation[0].shape[1:])
                raise ValueError("validation=(x, y) must have rows of shape {}, as x has, got {}.".format(*shapes))
            self._validate_on(*validation, np.arange(len(validation[0])), np.empty(0, np.int64))
        elif n_held_out := round(config.validation_fraction * len(known)):
            order = np.random.default_rng(config.seed).permutation(known)
            held_out, self.labelled = order[:n_held_out], np.sort(order[n_held_out:])
            if len(self.labelled) == 0:
                raise ValueError(
                    f"validation_fraction={config.validation_fraction} of {len(known)} labels leaves none to train on."
                )
            self._validate_on(x, labels, held_out, self.unlabelled)
        if config.patience is not None and not self.validation_rows:
            raise ValueError(
                f"patience={config.patience} needs something to validate on: validation_fraction above 0 (so that at "
                "least one of the labelled rows is held out), or validation=(x, y)."
            )
        if apart is None:
            self._lend(x, labels)
        if config.neighbours not in ("auto", 0):
            find = mutual_others if is_image(tuple(x.shape[1:])) else nearest_others
            self.nearest = find(self.scaling(x), min(int(config.neighbours), len(x) - 1))

    @property
    def copies(self) -> int:
        """How often a row is in its batch, its neighbour counted."""
        return 2 if self.nearest is not None else self.config.views

    def _lend(self, x: Tensor, labels: Tensor) -> None:
        """Small classes get more labels; rows that are held out neither lend nor take any."""
        least = min(self.config.least_labels, len(x) // (5 * self.config.k))
        held_out = np.setdiff1d(np.flatnonzero(labels.numpy() >= 0), self.labelled)
        given = labels.clone()
        given[held_out] = -2
        lent = lend_labels(x, given, least, self.config.k, self.scaling.chosen, self.config.seed)
        self.labelled, self.unlabelled = np.flatnonzero(lent.numpy() >= 0), np.flatnonzero(lent.numpy() == -1)
        self.sets["training"] = x, torch.where(lent >= 0, lent, labels)

    def _n_labelled(self) -> int:
        return max(1, round(self.config.labelled_fraction * int(self.config.batch_size) / self.copies))

    def _validate_on(self, x: Tensor, labels: Tensor, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        """Makes batches like those of training, of ``rows`` in turn and always the same ``others``."""
        size = int(self.config.batch_size)
        rng = np.random.default_rng([self.config.seed, 1])
        n_others = min(size - min(self._n_labelled(), len(rows)), len(others))
        others = rng.choice(others, n_others, replace=False)
        parts = np.split(rng.permutation(rows), range(size - n_others, len(rows), size - n_others))
        if len(parts) > 1 and len(parts[-1]) < len(parts[0]):
            parts.pop()
        parts = [part for part in parts if bool((labels[part] >= 0).any())]  # without a label there is no score
        if not parts:
            raise ValueError("validation=(x, y) has no known label: label some rows (0, 1, 2, ...), -1 where unknown.")
        self.sets["validation"] = (x, labels)
        self.validation_rows = [torch.from_numpy(np.concatenate([part, others])) for part in parts]

    def train_dataloader(self) -> Any:
        """The numbers of the rows of each step."""
        return DataLoader(_Steps(self), batch_size=None)

    def val_dataloader(self) -> Any:
        """The numbers of the rows of each validation batch."""
        return DataLoader([("validation", rows, None) for rows in self.validation_rows], batch_size=None)  # type: ignore[arg-type]

    def rows_of_step(self, step: int) -> Tensor:
        """The numbers of the rows of a step: all views of them, or the rows and then their neighbours."""
        config = self.config
        size = _rows_of_batch(config, self.copies, len(self.labelled) + len(self.unlabelled))
        rows = batch_rows(config.seed, step, self.labelled, self.unlabelled, size, self._n_labelled())
        if self.nearest is None:
            return torch.from_numpy(np.tile(rows, config.views))
        rng = np.random.Generator(np.random.Philox(key=config.seed, counter=[0, 2, step, 0]))
        chosen = self.nearest[rows, rng.integers(0, self.nearest.shape[1], len(rows))]
        return torch.from_numpy(np.concatenate([rows, chosen]))

    def moves_of_step(self, step: int, n_rows: int) -> Tensor | None:
        """How the images of a step are moved; None if they are not."""
        config = self.config
        if config.augment is None:
            return None
        shape = tuple(self.sets["training"][0].shape)
        return torch.from_numpy(batch_moves(config.seed, step, n_rows, shape, config.augment))

    def block(self, steps: range) -> Block:
        """The numbers of the rows of some steps, and how images are moved in them."""
        rows = torch.stack([self.rows_of_step(step) for step in steps])
        if self.config.augment is None:
            return rows, None
        return rows, torch.stack([self.moves_of_step(step, rows.shape[1]) for step in steps])  # type: ignore[misc]

    def first_batch(self, device: torch.device) -> tuple[Tensor, Constraints]:
        """The rows of the first step and what is known about them, on the device."""
        rows, moves = (None if each is None else each[0].to(device) for each in self.block(range(1)))
        assert rows is not None
        return self.take("training", rows, moves)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Block | tuple[Tensor, Constraints]:
        """Numbers of rows → the rows and what is known about them, on the device; a block stays what it is."""
        name, *others = batch
        return self.take(name, *others) if name != "block" else tuple(others)

    def take(self, name: str, rows: Tensor, moves: Tensor | None) -> tuple[Tensor, Constraints]:
        """Rows of a set, moved, and what is known about them."""
        x, labels = self.sets[name]
        x, labels = self.sets[name] = x.to(rows.device), labels.to(rows.device)  # moves once
        views = self.copies if name == "training" else 1
        own = self._share(len(rows))
        images = x[rows[own]] if moves is None else move_images(x[rows[own]], moves[own])
        known = labels[rows]
        if self.nearest is not None and views > 1:
            # Of a row and its neighbour, an unlabelled one gets the label of the other.
            known = torch.where(known >= 0, known, known.roll(len(known) // 2))
        return images, batch_constraints(known, self.apart, views)

    def _share(self, n_rows: int) -> slice:
        """This rank's of the rows of a batch, in one piece; shares differ by a row where they must."""
        rank, ranks = (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        return slice(rank * n_rows // ranks, (rank + 1) * n_rows // ranks)


def batch_constraints(labels: Tensor, apart: NDArray[np.bool_] | None, views: int = 1) -> Constraints:
    """What is known about the rows of a batch, in ``views`` copies: the one place where knowledge enters training."""
    if apart is None and views == 1:
        return Constraints.from_labels(labels)
    if apart is None:
        return Constraints(relation=_relation_of_views(labels, views))
    if views > 1:
        raise ValueError("views above 1 is for labels, not for pairs that belong together or apart.")
    return Constraints.from_groups(to_numpy(labels), apart)


def shape_of_batch(config: TrainingConfig, labels: Tensor, apart: NDArray[np.bool_] | None) -> Constraints:
    """What is known about some rows, in the form and size of the batches of a training, before there are any."""
    copies = config.views if config.neighbours in ("auto", 0) else 2
    n = _rows_of_batch(config, copies, len(labels))
    return batch_constraints(labels[torch.arange(n * copies, device=labels.device) % n], apart, copies)


def _rows_of_batch(config: TrainingConfig, copies: int, n_rows: int) -> int:
    """How many different rows a batch has."""
    return min(max(1, int(config.batch_size) // copies), n_rows)


def _relation_of_views(labels: Tensor, views: int) -> Tensor:
    """Views of a row belong together, and rows as their labels say; nothing is read, so that it can be captured."""
    row = torch.arange(len(labels), device=labels.device) % (len(labels) // views)
    group = torch.where(labels >= 0, labels, -1 - row)
    same = group[:, None] == group
    known = (labels >= 0)[:, None] & (labels >= 0)
    return torch.where(same, SAME, torch.where(known, DIFFERENT, UNKNOWN)).to(torch.int8)


class _Steps(IterableDataset):
    """An endless epoch, step by step or in blocks, that starts where the trainer stands."""

    def __init__(self, data: ForestData) -> None:
        self.data = data

    def __iter__(self) -> Iterator[tuple[str, Tensor, Tensor | None]]:
        trainer = self.data.trainer
        assert trainer is not None
        step = trainer.global_step
        while self.data.in_blocks:
            yield "block", *self.data.block(range(step, step := self._end_of_block(step)))
        while True:
            rows = self.data.rows_of_step(step)
            if len(rows) < (ranks := trainer.world_size):
                raise ValueError(
                    f"batch_size must be at least {ranks}, the number of ranks, got batches of {len(rows)}."
                )
            yield "training", rows, self.data.moves_of_step(step, len(rows))
            step += 1

    def _end_of_block(self, step: int) -> int:
        """A validation or a checkpoint, the last step, or as many steps as a block may have."""
        config = self.data.config
        longest = LONGEST_BLOCK[self.data.trainer.strategy.root_device.type]  # type: ignore[union-attr]
        ends = (config.n_steps, step - step % config.validate_every + config.validate_every, step + longest)
        return min(end for end in ends if end > step)


def longest_shift(shape: tuple[int, ...]) -> int:
    """How far images are moved: an eighth of the shorter side, at least a pixel."""
    return max(1, min(shape[-2:]) // 8)


def batch_moves(seed: int, step: int, n_rows: int, shape: tuple[int, ...], kind: str) -> NDArray[np.int64]:
    """(n, 3) how each image of a step is moved: down, right, mirrored; (n, 5) with the middle of a hole."""
    rng = np.random.Generator(np.random.Philox(key=seed, counter=[0, 1, step, 0]))
    reach = longest_shift(shape)
    moves = rng.integers(-reach, reach, (n_rows, 3), endpoint=True)
    moves[:, 2] = rng.integers(0, 2, n_rows) if kind != "shift" else 0
    if kind != "shift-flip-cut":
        return moves
    return np.concatenate([moves, rng.integers(0, shape[-2:], (n_rows, 2))], axis=1)


def move_images(x: Tensor, moves: Tensor) -> Tensor:
    """Images (n, [C,] H, W), mirrored, then moved, then with a hole, zeros coming in; moves of :func:`batch_moves`."""
    *_, height, width = x.shape
    down, right, mirrored, *hole = moves[:, :, None].unbind(1)
    i = torch.arange(len(x), device=x.device)[:, None, None, None]
    row = torch.arange(height, device=x.device) - down
    column = torch.arange(width, device=x.device) - right
    inside = ((row >= 0) & (row < height))[:, :, None] & ((column >= 0) & (column < width))[:, None, :]
    if hole:
        inside &= ~(_near(hole[0], height, x.shape)[:, :, None] & _near(hole[1], width, x.shape)[:, None, :])
    column = torch.where(mirrored > 0, width - 1 - column, column)
    images = x.reshape(len(x), -1, height, width)
    channel = torch.arange(images.shape[1], device=x.device)[:, None, None]
    row, column = row.clamp(0, height - 1)[:, None, :, None], column.clamp(0, width - 1)[:, None, None, :]
    return (images[i, channel, row, column] * inside[:, None]).reshape(x.shape)


def _near(middle: Tensor, length: int, shape: tuple[int, ...]) -> Tensor:
    """(n, length): which rows or columns are in a hole around ``middle``, half as wide as the shorter side."""
    half = max(1, min(shape[-2:]) // 4)
    place = torch.arange(length, device=middle.device)
    return (place >= middle - half) & (place < middle + half)
