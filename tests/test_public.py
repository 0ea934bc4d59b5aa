"""The public surface and the shape of the code: names, documentation, examples, layers, module sizes."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import inspect
import pkgutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import cots
from cots.adapters import ADAPTERS
from cots.calibrators import CALIBRATORS
from cots.metrics import METRICS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "cots"
MODULES = sorted(module.name for module in pkgutil.walk_packages(cots.__path__, "cots."))
PROGRAMS = ("data", "bench", "evaluate", "paper", "serve", "demo", "cli")


@pytest.fixture(scope="module")
def load_once():
    """Many examples load the same model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cots, "load", functools.cache(cots.load))
        yield


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name, load_once):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_the_surface_is_small_and_documented():
    assert len(cots.__all__) <= 26
    assert sorted(cots.__all__) == list(cots.__all__)
    for name in cots.__all__:
        assert inspect.getdoc(getattr(cots, name)), f"{name} has no docstring"


def test_every_method_and_metric_describes_itself():
    for registry in (ADAPTERS, CALIBRATORS):
        for info in registry.infos():
            assert info.title
            assert len(info.summary) > 20
    assert all(metric.title and metric.explained for metric in METRICS.infos())
    assert "interpretation" in inspect.getdoc(ADAPTERS.get("dtpt"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node: far fewer than the nodes of their expressions."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, part, ()):
            yield child
            yield from statements(child)


def imports(path: Path) -> set[str]:
    """The packages and modules directly below cots that a file imports, also inside functions."""
    package = ["cots", *path.relative_to(SOURCE).parts[:-1]]
    found = []
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base = [*base, *(node.module or "").split(".")] if node.module else base
            found += [[*base, alias.name] for alias in node.names]
    return {name[1] for name in found if name[0] == "cots" and len(name) > 1}


def test_packages_import_only_from_the_layers_below():
    assert {"_errors", "data", "evaluate", "bench"} <= imports(SOURCE / "paper" / "_compare.py")
    wrong = []
    for path in SOURCE.rglob("*.py"):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        allowed = PROGRAMS[: PROGRAMS.index(part) + 1] if part in PROGRAMS else ()
        wrong += [f"{path.relative_to(SOURCE)}: {name}" for name in imports(path) & set(PROGRAMS) - set(allowed)]
    assert not wrong


def test_modules_are_short():
    lengths = {path: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert not {str(path): length for path, length in lengths.items() if length > 300}


def test_pinned_versions_agree():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["constraint-dependencies"]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines == listed
    assert all("==" in line and "://" not in line for line in lines)
