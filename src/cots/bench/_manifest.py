"""The manifest: what a run folder holds, whether a new command fits it, and what both are together."""

from __future__ import annotations

import json
import platform
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from .._errors import CotsError, InputError
from ._files import is_temporary, names, remove, write_whole
from ._lock import is_lock
from ._paths import Location
from ._protocol import parts

SCHEMA = 1
MANIFEST, DONE = "manifest.json", "DONE"
PACKAGES = ("torch", "torchvision", "open_clip_torch", "timm", "numpy", "pillow", "safetensors")
ENVIRONMENT = ("cots", "versions", "threads")

# What decides the figures of a dataset, by the name that a user knows it by; its other entries follow from these.
_DATASET = {"split_hash": "split (samples, labels or class names)", "limit": "limit", "template": "template"}
_DATASET |= {"context": "context"}


def describe(resolved: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """A manifest: the resolved settings, and where, when and with which versions they are run."""
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
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def read_manifest(folder: Location) -> dict[str, Any] | None:
    """The manifest of a run folder; None where there is none yet."""
    file = folder / MANIFEST
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CotsError(f"{file} cannot be read ({error.strerror or error}).") from error
    try:
        manifest = json.loads(data)
        schema = manifest["schema"]
    except (ValueError, TypeError, KeyError) as error:
        raise CotsError(f"{file} is no manifest of a run ({error!r}); restore it, or start a new folder.") from error
    if schema != SCHEMA:
        raise CotsError(f"{file} has schema {schema}; this cots reads schema {SCHEMA}. Install the cots that wrote it.")
    return manifest


def enter(folder: Location, new: dict[str, Any]) -> dict[str, Any]:
    """Make `folder` hold the run of manifest `new`, besides what it holds already; the manifest of both.

    Refused where a setting that changes results differs. Called with the folder's lock held.
    """
    old = read_manifest(folder)
    if old is None:
        if others := [name for name in names(folder) if not is_lock(name) and not is_temporary(name)]:
            raise InputError(f"{folder} holds {others[0]!r} but no run. Give a new or an empty folder.")
        _write(folder, new)
        return new
    refuse_differences(folder, old, new)
    merged = merge(old, new)
    if merged != old:
        # First: no reader may take the old mark for the longer list.
        remove(folder / DONE)
        _write(folder, merged)
    return merged


def refuse_differences(folder: Location, old: dict[str, Any], new: dict[str, Any]) -> None:
    if changed := list(differences(old, new)):
        raise InputError(
            f"{folder} was run with other settings: {'; '.join(changed)}. Put them back to go on with it, "
            "or give another folder."
        )


def differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """What differs among the settings that change results, each as 'name: old, now new'."""
    yield from _compare("batch_size", old["batch_size"], new["batch_size"])
    yield from _compare("device", old["device"], new["device"])
    yield from _compare("renderer", old.get("renderer", "pil"), new["renderer"])
    for key in ("weights_hash", "precision"):
        name = "precision" if key == "precision" else "model weights"
        yield from _compare(name, old["model"][key], new["model"][key])
    before = {entry["name"]: entry for entry in old["datasets"]}
    for entry in new["datasets"]:
        name = entry["name"]
        if name not in before:
            continue
        known = before[name]
        for key, label in _DATASET.items():
            yield from _compare(f"{label} of {name}", known.get(key), entry[key])
        for key, value in entry["view_settings"].items():
            label = "views" if key == "n" else key
            yield from _compare(f"{label} of {name}", known["view_settings"].get(key), value)
        known_parts = parts(old["settings"][name])
        for part, settings in parts(new["settings"][name]).items():
            for key in sorted(settings) if part in known_parts else ():
                yield from _compare(f"{key} of {part[1]} on {name}", known_parts[part].get(key), settings[key])


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`old` with the methods, seeds and datasets of `new` added; the folder's shard size stays."""
    merged = json.loads(json.dumps(old))
    for key in ("methods", "seeds"):
        merged[key] += [item for item in new[key] if item not in old[key]]
    names = {entry["name"] for entry in old["datasets"]}
    merged["datasets"] += [entry for entry in new["datasets"] if entry["name"] not in names]
    for name, methods in new["settings"].items():
        known = merged["settings"].setdefault(name, {})
        known |= {method: settings for method, settings in methods.items() if method not in known}
    return merged


def covers(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether the run of manifest `new` is a part of `old`'s."""
    return merge(old, new) == old


def wait_for(folder: Location, new: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The manifest that holds the run of `new`, once rank 0 has written it."""
    deadline = time.monotonic() + seconds
    while True:
        old = read_manifest(folder)
        if old is not None:
            refuse_differences(folder, old, new)
            if covers(old, new):
                return old
        if time.monotonic() > deadline:
            raise CotsError(
                f"Rank 0 has not entered this run into {folder / MANIFEST} within {seconds:.0f} s. Check that it runs, "
                "that it was given the same command and sees the same folder; wait= (--wait) waits longer."
            )
        time.sleep(min(0.2, max(seconds, 0.01)))


def note_environment(folder: Location, manifest: dict[str, Any], new: dict[str, Any], *, write: bool = True) -> None:
    """Record, and warn, when a run goes on with other versions or threads than it began with: rounding can differ."""
    last = manifest.get("resumed", [manifest])[-1]
    changed = [f"{key} {last[key]} to {new[key]}" for key in ("cots", "threads") if last[key] != new[key]]
    for package in sorted(last["versions"].keys() | new["versions"].keys()):
        old, now = last["versions"].get(package), new["versions"].get(package)
        changed += [f"{package} {old} to {now}"] if old != now else []
    if not changed:
        return
    warnings.warn(
        f"{folder} goes on in another environment ({'; '.join(changed)}): its later figures may differ from the "
        "earlier ones by rounding. The manifest says so.",
        stacklevel=2,
    )
    if write:
        entry = {"when": new["created"], **{key: new[key] for key in ENVIRONMENT}}
        _write(folder, {**manifest, "resumed": [*manifest.get("resumed", []), entry]})


def _compare(name: str, old: Any, new: Any) -> Iterator[str]:
    if old != new:
        yield f"{name}: {_short(old)}, now {_short(new)}"


def _short(value: Any) -> str:
    return value[:12] + "..." if isinstance(value, str) and len(value) == 64 else json.dumps(value)


def _write(folder: Location, manifest: dict[str, Any]) -> None:
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
