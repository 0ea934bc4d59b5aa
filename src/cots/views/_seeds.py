"""Seeds that depend on what a sample is, never on when or where it is processed."""

from __future__ import annotations

import hashlib
import operator
from typing import Any

from .._errors import InputError
from ._read import read_image


def sample_seed(*parts: str | bytes | int | float | bool | None) -> int:
    """A stable 64-bit seed from the parts that identify a sample, such as (run seed, dataset, sample id).

    Every part goes in with its type and length, so no two different lists of parts run together.

    >>> sample_seed(0, "pets", "cat_1.jpg")
    13441941200196581833
    >>> sample_seed("a", "bc") == sample_seed("ab", "c")
    False
    """
    if not parts:
        raise InputError("sample_seed needs at least one part, for example sample_seed(run_seed, dataset, sample_id).")
    digest = hashlib.blake2b(digest_size=8, person=b"cots.sample_seed")
    for part in parts:
        kind, body = _encode(part)
        digest.update(kind + len(body).to_bytes(8, "little"))
        digest.update(body)
    return int.from_bytes(digest.digest(), "little")


def image_seed(image: Any, seed: int = 0) -> int:
    """A seed from the decoded pixels (of anything `read_image` takes), for callers that have no sample id.

    >>> from PIL import Image
    >>> image_seed(Image.new("RGB", (4, 4))) == image_seed(Image.new("RGB", (2, 8)))
    False
    """
    pixels = read_image(image)
    return sample_seed("image", seed, pixels.width, pixels.height, pixels.tobytes())


def _encode(part: object) -> tuple[bytes, bytes]:
    if isinstance(part, str):
        # File names that are not valid UTF-8 reach Python with surrogates in them; they must have a seed too.
        return b"s", part.encode("utf-8", "surrogatepass")
    if isinstance(part, (bytes, bytearray, memoryview)):
        return b"b", bytes(part)
    if part is None:
        return b"n", b""
    if isinstance(part, bool):
        return b"t", bytes([part])
    if isinstance(part, float):
        return b"f", part.hex().encode()
    try:
        return b"i", str(operator.index(part)).encode()  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise InputError(
            f"sample_seed cannot use a {type(part).__name__}: give text, bytes or numbers "
            "(for a path, path.as_posix() relative to the dataset's root, so that every machine gets the same seed)."
        ) from None
