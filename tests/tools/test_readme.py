"""README's table of results: the layout, and the paper's columns as they stand in README."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.scripts import ROOT, load_script

from cots.demo import KNOWN, UNKNOWN


@pytest.fixture(scope="module")
def readme():
    return load_script("tools/readme.py", "readme_tool")


def test_the_table_has_the_demo_and_the_paper(readme):
    row = {"accuracy": 44.66, "ece": 20.37, "intervals": {"ece": [17.6, 23.1]}}
    kinds = [SimpleNamespace(name=name) for name in (KNOWN, UNKNOWN)]
    shown = {KNOWN: {**row, "accuracy": 91.2}, UNKNOWN: row}
    lines = readme.table(SimpleNamespace(kinds=kinds, row=lambda method, kind: shown[kind])).splitlines()
    assert len(lines) == 2 + len(readme.METHODS)
    figures = "91.2 | 20.4 [17.6, 23.1] | 44.7 | 20.4 [17.6, 23.1]"
    assert lines[3] == f"| `tpt` | {figures} | 65.19 / 11.30 | 60.74 / 11.90 |"


def test_the_paper_columns_of_the_readme_are_the_paper(readme):
    text = (ROOT / "README.md").read_text()
    for method in readme.METHODS:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{method}` | ") and "[" in line)
        assert row.strip("| ").split(" | ")[-2:] == readme.paper(method)
