"""The paper's fifteen test sets by name (protocols.toml), in CoOp's layout, and folders with one folder per class."""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .._errors import InputError, unknown_name
from .._folders import images_below, listing, require_folder, shorten, subfolders
from ..classes import ClassFile, clean_name, imagenet_names, synsets
from ._dataset import Dataset, Protocol, Sample
from ._files import BY_SYNSET, name_folders

_HELP = "see https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
AUTHORS_FOLDER = "few-shot-datasets"  # where the authors' code keeps the fine-grained sets
SPLIT_FOLDERS = {"train", "training", "val", "valid", "validation", "test"}


def _load() -> Mapping[str, Protocol]:
    methods = _read_table("settings.toml")
    weights = methods.pop("weights")
    protocols = {}
    for name, table in _read_table("protocols.toml").items():
        settings = {method: {"weight": by_column[table["column"]]} for method, by_column in weights.items()}
        for method, by_dataset in methods.items():
            settings[method] = _with_tuples(by_dataset.get(name, {}))
        protocols[name] = Protocol(name=name, by_method=settings, **_with_tuples(table))
    return MappingProxyType(protocols)


def _read_table(file: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


def _with_tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(table)
    for key, value in table.items():
        if isinstance(value, list):
            fields[key] = tuple(value)
    return fields


PROTOCOLS: Mapping[str, Protocol] = _load()
"""The fifteen protocols by name, in the order of the paper's columns."""


def _key(name: str) -> str:
    return re.sub("[-_ ]", "", name.casefold())


_BY_KEY = {_key(alias): p for p in PROTOCOLS.values() for alias in (p.name, p.title, p.folder, *p.aliases)}


def is_protocol(name: str) -> bool:
    """Whether `name` is one of a protocol's names."""
    return _key(name) in _BY_KEY


def find_protocol(name: str) -> Protocol:
    """The protocol called `name`: its name, title, folder or alias, in any case, with or without "-" and "_".

    >>> find_protocol("oxford_pets").name, find_protocol("V").title, find_protocol("Flower102").folder
    ('pets', 'ImageNet-V2', 'oxford_flowers')
    """
    if is_protocol(name):
        return _BY_KEY[_key(name)]
    near = difflib.get_close_matches(_key(name), _BY_KEY, n=1)
    if near:
        guess = _BY_KEY[near[0]].name
        raise InputError(f"Unknown dataset {name!r}. Did you mean {guess!r}? `cots ls datasets` lists all of them.")
    raise unknown_name("dataset", name, PROTOCOLS)


def own_name(*parts: str) -> str:
    """A name for your own data from the end of its path; never the name of a protocol."""
    last = parts[-1]
    telling = last
    if last.casefold() in SPLIT_FOLDERS | {"images", ""}:
        telling = "-".join(parts[-2:])
    name = re.sub(r"[^A-Za-z0-9._]+", "-", telling).strip("-.") or "data"
    return f"{name}-own" if is_protocol(name) else name


def available(root: str | Path) -> tuple[Protocol, ...]:
    """The protocols with images below `root`, in the paper's order."""
    require_folder(Path(root), "data folder")
    return tuple(protocol for protocol in PROTOCOLS.values() if _candidates(protocol, Path(root)))


def require_images(samples: Sequence[Sample], what: str, remedy: str) -> None:
    """Refuse an empty list, or one without any of a few spot-checked files; single gaps become error records."""
    if not samples:
        raise InputError(f"{what} lists no images. {remedy}")
    checked = samples[:: max(1, len(samples) // 8)]
    if not any(isinstance(s.source, str) and os.path.exists(s.source) for s in checked):
        raise InputError(
            f"{what}: none of {len(checked)} spot-checked images exists; the first is {str(checked[0].source)!r}. "
            f"{remedy}"
        )


# Content of a layout: test samples, classes (synsets or names), their names, and the source of the names.
_Content = tuple[list[Sample], tuple[str, ...], tuple[str, ...], str]


def open_protocol(protocol: Protocol, root: str | Path, classes: Any = None) -> Dataset:
    """The test images of `protocol` below the data folder `root`."""
    root = Path(root)
    require_folder(root, "data folder")
    images = _images_folder(protocol, root)
    if protocol.split:
        read = _read_split
    elif protocol.synsets:
        read = _read_synsets
    else:
        read = _read_aircraft
    samples, keys, names, names_from = read(protocol, _base(protocol, root), images)
    if classes is not None:
        given = ClassFile.of(classes, keys)
        names, names_from = given.names_for(keys, "classes"), given.origin
    remedy = f"{str(images)!r} contains {listing(images)}. Unpack the images there ({_HELP})."
    require_images(samples, protocol.title, remedy)
    return Dataset(
        name=protocol.name, title=protocol.title, classes=names, samples=tuple(samples), protocol=protocol,
        where=str(images), names_from=names_from,
    )  # fmt: skip


def _base(protocol: Protocol, root: Path) -> Path:
    """The dataset's folder: below the data folder, or below few-shot-datasets/ under any of its names."""
    base, authors = root / protocol.folder, root / AUTHORS_FOLDER
    if base.is_dir() or not authors.is_dir():
        return base
    for name in subfolders(authors):
        if _BY_KEY.get(_key(name)) is protocol:
            return authors / name
    return base


def _candidates(protocol: Protocol, root: Path) -> list[Path]:
    base = _base(protocol, root)
    folders = [Path(os.path.normpath(base / folder)) for folder in protocol.images]
    present = [folder for folder in folders if folder.is_dir()]
    if protocol.synsets and base in present and _folder_labels(protocol).keys().isdisjoint(subfolders(base)):
        present.remove(base)  # imagenet-sketch/ itself counts only if it contains the class folders
    return present


def _images_folder(protocol: Protocol, root: Path) -> Path:
    present = _candidates(protocol, root)
    if present:
        return present[0]
    base = _base(protocol, root)
    if base.is_dir():
        raise InputError(
            f"{protocol.title}: its images are expected in {os.path.normpath(base / protocol.images[0])!r}, but "
            f"{str(base)!r} contains {listing(base)}. Move or link the images there ({_HELP})."
        )
    if root.name == protocol.folder or (protocol.split and (root / protocol.split).exists()):
        raise InputError(
            f"{protocol.title}: {str(root)!r} is the dataset's own folder; pass its parent as the data "
            f"folder: {str(root.resolve().parent)!r}."
        )
    near = next((name for name in subfolders(root) if _BY_KEY.get(_key(name)) is protocol), None)
    remedy = f"Rename {near}/ to {protocol.folder}/, or link to it" if near else "Pass the folder that contains it"
    raise InputError(
        f"{protocol.title} is expected in {str(base)!r}, but the data folder contains {listing(root)}. "
        f"{remedy} ({_HELP})."
    )


def _read_split(protocol: Protocol, base: Path, images: Path) -> _Content:
    split = str(protocol.split)
    # The authors' code keeps sorted_split_zhou_*.json at the top of the data folder.
    files = (base / split, *(folder / f"sorted_{split}" for folder in (base, base.parent, base.parent.parent)))
    file = next((path for path in files if path.is_file()), files[0])
    try:
        content = json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise InputError(f"split file {str(file)!r} cannot be read ({error}). Download it again.") from error
    if not isinstance(content, dict) or not isinstance(content.get("test"), list) or not content["test"]:
        raise InputError(f"split file {str(file)!r} has no list 'test' of [path, label, name]. Download it again.")
    names_of: dict[int, str] = {}
    for part in ("train", "val", "test"):
        _collect_names(names_of, content.get(part) or [], f"split file {str(file)!r}, {part!r}", protocol.classes)
    missing = [str(label) for label in range(max(names_of)) if label not in names_of]
    if missing:
        raise InputError(f"split file {str(file)!r} has no entry for label {shorten(missing)}. Download it again.")
    names = tuple(names_of[label] for label in range(len(names_of)))
    samples = []
    for path, label, _ in content["test"]:
        path = path.replace("\\", "/").lstrip("/")
        samples.append(Sample(path, label, os.path.join(images, path)))
    return samples, names, names, str(file)


def _collect_names(names: dict[int, str], entries: object, where: str, classes: int) -> None:
    """Add the class name of every label in one part of a split file; each label must have one name."""
    if not isinstance(entries, list):
        raise InputError(f"{where} is not a list of [path, label, name]. Download the file again.")
    for i, entry in enumerate(entries):
        match entry:
            case [str() as path, int() as label, str() as text] if path and clean_name(text):
                name = clean_name(text)
            case _:
                shown = json.dumps(entry)[:80]
                raise InputError(f"{where}, entry {i} is {shown}, not [path, label, name]. Download it again.")
        if not 0 <= label < classes:
            problem = f"label {label} is out of range; {classes} classes have labels 0 to {classes - 1}"
        elif names.setdefault(label, name) != name:
            problem = f"label {label} is {name!r} here but {names[label]!r} before"
        else:
            continue
        raise InputError(f"{where}, entry {i} ({path}): {problem}. Download the file again.")


def _read_aircraft(protocol: Protocol, base: Path, images: Path) -> _Content:
    # CoOp moves the lists up beside images/; the archive has them in data/.
    lists = next((p for p in (images.parent, base) if (p / "variants.txt").is_file()), images.parent)
    variants = [line.strip() for line in _text(lists / "variants.txt").splitlines() if line.strip()]
    samples = []
    for number, line in enumerate(_text(lists / "images_variant_test.txt").splitlines(), start=1):
        key, _, variant = line.strip().partition(" ")
        if not key:
            continue
        if variant not in variants:
            raise InputError(
                f"{str(lists / 'images_variant_test.txt')!r}, line {number}: {variant!r} is not one of the "
                f"{len(variants)} names in variants.txt. Download both files again."
            )
        samples.append(Sample(f"{key}.jpg", variants.index(variant), os.path.join(images, f"{key}.jpg")))
    names = tuple(map(clean_name, variants))
    return samples, names, names, str(lists / "variants.txt")


def _text(file: Path) -> str:
    if not file.is_file():
        raise InputError(
            f"{file.name} is missing; {str(file.parent)!r} contains {listing(file.parent)}. Put it there ({_HELP})."
        )
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{str(file)!r} cannot be read ({error}). Download it again.") from error


def _folder_labels(protocol: Protocol) -> dict[str, int]:
    own = synsets(str(protocol.synsets))
    labels = {synset: label for label, synset in enumerate(own)}
    if protocol.name == "imagenet-v2":
        # Its folders are ImageNet's labels. Images are in the order of folders sorted as text ("0", "1", "10", ...), as
        # in published code; classes keep ImageNet's order, so that both share one class list.
        labels |= {str(label): label for label in range(len(own))}
    return labels


def _read_synsets(protocol: Protocol, base: Path, images: Path) -> _Content:
    labels = _folder_labels(protocol)
    folders = subfolders(images)
    unknown = [name for name in folders if name not in labels]
    if unknown or not folders:
        kind = "numbers 0 to 999" if protocol.name == "imagenet-v2" else f"{protocol.classes} synsets such as n01498041"
        flat = protocol.name == "imagenet" and not folders
        remedy = "Sort the validation images into one folder per synset" if flat else "Pass the right folder"
        raise InputError(
            f"{protocol.title}: the folders in {str(images)!r} must be its classes ({kind}), but it contains "
            f"{shorten(unknown) if unknown else listing(images)}. {remedy} ({_HELP})."
        )
    samples = []
    for folder in folders:
        for path, full in images_below(images, folder):
            samples.append(Sample(path, labels[folder], full))
    classes = synsets(str(protocol.synsets))
    return samples, classes, tuple(map(imagenet_names().__getitem__, classes)), BY_SYNSET


def open_folder(folder: Path, classes: Any = None) -> Dataset:
    """One folder per class, with the same files, order and labels as torchvision's ImageFolder.

    Names come from `classes`, else from classnames.txt, classes.txt or classes.json in the folder, else from
    open_clip if the folders are ImageNet synsets, else from the folders.
    """
    folders = tuple(subfolders(folder))
    _refuse_other_layouts(folder, folders)
    samples, empty = [], []
    for label, name in enumerate(folders):
        images = [Sample(path, label, full) for path, full in images_below(folder, name)]
        samples += images
        if not images:
            empty.append(name)
    if empty:
        raise InputError(
            f"image folder {str(folder)!r}: {len(empty)} of its {len(folders)} class folders have no images "
            f"({shorten(empty)}). Remove them or add images."
        )
    names, names_from = name_folders(folders, ClassFile.find(classes, folder, classes=folders))
    name = own_name(*folder.resolve().parts[-2:])
    return Dataset(
        name=name, title=name, classes=names, samples=tuple(samples), where=str(folder), names_from=names_from
    )


def _refuse_other_layouts(folder: Path, folders: tuple[str, ...]) -> None:
    for protocol in PROTOCOLS.values():
        split = protocol.split or "/"
        inside = (folder / split).is_file()
        if inside or (folder / protocol.folder / split).is_file():
            root = folder.resolve().parent if inside else folder
            raise InputError(
                f"{str(folder)!r} is in CoOp's layout. Open {protocol.name!r} with the data folder {str(root)!r}."
            )
    if folders and all(name.casefold() in SPLIT_FOLDERS for name in folders):
        raise InputError(
            f"the folders in {str(folder)!r} are splits, not classes ({', '.join(folders)}). Open one of them, such as "
            f"{str(folder / folders[-1])!r}."
        )
    if not folders:
        raise InputError(
            f"{str(folder)!r} has no class folders; it contains {listing(folder)}. Make one folder per class, "
            "or write a CSV with the header path,label."
        )
