"""A prediction as JSON and in a notebook, and the types that a checker sees."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support import typed

import cots


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
            "(tpt; range 50% to 90%; unsure under the policy)",
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
