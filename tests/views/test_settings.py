"""ViewSettings: what is refused, and the settings of open_clip's preprocessing."""

from __future__ import annotations

import numpy as np
import open_clip
import pytest

from cots._errors import InputError
from cots.views import ViewSettings
from cots.views._plan import CLIP_MEAN, CLIP_STD


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 0}, "size must be a whole number >= 1, not 0"),
        ({"size": (224, 224, 3)}, r"size must be a number of pixels or \(height, width\), not \(224, 224, 3\)"),
        ({"size": 224.0}, r"size must be .*not 224\.0"),
        ({"size": True}, "size must be .*not True"),
        ({"mean": (0.5, 0.5)}, r"mean must have 3 finite values, not \(0\.5, 0\.5\)"),
        ({"mean": (0.5, 0.5, float("nan"))}, "mean must have 3 finite values"),
        ({"mean": 0.5}, "mean must have 3 finite values, not 0"),
        ({"std": (1, 0, 1)}, "std must have three positive values"),
        ({"interpolation": "bicubik"}, "Unknown interpolation 'bicubik'. Did you mean 'bicubic'"),
        ({"resize_mode": "short"}, "Unknown resize_mode 'short'. Did you mean 'shortest'"),
        ({"n": 0}, "n must be a whole number >= 1"),
        ({"n": 2.5}, r"n must be a whole number >= 1.*not 2\.5"),
        ({"augmix": "yes"}, "augmix must be True or False, not 'yes'"),
        ({"scale": (0, 1)}, "scale must be .*0 < low <= high <= 1"),
        ({"scale": (0.5, 0.4)}, "scale must be .*0 < low <= high <= 1"),
        ({"scale": (0.5, 1.1)}, "scale must be .*0 < low <= high <= 1"),
        ({"ratio": (2, 1)}, "ratio must be .*0 < low <= high"),
        ({"flip": 1.5}, r"flip is a probability and must be in \[0, 1\], not 1\.5"),
        ({"flip": "often"}, "flip must have 1 finite value, not"),
        ({"fill_color": 300, "resize_mode": "longest"}, "fill_color must be a whole number from 0 to 255, not 300"),
        ({"fill_color": 9}, "fill_color=9 has no effect with resize_mode='shortest'; omit fill_color"),
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
    assert ViewSettings(size=7).shape == (7, 7)


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
    with pytest.raises(InputError, match="mode 'L'; use an RGB backbone"):
        ViewSettings.from_preprocess({"mode": "L"})
