"""`cots calibrate`: anyone's logits in, calibrated probabilities out, a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .._errors import InputError, unknown_name
from ._bars import Bars
from ._npz import Rows, open_npz, write_npz

KEYS = ("adapted", "zero_shot", "labels", "text_features")
# Numbers of one array held at a time: some tens of megabytes with everything that is made of them.
BUDGET = 2**20


def calibrate(
    file: Annotated[Path, typer.Argument(help="An .npz with adapted and zero_shot, (N,K) or (N,V,K).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The .npz to write.")],
    method: Annotated[str, typer.Option(help="Calibrator (cots ls methods).")] = "cots",
    solver: Annotated[str, typer.Option(help="Temperature solver: adam (the paper) or exact.")] = "adam",
    alpha: Annotated[
        float | None, typer.Option(help="Weight of view 0 for ensembles; else from text_features.")
    ] = None,
) -> None:
    """Calibrate the logits of any adaptation method; with labels, say what it does to accuracy and ECE."""
    from ..calibrators import CALIBRATORS

    CALIBRATORS.get(method)
    if not out.parent.is_dir():
        raise InputError(f"The folder {out.parent} does not exist; make it, or choose another --out.")
    if out.exists() and file.exists() and out.samefile(file):
        raise InputError(f"--out {out} is the file that is read: its logits would be lost. Choose another --out.")
    with open_npz(file) as arrays, Bars() as bars:
        adapted, zero_shot = _logits(arrays, file)
        labels = _labels(arrays, adapted)
        given = _alpha(arrays, adapted, alpha)
        if given is None and "alpha" in CALIBRATORS.settings(method):
            raise InputError(
                f"{method} needs the weight of view 0: put text_features, one row a class, into {file}, or give a "
                "number such as --alpha 0.6."
            )
        work = _Work(adapted, zero_shot, method, solver, given, labels, bars)
        n, classes = adapted.shape[0], adapted.shape[-1]

        def column(name: str) -> Iterator[np.ndarray]:
            # Asked for after the probabilities, when all rows are done.
            yield np.concatenate(work.columns[name])

        parts: dict[str, Any] = {"probabilities": ((n, classes), np.float32, work.probabilities())}
        for name, kind in (("prediction", np.int64), ("confidence", np.float32), ("tau", np.float32)):
            parts[name] = ((n,), kind, column(name))
        if labels is not None:
            parts["labels"] = ((n,), np.int64, iter([labels]))
        write_npz(out, parts)
    views = adapted.shape[1] if len(adapted.shape) == 3 else 1
    print(f"{method}: {n} samples, {views} view{'s' if views > 1 else ''}, {classes} classes -> {out}")
    if labels is not None:
        _print_figures(work, labels, method)


class _Work:
    """The pass over the rows; `columns` fill while `probabilities` is read."""

    def __init__(
        self,
        adapted: Rows,
        zero_shot: Rows,
        method: str,
        solver: str,
        alpha: float | None,
        labels: np.ndarray | None,
        bars: Bars,
    ) -> None:
        self.adapted, self.zero_shot, self.bars = adapted, zero_shot, bars
        self.method, self.solver, self.alpha, self.labels = method, solver, alpha, labels
        names = ("prediction", "confidence", "tau", "loss", "prediction before", "confidence before", "loss before")
        self.columns: dict[str, list[np.ndarray]] = {name: [] for name in names}

    def probabilities(self) -> Iterator[np.ndarray]:
        from .. import metrics
        from ..calibrators import calibrate as run

        rows = max(1, BUDGET // int(np.prod(self.adapted.shape[1:])))
        done, n = 0, self.adapted.shape[0]
        for z, z0 in zip(self.adapted.chunks(rows), self.zero_shot.chunks(rows), strict=True):
            z, z0 = _finite("adapted", z, done), _finite("zero_shot", z0, done)
            after = run(z, z0, method=self.method, alpha=self.alpha, solver=self.solver)
            self._keep(after, "")
            if self.labels is not None:
                before = run(z, z0, method="none")
                self._keep(before, " before")
                part = self.labels[done : done + len(z)]
                for result, when in ((after, ""), (before, " before")):
                    self.columns[f"loss{when}"].append(metrics.nll(result.probabilities, part).per_sample)
            done += len(z)
            self.bars.update("samples", done, n)
            yield after.probabilities

    def _keep(self, result: Any, when: str) -> None:
        self.columns[f"prediction{when}"].append(result.prediction)
        self.columns[f"confidence{when}"].append(result.confidence)
        if not when:
            self.columns["tau"].append(result.tau)


def _logits(arrays: dict[str, Rows], file: Path) -> tuple[Rows, Rows]:
    for name in ("adapted", "zero_shot"):
        if name not in arrays:
            there = ", ".join(sorted(arrays)) or "nothing"
            raise InputError(
                f"{file} has no array {name!r}; it has {there}. Write it with numpy.savez(file, adapted=..., "
                "zero_shot=...), logits of shape (N, K) or (N, V, K)."
            )
    for name in arrays:
        if name not in KEYS:
            raise unknown_name(f"array in {file}:", name, KEYS)
    adapted, zero_shot = arrays["adapted"], arrays["zero_shot"]
    for rows in (adapted, zero_shot):
        if rows.dtype.kind not in "fiu" or len(rows.shape) not in (2, 3) or 0 in rows.shape:
            raise InputError(
                f"{rows.name} is {rows.dtype} of shape {rows.shape}; give logits as numbers of shape (N, K), or "
                "(N, V, K) with view 0 the plain one and no axis empty."
            )
    if adapted.shape != zero_shot.shape:
        raise InputError(
            f"adapted {adapted.shape} and zero_shot {zero_shot.shape} must have the same shape: the same samples, "
            "views and classes before and after adaptation."
        )
    return adapted, zero_shot


def _labels(arrays: dict[str, Rows], adapted: Rows) -> np.ndarray | None:
    if "labels" not in arrays:
        return None
    rows, n, classes = arrays["labels"], adapted.shape[0], adapted.shape[-1]
    if rows.dtype.kind not in "iu" or rows.shape != (n,):
        raise InputError(f"labels is {rows.dtype} of shape {rows.shape}; give {n} whole numbers, one a sample.")
    labels = rows.whole()
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise InputError(
            f"labels[{wrong[0]}] is {labels[wrong[0]]}, but there are {classes} classes: labels go from 0 to "
            f"{classes - 1}. {len(wrong)} of {n} are outside."
        )
    return labels.astype(np.int64)


def _alpha(arrays: dict[str, Rows], adapted: Rows, alpha: float | None) -> float | None:
    from .._numeric import mean_similarity

    if "text_features" not in arrays:
        return alpha
    rows, classes = arrays["text_features"], adapted.shape[-1]
    if rows.dtype.kind not in "fiu" or len(rows.shape) != 2 or rows.shape[0] != classes:
        raise InputError(
            f"text_features is {rows.dtype} of shape {rows.shape}; give one row of numbers for each of the "
            f"{classes} classes."
        )
    if alpha is not None:
        raise InputError("--alpha and the file's text_features exclude each other; leave one out.")
    return mean_similarity(rows.whole())


def _finite(name: str, values: np.ndarray, first: int) -> np.ndarray:
    """(N,V,K) in a floating type; rows with other than finite values are named."""
    values = np.asarray(values, dtype=np.float64 if values.dtype == np.float64 else np.float32)
    bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
    if len(bad):
        shown = ", ".join(str(first + row) for row in bad[:5]) + (", ..." if len(bad) > 5 else "")
        raise InputError(
            f"{name} holds values that are not finite in row {shown} (counted from 0). Drop these samples from every "
            "array, or compute them again in float32: float16 overflows above 65504."
        )
    return values[:, None] if values.ndim == 2 else values


def _print_figures(work: _Work, labels: np.ndarray, method: str) -> None:
    from .. import metrics

    print(f"{'':<10}{'accuracy %':>12}{'ECE %':>9}{'NLL':>9}{'confidence %':>14}")
    for title, when in (("before", " before"), ("after", "")):
        prediction, confidence, loss = (
            np.concatenate(work.columns[f"{name}{when}"]) for name in ("prediction", "confidence", "loss")
        )
        correct = prediction == labels
        print(
            f"{title:<10}{100 * float(metrics.accuracy(correct)):>12.2f}"
            f"{100 * float(metrics.ece(confidence, correct)):>9.2f}{loss.mean():>9.4f}{100 * confidence.mean():>14.2f}"
        )
    print(f"before: softmax of adapted{'[:, 0]' if len(work.adapted.shape) == 3 else ''}; after: {method}; 20 bins")
