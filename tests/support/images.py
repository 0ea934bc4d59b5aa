"""Generated images for tests of views."""

from __future__ import annotations

import functools

import numpy as np
from PIL import Image


@functools.cache
def photo(height: int = 375, width: int = 500, seed: int = 0) -> Image.Image:
    """A smooth image with some grain: every crop differs. Do not change it: tests share it."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / (9 + 3 * c)) * 60 + np.cos(columns / (13 + 5 * c)) * 60 + 128 for c in range(3)]
    noise = np.random.default_rng(seed).integers(-8, 9, (height, width, 3))
    return Image.fromarray(np.clip(np.stack(waves, -1) + noise, 0, 255).astype(np.uint8))


def grain(height: int, width: int, seed: int = 0) -> Image.Image:
    """Noise: nothing hides a wrong pixel."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))
