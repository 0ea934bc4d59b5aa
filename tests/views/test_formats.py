"""Every format that PIL knows, whole and damaged: an image, or an InputError of that photo, in every door."""

from __future__ import annotations

import io
import random
import warnings
from typing import Any

import pytest
from PIL import Image
from support.models import tiny

from cots import Classifier, InputError
from cots.views import FORMATS, check_image, read_image

# PIL's IM parser meets an unknown mode and raises KeyError when the mode is first used.
UNKNOWN_MODE = (
    b"Image type: Z image\r\nFile size (no of images): 1\r\nImage size (x*y): 8*8\r\n".ljust(511, b"\0") + b"\x1a"
)


def _smallest_files() -> dict[str, bytes]:
    Image.init()
    files = {}
    for name in sorted(Image.SAVE):
        for mode in ("RGB", "L", "1", "F", "RGBA"):
            stream = io.BytesIO()
            try:
                with warnings.catch_warnings(action="ignore"):  # of formats that PIL is about to drop
                    Image.new(mode, (16, 16), 1).save(stream, name)
            except Exception:  # a mode or a platform that the format does not have
                continue
            files[name] = stream.getvalue()
            break
    return files


FILES = _smallest_files()


def outcome(source: Any) -> str:
    try:
        return read_image(source, max_pixels=1_000_000).mode
    except InputError as error:
        return str(error)


def test_the_list_of_formats_is_what_read_image_reads():
    assert set(FILES) > {*FORMATS, "IM", "EPS", "PDF", "PCX", "ICO", "JPEG2000"}
    read = {name for name, data in FILES.items() if outcome(data) == "RGB"}
    assert read == {*FORMATS, "MPO"}  # MPO is a JPEG with further images, as phones write it
    for name in read:
        check_image(FILES[name])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("EPS", "EPS"), ("PDF", "PDF"), ("IM", "IM"), ("ICO", "ICO"), ("ICNS", "ICNS"), ("JPEG2000", "JPEG2000"),
        ("PCX", "PCX"), ("SGI", "SGI"), ("DDS", "DDS"), ("QOI", "QOI"),
    ],
)  # fmt: skip
def test_formats_nobody_sends_as_photos_are_refused_by_name_with_the_remedy(kind, name, tmp_path):
    file = tmp_path / "photo.jpg"
    file.write_bytes(FILES[kind])
    message = f"image file '.*photo.jpg': {name}, a format that cots does not read. Convert it to one of JPEG, PNG"
    with pytest.raises(InputError, match=message):
        read_image(file)
    with pytest.raises(InputError, match=f"image bytes: {name}, a format that cots does not read"):
        check_image(FILES[kind])


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"SIMPLE  =                    T", "FITS"),
        (b"8BPS\x00\x01\x00\x00\x00\x00\x00\x00", "PSD"),
        (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic", "HEIC"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
    ],
)
def test_formats_that_pil_cannot_write_are_named_too(head, name):
    with pytest.raises(InputError, match=f"{name}, a format that cots does not read"):
        read_image(head)


def test_whatever_pil_raises_is_an_error_of_that_photo(monkeypatch):
    assert "IM, a format that cots does not read" in outcome(UNKNOWN_MODE)
    with warnings.catch_warnings(action="ignore"):
        opened = Image.open(io.BytesIO(UNKNOWN_MODE))  # by the caller, so its format is not checked
    assert outcome(opened).startswith("PIL image: cannot be decoded")
    grey = io.BytesIO()
    Image.new("L", (9, 9)).save(grey, "PNG")
    for broken in ("open", "load", "getbands", "convert"):
        for error in (
            KeyError("Z"),
            MemoryError(),
            RecursionError(),
            SystemError("codec"),
            Image.DecompressionBombError(),
        ):

            def fail(*given, error=error, **named):
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(Image if broken == "open" else Image.Image, broken, fail)
                if broken == "load":
                    patch.setattr("PIL.ImageFile.ImageFile.load", fail)
                assert outcome(grey.getvalue()).startswith("image bytes: "), (broken, error)


def test_mutations_of_every_format_give_an_image_or_an_input_error(tmp_path):
    draw = random.Random(0)
    file = tmp_path / "photo.jpg"
    for name, data in FILES.items():
        for _ in range(25):
            changed = bytearray(data)
            for _ in range(draw.randint(1, 6)):
                changed[draw.randrange(min(len(changed), draw.choice((32, 400, 10**6))))] = draw.randrange(256)
            file.write_bytes(changed[: draw.choice((len(changed), draw.randint(1, len(changed))))])
            assert outcome(file).startswith(("RGB", "image file")), name


def test_random_bytes_after_every_known_beginning_give_an_input_error_or_an_image():
    draw = random.Random(1)
    for data in FILES.values():
        for length in (4, 8, 16):
            assert outcome(data[:length] + draw.randbytes(300)).startswith(("RGB", "image bytes"))


def test_a_hostile_photo_in_a_list_is_a_prediction_with_its_error():
    classifier = Classifier(tiny("vit"), ["cat", "dog"], "zeroshot", views=2)
    photos = [FILES["PNG"], UNKNOWN_MODE, b"SIMPLE  =", FILES["JPEG"]]
    errors = [prediction.error for prediction in classifier(photos)]
    assert errors[0] is errors[3] is None
    assert "IM, a format that cots does not read" in errors[1]
    assert "FITS, a format that cots does not read" in errors[2]
