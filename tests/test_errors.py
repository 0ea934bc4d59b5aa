"""Suggestions for unknown names."""

from __future__ import annotations

from cots._errors import unknown_name


def test_suggestions_stay_short():
    many = [f"ViT-{i}" for i in range(100)]
    message = str(unknown_name("model", "ViT-9x", many))
    assert "Did you mean 'ViT-9'" in message
    assert len(message) < 250
    assert str(unknown_name("thing", "zzz", [])) == "Unknown thing 'zzz'."


def test_a_far_name_suggests_nothing():
    assert "Did you mean" not in str(unknown_name("dataset", "nope", ["pets", "caltech"]))
    assert "Did you mean 'pets'" in str(unknown_name("dataset", "pet", ["pets", "caltech"]))
