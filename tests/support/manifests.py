"""Manifests of made-up runs."""

from __future__ import annotations

from cots.bench import DatasetEntry, Manifest, Model

HASH = "0123456789abcdef" * 4


def entry(name: str, **changes) -> DatasetEntry:
    given = {
        "title": None, "n": 10, "limit": None, "classes": ("class 0", "class 1"), "split_hash": "ab" * 32, "views": 64,
        "augmix": True, "view_settings": {}, "template": "a photo of a {}.", "alpha": 0.71,
    }  # fmt: skip
    return DatasetEntry(name=name, **{**given, **changes})


def manifest(**changes) -> Manifest:
    given = {
        "schema": 1, "cots": "0.1.0", "created": "2026-01-02T03:04:05+00:00", "threads": 1,
        "versions": {"python": "3.12.0", "torch": "2.9.0"}, "device": "cpu", "seeds": (0,), "methods": ("zeroshot",),
        "model": Model(name="mini", weights_hash=HASH, precision="float32"), "batch_size": 1, "shard_size": 64,
        "datasets": (), "settings": {},
    }  # fmt: skip
    return Manifest(**{**given, **changes})
