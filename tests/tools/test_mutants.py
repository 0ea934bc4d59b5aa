"""tools/mutants.py: every change is one place of a file that still compiles, and finds the tests of its module."""

from __future__ import annotations

import ast

import pytest
from support.scripts import load_script

SOURCE = '''
def check(x: int = 3, y=True):
    """Not in 1 + 1."""
    if not x < 2.0 or x is not None and "é" + str(x) in "ab":
        raise ValueError(f"{x + 1} > 4")
    return sorted([x - 1], key=len, reverse=False), dict(strict=True, place=5)
'''
CHANGES = {
    "3 -> 4", "True -> False", "not ->", "< -> <=", "2.0 -> 3.0", "is not -> is", "+ -> -", "in -> not in", "- -> +",
    "1 -> 2", "False -> True",
}  # fmt: skip


@pytest.fixture(scope="module")
def tool():
    return load_script("tools/mutants.py", "mutants")


def test_each_possible_change_is_made_once(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    file = tmp_path / "check.py"
    file.write_text(SOURCE, encoding="utf-8")
    found = list(tool.Places(file).mutants())
    assert {f"{one.old.strip()} -> {one.new.strip()}".strip() for one in found} == CHANGES
    assert str(found[-1]) == "check.py:6 False -> True: " + SOURCE.splitlines()[5].strip()
    assert len(found) == len(CHANGES), "messages, annotations and what has no effect stay"
    for one in found:
        changed = one.source()
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))
        assert one.names == ("check",)


def test_the_tests_of_a_module_come_first(tool):
    path = tool.ROOT / "src/cots/calibrators/dac.py"
    one = next(tool.Places(path).mutants())
    first, *others = tool.nearest_tests(one, 3)
    assert first == tool.ROOT / "tests/calibrators/test_dac.py"
    assert len(others) == 2
