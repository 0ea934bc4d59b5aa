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
    outcomes = {"zeroshot": SimpleNamespace(scored=range(7))}
    about = {"datasets": (), "outcomes": outcomes, "acted": {}, "labels": "", "noise_floor": 1.0, "noise_high": 2.0}
    kinds = [Kind(name=name, sentences=(f"About {name}.", "More."), **about) for name in (KNOWN, UNKNOWN)]
    known, unknown, table = readme.results(SimpleNamespace(kinds=kinds)).split("\n\n")
    assert " ".join(known.split()) == f"**Known classes, 7 photos.** About known classes. More. {ALL_TEST_PHOTOS}"
    assert unknown == "**Unknown classes, 7 photos.** About unknown classes. More."
    assert table.splitlines()[3] == "| `tpt` | 65.19 / 11.30 | 60.74 / 11.90 |"


def test_the_table_of_the_readme_is_the_paper(readme):
    assert readme.table() in (ROOT / "README.md").read_text()
