"""Docstrings as the API page shows them; the package is in the dependency group docs."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import pytest

pytest.importorskip("griffe")


@pytest.fixture(scope="module")
def docstrings():
    spec = importlib.util.spec_from_file_location("docstrings", Path(__file__).parents[2] / "tools/docstrings.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_examples_are_fenced_and_names_of_parameters_are_bold(docstrings):
    text = inspect.cleandoc("""
        Scale logits.

            z = logits / tau: an equation

        logits, tau: (B,K) and (B,). method: its name, see note: no parameter.

        >>> scale([1.0], tau=2.0)
        [0.5]
        """)
    assert docstrings.as_markdown(text, {"logits", "tau", "method"}) == inspect.cleandoc("""
        Scale logits.

            z = logits / tau: an equation

        **logits**, **tau**: (B,K) and (B,). **method**: its name, see note: no parameter.

        ```pycon
        >>> scale([1.0], tau=2.0)
        [0.5]
        ```
        """)


def test_the_extension_reads_functions_and_classes(docstrings):
    griffe = docstrings.griffe
    source = 'class Box:\n    """side: in metres."""\n    side = 1\n\ndef grow(by):\n    """by: a factor."""\n'
    own = griffe.load_extensions(docstrings.Docstrings)
    with griffe.temporary_visited_package("room", {"__init__.py": source}, extensions=own) as module:
        assert module["Box"].docstring.value == "**side**: in metres."
        assert module["grow"].docstring.value == "**by**: a factor."
