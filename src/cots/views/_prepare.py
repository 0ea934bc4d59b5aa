"""The host's half of rendering on a device: pixels, weak view and plan of one image in one piece of memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ._plan import CHAINS, MAX_DEPTH, OPERATIONS, MixPlan, ViewPlan
from ._settings import ViewSettings
from ._views import check_plan, render_views, weak_view

# A larger photo would take more memory than its views, on its way and on the device; it is rendered where it was read.
MAX_SENT_PIXELS = 2**24
_ALIGNMENT = 16
_AUTOCONTRAST, _EQUALIZE, _POSTERIZE, _ROTATE, _, _SHEAR_X, _SHEAR_Y, _TRANSLATE_X, _TRANSLATE_Y = range(9)
# The last entry is that of -1, past the end of a chain.
_IS_GEOMETRIC = np.array([name.startswith(("rotate", "shear", "translate")) for name in (*OPERATIONS, "")])


@dataclass(frozen=True, kw_only=True)
class Mix:
    """AugMix of some views. At each depth: which chains move and how, then which change their tones, and their tables.

    counts: how many of the toned chains, which come first, are autocontrasts, and how many then equalizations.
    """

    arrays: dict[str, NDArray[Any]]
    counts: tuple[tuple[int, int], ...]

    @classmethod
    def merge(cls, mixes: Sequence[Mix]) -> Mix:
        """One for the views of several images, in order."""
        views = [len(mix.arrays["weights"]) for mix in mixes]
        first_view = np.cumsum([0, *views[:-1]])
        arrays = {"weights": np.concatenate([mix.arrays["weights"] for mix in mixes])}
        counts = []
        for depth in range(MAX_DEPTH):
            first_source = first_view if depth == 0 else first_view * CHAINS

            def joined(name: str, first: Any, part: int | None = None, depth: int = depth) -> NDArray[Any]:
                """Each image's array, or the part of it that is of one kind, with its own first place added."""
                pieces = []
                for mix, start in zip(mixes, first, strict=True):
                    ends = [0, *np.cumsum(mix.counts[depth]), None]
                    kind = slice(None) if part is None else slice(ends[part], ends[part + 1])
                    pieces.append(mix.arrays[f"{name}{depth}"][kind] + start)
                return np.concatenate(pieces)

            first_chain, nothing = first_view * CHAINS, [0] * len(mixes)
            arrays[f"moved{depth}"] = joined("moved", first_chain)
            arrays[f"moved_from{depth}"] = joined("moved_from", first_source)
            arrays[f"maps{depth}"] = joined("maps", nothing)
            arrays[f"tables{depth}"] = np.concatenate([mix.arrays[f"tables{depth}"] for mix in mixes])
            # Autocontrasts of all images first, then their equalizations, then the others, as their tables are.
            for name, first in (("toned", first_chain), ("toned_from", first_source)):
                arrays[f"{name}{depth}"] = np.concatenate([joined(name, first, part) for part in range(3)])
            counts.append(tuple(int(n) for n in np.sum([mix.counts[depth] for mix in mixes], axis=0)))
        return cls(arrays=arrays, counts=tuple(counts))

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """The arrays on `device`, by one copy."""
        return _unpacked(*_pack(self.arrays, pin=device.type == "cuda"), device)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a `Renderer` needs of one image: named arrays in one buffer, so that one copy takes them to the device."""

    buffer: Tensor
    fields: dict[str, tuple[torch.dtype, tuple[int, ...], int]]
    spans: NDArray[np.int64]  # (2,2,S): first and past the last pixel of each crop, down and across
    across_first: int  # so many of the crops are resized across and then down, the others the other way round
    mix: Mix | None  # AugMix, which several images share: see `merge`

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """The arrays on `device`."""
        buffer = self.buffer
        if device.type == "cuda" and not buffer.is_pinned():
            buffer = buffer.pin_memory()
        return _unpacked(buffer, self.fields, device)


def prepare(image: Image.Image, plan: ViewPlan, settings: ViewSettings, *, pin: bool = False) -> Prepared:
    """Pack an RGB image and the plan that was drawn for it; `pin` puts them into memory that a GPU copies from.

    >>> from ._plan import draw_plan
    >>> settings = ViewSettings(n=3, size=32)
    >>> prepare(Image.new("RGB", (40, 30)), draw_plan((30, 40), settings, 0), settings).fields["image"][1]
    (30, 40, 3)
    """
    check_plan(image, plan)
    mix = None
    down_first = _down_first(plan.boxes, settings.shape)
    order = np.argsort(down_first, kind="stable")
    starts, lengths = plan.boxes[order, :2].T, plan.boxes[order, 2:].T
    if image.width * image.height > MAX_SENT_PIXELS:
        arrays: dict[str, NDArray[Any]] = {"views": render_views(image, plan, settings).numpy()}
    else:
        # The weak view is one in 64 and cheap here, where it is open_clip's to the last bit.
        arrays = {"image": np.asarray(image), "weak": np.asarray(weak_view(image, settings))}
        flips = np.stack([np.zeros(len(order)), plan.flips[order]])
        arrays["boxes"] = np.stack([starts, lengths, flips]).astype(np.float64)
        arrays["order"] = order
        if plan.mix is not None and len(plan.boxes):
            mix = _mix(plan.mix, settings.shape)
    buffer, fields = _pack(arrays, pin)
    return Prepared(
        buffer=buffer,
        fields=fields,
        spans=np.stack([starts, starts + lengths]),
        across_first=int((~down_first).sum()),
        mix=mix,
    )


def _unpacked(buffer: Tensor, fields: dict[str, Any], device: torch.device) -> dict[str, Tensor]:
    buffer = buffer.to(device, non_blocking=True)
    found = {}
    for name, (dtype, shape, offset) in fields.items():
        size = math.prod(shape) * dtype.itemsize
        found[name] = buffer[offset : offset + size].view(dtype).view(shape)
    return found


def _pack(arrays: dict[str, NDArray[Any]], pin: bool) -> tuple[Tensor, dict[str, Any]]:
    fields, size = {}, 0
    for name, array in arrays.items():
        fields[name] = torch.from_numpy(np.empty(0, array.dtype)).dtype, array.shape, size
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pin)
    memory = buffer.numpy()
    for name, array in arrays.items():
        start = fields[name][2]
        memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
    return buffer, fields


def _down_first(boxes: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Which crops PIL resizes down before across; it rounds in between, so the order makes a level's difference."""
    height, width = boxes[:, 2] - shape[0], boxes[:, 3] - shape[1]
    return (height > 0) & (height > 2 * width) & _pil_chooses_order()


@functools.cache
def _pil_chooses_order() -> bool:
    """PIL before version 13 resizes across first, whatever the sizes."""
    grain = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 40, 3), dtype=np.uint8))
    across = grain.resize((36, 60), Image.Resampling.BILINEAR).resize((36, 18), Image.Resampling.BILINEAR)
    return grain.resize((36, 18), Image.Resampling.BILINEAR).tobytes() != across.tobytes()


def _mix(mix: MixPlan, shape: tuple[int, int]) -> Mix:
    """AugMix's arrays: at each depth the chains that move (and how), then those that change their tones."""
    skip = mix.skip[:, None]
    arrays: dict[str, NDArray[Any]] = {
        "weights": np.concatenate([skip, (1 - skip) * mix.weights], axis=1).astype(np.float32)
    }
    counts = []
    for depth in range(MAX_DEPTH):
        operations, amounts = mix.operations[:, :, depth].ravel(), mix.amounts[:, :, depth].ravel()
        # By operation: the tables of the first two kinds of tones depend on the pixels, the others are made here.
        order = np.argsort(operations, kind="stable")
        moves = _IS_GEOMETRIC[operations[order]]
        moved, toned = order[moves], order[~moves & (operations[order] >= 0)]
        for name, chains in (("moved", moved), ("toned", toned)):
            arrays[f"{name}{depth}"] = chains
            arrays[f"{name}_from{depth}"] = chains // CHAINS if depth == 0 else chains
        arrays[f"maps{depth}"] = _maps(operations[moved], amounts[moved], shape)
        stretched, equalized = (int((operations == kind).sum()) for kind in (_AUTOCONTRAST, _EQUALIZE))
        made = toned[stretched + equalized :]
        rows = [_table(*row) for row in zip(operations[made].tolist(), amounts[made].tolist(), strict=True)]
        arrays[f"tables{depth}"] = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, 1, 256)
        counts.append((stretched, equalized))
    return Mix(arrays=arrays, counts=tuple(counts))


@functools.lru_cache(maxsize=512)
def _table(operation: int, amount: float) -> bytes:
    """What becomes of each level."""
    levels = np.arange(256)
    if operation == _POSTERIZE:
        return (levels & ~(2 ** (8 - int(amount)) - 1)).astype(np.uint8).tobytes()
    return np.where(levels < int(amount), levels, 255 - levels).astype(np.uint8).tobytes()


def _maps(operations: NDArray[np.int64], amounts: NDArray[np.float64], shape: tuple[int, int]) -> NDArray[np.float64]:
    """(N,2,3): from a pixel's centre (x, y, 1) to where PIL samples it, across and down."""
    maps = np.zeros((len(operations), 2, 3))
    maps[:, 0, 0] = maps[:, 1, 1] = 1.0
    for operation, place in ((_SHEAR_X, (0, 1)), (_SHEAR_Y, (1, 0)), (_TRANSLATE_X, (0, 2)), (_TRANSLATE_Y, (1, 2))):
        some = operations == operation
        maps[some, *place] = amounts[some] if place[1] < 2 else np.trunc(amounts[some])
    for i in np.flatnonzero((operations == _ROTATE) & (amounts != 0)).tolist():
        maps[i] = _rotation(float(amounts[i]), *shape)
    return maps


@functools.lru_cache(maxsize=512)
def _rotation(degrees: float, height: int, width: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    # PIL rounds sine and cosine like this.
    angle = -math.radians(degrees % 360.0)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return (cos, sin, cos * -x + sin * -y + x), (-sin, cos, -sin * -x + cos * -y + y)
