"""POST /v1/calibrate: logits in, calibrated probabilities out."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from .. import metrics
from .._errors import InputError
from .._numeric import mean_similarity
from ..calibrators import calibrate
from ._errors import ApiError, invalid
from ._predict import share
from ._schemas import CalibrateBody


async def read_body(request: Request) -> CalibrateBody:
    """The JSON body, checked for its shape; parsed beside the event loop, because it can be megabytes."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "not_json", "Send the logits as application/json.")
    data = await request.body()
    try:
        return await run_in_threadpool(CalibrateBody.model_validate_json, data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        if not first["loc"]:
            raise ApiError(
                422, "bad_json", f"The body is not the JSON object that is asked for: {first['msg']}."
            ) from None
        raise invalid(str(first["loc"][0])[:100], "invalid", f"{first['loc'][0]}: {first['msg']}.") from None


def answer(body: CalibrateBody) -> dict[str, Any]:
    """The calibrated results; an error names the field."""
    adapted, zero_shot = _array("adapted", body.adapted), _array("zero_shot", body.zero_shot)
    if adapted.shape != zero_shot.shape:
        raise invalid(
            "zero_shot", "bad_shape", f"zero_shot {zero_shot.shape} must have adapted's shape {adapted.shape}."
        )
    labels = None if body.labels is None else np.array(body.labels)
    classes = adapted.shape[-1]
    if labels is not None and (len(labels) != len(adapted) or labels.min() < 0 or labels.max() >= classes):
        raise invalid("labels", "bad_labels", f"labels must be {len(adapted)} numbers from 0 to {classes - 1}.")
    alpha = body.alpha
    if body.text_features is not None:
        if alpha is not None:
            raise invalid("alpha", "two_alphas", "Give alpha or text_features, not both.")
        try:
            alpha = mean_similarity(_rectangle("text_features", body.text_features))
        except InputError as error:
            raise invalid("text_features", "bad_text_features", str(error)) from None
    if len(body.text_features or []) not in (0, classes):
        raise invalid("text_features", "bad_text_features", f"text_features must have one row a class, {classes}.")
    try:
        result = calibrate(adapted, zero_shot, method=body.method, alpha=alpha)
        before = calibrate(adapted, zero_shot, method="none") if labels is not None else None
    except InputError as error:
        message = str(error)
        named = [name for name in ("adapted", "zero_shot") if message.startswith(name)]
        field = named[0] if named else "alpha" if "alpha" in message else "method"
        raise invalid(field, f"bad_{field}", message) from None
    return {
        "method": body.method,
        "results": [
            {"prediction": int(k), "confidence": share(float(c)), "tau": float(t)}
            for k, c, t in zip(result.prediction, result.confidence, result.tau, strict=True)
        ],
        "probabilities": result.probabilities.clip(0, 1).tolist(),
        "metrics": None if labels is None else {"before": figures(before, labels), "after": figures(result, labels)},
    }


def figures(result: Any, labels: np.ndarray) -> dict[str, float]:
    """Accuracy, ECE, NLL and mean confidence, as fractions."""
    correct = result.prediction == labels
    return {
        "accuracy": float(metrics.accuracy(correct)),
        "ece": float(metrics.ece(result.confidence, correct)),
        "nll": float(metrics.nll(result.probabilities, labels)),
        "mean_confidence": share(float(np.mean(result.confidence))),
    }


def _array(name: str, values: Any) -> np.ndarray:
    """(samples, views, classes); one view where there are two axes."""
    array = _rectangle(name, values)
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise invalid(name, "bad_shape", f"{name} must be (samples, classes) or (samples, views, classes), not empty.")
    return array[:, None] if array.ndim == 2 else array


def _rectangle(name: str, values: Any) -> np.ndarray:
    try:
        array = np.array(values, dtype=np.float64)
    except ValueError:
        raise invalid(name, "ragged", f"{name} has rows of different lengths.") from None
    if not np.isfinite(array).all():
        raise invalid(name, "not_finite", f"{name} holds a number that is not finite.")
    return array
