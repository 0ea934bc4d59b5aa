"""AugMix on a GPU, for the crops of a whole batch at once."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..views import CHAINS, MAX_DEPTH, MixPlan
from .kernels import OnFirstUse, launched
from .transfer import Array

_triton: Any = OnFirstUse("cots.fast._triton_views")
_EXACT: dict[str, Any] = {"enable_fp_fusion": False}
# Indices into OPERATIONS.
_AUTOCONTRAST, _EQUALIZE, _POSTERIZE, _ROTATE, _SOLARIZE, _SHEAR_X, _SHEAR_Y, _TRANSLATE_X, _TRANSLATE_Y = range(9)
_IS_TONE = np.isin(range(9), (_AUTOCONTRAST, _EQUALIZE, _POSTERIZE, _SOLARIZE))


class Weights(NamedTuple):
    """The weights (S,1+CHAINS) of views and chains."""

    weights: Array


class Step(NamedTuple):
    """One depth of the chains; chain c belongs to view c // CHAINS.

    moved: chains that move, by maps (M,2,3) from a pixel's centre (x, y, 1) to where it is sampled. toned: chains whose
    levels change, first the `stretched` (autocontrast), then the `equalized`, then those with their own tables (T,256).
    moved_from, toned_from: the image each chain reads, its view at the first depth and itself afterwards.
    """

    stretched: int
    equalized: int
    moved: Array
    moved_from: Array
    maps: Array
    toned: Array
    toned_from: Array
    tables: Array


def mixing(mix: MixPlan, shape: tuple[int, int]) -> list[Weights | Step]:
    """The weights, and the chains by depth, for views of (height, width) = shape."""
    skip = mix.skip[:, None]
    found: list[Weights | Step] = []
    found.append(Weights(np.concatenate([skip, (1 - skip) * mix.weights], axis=1).astype(np.float32)))
    for depth in range(MAX_DEPTH):
        operations, amounts = mix.operations[:, :, depth].ravel(), mix.amounts[:, :, depth].ravel()
        order = np.argsort(operations, kind="stable")
        order = order[operations[order] >= 0]
        is_tone = _IS_TONE[operations[order]]
        moved, toned = order[~is_tone], order[is_tone]
        stretched, equalized = (int((operations == kind).sum()) for kind in (_AUTOCONTRAST, _EQUALIZE))
        tabled = toned[stretched + equalized :]
        step = Step(
            stretched=stretched,
            equalized=equalized,
            moved=moved,
            moved_from=moved // CHAINS if depth == 0 else moved,
            maps=_maps(operations[moved], amounts[moved], shape),
            toned=toned,
            toned_from=toned // CHAINS if depth == 0 else toned,
            tables=_tables(operations[tabled], amounts[tabled]),
        )
        found.append(step)
    return found


def mix_views(views: Tensor, mix: Sequence[Any], mean: Tensor, std: Tensor, out: Tensor) -> None:
    """Write the normalised mixtures of views (B,S,3,H,W) to out (B,1+S,3,H,W), after the weak view of each image.

    mix: what `mixing` found, on the device.
    """
    (weights,), *steps = mix
    strong, _, height, width = views.shape[1:]
    count, size = len(views) * strong, height * width
    blocks = -(-size // 1024)
    chains = views.new_empty(count * CHAINS, 3, height, width)
    most = max(step.stretched + step.equalized for step in steps)
    made_tables = views.new_empty(max(most, 1), 3, 256)
    source = views
    for depth, step in enumerate(steps):
        if len(step.moved):
            # A chain that moves again is copied first, because programs would read what other programs write.
            before = source if depth == 0 else source.index_select(0, step.moved_from)
            launched(_triton.move, blocks, len(step.moved))(
                before, chains, step.moved_from, step.moved, step.maps, height, width,
                HAS_FROM=depth == 0, BLOCK=1024, num_warps=4, **_EXACT,
            )  # fmt: skip
        made = step.stretched + step.equalized
        if made:
            launched(_triton.tone_tables, made, 3)(
                source, step.toned_from, made_tables, step.stretched, size, BLOCK=4096, num_warps=8, **_EXACT
            )
        if len(step.toned):
            launched(_triton.tone, blocks, len(step.toned), 3)(
                source, chains, step.toned_from, step.toned, made_tables,
                step.tables if len(step.tables) else made_tables, made, size, BLOCK=1024, num_warps=4,
            )  # fmt: skip
        source = chains
    launched(_triton.mix, blocks, count, 3)(
        views, chains, weights, mean, std, out, size, strong, 255.0,
        CHAINS=CHAINS, BLOCK=1024, num_warps=4, **_EXACT,
    )  # fmt: skip


def _tables(operations: NDArray[np.int64], amounts: NDArray[np.float64]) -> NDArray[np.uint8]:
    amount = amounts.astype(np.int64)
    row = np.where(operations == _POSTERIZE, amount.clip(0, 8), 9 + amount.clip(0, 256))
    return _every_table()[row]


@functools.cache
def _every_table() -> NDArray[np.uint8]:
    """Posterize to 0..8 bits, then solarize from 0..256 on."""
    levels = np.arange(256)
    posterized = levels & -(2 ** (8 - np.arange(9)[:, None]))
    solarized = np.where(levels < np.arange(257)[:, None], levels, 255 - levels)
    return np.concatenate([posterized, solarized]).astype(np.uint8)


def _maps(operations: NDArray[np.int64], amounts: NDArray[np.float64], shape: tuple[int, int]) -> NDArray[np.float64]:
    maps = np.zeros((len(operations), 2, 3))
    maps[:, 0, 0] = maps[:, 1, 1] = 1.0
    for operation, place in ((_SHEAR_X, (0, 1)), (_SHEAR_Y, (1, 0)), (_TRANSLATE_X, (0, 2)), (_TRANSLATE_Y, (1, 2))):
        some = operations == operation
        maps[some, *place] = amounts[some] if place[1] < 2 else np.trunc(amounts[some])
    rotated = operations == _ROTATE
    for degrees in set(amounts[rotated & (amounts != 0)].tolist()):
        maps[rotated & (amounts == degrees)] = _turn(degrees, shape)
    return maps


@functools.lru_cache(maxsize=1024)
def _turn(degrees: float, shape: tuple[int, int]) -> NDArray[np.float64]:
    """The map (2,3) of a rotation."""
    # PIL rounds sine and cosine to 15 digits.
    angle = -math.radians(degrees % 360.0)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    y, x = shape[0] / 2, shape[1] / 2
    return np.array([[cos, sin, cos * -x + sin * -y + x], [-sin, cos, -sin * -x + cos * -y + y]])
