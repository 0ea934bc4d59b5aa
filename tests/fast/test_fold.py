"""Towers with folded batch norms against the unfolded ones, in float64."""

from __future__ import annotations

import copy
import threading

import pytest
import timm
import torch
from support.models import mini, tiny
from timm.layers import Conv2dSame
from timm.models.byobnet import ByoBlockCfg
from timm.models.efficientnet import _gen_efficientnet_lite
from torch import nn

import cots
from cots.accelerate import accelerator
from cots.backbones import ImageEncoder
from cots.fast.fold import fold_batch_norms
from cots.fast.onednn import PackedConv

# Batch norms that remain: those that do not follow a convolution, or are not alone in reading it; None: some.
TIMM: dict[str, int | None] = {
    "tf_efficientnet_lite0": 0,  # mini's, with "same" padding
    "test_efficientnet": 0,  # squeeze-and-excitation
    "test_resnet": 0,
    "mobilenetv3_small_050": 0,
    "resnetv2_18": None,  # norms before convolutions: the first reads what the shortcut reads too
    "repvgg_a0": None,  # norms of the identity branch
}
NARROW = {  # the same kinds of blocks, fewer and with fewer channels
    "resnetv2_18": {"layers": (1, 1, 1, 1), "channels": (16, 24, 32, 48), "stem_chs": 16},
    "repvgg_a0": {"blocks": tuple(ByoBlockCfg("rep", d=2, c=width, s=2, gs=0) for width in (16, 24)), "stem_chs": 16},
}


def with_statistics(tower: nn.Module) -> nn.Module:
    """Running statistics and affine weights far from those of a new model."""
    generator = torch.Generator().manual_seed(0)
    for norm in tower.modules():
        if isinstance(norm, nn.BatchNorm2d):
            limits = {"running_mean": (-0.3, 0.3), "running_var": (0.5, 2.0), "weight": (0.7, 1.4), "bias": (-0.2, 0.2)}
            for key, (low, high) in limits.items():
                getattr(norm, key).data.uniform_(low, high, generator=generator)
    return tower.eval().double().requires_grad_(False)


def norms(tower: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in tower.modules())


@pytest.mark.parametrize("name", TIMM)
def test_a_folded_and_a_packed_timm_tower_compute_the_same(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        if name == "tf_efficientnet_lite0":  # a quarter of its channels, which timm.create_model does not offer
            tower = _gen_efficientnet_lite(name, channel_multiplier=0.25, num_classes=7, pad_type="same", bn_eps=1e-3)
        else:
            tower = timm.create_model(name, num_classes=7, **NARROW.get(name, {}))
        with_statistics(tower)
        pixels = torch.randn(2, 3, 33, 40, dtype=torch.float64)  # odd: "same" padding is not symmetric
    before = copy.deepcopy(tower.state_dict())
    folded = fold_batch_norms(tower, pixels[:1])
    torch.testing.assert_close(folded(pixels), tower(pixels), rtol=1e-9, atol=1e-9)
    assert norms(folded) < norms(tower) if TIMM[name] is None else norms(folded) == TIMM[name]
    padded = sum(isinstance(module, Conv2dSame) for module in folded.modules())
    assert padded == (5 if name == "tf_efficientnet_lite0" else 0)
    after = tower.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    tower, pixels = tower.float(), pixels.float()
    packed = fold_batch_norms(tower, pixels[:1], pack=True)
    assert sum(isinstance(module, PackedConv) for module in packed.modules()) > 5
    for layout in (torch.channels_last, torch.contiguous_format):
        found = packed(pixels.contiguous(memory_format=layout))
        torch.testing.assert_close(found, tower(pixels), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("groups", [1, 8])
def test_a_packed_convolution_computes_the_same_in_every_layout(clipped, groups):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        conv = nn.Conv2d(8, 8, 3, padding=1, groups=groups).requires_grad_(False)
        x = torch.randn(2, 8, 9, 7)
    expected = conv(x)
    packed = PackedConv(conv, x.shape, expected.shape, *(("hardtanh", [0.0, 0.5]) if clipped else ("none", [])))
    for layout in (torch.contiguous_format, torch.channels_last):
        found = packed(x.contiguous(memory_format=layout))
        torch.testing.assert_close(found, expected.clamp(0, 0.5) if clipped else expected)
    opaque = packed(x.to_mkldnn())
    assert opaque.is_mkldnn
    torch.testing.assert_close(opaque.to_dense(), found)


class Twice(nn.Module):
    """A convolution whose output two branches read, and one whose weight is used twice."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.shared = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), shared

    def forward(self, x):
        y = self.conv(x)
        out = self.norm(y) + (self.conv(2 * x) if self.shared else y)
        return out.mean((2, 3))


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_read_twice_is_not_folded(shared):
    tower = with_statistics(Twice(shared))
    assert norms(fold_batch_norms(tower, torch.randn(1, 3, 8, 8, dtype=torch.float64))) == 1


class Hidden(nn.Module):
    """Replaces its own batch norm once traced: a tower that a trace does not describe."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x):
        gain = 1.0 if isinstance(self.norm, nn.BatchNorm2d) else torch.tensor([2.0, 1.0, -1.0], dtype=x.dtype)
        return self.norm(self.conv(x)).mean((2, 3)) * gain


def test_a_copy_with_other_features_is_refused():
    assert fold_batch_norms(with_statistics(Hidden()), torch.randn(1, 3, 8, 8, dtype=torch.float64)) is None


def test_towers_without_batch_norms_are_left_alone():
    assert fold_batch_norms(tiny("vit").model.visual, torch.zeros(1, 3, 32, 32)) is None


def test_a_backbone_encodes_with_the_folded_tower():
    """open_clip's ResNet: the same features as its own modules, and the hash of the weights that were loaded."""
    own = tiny("resnet", torch.float64)
    model = copy.deepcopy(own.model)
    with_statistics(model.visual)
    backbone = cots.Backbone(name="resnet", model=model, tokenizer=own.tokenizer, preprocess=own.preprocess)
    weights = backbone.weights_hash
    pixels = torch.randn(3, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(backbone.encode_images(pixels), backbone.forward_images(pixels), rtol=1e-9, atol=1e-9)
    assert norms(accelerator().image_encoder(backbone).model.visual) == 0 < norms(model.visual)
    del backbone.__dict__["weights_hash"]
    assert backbone.weights_hash == weights


def test_threads_encode_the_same_and_leave_the_setting_alone(monkeypatch):
    backbone = mini()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pixels = torch.randn(3, 3, *backbone.image_size)
    before, used, encode = torch.get_num_threads(), set(), ImageEncoder.encode

    def watched(self, some):
        used.add(threading.get_ident())
        return encode(self, some)

    monkeypatch.setattr(ImageEncoder, "encode", watched)
    try:
        torch.set_num_threads(2)
        found = backbone.encode_images(pixels, batch_size=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threading.get_ident() not in used
    torch.testing.assert_close(found, backbone.forward_images(pixels), rtol=0, atol=1e-4)


def test_more_images_at_once_on_few_cores(monkeypatch):
    """Only for `mini`: the later stages of its tower share their weights among more images."""
    own, other = (accelerator().image_encoder(backbone) for backbone in (mini(), tiny("resnet")))
    for threads, images in {1: 16, 2: 16, 3: 10, 4: 8, 8: 4, 64: 4}.items():
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert (own.at_once, other.at_once) == (images, 4)
    monkeypatch.undo()
    pixels = torch.linspace(-2, 2, 6 * 3 * 224 * 224).reshape(6, 3, 224, 224)
    found = [own(pixels, batch_size=size) for size in (1, 4, 6)]
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-6)
    torch.testing.assert_close(found[1], found[2], rtol=0, atol=1e-6)
