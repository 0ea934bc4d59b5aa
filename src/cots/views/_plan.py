"""Every random choice of a set of views, as plain arrays: drawn here, applied to pixels elsewhere (CPU or GPU)."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._errors import InputError
from ._settings import ViewSettings

OPERATIONS = (
    "autocontrast",
    "equalize",
    "posterize",
    "rotate",
    "solarize",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
CHAINS = 3
MAX_DEPTH = 3

# Which of a view's uniform numbers decides what. Every view owns the same count whether or not it uses them all, so
# view i is a function of (seed, i) alone, and turning AugMix on leaves the crops where they were.
_DRAWS = 64
_AREA = slice(0, 10)
_ASPECT = slice(10, 20)
_TOP, _LEFT, _FLIP, _SKIP = 20, 21, 22, 23
_WEIGHTS = slice(24, 26)
_DEPTH = slice(26, 29)
_OPERATION = slice(29, 38)
_LEVEL = slice(38, 47)
_SIGN = slice(47, 56)


@dataclass(frozen=True, kw_only=True)
class MixPlan:
    """AugMix of S strong views: view s becomes skip[s]*x + (1-skip[s]) * sum_k weights[s,k] * chain_k(x).

    Chain k applies operations[s,k,0], then [s,k,1], then [s,k,2] (indices into OPERATIONS, -1 past the chain's depth),
    each with its amount: degrees, threshold, shear factor, pixels or bits.
    """

    skip: NDArray[np.float64]
    weights: NDArray[np.float64]
    operations: NDArray[np.int64]
    amounts: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ViewPlan:
    """The strong views of one image: boxes (S,4) as (top, left, height, width), flips (S,), and AugMix or None."""

    image_size: tuple[int, int]
    boxes: NDArray[np.int64]
    flips: NDArray[np.bool_]
    mix: MixPlan | None


def draw_plan(image_size: tuple[int, int], settings: ViewSettings, seed: int) -> ViewPlan:
    """Draw the parameters of views 1..n-1 for an image of (height, width); view i depends only on (seed, i).

    >>> few, many = (draw_plan((375, 500), ViewSettings(n=n), seed=7) for n in (3, 64))
    >>> bool((few.boxes == many.boxes[:2]).all())
    True
    """
    height, width = image_size
    if height < 1 or width < 1:
        raise InputError(f"image_size must be (height, width) of at least one pixel, not {image_size}.")
    uniform = _uniform(seed, settings.n)[1:]
    return ViewPlan(
        image_size=(height, width),
        boxes=_boxes(uniform, height, width, settings),
        flips=uniform[:, _FLIP] < settings.flip,
        mix=_mix(uniform, settings.shape) if settings.augmix else None,
    )


def _uniform(seed: int, n: int) -> NDArray[np.float64]:
    try:
        key = operator.index(seed)
    except TypeError:
        key = -1
    if not 0 <= key < 2**64:
        raise InputError(
            f"seed must be a whole number from 0 to 2**64 - 1, not {seed!r}. "
            "sample_seed(run_seed, dataset, sample_id) makes one from any names and numbers."
        )
    # Philox's raw stream is the part of numpy's generators that is promised never to change; everything else is
    # derived from it here, because numpy may change how its distributions use the stream.
    raw = np.random.Philox(key=key).random_raw(n * _DRAWS)
    return (np.asarray(raw).reshape(n, _DRAWS) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _boxes(uniform: NDArray[np.float64], height: int, width: int, settings: ViewSettings) -> NDArray[np.int64]:
    low, high = settings.scale
    area = height * width * (low + (high - low) * uniform[:, _AREA])
    log_low, log_high = math.log(settings.ratio[0]), math.log(settings.ratio[1])
    aspect = np.exp(log_low + (log_high - log_low) * uniform[:, _ASPECT])
    widths = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    heights = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)

    rows = np.arange(len(uniform))
    first = fits.argmax(axis=1)
    w, h = widths[rows, first], heights[rows, first]
    top = np.minimum((uniform[:, _TOP] * (height - h + 1)).astype(np.int64), height - h)
    left = np.minimum((uniform[:, _LEFT] * (width - w + 1)).astype(np.int64), width - w)
    boxes = np.stack([top, left, h, w], axis=1)
    boxes[~fits.any(axis=1)] = _central_box(height, width, settings.ratio)
    return boxes


def _central_box(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """The box when no attempt fits: the largest central one whose aspect ratio is allowed."""
    h, w = height, width
    if width / height < ratio[0]:
        h = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w = max(1, round(height * ratio[1]))
    return (height - h) // 2, (width - w) // 2, h, w


def _mix(uniform: NDArray[np.float64], shape: tuple[int, int]) -> MixPlan:
    strong = len(uniform)
    # The gaps that two sorted uniform numbers leave in [0, 1] are Dirichlet(1, 1, 1); Beta(1, 1) is uniform.
    cuts = np.sort(uniform[:, _WEIGHTS], axis=1)
    weights = np.diff(cuts, axis=1, prepend=0.0, append=1.0)
    depth = 1 + (uniform[:, _DEPTH] * MAX_DEPTH).astype(np.int64)
    links = (strong, CHAINS, MAX_DEPTH)
    operations = (uniform[:, _OPERATION] * len(OPERATIONS)).astype(np.int64).reshape(links)
    operations[np.arange(MAX_DEPTH) >= depth[:, :, None]] = -1
    level = (0.1 + 0.9 * uniform[:, _LEVEL]).reshape(links)
    sign = np.where(uniform[:, _SIGN] < 0.5, -1.0, 1.0).reshape(links)
    return MixPlan(
        skip=uniform[:, _SKIP].copy(),
        weights=weights,
        operations=operations,
        amounts=_amounts(operations, level, sign, shape),
    )


def _amounts(
    operations: NDArray[np.int64], level: NDArray[np.float64], sign: NDArray[np.float64], shape: tuple[int, int]
) -> NDArray[np.float64]:
    """Severity 1: what each operation does at its level in [0.1, 1)."""
    height, width = shape
    amounts = np.zeros_like(level)
    by_name = {
        "posterize": np.full_like(level, 4.0),
        "rotate": sign * np.floor(3 * level),
        "solarize": 256 - np.floor(25.6 * level),
        "shear_x": sign * 0.03 * level,
        "shear_y": sign * 0.03 * level,
        # 7.47 pixels is the published constant for 224-pixel views; other sizes move by the same share of the side.
        "translate_x": sign * np.floor(7.47 * width / 224 * level),
        "translate_y": sign * np.floor(7.47 * height / 224 * level),
    }
    for name, amount in by_name.items():
        np.copyto(amounts, amount, where=operations == OPERATIONS.index(name))
    return amounts
