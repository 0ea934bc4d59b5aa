"""Request bodies: read within the limits and checked field by field before anything is queued."""

import base64
import json
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Request
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, WithJsonSchema
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect

from .._arrays import mean_similarity
from .._errors import InputError, unknown_name
from ..adapters import ADAPTERS
from ..calibrators import missing_axis
from ..methods import Method, parse_method
from ..prompts import DEFAULT_TEMPLATE, clean_name, list_or_names
from ..views import LargeImage, check_image
from . import ServeSettings
from ._schemas import ApiError, Strict, invalid

MAX_TEXT, MAX_NAME, MAX_TEMPLATE, MAX_SEED = 2**20, 200, 300, 2**63 - 1
TEXT = WithJsonSchema({"type": "string"})
NO_CLASSES = ("no_classes", "classes is empty; send the candidate class names, one per line.")
COMMA = "{} counts as one class, because it is one of several lines; write one class name per line."


def offered(adapter: str) -> str | None:
    """None, or why the server does not offer an adapter."""
    if ADAPTERS.info(adapter).online:
        return f"{adapter} is an online method whose answers depend on other people's images; use cots predict."
    if ADAPTERS.info(adapter).takes != "features":
        return f"{adapter} tunes the image encoder, which requests share; use cots predict."
    return None


def _classes(given: Any) -> Any:
    if isinstance(given, str):
        lines = given.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").strip().splitlines()
        # One line is a list, as in `cots predict --classes`.
        parts = lines[0].split(",") if len(lines) == 1 else lines
        given = list(list_or_names([part for part in parts if part.strip()]))
    if not isinstance(given, list) or not all(isinstance(part, str) for part in given):
        return given
    names = tuple(name for part in given if (name := clean_name(part)))
    if not names:
        raise invalid("classes", *NO_CLASSES)
    if long := next((name for name in names if len(name) > MAX_NAME), None):
        problem = f"The name {long[:40] + '...'!r} has {len(long)} characters, more than {MAX_NAME}; shorten it."
        raise invalid("classes", "name_too_long", problem)
    return names


def _methods(given: Any) -> Any:
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return given
    names = [part.strip()[:100] for part in parts if part.strip()]
    if not names:
        raise invalid("methods", "no_methods", "methods is empty; send one or more, such as tpt+ecots.")
    try:
        known = {name: parse_method(name) for name in dict.fromkeys(names)}
    except InputError as error:
        raise invalid("methods", "bad_method", str(error)) from None
    if reason := next(filter(None, (offered(method.adapter) for method in known.values())), None):
        raise invalid("methods", "not_offered", reason)
    return tuple(known[name] for name in names)


def _template(text: str) -> str:
    if text.count("{}") != 1 or set(text.replace("{}", "")) & set("{}"):
        raise invalid("template", "bad_template", f"template {text!r} must contain {{}} once, for the class name.")
    return text


class PredictRequest(Strict):
    """The fields of POST /v1/predict; requests with an equal `key` can run together."""

    image: bytes = Field(description="A JPEG, PNG, WebP, ... file.", repr=False)
    classes: Annotated[tuple[str, ...], BeforeValidator(_classes), TEXT] = Field(
        description="Class names, one per line or in one line with commas, or a known list such as imagenet. "
        f"Each name has at most {MAX_NAME} characters.",
        repr=False,
    )
    methods: Annotated[tuple[Method, ...], BeforeValidator(_methods), TEXT] = Field(
        default="tpt+ecots", validate_default=True, description="Comma-separated: adapter or adapter+calibrator."
    )
    template: Annotated[str, AfterValidator(_template)] = Field(default=DEFAULT_TEMPLATE, max_length=MAX_TEMPLATE)
    top: int = Field(default=5, ge=1, description="Number of classes to return per method.")
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    ranges: bool = Field(default=False, description="Return the range of each confidence under other random views.")
    thumbnails: bool = Field(default=False, description="Return the selected views as small images.")

    @property
    def key(self) -> tuple[tuple[str, ...], str, tuple[Method, ...], bool]:
        return self.classes, self.template, self.methods, self.ranges


async def read_predict(request: Request, settings: ServeSettings) -> tuple[PredictRequest, str]:
    """The checked request and the name of its file, or an ApiError that names the field."""
    given, photos = await _body(request, "image", 1)
    if not photos:
        raise invalid("image", "missing_image", "image is missing; send the photo's file, such as image=@photo.jpg.")
    name, data = photos[0]
    return await _checked(given, data, settings), name


async def read_batch(request: Request, settings: ServeSettings) -> list[tuple[str, PredictRequest | ApiError]]:
    """Each photo by name with its checked request, or its error; an invalid field fails all photos."""
    given, photos = await _body(request, "images", settings.max_images)
    if not photos:
        raise invalid("images", "missing_images", "images is empty; send one or more, such as images=@photo.jpg.")
    found: list[tuple[str, PredictRequest | ApiError]] = []
    for name, data in photos:
        try:
            found.append((name, await _checked(given, data, settings)))
        except ApiError as error:
            if error.field != "image":
                raise
            found.append((name, error))
    return found


async def _checked(given: dict[str, Any], image: bytes, settings: ServeSettings) -> PredictRequest:
    try:
        fields = PredictRequest.model_validate({**given, "image": image})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field, kind = str(first["loc"][0])[:100], first["type"]
        if kind == "missing":
            raise invalid(field, *NO_CLASSES) from None
        if kind.endswith("_type"):
            problem = f"{field} must be text, not a file or null; with curl, use {field}=<FILE."
            raise invalid(field, "not_text", problem) from None
        code = "template_too_long" if kind == "string_too_long" else f"bad_{field}"
        raise invalid(field, code, f"{field}: {first['msg']}.") from None
    for field, most in (("classes", settings.max_classes), ("methods", settings.max_methods)):
        if (size := len(getattr(fields, field))) > most:
            raise invalid(field, f"too_many_{field}", f"{size} {field} exceed the limit of {most}; send fewer.")
    if fields.top > settings.max_classes:
        raise invalid("top", "bad_top", f"top must be at most {settings.max_classes}, not {fields.top}.")
    try:  # from the header alone
        await run_in_threadpool(check_image, image, settings.max_pixels)
    except LargeImage as error:
        problem = f"{str(error).partition('. ')[0]}; the limit is {settings.max_pixels} pixels of 8-bit RGB."
        raise ApiError(413, "too_many_pixels", problem, "image") from None
    except InputError as error:
        raise ApiError(415, "not_an_image", str(error), "image") from None
    return fields


async def _body(request: Request, key: str, most: int) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
    """The fields of a form or of JSON, and the photos under `key`, at most `most`."""
    kind = content_type(request)
    if kind not in ("multipart/form-data", "application/json"):
        problem = "Send the photo and the fields as multipart/form-data (curl -F), or as application/json with base64."
        raise ApiError(415, "not_multipart", problem)
    given, photos = await (_form if kind == "multipart/form-data" else _json)(request, key, most)
    known = [key, *(name for name in PredictRequest.model_fields if name != "image")]
    if other := next((name[:100] for name in given if name not in known), None):
        raise invalid(other, "unknown_field", str(unknown_name("field", other, known)))
    if len(photos) > most:
        raise invalid(key, f"too_many_{key}", f"{len(photos)} photos exceed the limit of {most}; send fewer.")
    return given, photos


async def _form(request: Request, key: str, most: int) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
    count = len(PredictRequest.model_fields) + most
    try:
        form = await request.form(max_files=count, max_fields=count, max_part_size=MAX_TEXT)
    except (ApiError, ClientDisconnect):
        raise
    except Exception as error:  # any error of the parser is the client's fault
        reason = getattr(error, "detail", None) or "the parts cannot be read"
        raise ApiError(400, "bad_form", f"The multipart body cannot be parsed: {reason}") from None
    # FastAPI's Form() would replace an empty field by its default and keep the last of repeated fields.
    given: dict[str, Any] = {}
    photos: list[tuple[str, bytes]] = []
    try:
        for name, value in form.multi_items():
            if name in given or (name == key and photos and most == 1):
                raise invalid(name[:100], "repeated_field", f"{name[:100]} appears twice; send it once.")
            if name != key:
                given[name] = value
            elif isinstance(value, UploadFile):
                photos.append(((value.filename or "").replace("\\", "/").rsplit("/", 1)[-1][:200], await value.read()))
            else:
                raise invalid(key, "not_a_file", f"{key} must be a file, such as {key}=@photo.jpg.")
    finally:
        await form.close()
    return given, photos


async def _json(request: Request, key: str, most: int) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
    try:
        given = await run_in_threadpool(json.loads, await request.body())
    except (ValueError, RecursionError) as error:
        raise ApiError(422, "bad_json", f"The body is not a JSON object: {str(error)[:200]}.") from None
    if not isinstance(given, dict):
        raise ApiError(422, "bad_json", "The body is not a JSON object.")
    texts = given.pop(key, [])
    texts = texts if isinstance(texts, list) else [texts]
    try:
        json.dumps(given, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        raise ApiError(422, "bad_json", "The body has text that is not Unicode.") from None
    try:  # a data: URL is accepted too
        files = [base64.b64decode(text.partition(";base64,")[2] or text, validate=True) for text in texts[: most + 1]]
    except (AttributeError, ValueError):
        raise invalid(key, "not_base64", f"{key} must be the photo's file in base64.") from None
    return given, [("", file) for file in files]


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


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
        adapted, zero_shot = (_logits(name, getattr(self, name), self.rows) for name in ("adapted", "zero_shot"))
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
