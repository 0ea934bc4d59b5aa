"""The registry of methods: names, settings, metadata, and packages that add methods of their own."""

from __future__ import annotations

import pytest

import cots
from cots._registry import Info, Registry
from cots.cli._bench import list_things


def test_names_settings_and_metadata():
    registry = Registry("thing", "cots.nothing", Info)
    with pytest.raises(cots.InputError, match="must consist of letters"):
        registry.register("a+b")
    registry.register("a", title="A")(lambda x, *, size=3: x)
    assert registry.settings("a") == {"size": 3}
    assert registry.info("a").title == "A"
    assert list(registry) == ["a"]


def test_a_package_that_fails_to_import_is_named_and_hides_no_other_method(tmp_path, monkeypatch, capsys):
    package = tmp_path / "broken_method-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-method\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[cots.adapters]\nbroken_adapter = broken_method:broken\n")
    (tmp_path / "broken_method.py").write_text("raise RuntimeError('needs a newer torch')\n")
    monkeypatch.syspath_prepend(tmp_path)
    message = r"of broken-method \(broken_method:broken\) cannot be loaded: RuntimeError: needs a newer torch"
    with pytest.raises(cots.CotsError, match=message):
        cots.parse_method("broken_adapter+cots")
    list_things("methods")
    listed = capsys.readouterr().out
    assert "\nbroken_adapter  adapter 'broken_adapter' of broken-method" in listed
    assert "\ntpt " in listed
    assert "\necots " in listed
