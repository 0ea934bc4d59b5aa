"""JSON bodies in bounded memory: members are located without building objects, and arrays of numbers go to numpy."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
import numpy as np
from fastapi import Request
from msgspec import UNSET, Raw, UnsetType

from .._errors import unknown_name
from ._schemas import ApiError, invalid

MAX_TEXT = 2**20  # bytes of a member that is not an array of numbers
_BLANKS, _BRACKETS, _NUMBER = b" \t\r\n", b"[]", b"0123456789+-.eE"
WIDEST = 100_000  # numbers per row; no list has that many classes
# Numbers are parsed in pieces, between which other threads run; a longer number is not a logit.
_PIECE = 2**17


async def read_body(request: Request) -> bytearray:
    """The whole body; unlike `Request.body`, without a second copy and without keeping it in the request."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
    return body


def read_members(body: bytes | bytearray, names: Iterable[str]) -> dict[str, Raw]:
    """The members of a JSON object as undecoded JSON, which refers to the body; `names` are the accepted ones."""
    names = tuple(names)
    try:
        try:
            found = _decoder(names).decode(body)
        except msgspec.DecodeError:
            if b"NaN" not in body and b"Infinity" not in body:
                raise
            # Python writes this. A number that is too large leads to the error of values that are not finite.
            found = _decoder(names).decode(body.replace(b"Infinity", b"1e999").replace(b"NaN", b"1e999"))
    except (ValueError, RecursionError) as error:
        if unknown := re.search(r"unknown field `(.*)`", str(error), re.DOTALL):
            name = unknown[1][:100]
            raise invalid(name, "unknown_field", str(unknown_name("field", name, names))) from None
        raise ApiError(422, "bad_json", f"The body is not a JSON object: {str(error)[:200]}.") from None
    members = {name: getattr(found, name) for name in names}
    return {name: raw for name, raw in members.items() if raw is not UNSET}


@cache
def _decoder(names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    fields = [(name, Raw | UnsetType, UNSET) for name in names]
    return msgspec.json.Decoder(msgspec.defstruct("Body", fields, forbid_unknown_fields=True))


def read_value(field: str, raw: Raw, limit: int = MAX_TEXT) -> Any:
    """The value of a member of at most `limit` bytes."""
    if memoryview(raw).nbytes > limit:
        raise invalid(field, "too_long", f"{field} has more than {limit} bytes; send less.")
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        raise ApiError(422, "bad_json", f"{field} has text that is not Unicode, or is nested too deeply.") from None


def read_numbers(field: str, raw: Raw) -> np.ndarray:
    """An array of numbers, one- to three-dimensional, in float64; its shape is checked before a number is parsed."""
    text = bytes(raw).translate(None, _BLANKS)
    depth = len(text) - len(text.lstrip(b"["))
    if not 1 <= depth <= 3 or text.translate(None, _BRACKETS + _NUMBER + b","):
        raise invalid(field, "not_numbers", f"{field} must be an array of numbers, of at most three dimensions.")
    if b"[]" in text:
        raise invalid(field, "bad_shape", f"{field} must not be empty.")
    shape = _shape(text.translate(None, _NUMBER), depth)
    if shape is None:
        raise invalid(field, "ragged", f"{field} has rows of different lengths.")
    if len(shape) > 1 and shape[-1] > WIDEST:
        raise invalid(field, "too_many_classes", f"{field} has rows of {shape[-1]} numbers, more than {WIDEST}.")
    numbers = _parse(field, text.translate(None, _BRACKETS), int(np.prod(shape)))
    if not np.isfinite(numbers).all():
        raise invalid(field, "not_finite", f"{field} contains a value that is not finite.")
    return numbers.reshape(shape)


def _shape(frame: bytes, depth: int) -> tuple[int, ...] | None:
    """The shape of an array, given its brackets and commas; None if its rows differ in length."""
    shape: list[int] = []
    block = b""  # the brackets and commas of an array with one dimension less
    for level in range(1, depth + 1):
        inside = frame.find(b"]" * level) - (depth - level) - 1 + level - 1
        count = (inside + 1) // (len(block) + 1)
        block = b"[" + ((b"," + block) * count)[1:] + b"]"
        shape.insert(0, count)
    return tuple(shape) if block == frame else None


def _parse(field: str, text: bytes, count: int) -> np.ndarray:
    """The numbers of a comma-separated list, whose syntax has been checked."""
    numbers = np.empty(count)
    start = done = 0
    while done < count:
        end = text.find(b",", start + _PIECE)
        end = len(text) if end < 0 else end
        if end - start > 2 * _PIECE:
            raise invalid(field, "not_numbers", f"{field} contains a number of more than {_PIECE} digits.")
        piece = np.fromstring(text[start:end], sep=",")
        numbers[done : done + len(piece)] = piece
        start, done = end + 1, done + len(piece)
    return numbers
