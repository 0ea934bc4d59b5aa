"""The image tower against the model's own forward, in full and half precision and in pieces."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import open_clip
import pytest
import torch
from open_clip.model import CLIP
from support.models import KINDS, WordTokenizer, tiny
from torch import nn

import cots
from cots.accelerate import Plain, using
from cots.backbones import Blocks
from cots.fast.image_encoder import TowerEncoder, recorded_size
from cots.fast.image_tower import ImageTower


def vit(act: str = "gelu", **vision) -> CLIP:
    torch.manual_seed(0)
    cfg = {"image_size": 32, "layers": 3, "width": 32, "head_width": 16, "patch_size": 8, **vision}
    text = {"context_length": 16, "vocab_size": 60, "width": 16, "heads": 2, "layers": 2}
    model = CLIP(12, cfg, text, quick_gelu=act == "quick").double()
    for parameter in model.parameters():  # biases and layer scales start at values that hide mistakes
        nn.init.normal_(parameter, std=0.2)
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize(
    "changes",
    [{}, {"act": "quick"}, {"ls_init_value": 0.1}, {"no_ln_pre": True}, {"layers": 1}, {"final_ln_after_pool": True}],
    ids=str,
)
def test_image_tower_is_the_models_own_forward(changes):
    tower = vit(**changes).visual
    assert ImageTower.supports(tower)
    pixels = torch.randn(5, 3, 32, 32, dtype=torch.float64)
    ours = ImageTower(tower, torch.float64).features(pixels)
    torch.testing.assert_close(ours, tower(pixels), rtol=0, atol=1e-12)


def test_image_tower_leaves_pixels_as_they_are():
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    before = pixels.clone()
    ImageTower(vit().visual, torch.float64).features(pixels)
    assert torch.equal(pixels, before)


@pytest.mark.parametrize("changes", [{"pool_type": "avg"}, {"attentional_pool": True, "attn_pooler_heads": 4}], ids=str)
def test_other_image_towers_take_their_own_way(changes):
    model = vit(**changes)
    assert not ImageTower.supports(model.visual)
    assert not ImageTower.supports(nn.Conv2d(3, 4, 1))
    backbone = dataclasses.replace(tiny("vit", torch.float64), model=model)
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    expected = nn.functional.normalize(model.encode_image(pixels), dim=-1)
    torch.testing.assert_close(backbone.encode_images(pixels), expected, rtol=0, atol=1e-14)


def renamed(module: nn.Module, **methods) -> None:
    """Give a module another class, as in another version of open_clip."""
    module.__class__ = type(f"Other{type(module).__name__}", (type(module),), methods)


def post_norm(self, q_x, **options):
    x = self.ln_1(q_x + self.attention(q_x))
    return self.ln_2(x + self.mlp(x))


def test_towers_are_recognised_by_their_parts_not_their_classes():
    tower = vit("quick").visual
    for module in (tower, *tower.transformer.resblocks, *(block.mlp.gelu for block in tower.transformer.resblocks)):
        renamed(module)
    assert ImageTower.supports(tower)
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    fast = ImageTower(tower, torch.float64)
    torch.testing.assert_close(fast.features(pixels), tower(pixels), rtol=0, atol=1e-12)
    assert set(fast.blocks._quick.values()) == {True}
    assert set(ImageTower(vit().visual, torch.float64).blocks._quick.values()) == {False}


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("block", {"forward": post_norm}),
        ("block", {"forward": lambda self, x, time: x}),
        ("tower", {"forward": lambda self, x: 2 * open_clip.transformer.VisionTransformer.forward(self, x)}),
        ("tower", {"_embeds": lambda self, x: open_clip.transformer.VisionTransformer._embeds(self, x.flip(-1))}),
    ],
    ids=["post-norm", "another signature", "scaled", "flipped"],
)
def test_the_same_parts_with_another_computation_are_refused(part, change):
    tower = vit().visual
    renamed(tower if part == "tower" else tower.transformer.resblocks[1], **change)
    assert not ImageTower.supports(tower)


def test_blocks_with_other_parts_are_refused():
    tower = vit().visual
    blocks = tower.transformer.resblocks
    assert Blocks.supports(blocks)
    blocks[1].ln_1_kv = nn.LayerNorm(32)
    assert not Blocks.supports(blocks)
    assert not Blocks.supports(vit(block_type="custom").visual.transformer.resblocks)
    assert not Blocks.supports(nn.ModuleList())


def test_half_precision_keeps_the_residual_stream_in_full():
    """bfloat16 has three digits; with every sum in it, errors would grow with depth to several per cent."""
    model = vit("quick", layers=12).float()
    pixels = torch.randn(4, 3, 32, 32)
    exact = ImageTower(model.visual, torch.float32).features(pixels)
    half = ImageTower(model.visual, torch.bfloat16).features(pixels)
    assert half.dtype == torch.float32
    error = (half - exact).norm() / exact.norm()
    assert 1e-5 < error < 1e-2


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_features_in_half_precision_agree(precision):
    backbone = dataclasses.replace(tiny("vit"), precision=precision)
    pixels = torch.randn(4, 3, *backbone.image_size)
    exact = tiny("vit").encode_images(pixels)
    assert (backbone.encode_images(pixels) - exact).norm(dim=-1).max() < 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_guest_images_take_the_models_own_forward(kind):
    backbone = dataclasses.replace(tiny(kind))
    pixels = torch.randn(6, 3, *backbone.image_size)
    with using(Plain()):
        plain = backbone.encode_images(pixels)
        assert backbone.samples_at_once(64) == 1
    assert torch.equal(plain, torch.cat([backbone.forward_images(some) for some in pixels.split(4)]))
    torch.testing.assert_close(backbone.encode_images(pixels), plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("gib", "images", "samples"), [(141, 256, 4), (24, 256, 4), (12, 128, 2), (4, 42, 1)])
def test_a_smaller_card_encodes_fewer_images_at_a_time(gib, images, samples, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=gib * 2**30))
    monkeypatch.setattr(cots.Backbone, "device", torch.device("cuda"))
    passes = []

    def encode(self, pixels):
        passes.append(len(pixels))
        return pixels.flatten(1)[:, :2]

    monkeypatch.setattr(TowerEncoder, "encode", encode)
    backbone = dataclasses.replace(tiny("vit"))
    assert backbone.encode_images(torch.zeros(300, 3, 32, 32)).shape == (300, 2)
    assert passes[0] == max(passes) == images
    assert sum(passes) == 300
    assert backbone.samples_at_once(64) == samples
    assert backbone.samples_at_once(1000) == 1


def test_half_precision_weights_are_refused():
    model = CLIP(12, {"image_size": 32, "layers": 1, "width": 16, "patch_size": 16, "head_width": 8},
                 {"context_length": 20, "width": 16, "heads": 2, "layers": 1})  # fmt: skip
    with pytest.raises(cots.InputError, match=r"half precision .* Call model.float\(\)"):
        cots.Backbone(name="half", model=model.half(), tokenizer=WordTokenizer(), preprocess={"size": 32})


def test_passes_of_any_size_are_recorded_in_few_sizes():
    sizes = {recorded_size(count, 256) for count in range(1, 257)}
    assert sizes == {1, 2, 4, 8, 16, 32, 64, 128, 192, 256}
    for most in (1, 3, 42, 256):
        for count in range(1, most + 1):
            assert count <= recorded_size(count, most) <= max(most, 2 * count)
