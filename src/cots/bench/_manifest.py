"""The manifest: the settings of a run folder, its schema, and whether another run may be added to it."""

import contextlib
import json
import math
import platform
import re
import secrets
import warnings
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from .._checked import DamagedFile, read_json, write_json
from .._errors import CotsError, InputError
from .._files import Location, is_temporary, names, remove
from ._lock import is_lock
from ._protocol import LISTED, settings_by_part

SCHEMA = 1
MANIFEST, DONE = "manifest.json", "DONE"
STREAM = "stream order"
_REMEDY = "Restore it from a copy, or run into a new folder; with the same --cache, it reuses cached features."
PACKAGES = ("torch", "torchvision", "open_clip_torch", "timm", "numpy", "pillow", "safetensors")

_MISSING = object()
_MOST_SAMPLES, _MOST_SHARDS = 10**9, 10**6  # per dataset; a damaged number must not cause hours of counting
_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair, which cannot be written or printed
_KINDS = {
    "anything": lambda value: True,
    "null": lambda value: value is None,
    "truth": lambda value: isinstance(value, bool),
    "text": lambda value: isinstance(value, str) and not _SURROGATE.search(value),
    "folder": lambda value: _KINDS["text"](value) and value not in ("", ".", "..") and not set(value) & set("/\\\0"),
    "whole": lambda value: type(value) is int,
    "count": lambda value: type(value) is int and 1 <= value <= _MOST_SAMPLES,
    "number": lambda value: type(value) in (int, float) and math.isfinite(value),
}
_ENVIRONMENT = {"cots": "text", "versions": {"*": "text"}, "threads": "whole"}
_DATASET = {
    "name": "folder",
    "title": "text or null",
    "n": "count",
    "limit": "count or null",
    "classes": ["text"],
    "split_hash": "text",
    "views": "count",
    "augmix": "truth",
    "view_settings": {"*": "anything"},
    "template": "text",
    "context?": "text or null",
    "corrupt?": "text or null",
    "alpha": "number or null",
    "average?": "text or null",
}
_SETTINGS = {"adapter": {"*": "anything"}, "calibrator": {"*": "anything"}, "stream_order?": "text"}
# A key that ends in "?" is optional, "*" stands for every key, and lists must not be empty.
_SCHEMA = {
    "schema": "whole",
    "id?": "text",
    "created": "text",
    **_ENVIRONMENT,
    "model": {"name": "text", "weights_hash": "text", "precision": "text"},
    "device": "text",
    "renderer?": "text",
    "seeds": ["whole"],
    "methods": ["folder"],
    "batch_size": "count",
    "shard_size": "count",
    "datasets": [_DATASET],
    "settings": {"*": {"*": _SETTINGS}},
    "plugins?": {"*": "text"},
    "config?": {"*": "anything"},
    "resumed?": [_ENVIRONMENT],
}


def describe(resolved: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """A manifest: the resolved settings, the time and the versions of packages."""
    return {
        "schema": SCHEMA,
        "id": secrets.token_hex(8),
        "cots": version("cots"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        **resolved,
        "config": config,
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def read_manifest(folder: Location) -> dict[str, Any] | None:
    """The manifest of a run folder; None if there is none yet."""
    file = folder / MANIFEST
    try:
        manifest = read_json(file, remedy=_REMEDY)
    except FileNotFoundError:
        return None
    if isinstance(schema := manifest.get("schema"), int) and schema != SCHEMA:
        raise CotsError(f"{file} has schema {schema}; this cots reads schema {SCHEMA}. Use the version that wrote it.")
    if wrong := _problem(manifest):
        raise DamagedFile(file, wrong, _REMEDY)
    return manifest


def read_done(folder: Location) -> None:
    """Raise DamagedFile if the run folder has a DONE that cannot be read."""
    if (folder / DONE).is_file():
        read_json(folder / DONE, remedy=_REMEDY)


def _problem(manifest: dict[str, Any]) -> str | None:
    """What is wrong with a manifest, or None."""
    if where := _misfit(manifest, _SCHEMA, ""):
        return f"{where} is missing or wrong"
    for entry in manifest["datasets"]:
        if entry["n"] > _MOST_SHARDS * manifest["shard_size"]:
            return f"{entry['name']} has too many shards"
        if not manifest["settings"].get(entry["name"], {}).keys() >= set(manifest["methods"]):
            return f"settings of {entry['name']} are missing"
    return None


def _misfit(value: Any, shape: Any, path: str) -> str | None:
    """The path where `value` does not match `shape`, or None."""
    if isinstance(shape, str):
        return None if any(_KINDS[kind](value) for kind in shape.split(" or ")) else path
    if not isinstance(value, type(shape)) or (isinstance(shape, list) and not value):
        return path
    if isinstance(shape, list):
        parts = [(f"{path}[{place}]", item, shape[0]) for place, item in enumerate(value)]
    elif "*" in shape:
        parts = [(f"{path}[{key!r}]", item, shape["*"]) for key, item in value.items()]
    else:
        asked = {key.removesuffix("?"): inner for key, inner in shape.items() if key[-1] != "?" or key[:-1] in value}
        parts = [(f"{path}.{key}".lstrip("."), value.get(key, _MISSING), inner) for key, inner in asked.items()]
    return next(filter(None, (_misfit(item, inner, where) for where, item, inner in parts)), None)


def enter(folder: Location, new: dict[str, Any]) -> dict[str, Any]:
    """Add the run of manifest `new` to `folder`; returns the manifest of everything in the folder.

    Refuses a run whose settings would change results. Call it with the folder locked.
    """
    old = read_manifest(folder)
    if old is None:
        if others := [name for name in names(folder) if not is_lock(name) and not is_temporary(name)]:
            raise InputError(f"{folder} contains {others[0]!r} but no run. Use a new or empty folder.")
        write_json(folder / MANIFEST, new)
        return new
    refuse_differences(folder, old, new)
    merged = merge(old, new)
    if merged != old:
        # First, so that no reader sees the new manifest as done.
        remove(folder / DONE)
        write_json(folder / MANIFEST, merged)
    return merged


def refuse_differences(folder: Location, old: dict[str, Any], new: dict[str, Any]) -> None:
    if changed := differences(old, new):
        raise InputError(
            f"{folder} was run with other settings: {'; '.join(changed)}. Use the same settings to resume the run, or "
            "another folder."
        )


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The differing settings that change results, each as 'name: old, now new'."""
    before, after = deciding(old), deciding(new)
    return [
        f"{name}: {_short(before[scope].get(name, _unsaid(name)))}, now {_short(value)}"
        for scope in after
        if scope in before
        for name, value in after[scope].items()
        if value != before[scope].get(name, _unsaid(name))
    ]


def _unsaid(name: str) -> Any:
    """The value of a setting that a manifest lacks: streams used list order before there was a setting."""
    return LISTED if name.startswith(STREAM) else None


def deciding(manifest: dict[str, Any]) -> dict[tuple[str, ...], dict[str, Any]]:
    """The settings that determine results, by their public names: of the run, of each dataset, of each method."""
    model, renderer = manifest["model"], manifest.get("renderer", "pil")
    found: dict[tuple[str, ...], dict[str, Any]] = {
        (): {
            "batch_size": manifest["batch_size"],
            "device": manifest["device"],
            "renderer": "gpu" if renderer == "torch" else renderer,  # its former name
            "model weights": model["weights_hash"],
            "precision": model["precision"],
        }
    }
    for entry in manifest["datasets"]:
        name = entry["name"]
        views = {"views" if key == "n" else key: value for key, value in entry["view_settings"].items()}
        values = {
            "split (samples, labels or class names)": entry["split_hash"],
            **{key: entry.get(key) for key in ("limit", "template", "context", "corrupt")},
            **views,
        }
        found[(name,)] = {f"{key} of {name}": value for key, value in values.items()}
        for (kind, part), settings in settings_by_part(manifest["settings"][name]).items():
            found[name, kind, part] = {f"{key} of {part} on {name}": settings[key] for key in sorted(settings)}
            source = manifest.get("plugins", {}).get(f"{kind} {part}")
            found["plug-in", kind, part] = {f"plug-in of {part}": source}
        for method, settings in manifest["settings"][name].items():
            if order := settings.get("stream_order"):
                adapter = method.partition("+")[0]
                found[name, "adapter", adapter][f"{STREAM} of {adapter} on {name}"] = order
    return found


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`old` plus the methods, seeds and datasets of `new`; keeps the old shard size."""
    merged = json.loads(json.dumps(old))
    for key in ("methods", "seeds"):
        merged[key] += [item for item in new[key] if item not in old[key]]
    names = {entry["name"] for entry in old["datasets"]}
    merged["datasets"] += [entry for entry in new["datasets"] if entry["name"] not in names]
    for name, methods in new["settings"].items():
        known = merged["settings"].setdefault(name, {})
        known |= {method: settings for method, settings in methods.items() if method not in known}
    if new.get("plugins"):
        merged["plugins"] = {**new["plugins"], **old.get("plugins", {})}
    return merged


def note_environment(folder: Location, new: dict[str, Any]) -> None:
    """Warn if a run resumes with other versions or threads, which can change rounding, and record them."""
    manifest = read_manifest(folder) or new
    last = manifest.get("resumed", [manifest])[-1]
    before, after = ({"cots": of["cots"], "threads": of["threads"], **of["versions"]} for of in (last, new))
    if before == after:
        return
    pairs = {name: (before.get(name), after.get(name)) for name in before | after}
    changed = [f"{name} {old} to {now}" for name, (old, now) in pairs.items() if old != now]
    warnings.warn(
        f"{folder} resumes in another environment ({'; '.join(changed)}): new records may differ from earlier ones by "
        "rounding. The manifest records the change.",
        stacklevel=2,
    )
    entry = {"when": new["created"], **{key: new[key] for key in ("cots", "versions", "threads")}}
    write_json(folder / MANIFEST, {**manifest, "resumed": [*manifest.get("resumed", []), entry]})


def _short(value: Any) -> str:
    return value[:12] + "..." if isinstance(value, str) and len(value) == 64 else json.dumps(value)
