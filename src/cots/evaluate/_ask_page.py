"""ask.html: one file with the photos to label, which works offline and gives the filled table."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..views import read_image
from . import text
from ._asked import COLUMNS, Asked

LONGEST, QUALITY = 640, 80  # side of a photo in pixels, and quality of its JPEG
CANDIDATES = 9  # classes with a key


def ask_page(asked: Asked, sources: Sequence[Any], table: str, command: str) -> str:
    """The page for the photos of a draw; `sources`: what `read_image` reads.

    table: the name of the file to save. command: what to run then.
    """
    rows = [row[:-1] for row in asked.rows()]
    photos = [_jpeg(source) for source in sources]
    style, script = text.source("base.css") + text.source("ask.css"), text.source("ask.js")
    data = {
        "table": table, "columns": COLUMNS, "rows": rows, "photos": photos, "classes": asked.setup.classes,
        "candidates": [_candidates(prediction.probabilities) for prediction in asked.predictions],
        "key": f"cots ask {text.digest(repr(rows), 'sha256').hex()}",
    }  # fmt: skip
    return text.render(
        "ask.html", data=data, command=command, title=f"{len(asked)} photos to label", style=style, script=script,
        style_hash=text.source_hash(style), script_hash=text.source_hash(script),
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
