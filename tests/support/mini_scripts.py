"""What the tests of tools/mini share: its scripts as modules, generated features, one way to start a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools" / "mini"
CLASSES = {
    "pets": ["abyssinian", "beagle", "birman", "boxer", "pug", "ragdoll", "siamese"],
    "caltech": ["anchor", "ant", "brain", "chair", "cup", "lamp", "pizza"],
    "flowers": ["daffodil", "fire lily", "foxglove", "primula", "rose", "sunflower", "tree poppy"],
}  # fmt: skip
WIDTH, WAYS = 1280, 19
CARD, PAGE = (ROOT / "docs" / name for name in ("mini.md", "mini-recipe.md"))


@pytest.fixture(scope="module")
def recipe():
    """The scripts of tools/mini as modules, gone again afterwards: their names are everyday words."""
    names = [f.stem for f in TOOLS.glob("*.py")]
    sys.path.insert(0, str(TOOLS))
    try:
        import ablate
        import bank
        import choose
        import compare
        import demo
        import export
        import features
        import measure_names
        import options
        import photos
        import tower
        import train
        import trunk

        yield SimpleNamespace(
            ablate=ablate,
            bank=bank,
            choose=choose,
            compare=compare,
            demo=demo,
            export=export,
            features=features,
            names=measure_names,
            options=options,
            photos=photos,
            tower=tower,
            train=train,
            trunk=trunk,
        )
    finally:
        sys.path.remove(str(TOOLS))
        for name in names:
            sys.modules.pop(name, None)


def features(width: int, classes: int, seed: int) -> dict[str, torch.Tensor]:
    """Four training and two held-out photos a class: noise around a direction of the class."""
    draw = torch.Generator().manual_seed(seed)
    centres = 2 * torch.rand(classes, width, generator=draw)
    found = {}
    for prefix, n in (("", 4), ("held_", 2)):
        labels = torch.arange(classes).repeat(n)
        found[f"{prefix}labels"] = labels
        for kind, m in (("views", 3), ("described", WAYS)):
            noise = torch.rand(len(labels), m, width, generator=draw)
            found[f"{prefix}{kind}"] = (centres[labels][:, None] + noise).half()
    return found


@pytest.fixture(scope="module")
def folders(recipe, tmp_path_factory):
    """Generated features of the three sets, in the real vocabulary, for a tiny text tower."""
    data, out = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("features")
    for seed, (name, (folder, split, _)) in enumerate(recipe.photos.SETS.items()):
        (data / folder).mkdir()
        rows = [[f"{word}.jpg", k, word] for k, word in enumerate(CLASSES[name])]
        (data / folder / split).write_text(json.dumps({"train": rows}))
        save_file(features(WIDTH, len(CLASSES[name]), seed), out / f"{name}.safetensors")
    draw = torch.Generator().manual_seed(9)
    head = {"weight": torch.randn(1000, WIDTH, generator=draw) / 20, "bias": torch.zeros(1000)}
    save_file(head, out / "classifier.safetensors")
    vocabulary = recipe.train.Vocabulary(CLASSES)
    tokens = vocabulary.encode([f"a photo of a {n}." for n in vocabulary.names])[:, :30].to(torch.int16)
    save_file({"tokens": tokens.repeat(len(vocabulary.templates), 1, 1)}, out / "captions.safetensors")
    patch, config = pytest.MonkeyPatch(), recipe.tower.config

    def small(vocab_size: int) -> dict:
        found = config(vocab_size)
        found["model_cfg"]["text_cfg"] |= {"width": 32, "layers": 1, "heads": 2}
        return found

    patch.setattr(recipe.tower, "config", small)
    yield data, out
    patch.undo()


@pytest.fixture
def pictures(recipe, tmp_path):
    """Nine test photos of each set, of one colour each, and the script's arguments for six of them."""
    for name, (folder, split, images) in recipe.photos.SETS.items():
        (tmp_path / folder / images).mkdir(parents=True)
        rows = [[f"{word}_{k}.png", label, word] for label, word in enumerate(CLASSES[name][:3]) for k in range(3)]
        for i, (file, *_) in enumerate(rows):
            Image.new("RGB", (40, 30), (28 * i, 255 - 28 * i, 90)).save(tmp_path / folder / images / file)
        (tmp_path / folder / split).write_text(json.dumps({"train": rows, "test": rows}))
    return SimpleNamespace(data=tmp_path, seed=0, photos=6, workers=1, model="model", device="cpu")


def run_of(recipe, folders, out: Path, *more: str):
    data, found = folders
    common = ["--data", str(data), "--features", str(found), "--out", str(out / "run.safetensors"), "--device", "cpu"]
    args = recipe.options.parse([*common, "--steps", "2", "--pairs", "50", "--batch", "8", *more])
    return recipe.train.Trainer(args, recipe.train.Material.load(args))
