"""ViewSettings: size and normalisation of the views, and the strength of the strong ones."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from .._checks import no_effect, one_of, whole_number
from .._errors import InputError

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

_PREPROCESS_KEYS = ("fill_color", "interpolation", "mean", "mode", "resize_mode", "size", "std")


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """How the n views of an image are made: the backbone's preprocessing for view 0, random crops for the others.

    `size` is the side in pixels, or (height, width). `interpolation`, `resize_mode` and `fill_color` (the padding of
    resize_mode="longest") affect only the weak view; `scale`, `ratio`, `flip` and `augmix` only the strong views.

    >>> ViewSettings(n=8).shape
    (224, 224)
    >>> ViewSettings(n=0)
    Traceback (most recent call last):
    cots._errors.InputError: n must be a whole number >= 1, not 0.
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
        # Sequences become tuples, so that settings from JSON and from code hash and compare the same.
        put = object.__setattr__
        put(self, "size", _size(self.size))
        for name, count in (("mean", 3), ("std", 3), ("scale", 2), ("ratio", 2)):
            put(self, name, _numbers(name, getattr(self, name), count))
        put(self, "flip", _numbers("flip", (self.flip,), 1)[0])
        put(self, "n", whole_number("n", self.n, 1))
        put(self, "fill_color", whole_number("fill_color", self.fill_color, 0, 255))
        if not isinstance(self.augmix, bool):
            raise InputError(f"augmix must be True or False, not {self.augmix!r}.")
        one_of("interpolation", self.interpolation, ("bicubic", "bilinear"))
        one_of("resize_mode", self.resize_mode, ("longest", "shortest", "squash"))
        if self.resize_mode != "longest":
            no_effect("fill_color", self.fill_color, 0, f"resize_mode={self.resize_mode!r}")
        if min(self.std) <= 0:
            raise InputError(f"std must have three positive values, not {self.std}.")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"scale must be (low, high) with 0 < low <= high <= 1 (area), not {self.scale}.")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise InputError(f"ratio must be (low, high) with 0 < low <= high (width / height), not {self.ratio}.")
        if not 0 <= self.flip <= 1:
            raise InputError(f"flip is a probability and must be in [0, 1], not {self.flip}.")

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width) of every view."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @classmethod
    def from_preprocess(cls, cfg: Mapping[str, Any], **changes: Any) -> Self:
        """Settings whose weak view follows open_clip's `preprocess_cfg`; `changes` override it."""
        for key in cfg:
            one_of("preprocess key", key, _PREPROCESS_KEYS)
        for key in changes:
            one_of("view setting", key, (field.name for field in fields(cls)))
        given = {key: value for key, value in cfg.items() if value is not None}
        if (mode := given.pop("mode", "RGB")) != "RGB":
            raise InputError(f"preprocess_cfg has mode {mode!r}; use an RGB backbone.")
        for key in ("mean", "std"):
            if isinstance(given.get(key), (int, float)):
                given[key] = (given[key],) * 3
        # "random" is for training; open_clip's inference transform then uses bicubic.
        if given.get("interpolation") == "random":
            given["interpolation"] = "bicubic"
        given |= changes
        if given.get("resize_mode") != "longest" and "fill_color" not in changes:
            given.pop("fill_color", None)
        return cls(**given)


def _size(value: Any) -> int | tuple[int, int]:
    if not isinstance(value, (tuple, list)):
        return whole_number("size", value, 1)
    if len(value) != 2:
        raise InputError(f"size must be a number of pixels or (height, width), not {value!r}.")
    return whole_number("size", value[0], 1), whole_number("size", value[1], 1)


def _numbers(name: str, values: Any, count: int) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise InputError(f"{name} must have {count} finite value{'s' if count > 1 else ''}, not {values!r}.")
    return numbers
