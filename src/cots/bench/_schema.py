"""The schema of a manifest, checked when it is read, so that readers can rely on it."""

import math
from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any], bool] | dict[str, Any] | list[Any]
_MISSING = object()
_MOST_SAMPLES, _MOST_SHARDS = 10**9, 10**6  # per dataset; a damaged number must not cause hours of counting


def _text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return bool(value.encode()) or not value
    except UnicodeEncodeError:  # half of a surrogate pair, which cannot be written or printed
        return False


def _folder(value: Any) -> bool:
    """Text that is a valid folder name and not a path."""
    return _text(value) and value not in ("", ".", "..") and not set(value) & set("/\\\0")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return _whole(value) and 1 <= value <= _MOST_SAMPLES


def _number(value: Any) -> bool:
    return (_whole(value) or isinstance(value, float)) and math.isfinite(value)


def _anything(value: Any) -> bool:
    return True


def _maybe(shape: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or shape(value)


_ENVIRONMENT = {"cots": _text, "versions": {"*": _text}, "threads": _whole}
_SETTINGS = {"adapter": {"*": _anything}, "calibrator": {"*": _anything}, "stream_order?": _text}
_DATASET = {
    "name": _folder,
    "title": _maybe(_text),
    "n": _count,
    "limit": _maybe(_count),
    "classes": [_text],
    "split_hash": _text,
    "views": _count,
    "augmix": lambda value: isinstance(value, bool),
    "view_settings": {"*": _anything},
    "template": _text,
    "context?": _maybe(_text),
    "corrupt?": _maybe(_text),
    "alpha": _maybe(_number),
    "average?": _maybe(_text),
}
# A key that ends in "?" is optional, "*" stands for every key, and lists must not be empty.
_MANIFEST = {
    "schema": _whole,
    "created": _text,
    **_ENVIRONMENT,
    "model": {"name": _text, "weights_hash": _text, "precision": _text},
    "device": _text,
    "renderer?": _text,
    "seeds": [_whole],
    "methods": [_folder],
    "batch_size": _count,
    "shard_size": _count,
    "datasets": [_DATASET],
    "settings": {"*": {"*": _SETTINGS}},
    "plugins?": {"*": _text},
    "config?": {"*": _anything},
    "resumed?": [_ENVIRONMENT],
}


def problem(manifest: dict[str, Any]) -> str | None:
    """What is wrong with a manifest, or None."""
    if where := _misfit(manifest, _MANIFEST, ""):
        return f"{where} is missing or wrong"
    for entry in manifest["datasets"]:
        if entry["n"] > _MOST_SHARDS * manifest["shard_size"]:
            return f"{entry['name']} has too many shards"
        if not manifest["settings"].get(entry["name"], {}).keys() >= set(manifest["methods"]):
            return f"settings of {entry['name']} are missing"
    return None


def _misfit(value: Any, shape: Shape, path: str) -> str | None:
    """The path where `value` does not match `shape`, or None."""
    if isinstance(shape, list):
        given = value if isinstance(value, list) else []
        items = [(f"{path}[{i}]", item, shape[0]) for i, item in enumerate(given)] or None
    elif isinstance(shape, Mapping):
        items = list(_members(value, shape, path)) if isinstance(value, dict) else None
    else:
        return None if shape(value) else path
    if items is None:
        return path or "the object"
    return next(filter(None, (_misfit(item, inner, where) for where, item, inner in items)), None)


def _members(value: dict[str, Any], shape: Mapping[str, Any], path: str) -> "list[tuple[str, Any, Shape]]":
    if "*" in shape:
        return [(f"{path}[{key!r}]", item, shape["*"]) for key, item in value.items()]
    required = {key.removesuffix("?"): inner for key, inner in shape.items() if key[-1] != "?" or key[:-1] in value}
    return [(f"{path}.{name}".lstrip("."), value.get(name, _MISSING), inner) for name, inner in required.items()]
