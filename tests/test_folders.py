"""Photos in folders: the formats that single files have; web addresses and HEIC without its package are named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PIL import Image, features
from support.images import grain

import cots
from cots import _folders
from cots.views import _read


def test_folders_have_the_formats_of_single_files(tmp_path):
    endings = ["gif", "jpg", "png", "webp", "bmp", "tiff", "ppm"]
    if features.check("avif"):
        endings.append("avif")
    for ending in endings:
        grain(24, 32).save(tmp_path / f"photo.{ending}")
    found = [Path(file) for _, file in _folders.images_below(tmp_path)]
    assert sorted(file.suffix[1:] for file in found) == sorted(endings)
    for file in found:
        assert cots.read_image(file).size == (32, 24), file
    assert not _folders.skipped_images(tmp_path)


def heic(folder: Path) -> Path:
    heif = pytest.importorskip("pillow_heif")
    file = folder / "photo.HEIC"
    heif.from_pillow(grain(48, 64)).save(file)
    return file


def test_heic_is_read_alone_and_in_folders(tmp_path):
    file = heic(tmp_path)
    assert cots.read_image(file).size == (64, 48)
    assert cots.read_image(file.read_bytes()).mode == "RGB"
    assert [found for _, found in _folders.images_below(tmp_path)] == [str(file)]
    with pytest.raises(cots.InputError, match="max_pixels = 100"):
        cots.read_image(file, max_pixels=100)


@pytest.fixture
def without_heif(monkeypatch):
    for cached in (_read._register_heif, _folders.image_endings):
        cached.cache_clear()
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    find = _folders.importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pillow_heif" else find(name))
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    yield
    monkeypatch.undo()
    for cached in (_read._register_heif, _folders.image_endings):
        cached.cache_clear()


def test_without_its_package_heic_is_named_with_the_extra(tmp_path, without_heif):
    file = tmp_path / "photo.heic"
    file.write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    with pytest.raises(cots.InputError, match=r"HEIC, a format .* to read HEIC, .*--extra formats"):
        cots.read_image(file)
    assert not list(_folders.images_below(tmp_path))
    assert _folders.skipped_images(tmp_path) == {".heic": 1}


@pytest.mark.parametrize("address", ["https://example.org/cat.jpg", "http://example.org/x", "s3://bucket/cat.jpg"])
def test_web_addresses_are_refused_by_name(address):
    said = f"{address}: cots does not download photos. Save it first"
    for call in (lambda: _folders.refuse_url(Path(address)), lambda: cots.read_image(address)):
        with pytest.raises(cots.InputError, match=said.replace(".", r"\.")):
            call()
    with pytest.raises(cots.InputError, match="does not download"):
        cots.data.open_dataset(address)
    _folders.refuse_url(Path("https/cat.jpg"))
