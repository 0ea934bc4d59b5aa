"""The fast paths against the plain ones: image tower, Jacobian, half precision, fused kernels, memory limits."""

from __future__ import annotations

import contextlib
import dataclasses
from types import SimpleNamespace

import pytest
import torch
from open_clip.model import CLIP
from support import naive_adapt as naive
from support.models import CLASSES, random_views, tiny, tiny_task
from torch import nn

import cots
from cots import _kernels
from cots.backbones._blocks import Blocks
from cots.backbones._vit import ImageTower
from cots.prompts._causal import CausalText


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


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_jacobian_against_the_full_length_reference(kind):
    task = tiny_task(kind, torch.float64)
    assert isinstance(task.tower, CausalText)
    ids = naive.prompt_ids(task.backbone, CLASSES)
    expected = torch.autograd.functional.jacobian(
        lambda context: naive.text_features(task.backbone, ids, context), task.initial_context
    )
    ours = task.tower.jacobian(task.initial_context)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_jacobian_in_small_pieces_is_the_same(monkeypatch):
    task = tiny_task("vit", torch.float64)
    whole = task.tower.jacobian(task.initial_context)
    monkeypatch.setattr("cots.prompts._causal._ROWS", {"cpu": 1})
    torch.testing.assert_close(task.tower.jacobian(task.initial_context), whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize("method", ["tpt", "ctpt", "soc", "penalty"])
def test_adapting_with_the_jacobian_changes_nothing(method):
    plain, linear = tiny_task("vit", torch.float64), cots.Task(tiny("vit", torch.float64), CLASSES)
    linear.linear = True  # as on a GPU, where `linearise` allows it
    views = random_views(plain)
    torch.testing.assert_close(
        cots.adapt(method, views, linear).logits, cots.adapt(method, views, plain).logits, rtol=0, atol=1e-9
    )


def test_linearise_is_for_gpus():
    task = cots.Task(tiny("vit"), CLASSES)
    task.linearise()
    assert not task.linear


def test_lists_say_how_many_samples_are_to_come(monkeypatch):
    told = []
    monkeypatch.setattr(cots.Task, "linearise", lambda self, samples=None: told.append(samples))
    classifier = cots.Classifier(tiny("vit"), CLASSES, "zeroshot", views=2)
    classifier(["missing.jpg"] * 3)
    list(classifier.stream(iter(["missing.jpg"])))
    assert told == [3]


def test_tuned_text_in_float16_agrees():
    task = tiny_task("vit")
    tower = task.tower
    assert isinstance(tower, CausalText)
    half = Blocks(tower.tower.transformer.resblocks, tower.tower.ln_final, torch.float16)
    contexts = task.initial_context + 0.005 * torch.randn(3, 4, 16).sign()
    ours = tower._features(contexts, half)
    assert ours.dtype == torch.float32
    assert 0 < (ours - task.features_under(contexts)).norm(dim=-1).max() < 5e-3


def test_a_kernel_runs_on_the_gpu_of_its_first_argument(monkeypatch):
    """Triton takes the thread's current GPU, which in a server with several is another thread's."""
    current = [0]

    @contextlib.contextmanager
    def device(wanted):
        before, current[0] = current[0], wanted.index
        yield
        current[0] = before

    monkeypatch.setattr("torch.cuda.current_device", lambda: current[0])
    monkeypatch.setattr("torch.cuda.device", device)
    seen = []
    kernel = {(3, 4): lambda first, *rest, **options: seen.append((current[0], rest, options))}
    for index in (0, 1):
        tensor = SimpleNamespace(is_cuda=True, device=torch.device("cuda", index))
        _kernels.launched(kernel, 3, 4)(tensor, 5, SIDE=6)
    assert seen == [(0, (5,), {"SIDE": 6}), (1, (5,), {"SIDE": 6})]
    assert current == [0]


def test_no_grid_is_larger_than_a_gpu_takes(monkeypatch):
    """Few classes make few tokens a sample, so that a piece holds more samples than CUDA's second axis has places."""
    launches = []

    def launched(kernel, *grid):
        return lambda q, k, v, out, *rest, **options: launches.append((grid, len(q), len(k), len(v), len(out)))

    monkeypatch.setattr(_kernels, "launched", launched)
    monkeypatch.setattr(_kernels, "_triton", SimpleNamespace(prefix_attention=None))
    q, k, v = torch.empty(10_000, 9, 3, 8, 16, dtype=torch.float16).unbind(2)
    rows = torch.arange(9, dtype=torch.int32)
    assert _kernels.prefix_attention(q, k, v, rows, rows, 5).shape == (10_000, 9, 128)
    assert sum(samples for _, samples, *_ in launches) == 10_000
    for (first, second), *samples in launches:
        assert first == 1
        assert second == 8 * samples[0] <= 65535
        assert len(set(samples)) == 1


@pytest.mark.parametrize(("gib", "images", "samples"), [(141, 256, 4), (24, 256, 4), (12, 128, 2), (4, 42, 1)])
def test_a_smaller_card_encodes_fewer_images_at_a_time(gib, images, samples, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=gib * 2**30))
    monkeypatch.setattr(cots.Backbone, "device", torch.device("cuda"))
    passes = []

    def encode(self, pixels):
        passes.append(len(pixels))
        return pixels.flatten(1)[:, :2]

    monkeypatch.setattr(cots.Backbone, "_encode", encode)
    backbone = tiny("vit")
    assert backbone.encode_images(torch.zeros(300, 3, 32, 32)).shape == (300, 2)
    assert passes[0] == max(passes) == images
    assert sum(passes) == 300
    assert backbone.samples_at_once(64) == samples
    assert backbone.samples_at_once(1000) == 1


def test_a_smaller_card_holds_fewer_prompts_and_less_of_a_jacobian(monkeypatch):
    expected = tiny_task("siglip", torch.float64).text_features
    monkeypatch.setattr("cots.prompts._plain.scale_to_memory", lambda limit, device: limit // 128)
    task = cots.Task(tiny("siglip", torch.float64), CLASSES)
    prompts = []
    encode_text = task.tower.model.encode_text
    monkeypatch.setattr(task.tower.model, "encode_text", lambda ids: prompts.append(len(ids)) or encode_text(ids))
    torch.testing.assert_close(task.text_features, expected, rtol=0, atol=1e-12)
    assert prompts == [2, 2, 1]

    task = tiny_task("vit", torch.float64)
    pieces = []
    linearised = CausalText.linearised
    monkeypatch.setattr(
        CausalText, "linearised", lambda self, leaf, *rest: pieces.append(len(leaf)) or linearised(self, leaf, *rest)
    )
    whole = task.tower.jacobian(task.initial_context)
    assert max(pieces) > 1
    pieces.clear()
    monkeypatch.setattr("cots.prompts._causal.scale_to_memory", lambda limit, device: 1)
    torch.testing.assert_close(task.tower.jacobian(task.initial_context), whole, rtol=0, atol=1e-13)
    assert max(pieces) == 1
