"""The GPU renderer against PIL, pixel by pixel: on a GPU if there is one, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from support.images import grain
from support.kernels import interpret
from support.models import CLASSES, tiny
from support.runs import photos

import cots
from cots.accelerate import using
from cots.bench._features import ViewSource
from cots.fast import Fast
from cots.fast import views as _gpu
from cots.views import MixPlan, ViewMaker, ViewPlan, ViewSettings, make_views, render_views
from cots.views._plan import OPERATIONS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

SIZES = [(1, 1), (31, 47), (90, 30)]
AMOUNTS = {
    "autocontrast": [0],
    "equalize": [0],
    "posterize": [1, 4],
    "solarize": [0, 231, 256],
    "rotate": [-2, -0.0, 1, 45],
    "shear_x": [-0.03, 0.01117],
    "shear_y": [-0.00271, 0.03],
    "translate_x": [-7, 3, 200],
    "translate_y": [-7, 0, 200],
}


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """On the CPU the interpreter runs the kernels, which the door otherwise does not offer."""

    class Interpreted(Fast):
        def renderer(self, settings, device):
            return _gpu.GpuRenderer(settings, device)

    if DEVICE.type == "cuda":
        yield
    else:
        interpret(monkeypatch, _gpu)
        with using(Interpreted()):
            yield


def render(images: list[Image.Image], settings: ViewSettings) -> torch.Tensor:
    maker = ViewMaker(settings, DEVICE, "gpu")
    views = maker.render([maker.prepare(image, seed) for seed, image in enumerate(images)])
    assert views.device.type == DEVICE.type
    return views.cpu()


def expected(images: list[Image.Image], settings: ViewSettings) -> torch.Tensor:
    return torch.stack([make_views(image, settings, seed) for seed, image in enumerate(images)])


def with_plan(image: Image.Image, plan: ViewPlan, settings: ViewSettings) -> torch.Tensor:
    renderer = _gpu.GpuRenderer(settings, DEVICE)
    return renderer.render([renderer.prepare(image, plan)])[0].cpu()


def whole_image(image: Image.Image, strong: int, mix: MixPlan | None = None) -> ViewPlan:
    """The whole image as every strong view."""
    boxes = np.array([[0, 0, image.height, image.width]] * strong)
    return ViewPlan(image_size=(image.height, image.width), boxes=boxes, flips=np.zeros(strong, np.bool_), mix=mix)


def three_operations_each(operations: list[str], amounts: list[float]) -> MixPlan:
    """Views that mix three operations each, every one a chain of its own; the first ones fill up the last view."""
    views = -(-len(operations) // 3)
    chains, sizes = np.full((views, 3, 3), -1), np.zeros((views, 3, 3))
    chains[:, :, 0] = np.resize([OPERATIONS.index(operation) for operation in operations], (views, 3))
    sizes[:, :, 0] = np.resize(amounts, (views, 3))
    weights = np.tile([0.2, 0.5, 0.3], (views, 1))
    return MixPlan(skip=np.zeros(views), weights=weights, operations=chains, amounts=sizes)


def plain(image: Image.Image, n: int) -> ViewSettings:
    return ViewSettings(n=n, size=(image.height, image.width), augmix=True, mean=(0, 0, 0), std=(1, 1, 1))


@pytest.mark.parametrize(
    "options",
    [
        {"size": 24},
        {"size": (12, 20), "resize_mode": "longest", "fill_color": 9, "flip": 1.0},
        {"size": (40, 28), "augmix": True},
        {"size": 24, "n": 1, "augmix": True},
    ],
    ids=str,
)
def test_views_equal_pil_to_the_last_bit(options):
    """40 x 28 pixels take several programs per image, so a race between them would show."""
    settings = ViewSettings(**{"n": 2, **options})
    images = [grain(*size, seed=i) for i, size in enumerate(SIZES)]
    assert torch.equal(render(images, settings), expected(images, settings))


@pytest.mark.parametrize("chooses", [True, False])
def test_both_orders_of_the_two_passes(chooses, monkeypatch):
    """PIL 13 resizes tall crops down first, earlier versions never did; both are composed here of one-way steps."""
    monkeypatch.setattr(_gpu, "_pil_chooses_order", lambda: chooses)
    image, settings = grain(90, 40), ViewSettings(n=2, size=(30, 36), mean=(0, 0, 0), std=(1, 1, 1))
    step = (40, 30) if chooses else (36, 90)
    bilinear = Image.Resampling.BILINEAR
    resized = np.asarray(image.resize(step, bilinear).resize((36, 30), bilinear))
    views = with_plan(image, whole_image(image, 1), settings)[1] * 255
    assert np.array_equal(views.round().permute(1, 2, 0).numpy(), resized)


def test_crops_in_parts_are_the_same(monkeypatch):
    settings, images = ViewSettings(n=4, size=24), [grain(70, 60)]
    monkeypatch.setattr(_gpu, "_MIDDLE_BYTES", 2 * 3 * 70 * 32)  # two crops at a time
    assert torch.equal(render(images, settings), expected(images, settings))


@pytest.mark.parametrize(
    ("image", "names"),
    [(grain(21, 30), list(AMOUNTS)), (Image.new("RGB", (5, 4), (90, 0, 255)), ["autocontrast", "equalize"])],
    ids=["grain", "flat"],
)
def test_every_operation(image, names):
    operations = [name for name in names for _ in AMOUNTS[name]]
    mix = three_operations_each(operations, [amount for name in names for amount in AMOUNTS[name]])
    plan, settings = whole_image(image, len(mix.skip), mix), plain(image, 1 + len(mix.skip))
    assert torch.equal(with_plan(image, plan, settings), render_views(image, plan, settings))


def test_every_operation_at_any_level():
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(30, 190, (17, 23, 3), dtype=np.uint8))
    scales = {"posterize": (1, 8), "solarize": (0, 256), "rotate": (-180, 180)}
    scales |= {"shear_x": (-1, 1), "shear_y": (-1, 1), "translate_x": (-40, 40), "translate_y": (-40, 40)}
    mix = three_operations_each(list(scales), [rng.uniform(*scale) for scale in scales.values()])
    plan, settings = whole_image(image, len(mix.skip), mix), plain(image, 1 + len(mix.skip))
    assert torch.equal(with_plan(image, plan, settings), render_views(image, plan, settings))


def test_a_batch_with_a_huge_photo_prepared_in_another_process(monkeypatch):
    monkeypatch.setattr(_gpu, "_MAX_SENT_PIXELS", 60 * 60)
    settings = ViewSettings(n=2, size=24, augmix=True)
    images = [grain(40, 50), grain(70, 65), grain(30, 20)]
    maker = ViewMaker(settings, DEVICE, "gpu")
    prepared = [maker.prepare(image, seed) for seed, image in enumerate(images)]
    assert [isinstance(item, torch.Tensor) for item in prepared] == [False, True, False]
    views = maker.render(pickle.loads(pickle.dumps(prepared)))
    assert torch.equal(views.cpu(), expected(images, settings))


def test_a_classifier_predicts_the_same_with_either_renderer():
    images = [grain(30, 40, seed=1), b"no image", grain(50, 35, seed=2)]
    backbone = dataclasses.replace(tiny("vit"), model=copy.deepcopy(tiny("vit").model).to(DEVICE))
    found = []
    for renderer in ("pil", "gpu"):
        classifier = cots.Classifier(backbone, CLASSES, "tpt+cots", views=2, batch_size=2, renderer=renderer)
        assert classifier.renderer == renderer
        found.append(classifier(images))
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one.probabilities, other.probabilities, equal_nan=True)
        assert (one.label, one.views, one.error) == (other.label, other.views, other.error)
    assert [prediction.error is None for prediction in found[1]] == [True, False, True]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_sees_the_same_views_with_either_renderer(workers, tmp_path):
    data = photos(tmp_path, each=1, broken=("car/0.png",))
    found = []
    for renderer in ("pil", "gpu"):
        source = ViewSource(
            dataset=data, indices=range(len(data)), seed=0, settings=ViewSettings(n=2, size=16), device=DEVICE,
            renderer=renderer, workers=workers,
        )  # fmt: skip
        found.append(list(source.stream(range(len(data)), at_once=2)))
    for one, other in zip(*found, strict=True):
        assert one.error == other.error
        assert one.error or torch.equal(one.values, other.values.cpu())
    assert sum(bool(views.error) for views in found[1]) == 1
