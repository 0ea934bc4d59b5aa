"""ask.html: one file with the photos to label, which works offline and gives the filled table."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from ..views import read_image
from . import text
from ._asked import COLUMNS, Asked

LONGEST, QUALITY = 640, 80  # side of a photo in pixels, and quality of its JPEG
CANDIDATES = 9  # classes with a key


def ask_page(asked: Asked, sources: Sequence[Any], table: str) -> str:
    """The page for the photos of a draw; `sources`: what `read_image` reads. table: the name of the file to save."""
    rows = [row[:-1] for row in asked.rows()]
    photos = [_jpeg(source) for source in sources]
    style, script = _template("base.css") + _template("ask.css"), _template("ask.js")
    data = {
        "table": table, "columns": COLUMNS, "rows": rows, "photos": photos, "classes": asked.setup.classes,
        "candidates": [_candidates(prediction.probabilities) for prediction in asked.predictions],
        "key": f"cots ask {_digest(repr(rows), 'sha256').hex()}",
    }  # fmt: skip
    return text.render(
        "ask.html", data=data, title=f"{len(asked)} photos to label", style=style, script=script,
        style_hash=_source_hash(style), script_hash=_source_hash(script),
    )  # fmt: skip


def _candidates(probabilities: np.ndarray) -> list[int]:
    """The classes with a key: all in the order of the list, or the most probable ones of a longer list."""
    if len(probabilities) <= CANDIDATES:
        return list(range(len(probabilities)))
    return np.argsort(-probabilities, kind="stable")[:CANDIDATES].tolist()


def _jpeg(source: Any) -> str:
    image = read_image(source)
    image.thumbnail((LONGEST, LONGEST))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return base64.b64encode(buffer.getvalue()).decode()


def _template(name: str) -> str:
    return (files("cots.evaluate") / "templates" / name).read_text("utf-8")


def _digest(content: str, kind: str) -> bytes:
    return hashlib.new(kind, content.encode()).digest()


def _source_hash(content: str) -> str:
    """For the page's content security policy, which lets nothing else run."""
    return f"sha384-{base64.b64encode(_digest(content, 'sha384')).decode()}"
