"""The browser example: its pixels are those of cots, and its files name no other hosts."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from playwright._impl._driver import compute_driver_executable
from support.images import grain

import cots
from cots.export._folder import preprocessor_config

FOLDER = Path(__file__).parents[1] / "examples" / "browser"
SCRIPT = """
import { readFileSync, writeFileSync } from "node:fs";
import { toPixels } from "PIXELS";
const { width, height, processor } = JSON.parse(readFileSync("case.json"));
const bytes = { data: readFileSync("photo.rgba"), width, height };
const { data } = toPixels(bytes, processor);
writeFileSync("pixels.f32", Buffer.from(data.buffer));
"""
SETTINGS = {
    "shrunk": cots.ViewSettings(size=32, n=1),
    "bilinear": cots.ViewSettings(size=48, interpolation="bilinear", n=1),
    "squashed": cots.ViewSettings(size=(40, 24), resize_mode="squash", mean=(0.5,) * 3, std=(0.5,) * 3, n=1),
    "enlarged": cots.ViewSettings(size=160, n=1),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_pixels_are_those_of_cots(name, tmp_path):
    settings, image = SETTINGS[name], grain(77, 130)
    (tmp_path / "photo.rgba").write_bytes(image.convert("RGBA").tobytes())
    about = {"width": image.width, "height": image.height, "processor": preprocessor_config(settings)}
    (tmp_path / "case.json").write_text(json.dumps(about))
    (tmp_path / "run.mjs").write_text(SCRIPT.replace("PIXELS", (FOLDER / "pixels.js").as_uri()))
    node, _ = compute_driver_executable()
    subprocess.run([node, "--no-warnings", "run.mjs"], cwd=tmp_path, check=True)
    found = np.fromfile(tmp_path / "pixels.f32", dtype=np.float32).reshape(3, *settings.shape)
    expected = cots.make_views(image, settings, 0)[0].numpy()
    levels = np.abs(found - expected) * 255 * np.array(settings.std).reshape(3, 1, 1)
    assert levels.max() < 1.01
    assert (levels > 0.01).mean() < 0.005


def test_the_page_loads_nothing_from_other_hosts():
    package = json.loads((FOLDER / "package.json").read_text())
    assert all(re.fullmatch(r"[\d.]+", version) for version in package["dependencies"].values())
    for name in ("index.html", "page.js", "pixels.js", "package.json"):
        assert "://" not in (FOLDER / name).read_text(), name
    assert "default-src 'self'" in (FOLDER / "index.html").read_text()
