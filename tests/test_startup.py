"""What is imported when: torch not before it is needed, and the packages behind models, figures and servers last."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import cots

HEAVY = (
    "open_clip",
    "torchvision",
    "torch._dynamo",
    "timm",
    "triton",
    "matplotlib",
    "fastapi",
    "uvicorn",
    "ray",
    "transformers",
    "onnx",
    "onnxruntime",
    "onnxscript",
)
PREDICT = ["predict", __file__, "--classes", "cat,dog"]
USAGE = [
    ["--help"],
    ["--version"],
    ["predict", "--help"],
    ["prdict"],
    ["predict"],
    ["predict", "--no-such-option"],
    ["predict", __file__],
    ["predict", "nowhere.jpg", "--classes", "cat,dog"],
    ["predict", __file__, "--classes", "nowhere.txt"],
    ["predict", __file__, "--classes", "imagnet"],
    ["predict", str(Path(__file__).parent / "support"), "--classes", "imagenet"],
    ["predict", "https://example.org/x.jpg", "--classes", "cat,dog"],
    ["ls", "classes"],
    [*PREDICT, "--views", "none"],
    [*PREDICT, "--precision", "float31"],
    [*PREDICT, "--json", "--csv"],
    [*PREDICT, "--abstain", "70"],
    [*PREDICT, "--method", "tppt+cots"],
    [*PREDICT, "--method", "tpt+ctos"],
    ["calibrate", __file__, "--out", "x.npz", "--solver", "best"],
    ["calibrate", "nowhere.npz", "--out", "x.npz"],
    ["calibrate", __file__, "--out", "x.npz", "--method", "ctos"],
    ["run", "--methods", "tpt", "--out", "x"],
    ["run", "--datasets", "pets", "--methods", "tppt", "--out", "x"],
    ["report", "memory://run"],
    ["validate"],
    ["serve", "--runs", "nowhere"],
    ["paper", "run", "table:main", "--data", ".", "--methods", "tpt+ctos"],
]
SCRIPT = f"""
    import json, sys
    from cots.cli import main

    codes, early = [], []
    for words in {USAGE}:
        sys.argv = ["cots", *words]
        try:
            main()
        except SystemExit as stop:
            codes.append(stop.code)
        early += [name for name in ("torch", "numpy", "rich") if name in sys.modules]
    from cots import *
    calibrate([[1.0, 2.0]], [[2.0, 1.0]], rows="samples")
    import torch

    assert torch.ones(200, 300).matmul(torch.ones(300)).sum() == 60000
    Task(load("mini", device="cpu"), ["cat", "dog"])
    heavy = [name for name in {HEAVY} if name in sys.modules]
    print("\\n" + json.dumps([codes, early, heavy]))
"""


@pytest.fixture(scope="module")
def process():
    """Exit codes of the commands, what they imported too early, and what the public names imported."""
    words = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_help_and_usage_errors_import_neither_torch_nor_rich(process):
    (codes, early, _), shown = process
    expected = [0, 0, 0, 2, 2, 2, *[1] * 6, 0, 2, 2, 1, 1, 1, 1, 2, *[1] * 8]
    assert dict(zip(map(str, USAGE), codes, strict=True)) == dict(zip(map(str, USAGE), expected, strict=True))
    assert not early
    for message in ("Did you mean 'tpt'", "Did you mean 'cots'", "nowhere.jpg: no such file", "--datasets is missing"):
        assert message in shown


def test_public_names_and_mini_do_not_import_what_other_models_figures_and_servers_need(process):
    assert process[0][2] == []


def test_public_names_are_listed_and_others_are_refused():
    assert set(cots.__all__) <= set(dir(cots))
    assert {name for names in cots._MODULES.values() for name in names} <= set(cots.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'clasify'"):
        _ = cots.clasify
