"""The list of models: names that open_clip knows, and sizes that are those of the models."""

from __future__ import annotations

import open_clip
import pytest
import torch
from support.compiler import without_compiler
from support.models import mini
from typer.testing import CliRunner

import cots
from cots.backbones import known_models
from cots.cli import app

ROWS = {name: row for name, *row in known_models()}


def test_every_listed_model_can_be_loaded_by_its_name():
    known = {f"{arch}/{tag}" for arch, tag in open_clip.list_pretrained()}
    listed = {name for name in ROWS if ROWS[name][0]}
    assert listed - known == {"mini"}
    everything = {name for name, *_ in known_models(everything=True)}
    assert known < everything


@pytest.mark.parametrize("name", ["mini", "RN50/openai", "ViT-B-16/openai", "ViT-B-16-SigLIP/webli"])
def test_sizes_are_those_of_the_models(name):
    if name == "mini":
        model = mini().model
    else:
        with without_compiler(), torch.device("meta"):
            model = open_clip.create_model(name.partition("/")[0], pretrained_text=False, device="meta")
    assert ROWS[name][0] == f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} M"


def test_models_are_listed_with_size_data_and_licence():
    shown = CliRunner().invoke(app, ["ls", "models"]).output
    line = next(line for line in shown.splitlines() if line.startswith("ViT-B-16/openai"))
    assert line.split() == ["ViT-B-16/openai", "150", "M", "WIT-400M", "MIT"]
    assert "laion400m_e31" not in shown
    assert "ViT-B-16/laion400m_e31" in CliRunner().invoke(app, ["ls", "models", "--all"]).output
    result = CliRunner().invoke(app, ["ls", "methods", "--all"])
    assert isinstance(result.exception, cots.InputError)
