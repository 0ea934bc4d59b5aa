"""The fifteen corruptions of ImageNet-C at five severities (Hendrycks and Dietterich, ICLR 2019).

All constants are those of the published generator (corruptions.toml). What differs from it:

- The short side is brought to 224 pixels and nothing is cut off; published: 256, then the central 224 x 224.
- Frost is drawn with the brightness, contrast and tint of the published photos of frost, which are not distributed.
- Motion (also of snow) is ImageMagick's blur written out: a one-sided Gaussian of 2 x radius + 1 taps along a line.
- Intermediate images stay float64 instead of 8 bits, values are rounded instead of cut, and no JPEG is saved.
- Random numbers come from a seed per image.

Arrays are float64 in [0, 1] of shape (H, W, 3).
"""

import io
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from .._errors import InputError, check_one_of

SIDE, SEVERITIES = 224, (1, 2, 3, 4, 5)
Noise = np.random.Generator
_TABLES = tomllib.loads(Path(__file__).with_name("corruptions.toml").read_text(encoding="utf-8"))


def corrupt(image: Image.Image, corruption: str, seed: int) -> Image.Image:
    """The RGB image with its short side at 224 pixels and a corruption such as "gaussian_noise:3"; seeded."""
    name, severity = parse_corruption(corruption)
    scale = SIDE / min(image.size)
    size = (max(SIDE, round(image.width * scale)), max(SIDE, round(image.height * scale)))
    small = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
    noise = np.random.Generator(np.random.PCG64(seed))
    return _image(CORRUPTIONS[name](_array(small), severity - 1, noise))


def parse_corruption(text: str) -> tuple[str, int]:
    """("gaussian_noise", 3) of "gaussian_noise:3"."""
    name, _, severity = text.partition(":")
    check_one_of("corruption", name, tuple(CORRUPTIONS))
    if severity not in map(str, SEVERITIES):
        raise InputError(f"corruption {text!r} needs a severity from 1 to 5, such as {name}:3.")
    return name, int(severity)


def _constants(corruption: str, level: int) -> list[Any]:
    """The published constants of one severity, in the order of corruptions.toml."""
    return [by_level[level] for by_level in _TABLES[corruption].values()]


def _array(image: Image.Image) -> np.ndarray:
    return np.asarray(image, dtype=np.float64) / 255


def _image(x: np.ndarray) -> Image.Image:
    return Image.fromarray(np.rint(255 * np.clip(x, 0, 1)).astype(np.uint8))


def _gaussian_noise(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    (spread,) = _constants("gaussian_noise", level)
    return x + noise.normal(0, spread, x.shape)


def _shot_noise(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    (photons,) = _constants("shot_noise", level)
    return noise.poisson(x * photons) / photons


def _impulse_noise(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    """Salt and pepper on single values."""
    (share,) = _constants("impulse_noise", level)
    hit = noise.random(x.shape) < share
    return np.where(hit, (noise.random(x.shape) < 0.5).astype(float), x)


def _defocus_blur(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    radius, sigma = _constants("defocus_blur", level)
    return _convolve(x, _disk(radius, sigma))


def _glass_blur(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    """Blur, give every pixel the value of a near one a few times, blur again.

    The published loop copies in place from the last pixel to the first, so a source after its target has already been
    overwritten: values travel along chains. They are followed here by pointer doubling.
    """
    sigma, most, times = _constants("glass_blur", level)
    x = _gaussian_blur(x, sigma, "edge")
    height, width = x.shape[:2]
    own = np.arange(height * width)
    inside = np.zeros((height, width), dtype=bool)
    inside[most + 1 : height - most + 1, most + 1 : width - most + 1] = True
    for _ in range(times):
        down, right = noise.integers(-most, most, (2, height * width))
        source = np.where(inside.ravel(), own + down * width + right, own)
        chain = np.where(source > own, source, own)
        while not np.array_equal(further := chain[chain], chain):
            chain = further
        x = x.reshape(-1, 3)[source[chain]].reshape(x.shape)
    return _gaussian_blur(x, sigma, "edge")


def _motion_blur(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    radius, sigma = _constants("motion_blur", level)
    return _move(x, radius, sigma, noise.uniform(-45, 45))


def _zoom_blur(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    end, step = _constants("zoom_blur", level)
    factors = np.arange(1, end, step)
    return (x + sum(_zoom(x, factor) for factor in factors)) / (len(factors) + 1)


def _snow(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    mean, spread, factor, threshold, radius, sigma, keep = _constants("snow", level)
    layer = _zoom(noise.normal(mean, spread, x.shape[:2])[..., None], factor)
    layer = np.clip(np.where(layer < threshold, 0, layer), 0, 1)
    layer = _move(layer, radius, sigma, noise.uniform(-135, -45))
    whiter = np.maximum(x, (_grey(x) * 1.5 + 0.5)[..., None])
    return keep * x + (1 - keep) * whiter + layer + np.rot90(layer, 2)


def _frost(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    """The published formula over a drawn layer: a rough bluish fractal with the statistics of the published photos."""
    keep, weight = _constants("frost", level)
    height, width = x.shape[:2]
    layer = _plasma(max(height, width), 1.08, noise)[:height, :width]
    layer = noise.uniform(0.48, 0.80) + 0.1 * (layer - layer.mean()) / layer.std()
    return keep * x + weight * np.clip(layer[..., None] * np.array([0.90, 1.03, 1.10]), 0, 1)


def _fog(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    strength, decay = _constants("fog", level)
    height, width = x.shape[:2]
    top = x.max()
    x = x + strength * _plasma(max(height, width), decay, noise)[:height, :width, None]
    return x * top / (top + strength)


def _brightness(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    """Value of HSV plus a constant: every channel grows in proportion to the largest."""
    (added,) = _constants("brightness", level)
    value = x.max(-1, keepdims=True)
    brighter = np.clip(value + added, 0, 1)
    return np.where(value > 0, x * brighter / np.where(value > 0, value, 1), brighter)


def _contrast(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    (kept,) = _constants("contrast", level)
    mean = x.mean((0, 1), keepdims=True)
    return (x - mean) * kept + mean


def _elastic_transform(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    """A random affine map of three points, then a smooth random displacement; borders are mirrored."""
    strength, sigma, shake = _constants("elastic_transform", level)
    height, width = x.shape[:2]
    centre, third = np.array([width // 2, height // 2]), min(height, width) // 3
    points = centre + third * np.array([(1, 1), (1, -1), (-1, -1)])
    moved = points + noise.uniform(-shake, shake, (3, 2))
    affine = np.linalg.solve(np.c_[moved, np.ones(3)], points)  # from the result back to the source
    rows, columns = np.mgrid[:height, :width].astype(float)
    flat = np.stack([columns, rows, np.ones_like(rows)], -1) @ affine
    fields = (_gaussian_blur(noise.uniform(-1, 1, (height, width, 1)), sigma, "symmetric", reach=3) for _ in range(2))
    across, down = (strength * field[..., 0] for field in fields)
    return _sample(_sample(x, flat[..., 1], flat[..., 0], "reflect"), rows + down, columns + across, "symmetric")


def _pixelate(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    (share,), image = _constants("pixelate", level), _image(x)
    small = image.resize((int(image.width * share), int(image.height * share)), Image.Resampling.BOX)
    return _array(small.resize(image.size, Image.Resampling.BOX))


def _jpeg_compression(x: np.ndarray, level: int, noise: Noise) -> np.ndarray:
    (quality,), stream = _constants("jpeg_compression", level), io.BytesIO()
    _image(x).save(stream, "JPEG", quality=quality)
    with Image.open(stream) as image:
        return _array(image)


CORRUPTIONS: dict[str, Callable[[np.ndarray, int, Noise], np.ndarray]] = {
    function.__name__[1:]: function
    for function in (
        _gaussian_noise, _shot_noise, _impulse_noise, _defocus_blur, _glass_blur, _motion_blur, _zoom_blur, _snow,
        _frost, _fog, _brightness, _contrast, _elastic_transform, _pixelate, _jpeg_compression,
    )
}  # fmt: skip
"""The corruptions by name, in ImageNet-C's order."""


def _grey(x: np.ndarray) -> np.ndarray:
    return x @ np.array([0.299, 0.587, 0.114])


def _convolve(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Every channel with a kernel of odd size; borders are mirrored at the centres of the outermost pixels."""
    reach = kernel.shape[0] // 2
    padded = np.pad(x, ((reach, reach), (reach, reach), (0, 0)), "reflect")
    shape = padded.shape[:2]
    spectrum = np.fft.rfft2(padded, axes=(0, 1)) * np.fft.rfft2(kernel, shape, axes=(0, 1))[..., None]
    return np.fft.irfft2(spectrum, shape, axes=(0, 1))[2 * reach :, 2 * reach :]


def _disk(radius: int, sigma: float) -> np.ndarray:
    """A filled circle, its edge softened by a small Gaussian as published."""
    reach = max(8, radius)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disk = (x**2 + y**2 <= radius**2).astype(float)
    edge = _gaussian(1 if radius <= 8 else 2, sigma)
    return _convolve((disk / disk.sum())[..., None], np.outer(edge, edge))[..., 0]


def _move(x: np.ndarray, radius: int, sigma: float, degrees: float) -> np.ndarray:
    """Motion in one direction: every pixel averages those on a line from it; borders repeat the outermost pixels."""
    reach, (height, width) = 2 * radius, x.shape[:2]
    padded = np.pad(x, ((reach, reach), (reach, reach), (0, 0)), "edge")
    steps = np.arange(reach + 1)
    angle, weights = np.deg2rad(degrees), np.exp(-(steps**2) / (2 * sigma**2))
    total = np.zeros_like(x)
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        down, right = (reach + int(np.ceil(step * part - 0.5)) for part in (np.sin(angle), np.cos(angle)))
        total += weight * padded[down : down + height, right : right + width]
    return total


def _gaussian(reach: int, sigma: float) -> np.ndarray:
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    return weights / weights.sum()


def _gaussian_blur(x: np.ndarray, sigma: float, border: Literal["edge", "symmetric"], reach: int = 4) -> np.ndarray:
    """Along rows, then columns; the Gaussian is cut off at `reach` standard deviations."""
    side = int(reach * sigma + 0.5)
    weights = _gaussian(side, sigma)
    for axis in (0, 1):
        padded = np.pad(x, [(side * (axis == other),) * 2 for other in range(3)], border)
        size = padded.shape[axis]
        response = np.fft.rfft(weights, size).reshape(-1, *(1,) * (2 - axis))
        x = np.fft.irfft(np.fft.rfft(padded, axis=axis) * response, size, axis).take(range(2 * side, size), axis)
    return x


def _zoom(x: np.ndarray, factor: float) -> np.ndarray:
    """The centre of the image, enlarged by `factor` to the size of the whole."""
    for axis in (0, 1):
        size = x.shape[axis]
        kept = int(np.ceil(size / factor))
        enlarged = round(kept * factor)
        places = (np.arange(size) + (enlarged - size) // 2) * (kept - 1) / (enlarged - 1)
        low = np.minimum(places.astype(int), kept - 2)
        share = np.expand_dims(places - low, (1, 2) if axis == 0 else (0, 2))
        low += (size - kept) // 2
        x = x.take(low, axis) * (1 - share) + x.take(low + 1, axis) * share
    return x


def _sample(
    x: np.ndarray, rows: np.ndarray, columns: np.ndarray, border: Literal["reflect", "symmetric"]
) -> np.ndarray:
    """Bilinear values at fractional places; mirrored at the outermost pixels' centres ("reflect") or edges."""
    corners = []
    for values, size in ((rows, x.shape[0]), (columns, x.shape[1])):
        low = np.floor(values).astype(int)
        period = 2 * size - (2 if border == "reflect" else 0)
        last = period - (0 if border == "reflect" else 1)
        ends = (end % period for end in (low, low + 1))
        corners.append((*(np.minimum(end, last - end) for end in ends), (values - low)[..., None]))
    (top, bottom, down), (left, right, across) = corners
    upper = x[top, left] * (1 - across) + x[top, right] * across
    lower = x[bottom, left] * (1 - across) + x[bottom, right] * across
    return upper * (1 - down) + lower * down


def _plasma(size: int, decay: float, noise: Noise) -> np.ndarray:
    """A fractal in [0, 1] by the diamond-square algorithm on a torus.

    Each finer level is damped by decay**2: the published code multiplies noise in [-w, w] by w again.
    """
    side = 1 << (size - 1).bit_length()
    grid, step, spread = np.zeros((side, side)), side, 1.0
    while step >= 2:
        half = step // 2
        corners = grid[::step, ::step]
        square = corners + np.roll(corners, -1, 0)
        square = square + np.roll(square, -1, 1)
        grid[half::step, half::step] = square / 4 + noise.uniform(-spread, spread, corners.shape)
        centres = grid[half::step, half::step]
        across = corners + np.roll(corners, -1, 1) + centres + np.roll(centres, 1, 0)
        grid[::step, half::step] = across / 4 + noise.uniform(-spread, spread, corners.shape)
        down = corners + np.roll(corners, -1, 0) + centres + np.roll(centres, 1, 1)
        grid[half::step, ::step] = down / 4 + noise.uniform(-spread, spread, corners.shape)
        step, spread = half, spread / decay**2
    return (grid - grid.min()) / (grid.max() - grid.min())
