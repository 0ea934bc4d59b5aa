"""Blocks of documentation pages that benchmarks write: what stands between `<!-- name -->` and `<!-- /name -->`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def fill(page: str, blocks: Mapping[str, str]) -> None:
    """Replace the named blocks of a page below docs/; an empty block leaves its two marks."""
    file = ROOT / "docs" / page
    text = file.read_text()
    for name, block in blocks.items():
        marked = re.compile(rf"(<!-- {name} -->\n).*(<!-- /{name} -->)", re.DOTALL)
        if not marked.search(text):
            raise SystemExit(f"docs/{page} has no block <!-- {name} --> ... <!-- /{name} -->.")
        text = marked.sub(lambda m, block=block: f"{m[1]}\n{block}\n\n{m[2]}" if block else m[1] + m[2], text)
    file.write_text(text)
