"""Your own view features, from a .safetensors or .npz file, as a Dataset without images."""

import hashlib
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from .._arrays import check_finite, read_arrays
from .._errors import InputError, unknown_name
from ..metrics._metric import class_labels
from ..prompts import clean_names
from ._dataset import ViewFeatures
from ._names import ClassFile

ARRAYS = ("features", "labels", "text_features", "logit_scale")
TEXTS = ("ids", "classes")
_WRITE = "Write it with numpy.savez(file, features=..., labels=..., classes=[...])."
_ROWS = 256  # samples checked at a time, because the file may be larger than memory


def read_features(
    file: Path, classes_file: str | Path | None
) -> tuple[ViewFeatures, tuple[str, ...], list[tuple[str, int]]]:
    """The features in a file, the class names, and (id, label) of each sample."""
    arrays, texts = read_arrays(file, TEXTS)
    for name in arrays:
        if name not in ARRAYS:
            raise unknown_name(f"array in {file}:", name, (*ARRAYS, *TEXTS))
    for name in ("features", "labels"):
        if name not in arrays:
            raise InputError(f"{file} has no array {name!r}. {_WRITE}")
    values = arrays["features"]
    if values.ndim != 3 or 0 in values.shape or not values.is_floating_point():
        raise InputError(
            f"features in {file} must be floats (N,V,D), samples by views by width, the weak view first, not "
            f"{values.dtype} {tuple(values.shape)}."
        )
    _check_vectors("features", values)
    if classes_file is not None:
        classes = ClassFile.read(classes_file).names
    elif "classes" in texts:
        classes = clean_names(texts["classes"])
    else:
        raise InputError(f"{file} has no class names. Add classes to it, or pass --classes FILE.")
    labels = class_labels(arrays["labels"], len(classes))
    ids = texts.get("ids", tuple(map(str, range(len(values)))))
    for name, count in (("labels", len(labels)), ("ids", len(ids))):
        if count != len(values):
            raise InputError(f"{file} has {count} {name} for {len(values)} samples; it needs one per sample.")
    if (most := Counter(ids).most_common(1)[0])[1] > 1:
        raise InputError(f"{file} has the id {most[0]!r} twice; ids must differ.")
    text, scale = _text_side(arrays, file, len(classes), values.shape[2])
    with open(file, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    found = ViewFeatures(values, text, scale, digest)
    return found, classes, list(zip(ids, map(int, labels), strict=True))


def _text_side(arrays: dict[str, Tensor], file: Path, classes: int, width: int) -> tuple[Tensor | None, float | None]:
    if ("text_features" in arrays) != ("logit_scale" in arrays):
        raise InputError(f"{file} needs both text_features and logit_scale, such as 100 for CLIP, or neither.")
    if "text_features" not in arrays:
        return None, None
    text, scale = arrays["text_features"], arrays["logit_scale"]
    if tuple(text.shape) != (classes, width):
        raise InputError(
            f"text_features in {file} must be ({classes}, {width}), classes by width, not {tuple(text.shape)}."
        )
    _check_vectors("text_features", text[None])
    if scale.numel() != 1 or not 0 < float(scale) < 1e6:
        raise InputError(f"logit_scale in {file} must be one positive number, such as 100, not {scale.tolist()}.")
    return text.clone(), float(scale)


def _check_vectors(name: str, values: Tensor) -> None:
    """Refuse values that are not finite, and vectors that are not normalised to half precision."""
    for start in range(0, len(values), _ROWS):
        part = values[start : start + _ROWS].float()
        check_finite(part, f"{name}[{start}:{start + len(part)}]")
        norm = torch.linalg.vector_norm(part, dim=-1)
        worst = int((norm - 1).abs().flatten().argmax())
        if abs((length := float(norm.flatten()[worst])) - 1) > 0.02:
            row = start + worst // norm.shape[1]
            raise InputError(
                f"{name} must be L2-normalised, but row {row} has a vector of length {length:.4g}. "
                "Divide by the norm of the last axis."
            )
