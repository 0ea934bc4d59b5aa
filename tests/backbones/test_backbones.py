"""Loading: every form of name, QuickGELU however the weights came, hashes, what is said when a download is missing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import warnings

import open_clip
import pytest
import torch
from open_clip import pretrained as registry
from open_clip.transformer import QuickGELU
from PIL import Image
from safetensors.torch import save_file
from support.models import PREPROCESS, tiny

import cots
from cots.backbones import _download
from cots.backbones._tokens import PrunedTokenizer

MODEL_CFG = {
    "embed_dim": 12,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 16, "patch_size": 16, "head_width": 8},
    "text_cfg": {"context_length": 20, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}


@pytest.fixture
def arch(tmp_path, monkeypatch):
    """A tiny architecture that open_clip knows by name."""
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIG_PATHS", list(open_clip.factory._MODEL_CONFIG_PATHS))
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", dict(open_clip.factory._MODEL_CONFIGS))
    file = tmp_path / "tiny-clip.json"
    file.write_text(json.dumps(MODEL_CFG))
    open_clip.add_model_config(file)
    return "tiny-clip"


def local_dir(folder, **model_cfg):
    """A folder as `local-dir:` wants it, with the weights of a seeded model."""
    folder.mkdir(parents=True)
    config = {"model_cfg": {**MODEL_CFG, **model_cfg}, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.25] * 3}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    torch.manual_seed(5)
    state = open_clip.CLIP(**MODEL_CFG).state_dict()
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "open_clip_model.safetensors")
    return state


def uses_quick_gelu(backbone):
    kinds = {
        type(b.mlp.gelu) for b in (*backbone.model.transformer.resblocks, *backbone.model.visual.transformer.resblocks)
    }
    assert len(kinds) == 1
    return kinds == {QuickGELU}


def test_random_weights_follow_the_seed_and_leave_the_generator_alone(arch):
    torch.manual_seed(123)
    expected = torch.rand(1)
    torch.manual_seed(123)
    first = cots.load(f"random:{arch}", seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert first.weights_hash == cots.load(f"random:{arch}", seed=1).weights_hash
    assert first.weights_hash != cots.load(f"random:{arch}", seed=2).weights_hash


def test_the_hash_sees_every_weight(arch):
    backbone = cots.load(f"random:{arch}")
    before = backbone.weights_hash
    backbone.model.ln_final.bias.data[3] += 1e-6
    assert dataclasses.replace(backbone).weights_hash != before


@pytest.mark.parametrize("kind", ["vit", "resnet", "siglip"])
def test_image_features_are_normalised_and_independent_of_the_batch(kind):
    backbone = tiny(kind)
    height, width = backbone.image_size
    pixels = torch.randn(2, 3, 3, height, width, generator=torch.Generator().manual_seed(0))
    features = backbone.encode_images(pixels)
    assert features.shape == (2, 3, 12)
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(2, 3))
    raw = backbone.model.encode_image(pixels.flatten(0, 1))
    torch.testing.assert_close(features.flatten(0, 1), torch.nn.functional.normalize(raw, dim=-1))
    torch.testing.assert_close(backbone.encode_images(pixels, batch_size=1), features, rtol=0, atol=1e-6)
    low = dataclasses.replace(backbone, precision="bfloat16").encode_images(pixels)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, features, rtol=0, atol=0.1)
    assert not torch.equal(low, features)


def test_bad_pixels_and_precision_are_named():
    backbone = tiny("vit")
    with pytest.raises(cots.InputError, match=r"shape \(..., 3, 32, 32\) for tiny-vit, not \(1, 3, 64, 64\)"):
        backbone.encode_images(torch.zeros(1, 3, 64, 64))
    with pytest.raises(cots.InputError, match="hold no image"):
        backbone.encode_images(torch.zeros(0, 3, 32, 32))
    with pytest.raises(cots.InputError, match="precision must be one of float32, bfloat16, float16"):
        dataclasses.replace(backbone, precision="int8")


def test_tokenizer_and_preprocessing_come_with_the_model():
    backbone = cots.load("random:RN50")
    assert backbone.context_length == 77
    assert torch.equal(backbone.tokenize(["a cat"]), open_clip.get_tokenizer("RN50")(["a cat"]))
    transform = open_clip.image_transform(224, is_train=False)
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
    monkeypatch.setattr("cots.backbones._load.check_reachable", lambda *a: None)
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


@pytest.fixture
def openai_archive(tmp_path):
    torch.manual_seed(7)
    state = open_clip.CLIP(**MODEL_CFG).state_dict()
    file = tmp_path / "clip" / "tiny.pt"
    file.parent.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(Weights(state), torch.zeros(1)).save(file)
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
    monkeypatch.setattr(_download, "OPENAI_CACHE", file.parent)
    assert uses_quick_gelu(cots.load(f"{arch}/openai"))
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(cots.BackboneError, match=r"tiny.pt is damaged .* Fetch https://openaipublic"):
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
def test_a_missing_download_says_what_to_fetch_and_where_to_put_it(name, parts, monkeypatch, tmp_path):
    monkeypatch.setattr(_download, "OPENAI_CACHE", tmp_path / ".cache" / "clip")
    monkeypatch.setattr(_download, "try_to_load_from_cache", lambda *a: None)
    monkeypatch.setattr(_download, "_resolves", lambda host: False)
    for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(key, raising=False)
    with pytest.raises(cots.BackboneError, match="are not on this machine") as caught:
        cots.load(name)
    for part in parts:
        assert part in str(caught.value)


def test_offline_mode_fails_at_once(monkeypatch):
    monkeypatch.setattr(_download, "try_to_load_from_cache", lambda *a: None)
    monkeypatch.setattr(_download.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(cots.BackboneError, match="cannot be reached"):
        _download.check_reachable("x", "org/name", ["file"])
    monkeypatch.setattr(_download, "try_to_load_from_cache", lambda *a: "/cached/file")
    _download.check_reachable("x", "org/name", ["file"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ViT-B16/openai", "Unknown architecture 'ViT-B16'. Did you mean 'ViT-B-16'"),
        ("ViT-B-16/opnai", "Unknown weights of ViT-B-16 'opnai'. Did you mean 'openai'"),
        ("nonsense", "Unknown model 'nonsense'.*ARCH/TAG"),
        ("random:ViT-B-999", "Unknown architecture 'ViT-B-999'"),
    ],
)
def test_unknown_names_get_a_suggestion(name, message):
    with pytest.raises(cots.InputError, match=message):
        cots.load(name)


def test_broken_folders_are_named(tmp_path):
    with pytest.raises(cots.BackboneError, match=r"open_clip_config.json does not exist"):
        cots.load(f"local-dir:{tmp_path / 'nowhere'}")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "open_clip_config.json").write_text("{")
    with pytest.raises(cots.BackboneError, match="is not an open_clip config"):
        cots.load(f"local-dir:{tmp_path / 'a'}")
    (tmp_path / "a" / "open_clip_config.json").write_text(json.dumps({"model_cfg": MODEL_CFG}))
    with pytest.raises(cots.BackboneError, match="holds no weights"):
        cots.load(f"local-dir:{tmp_path / 'a'}")


def test_a_model_without_logit_scale_is_refused():
    class Images(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

    backbone = cots.Backbone(
        name="images", model=Images(), tokenizer=open_clip.SimpleTokenizer(), preprocess=PREPROCESS
    )
    with pytest.raises(cots.InputError, match="images has no `logit_scale`"):
        _ = backbone.logit_scale


def test_siglip_needs_a_tokenizer_and_takes_one():
    from support.models import WordTokenizer

    if open_clip.tokenizer.HFTokenizer.__init__.__module__ and not _has_transformers():
        with pytest.raises(cots.BackboneError, match=r"needs the package 'transformers': pip install 'cots\[hf\]'"):
            cots.load("random:ViT-B-16-SigLIP")
    backbone = cots.load("random:ViT-B-16-SigLIP", tokenizer=WordTokenizer())
    assert cots.Task(backbone, ["cat", "dog"]).text_features.shape == (2, 768)


def _has_transformers():
    import importlib.util

    return importlib.util.find_spec("transformers") is not None


def pruned(tmp_path, words=(), heads=()):
    base = open_clip.SimpleTokenizer(context_length=20)
    tokens = sorted({*base.encode("a photo of a cat dog ."), *base.all_special_ids})
    file = tmp_path / "vocabulary.json"
    data = {"tokens": tokens, "unknown": len(tokens), "words": list(words), "heads": list(heads)}
    file.write_text(json.dumps(data))
    return base, tokens, PrunedTokenizer.from_file(base, file)


def test_pruned_tokens_keep_their_meaning(tmp_path):
    base, tokens, tokenizer = pruned(tmp_path)
    full, new = base(["a photo of a cat."])[0], tokenizer(["a photo of a cat."])[0]
    length = int(full.argmax()) + 1
    assert [tokens[i] for i in new[:length]] == full[:length].tolist()
    assert int(new.argmax()) == int(full.argmax()), "the end of the text keeps the highest id"
    assert tokenizer("a cat").shape == (1, 20)


def test_untrained_words_are_found(tmp_path):
    _, tokens, tokenizer = pruned(tmp_path)
    assert tokenizer.untrained_words(["a photo of a zebra.", "a photo of okapi cat, zebra."]) == ["zebra", "okapi"]
    assert (tokenizer(["a photo of a zebra."]) == len(tokens)).any()
    _, _, listed = pruned(tmp_path, words=["a", "photo", "of", "cat"])
    assert listed.untrained_words(["A photo of a Cat! dog"]) == ["dog"]


def test_words_that_were_only_inside_other_names_are_found(tmp_path):
    """'king' was trained in 'king penguin' alone; as the end of a name it is as good as untrained."""
    _, _, tokenizer = pruned(tmp_path, words=["king", "penguin", "man", "eater"], heads=["penguin", "eater"])
    names = ["king", "King Penguin", "a penguin king", "man-eater", "penguin man", "zebra", "..."]
    assert tokenizer.words_inside_names(names) == ["king", "man"]
    _, _, without = pruned(tmp_path, words=["king", "penguin"])
    assert without.words_inside_names(names) == []


def test_a_local_dir_with_a_vocabulary_uses_it(tmp_path):
    _, tokens, _ = pruned(tmp_path)
    folder = tmp_path / "small"
    folder.mkdir()
    config = json.loads(json.dumps(MODEL_CFG))
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
    with pytest.raises(cots.BackboneError, match="is no token list"):
        cots.load(f"local-dir:{folder}")
