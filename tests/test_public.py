"""The public surface: names, documentation, examples, pinned versions."""

from __future__ import annotations

import doctest
import functools
import importlib
import inspect
import pkgutil
import tomllib
from pathlib import Path

import pytest

import cots
from cots.adapters import ADAPTERS
from cots.calibrators import CALIBRATORS
from cots.metrics import METRICS

ROOT = Path(__file__).parents[1]
MODULES = sorted(module.name for module in pkgutil.walk_packages(cots.__path__, "cots."))


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
    assert len(cots.__all__) <= 28
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


def test_pinned_versions_agree():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["constraint-dependencies"]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines == listed
    assert all("==" in line and "://" not in line for line in lines)
