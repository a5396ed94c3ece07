"""The networks of the experiments: functions of the shape of an image that return a torch module."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


class Lenet(nn.Sequential):
    """Two 3 x 3 convolutions of 32 and 64 channels with average pools, two dense layers: the paper's network."""

    def __init__(self, input_shape: tuple[int, ...], width: int = 256) -> None:
        height = input_shape[-2]
        super().__init__(
            nn.Unflatten(1, (1, height)),
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(64 * (height // 4) ** 2, width), nn.ReLU(), nn.Linear(width, width),
        )  # fmt: skip


def _conv(n_in: int, n_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=False)


class _Residual(nn.Module):
    """relu(x + f(x)) for f of convolutions (width, size, stride), each normalised; zero at the start of training."""

    def __init__(self, n_in: int, layers: list[tuple[int, int, int]]) -> None:
        super().__init__()
        widths = [n_in, *(width for width, _, _ in layers)]
        parts: list[nn.Module] = []
        for (before, after), (_, size, stride) in zip(pairwise(widths), layers, strict=True):
            parts += [_conv(before, after, size, stride), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*parts[:-1])
        nn.init.zeros_(self.body[-1].weight)  # type: ignore[arg-type]
        total = 1
        for _, _, stride in layers:
            total *= stride
        self.shortcut: nn.Module = nn.Identity()
        if total > 1 or n_in != widths[-1]:
            self.shortcut = nn.Sequential(_conv(n_in, widths[-1], 1, total), nn.BatchNorm2d(widths[-1]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network for images of about 32 x 32 with channels, or without, as (H, W); channels last.

    Args:
        blocks: of each of the four stages, of 64, 128, 256 and 512 channels.
        bottleneck: blocks of 1 x 1, 3 x 3, 1 x 1 convolutions, four times as wide at the end, or of two 3 x 3.
        pool: a max pool after the first convolution, which is 3 x 3 of stride 1, as in the paper.
        width: of the embedding.
    """

    def __init__(
        self, input_shape: tuple[int, ...], blocks: tuple[int, ...], bottleneck: bool, pool: bool, width: int = 256
    ) -> None:
        super().__init__()
        n_channels = input_shape[0] if len(input_shape) == 3 else 1
        layers: list[nn.Module] = [_conv(n_channels, 64, 3), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        if pool:
            layers.append(nn.MaxPool2d(3, 2, padding=1))
        n_in = 64
        for stage, n_blocks in enumerate(blocks):
            for i in range(n_blocks):
                inner, stride = 64 * 2**stage, 2 if stage > 0 and i == 0 else 1
                if bottleneck:
                    layers.append(_Residual(n_in, [(inner, 1, 1), (inner, 3, stride), (4 * inner, 1, 1)]))
                else:
                    layers.append(_Residual(n_in, [(inner, 3, stride), (inner, 3, 1)]))
                n_in = 4 * inner if bottleneck else inner
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, width))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                module.num_batches_tracked = None  # not used, and a kernel of its own for every layer and step
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        images = x if x.ndim == 4 else x[:, None]
        return self.layers(images.contiguous(memory_format=torch.channels_last))


lenet: Any = Lenet
resnet50 = partial(ResNet, blocks=(3, 4, 6, 3), bottleneck=True, pool=True)
resnet18 = partial(ResNet, blocks=(2, 2, 2, 2), bottleneck=False, pool=False)
