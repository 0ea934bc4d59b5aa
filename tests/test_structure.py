"""The rules of tools/structure.py hold for src/cots, and each of them finds what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scripts import load_script

structure = load_script("tools/structure.py", "structure")


def test_no_violations():
    violations = structure.find_violations(structure.read_modules())
    assert not violations, "\n".join(violations)


def check(tmp_path: Path, files: dict[str, str]) -> list[str]:
    """The violations of a small package."""
    for name, source in {"__init__.py": "", **files}.items():
        path = tmp_path / "cots" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(source)
    return structure.find_violations(structure.read_modules(tmp_path))


LONG = "@decorated\ndef f():\n" + "    x = 1\n" * 59


@pytest.mark.parametrize(
    ("files", "violation"),
    [
        ({"a.py": LONG + "    x = 1\n"}, "cots/a.py: f() has more than 60 lines; split it"),
        (
            {"metrics/_m.py": "", "views/v.py": "def f():\n    from ..metrics._m import g\n"},
            "cots/views/v.py: imports from cots.metrics._m; take the name from cots.metrics",
        ),
        (
            {"metrics/m.py": "", "views/v.py": "from ..metrics.m import _g\n"},
            "cots/views/v.py: imports from cots.metrics.m; take the name from cots.metrics.m",
        ),
        (
            {"a.py": "from . import b\n", "b.py": "def f():\n    from .a import g\n"},
            "import cycle, lazy imports included: cots.a, cots.b",
        ),
        (
            {"a.py": "import cots.b\n", "b.py": "from .c import f\n", "c.py": "from .a import f\n"},
            "import cycle, lazy imports included: cots.a, cots.b, cots.c",
        ),
        ({"a.py": "import triton\n"}, f"cots/a.py: mentions {structure.MENTIONED}, which belong in cots/fast"),
        ({"a.py": "x = y.half()\n"}, f"cots/a.py: mentions {structure.MENTIONED}, which belong in cots/fast"),
        (
            {"adapters/a.py": "def f():\n    from ..bench import g\n", "bench/b.py": ""},
            "cots/adapters/a.py: imports cots.bench, a program above it",
        ),
        (
            {"bench/b.py": "from .. import evaluate\n", "evaluate/e.py": ""},
            "cots/bench/b.py: imports cots.evaluate, a program above it",
        ),
        (
            {"adaptation.py": "from .fast import f\n", "fast/g.py": ""},
            "cots/adaptation.py: imports cots.fast; only accelerate.py imports fast",
        ),
        (
            {"a.py": 'x = run.manifest["model"]\n'},
            "cots/a.py: reads settings or a manifest by string keys; use the typed objects",
        ),
        (
            {"a.py": 'x = settings.get("lr")\n'},
            "cots/a.py: reads settings or a manifest by string keys; use the typed objects",
        ),
    ],
)
def test_a_violation_is_found(files, violation, tmp_path):
    assert check(tmp_path, files) == [violation]


def test_what_the_rules_allow(tmp_path):
    files = {
        "_errors.py": LONG,
        "accelerate.py": "def f():\n    from .fast import g\n",
        "fast/g.py": "import triton\nfrom .._errors import f\n",
        "metrics/_m.py": "from .._errors import f\nfrom . import _n\nfrom ._n import _f\n",
        "metrics/_n.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ._m import f\n",
        "evaluate/e.py": "from ..bench import f\nfrom ..metrics import g\nx = row['settings']\n",
        "bench/b.py": "kernel = 3\n",
    }
    assert check(tmp_path, files) == []
