"""Class lists by name."""

from __future__ import annotations

import pytest
from support.models import tiny

import cots
from cots.prompts import class_list, class_lists


def test_known_lists():
    assert len(cots.Task(tiny("vit"), "Pets").classes) == 37
    assert {name: len(class_list(name)) for name in class_lists()} == {
        "imagenet": 1000, "imagenet-a": 200, "imagenet-r": 200, "everyday": 16, "pets": 37, "caltech": 100,
        "flowers": 102,
    }  # fmt: skip
    with pytest.raises(cots.InputError, match=r"Unknown class list 'imagnet'. Did you mean 'imagenet'"):
        cots.Task(tiny("vit"), "imagnet")
