"""Class names, templates and CoOp checkpoints: what is accepted and what is refused."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from support.models import CLASSES, WordTokenizer, tiny

import cots
from cots.classes import DuplicateClass, check_distinct


def test_bad_coop_files_are_named(tmp_path):
    backbone = tiny("vit")
    cases = {
        "missing.pth": (None, "does not exist"),
        "none.pth": ({"state_dict": {"other": torch.zeros(2)}}, "has no tensor 'ctx'"),
        "csc.pth": ({"ctx": torch.zeros(5, 4, 16)}, "One context per class .* is not supported"),
        "wide.pth": ({"ctx": torch.zeros(4, 512)}, r"shape \(4, 512\), but tiny-vit needs \(4, 16\)"),
        "nan.pth": ({"ctx": torch.full((4, 16), float("nan"))}, "context has 64 value"),
    }
    for name, (content, message) in cases.items():
        if content is not None:
            torch.save(content, tmp_path / name)
        with pytest.raises(cots.InputError, match=message):
            cots.Task(backbone, CLASSES, context=tmp_path / name)


@pytest.mark.parametrize(
    ("classes", "template", "message"),
    [
        ([], "a photo of a {}.", "classes is empty"),
        (["cat", "  _ "], "a photo of a {}.", "class 2 has an empty name"),
        (["cat", 3], "a photo of a {}.", "class 2 is 3; class names must be strings"),
        (["cat"], "a photo.", "must contain {} exactly once"),
        (["cat"], "{} and {}", "must contain {} exactly once"),
        (["cat"], "a {name} {}", "must contain {} exactly once"),
        (["cat", "very " * 80 + "long"], "a photo of a {}.", r"class 1 \('very .* needs 8\d tokens .* takes 77"),
        (["cat", "dog"], "a photo of a#{}", "ok"),
    ],
)  # fmt: skip
def test_bad_names_and_templates_are_named(classes, template, message):
    if message == "ok":  # a space is put before the name, so nothing can merge with it
        assert cots.Task(tiny("vit"), classes, template).text_features.shape == (2, 12)
        return
    with pytest.raises(cots.InputError, match=message):
        cots.Task(tiny("vit"), classes, template)


def test_over_long_names_are_found_for_other_tokenizers_too():
    with pytest.raises(cots.InputError, match="needs 21 tokens or more, but tiny-siglip takes 16"):
        cots.Task(tiny("siglip"), ["cat", " ".join(["word"] * 16)])


def test_words_that_merge_with_a_name_are_refused():
    class Merging(WordTokenizer):
        def __call__(self, texts, context_length=None):
            return super().__call__([t.replace("of a dog", "ofadog") for t in texts], context_length)

    backbone = dataclasses.replace(tiny("siglip"), tokenizer=Merging())
    with pytest.raises(cots.InputError, match="merge with the name 'dog'"):
        cots.Task(backbone, ["cat", "dog"])


def test_underscores_and_spaces_are_cleaned():
    assert cots.Task(tiny("vit"), ["golden_retriever ", " tabby  cat"]).classes == ("golden retriever", "tabby cat")
    assert "2 classes" in repr(cots.Task(tiny("vit"), ["a", "b"]))


def test_names_that_differ_in_capitals_are_one_class_unless_the_tokenizer_tells_them_apart():
    backbone = tiny("vit")
    check_distinct(["cat", "dog", "catfish"], backbone)
    check_distinct(["cat", "dog", "Cat"])
    with pytest.raises(DuplicateClass, match=r"'cat' and 'Cat' are one class \(names 1 and 3 .* distinct\."):
        check_distinct(["cat", "dog", "Cat"], backbone)
    exact = SimpleNamespace(tokenize=lambda names: torch.tensor([[sum(map(ord, n))] for n in names]))
    check_distinct(["Polish", "polish"], exact)
    with pytest.raises(DuplicateClass, match=r"'polish' appears twice \(names 2 and 4 of"):
        check_distinct(["Polish", "polish", "dog", "polish"], exact)
