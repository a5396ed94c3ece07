"""A sprite sheet: many small pictures in one."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 64  # largest width and height of a picture, in pixels
LOSSLESS = 2_000_000  # sheets of up to this many pixels are compressed without loss


def sprite_sheet(images: NDArray[Any]) -> dict[str, Any]:
    """All images, (n, H, W) or (n, H, W, C), on one sheet, row by row, as a data URL."""
    from PIL import Image

    pixels = _bytes(images)
    height, width = pixels.shape[1:3]
    shrink = max(height, width, SIDE) / SIDE
    size = max(1, round(width / shrink)), max(1, round(height / shrink))
    columns = int(np.ceil(np.sqrt(len(pixels))))
    sheet = Image.new("RGB", (columns * size[0], -(-len(pixels) // columns) * size[1]))
    for position, picture in enumerate(pixels):
        tile = Image.fromarray(picture).convert("RGB")
        tile = tile if tile.size == size else tile.resize(size, Image.Resampling.LANCZOS)
        sheet.paste(tile, (position % columns * size[0], position // columns * size[1]))
    file = io.BytesIO()
    lossless = sheet.width * sheet.height <= LOSSLESS
    sheet.save(file, "WEBP", lossless=lossless, quality=85, method=4)
    url = "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
    return {"url": url, "columns": columns, "width": size[0], "height": size[1]}


def _bytes(images: NDArray[Any]) -> NDArray[np.uint8]:
    """(n, H, W) grey or (n, H, W, 3) colours, from 0 to 255."""
    if images.ndim == 4 and images.shape[3] not in (3, 4):
        images = images[..., 0] if images.shape[3] == 1 else images.mean(3)
    images = images[..., :3] if images.ndim == 4 else images
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    values = np.nan_to_num(images.astype(np.float32))
    low, high = float(values.min()), float(values.max())
    return ((values - low) / (high - low or 1.0) * 255).round().astype(np.uint8)
