"""Photos: damaged ones, formats nobody sends, the largest ones."""

import contextlib
import io
import math
import random
import struct
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import cots
from cots import bench
from cots.views._read import MAX_PIXELS

from .checks import ENDLESS, Result, bounded, in_child, peak_gib, unexpected
from .server import Send, multipart

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
# What Pillow also opens, by whatever name: `.jpg` does not say what is in a file.
UNUSUAL = (
    "IM",
    "TGA",
    "PCX",
    "SGI",
    "DDS",
    "ICO",
    "ICNS",
    "SPIDER",
    "XBM",
    "MSP",
    "EPS",
    "PDF",
    "JPEG2000",
    "PALM",
    "MPO",
)
MODES = ("RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16", "F")
PEAK_GIB = 1.5  # the limit that must hold


def encoded(image: Image.Image, mode: str, kind: str) -> bytes | None:
    """An image file, or None where the format has no such mode."""
    buffer = io.BytesIO()
    with contextlib.suppress(OSError, ValueError, KeyError), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of formats that Pillow will stop writing
        image.convert("L" if mode == "I;16" else mode).convert(mode).save(buffer, kind)
    return buffer.getvalue() or None


def _examples(rng: random.Random) -> list[bytes]:
    """One file of every format and mode, and the text headers that name what does not exist."""
    noise = Image.fromarray(np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (48, 64, 3), dtype=np.uint8))
    Image.init()
    kinds = [*FORMATS, *(kind for kind in UNUSUAL if kind in Image.SAVE)]
    return [data for kind in kinds for mode in MODES if (data := encoded(noise, mode, kind))]


def mutate_images(count: int, rng: random.Random, until: float = ENDLESS) -> Result:
    """Damage image files of every format and mode: each is read, or refused with an InputError."""
    wholes, hostile = _examples(rng), hostile_photos()
    done, problems, before = 0, Counter[str](), peak_gib()
    for _ in bounded(count, until):
        done += 1
        data = bytearray(rng.choice(wholes))
        for _ in range(rng.randrange(1, 6)):  # headers are where sizes are
            data[rng.randrange(min(len(data), rng.choice((64, len(data)))))] = rng.randrange(256)
        cut = rng.choice((len(data), rng.randrange(1, len(data))))
        error = unexpected(lambda image=bytes(data[:cut]): cots.read_image(image))
        if error:
            problems[error] += 1
    for name, image in hostile.items():
        error = unexpected(lambda image=image: cots.read_image(image))
        if error:
            problems[f"{name}: {error}"] += 1
    if peak_gib() > max(PEAK_GIB, before + 0.5):  # the caller may have used more
        problems["memory"] += 1
    return Result("mutated images", done + len(hostile), problems, f"peak {peak_gib():.2f} GiB")


def hostile_photos() -> dict[str, bytes]:
    """Contents that a decoder of Pillow trips over, each in a file that may be called .jpg."""
    header = b"Image type: RGB image\r\nImage size (x*y): 8*8\r\nFile size (no of images): 1\r\n"
    im = header.ljust(511, b"\0") + b"\x1a" + bytes(8 * 8 * 3)
    return {
        "IM of an unknown mode": im.replace(b"Image type: RGB image", b"Image type: XYZ image"),
        "IM of an odd depth": im.replace(b"Image type: RGB image", b"Image type: L 99 image"),
        "IM without a size": im.replace(b"Image size (x*y): 8*8", b"Image size (x*y): x*y"),
        "FITS without data": b"".join(line.ljust(80) for line in (b"SIMPLE  = T", b"BITPIX  = 99", b"END")).ljust(2880),
        "PPM of a huge size": b"P6 " + b"9" * 4000 + b" 1 255\n",
        "TIFF without tags": b"II*\0\x08\0\0\0\0\0\0\0\0\0",
    }  # fmt: skip


def hostile_datasets(folder: Path, send: Send, until: float = ENDLESS) -> Result:
    """Hostile photos among good ones: a run records an error for each, and no answer of the server is a failure."""
    problems = Counter[str]()
    photos = folder / "hostile" / "cat"
    photos.mkdir(parents=True)
    (photos.parent / "dog").mkdir()
    Image.effect_noise((40, 30), 60).convert("RGB").save(photos.parent / "dog" / "good.png")
    hostile = hostile_photos()
    for name, data in hostile.items():
        (photos / f"{name}.jpg").write_bytes(data)
        status = send("/v1/predict", multipart(data, "a\nb", "zeroshot"), "multipart/form-data; boundary=b")
        if status >= 500:
            problems[f"{name}: status {status}"] += 1
    words: dict[str, Any] = {
        "datasets": photos.parent,
        "methods": "zeroshot",
        "views": 2,
        "out": folder / "hostile-run",
    }
    try:
        run = bench.run(bench.RunConfig(**words))
        failed = run.failures(run.datasets[0], "zeroshot", 0).records
        if failed != len(hostile):
            problems[f"{failed} of {len(hostile)} errors recorded"] += 1
    except Exception as error:
        problems[f"run: {type(error).__name__}"] += 1
    return Result("hostile photos", len(hostile), problems)


# --- the largest ones ------------------------------------------------------------------------------------------------


def read_largest(until: float = ENDLESS) -> Result:
    """Read the largest image that is allowed and one that is too large, of each kind in a process of its own."""
    done, problems, worst = 0, Counter[str](), 0.0
    with tempfile.TemporaryDirectory() as name:
        allowed, refused = Path(name) / "allowed", Path(name) / "refused"
        for kind, per_pixel, write in LARGEST:
            if done and time.monotonic() > until:
                break
            done += 1
            side = math.isqrt(int(3 * MAX_PIXELS / per_pixel))
            write(side, allowed)
            write(side + 1, refused)
            read, peak = in_child(_read_and_measure, (allowed, refused))
            worst = max(worst, peak)
            if not read[0]:
                problems[f"{kind} of {side} x {side}: refused"] += 1
            if read[1]:
                problems[f"{kind} of {side + 1} x {side + 1}: read"] += 1
            if peak > PEAK_GIB:
                problems[f"{kind}: {peak:.2f} GiB"] += 1
    return Result("largest images", done, problems, f"of {len(LARGEST)} kinds, peak {worst:.2f} GiB")


def _read_and_measure(images: Sequence[Path]) -> tuple[list[bool], float]:
    """Whether each image is read, and the most memory that this process has used, in GiB."""
    return [_is_read(image) for image in images], peak_gib()


def _is_read(image: Path) -> bool:
    try:
        cots.read_image(image)
    except cots.InputError:
        return False
    return True


def _blank(mode: str, kind: str, **options: Any) -> Callable[[int, Path], None]:
    return lambda side, file: Image.new(mode, (side, side)).save(file, kind, **options)


def _deep_png(side: int, file: Path) -> None:
    """A PNG of four channels of 16 bits, which PIL reads and does not write."""
    packer, row = zlib.compressobj(1), bytes(1 + 8 * side)
    rows = b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()])
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 16, 6, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b"")]
    parts = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


# Bytes that reading takes per pixel, as the limit counts them.
LARGEST = (
    ("16-bit RGBA PNG", 8, _deep_png),
    ("RGBA PNG", 4, _blank("RGBA", "PNG", compress_level=1)),
    ("palette PNG", 3, _blank("P", "PNG", compress_level=1, transparency=0)),
    ("16-bit grey PNG", 3, _blank("I;16", "PNG", compress_level=1)),
    ("JPEG", 3, _blank("RGB", "JPEG", subsampling=0)),
    ("progressive JPEG", 3 * 1.25, _blank("RGB", "JPEG", subsampling=0, progressive=True)),
    ("CMYK JPEG", 4, _blank("CMYK", "JPEG")),
    ("float TIFF", 4, _blank("F", "TIFF", compression="tiff_lzw")),
    ("GIF", 3, _blank("P", "GIF")),
    ("WebP", 3 * 2.5, _blank("RGB", "WEBP", method=0)),
    ("AVIF", 3 * 2.5, _blank("RGB", "AVIF", speed=10)),
)  # fmt: skip


def raise_the_limit(until: float = ENDLESS) -> Result:
    """A server with a higher `max_pixels` answers a photo above the default, in a process of its own."""
    status = in_child(_answer_a_large_photo)
    problems = Counter[str]()
    if status != 200:
        problems[f"status {status}"] += 1
    return Result("max_pixels above default", 1, problems)


def _answer_a_large_photo() -> int:
    from starlette.testclient import TestClient

    from cots.serve import ServeSettings, create_app

    buffer = io.BytesIO()
    side = math.isqrt(MAX_PIXELS) + 100
    Image.new("L", (side, side)).save(buffer, "PNG", compress_level=1)
    app = create_app(cots.load("mini"), ServeSettings(max_pixels=2 * MAX_PIXELS, views=2))
    with TestClient(app, raise_server_exceptions=False) as client:
        body, kind = multipart(buffer.getvalue(), "a\nb", "zeroshot"), "multipart/form-data; boundary=b"
        return client.post("/v1/predict", content=body, headers={"content-type": kind}).status_code
