"""Request bodies: read within the limits and checked field by field before anything is queued."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from fastapi import Request
from PIL import Image
from pydantic import ConfigDict, Field, ValidationError, WithJsonSchema
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from .._errors import InputError, unknown_name
from .._numeric import mean_similarity
from ..adapters import ADAPTERS
from ..methods import Method, parse_method
from ..prompts import DEFAULT_TEMPLATE, clean_name
from ..views import image_size
from . import ServeSettings
from ._schemas import ApiError, Strict, invalid

# PIL reads some forty other formats, whose parsers need not be exposed to the network.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
MAX_TEXT, MAX_NAME, MAX_TEMPLATE, MAX_SEED = 2**20, 200, 300, 2**63 - 1


class PredictForm(Strict):
    """The fields of POST /v1/predict."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    image: Annotated[UploadFile, WithJsonSchema({"type": "string", "format": "binary"})] = Field(
        description="A JPEG, PNG, WebP, ... file."
    )
    classes: str = Field(description=f"Class names, one per line, each at most {MAX_NAME} characters.")
    methods: str = Field(default="tpt+ecots", description="Comma-separated methods: adapter or adapter+calibrator.")
    template: str = Field(default=DEFAULT_TEMPLATE, max_length=MAX_TEMPLATE)
    top: int = Field(default=5, ge=1, description="Number of classes to return per method.")
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    thumbnails: bool = Field(default=False, description="Return the selected views as small images.")


# The calibrator's own checks of the dimensions give better messages than pydantic's.
Matrix = list[list[float]]
Logits = Matrix | list[Matrix]


class CalibrateBody(Strict):
    """The fields of POST /v1/calibrate."""

    adapted: Logits = Field(description="Logits after adaptation: (samples, classes) or (samples, views, classes).")
    zero_shot: Logits = Field(description="Zero-shot logits of the same shape.")
    method: str = Field(default="cots", description="A calibrator.")
    alpha: float | None = Field(default=None, description="Weight of the ensemble; or pass text_features.")
    text_features: Matrix | None = Field(default=None, description="(classes, width); alpha is their mean similarity.")
    labels: list[int] | None = Field(default=None, description="True classes, for the metrics.")


@dataclass(frozen=True, kw_only=True)
class PredictItem:
    """A checked prediction request; those with an equal `key` can run together."""

    image: bytes = field(repr=False)
    name: str
    classes: tuple[str, ...] = field(repr=False)
    template: str
    methods: tuple[Method, ...]
    top: int = 5
    seed: int = 0
    thumbnails: bool = False
    arrived: float = field(default_factory=time.perf_counter)

    @property
    def key(self) -> Hashable:
        return self.classes, self.template, self.methods


@dataclass(frozen=True, kw_only=True)
class CalibrateItem:
    """A checked calibration request."""

    adapted: np.ndarray
    zero_shot: np.ndarray
    method: str
    alpha: float | None
    labels: np.ndarray | None


async def read_predict(request: Request, settings: ServeSettings) -> PredictItem:
    """The form as a PredictItem, or an ApiError that names the field."""
    if _content_type(request) != "multipart/form-data":
        raise ApiError(415, "not_multipart", "Send the image and the fields as multipart/form-data (curl -F).")
    count = len(PredictForm.model_fields)
    try:
        form = await request.form(max_files=count, max_fields=count, max_part_size=MAX_TEXT)
    except ApiError:
        raise
    except Exception as error:  # whatever a hostile body makes the parser raise is the client's fault
        reason = getattr(error, "detail", None) or "the parts cannot be read"
        raise ApiError(400, "bad_form", f"The multipart body cannot be parsed: {reason}") from None
    # FastAPI's Form() would replace an empty field by its default and keep the last of repeated fields.
    try:
        given: dict[str, Any] = {}
        for name, value in form.multi_items():
            if name in given:
                raise invalid(name[:100], "repeated_field", f"{name[:100]} appears twice; send it once.")
            given[name] = value
        fields = PredictForm.model_validate(given)
        image = await fields.image.read()
    except ValidationError as error:
        raise _form_error(error) from None
    finally:
        await form.close()
    if fields.top > settings.max_classes:
        raise invalid("top", "bad_top", f"top must be at most {settings.max_classes}, not {fields.top}.")
    item = PredictItem(
        image=image,
        name=(fields.image.filename or "").replace("\\", "/").rsplit("/", 1)[-1][:200],
        classes=_classes(fields.classes, settings.max_classes),
        methods=_methods(fields.methods, settings.max_methods),
        template=_template(fields.template),
        top=fields.top,
        seed=fields.seed,
        thumbnails=fields.thumbnails,
    )
    await run_in_threadpool(_check_header, image, settings.max_pixels)
    return item


async def read_calibrate(request: Request) -> CalibrateItem:
    """The JSON body as a CalibrateItem; parsed in a thread because it can be megabytes."""
    if _content_type(request) != "application/json":
        raise ApiError(415, "not_json", "Send the logits as application/json.")
    return await run_in_threadpool(_calibrate_item, await request.body())


def offered(adapter: str) -> str | None:
    """None, or why the server does not offer an adapter."""
    if "state" in ADAPTERS.settings(adapter):
        return f"{adapter} is an online method whose answers depend on other people's images; use cots predict."
    if ADAPTERS.tag(adapter, "takes", "features") != "features":
        return f"{adapter} tunes the image encoder, which requests share; use cots predict."
    return None


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _form_error(error: ValidationError) -> ApiError:
    """The first problem that pydantic found, with the API's own code."""
    found = error.errors(include_url=False, include_context=False)
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    field, kind = str(first["loc"][0])[:100], first["type"]
    if kind == "extra_forbidden":
        return invalid(field, "unknown_field", str(unknown_name("field", field, PredictForm.model_fields)))
    if field == "image":
        code = "missing_image" if kind == "missing" else "not_a_file"
        return invalid(field, code, "image is missing or not a file; send the photo's file, such as image=@photo.jpg.")
    if kind == "missing":
        return _no_classes()
    if kind.endswith("_type"):
        return invalid(field, "not_text", f"{field} must be text, not a file; with curl, use {field}=<FILE.")
    code = "template_too_long" if kind == "string_too_long" else f"bad_{field}"
    return invalid(field, code, f"{field}: {first['msg']}.")


def _no_classes() -> ApiError:
    return invalid("classes", "no_classes", "classes is empty; send the candidate class names, one per line.")


def _classes(text: str, most: int) -> tuple[str, ...]:
    lines = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").splitlines()
    names = [name for line in lines if (name := clean_name(line))]
    if not names:
        raise _no_classes()
    if len(names) > most:
        raise invalid("classes", "too_many_classes", f"{len(names)} classes exceed the limit of {most}; send fewer.")
    if long := next((name for name in names if len(name) > MAX_NAME), None):
        told = f"The name {long[:40] + '...'!r} has {len(long)} characters, more than {MAX_NAME}; shorten it."
        raise invalid("classes", "name_too_long", told)
    return tuple(names)


def _methods(text: str, most: int) -> tuple[Method, ...]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise invalid("methods", "no_methods", "methods is empty; send one or more, such as tpt+ecots.")
    if len(names) > most:
        raise invalid("methods", "too_many_methods", f"{len(names)} methods exceed the limit of {most}; send fewer.")
    try:
        methods = tuple(dict.fromkeys(parse_method(name[:100]) for name in names))
    except InputError as error:
        raise invalid("methods", "bad_method", str(error)) from None
    for method in methods:
        if reason := offered(method.adapter):
            raise invalid("methods", "not_offered", reason)
    return methods


def _template(text: str) -> str:
    if text.count("{}") != 1 or set(text.replace("{}", "")) & set("{}"):
        raise invalid("template", "bad_template", f"template {text!r} must contain {{}} once, for the class name.")
    return text


def _check_header(data: bytes, max_pixels: int) -> None:
    """Refuse files that are not images, or have too many pixels, from the header alone."""
    if not data:
        raise ApiError(415, "not_an_image", "image is empty (0 bytes); send a JPEG, PNG or WebP file.", "image")
    try:
        width, height = image_size(data, FORMATS)
        size = f"{width} x {height} pixels"
    except InputError as error:
        if not isinstance(error.__cause__, Image.DecompressionBombError):
            raise ApiError(415, "not_an_image", str(error), "image") from None
        width, height, size = max_pixels, 2, str(error.__cause__)
    if width * height > max_pixels:
        told = f"image is too large ({size}); the limit is {max_pixels} pixels."
        raise ApiError(413, "too_many_pixels", told, "image")


def _calibrate_item(data: bytes) -> CalibrateItem:
    try:
        body = CalibrateBody.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        if not first["loc"]:
            raise ApiError(422, "bad_json", f"The body is not a JSON object: {first['msg']}.") from None
        field = str(first["loc"][0])[:100]
        raise invalid(field, "invalid", f"{field}: {first['msg']}.") from None
    adapted, zero_shot = _logits("adapted", body.adapted), _logits("zero_shot", body.zero_shot)
    if adapted.shape != zero_shot.shape:
        told = f"zero_shot has shape {zero_shot.shape} but adapted has {adapted.shape}; both must match."
        raise invalid("zero_shot", "bad_shape", told)
    samples, _, classes = adapted.shape
    labels = None if body.labels is None else np.array(body.labels)
    if labels is not None and (len(labels) != samples or labels.min() < 0 or labels.max() >= classes):
        told = f"labels must have {samples} values from 0 to {classes - 1}, one per sample."
        raise invalid("labels", "bad_labels", told)
    alpha = body.alpha
    if body.text_features is not None:
        if alpha is not None:
            raise invalid("alpha", "two_alphas", "Send alpha or text_features, not both.")
        alpha = _mean_similarity(_array("text_features", body.text_features), classes)
    return CalibrateItem(adapted=adapted, zero_shot=zero_shot, method=body.method, alpha=alpha, labels=labels)


def _mean_similarity(features: np.ndarray, classes: int) -> float:
    try:
        alpha = mean_similarity(features)
    except InputError as error:
        raise invalid("text_features", "bad_text_features", str(error)) from None
    if len(features) != classes:
        told = f"text_features must have one row per class, {classes}, not {len(features)}."
        raise invalid("text_features", "bad_text_features", told)
    return alpha


def _logits(name: str, values: Any) -> np.ndarray:
    """(samples, views, classes), with one view where there are two dimensions."""
    array = _array(name, values)
    if array.ndim not in (2, 3) or 0 in array.shape:
        told = f"{name} must be (samples, classes) or (samples, views, classes) and not empty."
        raise invalid(name, "bad_shape", told)
    return array[:, None] if array.ndim == 2 else array


def _array(name: str, values: Any) -> np.ndarray:
    try:
        array = np.array(values, dtype=np.float64)
    except ValueError:
        raise invalid(name, "ragged", f"{name} has rows of different lengths.") from None
    if not np.isfinite(array).all():
        raise invalid(name, "not_finite", f"{name} contains a value that is not finite.")
    return array
