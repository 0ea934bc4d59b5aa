"""The device's renderer against PIL's, under the same plan, pixel by pixel; on the CPU and on a GPU if there is one."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from skimage import data

import cots
from cots._kernels import available
from cots.views import (
    MixPlan,
    Renderer,
    ViewMaker,
    ViewPlan,
    ViewSettings,
    choose_renderer,
    draw_plan,
    in_threads,
    prepare,
    render_views,
    render_views_on,
)
from cots.views._augmix import apply_operation
from cots.views._plan import OPERATIONS

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
EXACT = ("autocontrast", "equalize", "posterize", "solarize", "translate_x", "translate_y")
SIZES = [(1, 1), (1, 300), (300, 1), (31, 47), (333, 500), (224, 224), (2100, 300)]

pytestmark = pytest.mark.parametrize("device", DEVICES)


def grain(height: int, width: int, seed: int = 0) -> Image.Image:
    """Noise: nothing hides a wrong pixel."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def compare(image: Image.Image, view_settings: ViewSettings, device: str, seed: int = 0) -> torch.Tensor:
    """|difference| in levels of 255, of all views of one plan."""
    plan = draw_plan((image.height, image.width), view_settings, seed)
    ours = render_views_on(image, plan, view_settings, device)
    assert ours.device.type == device
    assert ours.dtype == torch.float32
    difference = (ours.cpu() - render_views(image, plan, view_settings)).abs()
    return difference * torch.tensor(view_settings.std).view(3, 1, 1) * 255


def by_kernels(device: str) -> bool:
    return available(torch.device(device))


def no_plan(image: Image.Image, mix: MixPlan | None, strong: int = 1) -> ViewPlan:
    """The whole image as every strong view."""
    box = np.array([[0, 0, image.height, image.width]] * strong)
    return ViewPlan(image_size=(image.height, image.width), boxes=box, flips=np.zeros(strong, dtype=np.bool_), mix=mix)


def one_operation(image: Image.Image, operation: str, amount: float, device: str) -> np.ndarray:
    """The device's version of `apply_operation`."""
    operations = np.full((1, 3, 3), -1)
    operations[0, :, 0] = OPERATIONS.index(operation)
    mix = MixPlan(
        skip=np.zeros(1),
        weights=np.array([[0.0, 1.0, 0.0]]),
        operations=operations,
        amounts=np.full((1, 3, 3), amount),
    )
    plain = ViewSettings(
        n=2, size=(image.height, image.width), augmix=True, mean=(0, 0, 0), std=(1, 1, 1), resize_mode="squash"
    )
    views = render_views_on(image, no_plan(image, mix), plain, device)[1] * 255
    return views.round().permute(1, 2, 0).cpu().numpy().astype(int)


@pytest.mark.parametrize("module", ["_ahead", "_device", "_maker", "_prepare"])
def test_docstrings_hold(device, module):
    result = doctest.testmod(importlib.import_module(f"cots.views.{module}"))
    assert result.attempted
    assert not result.failed


# ------------------------------------------------------------------------------------------------ crops and flips


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "options",
    [{}, {"resize_mode": "squash", "size": (48, 80)}, {"resize_mode": "longest", "fill_color": 9, "flip": 1.0}],
)
def test_crops_are_those_of_pil_to_the_last_bit(device, size, options):
    view_settings = ViewSettings(**{"n": 12, "size": 64, **options})
    assert compare(grain(*size), view_settings, device).max() == 0


def test_all_views_of_a_photo_at_full_size(device):
    assert compare(Image.fromarray(data.coffee()), ViewSettings(), device).max() == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 2**64 - 1),
    flip=st.sampled_from([0.0, 0.5, 1.0]),
    ratio=st.sampled_from([(3 / 4, 4 / 3), (0.05, 20.0), (1.0, 1.0)]),
)
def test_crops_of_any_shape(device, height, width, size, seed, flip, ratio):
    view_settings = ViewSettings(n=5, size=size, flip=flip, ratio=ratio)
    assert compare(grain(height, width), view_settings, device, seed).max() == 0


@pytest.mark.parametrize("chooses", [True, False])
def test_both_orders_of_the_two_passes(device, chooses, monkeypatch):
    """PIL 13 resizes tall crops down first, earlier ones never did; both are composed here of one-way steps."""
    monkeypatch.setattr("cots.views._prepare._pil_chooses_order", lambda: chooses)
    image, plain = grain(90, 40), ViewSettings(n=2, size=(30, 36), mean=(0, 0, 0), std=(1, 1, 1))
    step = (40, 30) if chooses else (36, 90)
    bilinear = Image.Resampling.BILINEAR
    expected = np.asarray(image.resize(step, bilinear).resize((36, 30), bilinear))
    views = render_views_on(image, no_plan(image, None), plain, device)[1] * 255
    assert np.array_equal(views.round().permute(1, 2, 0).cpu().numpy(), expected)


def test_memory_is_bounded_by_parts_without_a_trace(device, monkeypatch):
    view_settings, image = ViewSettings(n=24, size=32, augmix=True), grain(70, 60)
    plan = draw_plan((70, 60), view_settings, 3)
    whole = render_views_on(image, plan, view_settings, device)
    monkeypatch.setattr("cots.views._crops._BYTES", 5 * 16 * 32 * 70)
    monkeypatch.setattr("cots.views._fused._BYTES", 5 * 3 * 70 * 32)
    monkeypatch.setattr("cots.views._mixing._AT_ONCE", 4)
    assert torch.equal(render_views_on(image, plan, view_settings, device), whole)


def test_a_huge_photo_is_rendered_where_it_was_read(device, monkeypatch):
    monkeypatch.setattr("cots.views._prepare.MAX_SENT_PIXELS", 70 * 60 - 1)
    view_settings, image = ViewSettings(n=4, size=32, augmix=True), grain(70, 60)
    plan = draw_plan((70, 60), view_settings, 3)
    prepared = prepare(image, plan, view_settings)
    assert list(prepared.fields) == ["views"]
    ours = Renderer(view_settings, torch.device(device))(prepared)
    assert torch.equal(ours.cpu(), render_views(image, plan, view_settings))


def test_the_weak_view_alone(device):
    assert compare(grain(40, 50), ViewSettings(n=1, size=32), device).shape == (1, 3, 32, 32)
    assert compare(grain(40, 50), ViewSettings(n=1, size=32, augmix=True), device).max() == 0


# -------------------------------------------------------------------------------------------------------- AugMix


@pytest.mark.parametrize("name", ["astronaut", "coffee", "rocket"])
def test_mixtures_of_photos(device, name):
    """Where a sampled level is whole but for rounding, PIL and torch may cut it off differently; the kernels do not."""
    difference = compare(Image.fromarray(getattr(data, name)()), ViewSettings(n=16, augmix=True), device)
    assert (difference > 1e-3).float().mean() <= (0 if by_kernels(device) else 1e-5)
    assert difference.mean() <= 1e-5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", [48, (40, 72)])
def test_mixtures_of_any_size(device, size, shape):
    difference = compare(grain(*size), ViewSettings(n=12, augmix=True, size=shape), device, seed=5)
    assert (difference > 1e-3).float().mean() <= (0 if by_kernels(device) else 1e-5)


@pytest.mark.parametrize(
    ("operation", "amounts"),
    [
        ("autocontrast", [0]),
        ("equalize", [0]),
        ("posterize", [1, 4, 8]),
        ("solarize", [0, 100, 231, 256]),
        ("rotate", [-2, -1, -0.0, 0, 1, 2, 45]),
        ("shear_x", [-0.03, -0.00271, 0.01117, 0.03]),
        ("shear_y", [-0.03, -0.00271, 0.01117, 0.03]),
        ("translate_x", [-7, -1, 0, 3, 200]),
        ("translate_y", [-7, -1, 0, 3, 200]),
    ],
)
def test_every_operation(device, operation, amounts):
    dim = Image.fromarray((np.asarray(grain(61, 90)) // 3 + 40).astype(np.uint8))
    for image in (grain(61, 90), dim, Image.new("RGB", (5, 4), (90, 0, 255)), grain(1, 1)):
        for amount in amounts:
            ours = one_operation(image, operation, amount, device)
            difference = np.abs(ours - np.asarray(apply_operation(image, operation, amount)).astype(int))
            assert difference.max() <= (0 if operation in EXACT or by_kernels(device) else 1)
            # Shears by a round number of hundredths often lead to whole levels, which PIL's rounding may just miss.
            assert (difference > 0).mean() <= (4e-3 if abs(amount) == 0.03 else 1e-4)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    pixels=st.tuples(
        st.integers(1, 30), st.integers(1, 30), st.integers(0, 255), st.integers(0, 255), st.integers(0, 9)
    ),
    operation=st.sampled_from(OPERATIONS),
    level=st.floats(-1, 1),
)
def test_every_operation_at_any_level(device, pixels, operation, level):
    height, width, low, high, seed = pixels
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(min(low, high), max(low, high) + 1, (height, width, 3), dtype=np.uint8))
    amount = {"posterize": round(4.5 + 3.5 * level), "solarize": 128 + 128 * level, "rotate": 180 * level}
    amount |= {"shear_x": level, "shear_y": level, "translate_x": 40 * level, "translate_y": 40 * level}
    ours = one_operation(image, operation, amount.get(operation, 0), device)
    expected = np.asarray(apply_operation(image, operation, amount.get(operation, 0))).astype(int)
    assert np.abs(ours - expected).max() <= (0 if operation in EXACT or by_kernels(device) else 1)


def test_features_and_confidences_of_photos(device):
    backbone = cots.load("mini", device=device)
    task = cots.Task(backbone, ["cup", "airplane", "dog", "cat"])
    view_settings = ViewSettings.from_preprocess(backbone.preprocess, n=16, augmix=True)
    for name in ("astronaut", "coffee"):
        image = Image.fromarray(getattr(data, name)())
        plan = draw_plan((image.height, image.width), view_settings, 1)
        pixels = render_views(image, plan, view_settings), render_views_on(image, plan, view_settings, device)
        one, other = (backbone.encode_images(p) for p in pixels)
        assert (one * other).sum(-1).min() >= 1 - 1e-5
        confidences = []
        for features in (one, other):
            adapted = cots.adapt("tpt", features, task)
            confidences.append(float(cots.calibrate(adapted.logits, adapted.zero_shot_logits, "cots").confidence))
        assert abs(confidences[0] - confidences[1]) <= 1e-4


# ------------------------------------------------------------------------------------------- inputs and the choice


def test_tensors_and_what_was_sent_to_another_process(device):
    view_settings, image = ViewSettings(n=4, size=32, augmix=True), grain(30, 40)
    plan = draw_plan((30, 40), view_settings, 0)
    expected = render_views_on(image, plan, view_settings, device)
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    assert torch.equal(render_views_on(tensor.to(device), plan, view_settings, device), expected)
    sent = pickle.loads(pickle.dumps(prepare(image, plan, view_settings)))
    assert torch.equal(Renderer(view_settings, torch.device(device))(sent), expected)


def test_inputs_that_do_not_fit(device):
    view_settings = ViewSettings(n=2, size=8)
    plan = draw_plan((4, 5), view_settings, 0)
    with pytest.raises(cots.InputError, match=r"a uint8 tensor \(3, height, width\), not torch.float32 of shape"):
        render_views_on(torch.zeros(3, 4, 5), plan, view_settings, device)
    with pytest.raises(cots.InputError, match=r"drawn for an image of \(height, width\) = \(4, 5\)"):
        render_views_on(grain(5, 4), plan, view_settings, device)
    with pytest.raises(cots.InputError, match="takes an RGB image, not mode 'L'"):
        render_views_on(Image.new("L", (5, 4)), plan, view_settings, device)


def test_which_renderer(device):
    here = torch.device(device)
    assert choose_renderer("auto", here) == ("gpu" if device == "cuda" else "pil")
    assert [choose_renderer(name, here) for name in ("pil", "gpu")] == ["pil", "gpu"]
    with pytest.raises(cots.InputError, match=r"Unknown renderer 'gpuu'\. Did you mean 'gpu'"):
        choose_renderer("gpuu", here)


def test_the_plan_is_not_touched(device):
    view_settings, image = ViewSettings(n=6, size=16, augmix=True), grain(20, 30)
    plan, again = (draw_plan((20, 30), view_settings, 2) for _ in range(2))
    render_views_on(image, plan, view_settings, device)
    assert plan.mix is not None
    assert again.mix is not None
    for one, other in zip(dataclasses.astuple(plan.mix), dataclasses.astuple(again.mix), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(plan.boxes, again.boxes)


# ------------------------------------------------------------------------------------------------ reading ahead


def test_threads_keep_the_order_and_errors_keep_their_place(device):
    def work(number: int) -> int:
        if number == 30:
            raise ValueError("thirty")
        return number * number

    results = in_threads(work, range(40), threads=4)
    assert [next(results) for _ in range(30)] == [n * n for n in range(30)]
    with pytest.raises(ValueError, match="thirty"):
        next(results)


def test_threads_do_not_run_far_ahead_of_their_consumer(device):
    taken = []
    results = in_threads(lambda number: number, (taken.append(n) or n for n in range(1000)), threads=2)
    next(results)
    results.close()
    assert len(taken) <= 6


@pytest.mark.parametrize("augmix", [False, True])
def test_several_images_at_once_are_the_same_as_one_by_one(device, augmix, monkeypatch):
    monkeypatch.setattr("cots.views._prepare.MAX_SENT_PIXELS", 90 * 90)
    view_settings = ViewSettings(n=9, size=48, augmix=augmix)
    sizes = [(70, 60), (1, 1), (100, 95), (60, 80), (30, 90)]  # the third is rendered on the host
    prepared = []
    for seed, size in enumerate(sizes):
        image = grain(*size)
        prepared.append(prepare(image, draw_plan((image.height, image.width), view_settings, seed), view_settings))
    render = Renderer(view_settings, torch.device(device))
    together = render.many(prepared)
    for one, views in zip(prepared, together, strict=True):
        assert torch.equal(render(one), views)
    assert render.many([]) == []


@pytest.mark.parametrize("renderer", ["pil", "gpu"])
def test_a_view_maker_makes_the_views_of_a_batch(device, renderer, monkeypatch):
    monkeypatch.setattr("cots.views._prepare.MAX_SENT_PIXELS", 90 * 90)
    view_settings = ViewSettings(n=4, size=32, augmix=True)
    images = [grain(40, 50), grain(100, 95), grain(60, 30)]
    maker = pickle.loads(pickle.dumps(ViewMaker(view_settings, torch.device(device), renderer)))
    assert maker.renderer == renderer
    prepared = [pickle.loads(pickle.dumps(maker.prepare(image, seed))) for seed, image in enumerate(images)]
    views = maker.render(prepared)
    assert views.device.type == (device if renderer == "gpu" else "cpu")
    for seed, (image, got) in enumerate(zip(images, views.cpu(), strict=True)):
        expected = cots.make_views(image, view_settings, seed)
        assert (got - expected).abs().max() <= 1 / 255 / min(view_settings.std)
