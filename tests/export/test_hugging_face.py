"""preprocessor_config.json as transformers reads it, where that is installed: nearly the pixels of cots."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.images import photo

import cots
from cots.export._folder import preprocessor_config

transformers = pytest.importorskip("transformers")

SETTINGS = [
    cots.ViewSettings(size=224, n=1),
    cots.ViewSettings(size=96, mean=(0.5,) * 3, std=(0.5,) * 3, resize_mode="squash", n=1),
    cots.ViewSettings(size=64, interpolation="bilinear", n=1),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["square", "squash", "bilinear"])
def test_the_processor_gives_nearly_the_pixels_of_cots(settings, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor_config(settings)))
    image = photo(300, 400).resize((402, 300))  # without an odd margin, where transformers crops a pixel aside
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    found = np.asarray(processor(images=image, return_tensors="np")["pixel_values"])
    expected = cots.make_views(image, settings, 0).numpy()
    assert found.shape == expected.shape
    levels = np.abs(found - expected) * 255 * np.array(settings.std).reshape(3, 1, 1)
    assert levels.mean() < 0.5
    assert levels.max() < 3
