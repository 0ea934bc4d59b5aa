"""Photos become features: each is decoded once, under the limit of its caller."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image
from support.images import photo

from cots import InputError
from cots.pipeline import read_views
from cots.views import ViewMaker, ViewSettings, read_image


def test_a_photo_is_decoded_once_under_the_limit_that_was_given(monkeypatch):
    stream, calls = io.BytesIO(), []
    photo(40, 60).save(stream, "PNG")
    opened = Image.open
    monkeypatch.setattr(Image, "open", lambda *given, **named: calls.append(given) or opened(*given, **named))
    monkeypatch.setitem(read_image.__kwdefaults__, "max_pixels", 1000)
    maker = ViewMaker(ViewSettings(n=3, size=32), torch.device("cpu"))
    assert read_views(stream.getvalue(), maker, 0, max_pixels=2400).shape == (3, 3, 32, 32)
    assert len(calls) == 1
    with pytest.raises(InputError, match="max_pixels = 1000"):
        read_views(stream.getvalue(), maker, 0)
