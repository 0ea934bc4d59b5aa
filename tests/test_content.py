"""Noise, one colour and tiny images are flagged in every door, whatever the model's score; scenes are not."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter
from support.models import tiny
from support.serving import ask, client
from typer.testing import CliRunner

import cots
from cots.cli import app
from cots.content import missing_content

RNG = np.random.default_rng(0)
SIZES = ((32, 32), (48, 64), (224, 224), (400, 300), (900, 1600))


def noise(height: int, width: int, kind: str = "colour") -> Image.Image:
    if kind == "gaussian":
        values = RNG.normal(128, 40, (height, width, 3)).clip(0, 255)
    elif kind == "grey":
        values = RNG.integers(0, 256, (height, width, 1)).repeat(3, 2)
    elif kind == "salt":
        values = 255.0 * (RNG.random((height, width, 1)) < 0.1).repeat(3, 2)
    else:
        values = RNG.integers(0, 256, (height, width, 3))
    return Image.fromarray(values.astype(np.uint8))


def plain(colour: tuple[int, int, int], size: tuple[int, int] = (60, 40)) -> Image.Image:
    return Image.new("RGB", size, colour)


def scene(seed: int) -> Image.Image:
    """Shapes on a gradient, as smooth as photos are."""
    rng = np.random.default_rng(seed)
    image = Image.fromarray(np.linspace(60, 200, 120 * 160).reshape(120, 160).astype(np.uint8)).convert("RGB")
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        x, y, size = rng.integers(0, 130, 3)
        draw.ellipse((x, y, x + size // 3 + 5, y + size // 4 + 5), fill=tuple(rng.integers(0, 256, 3).tolist()))
    return image


@pytest.mark.parametrize("kind", ["colour", "grey", "gaussian", "salt"])
@pytest.mark.parametrize("size", SIZES)
def test_noise_is_named(kind, size):
    """Averages of a large noisy image have hardly any contrast left: then it is one colour."""
    image = noise(*size, kind)
    assert missing_content(image) is not None
    if size[0] <= 224:
        assert "looks like noise" in missing_content(image)
    if size[0] >= 48:
        assert missing_content(image.resize((4 * size[1], 4 * size[0]), Image.Resampling.BICUBIC)) is not None


def test_one_colour_and_few_pixels_are_named():
    for colour in ((0, 0, 0), (255, 255, 255), (200, 30, 30)):
        assert "nearly one colour" in missing_content(plain(colour))
        file = io.BytesIO()
        plain(colour, (640, 480)).save(file, "JPEG", quality=30)
        assert "nearly one colour" in missing_content(Image.open(file).convert("RGB"))
    assert "only 15 x 200 pixels" in missing_content(scene(0).resize((15, 200)))
    assert missing_content(scene(0).resize((16, 16))) is None


@pytest.mark.parametrize("seed", range(8))
def test_scenes_are_not_flagged(seed):
    image = scene(seed)
    for one in (
        image,
        image.filter(ImageFilter.GaussianBlur(3)),
        image.resize((32, 24)),
        image.convert("L").convert("RGB"),
    ):
        assert missing_content(one) is None
    grainy = np.asarray(image) + np.random.default_rng(seed).normal(0, 30, (120, 160, 3))
    assert missing_content(Image.fromarray(grainy.clip(0, 255).astype(np.uint8))) is None, "a photo at high ISO"


def encoded(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_every_door_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("cots.classifier.load", lambda name, **options: tiny("vit"))
    image = noise(64, 64)
    classifier = cots.Classifier(tiny("vit"), ["cat", "car"], "zeroshot", views=2)
    classifier.none_below = 0.0
    found, good = classifier([image, scene(0)])
    assert found.none_of_these
    assert found.warnings == (missing_content(image),)
    assert (good.none_of_these, good.warnings) == (False, ())
    assert found.abstain(none_of_these=True).label is None
    file = tmp_path / "noise.png"
    file.write_bytes(encoded(image))
    said = CliRunner().invoke(app, ["predict", str(file), "--classes", "cat,car", "--views", "2", "--none-of-these"])
    line = json.loads(said.stdout)
    assert (line["label"], line["none_of_these"], line["warnings"]) == (None, True, [missing_content(image)])
    assert f"cots: {file}: The image looks like noise" in said.stderr
    answer = ask(client(), encoded(image), methods="zeroshot").json()
    assert answer["none_of_these"]
    assert answer["warnings"] == answer["results"][0]["warnings"] == [missing_content(image)]
