"""docs/all-methods.md says what its results say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.scripts import load_script

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"


@pytest.fixture(scope="module")
def findings():
    return load_script("benchmarks/findings.py", "findings")


def test_the_page_is_that_of_the_results(findings):
    """Regenerate with `python benchmarks/all_methods.py`."""
    page = (ROOT / "docs/all-methods.md").read_text()
    groups = json.loads((RESULTS / "all-methods.json").read_text())["groups"]
    cost = json.loads((RESULTS / "h200-toolbox.json").read_text())
    for name, block in findings.blocks(groups, cost).items():
        found = re.search(rf"<!-- {name} -->\n(.*)<!-- /{name} -->", page, re.DOTALL)
        assert found
        assert found[1].strip() == block


def row(ece, nll, accuracy=0.0):
    """A method with an ECE of 10 and the changes by CoTS."""
    alone = {"accuracy": [50, 48, 52], "ece": [10, 9, 11], "nll": [1, 0.9, 1.1]}
    return alone, {**alone, "change": {"accuracy": [accuracy] * 3, "ece": ece, "nll": nll}}


def group(**rows):
    found = {}
    for i, (name, (alone, calibrated)) in enumerate(rows.items()):
        found |= {name: alone | {"ece": [10 + i, 9, 11]}, f"{name}+cots": calibrated}
    return {"sets": {"pets": 300, "pacs-art": 20}, "photos": 320, "rows": found}


DOWN, UP, CHANCE, TINY = [-2, -3, -1], [2, 1, 3], [-1, -2, 1], [-0.004, -0.005, -0.003]


def test_methods_with_texts_of_their_own_are_explained_when_shown(findings):
    one = group(zeroshot=row(CHANCE, CHANCE), tca=row(DOWN, DOWN), reta=row(DOWN, DOWN))
    assert "seven templates" in findings.blocks({"unseen": one}, {})["cost"]
    assert "attributes.json" in findings.blocks({"unseen": one}, {})["cost"]
    assert findings.blocks({"unseen": group(zeroshot=row(CHANCE, CHANCE), tpt=row(DOWN, DOWN))}, {})["cost"] == ""


def test_every_word_follows_from_an_interval(findings):
    one = group(zeroshot=row(CHANCE, CHANCE), tpt=row(DOWN, TINY), soc=row(UP, DOWN), tda=row(DOWN, TINY))
    assert [findings.change(one, name, "ece") for name in findings.adapters(one)] == ["", "falls", "rises", "falls"]
    assert findings.change(one, "tpt", "nll") == "", "a change that the table does not show"
    assert findings.changes_table({"unseen": one, "seen": one}).splitlines()[2:] == [
        "|`tpt`, `tda`|ECE falls|ECE falls|",
        "|`soc`|ECE rises, NLL falls|ECE rises, NLL falls|",
    ]
    counts, _, below, same = findings.sentences({"unseen": one})
    assert below == "ECE below zero-shot's on unseen photos: alone none; with CoTS none."
    assert counts == (
        "On unseen photos, of 3 methods, CoTS lowers the ECE of 2 and raises that of 1, and lowers the NLL of 1 and "
        "raises that of 0."
    )
    assert same == "CoTS changes the accuracy of no method."
    changed = group(zeroshot=row(CHANCE, CHANCE), tpt=row(DOWN, TINY, accuracy=0.1))
    assert findings.sentences({"unseen": changed})[-1] == "CoTS changes predictions, which it must not."
    assert findings.photos(one) == "320 photos: 300 of OxfordPets, 20 of PACS art."


def test_who_is_below_zero_shot(findings):
    one = group(zeroshot=row(CHANCE, CHANCE), tpt=row(DOWN, TINY), soc=row(UP, DOWN))
    one["rows"]["tpt+cots"]["ece"] = [8, 7, 9]
    one["rows"]["soc+cots"]["ece"] = [12, 11, 13]
    assert "ECE below zero-shot's on seen photos: alone none; with CoTS `tpt`." in findings.sentences({"seen": one})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            (0, -1, -2),
            "CoTS lowers the ECE most where it is high: the correlation of ECE alone with its change is -1.00",
        ),
        ((0, 1, 2), "The correlation of ECE alone with its change by CoTS is 1.00"),
    ],
)
def test_the_sentence_on_correlation_follows_its_sign(findings, changes, said):
    names = ("zeroshot", "tpt", "soc")
    one = group(**{name: row([value] * 3, CHANCE) for name, value in zip(names, changes, strict=True)})
    assert findings.sentences({"seen": one})[1] == f"{said} on seen photos."
