"""Loading: every form of name, QuickGELU for every kind of weights, and the remedy for missing downloads."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import socket
import sys
import warnings
from pathlib import Path

import open_clip
import pytest
import torch
from open_clip import pretrained as registry
from PIL import Image
from safetensors.torch import save_file
from support.models import CLIP_CFG, WordTokenizer, add_architecture

import cots
from cots.backbones import _open_clip


@pytest.fixture
def arch(tmp_path, monkeypatch):
    """A tiny architecture that open_clip knows by name."""
    add_architecture(CLIP_CFG, tmp_path, monkeypatch)
    return "tiny-clip"


def local_dir(folder, **model_cfg):
    """A folder as `local-dir:` wants it, with the weights of a seeded model."""
    folder.mkdir(parents=True)
    config = {"model_cfg": {**CLIP_CFG, **model_cfg}, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.25] * 3}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    torch.manual_seed(5)
    state = open_clip.CLIP(**CLIP_CFG).state_dict()
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "open_clip_model.safetensors")
    return state


def uses_quick_gelu(backbone):
    model = backbone.model
    blocks = *model.transformer.resblocks, *model.visual.transformer.resblocks
    kinds = {type(block.mlp.gelu).__name__ for block in blocks}
    assert len(kinds) == 1
    return kinds == {"QuickGELU"}


def test_random_weights_follow_the_seed_and_leave_the_generator_alone(arch):
    torch.manual_seed(123)
    expected = torch.rand(1)
    torch.manual_seed(123)
    first = cots.load(f"random:{arch}")
    assert torch.equal(torch.rand(1), expected)
    assert first.weights_hash == cots.load(f"random:{arch}", seed=0).weights_hash
    assert first.weights_hash != cots.load(f"random:{arch}", seed=2).weights_hash


def test_the_hash_sees_every_weight(arch):
    backbone = cots.load(f"random:{arch}")
    before = backbone.weights_hash
    backbone.model.ln_final.bias.data[3] += 1e-6
    assert dataclasses.replace(backbone).weights_hash != before


def test_tokenizer_and_preprocessing_come_with_the_model(arch):
    backbone = cots.load(f"random:{arch}")
    assert backbone.context_length == 20
    assert torch.equal(backbone.tokenize(["a cat"]), open_clip.SimpleTokenizer(context_length=20)(["a cat"]))
    transform = open_clip.image_transform(32, is_train=False)
    image = Image.effect_noise((300, 200), 80).convert("RGB")
    settings = cots.ViewSettings.from_preprocess(backbone.preprocess, n=1)
    torch.testing.assert_close(cots.make_views(image, settings, seed=0)[0], transform(image), rtol=0, atol=0)


def test_loading_is_silent(arch, caplog):
    with warnings.catch_warnings(), caplog.at_level(logging.INFO):
        warnings.simplefilter("error")
        cots.load(f"random:{arch}")
    assert caplog.records == []


def test_local_dir(tmp_path):
    state = local_dir(tmp_path / "model")
    backbone = cots.load(f"local-dir:{tmp_path / 'model'}")
    assert all(torch.equal(backbone.model.state_dict()[key], value) for key, value in state.items())
    assert backbone.preprocess["mean"] == [0.5] * 3
    assert backbone.context_length == 20
    assert not uses_quick_gelu(backbone)


@pytest.mark.parametrize(
    ("folder", "config", "override", "expected"),
    [
        ("plain", {}, None, False),
        ("plain", {"quick_gelu": True}, None, True),
        ("vit-openai", {}, None, True),
        ("vit-openai", {"quick_gelu": False}, None, False),
        ("plain", {}, True, True),
        ("plain", {"quick_gelu": True}, False, False),
    ],
)
def test_quick_gelu_of_a_local_dir(tmp_path, folder, config, override, expected):
    local_dir(tmp_path / folder, **config)
    assert uses_quick_gelu(cots.load(f"local-dir:{tmp_path / folder}", quick_gelu=override)) is expected


@pytest.mark.parametrize(("tag", "expected"), [("openai", True), ("laion", False)])
def test_quick_gelu_follows_the_tag(arch, tag, expected, tmp_path, monkeypatch):
    local_dir(tmp_path / "cache")
    config = {"hf_hub": "org/name/", "quick_gelu": tag == "openai", "mean": (0.5,) * 3, "std": (0.5,) * 3}
    monkeypatch.setitem(registry._PRETRAINED, arch, {tag: config})
    monkeypatch.setattr("cots.backbones._open_clip._check_reachable", lambda *a: None)
    weights = str(tmp_path / "cache" / "open_clip_model.safetensors")
    monkeypatch.setattr(open_clip.factory, "download_pretrained", lambda cfg, cache_dir=None: weights)
    backbone = cots.load(f"{arch}/{tag}")
    assert uses_quick_gelu(backbone) is expected
    assert backbone.preprocess["mean"] == (0.5,) * 3


class Weights(torch.nn.Module):
    """Parameters under CLIP's names, as in OpenAI's archives."""

    def __init__(self, state):
        super().__init__()
        for name, value in state.items():
            *path, leaf = name.split(".")
            module = self
            for part in path:
                if part not in dict(module.named_children()):
                    module.add_module(part, torch.nn.Module())
                module = getattr(module, part)
            module.register_buffer(leaf, value.half())
        self.register_buffer("input_resolution", torch.tensor(32))

    def forward(self, x):
        return x


@pytest.fixture(scope="module")
def traced():
    torch.manual_seed(7)
    state = open_clip.CLIP(**CLIP_CFG).state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(Weights(state), torch.zeros(1), check_trace=False), state


@pytest.fixture
def openai_archive(traced, tmp_path):
    archive, state = traced
    file = tmp_path / "clip" / "tiny.pt"
    file.parent.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.save(file)
    return file, {key: value.half().float() for key, value in state.items()}


def test_openai_archives_load_from_a_path_with_quick_gelu(arch, openai_archive):
    file, state = openai_archive
    backbone = cots.load(f"{arch}/{file}")
    assert uses_quick_gelu(backbone)
    assert all(torch.equal(backbone.model.state_dict()[key], value) for key, value in state.items())


def test_openai_archives_are_found_in_their_own_cache_and_checked(arch, openai_archive, monkeypatch):
    file, _ = openai_archive
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    config = {"url": f"https://openaipublic.example/{digest}/{file.name}", "hf_hub": "org/name/", "quick_gelu": True}
    monkeypatch.setitem(registry._PRETRAINED, arch, {"openai": config})
    monkeypatch.setattr(_open_clip, "OPENAI_CACHE", file.parent)
    assert uses_quick_gelu(cots.load(f"{arch}/openai"))
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(cots.BackboneError, match=r"tiny.pt is damaged .* Download https://openaipublic"):
        cots.load(f"{arch}/openai")


def test_a_weights_file_that_is_no_archive(arch, tmp_path):
    state = local_dir(tmp_path / "m")
    backbone = cots.load(f"{arch}/{tmp_path / 'm' / 'open_clip_model.safetensors'}")
    assert torch.equal(backbone.model.state_dict()["ln_final.weight"], state["ln_final.weight"])
    (tmp_path / "bad.pt").write_bytes(b"not weights")
    with pytest.raises(cots.BackboneError, match=f"Could not load {arch}"):
        cots.load(f"{arch}/{tmp_path / 'bad.pt'}")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ViT-B-16/openai", ["timm/vit_base_patch16_clip_224.openai", "local-dir:FOLDER", "ViT-B-16.pt", "clip"]),
        ("ViT-B-16-SigLIP/webli", ["timm/ViT-B-16-SigLIP", "local-dir:FOLDER"]),
        ("hf-hub:org/some-model", ["org/some-model", "local-dir:FOLDER"]),
    ],
)  # fmt: skip
def test_a_missing_load_says_what_to_fetch_and_where_to_put_it(name, parts, monkeypatch, tmp_path):
    monkeypatch.setattr(_open_clip, "OPENAI_CACHE", tmp_path / ".cache" / "clip")
    monkeypatch.setattr(_open_clip, "try_to_load_from_cache", lambda *a: None)
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(key, raising=False)
    with pytest.raises(cots.BackboneError, match="are not on this machine") as caught:
        cots.load(name)
    for part in parts:
        assert part in str(caught.value)


def unreachable(*args):
    raise OSError("no network")


def test_offline_mode_fails_at_once(monkeypatch):
    monkeypatch.setattr(_open_clip, "try_to_load_from_cache", lambda *a: None)
    monkeypatch.setattr(_open_clip.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(cots.BackboneError, match="cannot be reached"):
        _open_clip._check_reachable("x", "org/name", ["file"])
    monkeypatch.setattr(_open_clip, "try_to_load_from_cache", lambda *a: "/cached/file")
    _open_clip._check_reachable("x", "org/name", ["file"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ViT-B16/openai", "Unknown architecture 'ViT-B16'. Did you mean 'ViT-B-16'"),
        ("ViT-B-16/opnai", "Unknown weights of ViT-B-16 'opnai'. Did you mean 'openai'"),
        ("nonsense", r"Unknown model 'nonsense'\. Known: mini\. Use mini, ARCH/TAG"),
        ("vitb16", r"Unknown model 'vitb16'\. Known: .*ViT-B-16/openai, mini\. Use"),
        ("ViT-B-32", "Did you mean 'ViT-B-32/openai'"),
        ("random:ViT-B-999", "Unknown architecture 'ViT-B-999'"),
    ],
)
def test_unknown_names_get_a_suggestion(name, message):
    with pytest.raises(cots.InputError, match=message):
        cots.load(name)


def test_broken_folders_are_named(tmp_path):
    with pytest.raises(
        cots.BackboneError,
        match=r"open_clip_config.json cannot be read \(FileNotFoundError",
    ):
        cots.load(f"local-dir:{tmp_path / 'nowhere'}")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "open_clip_config.json").write_text("{")
    with pytest.raises(cots.BackboneError, match=r"open_clip_config.json cannot be read \(JSONDecodeError"):
        cots.load(f"local-dir:{tmp_path / 'a'}")
    (tmp_path / "a" / "open_clip_config.json").write_text(json.dumps({"model_cfg": CLIP_CFG}))
    with pytest.raises(cots.BackboneError, match="has no weights"):
        cots.load(f"local-dir:{tmp_path / 'a'}")


def test_a_tokenizer_that_is_not_installed_can_be_replaced(tmp_path, monkeypatch):
    config = {**CLIP_CFG, "text_cfg": {**CLIP_CFG["text_cfg"], "hf_tokenizer_name": "org/tokenizer"}}
    add_architecture(config, tmp_path, monkeypatch)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(cots.BackboneError, match=r"needs the package 'transformers': .*uv sync --extra hf"):
        cots.load("random:tiny-clip")
    tokenizer = WordTokenizer()
    assert cots.load("random:tiny-clip", tokenizer=tokenizer).tokenizer is tokenizer


def test_a_local_dir_with_a_vocabulary_uses_it(tmp_path):
    base = open_clip.SimpleTokenizer()
    tokens = sorted({*base.encode("a photo of a cat dog ."), *base.all_special_ids})
    folder = tmp_path / "small"
    folder.mkdir()
    config = json.loads(json.dumps(CLIP_CFG))
    config["text_cfg"]["vocab_size"] = len(tokens) + 1
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    save_file(open_clip.CLIP(**config).state_dict(), folder / "open_clip_model.safetensors")
    (folder / "vocabulary.json").write_text(json.dumps({"tokens": tokens, "unknown": len(tokens)}))
    task = cots.Task(cots.load(f"local-dir:{folder}"), ["cat", "dog"])
    assert task.text_features.shape == (2, 12)
    with pytest.warns(cots.UntrainedWordWarning, match=r"was not trained on: 'okapi', 'the'\. Predictions") as caught:
        cots.Task(task.backbone, ["cat", "okapi"], "a photo of the {}.")
    assert len(caught) == 1
    (folder / "vocabulary.json").write_text("[]")
    with pytest.raises(cots.BackboneError, match="is not a token list"):
        cots.load(f"local-dir:{folder}")


class Malicious:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.parametrize("name", ["open_clip_pytorch_model.bin", "open_clip_model.pth"])
def test_pickled_weights_are_refused_unless_they_are_tensors_alone(tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": CLIP_CFG, "preprocess_cfg": {}}))
    torch.save({"state_dict": {"x": Malicious(tmp_path / "touched")}}, folder / name)
    with pytest.raises(cots.BackboneError, match="Could not load"):
        cots.load(f"local-dir:{folder}")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("ViT-B/16/openai", "ViT-B-16/openai"),
        ("vit-b-16/OpenAI", "ViT-B-16/openai"),
        ("ViT-B-16/openai", "ViT-B-16/openai"),
        ("rn50/OPENAI", "RN50/openai"),
        ("vit-b-16-siglip/webli", "ViT-B-16-SigLIP/webli"),
        ("ViT-B/16//models/Own.PT", "ViT-B-16//models/Own.PT"),
        ("vit-b/32/models/own.pt", "ViT-B-32/models/own.pt"),
    ],
)
def test_names_match_in_any_case_and_with_either_dash(typed, found):
    assert _open_clip.canonical(typed) == found


def test_no_two_names_of_open_clip_are_the_same_to_us():
    plain = [name.lower().replace("/", "-") for name in open_clip.list_models()]
    assert len(set(plain)) == len(plain)
    for arch in open_clip.list_models():
        tags = [tag.lower().replace("/", "-") for tag in open_clip.list_pretrained_tags_by_model(arch)]
        assert len(set(tags)) == len(tags)


def test_weights_can_be_given_apart(arch, openai_archive):
    file = openai_archive[0] if isinstance(openai_archive, tuple) else openai_archive
    apart, together = cots.load("Tiny/CLIP", pretrained=str(file)), cots.load(f"{arch}/{file}")
    assert apart.name == together.name
    assert apart.weights_hash == together.weights_hash
    with pytest.raises(cots.InputError, match="mini has its own weights, so pretrained='openai' has no effect"):
        cots.load("mini", "openai")
    with pytest.raises(
        cots.InputError, match="ViT-B-16 needs the tag of its weights, as ViT-B-16/TAG or pretrained=TAG"
    ):
        cots.load("ViT-B/16")
    with pytest.raises(cots.InputError, match="pretrained, device and precision have no effect on a loaded Backbone"):
        cots.Classifier(apart, ["a", "b"], pretrained="openai")
