"""Models of transformers: the same features as transformers', through open_clip's architecture and the fast path.

support/transformers.json has features that transformers 5.23.0 computed for small models with the weights of
`formula_weights`; where transformers is installed, it is compared directly too, on random weights.
"""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.models import WordTokenizer, tiny

import cots
from cots.backbones import _open_clip
from cots.fast import Fast
from cots.fast.image_encoder import TowerEncoder
from cots.prompts import CausalText, PlainText

STORED = json.loads((Path(__file__).parents[1] / "support/transformers.json").read_text())
KINDS = list(STORED)
PROMPTS = ["a photo of a cat.", "a photo of a very small dog.", "tree"]


def scattered(shape, start):
    """Numbers in [-0.5, 0.5) of a closed form that look random."""
    return (43758.5453 * torch.sin(12.9898 * torch.arange(math.prod(shape)).double() + start)).remainder(1) - 0.5


def formula_weights(shapes):
    """Weights between -0.5 and 0.5; those of norms are larger by one."""
    state = {}
    for place, (key, shape) in enumerate(sorted(shapes.items())):
        norm = "norm" in key and key.endswith("weight")
        state[key] = (scattered(shape, place).reshape(shape) + (1 if norm else 0)).float()
    return state


def pixels(side, dtype=torch.float32):
    return 4 * scattered((2, 3, side, side), 0.5).reshape(2, 3, side, side).to(dtype)


def write_folder(folder, kind, **processor):
    stored = STORED[kind]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(stored["config"]))
    save_file(formula_weights(stored["shapes"]), folder / "model.safetensors")
    if processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.fixture
def folder(tmp_path):
    return lambda kind, **processor: write_folder(tmp_path / "model", kind, **processor)


def assert_same(backbone, images, texts, ids, side):
    """Features of both towers, through the fast path and through the model's own forward."""
    norm = torch.nn.functional.normalize
    images, texts = norm(torch.as_tensor(images), dim=-1), norm(torch.as_tensor(texts), dim=-1)
    given = pixels(side, backbone.dtype)
    for found in (backbone.encode_images(given), backbone.forward_images(given)):
        torch.testing.assert_close(found, images.to(found), rtol=0, atol=1e-5)
    with torch.no_grad():
        found = norm(backbone.model.encode_text(torch.as_tensor(ids)), dim=-1)
    torch.testing.assert_close(found, texts.to(found), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_those_of_transformers(folder, kind):
    stored = STORED[kind]
    for side in ("images", "texts"):
        one, other = torch.nn.functional.normalize(torch.tensor(stored[side][:2]), dim=-1)
        assert float(one @ other) < 0.99, "features that do not depend on the input would show nothing"
    place = folder(kind)
    backbone = cots.load(f"local-dir:{place}", tokenizer=WordTokenizer())
    assert_same(
        backbone, stored["images"], stored["texts"], stored["ids"], stored["config"]["vision_config"]["image_size"]
    )
    assert backbone.logit_scale == pytest.approx(stored["logit_scale"], rel=1e-5)
    task = cots.Task(backbone, ["cat", "dog"], "a {}")
    assert isinstance(task.tower, CausalText if "clip" in kind and kind != "siglip" else PlainText)
    assert isinstance(Fast().image_encoder(backbone), TowerEncoder) == (kind != "siglip")
    again = cots.load(str(place), tokenizer=WordTokenizer())
    assert again.name == str(place)
    assert again.weights_hash == backbone.weights_hash


def test_preprocessing_comes_from_the_folder(folder):
    values = {"size": {"shortest_edge": 32}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4] * 3, "resample": 2}
    place = folder("clip", **values)
    found = cots.load(str(place), tokenizer=WordTokenizer()).preprocess
    assert (found["mean"], found["interpolation"], found["resize_mode"]) == ((0.1, 0.2, 0.3), "bilinear", "shortest")
    values = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3}
    (place / "preprocessor_config.json").unlink()
    (place / "processor_config.json").write_text(json.dumps({"image_processor": values}))
    found = cots.load(str(place), tokenizer=WordTokenizer()).preprocess
    assert (found["mean"], found["size"], found["resize_mode"]) == ((0.5,) * 3, (32, 32), "squash")
    (place / "processor_config.json").write_text(json.dumps({"image_processor": {"size": {"shortest_edge": 256}}}))
    with pytest.raises(cots.BackboneError, match=r"has size \{'shortest_edge': 256\}"):
        cots.load(str(place), tokenizer=WordTokenizer())


def test_the_tokenizer_of_openai_needs_no_transformers(folder):
    place = folder("clip")
    with pytest.raises(cots.BackboneError, match=r"has no tokenizer\. Pass a transformers"):
        cots.load(str(place))
    openai = tiny("vit").tokenizer
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}  # as transformers calls them
    vocabulary = {names.get(word, word): i for word, i in openai.encoder.items()}
    for file, content in (("vocab.json", vocabulary), ("tokenizer.json", {"model": {"vocab": vocabulary}})):
        (place / file).write_text(json.dumps(content))
        backbone = cots.load(str(place))
        expected = openai(["a cat"], context_length=backbone.context_length)
        assert torch.equal(backbone.tokenize(["a cat"]), expected)
        (place / file).unlink()


def test_what_cannot_be_converted_is_named(folder):
    place = folder("clip")
    config = STORED["clip"]["config"]
    for change, message in (
        ({"model_type": "align"}, "has model_type 'align'; cots loads CLIPModel"),
        ({"text_config": {**config["text_config"], "hidden_act": "relu"}}, "text tower uses 'relu'"),
        ({"vision_config": {**config["vision_config"], "image_size": 48}}, "weights do not match its config.json"),
    ):
        (place / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(cots.BackboneError, match=message):
            cots.load(str(place))
    (place / "config.json").write_text(json.dumps(config))
    (place / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(cots.BackboneError, match=r"model.safetensors cannot be read"):
        cots.load(str(place))
    (place / "model.safetensors").unlink()
    with pytest.raises(cots.BackboneError, match="has no weights"):
        cots.load(str(place))
    with pytest.raises(cots.InputError, match="takes a name or a transformers model, not Linear"):
        cots.load(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("safe", [True, False])
def test_a_repository_of_the_hub_is_downloaded(folder, safe, monkeypatch):
    place = folder("clip")
    if not safe:
        torch.save(formula_weights(STORED["clip"]["shapes"]), place / "pytorch_model.bin")
        (place / "model.safetensors").unlink()
    asked = []

    def no_such_file(repository, file):
        raise _open_clip.EntryNotFoundError(f"no {file}")

    def download(repository, allow_patterns):
        asked.append((repository, allow_patterns[-1]))
        return str(place)

    monkeypatch.setattr(_open_clip, "_check_reachable", lambda *a: None)
    monkeypatch.setattr(_open_clip, "hf_hub_download", no_such_file)
    monkeypatch.setattr(_open_clip, "snapshot_download", download)
    backbone = cots.load("openai/clip-vit-base-patch16", tokenizer=WordTokenizer())
    assert backbone.name == "openai/clip-vit-base-patch16"
    patterns = ["model*.safetensors", *([] if safe else ["pytorch_model*.bin"])]
    assert asked == [("openai/clip-vit-base-patch16", pattern) for pattern in patterns]


def test_without_a_connection_the_error_says_what_to_download(monkeypatch):
    def unreachable(*args):
        raise OSError("no network")

    monkeypatch.setattr(_open_clip, "try_to_load_from_cache", lambda *a: None)
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(key, raising=False)
    with pytest.raises(cots.BackboneError, match="hf download openai/clip-vit-base-patch16 --local-dir FOLDER"):
        cots.load("openai/clip-vit-base-patch16")


@pytest.fixture(params=KINDS)
def live(request):
    """A random model of transformers."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    config, clip = STORED[request.param]["config"], request.param != "siglip"
    torch.manual_seed(3)
    made = (transformers.CLIPConfig if clip else transformers.SiglipConfig).from_dict(config)
    model = (transformers.CLIPModel if clip else transformers.SiglipModel)(made).double().eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name and name.endswith("weight") else 0.0, std=0.5)
    return request.param, model


def test_random_models_agree_with_transformers(live, tmp_path):
    """In float64, as an object and from the folder that save_pretrained writes, in float32."""
    kind, model = live
    stored = STORED[kind]
    side, ids = stored["config"]["vision_config"]["image_size"], torch.tensor(stored["ids"])
    with torch.no_grad():
        images = model.get_image_features(pixel_values=pixels(side, torch.float64))
        texts = model.get_text_features(input_ids=ids)
    images, texts = (getattr(found, "pooler_output", found) for found in (images, texts))
    assert_same(cots.load(model, tokenizer=WordTokenizer()), images, texts, ids, side)
    model.float().save_pretrained(tmp_path / "saved")
    assert_same(cots.load(str(tmp_path / "saved"), tokenizer=WordTokenizer()), images, texts, ids, side)


def test_tokenizers_and_processors_of_transformers(folder, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(["<pad>", "<end>", "a", "cat", "dog", "photo", "of"])}
    base = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    base.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=base, pad_token="<pad>", eos_token="<end>")
    place = folder("siglip")
    expected = cots.load(str(place), tokenizer=fast).tokenize(["a cat", "photo of a dog"])
    assert expected.tolist()[0][:3] == [2, 3, 0]
    fast.save_pretrained(place)
    assert torch.equal(cots.load(str(place)).tokenize(["a cat", "photo of a dog"]), expected)
    side = STORED["siglip"]["config"]["vision_config"]["image_size"]
    images = transformers.SiglipImageProcessor(size={"height": side, "width": side}, image_mean=[0.3] * 3)
    found = cots.load(str(place), tokenizer=transformers.SiglipProcessor(images, fast))
    assert found.preprocess["mean"] == (0.3,) * 3
    assert torch.equal(found.tokenize(["a cat", "photo of a dog"]), expected)
