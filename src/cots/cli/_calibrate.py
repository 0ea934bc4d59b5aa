"""`cots calibrate`: calibrate the logits of any method."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .._errors import InputError, check_one_of
from . import _shared as option
from ._shared import Bars, check_methods, print_table

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

ARRAYS = ("adapted", "zero_shot", "labels", "text_features")
INHERITING = ("cots", "ecots", "sals", "cor")  # calibrators whose target is the zero-shot confidence
BUDGET = 2**20  # logits per chunk, to bound the memory of intermediate results


def calibrate(
    file: Annotated[Path, typer.Argument(help=".npz or .safetensors with adapted and zero_shot, (N,K) or (N,V,K).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The .npz or .safetensors file to write.")],
    method: Annotated[str, typer.Option(help="Calibrator (cots ls methods).")] = "cots",
    solver: option.Solver = None,
    rows: Annotated[
        Literal["samples", "views"] | None, typer.Option(help="What the rows of two-dimensional logits are.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Weight of view 0 for ensembles; or from text_features.")] = None,
) -> None:
    """Calibrate the logits of any method. With labels, print accuracy and ECE before and after."""
    _check_files(file, out)
    check_methods([method], ["calibrator"])
    from .._arrays import read_arrays
    from .._files import write_whole
    from ..calibrators import CALIBRATORS
    from ..metrics.inputs import class_labels

    CALIBRATORS.get(method)
    arrays, _ = read_arrays(file)
    adapted, zero_shot = _logits(arrays, file, rows)
    n, views, classes = adapted.shape
    labels = class_labels(arrays["labels"], classes) if "labels" in arrays else None
    if labels is not None and len(labels) != n:
        raise InputError(f"labels has {len(labels)} values; it must have one value for each of the {n} samples.")
    alpha = _alpha(arrays, classes, alpha)
    if alpha is None and "alpha" in CALIBRATORS.settings(method):
        raise InputError(
            f"{method} needs the weight of view 0. Add text_features, one row per class, to {file}, or pass a number "
            "such as --alpha 0.6."
        )
    results = _run(adapted, zero_shot, method=method, solver=solver, alpha=alpha)
    write_whole(out, _encode(results if labels is None else results | {"labels": labels}, out))
    print(f"{method}: {n} samples, {views} view{'s' if views > 1 else ''}, {classes} classes -> {out}")
    if labels is not None:
        columns = {
            "zero-shot": _run(zero_shot, zero_shot, method="none"),
            "before": _run(adapted, zero_shot, method="none"),
            "after": results,
        }
        table = [(name, *_figures(results_of, labels)) for name, results_of in columns.items()]
        print_table(("", "accuracy %", "ECE %", "NLL", "confidence %"), table, right=4)
        weak = "[:, 0]" if views > 1 else ""
        print(f"zero-shot: softmax of zero_shot{weak}; before: softmax of adapted{weak}; after: {method}; 20 bins")
        if method in INHERITING:
            print(f"{method} inherits the calibration of zero-shot: if that row is badly calibrated, so is this.")


def _run(adapted: Tensor, zero_shot: Tensor, **options: Any) -> dict[str, np.ndarray]:
    """The arrays to write, computed in chunks."""
    import numpy as np

    from ..calibrators import calibrate as run

    n, rows = len(adapted), max(1, BUDGET // adapted[0].numel())
    parts = []
    with Bars() as bars, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        for start in range(0, n, rows):
            chunk = slice(start, min(start + rows, n))
            parts.append(run(_finite("adapted", adapted, chunk), _finite("zero_shot", zero_shot, chunk), **options))
            bars.show(f"{options['method']}: samples", chunk.stop, n)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"cots: {message}", file=sys.stderr)
    kinds = {"probabilities": np.float32, "prediction": np.int64, "confidence": np.float32, "tau": np.float32}
    results = {}
    for name, kind in kinds.items():
        results[name] = np.concatenate([getattr(part, name) for part in parts]).astype(kind)
    return results


def _figures(results: Mapping[str, np.ndarray], labels: np.ndarray) -> tuple[str, ...]:
    from ..evaluate import score_predictions

    columns = results["probabilities"], results["prediction"], results["confidence"]
    scored = score_predictions(*columns, labels, ("accuracy", "ece", "nll"))
    accuracy, error, loss = (scored.values[name] for name in ("accuracy", "ece", "nll"))
    return f"{100 * accuracy:.2f}", f"{100 * error:.2f}", f"{loss:.4f}", f"{100 * scored.mean_confidence:.2f}"


def _logits(arrays: Mapping[str, Tensor], file: Path, rows: str | None) -> tuple[Tensor, Tensor]:
    """adapted and zero_shot as (N,V,K)."""
    from ..calibrators import missing_axis

    for name in arrays:
        check_one_of(f"array in {file}:", name, ARRAYS)
    for name in ("adapted", "zero_shot"):
        if name not in arrays:
            raise InputError(
                f"{file} has no array {name!r}; it has {', '.join(sorted(arrays)) or 'none'}. Write it with "
                "numpy.savez(file, adapted=..., zero_shot=...), logits of shape (N, K) or (N, V, K)."
            )
    adapted, zero_shot = arrays["adapted"], arrays["zero_shot"]
    if adapted.shape != zero_shot.shape or adapted.ndim not in (2, 3) or not adapted.numel():
        raise InputError(
            f"adapted {tuple(adapted.shape)} and zero_shot {tuple(zero_shot.shape)} must have the same shape, (N, K) "
            "or (N, V, K): the same samples, views and classes, the weak view first."
        )
    axis = missing_axis(adapted.ndim, rows)
    return (adapted, zero_shot) if axis is None else (adapted.unsqueeze(axis), zero_shot.unsqueeze(axis))


def _alpha(arrays: Mapping[str, Tensor], classes: int, alpha: float | None) -> float | None:
    from .._arrays import mean_similarity

    if "text_features" not in arrays:
        return alpha
    text = arrays["text_features"]
    if text.ndim != 2 or len(text) != classes:
        shape = tuple(text.shape)
        raise InputError(f"text_features has shape {shape}; it must have one row for each of the {classes} classes.")
    if alpha is not None:
        raise InputError("--alpha and the file's text_features cannot be combined; omit one.")
    return mean_similarity(text)


def _finite(name: str, values: Tensor, chunk: slice) -> np.ndarray:
    """A chunk in float32 or float64; an error names rows with values that are not finite."""
    import numpy as np

    from .._arrays import as_tensor

    part = as_tensor(values[chunk], name).numpy()
    bad = chunk.start + np.flatnonzero(~np.isfinite(part).all(axis=(1, 2)))
    if len(bad):
        shown = ", ".join(map(str, bad[:5]))
        if len(bad) > 5:
            shown += ", ..."
        raise InputError(
            f"{name} has values that are not finite in row {shown} (counted from 0). Drop these samples from every "
            "array, or recompute them in float32: float16 overflows above 65504."
        )
    return part


def _check_files(file: Path, out: Path) -> None:
    if not file.is_file():
        raise InputError(f"{file} {'is not a regular file' if file.exists() else 'does not exist'}. Check the path.")
    if out.suffix not in (".npz", ".safetensors"):
        raise InputError(f"--out {out} must end in .npz or .safetensors.")
    if out.exists() and (not out.is_file() or out.samefile(file)):
        kind = "the input file" if out.is_file() else "a folder or a device"
        raise InputError(f"--out {out} would overwrite {kind}; choose another --out.")


def _encode(arrays: dict[str, np.ndarray], out: Path) -> bytes:
    import numpy as np
    from safetensors.numpy import save

    if out.suffix == ".safetensors":
        return save(arrays)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()
