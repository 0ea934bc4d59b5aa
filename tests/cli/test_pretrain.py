"""`cots pretrain-context`: the file it writes, which `--context` reads, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from support.models import CLASSES, tiny
from typer.testing import CliRunner

import cots
from cots.cli import app

WORDS = ["pretrain-context", "--classes", ",".join(CLASSES), "--steps", "3"]


def run(*words):
    result = CliRunner().invoke(app, [*WORDS, *map(str, words)])
    if isinstance(result.exception, cots.CotsError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_the_file_has_the_context_and_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.setattr("cots.backbones.load", lambda name, **options: tiny("vit"))
    out = tmp_path / "ctx.safetensors"
    printed = run("--noise", "3,2", "--seed", 5, "-o", out)
    assert f"5 classes, 3 steps -> {out}" in printed
    assert "Mean cosine with the texts under noise: 0." in printed
    task = cots.Task(tiny("vit"), CLASSES, context=out)
    expected = cots.pretrain_context(tiny("vit"), CLASSES, steps=3, seed=5, noise=(3.0, 2.0))
    assert torch.equal(task.initial_context, expected)
    with safe_open(out, "pt") as file:
        about = json.loads(file.metadata()["pretrained"])
    assert about["classes"] == list(task.classes)
    assert about["weight"] == 1 + 15 / len(about["classes"])
    assert (about["seed"], about["noise"], about["weights"]) == (5, "3,2", tiny("vit").weights_hash)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--noise", "5"], "--noise '5' must be two numbers such as 5,10, or published"),
        (["-o", "ctx.pt"], "--out ctx.pt must end in .safetensors"),
        (["--classes", "imagnet"], "'imagnet' is not a known list. Did you mean 'imagenet'"),
    ],
)
def test_mistakes_are_named_before_a_model_is_loaded(words, message):
    with pytest.raises(cots.InputError, match=message):
        run(*words)
