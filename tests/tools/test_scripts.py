"""Benchmarks and tools import names of the package that exist; they run too long for a test."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("tools/**/*.py"), *ROOT.glob("examples/**/*.py")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_scripts_import_from_the_package_exists(script):
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cots":
            module = import_module(node.module or "")
            missing = [one.name for one in node.names if not hasattr(module, one.name)]
            assert not missing, f"{node.module} has no {missing}"
