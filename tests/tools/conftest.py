"""Fixtures for the tests of tools/mini: its scripts as modules, generated features, small pictures."""

from __future__ import annotations

import functools
import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

TOOLS = Path(__file__).parents[2] / "tools" / "mini"
CLASSES = {
    "pets": ["abyssinian", "beagle", "birman"],
    "caltech": ["anchor", "chair", "pizza"],
    "flowers": ["foxglove", "rose", "sunflower"],
}
WIDTH, WAYS = 1280, 19


@pytest.fixture(scope="session")
def mini():
    """The scripts as modules, removed again afterwards because their names are everyday words."""
    sys.path.insert(0, str(TOOLS))
    names = [f.stem for f in TOOLS.glob("*.py")]
    try:
        scripts = SimpleNamespace(classes=CLASSES, **{name: import_module(name) for name in names})
        share_vocabularies(scripts)
        yield scripts
    finally:
        sys.path.remove(str(TOOLS))
        for name in names:
            sys.modules.pop(name, None)


def share_vocabularies(scripts: SimpleNamespace) -> None:
    """One vocabulary for all scripts that read the same photo sets: each has thousands of names to tokenize."""
    original = scripts.vocabulary.Vocabulary
    made = functools.cache(lambda sets: original(dict(sets)))
    for script in vars(scripts).values():
        if getattr(script, "Vocabulary", None) is original:
            script.Vocabulary = lambda sets: made(tuple((name, tuple(classes)) for name, classes in sets.items()))


def cached_features(seed: int) -> dict[str, torch.Tensor]:
    """Four training photos and two held-out ones per class: noise around a class centre."""
    draw = torch.Generator().manual_seed(seed)
    centres = 2 * torch.rand(3, WIDTH, generator=draw)

    def around(labels: torch.Tensor, *shape: int) -> torch.Tensor:
        centre = centres[labels].view(len(labels), *[1] * len(shape), WIDTH)
        return (centre + torch.rand(len(labels), *shape, WIDTH, generator=draw)).half()

    labels, held = torch.arange(3).repeat(4), torch.arange(3).repeat(2)
    views = {"views": around(labels, 3), "described": around(labels, WAYS), "held": around(held)}
    return views | {"labels": labels, "held_labels": held}


@pytest.fixture(scope="session")
def folders(mini, tmp_path_factory):
    """A data folder with splits and a folder of generated features, for a tiny text tower."""
    data, features = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("features")
    for seed, (name, (folder, split, _)) in enumerate(mini.photos.SETS.items()):
        (data / folder).mkdir()
        rows = [[f"{word}.jpg", k, word] for k, word in enumerate(CLASSES[name])]
        (data / folder / split).write_text(json.dumps({"train": rows}))
        save_file(cached_features(seed), features / f"{name}.safetensors")
    draw = torch.Generator().manual_seed(9)
    head = {"weight": torch.randn(1000, WIDTH, generator=draw) / 20, "bias": torch.zeros(1000)}
    save_file(head, features / "classifier.safetensors")
    vocabulary = mini.vocabulary.Vocabulary(CLASSES)
    tokens = vocabulary.prompts(vocabulary.names)[:, :30].to(torch.int16)
    save_file(
        {"tokens": tokens.expand(len(vocabulary.templates), -1, -1).contiguous()}, features / "captions.safetensors"
    )
    patch, config = pytest.MonkeyPatch(), mini.tower.config

    def small(vocab_size: int) -> dict:
        found = config(vocab_size)
        found["model_cfg"]["text_cfg"] |= {"width": 32, "layers": 1, "heads": 2}
        return found

    for module in (mini.tower, mini.export):
        patch.setattr(module, "config", small)
    patch.setattr(mini.tower, "SCALES", mini.tower.SCALES[::40])
    yield data, features
    patch.undo()


@pytest.fixture(scope="session")
def trunk_weights(mini, tmp_path_factory) -> Path:
    """A .pth file of the trunk with random weights."""
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("trunk") / "trunk.pth"
    torch.save(mini.trunk.timm.create_model(mini.trunk.NAME, pretrained=False).state_dict(), file)
    return file


@pytest.fixture
def pictures(mini, tmp_path) -> Path:
    """A data folder with six plain-coloured photos per set."""
    for name, (folder, split, images) in mini.photos.SETS.items():
        (tmp_path / folder / images).mkdir(parents=True)
        rows = [[f"{word}_{k}.png", label, word] for label, word in enumerate(CLASSES[name]) for k in range(2)]
        for i, (file, *_) in enumerate(rows):
            Image.new("RGB", (40, 30), (40 * i, 255 - 40 * i, 90)).save(tmp_path / folder / images / file)
        (tmp_path / folder / split).write_text(json.dumps({"train": rows, "test": rows}))
    return tmp_path
