"""The host renderer: the weak view against open_clip, crops against torchvision, AugMix against a naive version."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image, ImageOps
from support.images import photo

from cots._errors import InputError
from cots.views import ViewSettings, _maker, draw_plan, make_views, render_views
from cots.views._maker import APPLY
from cots.views._plan import CLIP_MEAN, CLIP_STD

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
    monkeypatch.setattr(_maker, "_RESIZED_PIXELS", 0)
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


def test_strong_views_are_torchvisions_resized_crop_and_flip_to_the_last_bit():
    image, settings_ = photo(), ViewSettings(n=16)
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


# (mean, standard deviation) of views 0..7, without and with AugMix.
PLAIN = [0.2067, 0.8783], [0.1885, 0.8867], [0.174, 0.8866], [0.1919, 0.8889]
PLAIN += [0.2118, 0.8795], [0.2074, 0.8852], [0.4291, 0.8737], [0.2406, 0.8897]
MIXED = [0.2067, 0.8783], [0.1822, 0.8789], [0.1539, 0.8899], [0.1861, 0.8656]
MIXED += [0.1548, 0.9633], [0.1894, 0.8599], [0.3998, 0.8874], [0.2264, 0.8736]


def test_pixel_statistics_of_one_generated_image_are_the_ones_on_record():
    for augmix, expected in ((False, PLAIN), (True, MIXED)):
        views = make_views(photo(), ViewSettings(n=8, augmix=augmix), seed=1)
        got = torch.stack([views.mean((1, 2, 3)), views.std((1, 2, 3))], 1)
        # Loose enough for another version of PIL to round differently, tight enough for any other crop to fail.
        assert torch.allclose(got, torch.tensor(expected), atol=3e-3)


def test_plans_and_images_must_belong_together():
    settings_ = ViewSettings(n=2, size=8)
    with pytest.raises(InputError, match=r"drawn for an image of \(height, width\) = \(8, 9\), not \(9, 8\)"):
        render_views(photo(9, 8), draw_plan((8, 9), settings_, seed=0), settings_)
    with pytest.raises(InputError, match="need an RGB image, not mode 'L'; convert it with read_image"):
        render_views(Image.new("L", (9, 8)), draw_plan((8, 9), settings_, seed=0), settings_)
    with pytest.raises(InputError, match=r"each at least 1, not \(0, 9\)"):
        draw_plan((0, 9), settings_, seed=0)


def scene(height: int = 61, width: int = 80, seed: int = 0) -> Image.Image:
    """Smooth and not symmetric in any way, with a narrow range of greys so that every operation has work to do."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    planes = [
        90 + 50 * np.sin(rows / (7 + c) + rng.random()) + 45 * np.cos(columns / (11 - c) + rng.random())
        for c in range(3)
    ]
    return Image.fromarray(np.stack(planes, -1).round().clip(20, 240).astype(np.uint8))


def looked_up(image: Image.Image, table_of) -> np.ndarray:
    pixels = np.asarray(image)
    return np.stack([table_of(pixels[:, :, c])[pixels[:, :, c]] for c in range(3)], -1)


def autocontrast_table(plane: np.ndarray) -> np.ndarray:
    low, high = int(plane.min()), int(plane.max())
    return np.array([min(255, max(0, math.floor((v - low) * 255 / (high - low) + 1e-9))) for v in range(256)])


def equalize_table(plane: np.ndarray) -> np.ndarray:
    counts = np.bincount(plane.ravel(), minlength=256)
    step = (counts.sum() - counts[counts.nonzero()[0][-1]]) // 255
    before = np.concatenate([[0], counts.cumsum()[:-1]])
    return ((before + step // 2) // step).clip(0, 255)


def sampled(image: Image.Image, inverse) -> np.ndarray:
    """Bilinear sampling at inverse(x, y) of every pixel centre; black wherever that lies outside the image."""
    pixels = np.asarray(image).astype(float)
    height, width = pixels.shape[:2]
    y, x = np.mgrid[0:height, 0:width] + 0.5
    u, v = inverse(x, y)
    inside = (u >= 0) & (u < width) & (v >= 0) & (v < height)
    left, top = np.floor(u - 0.5).astype(int), np.floor(v - 0.5).astype(int)
    du, dv = (u - 0.5 - left)[..., None], (v - 0.5 - top)[..., None]

    def at(rows, columns):
        return pixels[rows.clip(0, height - 1), columns.clip(0, width - 1)]

    upper = at(top, left) * (1 - du) + at(top, left + 1) * du
    lower = at(top + 1, left) * (1 - du) + at(top + 1, left + 1) * du
    return np.where(inside[..., None], upper * (1 - dv) + lower * dv, 0)


def test_autocontrast():
    got = np.asarray(APPLY["autocontrast"](scene(), 0)).astype(int)
    assert np.abs(got - looked_up(scene(), autocontrast_table)).max() <= 1
    assert (got.min((0, 1)) == 0).all()
    # PIL truncates a floating product, so the lightest pixel may come out as 254.
    assert (got.max((0, 1)) >= 254).all()
    flat = Image.new("RGB", (5, 5), (90, 90, 90))
    assert APPLY["autocontrast"](flat, 0).getpixel((2, 2)) == (90, 90, 90)


def test_equalize():
    got = np.asarray(APPLY["equalize"](scene(), 0))
    assert np.array_equal(got, looked_up(scene(), equalize_table))
    tensor = torch.from_numpy(np.array(scene())).permute(2, 0, 1)
    assert np.array_equal(got, F.equalize(tensor).permute(1, 2, 0).numpy())


def test_posterize():
    assert np.array_equal(np.asarray(APPLY["posterize"](scene(), 4)), np.asarray(scene()) // 16 * 16)


@pytest.mark.parametrize("threshold", [231, 240, 254])
def test_solarize(threshold: int):
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3))
    values = np.arange(256)
    expected = np.where(values < threshold, values, 255 - values)
    assert np.asarray(APPLY["solarize"](ramp, threshold))[:, :, 0].ravel().tolist() == expected.tolist()


@pytest.mark.parametrize("degrees", [-2.0, -1.0, -0.0, 0.0, 1.0, 2.0])
def test_rotate(degrees: float):
    angle = math.radians(degrees)
    width, height = scene().size

    def inverse(x, y):
        x, y = x - width / 2, y - height / 2
        # Positive angles turn anticlockwise on a screen, where y points down.
        return (
            x * math.cos(angle) - y * math.sin(angle) + width / 2,
            x * math.sin(angle) + y * math.cos(angle) + height / 2,
        )

    got = np.asarray(APPLY["rotate"](scene(), degrees))
    assert np.abs(got - sampled(scene(), inverse)).max() <= 1
    assert (got[0, 0] == 0).all() == (abs(degrees) > 0)


@pytest.mark.parametrize("amount", [-0.03, -0.004, 0.011, 0.03])
def test_shears(amount: float):
    across = np.asarray(APPLY["shear_x"](scene(), amount))
    assert np.abs(across - sampled(scene(), lambda x, y: (x + amount * y, y))).max() <= 1
    down = np.asarray(APPLY["shear_y"](scene(), amount))
    assert np.abs(down - sampled(scene(), lambda x, y: (x, y + amount * x))).max() <= 1


@pytest.mark.parametrize("pixels", [-7, -1, 0, 1, 7])
def test_translations_are_the_bilinear_affine_ones(pixels: int):
    across = np.asarray(APPLY["translate_x"](scene(), pixels))
    assert np.array_equal(across, sampled(scene(), lambda x, y: (x + pixels, y)))
    down = np.asarray(APPLY["translate_y"](scene(), pixels))
    assert np.array_equal(down, sampled(scene(), lambda x, y: (x, y + pixels)))


def naive_operation(image: Image.Image, index: int, amount: float) -> Image.Image:
    affine = {
        5: (1, amount, 0, 0, 1, 0),
        6: (1, 0, 0, amount, 1, 0),
        7: (1, 0, amount, 0, 1, 0),
        8: (1, 0, 0, 0, 1, amount),
    }
    if index in affine:
        return image.transform(image.size, Image.Transform.AFFINE, affine[index], Image.Resampling.BILINEAR)
    if index == 3:
        return F.rotate(image, amount, F.InterpolationMode.BILINEAR, fill=[0, 0, 0])
    tone = {
        0: ImageOps.autocontrast,
        1: ImageOps.equalize,
        2: lambda x: x.point(lambda v: v & 0xF0),
        4: lambda x: x.point(lambda v: v if v < amount else 255 - v),
    }
    return tone[index](image)


@pytest.mark.parametrize(
    "settings",
    [
        ViewSettings(n=40, augmix=True, size=64),
        ViewSettings(n=12, augmix=True),
        ViewSettings(n=12, augmix=True, size=(48, 80), mean=(0.5,) * 3, std=(0.5,) * 3, resize_mode="squash"),
    ],
)
def test_mixture_of_normalised_tensors(settings: ViewSettings):
    image = scene(150, 200)
    plan = draw_plan((150, 200), settings, seed=8)
    assert plan.mix is not None
    views = render_views(image, plan, settings)

    def preprocess(x: Image.Image) -> torch.Tensor:
        return F.normalize(F.to_tensor(x), list(settings.mean), list(settings.std))

    for i, (top, left, height, width) in enumerate(plan.boxes.tolist()):
        x = F.resized_crop(image, top, left, height, width, list(settings.shape), F.InterpolationMode.BILINEAR)
        x = F.hflip(x) if plan.flips[i] else x
        mixture = torch.zeros(3, *settings.shape)
        for k in range(3):
            chain = x.copy()
            for index, amount in zip(plan.mix.operations[i, k], plan.mix.amounts[i, k], strict=True):
                if index != -1:
                    chain = naive_operation(chain, int(index), float(amount))
            mixture += float(plan.mix.weights[i, k]) * preprocess(chain)
        m = float(plan.mix.skip[i])
        assert torch.allclose(views[i + 1], m * preprocess(x) + (1 - m) * mixture, atol=1e-5)


def test_the_weak_view_is_never_mixed():
    plain, mixed = (make_views(scene(), ViewSettings(n=3, size=32, augmix=augmix), seed=0) for augmix in (False, True))
    assert torch.equal(plain[0], mixed[0])
    assert not torch.allclose(plain[1:], mixed[1:], atol=0.05)


def test_mixed_views_stay_within_what_an_image_can_hold():
    views = make_views(scene(), ViewSettings(n=32, size=32, augmix=True), seed=0)
    pixels = views * torch.tensor(CLIP_STD).view(3, 1, 1) + torch.tensor(CLIP_MEAN).view(3, 1, 1)
    assert pixels.min() >= -1e-5
    assert pixels.max() <= 1 + 1e-5


@pytest.mark.parametrize("augmix", [False, True])
def test_large_crops_in_strips_are_the_same(augmix, monkeypatch):
    image, settings = photo(300, 420), ViewSettings(n=40, size=(30, 44), augmix=augmix, ratio=(0.3, 3.0))
    plan = draw_plan((300, 420), settings, seed=0)
    whole = render_views(image, plan, settings)
    for pixels in (1, 3000, 20_000):
        monkeypatch.setattr(_maker, "_CROP_PIXELS", pixels)
        assert torch.equal(render_views(image, plan, settings), whole)
