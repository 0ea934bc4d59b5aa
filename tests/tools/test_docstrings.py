"""Docstrings as the API page shows them; the package is in the dependency group docs."""

from __future__ import annotations

import inspect

import pytest
from support.scripts import load_script

pytest.importorskip("griffe")


@pytest.fixture(scope="module")
def docstrings():
    return load_script("tools/docstrings.py", "docstrings_tool")


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
