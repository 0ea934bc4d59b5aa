"""Class lists by name."""

from __future__ import annotations

import itertools
import types

import pytest
from support.models import tiny

import cots
from cots.classes import class_list, class_lists, read_classes


def test_known_lists():
    assert len(cots.Task(tiny("vit"), "Pets").classes) == 37
    assert {name: len(class_list(name)) for name in class_lists()} == {
        "imagenet": 1000, "imagenet-a": 200, "imagenet-r": 200, "everyday": 16, "pets": 37, "caltech": 100,
        "flowers": 102,
    }  # fmt: skip
    for wrong, near in (("imagnet", "imagenet"), ("Pet", "pets"), ("flower", "flowers")):
        with pytest.raises(cots.InputError, match=f"'{wrong}' is not a known list. Did you mean '{near}'"):
            cots.Task(tiny("vit"), wrong)
    assert read_classes("imagnet,") == ("imagnet",)


def test_a_text_is_a_list_a_file_or_the_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.txt").write_text("sports_car\ncat\n")
    (tmp_path / "plain").write_text("dog\ncat\n")
    (tmp_path / "pets").write_text("dog\ncat\n")
    (tmp_path / "names.json").write_text('["dog", "cat"]')
    expected = {
        "names.txt": ("sports car", "cat"),
        "plain": ("dog", "cat"),
        "names.json": ("dog", "cat"),
        "./pets": ("dog", "cat"),
        "pets": class_list("pets"),
        " IMAGENET_A ": class_list("imagenet-a"),
        "tabby_cat, dog,": ("tabby cat", "dog"),
        "tabby cat\nsalt, pepper\n": ("tabby cat", "salt, pepper"),
    }
    for given, names in expected.items():
        assert read_classes(given) == names, given
        assert cots.Task(tiny("vit"), given).classes == names, given
    assert read_classes(tmp_path / "pets") == ("dog", "cat"), "a Path is a file"
    assert read_classes("plain", files=False) == ("plain",)
    for refused in ("names.txt", "missing.txt"):
        with pytest.raises(cots.InputError, match="is a file name"):
            read_classes(refused, files=False)
    with pytest.raises(cots.InputError, match=r"missing\.txt' does not exist"):
        read_classes("missing.txt")
    with pytest.raises(cots.InputError, match="has no class names"):
        read_classes(" , ")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (
            ["cat", "x" * 10_000_000],
            r"classes: class 2: the name 'x{60}\.\.\.' has 10000000 characters, more than 1000",
        ),
        ("x" * 10_000_000, r"classes: class 1: the name 'x{60}\.\.\.' has 10000000 characters"),
        (["cat"] * 100_001, "classes has more than 100000 names"),
        ((str(i) for i in itertools.count()), "classes has more than 100000 names"),
        (["cat", "\ud800"], "class 2 .* is not valid Unicode"),
        ([["cat"] * 10**6, "dog"], r"class 1 is \['cat', .{0,60}; class names must be strings"),
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
