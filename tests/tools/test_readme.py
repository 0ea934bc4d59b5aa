"""README's table of results: the layout, and the paper's columns as they stand in README."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.scripts import ROOT, load_script

from cots.demo import ALL_TEST_PHOTOS, KNOWN, UNKNOWN, Kind


@pytest.fixture(scope="module")
def readme():
    return load_script("tools/readme.py", "readme_tool")


def test_what_the_demo_says_comes_with_the_paper(readme):
    scored = SimpleNamespace(values={"accuracy": 0.9}, mean_confidence=0.95)
    outcomes = dict.fromkeys(readme.METHODS, SimpleNamespace(scored=scored))
    about = {
        "datasets": (),
        "outcomes": outcomes,
        "acted": {},
        "labels": "",
        "used": "",
        "noise_floor": 1.0,
        "noise_high": 2.0,
    }
    sentences = ("One.", "Two.", "Three.", "Tuning adds.", "CoTS leaves.", "Six.")
    kinds = [Photos(name=name, sentences=sentences, **about) for name in (KNOWN, UNKNOWN)]
    known, unknown, table = readme.results(SimpleNamespace(kinds=kinds)).split("\n\n")
    assert " ".join(known.split()) == f"**Known classes.** {ALL_TEST_PHOTOS} Tuning adds. CoTS leaves."
    assert unknown == "**Unknown classes.** Tuning adds. CoTS leaves."
    cells = "| 90.0% right, 95.0% sure | 90.0% right, 95.0% sure | 65.19 / 11.30 | 60.74 / 11.90 |"
    assert table.splitlines()[3] == f"| `tpt` {cells}"


class Photos(Kind):
    """A kind with seven photos."""

    def __len__(self) -> int:
        return 7


def test_the_averages_of_the_paper_are_in_the_readme(readme):
    text = (ROOT / "README.md").read_text()
    for method in readme.METHODS:
        assert f"| {' | '.join(readme.paper(method))} |" in text
