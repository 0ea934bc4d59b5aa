"""The corruptions of ImageNet-C: closed forms, naive second implementations, and what all of them share."""

from __future__ import annotations

import colorsys
import io

import numpy as np
import pytest
from PIL import Image

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
    mild, severe = (np.abs(values(corrupt(image, f"{name}:{s}", 3)) - clean).mean() for s in (3, 5))
    assert 0 < mild < severe, "severities 1 and 2 of elastic_transform move more, in other ways"


def test_noise_has_the_published_spread():
    x = np.full((224, 224, 3), 0.5)
    for level, (sigma, photons, share) in enumerate([(0.08, 60, 0.03), (0.12, 25, 0.06), (0.18, 12, 0.09)]):
        assert own._gaussian_noise(x, level, rng()).std() == pytest.approx(sigma, rel=0.01)
        shot = own._shot_noise(x, level, rng())
        assert (shot.mean(), shot.var()) == (pytest.approx(0.5, rel=0.01), pytest.approx(0.5 / photons, rel=0.02))
        salted = own._impulse_noise(x, level, rng())
        assert (salted == 0).mean() == pytest.approx(share / 2, rel=0.1)
        assert (salted == 1).mean() == pytest.approx(share / 2, rel=0.1)


def test_brightness_contrast_pixelate_and_jpeg_in_closed_form():
    image = photo()
    x = values(image)
    bright = own._brightness(x, 2, rng())
    for row, column in ((0, 0), (17, 200), (100, 3)):
        h, s, v = colorsys.rgb_to_hsv(*x[row, column])
        assert bright[row, column] == pytest.approx(colorsys.hsv_to_rgb(h, s, min(1, v + 0.3)))
    assert own._brightness(np.zeros((1, 1, 3)), 0, rng()) == pytest.approx(0.1)
    np.testing.assert_allclose(own._contrast(x, 3, rng()), 0.1 * x + 0.9 * x.mean((0, 1)), atol=1e-12)
    small = image.resize((96, 89), Image.Resampling.BOX).resize(image.size, Image.Resampling.BOX)
    assert np.array_equal(own._pixelate(x, 2, rng()), values(small))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=10)
    assert np.array_equal(own._jpeg_compression(x, 3, rng()), values(Image.open(stream)))


def test_blurs_are_convolutions_with_mirrored_borders():
    x = np.random.default_rng(0).random((9, 11, 2))
    kernel = np.random.default_rng(1).random((5, 5))
    found = own._convolve(x, kernel)
    for row, column in ((0, 0), (4, 5), (8, 10), (1, 9)):
        total = np.zeros(2)
        for i in range(-2, 3):
            for j in range(-2, 3):
                at = []
                for place, size in ((row - i, 9), (column - j, 11)):
                    at.append(-place - 1 if place < 0 else 2 * size - 1 - place if place >= size else place)
                total += kernel[i + 2, j + 2] * x[tuple(at)]
        np.testing.assert_allclose(found[row, column], total, atol=1e-12)
    for radius, sigma in ((3, 0.1), (10, 0.5)):
        assert own._disk(radius, sigma).sum() == pytest.approx(1)
    line = own._line(10, 3, 30.0)
    assert line.sum() == pytest.approx(1)
    assert line[:10].sum() == 0, "it starts at the centre and goes one way"


def test_sampling_between_pixels():
    x = np.random.default_rng(0).random((4, 6, 3))
    rows, columns = np.mgrid[:4, :6].astype(float)
    np.testing.assert_allclose(own._sample(x, rows, columns), x)
    np.testing.assert_allclose(own._sample(x, rows + 0.25, columns)[1, 2], 0.75 * x[1, 2] + 0.25 * x[2, 2])
    np.testing.assert_allclose(own._sample(x, rows - 5, columns)[3, 0], x[1, 0])  # row -2 is mirrored to 1
    np.testing.assert_allclose(own._zoom(x, 1.0), x)


@pytest.mark.parametrize("decay", [1.4, 2.0])
def test_plasma_fills_its_range_and_is_rougher_with_less_decay(decay):
    field = own._plasma(200, decay, rng())
    assert field.shape == (256, 256)
    assert (field.min(), field.max()) == (0, 1)
    rough = own._plasma(200, 1.2, rng())
    assert np.abs(np.diff(field, axis=0)).mean() < np.abs(np.diff(rough, axis=0)).mean()
