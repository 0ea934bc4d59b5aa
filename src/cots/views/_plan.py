"""How views are made: their settings, seeds from sample ids, and plans, which have every random choice as arrays."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .._errors import InputError, check_one_of, check_unused, whole_number

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_PREPROCESS_KEYS = ("fill_color", "interpolation", "mean", "mode", "resize_mode", "size", "std")

OPERATIONS = (
    "autocontrast", "equalize", "posterize", "rotate", "solarize", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
CHAINS, MAX_DEPTH = 3, 3

_STRIP = 2**20  # pixels hashed at a time

# The use of each uniform number of a view. Every view draws the same number of them, used or not, so view i depends
# only on (seed, i), and AugMix does not change the crops.
_DRAWS = 64
_AREA, _ASPECT = slice(0, 10), slice(10, 20)
_TOP, _LEFT, _FLIP, _SKIP = 20, 21, 22, 23
_WEIGHTS, _DEPTH = slice(24, 26), slice(26, 29)
_OPERATION, _LEVEL, _SIGN = slice(29, 38), slice(38, 47), slice(47, 56)


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """How the n views of an image are made: the backbone's preprocessing for view 0, random crops for the others.

    - size: the side in pixels, or (height, width)
    - mean, std: of the normalisation, per channel
    - interpolation, resize_mode: of the weak view only; fill_color: its padding with resize_mode="longest"
    - n: number of views
    - augmix, scale, ratio, flip: of the strong views only; areas and width / height of crops, probability of a flip

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
        check_one_of("interpolation", self.interpolation, ("bicubic", "bilinear"))
        check_one_of("resize_mode", self.resize_mode, ("longest", "shortest", "squash"))
        if self.resize_mode != "longest":
            check_unused("fill_color", self.fill_color, 0, f"resize_mode={self.resize_mode!r}")
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
            check_one_of("preprocess key", key, _PREPROCESS_KEYS)
        for key in changes:
            check_one_of("view setting", key, (field.name for field in fields(cls)))
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


@dataclass(frozen=True, kw_only=True)
class MixPlan:
    """AugMix of S strong views: view s becomes skip[s]*x + (1-skip[s]) * sum_k weights[s,k] * chain_k(x).

    Chain k applies operations[s,k,0], [s,k,1] and [s,k,2] (indices into OPERATIONS, -1 past the chain's depth), each
    with its amount: degrees, threshold, shear factor, pixels or bits.
    """

    skip: NDArray[np.float64]
    weights: NDArray[np.float64]
    operations: NDArray[np.int64]
    amounts: NDArray[np.float64]

    @classmethod
    def join(cls, plans: "Sequence[MixPlan]") -> "MixPlan":
        """One plan for the views of several images, in order."""
        return cls(**{key.name: np.concatenate([getattr(plan, key.name) for plan in plans]) for key in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class ViewPlan:
    """The S strong views of one image: boxes (S,4) as (top, left, height, width), flips (S,) and AugMix, if any."""

    image_size: tuple[int, int]
    boxes: NDArray[np.int64]
    flips: NDArray[np.bool_]
    mix: "MixPlan | None"

    def check(self, image: Image.Image) -> None:
        """Refuse an image that is not RGB, or of another size than the one the plan was drawn for."""
        if image.mode != "RGB":
            raise InputError(f"Views need an RGB image, not mode {image.mode!r}; convert it with read_image.")
        if self.image_size != (image.height, image.width):
            raise InputError(
                f"The plan was drawn for an image of (height, width) = {self.image_size}, not "
                f"{(image.height, image.width)}; draw a plan for this image."
            )


def sample_seed(*parts: str | bytes | int | float | bool | None) -> int:
    """A stable 64-bit seed from the parts that identify a sample, such as (run seed, dataset, sample id).

    Parts are hashed with their type and length, so different lists of parts never collide by concatenation.

    >>> sample_seed(0, "pets", "cat_1.jpg")
    13441941200196581833
    >>> sample_seed("a", "bc") == sample_seed("ab", "c")
    False
    """
    if not parts:
        raise InputError("sample_seed needs at least one part, for example sample_seed(run_seed, dataset, sample_id).")
    return int.from_bytes(_digest(parts).digest(), "little")


def image_seed(pixels: Image.Image, seed: int = 0) -> int:
    """A seed from the pixels of an RGB image from `read_image`, for samples without an id."""
    width, height = pixels.size
    digest = _digest(("image", seed, width, height))
    digest.update(b"b" + (3 * width * height).to_bytes(8, "little"))
    rows = max(1, _STRIP // width)
    for top in range(0, height, rows):  # the bytes of the whole image would be a second copy of it
        digest.update(pixels.crop((0, top, width, min(top + rows, height))).tobytes())
    return int.from_bytes(digest.digest(), "little")


def _digest(parts: Iterable[object]) -> "hashlib.blake2b":
    digest = hashlib.blake2b(digest_size=8, person=b"cots.sample_seed")
    for part in parts:
        kind, body = _encode(part)
        digest.update(kind + len(body).to_bytes(8, "little"))
        digest.update(body)
    return digest


def draw_plan(image_size: tuple[int, int], settings: ViewSettings, seed: int) -> ViewPlan:
    """Draw the parameters of views 1..n-1 for an image of (height, width); view i depends only on (seed, i)."""
    height, width = image_size
    if height < 1 or width < 1:
        raise InputError(f"image_size must be (height, width), each at least 1, not {image_size}.")
    key = whole_number("seed", seed, 0, 2**64 - 1)
    # NumPy guarantees a stable raw stream of Philox, but not how its distributions use the stream.
    raw = np.asarray(np.random.Philox(key=key).random_raw(settings.n * _DRAWS)).reshape(settings.n, _DRAWS)
    uniform = ((raw >> np.uint64(11)).astype(np.float64) * 2.0**-53)[1:]
    return ViewPlan(
        image_size=(height, width),
        boxes=_boxes(uniform, height, width, settings),
        flips=uniform[:, _FLIP] < settings.flip,
        mix=_mix(uniform, settings.shape) if settings.augmix else None,
    )


def _encode(part: object) -> tuple[bytes, bytes]:
    if isinstance(part, str):
        # File names that are not valid UTF-8 contain surrogates in Python.
        return b"s", part.encode("utf-8", "surrogatepass")
    if isinstance(part, (bytes, bytearray, memoryview)):
        return b"b", bytes(part)
    if part is None:
        return b"n", b""
    if isinstance(part, bool):
        return b"t", bytes([part])
    if isinstance(part, float):
        return b"f", part.hex().encode()
    if isinstance(part, Integral):
        return b"i", str(int(part)).encode()
    raise InputError(
        f"sample_seed takes text, bytes and numbers, not {type(part).__name__}. "
        "For a path, pass path.as_posix() relative to the dataset's root, so every machine gets the same seed."
    )


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
    """The fallback if no attempt fits: the largest central box with an allowed aspect ratio."""
    h, w = height, width
    if width / height < ratio[0]:
        h = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w = max(1, round(height * ratio[1]))
    return (height - h) // 2, (width - w) // 2, h, w


def _mix(uniform: NDArray[np.float64], shape: tuple[int, int]) -> "MixPlan":
    # Two sorted uniform numbers cut [0, 1] into gaps with a Dirichlet(1, 1, 1) distribution; Beta(1, 1) is uniform.
    cuts = np.sort(uniform[:, _WEIGHTS], axis=1)
    weights = np.diff(cuts, axis=1, prepend=0.0, append=1.0)
    depth = 1 + (uniform[:, _DEPTH] * MAX_DEPTH).astype(np.int64)
    links = (len(uniform), CHAINS, MAX_DEPTH)
    operations = (uniform[:, _OPERATION] * len(OPERATIONS)).astype(np.int64).reshape(links)
    operations[np.arange(MAX_DEPTH) >= depth[:, :, None]] = -1
    level = (0.1 + 0.9 * uniform[:, _LEVEL]).reshape(links)
    sign = np.where(uniform[:, _SIGN] < 0.5, -1.0, 1.0).reshape(links)
    height, width = shape
    amounts = {  # at severity 1
        "posterize": np.full_like(level, 4.0),
        "rotate": sign * np.floor(3 * level),
        "solarize": 256 - np.floor(25.6 * level),
        "shear_x": sign * 0.03 * level,
        "shear_y": sign * 0.03 * level,
        "translate_x": sign * np.floor(level * width / 30),
        "translate_y": sign * np.floor(level * height / 30),
    }
    chosen = np.zeros_like(level)
    for name, amount in amounts.items():
        np.copyto(chosen, amount, where=operations == OPERATIONS.index(name))
    return MixPlan(skip=uniform[:, _SKIP].copy(), weights=weights, operations=operations, amounts=chosen)


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
