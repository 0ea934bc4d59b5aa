"""The body of POST /v1/calibrate, checked field by field."""

from typing import Any, Literal

import numpy as np
from fastapi import Request
from pydantic import Field, ValidationError
from starlette.concurrency import run_in_threadpool

from .._arrays import mean_similarity
from .._errors import InputError
from ..calibrators import missing_axis
from ._requests import content_type
from ._schemas import ApiError, Strict, invalid

# The calibrator's own checks of the dimensions give better messages than pydantic's.
Matrix = list[list[float]]
Logits = Matrix | list[Matrix]


class CalibrateRequest(Strict):
    """The fields of POST /v1/calibrate."""

    adapted: Logits = Field(description="Logits after adaptation: (samples, views, classes), or two-dimensional.")
    zero_shot: Logits = Field(description="Zero-shot logits of the same shape.")
    rows: Literal["samples", "views"] | None = Field(default=None, description="What two-dimensional rows are.")
    method: str = Field(default="cots", description="A calibrator.")
    alpha: float | None = Field(default=None, description="Weight of the ensemble; or pass text_features.")
    text_features: Matrix | None = Field(default=None, description="(classes, width); alpha is their mean similarity.")
    labels: list[int] | None = Field(default=None, description="True classes, for the metrics.")

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Both logits as (samples, views, classes) and the labels, checked against each other."""
        adapted, zero_shot = (
            _logits("adapted", self.adapted, self.rows),
            _logits("zero_shot", self.zero_shot, self.rows),
        )
        if adapted.shape != zero_shot.shape:
            problem = f"zero_shot has shape {zero_shot.shape} but adapted has {adapted.shape}; both must match."
            raise invalid("zero_shot", "bad_shape", problem)
        samples, _, classes = adapted.shape
        labels = None if self.labels is None else np.array(self.labels)
        if labels is not None and (len(labels) != samples or labels.min() < 0 or labels.max() >= classes):
            problem = f"labels must have {samples} values from 0 to {classes - 1}, one per sample."
            raise invalid("labels", "bad_labels", problem)
        if self.text_features is not None and len(self.text_features) != classes:
            problem = f"text_features must have one row per class, {classes}, not {len(self.text_features)}."
            raise invalid("text_features", "bad_text_features", problem)
        return adapted, zero_shot, labels

    def weight(self) -> float | None:
        """alpha, as given or as the mean similarity of the text features."""
        if self.text_features is None:
            return self.alpha
        if self.alpha is not None:
            raise invalid("alpha", "two_alphas", "Send alpha or text_features, not both.")
        try:
            return mean_similarity(_array("text_features", self.text_features))
        except InputError as error:
            raise invalid("text_features", "bad_text_features", str(error)) from None


async def read_calibrate(request: Request) -> CalibrateRequest:
    """The JSON body; parsed in a thread because it can be megabytes."""
    if content_type(request) != "application/json":
        raise ApiError(415, "not_json", "Send the logits as application/json.")
    try:
        return await run_in_threadpool(CalibrateRequest.model_validate_json, await request.body())
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        if not first["loc"]:
            raise ApiError(422, "bad_json", f"The body is not a JSON object: {first['msg']}.") from None
        field = str(first["loc"][0])[:100]
        raise invalid(field, "invalid", f"{field}: {first['msg']}.") from None


def _logits(name: str, values: Any, rows: str | None) -> np.ndarray:
    array = _array(name, values)
    if array.ndim not in (2, 3) or 0 in array.shape:
        problem = f"{name} must be (samples, views, classes), or two-dimensional with rows, and not empty."
        raise invalid(name, "bad_shape", problem)
    try:
        axis = missing_axis(array.ndim, rows)
    except InputError as error:
        raise invalid("rows", "bad_rows", str(error)) from None
    return array if axis is None else np.expand_dims(array, axis)


def _array(name: str, values: Any) -> np.ndarray:
    try:
        array = np.array(values, dtype=np.float64)
    except ValueError:
        raise invalid(name, "ragged", f"{name} has rows of different lengths.") from None
    if not np.isfinite(array).all():
        raise invalid(name, "not_finite", f"{name} contains a value that is not finite.")
    return array
