"""read_image: every kind of source becomes right RGB, every bad one an InputError that names it and the remedy."""

from __future__ import annotations

import io
import os
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from cots._errors import InputError
from cots.views import ViewSettings, _read, make_views, read_image


def pattern(height: int = 12, width: int = 17, channels: int = 3) -> np.ndarray:
    rows, columns, channel = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    return ((rows * 19 + columns * 7 + channel * 53) % 256).astype(np.uint8)


def encode(image: Image.Image, fmt: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, fmt, **options)
    return buffer.getvalue()


def png(width: int, height: int, bits: int, colour: int, rows: bytes, extra: bytes = b"") -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + extra
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_path_string_bytes_bytearray_memoryview_and_pil_give_the_same_pixels(tmp_path: Path):
    data = encode(Image.fromarray(pattern()), "PNG")
    path = tmp_path / "a photo.png"
    path.write_bytes(data)
    with Image.open(path) as lazy:
        for source in (path, str(path), data, bytearray(data), memoryview(data), lazy):
            image = read_image(source)
            assert image.mode == "RGB"
            assert np.array_equal(np.asarray(image), pattern())


def test_the_result_is_a_new_image(tmp_path: Path):
    source = Image.fromarray(pattern())
    read_image(source).putpixel((0, 0), (9, 9, 9))
    assert np.array_equal(np.asarray(source), pattern())


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation(orientation: int, fmt: str):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(Image.fromarray(pattern()), fmt, exif=exif)
    with Image.open(io.BytesIO(data)) as opened:
        stored = np.asarray(opened.convert("RGB"))
        upright = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    assert np.array_equal(np.asarray(read_image(data)), upright)
    assert np.array_equal(np.asarray(read_image(data, orient=False)), stored)
    # A second reading (make_views reads whatever it is given) must not turn the image again.
    assert np.array_equal(np.asarray(read_image(read_image(data))), upright)
    assert np.array_equal(np.asarray(read_image(read_image(data, orient=False))), stored)


def test_broken_exif_does_not_spoil_good_pixels():
    data = encode(Image.fromarray(pattern()), "PNG", exif=b"Exif\x00\x00MM\x00*\x00\x00\xff\xff\xff\xff")
    assert np.array_equal(np.asarray(read_image(data)), pattern())


def test_cmyk_jpeg():
    data = encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    red, green, blue = np.asarray(read_image(data)).reshape(-1, 3).mean(0)
    assert red > 245
    assert max(green, blue) < 10


def test_palette_one_bit_grey_and_grey_alpha():
    palette = Image.fromarray(pattern()).quantize(16)
    assert np.array_equal(np.asarray(read_image(encode(palette, "PNG"))), np.asarray(palette.convert("RGB")))
    bits = np.indices((6, 9)).sum(0) % 2 == 0
    assert np.array_equal(np.asarray(read_image(encode(Image.fromarray(bits), "PNG")))[:, :, 1], bits * 255)
    grey = pattern()[:, :, 0]
    assert np.array_equal(np.asarray(read_image(encode(Image.fromarray(grey), "PNG")))[:, :, 2], grey)
    opaque = np.dstack([grey, np.full_like(grey, 255)])
    assert np.array_equal(np.asarray(read_image(encode(Image.fromarray(opaque), "PNG")))[:, :, 0], grey)


def test_transparent_pixels_lie_on_white_unless_told_otherwise():
    colours = np.zeros((1, 3, 4), dtype=np.uint8)
    colours[0, :, 3] = (0, 128, 255)
    data = encode(Image.fromarray(colours), "PNG")
    assert np.asarray(read_image(data))[0, :, 0].tolist() == [255, 127, 0]
    assert np.asarray(read_image(data, flatten=False))[0, :, 0].tolist() == [0, 0, 0]
    assert np.asarray(read_image(colours))[0, :, 1].tolist() == [255, 127, 0]


def test_transparency_in_palettes_and_in_one_colour():
    palette = Image.new("P", (3, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    palette.putdata([0, 1, 2])
    data = encode(palette, "PNG", transparency=b"\x00\xff\xff")
    assert np.asarray(read_image(data))[0].tolist() == [[255] * 3, [40, 50, 60], [70, 80, 90]]
    assert np.asarray(read_image(data, flatten=False))[0, 0].tolist() == [10, 20, 30]
    for image, key in ((Image.new("L", (2, 1), 7), 7), (Image.new("RGB", (2, 1), (7, 8, 9)), (7, 8, 9))):
        image.putpixel((1, 0), 99 if image.mode == "L" else (99, 99, 99))
        assert np.asarray(read_image(encode(image, "PNG", transparency=key)))[0].tolist() == [[255] * 3, [99] * 3]


@pytest.mark.parametrize("mode", ["LA", "RGBA", "RGBa", "PA", "CMYK", "YCbCr", "HSV", "1", "P", "RGBX"])
def test_every_pil_mode_with_a_meaning_becomes_rgb(mode: str):
    image = read_image(Image.new(mode, (4, 3)))
    assert (image.mode, image.size) == ("RGB", (4, 3))


LEVELS16 = np.array([[0, 128, 129, 257, 32768, 65278, 65407, 65535]], dtype=np.uint16)
AS8 = [0, 0, 1, 1, 128, 254, 255, 255]


@pytest.mark.parametrize("fmt", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_greyscale_is_scaled_not_clipped(fmt: str):
    data = encode(Image.fromarray(LEVELS16), fmt)
    assert np.asarray(read_image(data))[0, :, 0].tolist() == AS8


def test_sixteen_bit_big_endian_in_memory_and_rgb_files():
    assert np.asarray(read_image(Image.fromarray(LEVELS16.astype(">u2"))))[0, :, 0].tolist() == AS8
    rows = b"\x00" + struct.pack(">6H", 65535, 32768, 0, 257, 65280, 514)
    assert np.asarray(read_image(png(2, 1, 16, 2, rows)))[0].tolist() == [[255, 128, 0], [1, 255, 2]]


def test_a_dark_sixteen_bit_file_stays_dark():
    values = struct.pack(">2H", 0, 255)
    assert np.asarray(read_image(png(2, 1, 16, 0, b"\x00" + values)))[0, :, 0].tolist() == [0, 1]
    assert np.asarray(read_image(b"P5 2 1 65535\n" + values))[0, :, 0].tolist() == [0, 1]


def test_float_mode_follows_the_rule_for_float_arrays():
    assert read_image(Image.fromarray(np.array([[0.5]], dtype=np.float32))).getpixel((0, 0)) == (128, 128, 128)
    with pytest.raises(InputError, match=r"PIL image: floats from 200 to 200, outside \[0, 1\]"):
        read_image(Image.fromarray(np.array([[200]], dtype=np.float32)))


def test_deep_greys_and_modes_without_a_conversion_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch):
    deep = Image.fromarray(np.array([[3, 5]], dtype=np.int32))
    for source, name in ((deep, "PIL image"), (encode(deep, "TIFF"), "image bytes")):
        with pytest.raises(InputError, match=f"{name}: 32-bit grey, which has no defined white. Scale it to 8 or 16"):
            read_image(source)

    def convert(self, mode):
        raise ValueError("conversion not supported")

    # Which modes PIL cannot convert (LAB, once) depends on its version.
    monkeypatch.setattr(Image.Image, "convert", convert)
    with pytest.raises(InputError, match=r"PIL image: PIL cannot convert color mode 'LAB' \(conversion not supported"):
        read_image(Image.new("LAB", (2, 2)))


@pytest.mark.parametrize("fmt", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_of_an_animation(fmt: str):
    frames = [Image.new("RGB", (8, 6), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    options = {"lossless": True} if fmt == "WEBP" else {}
    data = encode(frames[0], fmt, save_all=True, append_images=frames[1:], **options)
    assert read_image(data).getpixel((3, 3)) == (255, 0, 0)


def test_arrays_of_every_accepted_kind():
    rgb = pattern()
    for array in (rgb, rgb / 255, (rgb / 255).astype(np.float32), rgb.astype(np.uint16) * 257, rgb[:, ::-1][:, ::-1]):
        assert np.array_equal(np.asarray(read_image(array)), rgb)
    assert np.abs(np.asarray(read_image((rgb / 255).astype(np.float16))).astype(int) - rgb).max() <= 1
    grey = rgb[:, :, 0]
    for array in (grey, grey[:, :, None], np.asfortranarray(grey)):
        assert np.array_equal(np.asarray(read_image(array)), np.dstack([grey] * 3))
    opaque = np.dstack([rgb, np.full_like(grey, 255)])
    assert np.array_equal(np.asarray(read_image(opaque)), rgb)


def test_tensors_have_the_channels_first():
    rgb = pattern()
    tensor = torch.from_numpy(rgb).permute(2, 0, 1)
    for given_tensor in (tensor, tensor / 255, (tensor / 255).double().requires_grad_(), tensor[:1].expand(3, -1, -1)):
        expected = rgb if given_tensor.stride(0) else np.dstack([rgb[:, :, 0]] * 3)
        assert np.array_equal(np.asarray(read_image(given_tensor)), expected)
    assert np.array_equal(np.asarray(read_image(tensor[0]))[:, :, 1], rgb[:, :, 0])
    assert np.array_equal(np.asarray(read_image(tensor[:1]))[:, :, 1], rgb[:, :, 0])
    assert read_image(torch.full((3, 2, 2), 0.5, dtype=torch.bfloat16)).getpixel((0, 0)) == (128, 128, 128)
    with pytest.raises(InputError, match=r"image tensor: shape \(12, 17, 3\)\. Pass one image, .*\(1\|3\|4, height"):
        read_image(tensor.permute(1, 2, 0))


def test_float_overshoot_of_half_a_level_is_forgiven():
    assert np.asarray(read_image(np.array([[-0.0015, 1.0015]])))[0, :, 0].tolist() == [0, 255]


NAN = np.zeros((4, 5, 3))
NAN[2, 3, 1] = np.nan


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros((3, 8, 9), np.uint8), r"image array: shape \(3, 8, 9\)\. Pass one image.*transpose\(1, 2, 0\)"),
        (np.zeros((2, 8, 9, 3), np.uint8), r"image array: shape \(2, 8, 9, 3\)\. Pass one image"),
        (np.zeros((0, 9, 3), np.uint8), r"image array: shape \(0, 9, 3\)\. Pass one image"),
        (np.zeros((8, 9), np.int64), r"image array: dtype int64\. Pass uint8, uint16 or floats in \[0, 1\]"),
        (np.zeros((8, 9), bool), "image array: dtype bool"),
        (np.array([["a", "b"]]), "image array: dtype <U1"),
        (NAN, "image array: floats from nan to nan, outside"),
        (np.full((2, 2), np.inf), "image array: floats from inf to inf, outside"),
        (np.full((2, 2), 200.0), r"image array: floats from 200 to 200, outside \[0, 1\]\. Pass 8-bit values as uint8"),
        (torch.zeros(2, 3, 4, 5), r"image tensor: shape \(2, 3, 4, 5\)\. Pass one image"),
        (torch.zeros(3, 0, 5), r"image tensor: shape \(0, 5, 3\)"),
        (torch.zeros(3, 2, 2, dtype=torch.int64), "image tensor: dtype int64"),
        (b"", r"image bytes: no data \(0 bytes\)\. Download or export"),
        (
            b"hello, I am no image",
            "image bytes: not an image in a supported format. Convert it to one of JPEG",
        ),
        (None, "NoneType: not an image. Pass a path, an open file, the bytes"),
        (Image.new("RGB", (0, 5)), "PIL image: 0 x 5 pixels. Download"),
        ([[0, 1]], "list: not an image"),
    ],
)
def test_bad_values(source, message: str):
    with pytest.raises(InputError, match=message):
        read_image(source)


def test_bad_files_are_named(tmp_path: Path):
    whole = encode(Image.fromarray(pattern(200, 200)), "JPEG")
    files = {
        "cut.jpg": (whole[: len(whole) // 2], "cannot be decoded .*damaged or truncated"),
        "stub.jpg": (whole[:40], "cannot be decoded|not an image"),
        "cut.png": (
            encode(Image.fromarray(pattern(200, 200)), "PNG")[:600],
            "cannot be decoded .*damaged or truncated",
        ),
        "cut.gif": (
            encode(Image.fromarray(pattern()).quantize(8), "GIF")[:60],
            "cannot be decoded .*damaged or truncated",
        ),
        "text.png": (b"not an image at all", "not an image in a supported format"),
        "empty.png": (b"", r"no data \(0 bytes\)"),
        "program.eps": (
            encode(Image.new("RGB", (4, 4)), "EPS"),
            "EPS, a format that cots does not read. Convert it to one of JPEG",
        ),
    }
    for name, (data, message) in files.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=rf"image file '.*{name}': ({message})"):
            read_image(tmp_path / name)


def test_paths_that_cannot_be_opened(tmp_path: Path):
    for path, reason in ((tmp_path / "gone.jpg", "No such file"), (tmp_path, "Is a directory"), ("a\0b", "null")):
        with pytest.raises(InputError, match=rf"image file '.*': cannot be opened \(.*{reason}.*\)\. Check the path"):
            read_image(path)


def test_a_pil_image_whose_file_was_closed(tmp_path: Path):
    Image.fromarray(pattern()).save(tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as closed:
        pass
    with pytest.raises(InputError, match=r"PIL image '.*x\.png': cannot be decoded"):
        read_image(closed)


def test_decompression_bombs_are_refused_from_the_header():
    huge = png(60_000, 60_000, 8, 2, b"\x00")
    with pytest.raises(InputError, match=r"image bytes: too large \(.*3600000000 pixels.*raise max_pixels"):
        read_image(huge)
    # The data are also cut short: were they decoded first, the message would be about that.
    small = encode(Image.fromarray(pattern(200, 200)), "PNG")[:600]
    with pytest.raises(
        InputError,
        match=r"200 x 200 pixels of 3 x 8 bits take more memory to decode than max_pixels = 39999 of",
    ):
        read_image(small, max_pixels=39_999)
    for source in (np.zeros((5, 5), np.uint8), Image.new("RGB", (5, 5)), torch.zeros(3, 5, 5)):
        assert read_image(source, max_pixels=25).size == (5, 5)
        with pytest.raises(InputError, match=r"5 x 5 pixels of . x 8 bits take .* than max_pixels = 24"):
            read_image(source, max_pixels=24)


@pytest.mark.parametrize(
    ("depth", "kind", "per_pixel"),  # of a PNG: bits per channel, colour type; bytes after decoding, at least RGB's 3
    [(1, 0, 3), (8, 0, 3), (16, 0, 3), (8, 3, 3), (8, 2, 3), (8, 4, 3), (8, 6, 4), (16, 2, 6), (16, 6, 8)],
)
def test_the_limit_counts_bytes_after_decoding(depth, kind, per_pixel):
    size = 3000 // per_pixel
    for width, allowed in ((size, True), (size + 1, False)):
        data = png(width, 100, depth, kind, b"\x00")
        with pytest.raises(
            InputError, match="cannot be decoded" if allowed else f"{width} x 100 pixels of . x .* bits"
        ):
            read_image(data, max_pixels=100_000)


@pytest.mark.parametrize("reduction", [2, 4, 8])
def test_jpegs_are_decoded_in_full_because_draft_mode_changes_views(reduction: int):
    image = Image.fromarray(pattern(24, 32)).resize((1024, 768), Image.Resampling.BICUBIC)
    data = encode(image, "JPEG", quality=90)
    with Image.open(io.BytesIO(data)) as full, Image.open(io.BytesIO(data)) as reduced:
        assert read_image(data).tobytes() == full.tobytes()
        reduced.draft("RGB", (1024 // reduction, 768 // reduction))
        assert reduced.size[0] == 1024 // reduction
        small = ViewSettings(n=4, size=32)
        assert not torch.equal(make_views(reduced, small, 0)[0], make_views(full, small, 0)[0])


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(InputError, match=r"pipe.jpg': not a regular file but a pipe, socket or device"):
        read_image(tmp_path / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "socket.jpg"))
        with pytest.raises(InputError, match=r"socket.jpg': cannot be opened"):
            read_image(tmp_path / "socket.jpg")
    for other, message in ((os.devnull, "not a regular file"), (tmp_path, "cannot be opened .Is a directory")):
        with pytest.raises(InputError, match=message):
            read_image(other)


def test_conversion_in_strips_changes_no_pixel(monkeypatch):
    rng = np.random.default_rng(0)
    grey = Image.fromarray(rng.integers(0, 2**16, (9, 7), dtype=np.uint16))
    colours = Image.fromarray(rng.integers(0, 256, (9, 7, 4), dtype=np.uint8))
    palette = Image.fromarray(rng.integers(0, 256, (9, 7), dtype=np.uint8)).convert("P")
    palette.info["transparency"] = 3
    images = [grey, colours, palette, colours.convert("LA"), colours.convert("CMYK"), colours.convert("1")]
    whole = [read_image(image).tobytes() for image in images]
    monkeypatch.setattr(_read, "_STRIP", 14)  # two rows
    assert [read_image(image).tobytes() for image in images] == whole


def test_allowed_sizes_that_pil_would_warn_about_are_read_silently(monkeypatch: pytest.MonkeyPatch):
    data = encode(Image.fromarray(pattern(100, 150)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    before = list(warnings.filters)
    assert read_image(data).size == (150, 100)
    assert list(warnings.filters) == before
    with pytest.raises(Image.DecompressionBombWarning):
        Image.open(io.BytesIO(data))


def test_reading_in_threads_leaves_the_warning_filters_alone(monkeypatch: pytest.MonkeyPatch):
    data = encode(Image.fromarray(pattern(100, 150)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    before, failures = list(warnings.filters), []

    def work() -> None:
        try:
            for _ in range(50):
                read_image(data)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert list(warnings.filters) == before


FILES = [
    encode(Image.fromarray(pattern()), "JPEG", exif=b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x00\x00"),
    encode(Image.fromarray(pattern()), "PNG"),
    encode(Image.fromarray(pattern()).quantize(8), "GIF"),
    encode(Image.fromarray(LEVELS16), "TIFF"),
    encode(Image.fromarray(pattern()), "WEBP"),
    encode(Image.fromarray(pattern()), "BMP"),
    encode(Image.fromarray(pattern()), "AVIF"),
]


def test_damaged_files_give_an_image_or_an_input_error_and_no_warning():
    rng = np.random.default_rng(0)
    for i in range(400):
        data = bytearray(FILES[i % len(FILES)])
        for position, value in rng.integers(0, (401, 256), (rng.integers(1, 7), 2)).tolist():
            data[position % len(data)] = value
        length = int(rng.integers(1, 2000)) if i % 2 else len(data)
        try:
            outcome = read_image(bytes(data[:length]), max_pixels=1_000_000).mode
        except InputError as error:
            outcome = str(error)
        assert outcome == "RGB" or outcome.startswith("image bytes")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.binary(min_size=1, max_size=200))
def test_arbitrary_bytes_never_raise_anything_else(data: bytes):
    with pytest.raises(InputError, match="image bytes"):
        read_image(data)


def test_the_memory_of_a_large_photo_is_little_more_than_its_pixels():
    """PIL has four bytes per pixel of an RGB image; neither reading nor seeding nor drawing needs a second copy."""
    code = """
        import io, resource, sys
        from PIL import Image
        from cots.views import ViewSettings, image_seed, make_views, read_image, draw_plan, render_views

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

        make_views(Image.new("RGB", (600, 600)), ViewSettings(n=2), 0)
        before = peak()
        image = read_image(open(sys.argv[1], "rb"))
        plan = draw_plan((image.height, image.width), ViewSettings(n=6), image_seed(image, 0))
        render_views(image, plan, ViewSettings(n=6))
        print((peak() - before) / (image.width * image.height))
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "large.png"
        Image.new("RGB", (6000, 6000), (200, 100, 50)).save(file)
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 5.0
