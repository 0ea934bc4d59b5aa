"""README.md of an exported folder, with the lines of Python that classify a photo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..views import ViewSettings

if TYPE_CHECKING:
    from ._folder import Facts

_PAGE = """# {count} classes, exported from cots

An image classifier with fixed classes: `model.onnx` for ONNX Runtime, `model.pt2` for `torch.export.load`. Classes are
in `labels.txt`, in the order of the outputs.

| | |
|---|---|
| model | {model}, image tower in float32 |
| method | {method} |
| temperature | {temperature:.6g}{fitted}; it is part of the graph |
| input | `pixel_values`, float32 (batch,3,{height},{width}), normalised |
| outputs | `logits` and `probabilities` (batch,{count}), `in_list` (batch), `image_features` (batch,D) |
| none of these | `in_list` below {in_list_threshold:.6g} |
| threshold | {threshold} |
| licence of the weights | {licence} (LICENSE-weights.txt) |

Classify `photo.jpg`:

```python
{code}
```

{notes}
"""
_CODE = """from pathlib import Path

import numpy as np, onnxruntime
from PIL import Image, ImageOps

photo = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
{resize}
mean, std = np.float32({mean}), np.float32({std})
pixels = (np.asarray(photo, np.float32) / 255 - mean) / std
session = onnxruntime.InferenceSession("model.onnx")
logits, probabilities, in_list, features = session.run(None, {{"pixel_values": pixels.transpose(2, 0, 1)[None]}})
names = Path("labels.txt").read_text(encoding="utf-8").splitlines()
best = int(probabilities[0].argmax())
print(f"{{names[best]}}: confidence {{probabilities[0, best]:.1%}}, in the list {{in_list[0]:.1%}}")"""
_SHORTEST = """{scale}
left, top = round((width - {w}) / 2), round((height - {h}) / 2)
photo = photo.resize((width, height), Image.Resampling.{method}).crop((left, top, left + {w}, top + {h}))"""
_SQUARE = "width, height = (int({w} * side / min(photo.size)) for side in photo.size)"
_OBLONG = """ratio = min(photo.width / {w}, photo.height / {h})
width, height = round(photo.width / ratio), round(photo.height / ratio)"""
_SQUASH = "photo = photo.resize(({w}, {h}), Image.Resampling.{method})"
_LONGEST = """ratio = max(photo.width / {w}, photo.height / {h})
width, height = max(1, round(photo.width / ratio)), max(1, round(photo.height / ratio))
inside = photo.resize((width, height), Image.Resampling.{method})
photo = Image.new("RGB", ({w}, {h}), ({fill},) * 3)
photo.paste(inside, (({w} - width) // 2, ({h} - height) // 2))"""


def readme(facts: Facts, classes: tuple[str, ...], settings: ViewSettings, notes: tuple[str, ...]) -> str:
    """README.md."""
    height, width = settings.shape
    method = facts.method
    if not facts.exact:
        method = f"zero-shot with one temperature, in place of {facts.method}"
    promise, threshold = facts.policy, "none that holds for these confidences"
    if promise is not None:
        threshold = (
            f"{promise['threshold']:.6g}: with {promise['certainty']:.0%} certainty, at most {promise['risk']:.1%} of "
            "the predictions at or above it are wrong"
        )
    return _PAGE.format(
        count=len(classes), model=facts.model, method=method, temperature=facts.temperature,
        fitted=facts.fitted and f", {facts.fitted}", height=height, width=width,
        in_list_threshold=facts.in_list_threshold, threshold=threshold, licence=facts.licence,
        code=classify_code(settings), notes="\n".join(f"- {note}" for note in notes),
    )  # fmt: skip


def classify_code(settings: ViewSettings) -> str:
    """Python that classifies photo.jpg, with the pixels of cots."""
    height, width = settings.shape
    method = settings.interpolation.upper()
    if settings.resize_mode == "squash":
        lines = _SQUASH
    elif settings.resize_mode == "longest":
        lines = _LONGEST
    else:
        square = height == width
        lines = _SHORTEST.replace("{scale}", _SQUARE if square else _OBLONG)
        method = method if square else "BICUBIC"  # as open_clip
    resize = lines.format(w=width, h=height, method=method, fill=settings.fill_color)
    return _CODE.format(resize=resize, mean=_numbers(settings.mean), std=_numbers(settings.std))


def _numbers(values: tuple[float, ...]) -> str:
    """A list of float32, which needs fewer digits."""
    return f"[{', '.join(str(np.float32(value)) for value in values)}]"
