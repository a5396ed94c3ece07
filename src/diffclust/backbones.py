"""Networks from an input to an embedding, by name, and the input scaling that stands in front of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:  # pragma: no cover
    raise ImportError("diffclust.backbones needs PyTorch. Install it with: pip install 'diffclust[fit]'") from error

from diffclust.threads import is_small_set, one_thread
from diffclust.validation import check_choice

BACKBONES = ("linear", "mlp", "residual", "committee", "cnn")
COMMITTEE = 4  # networks
SCALINGS = ("auto", "column", "global", "unit", "counts", "none")
SCALING_ROWS, SCALING_LABELS = 5000, 2000  # at which choose_scaling looks
LEAST_ALIKE = 20  # labelled rows, with fewer of which share_of_alike says nothing


def make_backbone(
    backbone: str | nn.Module | Callable[..., Any], input_shape: tuple[int, ...], embedding_dim: int
) -> nn.Module:
    """The network that maps a batch of rows to embeddings.

    Args:
        backbone: "linear"; "mlp", two hidden layers of 256 and 64; "residual", that beside the input itself, see
            :class:`Residual`; "committee", the mean of four of these, see :class:`Committee`; "cnn", the paper's
            network for images of at least 8 x 8; "package.module:attribute"; a module, used as it is; or a function
            ``input_shape -> module``.
        input_shape: of one row: (d,), (H, W) or (C, H, W).
        embedding_dim: the width of the output of the named backbones.

    Returns:
        A module from (n, ...) to (n, embedding_dim).

    Raises:
        TypeError: backbone is none of these.
        ValueError: the name cannot be imported, or "cnn" is asked for rows that are no images.

    Example:
        >>> make_backbone("mlp", (8, 8), 16)(torch.zeros(5, 8, 8)).shape
        torch.Size([5, 16])
    """
    if isinstance(backbone, str) and backbone not in BACKBONES:
        backbone = _import(backbone)
    if isinstance(backbone, str):
        makers = {"linear": _linear, "mlp": _mlp, "residual": Residual, "committee": Committee, "cnn": _cnn}
        return makers[backbone](tuple(input_shape), embedding_dim)
    if not isinstance(backbone, nn.Module):
        if not callable(backbone):
            raise TypeError(f"backbone must be a name, a torch module or a function of input_shape, got {backbone!r}.")
        name = getattr(backbone, "__name__", backbone)
        try:
            backbone = backbone(tuple(input_shape))
        except TypeError as error:  # most often it does not take one argument
            raise TypeError(f"backbone {name} cannot be called with input_shape={input_shape}: {error}.") from error
        if not isinstance(backbone, nn.Module):
            raise TypeError(f"the backbone function must return a torch module, got {type(backbone).__name__}.")
    return backbone


def _import(path: str) -> Any:
    module_name, _, attribute = path.partition(":")
    if not attribute:
        raise ValueError(f"backbone must be one of {BACKBONES} or 'package.module:attribute', got {path!r}.")
    try:
        return getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"backbone {path!r} cannot be imported: {error}.") from error


def _linear(input_shape: tuple[int, ...], embedding_dim: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), embedding_dim))


def _mlp(input_shape: tuple[int, ...], embedding_dim: int) -> nn.Module:
    widths = (int(np.prod(input_shape)), 256, 64)
    hidden = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(widths[-1], embedding_dim))


class Residual(nn.Module):
    """The input, turned, plus a network of two hidden layers whose last one starts at zero.

    So training starts from the clusters of the input itself: with few labels a network that starts anywhere else
    may lose more than it learns. Where the embedding is too narrow for the input, its first principal components
    stand for it, see :meth:`start_at`.
    """

    def __init__(self, input_shape: tuple[int, ...], embedding_dim: int) -> None:
        super().__init__()
        self.input = nn.Linear(int(np.prod(input_shape)), embedding_dim, bias=False)
        self.network = _mlp(input_shape, embedding_dim)
        with one_thread():  # of another number of them, it has other last bits
            nn.init.orthogonal_(self.input.weight)  # keeps distances, if there is room
        for parameter in self.network[-1].parameters():  # type: ignore[index]
            nn.init.zeros_(parameter)

    def start_at(self, rows: Tensor) -> None:
        """Makes the embedding of scaled rows their principal components if it is narrower than they are."""
        rows = rows.flatten(1)
        room, n_features = self.input.weight.shape
        if room >= min(n_features, len(rows)):
            return
        from sklearn.decomposition import PCA

        with one_thread(is_small_set(rows)):
            components = PCA(room, random_state=0).fit(rows.numpy()).components_
        with torch.no_grad():
            self.input.weight.copy_(torch.from_numpy(components))

    def forward(self, x: Tensor) -> Tensor:
        """The embeddings (n, embedding_dim) of rows."""
        return self.input(x.flatten(1)) + self.network(x)


class Committee(nn.Module):
    """Several :class:`Residual` networks that learn side by side. The embedding is their mean.

    All start at the same components of the input, so their embeddings can be added, and the errors that each makes by
    itself average out. In training each has its own loss: there the embeddings are (networks, n, embedding_dim).
    """

    def __init__(self, input_shape: tuple[int, ...], embedding_dim: int) -> None:
        super().__init__()
        networks = [Residual(input_shape, embedding_dim) for _ in range(COMMITTEE)]
        self.networks = nn.ModuleList(networks)
        self._start_alike(networks)

    @staticmethod
    def _start_alike(networks: list[Residual]) -> None:
        with torch.no_grad():
            for network in networks[1:]:
                network.input.weight.copy_(networks[0].input.weight)

    def start_at(self, rows: Tensor) -> None:
        """:meth:`Residual.start_at` of each."""
        networks = [network for network in self.networks if isinstance(network, Residual)]
        networks[0].start_at(rows)
        self._start_alike(networks)

    def forward(self, x: Tensor) -> Tensor:
        """The embeddings (n, embedding_dim) of rows; in training those of each network."""
        found = torch.stack([network(x) for network in self.networks])
        return found if self.training else found.mean(0)


def _cnn(input_shape: tuple[int, ...], embedding_dim: int) -> nn.Module:
    """Conv 32, conv 64, average pools, two dense layers of 256 (the second is as wide as the embedding)."""
    if not is_image(input_shape) or min(input_shape[-2:]) < 8:
        raise ValueError(
            f"backbone 'cnn' needs images (H, W) or (C, H, W) of at least 8 x 8, got rows of shape {input_shape}. "
            "Reshape the rows to images, or use backbone='mlp'."
        )
    *channels, height, width = input_shape
    return nn.Sequential(
        nn.Unflatten(1, (1, height)) if not channels else nn.Identity(),
        nn.Conv2d(channels[0] if channels else 1, 32, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 256),
        nn.ReLU(),
        nn.Linear(256, embedding_dim),
    )


def is_image(input_shape: tuple[int, ...]) -> bool:
    """(H, W) or (C, H, W)."""
    return len(input_shape) in (2, 3)


def choose_scaling(x: Tensor, labels: Tensor | None = None) -> str:
    """Whether columns are of one unit, so that their sizes mean something.

    Columns count as of one unit if they are pixels; if at least half of them have a range half as wide as the widest
    one; if they are principal components (uncorrelated, of falling variance); or if they are counts or logarithms of
    counts (nothing negative, many zeros, no column with most of the variance). Labels overrule this if, under the other
    scaling, significantly more labelled rows have a nearest labelled row of their class.

    Returns:
        "global" for columns of one unit, "column" for columns of different units.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> components = rng.normal(size=(200, 8)) * 0.5 ** np.arange(8)
        >>> choose_scaling(torch.from_numpy(components)), choose_scaling(torch.from_numpy(components[:, ::-1].copy()))
        ('global', 'column')
    """
    if is_image(tuple(x.shape[1:])):
        return "global"
    some = x[:: -(-len(x) // SCALING_ROWS)].double().cpu().numpy()
    deviation = some.std(0)
    structure = "global" if _have_one_unit(some, deviation) else "column"
    if labels is None:
        return structure
    known = np.flatnonzero(labels.cpu().numpy() >= 0)[:SCALING_LABELS]
    classes, rows = labels.cpu().numpy()[known], x[torch.from_numpy(known)].double().cpu().numpy()
    right = {
        "global": _nearest_agree(rows, classes),
        "column": _nearest_agree(rows / np.where(deviation > 0, deviation, 1.0), classes),
    }
    other = "column" if structure == "global" else "global"
    better, worse = (int((right[a] & ~right[b]).sum()) for a, b in ((other, structure), (structure, other)))
    from scipy.stats import binomtest

    decided = better > worse and binomtest(better, better + worse).pvalue < 0.05
    return other if decided else structure


def share_of_alike(x: Tensor, labels: Tensor) -> float:
    """How often the labelled row that is nearest to a labelled row is of its class.

    Returns:
        The share of the first 2,000 labelled rows whose class has another one; nan if there are fewer than 20.

    Example:
        >>> labels = torch.arange(60) % 3
        >>> share_of_alike(5.0 * torch.nn.functional.one_hot(labels) + torch.rand(60, 3), labels)
        1.0
    """
    known = (labels >= 0).nonzero()[:, 0][:SCALING_LABELS]
    alike = _nearest_agree(x[known].flatten(1).double().cpu().numpy(), labels[known].cpu().numpy())
    return float(alike.mean()) if len(alike) >= LEAST_ALIKE else float("nan")


def _have_one_unit(rows: NDArray[np.float64], deviation: NDArray[np.float64]) -> bool:
    ranges = np.ptp(rows, axis=0)
    if (ranges >= ranges.max() / 2).mean() >= 0.5 or _are_counts(rows):
        return True
    used = deviation > 0
    if used.sum() < 3:
        return False
    from scipy.stats import spearmanr

    correlation = np.asarray(np.corrcoef(rows[:, used], rowvar=False))
    others = correlation[np.triu_indices(len(correlation), 1)]
    falling = spearmanr(np.arange(used.sum()), deviation[used]).statistic <= -0.95
    return bool(falling and np.sqrt((others**2).mean()) <= 0.15)


def _are_counts(rows: NDArray[np.float64]) -> bool:
    variance = rows.var(0)
    return bool((rows >= 0).all() and (rows == 0).mean() >= 0.3 and variance.max() <= 0.2 * variance.sum())


def _nearest_agree(rows: NDArray[np.float64], classes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each row's nearest other row is of its class, for rows whose class has another row."""
    from scipy.spatial.distance import pdist, squareform

    repeated = np.isin(classes, np.flatnonzero(np.bincount(classes, minlength=1) > 1))
    rows, classes = rows[repeated], classes[repeated]
    distances = squareform(pdist(rows)) if len(rows) else np.empty((0, 0))
    np.fill_diagonal(distances, np.inf)
    return classes == classes[distances.argmin(1)] if len(rows) else np.empty(0, bool)


class InputScaling(nn.Module):
    """(x - mean) / deviation, of the training data; whole numbers become float32. A checkpoint contains it.

    Args:
        input_shape: of one row.
        scaling: "column", the deviation of every column; "global", one for all entries; "none"; "unit", rows of length
            1, then "global"; "counts", log(1 + x) of rows that were scaled to one sum, then "global"; or "auto",
            "column" or "global" by :func:`choose_scaling`. Means are those of the columns, and one for images.

    Attributes:
        chosen: the scaling that :meth:`fit` used.
    """

    mean: Tensor
    deviation: Tensor
    total: Tensor

    def __init__(self, input_shape: tuple[int, ...], scaling: str = "auto") -> None:
        super().__init__()
        check_choice("scaling", scaling, SCALINGS)
        self.scaling = self.chosen = scaling
        self.register_buffer("mean", torch.zeros(input_shape))
        self.register_buffer("deviation", torch.ones(input_shape))
        self.register_buffer("total", torch.ones(()))

    def fit(self, x: Tensor, labels: Tensor | None = None, chunk: int = 8192) -> InputScaling:
        """Measures the training rows, a chunk at a time: images stay bytes.

        Args:
            x: (n, ...) rows.
            labels: (n,) integers, negative where unknown, for "auto".
            chunk: rows at a time.

        Returns:
            The module itself.

        Raises:
            ValueError: scaling is "counts" and some entry is negative.
        """
        self.chosen = choose_scaling(x, labels) if self.scaling == "auto" else self.scaling
        if self.chosen == "none":
            return self
        if self.chosen == "counts":
            if bool((x < 0).any()):
                raise ValueError("scaling='counts' is for counts, but x has negative entries.")
            sums = torch.cat([rows.double().flatten(1).sum(1).cpu() for rows in x.split(chunk)])
            self.total.fill_(float(sums.median().clamp(min=1e-12)))
        total, squares = torch.zeros(2, *self.mean.shape, dtype=torch.float64)
        for rows in x.split(chunk):
            total += self._rows(rows).double().sum(0).cpu()
        mean = total / len(x)
        if is_image(tuple(mean.shape)):
            mean = mean.mean().expand_as(mean)
        for rows in x.split(chunk):
            squares += ((self._rows(rows).double().cpu() - mean) ** 2).sum(0)
        variance = squares / len(x)
        if self.chosen != "column":
            # Constant columns say nothing about the size of the others.
            varying = variance if is_image(tuple(mean.shape)) else variance[variance > 0]
            variance = torch.where(variance > 0, varying.mean(), 0.0) if len(varying) else variance
        self.mean.copy_(mean)
        self.deviation.copy_(torch.where(variance > 0, variance, 1.0).sqrt())  # a constant column becomes zeros
        return self

    def _rows(self, x: Tensor) -> Tensor:
        """What is done to each row by itself."""
        if self.scaling == "unit":
            return nn.functional.normalize(x.float().flatten(1)).reshape(x.shape)
        if self.scaling == "counts":
            flat = x.float().flatten(1)
            return (flat * (self.total / flat.sum(1, keepdim=True).clamp(min=1e-12))).log1p().reshape(x.shape)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """The scaled rows, of the shape of ``x``."""
        return (self._rows(x).to(self.mean.dtype) - self.mean) / self.deviation
