"""README's table of results: the layout, and the paper's columns as they stand in README."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.scripts import ROOT, load_script


@pytest.fixture(scope="module")
def readme():
    return load_script("tools/readme.py", "readme_tool")


def test_the_table_has_the_demo_and_the_paper(readme):
    row = {"accuracy": 44.66, "mean_confidence": 65.04, "ece": 20.37, "nll": 2.331, "intervals": {"ece": [17.6, 23.1]}}
    lines = readme.table(SimpleNamespace(row=lambda method: row)).splitlines()
    assert len(lines) == 2 + len(readme.METHODS)
    assert lines[3] == "| `tpt` | 44.7 | 65.0 | 20.4 [17.6, 23.1] | 2.33 | 65.19 / 11.30 | 60.74 / 11.90 |"


def test_the_paper_columns_of_the_readme_are_the_paper(readme):
    text = (ROOT / "README.md").read_text()
    for method in readme.METHODS:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{method}` | ") and "[" in line)
        assert row.strip("| ").split(" | ")[-2:] == readme.paper(method)
