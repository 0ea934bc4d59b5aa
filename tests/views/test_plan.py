"""Seeds and plans: crops against torchvision, AugMix against its published distributions, numbers on record."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import scipy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.images import photo
from torchvision.transforms import RandomResizedCrop

from cots._errors import InputError
from cots.views import MixPlan, ViewSettings, draw_plan, image_seed, read_image, sample_seed
from cots.views._plan import OPERATIONS


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
        assert scipy.stats.ks_2samp(of(ours), of(theirs), method="asymp").pvalue > 1e-3, name
    for a, b in ((0, 1), (0, 2), (1, 3), (2, 3)):
        assert abs(np.corrcoef(ours[:, a], ours[:, b])[0, 1] - np.corrcoef(theirs[:, a], theirs[:, b])[0, 1]) < 0.08


def test_every_place_where_the_crop_fits_is_equally_likely():
    boxes = draw_plan((5, 4), ViewSettings(n=3001, scale=(9 / 20, 9 / 20), ratio=(1, 1)), seed=6).boxes
    assert (boxes[:, 2:] == 3).all()
    assert scipy.stats.chisquare(np.bincount(boxes[:, 0] * 2 + boxes[:, 1], minlength=6)).pvalue > 1e-3
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


def test_every_box_lies_inside_the_image():
    rng = np.random.default_rng(0)
    for seed in range(300):
        height, width = np.exp(rng.uniform(0, np.log(3000), 2)).astype(int).tolist()  # short sides too
        scale, ratio = np.sort(rng.uniform(0.01, 1, 2)), np.sort(np.exp(rng.uniform(np.log(0.1), np.log(10), 2)))
        settings_ = ViewSettings(n=16, scale=tuple(scale), ratio=tuple(ratio))
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


def test_augmix_leaves_the_crops_where_they_were():
    plain, mixed = (draw_plan((375, 500), ViewSettings(augmix=augmix), seed=3) for augmix in (False, True))
    assert np.array_equal(plain.boxes, mixed.boxes)
    assert np.array_equal(plain.flips, mixed.flips)
    assert plain.mix is None


BOXES = [[21, 163, 350, 333], [17, 43, 335, 362], [115, 242, 190, 150]]
BOXES_DIGEST = "1af561f448e9f4f8"
OPERATIONS_0 = [[6, 4, -1], [2, 2, -1], [8, -1, -1]]
SKIP = [0.7473617859975721, 0.1594832374853964, 0.0008752393287314586]


def test_the_drawn_plan_is_the_one_on_record():
    """Seeds are part of every published figure: were these numbers to move, the CHANGELOG must say so."""
    plan = draw_plan((375, 500), ViewSettings(augmix=True), seed=2**64 - 1)
    assert plan.mix is not None
    assert plan.boxes[[0, 1, 62]].tolist() == BOXES
    assert hashlib.sha256(plan.boxes.astype("<i8").tobytes() + plan.flips.tobytes()).hexdigest()[:16] == BOXES_DIGEST
    assert plan.mix.operations[0].tolist() == OPERATIONS_0
    assert plan.mix.skip[:3] == pytest.approx(SKIP, abs=1e-9)


def test_sample_seed_is_the_one_on_record_and_64_bit():
    assert sample_seed(0, "pets", "cat_1.jpg") == 13441941200196581833
    seeds = [sample_seed(0, i) for i in range(500)]
    assert len(set(seeds)) == 500
    assert max(seeds) >= 2**63
    assert 0 <= min(seeds) <= max(seeds) < 2**64


PARTS = st.lists(
    st.one_of(
        st.text("a1\xe9\udcff\U0001f415", max_size=3),
        st.binary(max_size=3),
        st.integers(-300, 300),
        st.booleans(),
        st.none(),
        st.floats(width=16),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=50, deadline=None, derandomize=True)
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
    with pytest.raises(InputError, match=r"sample_seed takes text, bytes and numbers, not list.*as_posix"):
        sample_seed([1])  # pyright: ignore[reportArgumentType]


def test_image_seed_depends_on_pixels_and_seed_alone(monkeypatch):
    image = photo(20, 30)
    assert image_seed(image, 5) == sample_seed("image", 5, 30, 20, image.tobytes())
    monkeypatch.setattr("cots.views._plan._STRIP", 70)  # two rows at a time, and one
    assert image_seed(image, 5) == sample_seed("image", 5, 30, 20, image.tobytes())
    assert image_seed(image) == image_seed(read_image(np.asarray(image))) == image_seed(image, seed=0)
    assert image_seed(image) != image_seed(image, seed=1)
    changed = image.copy()
    changed.putpixel((29, 19), (1, 2, 3))
    assert image_seed(image) != image_seed(changed)
    assert image_seed(Image.new("RGB", (6, 2))) != image_seed(Image.new("RGB", (4, 3)))


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "7", None])
def test_seeds_that_cannot_be_used(seed):
    with pytest.raises(InputError, match="seed must be a whole number from 0 to 18446744073709551615, not"):
        draw_plan((8, 8), ViewSettings(n=2, size=8), seed=seed)


def mix_of(settings: ViewSettings, seed: int) -> MixPlan:
    mix = draw_plan((300, 400), settings, seed).mix
    assert mix is not None
    return mix


MANY = mix_of(ViewSettings(n=4001, augmix=True), seed=21)


def test_skip_and_weights_are_beta_and_dirichlet():
    assert scipy.stats.kstest(MANY.skip, "uniform").pvalue > 1e-3
    assert np.allclose(MANY.weights.sum(1), 1)
    assert (MANY.weights >= 0).all()
    for k in range(3):
        assert scipy.stats.kstest(MANY.weights[:, k], scipy.stats.beta(1, 2).cdf).pvalue > 1e-3
    # Dirichlet(1,1,1): covariance -1/36 between any two weights, variance 1/18.
    covariance = np.cov(MANY.weights.T)
    assert covariance == pytest.approx((np.eye(3) * 3 - 1) / 36, abs=4e-3)


def test_depth_and_operations_are_uniform():
    used = MANY.operations >= 0
    depth = used.sum(-1)
    assert np.array_equal(used, np.arange(3) < depth[:, :, None])
    assert scipy.stats.chisquare(np.bincount(depth.ravel(), minlength=4)[1:]).pvalue > 1e-3
    assert scipy.stats.chisquare(np.bincount(MANY.operations[used], minlength=9)).pvalue > 1e-3
    assert MANY.operations.max() == 8
    for link in range(3):
        assert (
            scipy.stats.chisquare(np.bincount(MANY.operations[:, :, link][used[:, :, link]], minlength=9)).pvalue > 1e-3
        )
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
        ("translate_x", 224 / 30, True, lambda k: k),
        ("translate_y", 224 / 30, True, lambda k: k),
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
    assert scipy.stats.chisquare(counts, np.array(list(expected.values())) * len(drawn)).pvalue > 1e-3


@pytest.mark.parametrize("name", ["shear_x", "shear_y"])
def test_shear_is_uniform_with_a_random_sign(name: str):
    drawn = amounts(name)
    assert scipy.stats.kstest(abs(drawn), scipy.stats.uniform(0.003, 0.027).cdf).pvalue > 1e-3
    assert scipy.stats.binomtest(int((drawn > 0).sum()), len(drawn)).pvalue > 1e-3


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
