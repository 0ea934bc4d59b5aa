"""Bodies that are split at their boundaries have the items that the parser finds; the parser reads all others."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import Request
from hypothesis import given, settings
from hypothesis import strategies as st

from cots.serve import _forms
from cots.serve._forms import File, read_items, split_items
from cots.serve._schemas import ApiError

# Of the parser, for a body that ends inside a file.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed file <tempfile:ResourceWarning")
BOUNDARY = "cut-7.x"
MOST = 4


def item(head: str, data: bytes) -> bytes:
    return f"--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + data + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()
PHOTO = item('name="image"; filename="a b (1).jpg"\r\nContent-Type: image/jpeg', b"\xff\xd8\r\n--cut\r\n\0")
COMMON = item('name="classes"', "caf\u00e9\ndog".encode()) + PHOTO + END


def parsed(body: bytes, kind: str = f"multipart/form-data; boundary={BOUNDARY}", chunk: int = 1000) -> list | str:
    """What `read_items` finds, or the message of its error."""
    pieces = [body[start : start + chunk] for start in range(0, len(body), chunk)] or [b""]
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages[-1]["more_body"] = False

    async def receive():
        return messages.pop(0)

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", kind.encode())]}
    try:
        return asyncio.run(read_items(Request(scope, receive), MOST))
    except ApiError as error:
        return error.detail


@pytest.fixture(scope="module")
def by_parser():
    """`parsed` without the split."""

    def parse(*arguments, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_forms, "split_items", lambda *_: None)
            return parsed(*arguments, **options)

    return parse


@pytest.mark.parametrize("chunk", [7, 1000])
def test_a_common_body(by_parser, monkeypatch, chunk):
    expected = [("classes", "caf\u00e9\ndog"), ("image", File("a b (1).jpg", b"\xff\xd8\r\n--cut\r\n\0"))]
    assert by_parser(COMMON, chunk=chunk) == expected
    monkeypatch.setattr(_forms, "_parse", lambda *_: pytest.fail("parsed"))
    assert parsed(COMMON, chunk=chunk) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        END,
        COMMON[:-4],
        COMMON[2:],
        b"\r\n" + COMMON,
        COMMON + b"more",
        COMMON.replace(b'"classes"', b"classes"),
        COMMON.replace(b'"classes"', b'"cl\\"asses"'),
        COMMON.replace(b"form-data", b"attachment"),
        COMMON.replace(b"a b (1).jpg", b"C:\\a.jpg"),
        COMMON.replace(b"a b (1).jpg", "\u00e9.jpg".encode()),
        COMMON.replace(b"a b (1).jpg", b""),
        COMMON.replace(b"image/jpeg", b"image/jpeg\r\nContent-Length: 3"),
        item('name="classes"', b"\xff") + END,
        b"".join(item(f'name="f{i}"', b"") for i in range(MOST + 1)) + END,
        PHOTO * (MOST + 1) + END,
        PHOTO * 3 + b"".join(item(f'name="f{i}"', b"") for i in range(3)) + END,
    ],
)
def test_another_body_is_for_the_parser(by_parser, body):
    assert split_items(body, BOUNDARY.encode(), MOST) is None
    assert parsed(body) == by_parser(body)


@pytest.mark.parametrize("kind", ["", "; boundary=", "; charset=latin-1; boundary=cut-7.x", '; boundary="cut-7.x"'])
def test_another_type_is_for_the_parser(by_parser, kind, monkeypatch):
    monkeypatch.setattr(_forms, "split_items", lambda *_: pytest.fail("split"))
    found = parsed(COMMON, "multipart/form-data" + kind)
    if "cut" in kind:
        assert [name for name, _ in found] == ["classes", "image"]
    else:
        assert found.startswith("The multipart body cannot be parsed: ")
        assert found == by_parser(COMMON, "multipart/form-data" + kind)


def test_a_large_body_is_for_the_parser(monkeypatch):
    monkeypatch.setattr(_forms, "SMALL", 300)
    monkeypatch.setattr(_forms, "split_items", lambda *_: pytest.fail("split"))
    large = bytes(range(256)) * 4
    body = item('name="image"; filename="a.jpg"', large) + END
    for chunk in (100, 400, 5000):
        assert parsed(body, chunk=chunk) == [("image", File("a.jpg", large))]


COMMON_NAMES, COMMON_FILES = ["classes", "image", "a_b"], [None, "a.jpg", " a.jpg", "a.jpg ", "a  b.jpg", "@,+()-", "."]
NAMES = st.sampled_from(
    5 * COMMON_NAMES + ["x-y", "", "\u00e9", "a;b", 'a"b', "a b", "a\\b", "%41", "n" * 101, "n" * 5000]
)
FILES = st.sampled_from(5 * COMMON_FILES + ["", "a;b", "a=b", "%22", "a'b", "f" * 256, "f" * 5000])
DATA = st.binary(max_size=20) | st.sampled_from(
    [b"", b"\r\n", b"\r\n--", b"a" * 1500, f"--{BOUNDARY}".encode(), f"\r\n--{BOUNDARY}".encode()]
)
COMMON_TYPES = ["", "\r\nContent-Type: text/plain; charset=utf-8", "\r\nContent-Type: image/svg+xml"]
LONG_TYPES = ["\r\nContent-Type: " + "t" * count for count in (201, 5000)]
TYPES = st.sampled_from(
    5 * COMMON_TYPES + ["\r\nX: y", "\r\nContent-Type:", "\r\ncontent-type: text/plain", *LONG_TYPES]
)


@given(
    st.lists(st.tuples(NAMES, FILES, TYPES, DATA), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 4), st.binary(max_size=3)), max_size=1),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_the_split_finds_what_the_parser_finds(by_parser, items, changes):
    body = b""
    for name, file, kind, data in items:
        body += item(f'name="{name}"' + ("" if file is None else f'; filename="{file}"') + kind, data)
    body += END
    for start, length, new in changes:
        body = body[:start] + new + body[start + length :]
    found = split_items(body, BOUNDARY.encode(), MOST)
    if found is not None:
        assert found == by_parser(body)
