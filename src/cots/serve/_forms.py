"""Multipart bodies: small ones in the common notation are split at their boundaries, others are parsed in full."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from ._json import MAX_TEXT
from ._schemas import ApiError

SMALL = 2**20  # bytes of a body that is held in memory; the parser writes larger files to disk
_TYPE = re.compile(r"multipart/form-data; boundary=([\w.-]{1,70})", re.ASCII)
# The parser's work per request is mostly about what this does not match: other headers, quoting, encodings and lengths.
_HEADER = re.compile(
    rb'\r\nContent-Disposition: form-data; name="(\w{1,100})"(?:; filename="([\w ()+,.@-]{1,255})")?'
    rb"(?:\r\nContent-Type: [\w+./;= -]{1,200})?\r\n\r\n"
)


@dataclass(frozen=True)
class File:
    """A file of a form."""

    name: str
    data: bytes = field(repr=False)


Item = tuple[str, str | File]  # the name and value of a field


async def read_items(request: Request, most: int) -> list[Item]:
    """The items of a multipart form, in order; `most`: files, and as many other fields."""
    chunks: list[bytes] = []
    async with aclosing(request.stream()) as stream:
        if common := _TYPE.fullmatch(request.headers.get("content-type", "")):
            size = 0
            async for chunk in stream:
                chunks.append(chunk)
                size += len(chunk)
                if size > SMALL:
                    break
            else:
                items = split_items(b"".join(chunks), common[1].encode(), most)
                if items is not None:
                    return items

        async def whole() -> AsyncGenerator[bytes]:
            for chunk in chunks:
                yield chunk
            async for chunk in stream:
                yield chunk

        return await _parse(request, whole(), most)


def split_items(body: bytes, boundary: bytes, most: int) -> list[Item] | None:
    """The items of a whole body; None: it takes the parser to find out what they are, or what is wrong."""
    first, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary, most + 1)
    if first or len(parts) < 2 or parts.pop() not in (b"--", b"--\r\n"):
        return None
    items: list[Item] = []
    for part in parts:
        header = _HEADER.match(part)
        if header is None:
            return None
        name, data = header[1].decode(), part[header.end() :]
        if header[2] is not None:
            items.append((name, File(header[2].decode(), data)))
            continue
        try:
            items.append((name, data.decode()))
        except UnicodeDecodeError:
            return None
    return items


async def _parse(request: Request, stream: AsyncGenerator[bytes], most: int) -> list[Item]:
    """The items of any form, by Starlette's parser."""
    try:
        limits = {"max_files": most, "max_fields": most, "max_part_size": MAX_TEXT}
        form = await MultiPartParser(request.headers, stream, **limits).parse()
    except (ApiError, ClientDisconnect):
        raise
    except Exception as error:  # any error of the parser is the client's fault
        reason = error.message if isinstance(error, MultiPartException) else "the parts cannot be read"
        raise ApiError(400, "bad_form", f"The multipart body cannot be parsed: {reason}") from None
    items: list[Item] = []
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                items.append((name, File(value.filename or "", await value.read())))
            else:
                items.append((name, value))
    finally:
        await form.close()
    return items
