"""Damage to files: flipped bits."""

from __future__ import annotations

from pathlib import Path


def flip(file: Path, bit: int | None = None) -> None:
    """Flip one bit of a file, by default in the middle."""
    data = bytearray(file.read_bytes())
    bit = 4 * len(data) if bit is None else bit
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)
