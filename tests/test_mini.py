"""The embedded model: it loads offline and silently, encodes as recorded, knows photos and names its gaps."""

from __future__ import annotations

import json
import re
import socket
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import skimage.data
import torch

import cots
from cots import demo

DOCS = Path(__file__).parents[1] / "docs"
EMBEDDED = Path(demo.__file__).parent / "embedded"


@pytest.fixture(scope="module")
def mini():
    return cots.load(device="cpu")


def generated() -> torch.Tensor:
    """Three pictures without randomness of any library: waves of several lengths."""
    y, x = np.mgrid[0:224, 0:224] / 224.0
    pictures = [np.stack([np.sin(k * 9 * x + c) * np.cos(k * 7 * y - c) for c in range(3)]) for k in (1, 2, 5)]
    return torch.from_numpy(np.stack(pictures)).float()


def test_it_loads_with_no_network_and_no_warning_in_seconds(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

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
def test_real_photos_of_another_source(mini, photo, classes, expected):
    prediction = cots.Classifier(mini, classes, views=16)(getattr(skimage.data, photo)())
    assert prediction.label == expected
    assert prediction.confidence > 0.8


def test_untrained_words_are_named(mini):
    with pytest.warns(cots.UntrainedWordWarning, match="mini was not trained on: 'quokka'"):
        cots.Task(mini, ["cat", "quokka"])
    with pytest.warns(cots.UntrainedWordWarning, match="mini was not trained on: '🐕'"):
        cots.Task(mini, ["cat", "🐕"])
    told = r"was trained on these only inside other names: 'man', 'tea'\. Predictions"
    with pytest.warns(cots.UntrainedWordWarning, match=told) as caught:
        cots.Task(mini, ["man", "dog", "green tea", "king penguin"])
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for photos in demo.read_photos():
            cots.Task(mini, photos.classes)
        cots.Task(mini, ["cat", "dog"], template="{}.")
        cots.Task(mini, ["tabby cat", "golden retriever", "espresso", "sports car", "chair", "tree", "bird"])


def test_alpha_is_in_clips_range(mini):
    for photos in demo.read_photos():
        assert 0.7 < cots.Task(mini, photos.classes).alpha < 0.8


def test_shipped_photos_are_what_the_card_says():
    sets = demo.read_photos()
    assert [(s.name, len(s.labels), len(s.classes)) for s in sets] == [
        ("pets", 133, 37), ("caltech", 133, 100), ("flowers", 133, 102),
    ]  # fmt: skip
    for photos in sets:
        assert photos.features.shape == (133, 64, 256)
        torch.testing.assert_close(photos.features.float().norm(dim=-1), torch.ones(133, 64), rtol=0, atol=2e-3)
        assert photos.labels.min() >= 0
        assert photos.labels.max() < len(photos.classes)


def test_the_cards_facts_are_those_of_the_shipped_files(mini):
    card = " ".join((DOCS / "mini.md").read_text().split())
    model = sum(f.stat().st_size for f in (EMBEDDED / "mini").iterdir()) / 1e6
    features = (EMBEDDED / "demo.safetensors").stat().st_size / 1e6
    assert model < 20
    assert features < 14
    assert model + features < 32
    assert f"| {model:.1f} MB, {model + features:.1f} MB | met |" in card
    told = f"{model:.1f} MB in half precision, logit scale {mini.logit_scale:.1f}, weights `{mini.weights_hash[:12]}`"
    assert told in card
    vocabulary = json.loads((EMBEDDED / "mini" / "vocabulary.json").read_text())
    assert f"pruned to {len(vocabulary['tokens']):,} rows" in card
    assert f"{len(vocabulary['words']):,} words: the class names" in card
    alphas = (f"{s.name.title()} {cots.Task(mini, s.classes).alpha:.3f}" for s in demo.read_photos())
    assert f"alpha: {', '.join(alphas)}." in card


def test_the_cards_figures_on_test_photos_are_those_of_the_results():
    results = (DOCS / "results.md").read_text()
    rows = re.findall(r"^\| (Pets|Caltech|Flowers|pooled) \| (`.*)$", (DOCS / "mini.md").read_text(), re.M)
    assert len(rows) == 4 * 7
    for name, row in rows:
        section = results.split("### All 3,145 photos pooled" if name == "pooled" else f"### {name}, ")[1]
        assert f"\n| {row}\n" in section.split("###")[0]
    zeroshot = [row.split(" | ")[3] for name, row in rows if name != "pooled" and row.startswith("`zeroshot`")]
    value, high = ([float(re.split(r"[ \[\],]+", cell)[k]) for cell in zeroshot] for k in (0, 4))
    aim = re.search(
        r"at most 5% on each test set \| Pets (.*), Caltech (.*), Flowers (.*) \(upper ends (.*)\) \| met",
        (DOCS / "mini.md").read_text(),
    )
    assert aim
    assert [float(x) for x in aim.groups()[:3]] == pytest.approx(value, abs=0.051)
    assert [float(x) for x in aim[4].split(", ")] == pytest.approx(high, abs=0.051)
    assert max(value) <= 5


def test_the_demos_figures_come_out_of_the_shipped_features(mini):
    """Half of the methods, all photos: numbers of the model card's machine, to rounding."""
    result = demo.run_demo(backbone=mini, methods=("zeroshot", "tpt", "tpt+cots", "tpt+ecots"))
    expected = {
        "zeroshot": (91.73, 0.2772, 90.67),
        "tpt": (92.73, 0.2477, 93.20),
        "tpt+cots": (92.73, 0.2487, 91.40),
        "tpt+ecots": (93.48, 0.2134, 91.73),
    }
    for method, (accuracy, nll, confidence) in expected.items():
        row = result.row(method)
        assert row["n"] == 399
        assert row["accuracy"] == pytest.approx(accuracy, abs=0.6)
        assert row["nll"] == pytest.approx(nll, abs=0.004)
        assert row["mean_confidence"] == pytest.approx(confidence, abs=0.2)


def test_every_method_of_the_demo_comes_out_on_part_of_the_photos(mini):
    """45 pets: accuracy, 20-bin ECE and NLL of all fourteen methods."""
    photos = [s.take(range(0, 133, 3)) for s in demo.read_photos() if s.name == "pets"]
    result = demo.run_demo(backbone=mini, photos=photos)
    expected = {
        "zeroshot": (93.3, 10.4, 0.375),
        "tpt": (93.3, 10.0, 0.342),
        "tpt+sals": (93.3, 10.3, 0.342),
        "tpt+cor": (93.3, 10.4, 0.359),
        "tpt+cots": (93.3, 9.3, 0.338),
        "tpt+ecots": (88.9, 8.8, 0.299),
        "ctpt": (91.1, 9.0, 0.374),
        "ctpt+cots": (91.1, 7.8, 0.378),
        "otpt": (91.1, 9.1, 0.378),
        "otpt+cots": (91.1, 9.4, 0.387),
        "atpt": (91.1, 7.9, 0.373),
        "atpt+cots": (91.1, 9.4, 0.383),
        "soc": (93.3, 9.6, 0.374),
        "soc+cots": (93.3, 9.5, 0.374),
    }
    assert set(expected) == set(demo.METHODS)
    for method, figures in expected.items():
        row = result.row(method, "pets")
        assert row["n"] == 45
        found = [row[k] for k in ("accuracy", "ece", "nll")]
        assert (np.abs(np.subtract(found, figures)) <= [2.3, 1.5, 0.01]).all(), (method, found)


def test_ttl_says_that_it_needs_a_vision_transformer():
    backbone = cots.load("mini")
    pixels = torch.zeros(1, 2, 3, *backbone.image_size)
    with pytest.raises(cots.InputError, match="ttl adapts the attention of a vision transformer"):
        cots.adapt("ttl", pixels, cots.Task(backbone, ["cat", "dog"]))
