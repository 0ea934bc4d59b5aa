"""The corruptions of ImageNet-C: closed forms, naive second implementations, and what all of them share."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import scipy
from PIL import Image
from skimage.color import hsv2rgb, rgb2hsv

import cots
from cots.views import CORRUPTIONS, corrupt, parse_corruption
from cots.views import _corrupt as own

NAMES = [
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
]  # fmt: skip
RANDOM = {"gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow", "frost", "fog"}
RANDOM |= {"elastic_transform"}


def photo(size=(240, 224)) -> Image.Image:
    """Smooth colours with some detail."""
    noise = np.random.default_rng(0).integers(0, 256, (28, 30, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def values(image: Image.Image) -> np.ndarray:
    return np.asarray(image, dtype=float) / 255


def rng():
    return np.random.default_rng(1)


def test_the_fifteen_names():
    assert list(CORRUPTIONS) == NAMES
    assert parse_corruption("fog:5") == ("fog", 5)
    for text, message in (
        ("fogg:3", "Did you mean 'fog'"),
        ("fog", "severity from 1 to 5"),
        ("fog:6", "such as fog:3"),
    ):
        with pytest.raises(cots.InputError, match=message):
            parse_corruption(text)


@pytest.mark.parametrize("name", NAMES)
def test_every_corruption_is_deterministic_and_grows(name):
    image = photo((112, 120))  # enlarged: the published constants are for 224 pixels
    clean = values(image.resize((224, 240), Image.Resampling.BICUBIC))
    first, again, other = (corrupt(image, f"{name}:4", seed) for seed in (3, 3, 4))
    assert first.size == (224, 240)
    assert first.tobytes() == again.tobytes()
    assert (first.tobytes() != other.tobytes()) == (name in RANDOM)
    # Elastic severities 1 and 2 move more, in other ways; frost hides more from 3 to 5, but brightens less.
    first_of = {"elastic_transform": 3}.get(name, 1)
    mild, middle, severe = (np.abs(values(corrupt(image, f"{name}:{s}", 3)) - clean).mean() for s in (first_of, 3, 5))
    assert 0 < mild < severe
    assert middle < severe or name == "frost"


def test_noise_has_the_published_spread():
    x = np.full((224, 224, 3), 0.5)
    published = [(0.08, 60, 0.03), (0.12, 25, 0.06), (0.18, 12, 0.09), (0.26, 5, 0.17), (0.38, 3, 0.27)]
    for level, (sigma, photons, share) in enumerate(published):
        assert own._gaussian_noise(x, level, rng()).std() == pytest.approx(sigma, rel=0.01)
        shot = own._shot_noise(x, level, rng())
        assert (shot.mean(), shot.var()) == (pytest.approx(0.5, rel=0.01), pytest.approx(0.5 / photons, rel=0.02))
        salted = own._impulse_noise(x, level, rng())
        assert (salted == 0).mean() == pytest.approx(share / 2, rel=0.1)
        assert (salted == 1).mean() == pytest.approx(share / 2, rel=0.1)


def published(level):
    """What the published generator does at a severity, in its words and with its tables."""
    x, noise = values(photo()), rng()
    spread = (0.08, 0.12, 0.18, 0.26, 0.38)[level]
    yield "gaussian_noise", x + noise.normal(size=x.shape, scale=spread)
    photons, noise = (60, 25, 12, 5, 3)[level], rng()
    yield "shot_noise", noise.poisson(x * photons) / photons
    amount, noise = (0.03, 0.06, 0.09, 0.17, 0.27)[level], rng()
    flipped, salt = noise.random(x.shape) < amount, noise.random(x.shape) < 0.5
    salted = x.copy()
    salted[flipped & salt], salted[flipped & ~salt] = 1, 0
    yield "impulse_noise", salted
    hsv = rgb2hsv(x)
    hsv[..., 2] = np.clip(hsv[..., 2] + (0.1, 0.2, 0.3, 0.4, 0.5)[level], 0, 1)
    yield "brightness", hsv2rgb(hsv)
    means = np.mean(x, axis=(0, 1), keepdims=True)
    yield "contrast", (x - means) * (0.4, 0.3, 0.2, 0.1, 0.05)[level] + means
    share = (0.6, 0.5, 0.4, 0.3, 0.25)[level]
    small = photo().resize((int(240 * share), int(224 * share)), Image.Resampling.BOX)
    yield "pixelate", values(small.resize((240, 224), Image.Resampling.BOX))
    stream = io.BytesIO()
    photo().save(stream, "JPEG", quality=(25, 18, 15, 10, 7)[level])
    yield "jpeg_compression", values(Image.open(stream))


@pytest.mark.parametrize("level", range(5))
def test_noise_brightness_contrast_pixelate_and_jpeg_are_the_published_ones(level):
    for name, expected in published(level):
        found = CORRUPTIONS[name](values(photo()), level, rng())
        np.testing.assert_allclose(found, expected, atol=1e-12, err_msg=name)
    assert own._brightness(np.zeros((1, 1, 3)), 0, rng()) == pytest.approx(0.1), "black has no colour to keep"


def impulse(size=81) -> np.ndarray:
    """Black with one white pixel in the middle: what a blur makes of it is its kernel, turned by half."""
    x = np.zeros((size, size, 3))
    x[size // 2, size // 2] = 1
    return x


@pytest.mark.parametrize(("level", "radius"), list(enumerate([3, 4, 6, 8, 10])))
def test_defocus_is_a_disk_of_the_published_radius(level, radius):
    spread = own._defocus_blur(impulse(), level, rng())[..., 0]
    assert spread.sum() == pytest.approx(1, abs=0.015), "the published kernels of radius 8 and 10 sum to 1.01"
    y, x = np.mgrid[-40:41, -40:41]
    flat = 1 / (x**2 + y**2 <= radius**2).sum()
    assert (spread > flat / 2).sum() == pytest.approx(1 / flat, rel=0.1)
    assert spread[40, 40] == pytest.approx(flat), "the softened edge leaves the inside alone"
    noise, reach = np.random.default_rng(0).random((30, 40, 2)), max(8, radius)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disk = (x**2 + y**2 <= radius**2).astype(float)
    edge = np.exp(-(np.arange(-1 - (radius > 8), 2 + (radius > 8)) ** 2) / (2 * (0.1, 0.5, 0.5, 0.5, 0.5)[level] ** 2))
    soft = scipy.ndimage.convolve(disk / disk.sum(), np.outer(edge, edge) / edge.sum() ** 2, mode="mirror")
    expected = [scipy.ndimage.convolve(noise[..., channel], soft, mode="mirror") for channel in range(2)]
    np.testing.assert_allclose(own._defocus_blur(noise, level, rng()), np.stack(expected, -1), atol=1e-12)


@pytest.mark.parametrize(("level", "radius", "sigma"), [(0, 10, 3), (1, 15, 5), (2, 15, 8), (3, 15, 12), (4, 20, 15)])
def test_motion_is_half_a_gaussian_of_twice_the_radius(level, radius, sigma):
    spread = own._move(impulse(101), radius, sigma, 0.0)[..., 0]
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    np.testing.assert_allclose(spread[50, 50 - steps], weights / weights.sum(), atol=1e-12)
    assert np.count_nonzero(spread) == len(steps)
    image = values(photo((40, 30)))
    angle = np.random.default_rng(1).uniform(-45, 45)
    moved = own._motion_blur(image, level, rng())
    for row, column in ((0, 0), (20, 39), (29, 3)):
        total = np.zeros(3)
        for step, weight in zip(steps, weights / weights.sum(), strict=True):
            down = math.ceil(step * math.sin(math.radians(angle)) - 0.5)
            right = math.ceil(step * math.cos(math.radians(angle)) - 0.5)
            total += weight * image[min(max(row + down, 0), 29), min(max(column + right, 0), 39)]
        np.testing.assert_allclose(moved[row, column], total, atol=1e-12)


@pytest.mark.parametrize("sigma", [0.7, 1.5, 20.0])
def test_gaussian_blur_is_that_of_scipy(sigma):
    x = np.random.default_rng(0).random((30, 41, 3))
    expected = scipy.ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest")
    np.testing.assert_allclose(own._gaussian_blur(x, sigma, "edge"), expected, atol=1e-12)
    expected = scipy.ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="reflect", truncate=3)
    np.testing.assert_allclose(own._gaussian_blur(x, sigma, "symmetric", 3), expected, atol=1e-12)


def test_glass_copies_in_place_from_the_last_pixel_to_the_first():
    x = np.random.default_rng(0).random((20, 24, 3))
    for level, (sigma, most, times) in enumerate([(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)]):
        noise = rng()
        expected = scipy.ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest")
        for _ in range(times):
            shifts = noise.integers(-most, most, (2, 20, 24))
            for row in range(20 - most, most, -1):
                for column in range(24 - most, most, -1):
                    down, right = shifts[:, row, column]
                    expected[row, column] = expected[row + down, column + right]
        expected = scipy.ndimage.gaussian_filter(expected, (sigma, sigma, 0), mode="nearest")
        np.testing.assert_allclose(own._glass_blur(x, level, rng()), expected, atol=1e-12)


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.15, 2.5, 4.5])
def test_zoom_crops_the_centre_and_enlarges_it(factor):
    x = np.random.default_rng(0).random((56, 61, 3))
    kept = [math.ceil(size / factor) for size in x.shape[:2]]
    top, left = ((size - part) // 2 for size, part in zip(x.shape, kept, strict=False))
    large = np.asarray(scipy.ndimage.zoom(x[top : top + kept[0], left : left + kept[1]], (factor, factor, 1), order=1))
    top, left = ((large.shape[axis] - x.shape[axis]) // 2 for axis in (0, 1))
    np.testing.assert_allclose(own._zoom(x, factor), large[top : top + 56, left : left + 61], atol=1e-12)


def test_zoom_blur_averages_the_published_factors():
    x = values(photo())
    for level, (last, step) in enumerate([(1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)]):
        layers = [x, *(own._zoom(x, factor) for factor in np.arange(1, last, step))]
        np.testing.assert_allclose(own._zoom_blur(x, level, rng()), np.mean(layers, 0), atol=1e-12)


@pytest.mark.parametrize(("border", "mode"), [("reflect", "mirror"), ("symmetric", "reflect")])
def test_sampling_between_pixels(border, mode):
    x = np.random.default_rng(0).random((4, 6, 3))
    rows, columns = np.random.default_rng(1).uniform(-9, 12, (2, 5, 7))
    expected = [scipy.ndimage.map_coordinates(x[..., c], [rows, columns], order=1, mode=mode) for c in range(3)]
    np.testing.assert_allclose(own._sample(x, rows, columns, border), np.stack(expected, -1), atol=1e-12)


def test_frost_has_the_statistics_of_the_published_photos():
    """Mean 0.48 to 0.80, contrast 0.07 to 0.17, neighbours 0.03 to 0.07 apart, bluish."""
    black = np.zeros((224, 224, 3))
    layers = np.stack([own._frost(black, 0, np.random.default_rng(seed)) / 0.4 for seed in range(20)])
    grey = layers @ np.array([0.299, 0.587, 0.114])
    assert 0.45 < grey.mean((1, 2)).min() < 0.55
    assert 0.73 < grey.mean((1, 2)).max() < 0.83
    assert 0.07 < grey.std((1, 2)).mean() < 0.12
    assert 0.03 < np.abs(np.diff(grey, axis=1)).mean() < 0.06
    assert layers[..., 0].mean() < layers[..., 1].mean() < layers[..., 2].mean()


@pytest.mark.parametrize("decay", [1.4, 2.0])
def test_plasma_fills_its_range_and_is_rougher_with_less_decay(decay):
    field = own._plasma(200, decay, rng())
    assert field.shape == (256, 256)
    assert (field.min(), field.max()) == (0, 1)
    rough = own._plasma(200, 1.2, rng())
    assert np.abs(np.diff(field, axis=0)).mean() < np.abs(np.diff(rough, axis=0)).mean()


def test_plasma_is_damped_by_the_square_of_its_decay():
    """Half the pixels of a side are drawn last: they miss the mean of their neighbours by the last noise alone."""
    field = own._plasma(256, 2.0, rng())
    misses = []
    for step in (2, 4, 8):
        half = step // 2
        corners = field[::step, ::step]
        mean = (corners + np.roll(corners, -1, 0) + np.roll(corners, -1, 1) + np.roll(corners, -1, (0, 1))) / 4
        misses.append(np.abs(field[half::step, half::step] - mean).max())
    assert misses[1] / misses[0] == pytest.approx(4, rel=0.1)
    assert misses[2] / misses[1] == pytest.approx(4, rel=0.1)


# Second implementations of the four that are drawn, from the published generator's equations and its tables
# (make_imagenet_c.py; elastic: 244 * (2, 0.7, 0.1) and so on, written out).
FOG = [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)]
FROST = [(1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)]
SNOW = [
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
]
ELASTIC = [
    (244 * 2, 244 * 0.7, 244 * 0.1),
    (244 * 2, 244 * 0.08, 244 * 0.2),
    (244 * 0.05, 244 * 0.01, 244 * 0.02),
    (244 * 0.07, 244 * 0.01, 244 * 0.02),
    (244 * 0.12, 244 * 0.01, 244 * 0.02),
]


def naive_plasma(side, decay, noise):
    """Diamond-square, pixel by pixel, with the published noise: `wibble` times a number in [-wibble, wibble]."""
    grid, step, wibble = np.zeros((side, side)), side, 100.0
    while step >= 2:
        half = step // 2
        wobbles = [wibble * noise.uniform(-wibble, wibble, (side // step, side // step)) for _ in range(3)]
        for i in range(side // step):
            for j in range(side // step):
                top, left, bottom, right = i * step, j * step, (i + 1) * step % side, (j + 1) * step % side
                corners = grid[top, left] + grid[top, right] + grid[bottom, left] + grid[bottom, right]
                grid[top + half, left + half] = corners / 4 + wobbles[0][i, j]
        for i in range(side // step):
            for j in range(side // step):
                top, left = i * step, j * step
                here = grid[top, left] + grid[top + half, left + half]
                above, beside = grid[(top - half) % side, left + half], grid[top + half, (left - half) % side]
                grid[top, left + half] = (here + grid[top, (left + step) % side] + above) / 4 + wobbles[1][i, j]
                grid[top + half, left] = (here + grid[(top + step) % side, left] + beside) / 4 + wobbles[2][i, j]
        step, wibble = half, wibble / decay
    return (grid - grid.min()) / (grid.max() - grid.min())


def small_photo(height, width):
    return np.random.default_rng(7).random((height, width, 3)) * 0.9


@pytest.mark.parametrize("level", range(5))
def test_fog_is_the_published_one(level):
    x, (strength, decay) = small_photo(24, 30), FOG[level]
    layer = naive_plasma(32, decay, rng())[:24, :30, None]
    expected = (x + strength * layer) * x.max() / (x.max() + strength)
    np.testing.assert_allclose(own._fog(x, level, rng()), expected, atol=1e-12)


@pytest.mark.parametrize("level", range(5))
def test_frost_has_the_published_shares(level):
    """The layer is drawn: brightness, contrast and tint are those of the published photos (a choice of cots)."""
    x, (keep, weight), noise = small_photo(24, 30), FROST[level], rng()
    layer = naive_plasma(32, 1.08, noise)[:24, :30]
    layer = noise.uniform(0.48, 0.80) + 0.1 * (layer - layer.mean()) / layer.std()
    for channel, tint in enumerate((0.90, 1.03, 1.10)):
        expected = keep * x[..., channel] + weight * np.clip(tint * layer, 0, 1)
        np.testing.assert_allclose(own._frost(x, level, rng())[..., channel], expected, atol=1e-12)


@pytest.mark.parametrize("level", range(5))
def test_snow_is_the_published_one(level):
    height, width = 40, 47
    x, noise = small_photo(height, width), rng()
    mean, spread, factor, threshold, radius, sigma, keep = SNOW[level]
    layer = noise.normal(mean, spread, (height, width))
    kept = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - kept[0]) // 2, (width - kept[1]) // 2
    large = scipy.ndimage.zoom(layer[top : top + kept[0], left : left + kept[1]], factor, order=1)
    top, left = (large.shape[0] - height) // 2, (large.shape[1] - width) // 2
    layer = large[top : top + height, left : left + width]
    layer = np.where(layer < threshold, 0, np.clip(layer, 0, 1))
    angle, rows, columns = math.radians(noise.uniform(-135, -45)), np.arange(height), np.arange(width)
    weights, moved = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2)), 0
    for step, weight in enumerate(weights / weights.sum()):
        down, right = math.ceil(step * math.sin(angle) - 0.5), math.ceil(step * math.cos(angle) - 0.5)
        near = np.clip(rows + down, 0, height - 1), np.clip(columns + right, 0, width - 1)
        moved = moved + weight * layer[near[0]][:, near[1]]
    grey = 0.299 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2]
    whiter = np.maximum(x, 1.5 * grey[..., None] + 0.5)
    expected = keep * x + (1 - keep) * whiter + (moved + moved[::-1, ::-1])[..., None]
    assert moved.max() > 0
    np.testing.assert_allclose(own._snow(x, level, rng()), expected, atol=1e-12)


@pytest.mark.parametrize("level", range(5))
def test_elastic_is_the_published_one(level):
    """An affine map of three points with cv2's mirrored borders, then a displacement by smoothed noise."""
    side, noise = 36, rng()
    x, (strength, sigma, shake) = small_photo(side, side), ELASTIC[level]
    centre, third = side // 2, side // 3
    points = [(centre + third, centre + third), (centre + third, centre - third), (centre - third, centre - third)]
    shifts = noise.uniform(-shake, shake, (3, 2))
    system = np.array([[px, py, 1] for px, py in points], dtype=float)
    matrix = np.linalg.inv(system) @ (np.array(points) + shifts)  # rows: x, y, 1 -> x', y'
    back = np.linalg.inv(matrix[:2].T)
    columns, rows = np.meshgrid(np.arange(side), np.arange(side))
    places = np.stack([columns - matrix[2, 0], rows - matrix[2, 1]], -1) @ back.T
    mapped = [
        scipy.ndimage.map_coordinates(x[..., c], [places[..., 1], places[..., 0]], order=1, mode="mirror")
        for c in range(3)
    ]
    moves = []
    for _ in range(2):
        field = noise.uniform(-1, 1, (side, side, 1))[..., 0]
        moves.append(strength * scipy.ndimage.gaussian_filter(field, sigma, mode="reflect", truncate=3))
    where = [rows + moves[1], columns + moves[0]]
    expected = [scipy.ndimage.map_coordinates(channel, where, order=1, mode="reflect") for channel in mapped]
    np.testing.assert_allclose(own._elastic_transform(x, level, rng()), np.stack(expected, -1), atol=1e-9)
