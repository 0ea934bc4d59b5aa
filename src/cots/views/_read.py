"""Read a path, an open file, bytes, a PIL image, an array or a tensor as an 8-bit RGB image, or raise a clear error."""

import contextlib
import io
import os
import re
import stat
import threading
import warnings
from collections.abc import Iterator
from functools import cache
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from .._errors import InputError, install_extra
from .._folders import refuse_url

# What people send as photos; HEIF too if the package pillow-heif is installed. PIL has parsers for about forty other
# formats, some of which run programs or fail in odd ways.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")
# How files of other formats begin, if PIL does not know them or has no check.
_OTHER_FORMATS = {b"%PDF": "PDF", b"Image type": "IM", b"<svg": "SVG", b"ftyphei": "HEIC", b"ftypmif1": "HEIC"}

# Enough for a 108-megapixel photo. The limit assumes three bytes per pixel; 16-bit RGBA takes eight.
MAX_PIXELS = 110_000_000
# Memory of decoders beyond the pixels, as a factor: coefficients of progressive JPEGs, canvases of WebP and AVIF.
_PROGRESSIVE, _CANVASES = 1.25, 2.5
_STRIP = 2**20  # pixels converted at a time

# Transpose operations by EXIF orientation.
_TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
_UPRIGHT = {orientation: Image.Transpose[name] for orientation, name in enumerate(_TURNS, start=2)}


def read_image(source: Any, *, orient: bool = True, flatten: bool = True, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The image in `source` as a new 8-bit RGB PIL image without metadata.

    `source` is a path; an open file; encoded bytes; a PIL image; a numpy array (H,W) or (H,W,1|3|4) of uint8, uint16
    or floats in [0, 1]; or a torch tensor of the same kinds, channels first. Animations are read as their first frame.
    `orient` rotates the photo according to its EXIF data; `flatten` puts transparent images on white. Published
    benchmark code does neither: pass False for both to reproduce its pixels. (PIL itself rotates TIFF files.)
    `max_pixels` limits the decoded size, at three bytes per pixel, and is checked before decoding. JPEGs are decoded in
    full, because PIL's draft mode, which reduces them while decoding, changes the pixels of the views.

    >>> read_image(np.full((2, 3), 65535, dtype=np.uint16)).getpixel((0, 0))
    (255, 255, 255)
    >>> read_image(b"")
    Traceback (most recent call last):
    cots._errors.InputError: image bytes: no data (0 bytes). Download or export the image again.
    """
    with _named_errors(source), _quiet_pil(), _opened(source) as image:
        _decode(image, max_pixels)
        turn = _turn(image) if orient else None
        if image is not source and image.mode == "RGB" and not image.has_transparency_data:
            upright = image._new(image.im)  # the same pixels, without a copy
            upright.info = {}
        else:
            upright = _to_rgb(image, flatten)
        if image is not source:
            image.close()  # frees its pixels before the next copy
        return upright if turn is None else upright.transpose(turn)


def check_image(data: bytes, max_pixels: int = MAX_PIXELS) -> None:
    """Refuse bytes that are not an image in one of `FORMATS`, or whose image is too large, from the header."""
    with _named_errors(data), _quiet_pil(), _opened(data) as image:
        _check_size(image, max_pixels)


class LargeImage(InputError):
    """An image that would take too much memory to decode."""


@contextlib.contextmanager
def _named_errors(source: Any) -> Iterator[None]:
    """Turn every exception into an InputError that names `source`: PIL's parsers raise nearly anything."""
    try:
        yield
    except InputError as error:
        raise type(error)(f"{_name(source)}: {error}") from error.__cause__
    except Image.DecompressionBombError as error:
        problem = (
            f"too large ({error}). Resize it or, if you trust it, raise max_pixels and PIL.Image.MAX_IMAGE_PIXELS."
        )
        raise LargeImage(f"{_name(source)}: {problem}") from error
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        problem = f"cannot be decoded ({reason}). It is damaged or truncated: download or export it again."
        raise InputError(f"{_name(source)}: {problem}") from error


def _name(source: Any) -> str:
    """The kind of `source`, and its path if it has one."""
    if isinstance(source, (str, os.PathLike)):
        return f"image file {os.fsdecode(source)!r}"
    name = type(source).__name__
    for kind, words in ((np.ndarray, "image array"), (Tensor, "image tensor"), (bytes, "image bytes")):
        if isinstance(source, kind):
            name = words
    if isinstance(source, Image.Image):
        name = "PIL image"
    path = getattr(source, "filename", "")
    return f"{name} {os.fsdecode(path)!r}" if path else name


@contextlib.contextmanager
def _opened(source: Any) -> Iterator[Image.Image]:
    if isinstance(source, Image.Image):
        yield source
    elif isinstance(source, np.ndarray):
        yield _from_array(source)
    elif isinstance(source, Tensor):
        yield _from_array(_tensor_to_array(source))
    elif isinstance(source, (bytes, bytearray, memoryview)):
        with _open_image(io.BytesIO(source)) as image:
            yield image
    elif hasattr(source, "read"):
        with _open_image(io.BytesIO(_read_bytes(source))) as image:
            yield image
    elif isinstance(source, (str, os.PathLike)):
        refuse_url(os.fsdecode(source))
        try:
            file = open(source, "rb", opener=_open_at_once)  # noqa: SIM115
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot be opened ({reason}). Check the path and its permissions.") from error
        with file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError("not a regular file but a pipe, socket or device. Save the image to a file first.")
            with _open_image(file) as image:
                yield image
    else:
        raise InputError(
            "not an image. Pass a path, an open file, the bytes of an image file, a PIL image, a numpy array or a "
            "torch tensor."
        )


def _read_bytes(file: Any) -> bytes:
    """The content of an open file, from its start if it can seek."""
    try:
        if hasattr(file, "seekable") and file.seekable():
            file.seek(0)
        data = file.read()
    except (OSError, ValueError) as error:  # closed, or not open for reading
        raise InputError(f"cannot be read ({error}). Open the file again, with mode 'rb'.") from error
    if not isinstance(data, (bytes, bytearray)):
        raise InputError(f"reads {type(data).__name__}, not bytes. Open the file with mode 'rb'.")
    return bytes(data)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without blocking: a named pipe would wait for a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _open_image(file: IO[bytes]) -> Image.Image:
    formats = FORMATS
    if _register_heif():
        formats = (*FORMATS, "HEIF")
    try:
        return Image.open(file, formats=formats)
    except UnidentifiedImageError:
        file.seek(0)
        head = file.read(16)
        if not head:
            raise InputError("no data (0 bytes). Download or export the image again.") from None
        problem, remedy = _other_format(head), f"Convert it to one of {', '.join(formats)}"
        if "HEIC" in problem:
            remedy += f", or, to read HEIC, {install_extra('formats')}"
        raise InputError(f"{problem}. {remedy}.") from None


@cache
def _register_heif() -> bool:
    """Let PIL read HEIF by pillow-heif, if that is installed."""
    try:
        from pillow_heif import register_heif_opener  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    register_heif_opener()
    return True


def _other_format(head: bytes) -> str:
    """What a file is that is not read, by its first 16 bytes."""
    for start, name in _OTHER_FORMATS.items():
        if start in head:
            return f"{name}, a format that cots does not read"
    Image.init()
    for name, (_, accept) in Image.OPEN.items():
        with contextlib.suppress(Exception):  # some read beyond a short file
            if name not in FORMATS and accept is not None and accept(head) is True:
                return f"{name}, a format that cots does not read"
    return "not an image in a supported format"


def _decode(image: Image.Image, max_pixels: int) -> None:
    _check_size(image, max_pixels)
    image.load()
    # The caller's PIL image may be of a container format (ICO, ICNS), whose size is known only after loading a frame.
    _check_size(image, max_pixels)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """How to turn a photo upright, from its EXIF data."""
    try:
        return _UPRIGHT.get(int(image.getexif().get(ExifTags.Base.Orientation, 1)))
    except Exception:  # broken metadata must not reject good pixels
        return None


def _check_size(image: Image.Image, max_pixels: int) -> None:
    (width, height), bands = image.size, len(image.getbands())
    if not width * height:
        raise InputError(f"{width} x {height} pixels. Download or export the image again.")
    # PIL has no mode for deep colour: it reads such files as 8-bit, and only the raw mode of the tiles shows the depth.
    raw = [str(tile[3]) for tile in getattr(image, "tile", [])]
    depth, held = 1, 1.0
    if image.mode in ("I", "F"):
        depth = 4
    elif any(";16" in mode for mode in (image.mode, *raw)):
        depth = 2
    if image.format in ("WEBP", "AVIF", "HEIF"):
        held = _CANVASES
    elif "progressive" in image.info:
        held = _PROGRESSIVE
    size = width * height * max(3, bands * depth)
    if size > 3 * max_pixels or size * held > 3 * max(max_pixels, MAX_PIXELS):
        raise LargeImage(
            f"{width} x {height} pixels of {bands} x {8 * depth} bits take more memory to decode than max_pixels = "
            f"{max_pixels} of 3 x 8 bits. Resize it or, if you trust it, raise max_pixels."
        )


def _to_rgb(image: Image.Image, flatten: bool) -> Image.Image:
    """A new RGB image without metadata from a loaded image of any mode; converts in strips to save memory."""
    rgb, (width, height) = Image.new("RGB", image.size), image.size
    rows = max(1, _STRIP // width)
    for top in range(0, height, rows):
        strip = image.crop((0, top, width, min(top + rows, height)))
        rgb.paste(_strip_to_rgb(strip, image.format, flatten), (0, top))
    return rgb


def _strip_to_rgb(image: Image.Image, format: str | None, flatten: bool) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        # PIL's own conversion clips everything above 255 to white.
        deep = np.asarray(image)
        if image.mode == "I":
            if format not in ("PNG", "PPM"):
                raise InputError("32-bit grey, which has no defined white. Scale it to 8 or 16 bits first.")
            deep = deep.astype(np.uint16)
        image = Image.fromarray(_to_bytes(deep))
    try:
        if flatten and image.has_transparency_data:
            white = Image.new("RGBA", image.size, "white")
            return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
        return image.convert("RGB")
    except (ValueError, OSError) as error:
        raise InputError(f"PIL cannot convert color mode {image.mode!r} ({error}). Convert it to RGB.") from error


def _tensor_to_array(tensor: Tensor) -> NDArray[Any]:
    if tensor.ndim != 2 and (tensor.ndim != 3 or tensor.shape[0] not in (1, 3, 4)):
        raise InputError(f"shape {tuple(tensor.shape)}. Pass one image, (height, width) or (1|3|4, height, width).")
    plain = tensor.detach().cpu()
    if plain.is_floating_point():
        plain = plain.float()
    if plain.ndim == 3:
        plain = plain.permute(1, 2, 0)
    return plain.numpy()


def _from_array(array: NDArray[Any]) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or array.size == 0:
        raise InputError(
            f"shape {array.shape}. Pass one image, (height, width) or (height, width, 1|3|4); "
            "array.transpose(1, 2, 0) moves the channels last."
        )
    pixels = _to_bytes(array)
    if pixels.shape[2:] == (1,):
        pixels = pixels[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(pixels))


def _to_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind == "u" and values.dtype.itemsize == 2:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if values.dtype.kind != "f":
        raise InputError(f"dtype {values.dtype}. Pass uint8, uint16 or floats in [0, 1].")
    low, high = float(values.min()), float(values.max())
    # Resizing can overshoot; half an 8-bit level still rounds to the same pixel. NaN fails both comparisons.
    if not (low >= -1 / 510 and high <= 1 + 1 / 510):
        raise InputError(
            f"floats from {low:g} to {high:g}, outside [0, 1]. Pass 8-bit values as uint8, and undo any normalisation."
        )
    return np.rint(np.clip(values, 0, 1).astype(np.float64) * 255).astype(np.uint8)


_quiet_lock = threading.Lock()
_quiet_readers = 0
_PIL_MODULES = r"PIL\b"


@contextlib.contextmanager
def _quiet_pil() -> Iterator[None]:
    """Silence PIL's warnings while any thread reads an image.

    Unlike warnings.catch_warnings, it does not restore the whole filter list, which other threads may have changed.
    """
    global _quiet_readers
    with _quiet_lock:
        if not _quiet_readers:
            warnings.filterwarnings("ignore", module=_PIL_MODULES)
        _quiet_readers += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_readers -= 1
            if not _quiet_readers:
                entry = ("ignore", None, Warning, re.compile(_PIL_MODULES), 0)
                with contextlib.suppress(ValueError):
                    warnings.filters.remove(entry)  # pyright: ignore[reportAttributeAccessIssue]
