"""A single request neither takes much memory nor holds up others: /healthz answers while it is read and answered."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.serving import client

MIB = 2**20
STATUS, PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")
JSON = "application/json"
measures_memory = pytest.mark.skipif(not PEAK.exists(), reason="the peak memory of a process needs Linux")


@pytest.fixture(scope="module")
def web():
    return client(views=2, augmix=False)


def resident_mib(name: str) -> float:
    return int(re.search(rf"{name}:\s+(\d+)", STATUS.read_text())[1]) / 1024


async def while_watching(app, path: str, body: bytes, kind: str) -> tuple[httpx.Response, float]:
    """The response, and the longest time that /healthz took meanwhile."""
    longest = 0.0
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as asking:
        asked = asyncio.create_task(asking.post(path, content=body, headers={"content-type": kind}))
        while not asked.done():
            started = time.perf_counter()
            assert (await asking.get("/healthz")).status_code == 200
            longest = max(longest, time.perf_counter() - started)
            await asyncio.sleep(0.01)
        return await asked, longest


def ones(size: int) -> bytes:
    return b"[" + b"1," * (size // 2 - 2) + b"1]"


def repeated(element: bytes, size: int) -> bytes:
    return b"[" + (element + b",") * (size // (len(element) + 1)) + element + b"]"


SIZE = 4 * MIB
BODIES = {
    "numbers": ("/v1/calibrate", b'{"adapted":' + ones(SIZE) + b"}"),
    "empty rows": ("/v1/calibrate", b'{"adapted":' + repeated(b"[]", SIZE) + b"}"),
    "classes": ("/v1/predict", b'{"image":"","classes":' + ones(SIZE) + b"}"),
    "short classes": ("/v1/predict", b'{"image":"","classes":' + ones(MIB - 100) + b"}"),
    "methods": ("/v1/predict", b'{"image":"","classes":["a"],"methods":' + repeated(b"{}", SIZE) + b"}"),
    "images": ("/v1/predict/batch", b'{"classes":["a"],"images":' + repeated(b"{}", SIZE) + b"}"),
    "members": ("/v1/predict", b"{" + b",".join(b'"%d":1' % i for i in range(SIZE // 11)) + b"}"),
}


@measures_memory
@pytest.mark.parametrize("case", BODIES)
def test_a_body_of_megabytes_is_refused_in_little_memory_and_time(web, case):
    path, body = BODIES[case]
    before = resident_mib("VmRSS")
    PEAK.write_text("5")  # starts a new peak
    answer, longest = asyncio.run(while_watching(web.app, path, body, JSON))
    assert answer.status_code == 422, answer.text[:200]
    assert resident_mib("VmHWM") - before < 10 * len(body) / MIB + 100
    assert longest < 1


@measures_memory
def test_valid_logits_of_megabytes_are_answered_in_little_memory(web):
    half = repeated(b"[[1,2]]", MIB)
    body = b'{"method":"none","adapted":' + half + b',"zero_shot":' + half + b"}"
    before = resident_mib("VmRSS")
    PEAK.write_text("5")
    answer, longest = asyncio.run(while_watching(web.app, "/v1/calibrate", body, JSON))
    assert answer.status_code == 200
    # The client holds the response: it is larger than the request and appears in the same process.
    assert resident_mib("VmHWM") - before < 10 * len(body) / MIB + 100 + 2 * len(answer.content) / MIB
    assert longest < 1
    assert len(json.loads(answer.content)["results"]) == half.count(b"]]")


NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**80), 2**80)
ROWS = st.lists(NUMBERS, max_size=3)
BLANK = st.sampled_from(["", " ", "\n\t"])


@given(NUMBERS | ROWS | st.lists(ROWS, max_size=3) | st.lists(st.lists(ROWS, max_size=3), max_size=3), BLANK)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_arrays_are_read_as_json_and_numpy_read_them(value, blank):
    from cots.serve._json import read_numbers
    from cots.serve._schemas import ApiError

    text = json.dumps(value).replace(",", f"{blank},{blank}").replace("]", f"{blank}]")
    try:
        expected = np.array(value, dtype=np.float64)
    except ValueError:  # rows of different lengths
        expected = np.empty(0)
    raw = msgspec.Raw(text.encode())
    if expected.size == 0 or expected.ndim == 0:
        with pytest.raises(ApiError):
            read_numbers("adapted", raw)
    else:
        found = read_numbers("adapted", raw)
        assert np.array_equal(found, expected)
        assert found.shape == expected.shape


def test_long_arrays_are_read_in_pieces(monkeypatch):
    from cots.serve import _json

    monkeypatch.setattr(_json, "_PIECE", 7)
    values = np.random.default_rng(0).normal(size=(5, 4, 3)).round(2)
    found = _json.read_numbers("adapted", msgspec.Raw(json.dumps(values.tolist()).encode()))
    np.testing.assert_array_equal(found, values)


def test_a_response_in_pieces_is_the_response(web, monkeypatch):
    rng = np.random.default_rng(0)
    body = {"adapted": rng.normal(size=(11, 3, 4)).tolist(), "zero_shot": rng.normal(size=(11, 3, 4)).tolist()}
    body["labels"] = rng.integers(0, 4, 11).tolist()
    whole = web.post("/v1/calibrate", json=body).json()
    monkeypatch.setattr("cots.serve._calibrate.LOGITS_AT_ONCE", 30)
    monkeypatch.setattr("cots.serve._calibrate.NUMBERS_AT_ONCE", 10)
    parts = web.post("/v1/calibrate", json=body).json()
    for name in ("probabilities", "results", "metrics"):
        np.testing.assert_allclose(flat(parts[name]), flat(whole[name]), rtol=0, atol=1e-9)


def flat(value) -> list[float]:
    """The numbers in nested lists and objects."""
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    return [number for one in value for number in flat(one)] if isinstance(value, list) else [value]
