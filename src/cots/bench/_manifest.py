"""The manifest of a run folder, and whether another run may be added to it."""

import contextlib
import json
import platform
import secrets
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from msgspec.structs import replace

from .._checked import DamagedFile, read_json, write_json
from .._errors import CotsError, InputError
from .._files import Location, is_temporary, names, remove
from .._notation import read_part
from ..adapters import ADAPTERS
from ..calibrators import CALIBRATORS
from ._config import LISTED
from ._lock import is_lock
from ._schema import SCHEMA, DatasetEntry, Manifest, MethodSettings, Resumption, Settings, plain, read_as, upgrade

MANIFEST, DONE = "manifest.json", "DONE"
STREAM = "stream order"
_REMEDY = "Restore it from a copy, or run into a new folder; with the same --cache, it reuses cached features."
PACKAGES = ("torch", "torchvision", "open_clip_torch", "timm", "numpy", "pillow", "safetensors")
_MOST_SHARDS = 10**6  # per dataset; a damaged number must not cause hours of counting

Scope = tuple[str, ...]  # (): the run; (dataset,); (dataset, "adapter", name); ("plug-in", "adapter", name); ...


def new_manifest(**settings: Any) -> Manifest:
    """A manifest with these settings, the time and the versions of packages, in the types of one that was read."""
    manifest = Manifest(
        schema=SCHEMA,
        id=secrets.token_hex(8),
        cots=version("cots"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        threads=torch.get_num_threads(),
        **settings,
    )
    return read_as(plain(manifest), Manifest)


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that can change rounding."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def read_manifest(folder: Location) -> Manifest | None:
    """The manifest of a run folder; None if there is none yet."""
    file = folder / MANIFEST
    try:
        content = read_json(file, remedy=_REMEDY)
    except FileNotFoundError:
        return None
    schema = content.get("schema")
    if isinstance(schema, int) and schema != SCHEMA:
        raise CotsError(f"{file} has schema {schema}; this cots reads schema {SCHEMA}. Use the version that wrote it.")
    try:
        manifest = read_as(upgrade(content), Manifest)
        _check_consistency(manifest)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(file, str(error), _REMEDY) from error
    return manifest


def _check_consistency(manifest: Manifest) -> None:
    for entry in manifest.datasets:
        if entry.n > _MOST_SHARDS * manifest.shard_size:
            raise ValueError(f"{entry.name} has too many shards")
        if not manifest.settings.get(entry.name, {}).keys() >= set(manifest.methods):
            raise ValueError(f"settings of {entry.name} are missing")


def write_manifest(folder: Location, manifest: Manifest) -> None:
    write_json(folder / MANIFEST, plain(manifest))


def read_done(folder: Location) -> None:
    """Raise DamagedFile if the run folder has a DONE that cannot be read."""
    if (folder / DONE).is_file():
        read_json(folder / DONE, remedy=_REMEDY)


def enter(folder: Location, new: Manifest) -> Manifest:
    """Add the run of manifest `new` to `folder`; returns the manifest of everything in the folder.

    Refuses a run whose settings would change results. Call it with the folder locked.
    """
    old = read_manifest(folder)
    if old is None:
        for name in names(folder):
            if not is_lock(name) and not is_temporary(name):
                raise InputError(f"{folder} contains {name!r} but no run. Use a new or empty folder.")
        write_manifest(folder, new)
        return new
    if changed := differences(old, new):
        raise InputError(
            f"{folder} was run with other settings: {'; '.join(changed)}. Use the same settings to resume the run, or "
            "another folder."
        )
    merged = merge(old, new)
    if merged != old:
        # First, so that no reader sees the new manifest as done.
        remove(folder / DONE)
        write_manifest(folder, merged)
    return merged


def differences(old: Manifest, new: Manifest) -> list[str]:
    """The differing settings that change results, each as 'name: old, now new'."""
    before, after = deciding(old), deciding(new)
    changed = []
    for scope, settings in after.items():
        if scope not in before:
            continue
        for name, value in settings.items():
            previous = before[scope][name] if name in before[scope] else _before_there_was(scope, name)
            if value != previous:
                changed.append(f"{name}: {_short(previous)}, now {_short(value)}")
    return changed


def _before_there_was(scope: Scope, name: str) -> Any:
    """The value that a setting had in versions without it: the order of the list, or the function's default."""
    if name.startswith(STREAM):
        return LISTED
    registry = {"adapter": ADAPTERS, "calibrator": CALIBRATORS}.get(scope[1] if len(scope) == 3 else "")
    if registry is None or scope[0] == "plug-in":
        return None
    return plain(registry.settings(_registered(scope[2])).get(name.partition(" of ")[0]))


def deciding(manifest: Manifest) -> dict[Scope, dict[str, Any]]:
    """The settings that determine results, by their public names: of the run, of each dataset, of each method."""
    scopes: dict[Scope, dict[str, Any]] = {
        (): {
            "batch_size": manifest.batch_size,
            "device": manifest.device,
            "renderer": manifest.renderer,
            "model weights": manifest.model.weights_hash,
            "precision": manifest.model.precision,
        }
    }
    for entry in manifest.datasets:
        scopes[entry.name,] = {f"{key} of {entry.name}": value for key, value in _of_dataset(entry).items()}
        for (kind, part), settings in settings_by_part(manifest.settings[entry.name]).items():
            where = f"of {part} on {entry.name}"
            scopes[entry.name, kind, part] = {f"{key} {where}": settings[key] for key in sorted(settings)}
            source = manifest.plugins.get(f"{kind} {_registered(part)}")
            scopes["plug-in", kind, part] = {f"plug-in of {part}": source}
        for method, chosen in manifest.settings[entry.name].items():
            if chosen.stream_order:
                adapter = method.partition("+")[0]
                name = f"{STREAM} of {adapter} on {entry.name}"
                scopes[entry.name, "adapter", adapter][name] = chosen.stream_order
    return scopes


def _of_dataset(entry: DatasetEntry) -> dict[str, Any]:
    views = {"views" if key == "n" else key: value for key, value in entry.view_settings.items()}
    return {
        "split (samples, labels or class names)": entry.split_hash,
        "limit": entry.limit,
        "template": entry.template,
        "context": entry.context,
        "descriptions": entry.descriptions,
        "attributes": entry.attributes,
        "corrupt": entry.corrupt,
        **views,
    }


def settings_by_part(methods: Mapping[str, MethodSettings]) -> dict[tuple[str, str], Settings]:
    """Settings by kind and part, as written, from settings by method.

    A part has the same settings in all its methods, but one that a later version added may have more, at their default.
    """
    parts: dict[tuple[str, str], Settings] = {}
    for method, settings in methods.items():
        adapter, _, calibrator = method.partition("+")
        parts.setdefault(("adapter", adapter), settings.adapter)
        parts.setdefault(("calibrator", calibrator or "none"), settings.calibrator)
    return parts


def _registered(part: str) -> str:
    """The registered name of a part as written."""
    try:
        return read_part(part).name
    except InputError:  # of a foreign manifest
        return part


def merge(old: Manifest, new: Manifest) -> Manifest:
    """`old` plus the methods, seeds and datasets of `new`; keeps the old shard size."""
    known = {entry.name for entry in old.datasets}
    settings = {name: dict(methods) for name, methods in old.settings.items()}
    for name, methods in new.settings.items():
        settings[name] = settings.get(name, {})
        for method, chosen in methods.items():
            settings[name].setdefault(method, chosen)
    return replace(
        old,
        methods=tuple(dict.fromkeys((*old.methods, *new.methods))),
        seeds=tuple(dict.fromkeys((*old.seeds, *new.seeds))),
        datasets=(*old.datasets, *(entry for entry in new.datasets if entry.name not in known)),
        settings=settings,
        plugins={**new.plugins, **old.plugins},
    )


def note_environment(folder: Location, new: Manifest) -> None:
    """Warn if a run resumes with other versions or threads, which can change rounding, and record them."""
    manifest = read_manifest(folder) or new
    last = manifest.resumed[-1] if manifest.resumed else manifest
    before, after = last.versions_and_threads(), new.versions_and_threads()
    if before == after:
        return
    changed = []
    for name in before | after:
        if before.get(name) != after.get(name):
            changed.append(f"{name} {before.get(name)} to {after.get(name)}")
    warnings.warn(
        f"{folder} resumes in another environment ({'; '.join(changed)}): new records may differ from earlier ones by "
        "rounding. The manifest records the change.",
        stacklevel=2,
    )
    entry = Resumption(when=new.created, cots=new.cots, versions=new.versions, threads=new.threads)
    write_manifest(folder, replace(manifest, resumed=(*manifest.resumed, entry)))


def _short(value: Any) -> str:
    return value[:12] + "..." if isinstance(value, str) and len(value) == 64 else json.dumps(value)
