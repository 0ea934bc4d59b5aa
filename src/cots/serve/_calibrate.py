"""POST /v1/calibrate: logits from the body to NumPy, calibration in chunks, and a response in pieces."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from pydantic import Field, ValidationError, WithJsonSchema

from .._arrays import mean_similarity
from .._errors import InputError
from ..calibrators import Calibrated, calibrate, looks_like_probabilities, missing_axis
from ..evaluate import score_columns
from ..metrics import nll
from ._json import read_members, read_numbers, read_value
from ._schemas import Strict, invalid

LOGITS_AT_ONCE = 2**20  # to bound the memory of intermediate results
NUMBERS_AT_ONCE = 2**15  # in a piece of the response
ARRAYS = ("adapted", "zero_shot", "text_features", "labels")
_MATRIX = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
_LABELS = {"type": "array", "items": {"type": "integer"}}
Logits = Annotated[Any, WithJsonSchema({"anyOf": [_MATRIX, {"type": "array", "items": _MATRIX}]})]
Matrix = Annotated[Any, WithJsonSchema({"anyOf": [_MATRIX, {"type": "null"}]})]
Labels = Annotated[Any, WithJsonSchema({"anyOf": [_LABELS, {"type": "null"}]})]


class CalibrateRequest(Strict):
    """The fields of POST /v1/calibrate; arrays of numbers are NumPy arrays."""

    adapted: Logits = Field(description="Logits after adaptation: (samples, views, classes), or two-dimensional.")
    zero_shot: Logits = Field(description="Zero-shot logits of the same shape.")
    rows: Literal["samples", "views"] | None = Field(default=None, description="What two-dimensional rows are.")
    method: str = Field(default="cots", description="A calibrator.")
    solver: Literal["exact", "adam"] | None = Field(default=None, description="Of the temperature; default: exact.")
    alpha: float | None = Field(default=None, description="Weight of the ensemble; or pass text_features.")
    text_features: Matrix = Field(default=None, description="(classes, width); alpha is their mean similarity.")
    labels: Labels = Field(default=None, description="True classes, for the metrics.")


@dataclass(frozen=True, kw_only=True)
class LogitTables:
    """The checked arrays of a request: logits (samples, views, classes), labels (samples,), the ensemble's weight."""

    adapted: np.ndarray
    zero_shot: np.ndarray
    labels: np.ndarray | None
    alpha: float | None
    method: str
    solver: str | None


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The results of a calibrator, one row per sample; losses: NLL per sample, undefined without labels."""

    probabilities: np.ndarray
    prediction: np.ndarray
    confidence: np.ndarray
    tau: np.ndarray
    losses: np.ndarray

    def figures(self, labels: np.ndarray) -> dict[str, float]:
        # Confidences in float32 as in a run, so that the ECE is the same.
        right, losses = self.prediction == labels, {"nll": self.losses}
        scored = score_columns(self.confidence.astype(np.float32), right, losses, ("accuracy", "ece", "nll"))
        return {**scored.values, "mean_confidence": scored.mean_confidence}


def calibrate_body(body: bytes | bytearray, deadline: float) -> Iterator[bytes]:
    """The response to a JSON body, in pieces; stops with a TimeoutError at the deadline of `time.perf_counter`."""
    tables = check_tables(parse_request(body))
    try:
        after = run_calibrator(tables, tables.adapted, tables.method, deadline)
    except InputError as error:
        field = next((name for name in ("alpha", "solver") if name in str(error)), "method")
        raise invalid(field, f"bad_{field}", str(error)) from None
    metrics = None
    if tables.labels is not None:
        plain = run_calibrator(tables, tables.zero_shot, "none", deadline).figures(tables.labels)
        before = run_calibrator(tables, tables.adapted, "none", deadline).figures(tables.labels)
        metrics = {"zero_shot": plain, "before": before, "after": after.figures(tables.labels)}
    arrays = {name: torch.from_numpy(getattr(tables, name)) for name in ("adapted", "zero_shot")}
    message = looks_like_probabilities(**arrays)
    return write_answer(tables.method, after, metrics, [message] if message else [])


def parse_request(body: bytes | bytearray) -> CalibrateRequest:
    """The fields of a JSON body; arrays of numbers are parsed without an object per number."""
    members = read_members(body, CalibrateRequest.model_fields)
    given: dict[str, Any] = {}
    for name in sorted(members, key=lambda name: name in ARRAYS):  # the small ones first
        if name in ARRAYS and memoryview(members[name]) != b"null":
            given[name] = read_numbers(name, members[name])
        else:
            given[name] = read_value(name, members[name])
    try:
        return CalibrateRequest.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = str(first["loc"][0])
        raise invalid(field, "invalid", f"{field}: {first['msg']}.") from None


def check_tables(request: CalibrateRequest) -> LogitTables:
    """The arrays of a request, checked against each other."""
    adapted = _with_three_axes("adapted", request.adapted, request.rows)
    zero_shot = _with_three_axes("zero_shot", request.zero_shot, request.rows)
    if adapted.shape != zero_shot.shape:
        problem = f"zero_shot has shape {zero_shot.shape} but adapted has {adapted.shape}; both must match."
        raise invalid("zero_shot", "bad_shape", problem)
    samples, _, classes = adapted.shape
    labels = request.labels
    if labels is not None:
        whole = labels.shape == (samples,) and bool((labels == np.floor(labels)).all())
        if not whole or labels.min() < 0 or labels.max() >= classes:
            problem = f"labels must have {samples} values from 0 to {classes - 1}, one per sample."
            raise invalid("labels", "bad_labels", problem)
        labels = labels.astype(np.int64)
    alpha = _alpha(request, classes)
    return LogitTables(
        adapted=adapted, zero_shot=zero_shot, labels=labels, alpha=alpha, method=request.method, solver=request.solver
    )


def _with_three_axes(name: str, array: Any, rows: str | None) -> np.ndarray:
    if array is None or array.ndim not in (2, 3):
        problem = f"{name} must be (samples, views, classes), or two-dimensional with rows, and not empty."
        raise invalid(name, "bad_shape", problem)
    try:
        axis = missing_axis(array.ndim, rows)
    except InputError as error:
        raise invalid("rows", "bad_rows", str(error)) from None
    return array if axis is None else np.expand_dims(array, axis)


def _alpha(request: CalibrateRequest, classes: int) -> float | None:
    """alpha, as given or as the mean similarity of the text features."""
    text = request.text_features
    if text is None:
        return request.alpha
    if len(text) != classes:
        problem = f"text_features must have one row per class, {classes}, not {len(text)}."
        raise invalid("text_features", "bad_text_features", problem)
    if request.alpha is not None:
        raise invalid("alpha", "two_alphas", "Send alpha or text_features, not both.")
    try:
        return mean_similarity(text)
    except InputError as error:
        raise invalid("text_features", "bad_text_features", str(error)) from None


def run_calibrator(tables: LogitTables, adapted: np.ndarray, method: str, deadline: float) -> Columns:
    """A calibrator's results for all samples, computed in chunks."""
    samples, views, classes = adapted.shape
    rows = max(1, LOGITS_AT_ONCE // (views * classes))
    probabilities = np.empty((samples, classes))
    columns = {name: np.empty(samples) for name in ("confidence", "tau")}
    prediction = np.empty(samples, dtype=np.int64)
    losses = np.empty(samples)
    for start in range(0, samples, rows):
        if time.perf_counter() > deadline:
            raise TimeoutError
        chunk = slice(start, start + rows)
        given = {} if method == "none" else {"alpha": tables.alpha, "solver": tables.solver}
        found: Calibrated = calibrate(adapted[chunk], tables.zero_shot[chunk], method=method, **given)
        # A float32 sum of probabilities can exceed 1 by a rounding error.
        probabilities[chunk] = found.probabilities.clip(0, 1)
        columns["confidence"][chunk], columns["tau"][chunk] = found.confidence.clip(0, 1), found.tau
        prediction[chunk] = found.prediction
        if tables.labels is not None:
            losses[chunk] = nll(found.probabilities, tables.labels[chunk]).per_sample
    return Columns(probabilities=probabilities, prediction=prediction, losses=losses, **columns)


def write_answer(method: str, columns: Columns, metrics: Any, messages: list[str]) -> Iterator[bytes]:
    """The JSON of a `CalibrateAnswer`, a few thousand numbers at a time."""
    encode = msgspec.json.encode
    samples, classes = columns.probabilities.shape
    yield b'{"method":' + encode(method) + b',"results":'
    rows = NUMBERS_AT_ONCE // 3
    for start in range(0, samples, rows):
        chunk = slice(start, start + rows)
        values = zip(
            columns.prediction[chunk].tolist(), columns.confidence[chunk].tolist(), columns.tau[chunk].tolist(),
            strict=True,
        )  # fmt: skip
        results = [{"prediction": label, "confidence": confidence, "tau": tau} for label, confidence, tau in values]
        yield (b"," if start else b"[") + encode(results)[1:-1]
    yield b'],"probabilities":'
    rows = max(1, NUMBERS_AT_ONCE // classes)
    for start in range(0, samples, rows):
        yield (b"," if start else b"[") + encode(columns.probabilities[start : start + rows].tolist())[1:-1]
    yield b'],"metrics":' + encode(metrics) + b',"warnings":' + encode(messages) + b"}"
