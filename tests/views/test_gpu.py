"""The GPU renderer against PIL, pixel by pixel: on a GPU if there is one, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import collections
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
from torch.utils._python_dispatch import TorchDispatchMode

import cots
from cots.accelerate import using
from cots.bench._features import ViewSource
from cots.fast import Fast, weak
from cots.fast import augmix as augmix_module
from cots.fast import views as _gpu
from cots.views import MixPlan, ViewMaker, ViewPlan, ViewSettings, _maker, make_views, render_views, weak_view
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
        interpret(monkeypatch, augmix_module)
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
    monkeypatch.setattr(weak, "pil_chooses_order", lambda: chooses)
    image, settings = grain(90, 40), ViewSettings(n=2, size=(30, 36), mean=(0, 0, 0), std=(1, 1, 1))
    step = (40, 30) if chooses else (36, 90)
    bilinear = Image.Resampling.BILINEAR
    resized = np.asarray(image.resize(step, bilinear).resize((36, 30), bilinear))
    views = with_plan(image, whole_image(image, 1), settings)[1] * 255
    assert np.array_equal(views.round().permute(1, 2, 0).numpy(), resized)


@pytest.mark.parametrize("augmix", [False, True])
@pytest.mark.parametrize("middle_bytes", [2**28, 100 * 3 * 64])
def test_photos_of_different_sizes_in_one_batch(augmix, middle_bytes, monkeypatch):
    """Crops of the tall photo are resized down first, and the smaller parts of the batch end within photos."""
    monkeypatch.setattr(_gpu, "_MIDDLE_BYTES", middle_bytes)
    settings = ViewSettings(n=4, size=(36, 20), augmix=augmix, ratio=(0.2, 5.0))
    images = [grain(*size, seed=i) for i, size in enumerate([(60, 75), (130, 31), (9, 80), (40, 40)])]
    assert torch.equal(render(images, settings), expected(images, settings))


def test_crops_in_parts_are_the_same(monkeypatch):
    settings, images = ViewSettings(n=4, size=24), [grain(70, 60)]
    monkeypatch.setattr(_gpu, "_MIDDLE_BYTES", 2 * 3 * 70 * 32)  # two crops at a time
    assert torch.equal(render(images, settings), expected(images, settings))


WEAK_SIZES = [(1, 1), (75, 50), (50, 75), (14, 11), (90, 7), (6, 60), (32, 20)]
WEAK_OPTIONS = [
    {"size": 32},
    {"size": 32, "interpolation": "bilinear"},
    {"size": (20, 32)},
    {"size": (32, 20), "resize_mode": "squash"},
    {"size": (20, 32), "resize_mode": "squash", "interpolation": "bilinear"},
    {"size": (32, 20), "resize_mode": "longest", "fill_color": 255},
    {"size": 21, "resize_mode": "longest", "fill_color": 130, "interpolation": "bilinear"},
]


def extremes(height: int, width: int, seed: int) -> Image.Image:
    """Grain of the levels 0 and 255, where the bicubic filter overshoots most."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 2, (height, width, 3), dtype=np.uint8) * 255)


@pytest.mark.parametrize("options", WEAK_OPTIONS, ids=str)
def test_weak_views(options):
    settings = ViewSettings(n=1, **options)
    images = [extremes(*size, seed=i) for i, size in enumerate(WEAK_SIZES)]
    assert torch.equal(render(images, settings), expected(images, settings))


def test_the_host_renders_weak_views_of_extreme_images(monkeypatch):
    """Only the first image has both a small table and a small resized image."""
    monkeypatch.setattr(weak, "_MAX_TAPS", 30)
    monkeypatch.setattr(_maker, "_RESIZED_PIXELS", 16 * 400)
    images = [grain(30, 50), grain(140, 150), grain(2, 120)]
    settings = ViewSettings(n=2, size=16)
    found = [weak.weak_tables(image, settings)[1] is not None for image in images]
    assert found == [False, True, True]
    assert torch.equal(render(images, settings), expected(images, settings))


def through(table: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """One pass of the resize along the first axis, as the kernel computes it."""
    total = np.broadcast_to(table[1][:, None, None], (len(table[1]), *pixels.shape[1:])).copy()
    for tap, weights in enumerate(table[2:]):
        total += pixels[table[0] + tap] * weights[:, None, None]
    return np.clip(total >> 22, 0, 255)


def test_the_tables_of_weak_views_equal_pil():
    rng = np.random.default_rng(0)
    orders = []
    for case in range(400):
        options = WEAK_OPTIONS[case % len(WEAK_OPTIONS)] | {"size": tuple(rng.integers(1, 50, 2).tolist())}
        if case % 2:
            options["size"] = options["size"][0]
        height, width = np.exp(rng.uniform(0, 6.5, 2)).astype(int).tolist()
        settings, image = ViewSettings(n=1, **options), extremes(height, width, seed=case)
        tables, rendered = weak.weak_tables(image, settings)
        pixels = np.asarray(image if rendered is None else rendered).astype(np.int32)
        passes = [(tables.across, (1, 0, 2)), (tables.down, (0, 1, 2))]
        for table, axes in reversed(passes) if tables.down_first else passes:
            pixels = through(table, pixels.transpose(axes)).transpose(axes)
        assert np.array_equal(pixels, np.asarray(weak_view(image, settings))), (height, width, settings)
        orders.append(tables.down_first)
    assert any(orders) == (weak.pil_chooses_order() or weak._pil_knows_tall_images())


class _Calls(TorchDispatchMode):
    """Counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("augmix", [False, True])
def test_more_photos_take_more_copies_but_no_more_calls(augmix, monkeypatch):
    launches: list[str] = []

    def launched(kernel, *grid):
        return lambda *arguments, **options: launches.append(kernel.__name__)

    settings = ViewSettings(n=9, size=24, augmix=augmix)
    for module in (_gpu, augmix_module):
        monkeypatch.setattr(module, "launched", launched)
    torch.empty(0, device=DEVICE)  # pixels are pinned only if CUDA is initialised
    maker = ViewMaker(settings, DEVICE, "gpu")
    prepared = [maker.prepare(grain(30, 40), seed) for seed in range(3)]
    maker.render(prepared)  # copies the constants
    calls, launched_by = [], []
    for some in (prepared[:1], prepared):
        launches.clear()
        with _Calls() as mode:
            maker.render(some)
        calls.append(mode.counts)
        launched_by.append(list(launches))
    assert launched_by[0] == launched_by[1]
    assert len(launches) == (13 if augmix else 3)
    assert calls[1] - calls[0] == {"aten.copy_.default": 2}
    assert not calls[0] - calls[1]


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


def test_pixels_can_be_sent_out_of_band():
    """The receiver may only read the memory in which they arrive."""
    settings, image = ViewSettings(n=2, size=24, augmix=True), grain(40, 50)
    maker = ViewMaker(settings, DEVICE, "gpu")
    buffers: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(maker.prepare(image, 0), protocol=5, buffer_callback=buffers.append)
    assert max(buffer.raw().nbytes for buffer in buffers) >= 40 * 50 * 3
    assert len(rest) < 4000
    prepared = pickle.loads(rest, buffers=[bytes(buffer.raw()) for buffer in buffers])
    assert torch.equal(maker.render([prepared]).cpu(), expected([image], settings))


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
