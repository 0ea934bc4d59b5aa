"""What the views look like: size, normalisation, and how strong the strong ones are."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .._errors import InputError, unknown_name

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

_INTERPOLATIONS = ("bicubic", "bilinear")
_RESIZE_MODES = ("longest", "shortest", "squash")
_PREPROCESS_KEYS = ("fill_color", "interpolation", "mean", "mode", "resize_mode", "size", "std")


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """How the views of one image are made: the backbone's own preprocessing for view 0, random crops for the rest.

    `size` is the side in pixels, or (height, width). `interpolation`, `resize_mode` and `fill_color` (the padding of
    resize_mode="longest") shape only the weak view; `scale`, `ratio`, `flip` and `augmix` only the strong ones.

    >>> ViewSettings(n=8).shape
    (224, 224)
    >>> ViewSettings(n=0)
    Traceback (most recent call last):
    cots._errors.InputError: n must be a whole number of at least 1 (view 0 is always made), not 0.
    """

    size: int | tuple[int, int] = 224
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"
    fill_color: int = 0
    n: int = 64
    augmix: bool = False
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        # Sequences become tuples so that settings hash and compare the same whether they came from JSON or from code.
        put = object.__setattr__
        put(self, "size", _size(self.size))
        put(self, "mean", _numbers("mean", self.mean, 3))
        put(self, "std", _numbers("std", self.std, 3))
        put(self, "scale", _numbers("scale", self.scale, 2))
        put(self, "ratio", _numbers("ratio", self.ratio, 2))
        put(self, "flip", _numbers("flip", (self.flip,), 1)[0])
        put(self, "n", _whole(self.n, 1, "n must be a whole number of at least 1 (view 0 is always made)"))
        put(self, "fill_color", _whole(self.fill_color, 0, "fill_color must be a whole number from 0 to 255"))
        if self.fill_color > 255:
            raise InputError(f"fill_color must be a whole number from 0 to 255, not {self.fill_color}.")
        if not isinstance(self.augmix, bool):
            raise InputError(f"augmix must be True or False, not {self.augmix!r}.")
        if self.interpolation not in _INTERPOLATIONS:
            raise unknown_name("interpolation", self.interpolation, _INTERPOLATIONS)
        if self.resize_mode not in _RESIZE_MODES:
            raise unknown_name("resize_mode", self.resize_mode, _RESIZE_MODES)
        if self.fill_color and self.resize_mode != "longest":
            raise InputError(
                f"fill_color={self.fill_color} has no effect with resize_mode={self.resize_mode!r}: "
                "only resize_mode='longest' pads. Leave it out."
            )
        if min(self.std) <= 0:
            raise InputError(f"std must hold three numbers above 0, not {self.std}.")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(
                f"scale must be (low, high) with 0 < low <= high <= 1 (share of the area), not {self.scale}."
            )
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise InputError(f"ratio must be (low, high) with 0 < low <= high (width / height), not {self.ratio}.")
        if not 0 <= self.flip <= 1:
            raise InputError(f"flip is a probability and must lie in [0, 1], not {self.flip}.")

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width) of every view."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @classmethod
    def from_preprocess(cls, cfg: Mapping[str, Any], **changes: Any) -> ViewSettings:
        """The settings whose weak view is what open_clip makes for its `preprocess_cfg`; `changes` win over it.

        >>> cfg = {"size": 224, "mean": [0.5] * 3, "std": [0.5] * 3, "resize_mode": "squash", "mode": "RGB"}
        >>> ViewSettings.from_preprocess(cfg, n=8).resize_mode
        'squash'
        """
        for key in cfg:
            if key not in _PREPROCESS_KEYS:
                raise unknown_name("preprocess key", key, _PREPROCESS_KEYS)
        for key in changes:
            if key not in (known := [field.name for field in fields(cls)]):
                raise unknown_name("view setting", key, known)
        given = {key: value for key, value in cfg.items() if value is not None}
        if (mode := given.pop("mode", "RGB")) != "RGB":
            raise InputError(f"preprocess_cfg asks for mode {mode!r}; only RGB backbones can be used.")
        for key in ("mean", "std"):
            if isinstance(given.get(key), (int, float)):
                given[key] = (given[key],) * 3
        # open_clip's "random" concerns training only; its inference transform then takes bicubic.
        if given.get("interpolation") == "random":
            given["interpolation"] = "bicubic"
        given |= changes
        if given.get("resize_mode") != "longest" and "fill_color" not in changes:
            given.pop("fill_color", None)
        return cls(**given)


def _whole(value: object, least: int, rule: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise InputError(f"{rule}, not {value!r}.") from None
    if number < least:
        raise InputError(f"{rule}, not {value!r}.")
    return number


def _size(value: object) -> int | tuple[int, int]:
    rule = "size must be a whole number of pixels of at least 1, or (height, width)"
    if not isinstance(value, (tuple, list)):
        return _whole(value, 1, rule)
    if len(value) == 1:
        return _whole(value[0], 1, rule)
    if len(value) != 2:
        raise InputError(f"{rule}, not {value!r}.")
    return _whole(value[0], 1, rule), _whole(value[1], 1, rule)


def _numbers(name: str, values: Any, count: int) -> tuple[float, ...]:
    rule = f"{name} must hold {count} finite number{'s' if count > 1 else ''}"
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise InputError(f"{rule}, not {values!r}.") from None
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise InputError(f"{rule}, not {values!r}.")
    return numbers
