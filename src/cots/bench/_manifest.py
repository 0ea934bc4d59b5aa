"""The manifest: the settings of a run folder, and whether another run may be added to it."""

import contextlib
import json
import platform
import time
import warnings
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from .._checked import DamagedFile, read_json, write_json
from .._errors import CotsError, InputError
from .._files import Location, is_temporary, names, remove
from ._lock import is_lock
from ._protocol import LISTED, parts
from ._schema import problem

SCHEMA = 1
MANIFEST, DONE = "manifest.json", "DONE"
STREAM = "stream order"
_REMEDY = "Restore it from a copy, or run into a new folder; with the same --cache, it reuses cached features."
PACKAGES = ("torch", "torchvision", "open_clip_torch", "timm", "numpy", "pillow", "safetensors")


def describe(resolved: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """A manifest: the resolved settings, the time and the versions of packages."""
    return {
        "schema": SCHEMA,
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
    if wrong := problem(manifest):
        raise DamagedFile(file, wrong, _REMEDY)
    return manifest


def enter(folder: Location, new: dict[str, Any]) -> dict[str, Any]:
    """Add the run of manifest `new` to `folder`; returns the manifest of everything in the folder.

    Refuses a run whose settings would change results. Call it with the folder locked.
    """
    old = read_manifest(folder)
    if old is None:
        if others := [name for name in names(folder) if not is_lock(name) and not is_temporary(name)]:
            raise InputError(f"{folder} contains {others[0]!r} but no run. Use a new or empty folder.")
        _write(folder, new)
        return new
    refuse_differences(folder, old, new)
    merged = merge(old, new)
    if merged != old:
        # First, so that no reader sees the new manifest as done.
        remove(folder / DONE)
        _write(folder, merged)
    return merged


def refuse_differences(folder: Location, old: dict[str, Any], new: dict[str, Any]) -> None:
    if changed := differences(old, new):
        raise InputError(
            f"{folder} was run with other settings: {'; '.join(changed)}. Use the same settings to resume the run, or "
            "another folder."
        )


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The differing settings that change results, each as 'name: old, now new'."""
    before, after = _deciding(old), _deciding(new)
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


def _deciding(manifest: dict[str, Any]) -> dict[tuple[str, ...], dict[str, Any]]:
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
        for (kind, part), settings in parts(manifest["settings"][name]).items():
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


def wait_for(folder: Location, new: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Wait until rank 0 has added the run of `new` to the folder's manifest, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        old = read_manifest(folder)
        if old is not None:
            refuse_differences(folder, old, new)
            if merge(old, new) == old:
                return old
        if time.monotonic() > deadline:
            raise CotsError(
                f"Rank 0 did not add this run to {folder / MANIFEST} within {seconds:.0f} s. Check that it runs "
                "with the same command and folder, or wait longer (--wait)."
            )
        time.sleep(min(0.2, max(seconds, 0.01)))


def note_environment(folder: Location, manifest: dict[str, Any], new: dict[str, Any], *, write: bool) -> None:
    """Warn if a run resumes with other versions or threads, which can change rounding, and record them."""
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
    if write:
        entry = {"when": new["created"], **{key: new[key] for key in ("cots", "versions", "threads")}}
        _write(folder, {**manifest, "resumed": [*manifest.get("resumed", []), entry]})


def _short(value: Any) -> str:
    return value[:12] + "..." if isinstance(value, str) and len(value) == 64 else json.dumps(value)


def _write(folder: Location, manifest: dict[str, Any]) -> None:
    write_json(folder / MANIFEST, manifest)
