"""A prediction as JSON and in a notebook, and the types that a checker sees."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support import typed
from support.models import tiny

import cots
from cots import methods


def prediction(**changes) -> cots.Prediction:
    names = ("cat", "<b>dog</b>")
    given = {
        "label": names[1],
        "confidence": 0.75,
        "probabilities": np.array([0.25, 0.75], np.float32),
        "classes": names,
    }
    return cots.Prediction(**{**given, "method": "tpt", "views": (3, 1), "tau": 1.5, **changes})


def test_every_field_survives_json():
    found = prediction(confidence_range=(0.5, 0.9), label_set=("cat",), abstained=True)
    read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert set(read) == set(vars(found))
    assert (
        cots.Prediction(
            **{
                **read,
                "probabilities": np.array(read["probabilities"]),
                "classes": tuple(read["classes"]),
                "views": tuple(read["views"]),
                "confidence_range": tuple(read["confidence_range"]),
                "label_set": tuple(read["label_set"]),
                "in_list": found.in_list,
            }
        ).top()
        == found.top()
    )
    assert (read["tau"], read["in_list"], read["confidence_range"]) == (1.5, None, [0.5, 0.9])


def test_with_top_the_classes_are_few():
    read = prediction(label_set=("cat",)).to_dict(1)
    assert read["top"] == [{"class": "<b>dog</b>", "probability": 0.75}]
    assert set(read) == set(vars(prediction())) - {"probabilities", "classes"} | {"top"}
    failed = prediction(label=None, confidence=float("nan"), probabilities=np.full(2, np.nan), error="no")
    assert (failed.to_dict(3)["top"], failed.to_dict(3)["error"]) == ([], "no")


def test_an_abstained_one_has_no_label():
    plain = prediction(none_of_these=True)
    assert plain.abstain() is plain
    assert plain.abstain(0.75) is plain, "a confidence equal to the limit is kept"
    for unsure in (plain.abstain(0.76), plain.abstain(none_of_these=True)):
        assert (unsure.label, unsure.abstained, unsure.confidence) == (None, True, 0.75)
        assert unsure.top(1) == plain.top(1)
    assert prediction().abstain(none_of_these=True).label == "<b>dog</b>"
    with pytest.raises(cots.InputError, match=r"abstain is a confidence in \(0, 1\], such as 0.7, not 70"):
        plain.abstain(70)


def test_a_failed_one_has_no_numbers():
    failed = prediction(
        label=None, confidence=float("nan"), probabilities=np.full(2, np.nan), error="not a photo & so on"
    )
    read = json.loads(json.dumps(failed.to_dict(), allow_nan=False))
    assert (read["label"], read["confidence"], read["probabilities"]) == (None, None, [None, None])
    assert failed._repr_html_() == "<p><b>No prediction:</b> not a photo &amp; so on</p>"


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({}, "(tpt)"),
        ({"none_of_these": True}, "(tpt; perhaps none of these)"),
        (
            {"abstained": True, "confidence_range": (0.5, 0.9)},
            "(tpt; range 50% to 90%; unsure)",
        ),
    ],
)
def test_a_notebook_shows_the_classes_as_text(changes, note):
    shown = prediction(**changes)._repr_html_()
    assert f"<caption>&lt;b&gt;dog&lt;/b&gt; 75.0% {note}</caption>" in shown
    assert "<b>dog" not in shown
    assert shown.index("&lt;b&gt;dog&lt;/b&gt;</td>") < shown.index("<td>cat</td>")
    assert shown.count("<progress value='0.7500'>") == shown.count("<progress value='0.2500'>") == 1


def test_the_typed_uses_are_those_of_the_classifier(monkeypatch):
    """`assert_type` is checked by pyright; here the same calls run."""
    asked = []
    monkeypatch.setattr(cots.Classifier, "__init__", lambda self: None)
    monkeypatch.setattr(cots.Classifier, "__call__", lambda self, images: asked.append(images))
    typed.uses(cots.Classifier(), None, None)
    assert len(asked) == 11


def test_the_typed_results_are_of_these_kinds():
    seen = []

    def check(value, kind):
        seen.append(value)
        assert isinstance(value, kind)

    logits = np.random.default_rng(0).normal(size=(3, 4, 2))
    features = torch.nn.functional.normalize(torch.randn(4, 12), dim=-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typed, "assert_type", check)
        patch.setattr(cots, "fit_temperature", lambda *given: 1.0)
        typed.calibrates(logits, torch.from_numpy(logits), features, cots.Task(tiny("vit"), ["cat", "dog"]))
    assert len(seen) == 8


def test_reprs_are_short():
    logits = np.random.default_rng(0).normal(size=(50, 4, 1000))
    many = tuple(f"class {k}" for k in range(1000))
    results = [
        cots.calibrate(logits, logits),
        cots.Adapted(logits=logits, zero_shot_logits=logits),
        prediction(label_set=many, views=tuple(range(50))),
        prediction(label=None, confidence=float("nan"), error="not a photo"),
        tiny("vit"),
        cots.Task(tiny("vit"), "imagenet"),
        cots.Classifier(tiny("vit"), "imagenet"),
    ]
    for result in results:
        assert len(repr(result)) < 150, repr(result)
    assert repr(prediction(abstained=True, tau=1.23456)) == (
        "Prediction(label='<b>dog</b>', confidence=0.75, tau=1.235, method='tpt', abstained=True)"
    )
    assert repr(results[0]) == "Calibrated(method='cots', probabilities of shape (50, 1000))"
    assert "(50, 4, 1000)" in repr(results[1])
    assert "label_set=('class 0', 'class 1', 'class 2', ...)" in repr(results[2])
    assert "label=None, confidence=nan, " in repr(results[3])


def test_the_label_comes_first_among_equals():
    p = np.array([0.1, 0.3, 0.3, 0.3], np.float32)
    for label in ("b", "c", "d"):
        made = cots.Prediction(label=label, confidence=0.3, probabilities=p, classes=tuple("abcd"))
        others = [name for name in "bcd" if name != label]
        assert [name for name, _ in made.top()] == [label, *others, "a"]


def test_settings_decide_whether_one_view_is_enough():
    """Those of the name take precedence over those of a config."""
    weak, confident = {"cache_from": "weak"}, {"cache_from": "confident"}
    assert cots.parse_method("tda").uses_one_view(weak)
    assert not cots.parse_method("tda").uses_one_view(confident)
    assert cots.parse_method("zeroshot+sals").uses_one_view()
    assert not cots.parse_method("tda+cots").uses_one_view(weak)
    for name in ("weak", "confident"):
        method = cots.parse_method(f"tda(cache_from={name})", simplify=False)
        assert method.uses_one_view(confident if name == "weak" else weak) == (name == "weak")


def test_the_best_classes_are_found_without_looking_at_each_name():
    rng = np.random.default_rng(0)
    names = tuple(f"class {i}" for i in range(40))
    for label in (None, "not a class", *names):
        p = rng.integers(0, 5, 40).astype(np.float32)
        other = np.array([name != label for name in names])
        expected = [(names[k], float(p[k])) for k in np.lexsort((other, -p))[:7]]
        made = prediction(label=label, probabilities=p, classes=names)
        assert made.top(7) == expected
        assert made.to_dict(7)["top"] == [{"class": name, "probability": value} for name, value in expected]


def test_with_top_nothing_else_is_converted(monkeypatch):
    made, converted = prediction(), []
    plain = methods._plain
    monkeypatch.setattr(methods, "_plain", lambda value: converted.append(value) or plain(value))
    assert list(made.to_dict(1)) == [
        *[name for name in made.to_dict() if name not in ("probabilities", "classes")],
        "top",
    ]
    converted.clear()
    made.to_dict(1)
    assert not any(value is made.probabilities or value is made.classes for value in converted)
