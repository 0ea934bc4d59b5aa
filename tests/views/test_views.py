"""Settings, seeds, the weak view against open_clip, the strong views against torchvision, and their independence."""

from __future__ import annotations

import doctest
import hashlib
import importlib
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
import torchvision.transforms.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from scipy import stats
from torchvision.transforms import RandomResizedCrop

from cots._errors import InputError
from cots.views import (
    CLIP_MEAN,
    CLIP_STD,
    ViewSettings,
    _views,
    draw_plan,
    image_seed,
    make_views,
    render_views,
    sample_seed,
)


def photo(height: int = 375, width: int = 500, seed: int = 0) -> Image.Image:
    """A smooth generated image with some grain: every crop differs, and no file is needed."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / (9 + 3 * c)) * 60 + np.cos(columns / (13 + 5 * c)) * 60 + 128 for c in range(3)]
    grain = np.random.default_rng(seed).integers(-8, 9, (height, width, 3))
    return Image.fromarray(np.clip(np.stack(waves, -1) + grain, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("module", ["_augmix", "_pixels", "_plan", "_read", "_seeds", "_settings", "_views"])
def test_docstrings_hold(module: str):
    result = doctest.testmod(importlib.import_module(f"cots.views.{module}"))
    assert result.attempted
    assert not result.failed


# ------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 0}, r"size must be a whole number of pixels of at least 1, or \(height, width\), not 0"),
        ({"size": (224, 224, 3)}, r"size must be .*not \(224, 224, 3\)"),
        ({"size": 224.0}, r"size must be .*not 224\.0"),
        ({"size": True}, "size must be .*not True"),
        ({"mean": (0.5, 0.5)}, r"mean must hold 3 finite numbers, not \(0\.5, 0\.5\)"),
        ({"mean": (0.5, 0.5, float("nan"))}, "mean must hold 3 finite numbers"),
        ({"mean": 0.5}, "mean must hold 3 finite numbers, not 0"),
        ({"std": (1, 0, 1)}, "std must hold three numbers above 0"),
        ({"interpolation": "bicubik"}, "Unknown interpolation 'bicubik'. Did you mean 'bicubic'"),
        ({"resize_mode": "short"}, "Unknown resize_mode 'short'. Did you mean 'shortest'"),
        ({"n": 0}, "n must be a whole number of at least 1"),
        ({"n": 2.5}, r"n must be a whole number of at least 1.*not 2\.5"),
        ({"augmix": "yes"}, "augmix must be True or False, not 'yes'"),
        ({"scale": (0, 1)}, "scale must be .*0 < low <= high <= 1"),
        ({"scale": (0.5, 0.4)}, "scale must be .*0 < low <= high <= 1"),
        ({"scale": (0.5, 1.1)}, "scale must be .*0 < low <= high <= 1"),
        ({"ratio": (2, 1)}, "ratio must be .*0 < low <= high"),
        ({"flip": 1.5}, r"flip is a probability and must lie in \[0, 1\], not 1\.5"),
        ({"flip": "often"}, "flip must hold 1 finite number, not"),
        ({"fill_color": 300, "resize_mode": "longest"}, "fill_color must be a whole number from 0 to 255, not 300"),
        ({"fill_color": 9}, "fill_color=9 has no effect with resize_mode='shortest'.*Leave it out"),
    ],
)
def test_settings_that_cannot_be_used(wrong, message: str):
    with pytest.raises(InputError, match=message):
        ViewSettings(**wrong)


def test_settings_hash_alike_however_they_were_written():
    plain = ViewSettings(size=(32, 48), mean=(0.5, 0.5, 0.5))
    assert plain == ViewSettings(size=[32, 48], mean=[0.5] * 3)  # pyright: ignore[reportArgumentType]
    assert hash(plain) == hash(ViewSettings(size=(np.int64(32), 48), mean=np.full(3, 0.5)))  # pyright: ignore
    assert plain.shape == (32, 48)
    assert ViewSettings(size=[7]).shape == (7, 7)  # pyright: ignore[reportArgumentType]


def test_clip_constants_are_open_clips():
    assert CLIP_MEAN == open_clip.OPENAI_DATASET_MEAN
    assert CLIP_STD == open_clip.OPENAI_DATASET_STD


def test_from_preprocess():
    siglip = {"size": [224, 224], "mode": "RGB", "mean": 0.5, "std": [0.5] * 3, "interpolation": "random"}
    got = ViewSettings.from_preprocess(siglip | {"resize_mode": "squash", "fill_color": 7}, n=8, augmix=True)
    assert got == ViewSettings(size=(224, 224), mean=(0.5,) * 3, std=(0.5,) * 3, resize_mode="squash", n=8, augmix=True)
    assert ViewSettings.from_preprocess({"resize_mode": "longest", "fill_color": 7}).fill_color == 7
    assert ViewSettings.from_preprocess({"size": 224, "mean": None}, size=32).size == 32
    assert ViewSettings.from_preprocess({}) == ViewSettings()
    with pytest.raises(InputError, match=r"Unknown preprocess key 'sizes'\. Did you mean 'size'"):
        ViewSettings.from_preprocess({"sizes": 224})
    with pytest.raises(InputError, match=r"Unknown view setting 'augmx'\. Did you mean 'augmix'"):
        ViewSettings.from_preprocess({}, augmx=True)
    with pytest.raises(InputError, match="mode 'L'; only RGB"):
        ViewSettings.from_preprocess({"mode": "L"})


# ------------------------------------------------------------------------------------------------------ weak view

IMAGE_SIZES = [(375, 500), (500, 375), (224, 224), (224, 301), (100, 99), (3, 5), (1, 1), (1, 60), (640, 227)]
CFGS = [
    {},
    {"interpolation": "bilinear"},
    {"resize_mode": "squash", "mean": (0.5,) * 3, "std": (0.5,) * 3},
    {"resize_mode": "squash", "interpolation": "bilinear"},
    {"resize_mode": "longest", "fill_color": 128},
    {"size": 96},
    {"size": (64, 96)},
    {"size": (97, 64), "interpolation": "bilinear"},
    {"size": (64, 96), "resize_mode": "squash"},
    {"size": (64, 97), "resize_mode": "longest"},
]


@pytest.mark.parametrize("cfg", CFGS, ids=str)
def test_weak_view_is_open_clips_inference_transform_to_the_last_bit(cfg):
    transform = image_transform_v2(PreprocessCfg(**cfg), is_train=False)
    for height, width in IMAGE_SIZES:
        image = photo(height, width)
        views = make_views(image, ViewSettings.from_preprocess(cfg, n=1), seed=0)
        assert views.dtype == torch.float32
        assert torch.equal(views, transform(image)[None]), (height, width)


def test_longest_mode_of_an_extreme_image_keeps_a_pixel_where_open_clip_fails():
    settings_ = ViewSettings(resize_mode="longest", n=1)
    assert make_views(photo(1, 2000), settings_, seed=0).std() > 0
    with pytest.raises(ValueError, match="must be > 0"):
        image_transform_v2(PreprocessCfg(resize_mode="longest"), is_train=False)(photo(1, 2000))


@pytest.mark.parametrize("size", [(20, 800), (800, 20), (301, 900), (1, 500), (500, 3)])
@pytest.mark.parametrize("shape", [64, (64, 96)])
def test_the_shortcut_for_extreme_images_is_within_one_level(size, shape, monkeypatch: pytest.MonkeyPatch):
    settings_ = ViewSettings(size=shape, n=1, mean=(0, 0, 0), std=(1, 1, 1))
    exact = make_views(photo(*size), settings_, seed=0)
    monkeypatch.setattr(_views, "_RESIZED_PIXELS", 0)
    shortcut = make_views(photo(*size), settings_, seed=0)
    assert (exact - shortcut).abs().max() <= 1.001 / 255


@pytest.mark.parametrize("size", [(1, 1), (1, 2000), (2000, 1), (1, 3_000_000), (2, 2)])
@pytest.mark.parametrize("augmix", [False, True])
def test_extreme_images_give_finite_views(size, augmix: bool):
    image = Image.fromarray(np.full((*size, 3), 200, dtype=np.uint8))
    views = make_views(image, ViewSettings(n=4, augmix=augmix), seed=3)
    assert views.shape == (4, 3, 224, 224)
    assert views.isfinite().all()
    if not augmix:
        assert torch.allclose(views, views[:, :, :1, :1].expand_as(views))


def test_a_large_allowed_image_makes_no_warning(monkeypatch: pytest.MonkeyPatch):
    image = photo(300, 400)
    expected = make_views(image, ViewSettings(n=12), seed=1)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30_000)
    assert torch.equal(make_views(image, ViewSettings(n=12), seed=1), expected)


# ---------------------------------------------------------------------------------------------------- strong views


def test_strong_views_are_torchvisions_resized_crop_and_flip_to_the_last_bit():
    image, settings_ = photo(), ViewSettings(n=40)
    plan = draw_plan((375, 500), settings_, seed=5)
    views = render_views(image, plan, settings_)
    assert set(plan.flips.tolist()) == {False, True}
    for view, (top, left, height, width), flip in zip(views[1:], plan.boxes.tolist(), plan.flips, strict=True):
        crop = F.resized_crop(image, top, left, height, width, [224, 224], F.InterpolationMode.BILINEAR)
        crop = F.hflip(crop) if flip else crop
        assert torch.equal(view, F.normalize(F.to_tensor(crop), list(CLIP_MEAN), list(CLIP_STD)))


def test_nothing_bleeds_in_from_outside_the_crop():
    settings_ = ViewSettings(n=5, mean=(0, 0, 0), std=(1, 1, 1), scale=(0.1, 0.3))
    plan = draw_plan((400, 600), settings_, seed=2)
    for i, (top, left, height, width) in enumerate(plan.boxes.tolist()):
        pixels = np.zeros((400, 600, 3), dtype=np.uint8)
        pixels[top : top + height, left : left + width] = 255
        assert (render_views(Image.fromarray(pixels), plan, settings_)[i + 1] == 1).all()


def test_strong_views_of_a_size_that_is_not_square():
    settings_ = ViewSettings(n=6, size=(40, 64), resize_mode="squash")
    plan = draw_plan((375, 500), settings_, seed=5)
    view = render_views(photo(), plan, settings_)[2]
    top, left, height, width = plan.boxes[1].tolist()
    crop = F.resized_crop(photo(), top, left, height, width, [40, 64], F.InterpolationMode.BILINEAR)
    crop = F.hflip(crop) if plan.flips[1] else crop
    assert torch.equal(view, F.normalize(F.to_tensor(crop), list(CLIP_MEAN), list(CLIP_STD)))


@pytest.mark.parametrize("size", [(375, 500), (480, 160)])
@pytest.mark.parametrize(("scale", "ratio"), [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.3, 0.6), (0.5, 1.5))])
def test_crop_distribution_is_torchvisions(size, scale, ratio):
    height, width = size
    count = 3000
    ours = draw_plan(size, ViewSettings(n=count + 1, scale=scale, ratio=ratio), seed=11).boxes.astype(float)
    image = torch.empty(3, height, width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = np.array(
            [RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(count)], dtype=float
        )
    for name, of in {
        "area": lambda box: box[:, 2] * box[:, 3],
        "aspect": lambda box: box[:, 3] / box[:, 2],
        "top": lambda box: box[:, 0],
        "left": lambda box: box[:, 1],
        "place": lambda box: box[:, 0] / (height - box[:, 2] + 1),
        "centre": lambda box: box[:, 1] + box[:, 3] / 2,
    }.items():
        assert stats.ks_2samp(of(ours), of(theirs)).pvalue > 1e-3, name
    for a, b in ((0, 1), (0, 2), (1, 3), (2, 3)):
        assert abs(np.corrcoef(ours[:, a], ours[:, b])[0, 1] - np.corrcoef(theirs[:, a], theirs[:, b])[0, 1]) < 0.08


def test_every_place_where_the_crop_fits_is_equally_likely():
    boxes = draw_plan((5, 4), ViewSettings(n=3001, scale=(9 / 20, 9 / 20), ratio=(1, 1)), seed=6).boxes
    assert (boxes[:, 2:] == 3).all()
    assert stats.chisquare(np.bincount(boxes[:, 0] * 2 + boxes[:, 1], minlength=6)).pvalue > 1e-3
    assert boxes[:, 0].max() == 2
    assert boxes[:, 1].max() == 1


@pytest.mark.parametrize(
    ("size", "scale"),
    [
        ((1, 2000), (0.08, 1)),
        ((2000, 1), (0.08, 1)),
        ((20, 900), (0.5, 1)),
        ((901, 30), (0.5, 1)),
        ((1, 1), (0.01, 0.02)),
    ],
)
def test_fallback_when_no_attempt_fits_is_torchvisions(size, scale):
    expected = RandomResizedCrop.get_params(torch.empty(3, *size), list(scale), [3 / 4, 4 / 3])
    boxes = draw_plan(size, ViewSettings(n=5, scale=scale), seed=0).boxes
    assert boxes.tolist() == [list(expected)] * 4


def test_fallback_keeps_a_pixel_for_ratios_that_would_round_it_away():
    assert draw_plan((1, 9), ViewSettings(n=2, ratio=(0.1, 0.2), scale=(1, 1)), seed=0).boxes.tolist() == [[0, 4, 1, 1]]
    assert draw_plan((9, 1), ViewSettings(n=2, ratio=(5, 9), scale=(1, 1)), seed=0).boxes.tolist() == [[4, 0, 1, 1]]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    height=st.integers(1, 3000),
    width=st.integers(1, 3000),
    seed=st.integers(0, 2**64 - 1),
    low=st.floats(0.01, 1),
    high=st.floats(0.01, 1),
    narrow=st.floats(0.1, 10),
    wide=st.floats(0.1, 10),
)
def test_every_box_lies_inside_the_image(height, width, seed, low, high, narrow, wide):
    settings_ = ViewSettings(n=16, scale=(min(low, high), max(low, high)), ratio=(min(narrow, wide), max(narrow, wide)))
    top, left, h, w = draw_plan((height, width), settings_, seed).boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (h >= 1).all()
    assert (w >= 1).all()
    assert (top + h <= height).all()
    assert (left + w <= width).all()


@pytest.mark.parametrize(("flip", "low", "high"), [(0.0, 0, 0), (1.0, 2000, 2000), (0.5, 920, 1080), (0.2, 330, 470)])
def test_flip_probability(flip: float, low: int, high: int):
    assert low <= draw_plan((50, 50), ViewSettings(n=2001, flip=flip), seed=4).flips.sum() <= high


# --------------------------------------------------------------------------------------------- seeds, independence


@settings(max_examples=25, deadline=None, derandomize=True)
@given(n=st.integers(1, 64), seed=st.integers(0, 2**64 - 1), augmix=st.booleans())
def test_fewer_views_are_a_prefix_of_more(n: int, seed: int, augmix: bool):
    few = draw_plan((50, 60), ViewSettings(n=n, size=16, augmix=augmix), seed)
    many = draw_plan((50, 60), ViewSettings(n=64, size=16, augmix=augmix), seed)
    assert np.array_equal(few.boxes, many.boxes[: n - 1])
    assert np.array_equal(few.flips, many.flips[: n - 1])
    if few.mix is not None and many.mix is not None:
        for name in ("skip", "weights", "operations", "amounts"):
            assert np.array_equal(getattr(few.mix, name), getattr(many.mix, name)[: n - 1])


@pytest.mark.parametrize("augmix", [False, True])
def test_prefix_and_repeatability_of_the_pixels(augmix: bool):
    image = photo()
    many = make_views(image, ViewSettings(n=16, size=64, augmix=augmix), seed=9)
    few = make_views(image, ViewSettings(n=5, size=64, augmix=augmix), seed=9)
    assert torch.equal(few, many[:5])
    other = make_views(image, ViewSettings(n=16, size=64, augmix=augmix), seed=10)
    assert torch.equal(many[0], other[0])
    assert all(not torch.equal(many[i], other[i]) for i in range(1, 16))
    assert all(not torch.equal(many[i], many[j]) for i in range(16) for j in range(i))


def test_augmix_leaves_the_crops_where_they_were():
    plain, mixed = (draw_plan((375, 500), ViewSettings(augmix=augmix), seed=3) for augmix in (False, True))
    assert np.array_equal(plain.boxes, mixed.boxes)
    assert np.array_equal(plain.flips, mixed.flips)
    assert plain.mix is None


def test_no_global_generator_is_read_or_advanced():
    def states():
        kind, keys, *rest = np.random.get_state()  # noqa: NPY002
        return random.getstate(), (kind, bytes(np.asarray(keys)), *rest), torch.get_rng_state().tolist()

    image, settings_ = photo(60, 80), ViewSettings(n=8, size=32, augmix=True)
    before = states()
    first = make_views(image, settings_, seed=1)
    assert states() == before
    random.seed(99)
    np.random.seed(99)  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        assert torch.equal(make_views(image, settings_, seed=1), first)


DIGEST = """
import hashlib, numpy as np
from PIL import Image
from cots.views import ViewSettings, draw_plan, image_seed, make_views, sample_seed
image = Image.fromarray((np.arange(90 * 120 * 3) * 7 % 251).astype(np.uint8).reshape(90, 120, 3))
views = make_views(image, ViewSettings(n=12, size=48, augmix=True), sample_seed(1, "pets", "b.jpg"))
print(hashlib.sha256(views.numpy().tobytes()).hexdigest(), image_seed(image, 3), sample_seed(1, "pets", "b.jpg"))
"""
# Importing the root package would import every stage; this test is about one.
BARE_PACKAGE = """
import sys, types
sys.modules["cots"] = types.ModuleType("cots")
sys.modules["cots"].__path__ = [sys.argv[1]]
"""


def test_another_process_makes_the_same_views_and_seeds(capsys: pytest.CaptureFixture[str]):
    env = os.environ | {"PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BARE_PACKAGE + DIGEST, str(Path(_views.__file__).parents[1])]
    there = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    exec(DIGEST, {})
    assert there.stdout == capsys.readouterr().out


BOXES = [[21, 163, 350, 333], [17, 43, 335, 362], [115, 242, 190, 150]]
BOXES_DIGEST = "1af561f448e9f4f8"
OPERATIONS_0 = [[6, 4, -1], [2, 2, -1], [8, -1, -1]]
SKIP = [0.7473617859975721, 0.1594832374853964, 0.0008752393287314586]
# (mean, standard deviation) of views 0..7, without and with AugMix.
PLAIN = [0.2067, 0.8783], [0.1885, 0.8867], [0.174, 0.8866], [0.1919, 0.8889]
PLAIN += [0.2118, 0.8795], [0.2074, 0.8852], [0.4291, 0.8737], [0.2406, 0.8897]
MIXED = [0.2067, 0.8783], [0.1822, 0.8789], [0.1539, 0.8899], [0.1861, 0.8656]
MIXED += [0.1548, 0.9633], [0.1894, 0.8599], [0.3998, 0.8874], [0.2264, 0.8736]


def test_the_drawn_plan_is_the_one_on_record():
    """Seeds are part of every published figure: were these numbers to move, the CHANGELOG must say so."""
    plan = draw_plan((375, 500), ViewSettings(augmix=True), seed=2**64 - 1)
    assert plan.mix is not None
    assert plan.boxes[[0, 1, 62]].tolist() == BOXES
    assert hashlib.sha256(plan.boxes.astype("<i8").tobytes() + plan.flips.tobytes()).hexdigest()[:16] == BOXES_DIGEST
    assert plan.mix.operations[0].tolist() == OPERATIONS_0
    assert plan.mix.skip[:3] == pytest.approx(SKIP, abs=1e-9)


def test_pixel_statistics_of_one_generated_image_are_the_ones_on_record():
    for augmix, expected in ((False, PLAIN), (True, MIXED)):
        views = make_views(photo(), ViewSettings(n=8, augmix=augmix), seed=1)
        got = torch.stack([views.mean((1, 2, 3)), views.std((1, 2, 3))], 1)
        # Loose enough for another version of PIL to round differently, tight enough for any other crop to fail.
        assert torch.allclose(got, torch.tensor(expected), atol=3e-3)


def test_sample_seed_is_the_one_on_record_and_64_bit():
    assert sample_seed(0, "pets", "cat_1.jpg") == 13441941200196581833
    seeds = [sample_seed(0, i) for i in range(500)]
    assert len(set(seeds)) == 500
    assert max(seeds) >= 2**63
    assert 0 <= min(seeds) <= max(seeds) < 2**64


PARTS = st.lists(
    st.one_of(
        st.text(max_size=3),
        st.binary(max_size=3),
        st.integers(-300, 300),
        st.booleans(),
        st.none(),
        st.floats(width=16),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(PARTS, PARTS)
def test_sample_seed_tells_all_lists_of_parts_apart(one, other):
    def exact(parts):
        return [(type(part), repr(part)) for part in parts]

    assert (sample_seed(*one) == sample_seed(*other)) == (exact(one) == exact(other))


def test_sample_seed_on_neighbouring_spellings():
    spellings = [("a", "bc"), ("ab", "c"), ("abc",), ("abc", ""), ("", "abc"), ("1",), (1,), (b"1",), (1.0,), (True,)]
    assert len({sample_seed(*parts) for parts in spellings}) == len(spellings)
    assert sample_seed(np.int64(5), "x") == sample_seed(5, "x")
    assert sample_seed("\udcff.jpg") != sample_seed("\udcfe.jpg")
    with pytest.raises(InputError, match="at least one part"):
        sample_seed()
    with pytest.raises(InputError, match=r"cannot use a list: give text, bytes or numbers .*as_posix"):
        sample_seed([1])  # pyright: ignore[reportArgumentType]


def test_image_seed_depends_on_pixels_and_seed_alone():
    image = photo(20, 30)
    assert image_seed(image) == image_seed(np.asarray(image)) == image_seed(image, seed=0)
    assert image_seed(image) != image_seed(image, seed=1)
    changed = image.copy()
    changed.putpixel((29, 19), (1, 2, 3))
    assert image_seed(image) != image_seed(changed)
    assert image_seed(np.zeros((2, 6), np.uint8)) != image_seed(np.zeros((3, 4), np.uint8))


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "7", None])
def test_seeds_that_cannot_be_used(seed):
    with pytest.raises(InputError, match=r"seed must be a whole number from 0 to 2\*\*64 - 1, not .*sample_seed"):
        make_views(photo(8, 8), ViewSettings(n=2, size=8), seed=seed)


def test_plans_and_images_must_belong_together():
    settings_ = ViewSettings(n=2, size=8)
    with pytest.raises(
        InputError, match=r"drawn for an image of \(height, width\) = \(8, 9\), but this one is \(9, 8\)"
    ):
        render_views(photo(9, 8), draw_plan((8, 9), settings_, seed=0), settings_)
    with pytest.raises(InputError, match="takes an RGB image, not mode 'L'; read_image makes one"):
        render_views(Image.new("L", (9, 8)), draw_plan((8, 9), settings_, seed=0), settings_)
    with pytest.raises(InputError, match=r"at least one pixel, not \(0, 9\)"):
        draw_plan((0, 9), settings_, seed=0)


def test_make_views_takes_what_read_image_takes(tmp_path):
    photo(40, 50).save(tmp_path / "x.png")
    settings_ = ViewSettings(n=3, size=16)
    expected = make_views(photo(40, 50), settings_, seed=0)
    for source in (tmp_path / "x.png", (tmp_path / "x.png").read_bytes(), np.asarray(photo(40, 50))):
        assert torch.equal(make_views(source, settings_, seed=0), expected)
    with pytest.raises(InputError, match=r"nothing\.png' does not exist"):
        make_views(tmp_path / "nothing.png", settings_, seed=0)
