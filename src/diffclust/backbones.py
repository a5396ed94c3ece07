"""Networks from an input to an embedding, by name, and the input scaling that stands in front of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:  # pragma: no cover
    raise ImportError("diffclust.backbones needs PyTorch. Install it with: pip install 'diffclust[fit]'") from error

BACKBONES = ("linear", "mlp", "residual", "cnn")
SCALINGS = ("auto", "column", "global", "none")


def make_backbone(
    backbone: str | nn.Module | Callable[..., Any], input_shape: tuple[int, ...], embedding_dim: int
) -> nn.Module:
    """The network that maps a batch (n, \\*input_shape) to embeddings (n, ...).

    Args:
        backbone: "linear"; "mlp", two hidden layers of 256 and 64; "residual", that beside the input itself, see
            :class:`Residual`; "cnn", the paper's network for images of at least 8 x 8; "package.module:attribute"; a
            module, used as it is; or a function ``input_shape -> module``.
        input_shape: of one row: (d,), (H, W) or (C, H, W).
        embedding_dim: the width of the output of the named backbones.

    >>> make_backbone("mlp", (8, 8), 16)(torch.zeros(5, 8, 8)).shape
    torch.Size([5, 16])
    """
    if isinstance(backbone, str) and backbone not in BACKBONES:
        backbone = _import(backbone)
    if isinstance(backbone, str):
        return {"linear": _linear, "mlp": _mlp, "residual": Residual, "cnn": _cnn}[backbone](
            tuple(input_shape), embedding_dim
        )
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

        components = PCA(room, random_state=0).fit(rows.numpy()).components_
        with torch.no_grad():
            self.input.weight.copy_(torch.from_numpy(components))

    def forward(self, x: Tensor) -> Tensor:
        return self.input(x.flatten(1)) + self.network(x)


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
        nn.Conv2d(channels[0] if channels else 1, 32, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 256), nn.ReLU(), nn.Linear(256, embedding_dim),
    )  # fmt: skip


def is_image(input_shape: tuple[int, ...]) -> bool:
    """(H, W) or (C, H, W)."""
    return len(input_shape) in (2, 3)


class InputScaling(nn.Module):
    """(x - mean) / deviation, of the training data; whole numbers become float32. A checkpoint contains it.

    Args:
        input_shape: of one row.
        scaling: "column", mean and deviation of every column; "global", one for all entries; "none"; or "auto":
            "global" for images and where at least half of the columns have a range half as wide as the widest one or
            wider (pixels, measurements of one unit), "column" for tables of features of different units, and where
            columns are so far apart (10,000 ranges) that with one mean for all little would be left of their digits.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, input_shape: tuple[int, ...], scaling: str = "auto") -> None:
        super().__init__()
        if scaling not in SCALINGS:
            raise ValueError(f"scaling must be one of {SCALINGS}, got {scaling!r}.")
        self.scaling = scaling
        self.register_buffer("mean", torch.zeros(input_shape))
        self.register_buffer("deviation", torch.ones(input_shape))

    def fit(self, x: Tensor, chunk: int = 8192) -> InputScaling:
        """Measures the rows of ``x`` (n, \\*input_shape), a chunk at a time: images stay bytes."""
        if self.scaling == "none":
            return self
        total, squares = torch.zeros(2, *self.mean.shape, dtype=torch.float64)
        for rows in x.split(chunk):
            total += rows.double().sum(0).cpu()
        mean = total / len(x)
        if not self._by_column(x):
            mean = mean.mean().expand_as(mean)
        for rows in x.split(chunk):
            squares += ((rows.double().cpu() - mean) ** 2).sum(0)
        variance = squares / len(x)
        if not self._by_column(x):
            variance = variance.mean().expand_as(variance)
        self.mean.copy_(mean)
        self.deviation.copy_(torch.where(variance > 0, variance, 1.0).sqrt())  # a constant column becomes zeros
        return self

    def _by_column(self, x: Tensor) -> bool:
        if self.scaling != "auto":
            return self.scaling == "column"
        if is_image(tuple(self.mean.shape)):
            return False
        highest, lowest = x.amax(0).double(), x.amin(0).double()
        ranges = highest - lowest
        alike = (ranges >= ranges.max() / 2).double().mean() >= 0.5
        return not bool(alike and highest.max() - lowest.min() <= 1e4 * ranges.max())

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.mean.dtype) - self.mean) / self.deviation
