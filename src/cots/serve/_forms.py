"""The fields of a prediction request, each checked before anything is queued."""

from __future__ import annotations

from typing import Any

from PIL import Image
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.requests import Request

from .._errors import InputError, unknown_name
from ..methods import Method, parse_method
from ..prompts import clean_name
from ..views import image_size
from ._errors import ApiError, invalid
from ._predict import PredictItem, offered
from ._settings import ServeSettings

FIELDS = ("image", "classes", "methods", "template", "top", "seed", "thumbnails")
# What people have; PIL reads some forty others, whose parsers need not be reachable for strangers.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
TEMPLATE, METHODS = "a photo of a {}.", "tpt+ecots"
MAX_TEXT, MAX_NAME, MAX_TEMPLATE, MAX_SEED = 2**20, 200, 300, 2**63 - 1

BODY: dict[str, Any] = {
    "type": "object",
    "required": ["image", "classes"],
    "additionalProperties": False,
    "properties": {
        "image": {"type": "string", "format": "binary", "description": "A JPEG, PNG, WebP, ... file."},
        "classes": {"type": "string", "description": f"Class names, one a line, each at most {MAX_NAME} characters."},
        "methods": {"type": "string", "default": METHODS, "description": "adapter or adapter+calibrator, with commas."},
        "template": {"type": "string", "default": TEMPLATE, "maxLength": MAX_TEMPLATE},
        "top": {"type": "integer", "default": 5, "minimum": 1, "description": "How many classes to name."},
        "seed": {"type": "integer", "default": 0, "minimum": 0, "maximum": MAX_SEED},
        "thumbnails": {"type": "boolean", "default": False, "description": "Send the selected views as small images."},
    },
}


async def read_form(request: Request, settings: ServeSettings) -> PredictItem:
    """The request as a PredictItem, or an ApiError that names the field."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise ApiError(415, "not_multipart", "Send the image and the fields as multipart/form-data (curl -F).")
    try:
        form = await request.form(max_files=len(FIELDS), max_fields=len(FIELDS), max_part_size=MAX_TEXT)
    except ApiError:
        raise
    except Exception as error:
        # Its own errors, and what hostile bodies make of the parser: each is the client's fault.
        reason = getattr(error, "detail", None) or "the parts cannot be read"
        raise ApiError(400, "bad_form", f"The multipart body is wrong: {reason}") from None
    try:
        given: dict[str, Any] = {}
        for name, value in form.multi_items():
            if name not in FIELDS:
                raise invalid(name[:100], "unknown_field", str(unknown_name("field", name[:100], FIELDS)))
            if name in given:
                raise invalid(name, "repeated_field", f"{name} is given twice; give it once.")
            given[name] = value
        image = given.pop("image", None)
        for name, value in given.items():
            if not isinstance(value, str):
                raise invalid(name, "not_text", f"{name} must be text, not a file; with curl, {name}=<FILE.")
        if image is None:
            raise invalid(
                "image", "missing_image", "image is missing: send the photo's file, such as image=@photo.jpg."
            )
        if not isinstance(image, UploadFile):
            raise invalid("image", "not_a_file", "image must be sent as a file, such as image=@photo.jpg.")
        data, name = await image.read(), image.filename or ""
    finally:
        await form.close()
    item = PredictItem(
        image=data,
        name=name.replace("\\", "/").rsplit("/", 1)[-1][:200],
        classes=read_classes(given.get("classes"), settings.max_classes),
        methods=read_methods(given.get("methods", METHODS), settings.max_methods),
        template=read_template(given.get("template", TEMPLATE)),
        top=read_whole("top", given.get("top", "5"), 1, settings.max_classes),
        seed=read_whole("seed", given.get("seed", "0"), 0, MAX_SEED),
        thumbnails=read_flag("thumbnails", given.get("thumbnails", "false")),
    )
    await run_in_threadpool(check_header, item.image, settings.max_pixels)
    return item


def read_classes(text: str | None, most: int) -> tuple[str, ...]:
    """Class names, one a line; blank lines do not count."""
    lines = (text or "").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").splitlines()
    names = [name for line in lines if (name := clean_name(line))]
    if not names:
        raise invalid("classes", "no_classes", "classes is empty: give the names to choose from, one a line.")
    if len(names) > most:
        raise invalid("classes", "too_many_classes", f"{len(names)} classes are more than {most}; give fewer.")
    seen: set[str] = set()
    for name in names:
        if len(name) > MAX_NAME:
            raise invalid(
                "classes", "name_too_long", f"The name {name[:40] + '...'!r} has {len(name)} characters, the most is "
                f"{MAX_NAME}; shorten it. One name a line."
            )  # fmt: skip
        if name in seen:
            raise invalid(
                "classes", "duplicate_class", f"The class {name!r} is given twice, so its probability would be split; "
                "remove one or make the names distinct."
            )  # fmt: skip
        seen.add(name)
    return tuple(names)


def read_methods(text: str, most: int) -> tuple[Method, ...]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise invalid("methods", "no_methods", "methods is empty: give one or more, such as tpt+ecots.")
    if len(names) > most:
        raise invalid("methods", "too_many_methods", f"{len(names)} methods are more than {most}; give fewer.")
    methods: list[Method] = []
    for name in names:
        try:
            method = parse_method(name[:100])
        except InputError as error:
            raise invalid("methods", "bad_method", str(error)) from None
        if reason := offered(method.adapter):
            raise invalid("methods", "not_offered", reason)
        if method not in methods:
            methods.append(method)
    return tuple(methods)


def read_template(text: str) -> str:
    if len(text) > MAX_TEMPLATE:
        raise invalid(
            "template", "template_too_long", f"template has {len(text)} characters; the most is {MAX_TEMPLATE}."
        )
    if text.count("{}") != 1 or text.replace("{}", "").count("{") + text.replace("{}", "").count("}"):
        raise invalid("template", "bad_template", f"template {text!r} must hold {{}} exactly once, for the class name.")
    return text


def read_whole(name: str, text: str, least: int, most: int) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20 and least <= int(digits) <= most):
        raise invalid(name, f"bad_{name}", f"{name} must be a whole number from {least} to {most}, not {text[:40]!r}.")
    return int(digits)


def read_flag(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise invalid(name, f"bad_{name}", f"{name} must be true or false, not {text[:40]!r}.")
    return word == "true"


def check_header(data: bytes, max_pixels: int) -> None:
    """Refuse what is no image, or one of too many pixels, from its header alone: nothing is decoded."""
    if not data:
        raise ApiError(415, "not_an_image", "image is empty (0 bytes); send a JPEG, PNG or WebP file.", "image")
    try:
        width, height = image_size(data, FORMATS)
    except InputError as error:
        if isinstance(error.__cause__, Image.DecompressionBombError):
            raise too_many_pixels(f"{error.__cause__}", max_pixels) from None
        raise ApiError(415, "not_an_image", str(error), "image") from None
    if width * height > max_pixels:
        raise too_many_pixels(f"{width} x {height} pixels", max_pixels)


def too_many_pixels(what: str, most: int) -> ApiError:
    return ApiError(413, "too_many_pixels", f"image is refused before decoding: {what}; the most is {most}.", "image")
