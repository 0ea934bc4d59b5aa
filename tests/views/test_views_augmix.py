"""AugMix: the plan's distribution, each operation against a second formulation, the mixture against a naive one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from PIL import Image, ImageOps
from scipy import stats

from cots.views import CLIP_MEAN, CLIP_STD, MixPlan, ViewSettings, draw_plan, make_views, render_views
from cots.views._augmix import apply_operation
from cots.views._plan import OPERATIONS


def scene(height: int = 61, width: int = 80, seed: int = 0) -> Image.Image:
    """Smooth and not symmetric in any way, with a narrow range of greys so that every operation has work to do."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    planes = [
        90 + 50 * np.sin(rows / (7 + c) + rng.random()) + 45 * np.cos(columns / (11 - c) + rng.random())
        for c in range(3)
    ]
    return Image.fromarray(np.stack(planes, -1).round().clip(20, 240).astype(np.uint8))


def mix_of(settings: ViewSettings, seed: int) -> MixPlan:
    mix = draw_plan((300, 400), settings, seed).mix
    assert mix is not None
    return mix


# ------------------------------------------------------------------------------------------ the plan's distribution

MANY = mix_of(ViewSettings(n=4001, augmix=True), seed=21)


def test_skip_and_weights_are_beta_and_dirichlet():
    assert stats.kstest(MANY.skip, "uniform").pvalue > 1e-3
    assert np.allclose(MANY.weights.sum(1), 1)
    assert (MANY.weights >= 0).all()
    for k in range(3):
        assert stats.kstest(MANY.weights[:, k], stats.beta(1, 2).cdf).pvalue > 1e-3
    # Dirichlet(1,1,1): covariance -1/36 between any two weights, variance 1/18.
    covariance = np.cov(MANY.weights.T)
    assert covariance == pytest.approx((np.eye(3) * 3 - 1) / 36, abs=4e-3)


def test_depth_and_operations_are_uniform():
    used = MANY.operations >= 0
    depth = used.sum(-1)
    assert np.array_equal(used, np.arange(3) < depth[:, :, None])
    assert stats.chisquare(np.bincount(depth.ravel(), minlength=4)[1:]).pvalue > 1e-3
    assert stats.chisquare(np.bincount(MANY.operations[used], minlength=9)).pvalue > 1e-3
    assert MANY.operations.max() == 8
    for link in range(3):
        assert stats.chisquare(np.bincount(MANY.operations[:, :, link][used[:, :, link]], minlength=9)).pvalue > 1e-3
    assert abs(np.corrcoef(depth.T) - np.eye(3)).max() < 0.06


def amounts(name: str) -> np.ndarray:
    return MANY.amounts[MANY.operations == OPERATIONS.index(name)]


def whole_levels(most: float) -> dict[float, float]:
    """P(int(most * level) = k) for level ~ U(0.1, 1)."""
    edges = [max(0.1, k / most) for k in range(int(most) + 1)] + [1.0]
    return {k: (edges[k + 1] - edges[k]) / 0.9 for k in range(int(most) + 1)}


@pytest.mark.parametrize(
    ("name", "most", "signed", "amount_of"),
    [
        ("rotate", 3, True, lambda k: k),
        ("translate_x", 7.47, True, lambda k: k),
        ("translate_y", 7.47, True, lambda k: k),
        ("solarize", 25.6, False, lambda k: 256 - k),
    ],
)
def test_whole_number_amounts_have_the_published_distribution(name, most, signed, amount_of):
    drawn = amounts(name)
    levels = {k: share for k, share in whole_levels(most).items() if share > 0}
    expected: dict[float, float] = {}
    for k, share in levels.items():
        for value in {amount_of(k), -amount_of(k)} if signed else {amount_of(k)}:
            expected[value] = expected.get(value, 0) + share / (2 if signed and k else 1)
    assert set(np.unique(drawn).tolist()) <= set(expected)
    counts = [(drawn == value).sum() for value in expected]
    assert stats.chisquare(counts, np.array(list(expected.values())) * len(drawn)).pvalue > 1e-3


@pytest.mark.parametrize("name", ["shear_x", "shear_y"])
def test_shear_is_uniform_with_a_random_sign(name: str):
    drawn = amounts(name)
    assert stats.kstest(abs(drawn), stats.uniform(0.003, 0.027).cdf).pvalue > 1e-3
    assert stats.binomtest(int((drawn > 0).sum()), len(drawn)).pvalue > 1e-3


def test_posterize_keeps_four_bits_and_the_tone_operations_have_no_amount():
    assert set(amounts("posterize")) == {4.0}
    assert set(amounts("autocontrast")) == set(amounts("equalize")) == {0.0}
    assert set(MANY.amounts[MANY.operations < 0]) == {0.0}


def test_translation_is_the_same_share_of_any_side():
    wide = mix_of(ViewSettings(n=2001, size=(224, 2240), augmix=True), seed=3)
    x = wide.amounts[wide.operations == OPERATIONS.index("translate_x")]
    y = wide.amounts[wide.operations == OPERATIONS.index("translate_y")]
    assert 70 <= abs(x).max() <= 74
    assert abs(y).max() == 7


# ------------------------------------------------------------------------------------ each operation, a second way


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
    got = np.asarray(apply_operation(scene(), "autocontrast", 0)).astype(int)
    assert np.abs(got - looked_up(scene(), autocontrast_table)).max() <= 1
    assert (got.min((0, 1)) == 0).all()
    # PIL truncates a floating product, so the lightest pixel may come out as 254.
    assert (got.max((0, 1)) >= 254).all()
    flat = Image.new("RGB", (5, 5), (90, 90, 90))
    assert apply_operation(flat, "autocontrast", 0).getpixel((2, 2)) == (90, 90, 90)


def test_equalize():
    got = np.asarray(apply_operation(scene(), "equalize", 0))
    assert np.array_equal(got, looked_up(scene(), equalize_table))
    tensor = torch.from_numpy(np.array(scene())).permute(2, 0, 1)
    assert np.array_equal(got, F.equalize(tensor).permute(1, 2, 0).numpy())


def test_posterize():
    assert np.array_equal(np.asarray(apply_operation(scene(), "posterize", 4)), np.asarray(scene()) // 16 * 16)


@pytest.mark.parametrize("threshold", [231, 240, 254])
def test_solarize(threshold: int):
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3))
    values = np.arange(256)
    expected = np.where(values < threshold, values, 255 - values)
    assert np.asarray(apply_operation(ramp, "solarize", threshold))[:, :, 0].ravel().tolist() == expected.tolist()


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

    got = np.asarray(apply_operation(scene(), "rotate", degrees))
    assert np.abs(got - sampled(scene(), inverse)).max() <= 1
    assert (got[0, 0] == 0).all() == (abs(degrees) > 0)


@pytest.mark.parametrize("amount", [-0.03, -0.004, 0.011, 0.03])
def test_shears(amount: float):
    across = np.asarray(apply_operation(scene(), "shear_x", amount))
    assert np.abs(across - sampled(scene(), lambda x, y: (x + amount * y, y))).max() <= 1
    down = np.asarray(apply_operation(scene(), "shear_y", amount))
    assert np.abs(down - sampled(scene(), lambda x, y: (x, y + amount * x))).max() <= 1


@pytest.mark.parametrize("pixels", [-7, -1, 0, 1, 7])
def test_translations_are_the_bilinear_affine_ones(pixels: int):
    across = np.asarray(apply_operation(scene(), "translate_x", pixels))
    assert np.array_equal(across, sampled(scene(), lambda x, y: (x + pixels, y)))
    down = np.asarray(apply_operation(scene(), "translate_y", pixels))
    assert np.array_equal(down, sampled(scene(), lambda x, y: (x, y + pixels)))


def test_an_operation_that_does_not_exist():
    with pytest.raises(AssertionError, match="no AugMix operation 'invert'"):
        apply_operation(scene(), "invert", 0)


# ------------------------------------------------------------------------------------------------------ the mixture


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
        ViewSettings(n=64, augmix=True, size=64),
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
