"""From a path, bytes, a PIL image, an array or a tensor to an RGB image, or an error that says what is wrong."""

from __future__ import annotations

import contextlib
import io
import os
import re
import threading
import warnings
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from .._errors import InputError
from ._pixels import array_to_image, tensor_to_image, to_rgb

MAX_PIXELS = 178_956_970

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_image(source: Any, *, orient: bool = True, flatten: bool = True, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The image in `source` as a new 8-bit RGB PIL image without metadata.

    `source` is a path; encoded bytes; a PIL image; a numpy array (H,W) or (H,W,1|3|4) of uint8, uint16 or floats in
    [0, 1]; or a torch tensor of the same kinds with the channels first. Of an animation the first frame counts.
    `orient` turns the photo as its EXIF data says. `flatten` puts transparent images on white, as a viewer shows them.
    Published benchmark code does neither: give False for both to reproduce its pixels. (PIL itself turns TIFF files.)

    >>> import numpy as np
    >>> read_image(np.full((2, 3), 65535, dtype=np.uint16)).getpixel((0, 0))
    (255, 255, 255)
    >>> read_image(b"")
    Traceback (most recent call last):
    cots._errors.InputError: image bytes: there are none (0 bytes). Read the file in binary mode and pass all of it.
    """
    if isinstance(source, Image.Image):
        filename = getattr(source, "filename", "")
        name = f"PIL image {os.fsdecode(filename)!r}" if filename else "PIL image"
        return _decode(source, name, orient, flatten, max_pixels)
    if isinstance(source, (np.ndarray, Tensor)):
        image = array_to_image(source) if isinstance(source, np.ndarray) else tensor_to_image(source)
        _check_size("image array", image, max_pixels)
        return to_rgb(image, "image array", flatten)
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
        if not data:
            raise InputError("image bytes: there are none (0 bytes). Read the file in binary mode and pass all of it.")
        return _read_file(io.BytesIO(data), "image bytes", orient, flatten, max_pixels)
    if isinstance(source, (str, os.PathLike)):
        name = f"image file {os.fsdecode(source)!r}"
        with _opened(source, name) as file:
            return _read_file(file, name, orient, flatten, max_pixels)
    raise InputError(
        f"an image cannot be read from a {type(source).__name__}: "
        "give a path, the bytes of an image file, a PIL image, a numpy array or a torch tensor."
    )


def image_size(data: bytes, formats: tuple[str, ...] | None = None) -> tuple[int, int]:
    """(width, height) that the header of an encoded image declares; nothing is decoded.

    formats: PIL's names of the formats that are tried; all by default.

    >>> buffer = io.BytesIO()
    >>> Image.new("RGB", (4, 3)).save(buffer, "PNG")
    >>> image_size(buffer.getvalue())
    (4, 3)
    """
    with _quiet_pil():
        try:
            with Image.open(io.BytesIO(data), formats=formats) as image:
                return image.size
        except UnidentifiedImageError:
            known = ", ".join(formats) if formats else "a format that PIL knows"
            raise InputError(f"image bytes are not an image that can be read; send {known}.") from None
        except Exception as error:
            raise _damaged("image bytes", error) from error


def _opened(path: str | os.PathLike[Any], name: str) -> IO[bytes]:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        text = os.fsdecode(path)
        if re.match(r"[a-z][a-z0-9+.-]+://", text, re.IGNORECASE):
            raise InputError(f"{name} is an address, not a file: download it and give its path or its bytes.") from None
        raise InputError(f"{name} does not exist: check the path (the current folder is {os.getcwd()!r}).") from None
    except IsADirectoryError:
        raise InputError(f"{name} is a folder: give one of the image files in it.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name} cannot be opened ({reason}): check its name and permissions.") from error


def _read_file(file: IO[bytes], name: str, orient: bool, flatten: bool, max_pixels: int) -> Image.Image:
    with _quiet_pil():
        try:
            image = Image.open(file)
        except UnidentifiedImageError:
            if not file.seek(0, os.SEEK_END):
                raise InputError(f"{name} is empty (0 bytes): fetch or export it again.") from None
            raise InputError(
                f"{name} is not an image in a format that PIL can read: convert it to JPEG or PNG "
                "(or install PIL's plug-in for its format)."
            ) from None
        except Image.DecompressionBombError as error:
            raise InputError(
                f"{name} is refused before decoding ({error}). Resize it; or, if you trust it, raise both max_pixels "
                "and PIL.Image.MAX_IMAGE_PIXELS."
            ) from None
        # Parsers of hostile headers raise nearly anything (SyntaxError, struct.error, zlib.error, IndexError, ...).
        except Exception as error:
            raise _damaged(name, error) from error
        with image:
            # PIL would hand an EPS file, which is a program, to Ghostscript.
            if image.format == "EPS":
                raise InputError(f"{name} is a PostScript file, which is not run here: convert it to PNG.")
            return _decode(image, name, orient, flatten, max_pixels)


def _decode(image: Image.Image, name: str, orient: bool, flatten: bool, max_pixels: int) -> Image.Image:
    _check_size(name, image, max_pixels)
    with _quiet_pil():
        try:
            image.load()
        except Exception as error:
            raise _damaged(name, error) from error
        # Container formats (ICO, ICNS) only know the true size once a frame is open.
        _check_size(name, image, max_pixels)
        turn = _UPRIGHT.get(_orientation(image)) if orient else None
        upright = to_rgb(image, name, flatten)
    return upright if turn is None else upright.transpose(turn)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    # Broken metadata is no reason to refuse good pixels.
    except Exception:
        return 1


def _check_size(name: str, image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise InputError(f"{name} has no pixels (width {width}, height {height}): give an image of at least 1 x 1.")
    if width * height > max_pixels:
        raise InputError(
            f"{name} is refused: {width} x {height} = {width * height} pixels are more than max_pixels = {max_pixels}. "
            "Resize it; or, if you trust it, raise max_pixels."
        )


def _damaged(name: str, error: Exception) -> InputError:
    reason = str(error).strip() or type(error).__name__
    return InputError(f"{name} cannot be decoded ({reason}): it is damaged or cut short. Fetch or export it again.")


_quiet_lock = threading.Lock()
_quiet_readers = 0
_PIL_MODULES = r"PIL\b"


@contextlib.contextmanager
def _quiet_pil() -> Iterator[None]:
    """No warning of PIL's while any thread reads an image.

    Not warnings.catch_warnings: that restores the whole filter list, and so undoes what other threads did meanwhile.
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
