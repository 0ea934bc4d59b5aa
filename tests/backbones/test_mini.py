"""The embedded model: it loads offline without warnings, encodes as recorded, and matches its card."""

from __future__ import annotations

import json
import socket
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import skimage
import torch
from safetensors import safe_open
from support import models

import cots
from cots import demo

DOCS = Path(__file__).parents[2] / "docs"
METHODS = ("zeroshot", "tpt", "tpt+cots", "tpt+ecots")
EVERY_METHOD = {  # accuracy, NLL and mean confidence on 22 paintings
    "zeroshot": (72.73, 1.0430, 93.37),
    "tpt": (72.73, 1.2487, 96.97),
    "tpt+sals": (72.73, 1.1492, 95.90),
    "tpt+cots": (72.73, 1.0685, 94.92),
    "tpt+ecots": (72.73, 1.1379, 95.10),
    "tpt+cor": (72.73, 1.0413, 93.37),
    "ctpt": (72.73, 1.0658, 93.84),
    "ctpt+cots": (72.73, 1.0073, 92.83),
    "otpt": (72.73, 1.0854, 94.09),
    "otpt+cots": (72.73, 1.0196, 93.16),
    "atpt": (68.18, 1.0325, 92.87),
    "atpt+cots": (68.18, 1.0360, 92.01),
    "soc": (72.73, 1.0215, 94.01),
    "soc+cots": (72.73, 1.0004, 93.84),
}
EMBEDDED = Path(demo.__file__).parent / "embedded"


@pytest.fixture(scope="module")
def mini():
    return models.mini()


def generated() -> torch.Tensor:
    """Three pictures of waves, the same with every version of every library."""
    y, x = np.mgrid[0:224, 0:224] / 224.0
    pictures = [np.stack([np.sin(k * 9 * x + c) * np.cos(k * 7 * y - c) for c in range(3)]) for k in (1, 2, 5)]
    return torch.from_numpy(np.stack(pictures)).float()


def test_open_clip_loads_the_same_model(mini):
    """The embedded model is built without open_clip; the same folder through open_clip and timm is the reference."""
    other = cots.load(f"local-dir:{EMBEDDED / 'mini'}", device="cpu")
    assert other.weights_hash == mini.weights_hash
    assert other.preprocess == mini.preprocess
    assert other.context_length == mini.context_length
    texts = ["a photo of a tabby cat.", "caf\u00e9 &amp; crème, 2x", "word " * 60]
    ids = mini.tokenize(texts)
    assert torch.equal(ids, other.tokenize(texts))
    with torch.no_grad():
        torch.testing.assert_close(mini.model.encode_text(ids), other.model.encode_text(ids), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mini.forward_images(generated()), other.forward_images(generated()), rtol=0, atol=1e-6)
    names = ["tabby cat", "golden retriever", "espresso"]
    found, expected = (cots.Task(backbone, names).text_features for backbone in (mini, other))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert type(cots.load(quick_gelu=True, device="cpu").model) is type(other.model)


def test_it_loads_offline_without_warnings_in_seconds(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start = time.process_time()
        backbone = cots.load(device="cpu")
        assert time.process_time() - start < 3
    assert backbone.name == "mini"
    assert backbone.weights_hash.startswith("c895ab454030")
    assert backbone.logit_scale == pytest.approx(66.12, abs=0.1)


def test_generated_pictures_are_encoded_as_recorded(mini):
    features = mini.encode_images(generated())
    recorded = [
        [-0.0336, 0.0111, 0.0462, 0.0025, -0.1130, -0.0164],
        [-0.0603, -0.0137, 0.0997, 0.0586, -0.0618, -0.0255],
        [0.0567, -0.0392, 0.1095, -0.0089, 0.0399, -0.0054],
    ]
    torch.testing.assert_close(features[:, :6], torch.tensor(recorded), rtol=0, atol=2e-3)
    assert features.shape == (3, 256)


@pytest.mark.parametrize(
    ("photo", "classes", "expected"),
    [
        ("cat", ["cat", "dog", "cup of coffee", "rocket", "car", "flower", "bird"], "cat"),
        ("coffee", ["tabby cat", "espresso", "sports car", "daisy", "laptop", "golden retriever"], "espresso"),
        ("rocket", ["rocket", "cat", "car", "flower", "boat", "chair"], "rocket"),
    ],
)
def test_photos_from_another_source(mini, photo, classes, expected):
    prediction = cots.Classifier(mini, classes, views=8)(getattr(skimage.data, photo)())
    assert prediction.label == expected
    assert prediction.confidence > 0.8


def test_untrained_words_are_named(mini):
    with pytest.warns(cots.UntrainedWordWarning, match="mini was not trained on: 'quokka'"):
        cots.Task(mini, ["cat", "quokka"])
    with pytest.warns(cots.UntrainedWordWarning, match="mini was not trained on: '🐕'"):
        cots.Task(mini, ["cat", "🐕"])
    inside = r"knows these words only as part of other names: 'man', 'tea'\. Predictions"
    with pytest.warns(cots.UntrainedWordWarning, match=inside) as caught:
        cots.Task(mini, ["man", "dog", "green tea", "king penguin"])
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for photos in demo.read_photos():
            cots.Task(mini, photos.classes)
        cots.Task(mini, ["cat", "dog"], template="{}.")
        cots.Task(mini, ["tabby cat", "golden retriever", "espresso", "sports car", "chair", "tree", "bird"])


def test_shipped_photos(mini):
    file = EMBEDDED / "demo.safetensors"
    sets = demo.read_photos()
    assert [(s.name, len(s.labels), len(s.classes)) for s in sets] == [
        ("pets", 165, 37), ("caltech", 173, 100), ("flowers", 162, 102),
        ("tiny-imagenet", 234, 100), ("pacs-art", 127, 5), ("pacs-cartoon", 139, 5),
    ]  # fmt: skip
    assert [photos.known for photos in sets] == [True] * 3 + [False] * 3
    for photos in sets:
        n = len(photos.labels)
        assert photos.features.shape == (n, 64, 256)
        torch.testing.assert_close(photos.features.norm(dim=-1), torch.ones(n, 64), rtol=0, atol=0.01)
        assert photos.labels.min() >= 0
        assert photos.labels.max() < len(photos.classes)
        assert 0.7 < cots.Task(mini, photos.classes).alpha < 0.8, "CLIP's range"
    with safe_open(file, framework="pt") as archive:
        assert archive.metadata()["weights_hash"] == mini.weights_hash


def test_the_card_describes_the_shipped_files(mini):
    card = " ".join((DOCS / "mini.md").read_text().split())
    model = sum(f.stat().st_size for f in (EMBEDDED / "mini").iterdir()) / 1e6
    features = (EMBEDDED / "demo.safetensors").stat().st_size / 1e6
    assert model < 20
    assert features < 18
    assert f"{model:.1f} MB in half precision; {model + features:.1f} MB with the demo's features" in card
    assert f"{mini.logit_scale:.1f}, `{mini.weights_hash[:12]}`" in card
    vocabulary = json.loads((EMBEDDED / "mini" / "vocabulary.json").read_text())
    assert f"pruned to {len(vocabulary['tokens']):,} rows" in card
    assert f"The {len(vocabulary['words']):,} words come from class names" in card


def test_the_demo_scores_of_the_shipped_features(mini):
    """A twentieth of Tiny-ImageNet: accuracy, NLL and mean confidence of the main methods."""
    photos = [s.take(range(0, 234, 20)) for s in demo.read_photos() if s.name == "tiny-imagenet"]
    expected = {
        "zeroshot": (58.33, 1.5760, 58.13),
        "tpt": (58.33, 1.4870, 69.75),
        "tpt+cots": (58.33, 1.5186, 59.54),
        "tpt+ecots": (66.67, 1.4318, 62.72),
    }
    check_rows(demo.run_demo(photos, backbone=mini, methods=METHODS), expected, 12)


def test_every_method_of_the_demo_on_part_of_the_photos(mini):
    photos = [s.take(range(0, 127, 6)) for s in demo.read_photos() if s.name == "pacs-art"]
    result = demo.run_demo(photos, backbone=mini, methods=demo.ALL_METHODS)
    assert set(EVERY_METHOD) == {row["method"] for row in result.rows}
    check_rows(result, EVERY_METHOD, 22)


def check_rows(result, expected, n):
    """One photo may change its answer with another library's rounding."""
    for method, figures in expected.items():
        row = result.row(method, demo.UNKNOWN)
        assert row["n"] == n
        found = [row[k] for k in ("accuracy", "nll", "mean_confidence")]
        assert (np.abs(np.subtract(found, figures)) <= [100.1 / n, 0.02, 0.3]).all(), (method, found)


def test_ttl_needs_a_vision_transformer(mini):
    pixels = torch.zeros(1, 2, 3, *mini.image_size)
    with pytest.raises(cots.InputError, match="ttl adapts the attention of a vision transformer"):
        cots.adapt("ttl", pixels, cots.Task(mini, ["cat", "dog"]))
