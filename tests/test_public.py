"""The public surface: its size, its documentation, and every example in it."""

from __future__ import annotations

import doctest
import functools
import importlib
import inspect
import pkgutil
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import cots
from cots._arrays import as_tensor, check_finite
from cots._errors import unknown_name
from cots._registry import Info, Registry
from cots.cli._bench import list_things

MODULES = sorted(module.name for module in pkgutil.walk_packages(cots.__path__, "cots.") if "report" not in module.name)


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
    for name in cots.__all__:
        thing = getattr(cots, name)
        assert inspect.getdoc(thing), f"{name} has no docstring"
    assert sorted(cots.__all__) == list(cots.__all__)


def test_every_method_says_what_it_does():
    from cots.adapters import ADAPTERS
    from cots.calibrators import CALIBRATORS

    for registry in (ADAPTERS, CALIBRATORS):
        for name in registry:
            assert len(registry.info(name).summary) > 20
    assert "interpretation" in inspect.getdoc(ADAPTERS.get("dtpt"))


def test_arrays_come_back_as_they_were():
    array = np.arange(6.0)[::-1].reshape(2, 3)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_tensor(array, "x").dtype == torch.float64
    assert as_tensor(torch.ones(2, dtype=torch.bfloat16), "x").dtype == torch.float32
    assert as_tensor([1, 2], "x").dtype == torch.float32
    for bad in (np.array(["a"]), torch.tensor([True]), torch.ones(2, dtype=torch.complex64), object()):
        with pytest.raises(cots.InputError, match="x must"):
            as_tensor(bad, "x")
    with pytest.raises(cots.InputError, match=r"x holds 2 value\(s\) .* first is inf at index \[0, 1\]"):
        check_finite(torch.tensor([[0.0, torch.inf], [torch.nan, 1.0]]), "x")


def test_suggestions_stay_short():
    many = [f"ViT-{i}" for i in range(100)]
    message = str(unknown_name("model", "ViT-9x", many))
    assert "Did you mean 'ViT-9'" in message
    assert len(message) < 250
    assert str(unknown_name("thing", "zzz", [])) == "Unknown thing 'zzz'."


def test_registry_names_are_checked():
    registry = Registry("thing", "cots.nothing", Info)
    with pytest.raises(cots.InputError, match="must consist of letters"):
        registry.register("a+b")
    registry.register("a", title="A")(lambda x, *, size=3: x)
    assert registry.settings("a") == {"size": 3}
    assert registry.info("a").title == "A"
    assert list(registry) == ["a"]


def test_a_package_that_cannot_be_imported_is_named_and_hides_no_method(tmp_path, monkeypatch, capsys):
    package = tmp_path / "sick_method-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: sick-method\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[cots.adapters]\nsick_from_far_away = sick_method:sick\n")
    (tmp_path / "sick_method.py").write_text("raise RuntimeError('needs a newer torch')\n")
    monkeypatch.syspath_prepend(tmp_path)
    told = r"of sick-method \(sick_method:sick\) cannot be loaded: RuntimeError: needs a newer torch"
    with pytest.raises(cots.CotsError, match=told):
        cots.methods.parse_method("sick_from_far_away+cots")
    list_things("methods")
    listed = capsys.readouterr().out
    assert "\nsick_from_far_away  adapter 'sick_from_far_away' of sick-method" in listed
    assert "\ntpt " in listed
    assert "\necots " in listed


def test_the_two_lists_of_pins_agree():
    root = Path(__file__).parent.parent
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["uv"]["constraint-dependencies"]
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines == listed
    assert all("==" in line and "://" not in line for line in lines)
