"""Request bodies: read within the limits and checked field by field before anything is queued."""

import base64
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from fastapi import Request
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, WithJsonSchema
from starlette.concurrency import run_in_threadpool

from .._errors import InputError, unknown_name
from .._notation import split_methods
from ..adapters import ADAPTERS
from ..classes import clean_name, read_classes
from ..methods import Method, parse_method
from ..prompts import DEFAULT_TEMPLATE, read_descriptions
from ..views import LargeImage, check_image
from ._forms import File, read_items
from ._json import read_body, read_members, read_value
from ._schemas import ApiError, Strict, invalid
from ._settings import ServeSettings

MAX_NAME, MAX_TEMPLATE, MAX_SEED = 200, 300, 2**63 - 1
KEPT, KEPT_TEXT = 16, 2**15  # texts of class names, and the characters of one, whose names are kept
MAX_TUNING, MAX_FITTING = 10, 200  # steps of an adapter and of a calibrator
Descriptions = tuple[tuple[str, tuple[str, ...]], ...]  # the sentences of each name
Key = tuple[tuple[str, ...], str, Descriptions, tuple[Method, ...], bool]
TEXT = WithJsonSchema({"type": "string"})
NO_CLASSES = ("no_classes", "classes is empty; send the candidate class names, one per line.")
COMMA = "{} counts as one class, because it is one of several lines; write one class name per line."


def offered(adapter: str) -> str | None:
    """None, or why the server does not offer an adapter."""
    if ADAPTERS.info(adapter).online:
        return f"{adapter} is an online method whose answers depend on other people's images; use cots predict."
    if ADAPTERS.info(adapter).takes != "features":
        return f"{adapter} tunes the image encoder, which requests share; use cots predict."
    if ADAPTERS.info(adapter).takes_attributes:
        return f"{adapter} needs words for each class, which requests do not have; use cots predict --attributes FILE."
    return None


def _classes(given: Any) -> Any:
    if isinstance(given, str):
        return _kept_names(given) if len(given) <= KEPT_TEXT else _names_in(given)
    if not isinstance(given, list):
        return given
    _check_texts("classes", given)
    return _checked_names(tuple(name for part in given if (name := clean_name(part))))


def _names_in(text: str) -> tuple[str, ...]:
    """The class names in a text."""
    if not text.strip(" ,\r\n\t\N{ZERO WIDTH NO-BREAK SPACE}"):
        raise invalid("classes", *NO_CLASSES)
    try:
        return _checked_names(read_classes(text, files=False))
    except InputError as error:
        raise invalid("classes", "bad_classes", str(error)) from None


_kept_names = lru_cache(maxsize=KEPT)(_names_in)  # clients send the same text with every photo


def _checked_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise invalid("classes", *NO_CLASSES)
    if long := next((name for name in names if len(name) > MAX_NAME), None):
        problem = f"The name {long[:40] + '...'!r} has {len(long)} characters, more than {MAX_NAME}; shorten it."
        raise invalid("classes", "name_too_long", problem)
    return names


def _methods(given: Any) -> Any:
    parts = list(split_methods(given)) if isinstance(given, str) else given
    if not isinstance(parts, list):
        return given
    _check_texts("methods", parts)
    names = [part.strip() for part in parts if part.strip()]
    if not names:
        raise invalid("methods", "no_methods", "methods is empty; send one or more, such as tpt+ecots.")
    try:
        known = {name: parse_method(name) for name in dict.fromkeys(names)}
    except InputError as error:
        raise invalid("methods", "bad_method", str(error)) from None
    if reason := next(filter(None, map(_not_offered, known.values())), None):
        raise invalid("methods", "not_offered", reason)
    return tuple(known[name] for name in names)


def _not_offered(method: Method) -> str | None:
    """None, or why the server does not offer a method with these settings."""
    for part, most in (("adapter", MAX_TUNING), ("calibrator", MAX_FITTING)):
        steps = dict(getattr(method, f"{part}_settings")).get("steps", 0)
        if steps > most:
            return f"{method} takes {steps} steps, more than {most} for a request; use cots predict."
    return offered(method.adapter)


def _check_texts(field: str, values: list[Any]) -> None:
    """Refuse the first element that is not text; pydantic would collect an error for each."""
    for value in values:
        if not isinstance(value, str):
            raise invalid(field, "not_text", f"{field} must be a list of texts, not of {type(value).__name__}.")


def _template(text: str) -> str:
    if text.count("{}") != 1 or set(text.replace("{}", "")) & set("{}"):
        raise invalid("template", "bad_template", f"template {text!r} must contain {{}} once, for the class name.")
    return text


def _descriptions(given: Any) -> Any:
    """The sentences of each name that has some."""
    try:
        content = msgspec.json.decode(given) if isinstance(given, str) else given
        if not isinstance(content, dict):
            raise InputError('descriptions must be a JSON object such as {"cat": ["A cat has whiskers."]}.')
        return tuple(zip(content, read_descriptions(content, tuple(content)), strict=True))
    except (ValueError, RecursionError) as error:
        problem = str(error) if isinstance(error, InputError) else f"descriptions is not valid JSON ({error})."
        raise invalid("descriptions", "bad_descriptions", problem) from None


class PredictFields(Strict):
    """The fields of POST /v1/predict besides the photo; requests with an equal `key` can run together."""

    classes: Annotated[tuple[str, ...], BeforeValidator(_classes), TEXT] = Field(
        description="Class names, one per line or in one line with commas, or a known list such as imagenet. "
        f"Each name has at most {MAX_NAME} characters.",
        repr=False,
    )
    methods: Annotated[tuple[Method, ...], BeforeValidator(_methods), TEXT] = Field(
        default="tpt+ecots",
        validate_default=True,
        description="Comma-separated: adapter or adapter+calibrator, with settings such as tpt(steps=2)+cots(k=4).",
    )
    template: Annotated[str, AfterValidator(_template)] = Field(default=DEFAULT_TEMPLATE, max_length=MAX_TEMPLATE)
    descriptions: Annotated[Descriptions, BeforeValidator(_descriptions), TEXT] = Field(
        default=(),
        description='JSON such as {"cat": ["A cat has whiskers."]}: sentences about each class, averaged with the '
        "template; for methods that tune no context.",
        repr=False,
    )
    top: int = Field(default=5, ge=1, description="Number of classes to return per method.")
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    abstain: float | None = Field(default=None, gt=0, le=1, description="Give no label below this confidence.")
    none_of_these: bool = Field(default=False, description="Give no label to photos that seem to belong to no class.")
    ranges: bool = Field(default=False, description="Return the range of each confidence under other random views.")
    thumbnails: bool = Field(default=False, description="Return the selected views as small images.")

    @property
    def key(self) -> Key:
        return self.classes, self.template, self.descriptions, self.methods, self.ranges


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """A photo and the fields of its request; arrived: when, by `time.perf_counter`."""

    image: bytes = field(repr=False)
    fields: PredictFields
    name: str = ""
    arrived: float = field(default_factory=time.perf_counter)

    @property
    def key(self) -> Key:
        return self.fields.key


@dataclass(frozen=True, kw_only=True)
class RefusedPhoto:
    """A photo of a batch that cannot be used."""

    name: str
    error: ApiError


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The undecoded fields of a request, and its photos by name."""

    given: dict[str, Any]
    photos: list[tuple[str, bytes]]


async def read_predict(request: Request, settings: ServeSettings) -> PredictRequest:
    """The checked request, or an ApiError that names the field."""
    parts = await _read_parts(request, "image", 1)
    if not parts.photos:
        raise invalid("image", "missing_image", "image is missing; send the photo's file, such as image=@photo.jpg.")
    (photo,) = await run_in_threadpool(_check, parts, settings)
    if isinstance(photo, RefusedPhoto):
        raise photo.error
    return photo


async def read_batch(request: Request, settings: ServeSettings) -> list[PredictRequest | RefusedPhoto]:
    """The photos in order; an invalid field fails all photos."""
    parts = await _read_parts(request, "images", settings.max_images)
    if not parts.photos:
        raise invalid("images", "missing_images", "images is empty; send one or more, such as images=@photo.jpg.")
    return await run_in_threadpool(_check, parts, settings)


def _check(parts: _Parts, settings: ServeSettings) -> list[PredictRequest | RefusedPhoto]:
    fields = _check_fields(parts.given, settings)
    checked: list[PredictRequest | RefusedPhoto] = []
    for name, data in parts.photos:
        try:
            _check_photo(data, settings.max_pixels)
            checked.append(PredictRequest(name=name, image=data, fields=fields))
        except ApiError as error:
            checked.append(RefusedPhoto(name=name, error=error))
    return checked


def _check_fields(given: dict[str, Any], settings: ServeSettings) -> PredictFields:
    try:
        fields = PredictFields.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
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
    if fields.descriptions:
        _check_descriptions(fields, settings.max_classes)
    if fields.top > settings.max_classes:
        raise invalid("top", "bad_top", f"top must be at most {settings.max_classes}, not {fields.top}.")
    return fields


def _check_descriptions(fields: PredictFields, most: int) -> None:
    """Refuse classes without a sentence, and more sentences than a request may have classes."""
    try:
        sentences = read_descriptions(dict(fields.descriptions), fields.classes)
    except InputError as error:
        raise invalid("descriptions", "bad_descriptions", str(error)) from None
    if (count := sum(map(len, sentences))) > most:
        raise invalid("descriptions", "too_many_descriptions", f"{count} sentences exceed the limit of {most}.")


def _check_photo(data: bytes, max_pixels: int) -> None:
    """Check a photo's format and size from its header."""
    try:
        check_image(data, max_pixels)
    except LargeImage as error:
        problem = f"{str(error).partition('. ')[0]}; the limit is {max_pixels} pixels of 8-bit RGB (--max-pixels)."
        raise ApiError(413, "too_many_pixels", problem, "image") from None
    except InputError as error:
        raise ApiError(415, "not_an_image", str(error), "image") from None


async def _read_parts(request: Request, key: str, most: int) -> _Parts:
    """The fields of a form or of JSON, and the photos under `key`, at most `most`."""
    kind = content_type(request)
    names = [key, *PredictFields.model_fields]
    if kind == "multipart/form-data":
        parts = await _read_form(request, key, most)
    elif kind == "application/json":
        body = await read_body(request)
        parts = await run_in_threadpool(_parse_json, body, names, most)
    else:
        problem = "Send the photo and the fields as multipart/form-data (curl -F), or as application/json with base64."
        raise ApiError(415, "not_multipart", problem)
    for name in parts.given:
        if name not in names:
            raise invalid(name[:100], "unknown_field", str(unknown_name("field", name[:100], names)))
    if len(parts.photos) > most:
        raise _too_many(key, f"{len(parts.photos)}", most)
    return parts


def _too_many(key: str, count: str, most: int) -> ApiError:
    return invalid(key, f"too_many_{key}", f"{count} photos exceed the limit of {most}; send fewer.")


async def _read_form(request: Request, key: str, most: int) -> _Parts:
    # FastAPI's Form() would replace an empty field by its default and keep the last of repeated fields.
    given: dict[str, Any] = {}
    photos: list[tuple[str, bytes]] = []
    for name, value in await read_items(request, len(PredictFields.model_fields) + 1 + most):
        if name in given or (name == key and photos and most == 1):
            raise invalid(name[:100], "repeated_field", f"{name[:100]} appears twice; send it once.")
        if name != key:
            given[name] = value
        elif isinstance(value, File):
            photos.append((value.name.replace("\\", "/").rsplit("/", 1)[-1][:200], value.data))
        else:
            raise invalid(key, "not_a_file", f"{key} must be a file, such as {key}=@photo.jpg.")
    return _Parts(given=given, photos=photos)


def _parse_json(body: bytearray, names: list[str], most: int) -> _Parts:
    key, *fields = names
    members = read_members(body, names)
    given = {name: read_value(name, members[name]) for name in fields if name in members}
    photos = memoryview(members.get(key, b"[]"))
    if (count := bytes(photos).count(b'"') // 2) > most:  # base64 has no quotation marks
        raise _too_many(key, f"{count}", most)
    decoded: list[tuple[str, bytes]] = []
    try:  # stops at the first element that is not text
        texts = msgspec.json.decode(photos, type=str | list[str])
        for text in [texts] if isinstance(texts, str) else texts:
            _, _, of_data_url = text.partition(";base64,")
            decoded.append(("", base64.b64decode(of_data_url or text, validate=True)))
    except (ValueError, RecursionError):
        raise invalid(key, "not_base64", f"{key} must be the photo's file in base64.") from None
    return _Parts(given=given, photos=decoded)


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
