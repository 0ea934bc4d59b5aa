"""Request bodies: read within the limits and checked field by field before anything is queued."""

import base64
import binascii
import json
from typing import Annotated, Any

from fastapi import Request
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, WithJsonSchema
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect

from .._errors import InputError, unknown_name
from ..adapters import ADAPTERS
from ..methods import Method, parse_method
from ..prompts import DEFAULT_TEMPLATE, clean_name, list_or_names
from ..views import LargeImage, check_image
from . import ServeSettings
from ._schemas import ApiError, Strict, invalid

# PIL reads about forty other formats, whose parsers should not be exposed to the network.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
MAX_TEXT, MAX_NAME, MAX_TEMPLATE, MAX_SEED = 2**20, 200, 300, 2**63 - 1
TEXT = WithJsonSchema({"type": "string"})
NO_CLASSES = ("no_classes", "classes is empty; send the candidate class names, one per line.")
COMMA = "{} counts as one class, because it is one of several lines; write one class name per line."
NO_IMAGE = ("missing_image", "image is missing; send the photo's file, such as image=@photo.jpg.")


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
        raise invalid("image", *NO_IMAGE)
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
        raise _form_error(error) from None
    for field, most in (("classes", settings.max_classes), ("methods", settings.max_methods)):
        if (size := len(getattr(fields, field))) > most:
            raise invalid(field, f"too_many_{field}", f"{size} {field} exceed the limit of {most}; send fewer.")
    if fields.top > settings.max_classes:
        raise invalid("top", "bad_top", f"top must be at most {settings.max_classes}, not {fields.top}.")
    await run_in_threadpool(_check_header, fields.image, settings.max_pixels)
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
    return given, [("", _decoded(key, text)) for text in texts[: most + 1]]


def _decoded(key: str, text: Any) -> bytes:
    """The bytes of a photo in base64; a data: URL is accepted too."""
    try:
        if not isinstance(text, str):
            raise TypeError
        return base64.b64decode(text.partition(";base64,")[2] or text, validate=True)
    except (TypeError, binascii.Error):
        raise invalid(key, "not_base64", f"{key} must be the photo's file in base64.") from None


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _form_error(error: ValidationError) -> ApiError:
    """The first problem that pydantic found, with the API's own code."""
    found = error.errors(include_url=False, include_context=False)
    first = found[0]
    field, kind = str(first["loc"][0])[:100], first["type"]
    if kind == "missing":
        return invalid(field, *NO_CLASSES)
    if kind.endswith("_type"):
        return invalid(field, "not_text", f"{field} must be text, not a file or null; with curl, use {field}=<FILE.")
    code = "template_too_long" if kind == "string_too_long" else f"bad_{field}"
    return invalid(field, code, f"{field}: {first['msg']}.")


def _check_header(data: bytes, max_pixels: int) -> None:
    """Refuse files that are not images, or have too many pixels, from the header alone."""
    try:
        check_image(data, FORMATS, max_pixels)
    except LargeImage as error:
        problem = f"{str(error).partition('. ')[0]}; the limit is {max_pixels} pixels of 8-bit RGB."
        raise ApiError(413, "too_many_pixels", problem, "image") from None
    except InputError as error:
        raise ApiError(415, "not_an_image", str(error), "image") from None
