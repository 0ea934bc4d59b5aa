"""Class lists by name."""

from __future__ import annotations

import itertools
import types

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


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (
            ["cat", "x" * 10_000_000],
            r"classes: class 1: the name 'x{60}\.\.\.' has 10000000 characters, more than 1000",
        ),
        ("x" * 10_000_000, r"Unknown class list 'x{60}'\."),
        (["cat"] * 100_001, "classes has more than 100000 names"),
        ((str(i) for i in itertools.count()), "classes has more than 100000 names"),
        (["cat", "\ud800"], "class 1 .* is not valid Unicode"),
        ([["cat"] * 10**6, "dog"], r"class 0 is \['cat', .{0,60}; class names must be strings"),
        (7, "classes must be a list of class names, not int"),
        (b"cat", "classes must be a list of class names, not bytes"),
        ({"cat": 1}, "classes must be a list of class names, not dict"),
    ],
)
def test_the_size_and_shape_of_a_list_are_checked_before_any_work(classes, message, monkeypatch):
    def used(*given, **named):
        raise AssertionError("an expensive step")

    monkeypatch.setattr("cots.classifier.load", used)
    monkeypatch.setattr("cots.prompts._task.tokenize_prompts", used)
    with pytest.raises(cots.InputError, match=message) as caught:
        cots.Classifier("mini", classes)
    assert len(str(caught.value)) < 500
    if not isinstance(classes, types.GeneratorType):
        with pytest.raises(cots.InputError, match=message):
            cots.Task(tiny("vit"), classes)


def test_long_templates_are_refused():
    with pytest.raises(cots.InputError, match="The template has 5000002 characters, more than 1000"):
        cots.Classifier("mini", ["cat", "dog"], template="a" * 5_000_000 + "{}")
