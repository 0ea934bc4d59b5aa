"""Columns of text that line up."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], left: Sequence[bool]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell, `left` or right aligned.

    >>> aligned([("set", "n"), ("dtd", "1692")], (True, False))
    ['set     n', 'dtd  1692']
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(left))]
    return [
        "  ".join(
            text.ljust(width) if to_left else text.rjust(width)
            for text, width, to_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in rows
    ]
