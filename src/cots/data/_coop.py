"""The fifteen protocols on disk, in the layout that CoOp made common."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .._errors import InputError
from ..prompts import clean_name
from ._dataset import Dataset, Sample
from ._files import images_below, listing, need_folder, need_some, shorten, subfolders
from ._names import ClassFile, imagenet_names, synsets
from ._protocols import PROTOCOLS, Protocol, find_protocol, is_protocol

_HELP = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md says where to get it"


def open_protocol(protocol: Protocol, root: str | Path, classes_file: str | Path | None = None) -> Dataset:
    """The test images of `protocol` below the data folder `root`."""
    root = Path(root)
    need_folder(root, "data folder")
    images = _images_folder(protocol, root)
    readers = {"split": _read_split, "aircraft": _read_aircraft, "synsets": _read_synsets}
    samples, classes, origin = readers[protocol.kind](protocol, root, images, classes_file)
    return Dataset(
        name=protocol.name, title=protocol.title, classes=classes, samples=tuple(samples), protocol=protocol,
        where=str(images), names_from=origin,
    )  # fmt: skip


def available(root: str | Path) -> tuple[Protocol, ...]:
    """The protocols whose images lie below `root`, in the paper's order."""
    need_folder(Path(root), "data folder")
    return tuple(protocol for protocol in PROTOCOLS.values() if _candidates(protocol, Path(root)))


def _candidates(protocol: Protocol, root: Path) -> list[Path]:
    base = root / protocol.folder
    places = [Path(os.path.normpath(base / place)) for place in protocol.images]
    if protocol.kind == "synsets":
        # imagenet-sketch/ itself counts only when the class folders lie directly in it.
        return [place for place in places if place.is_dir() and (place != base or _class_folders(protocol, place))]
    return [place for place in places if place.is_dir()]


def _class_folders(protocol: Protocol, folder: Path) -> list[str]:
    table = _folder_labels(protocol)
    return [name for name in subfolders(folder) if name in table]


def _images_folder(protocol: Protocol, root: Path) -> Path:
    found = _candidates(protocol, root)
    if found:
        return found[0]
    base = root / protocol.folder
    expected = os.path.normpath(base / protocol.images[0])
    if base.is_dir():
        raise InputError(
            f"{protocol.title}: its images are expected in {expected!r}, but {str(base)!r} holds {listing(base)}. "
            f"Move or link the images there ({_HELP})."
        )
    if root.name == protocol.folder or (protocol.split and (root / protocol.split).exists()):
        raise InputError(
            f"{protocol.title}: {str(root)!r} is the dataset's own folder; give the folder above it as the data "
            f"folder: {str(root.resolve().parent)!r}."
        )
    near = [name for name in subfolders(root) if is_protocol(name) and find_protocol(name) is protocol]
    guess = f" Rename {near[0]}/ to {protocol.folder}/, or link to it." if near else ""
    raise InputError(
        f"{protocol.title} is expected in {str(base)!r}, which does not exist; the data folder {str(root)!r} holds "
        f"{listing(root)}.{guess} The data folder is the one that holds {protocol.folder}/ ({_HELP})."
    )


def _read_split(
    protocol: Protocol, root: Path, images: Path, classes_file: str | Path | None
) -> tuple[list[Sample], tuple[str, ...], str]:
    file = root / protocol.folder / str(protocol.split)
    if not file.is_file():
        raise InputError(
            f"{protocol.title}: the split file {file.name} is missing; {str(file.parent)!r} holds "
            f"{listing(file.parent)}. Put {file.name} there ({_HELP})."
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"split file {str(file)!r} cannot be read ({error}): fetch it again.") from error
    if not isinstance(content, dict) or not isinstance(content.get("test"), list) or not content["test"]:
        raise InputError(f"split file {str(file)!r} has no list 'test' of [path, label, class name]: fetch it again.")
    names: dict[int, str] = {}
    for part in ("train", "val", "test"):
        _collect_names(names, content.get(part) or [], file, part, protocol.classes)
    missing = sorted(set(range(max(names) + 1)) - set(names))
    if missing:
        raise InputError(
            f"split file {str(file)!r} has labels up to {max(names)} but none for {shorten(list(map(str, missing)))}: "
            "labels must be 0, 1, 2, ... without gaps. Fetch the file again."
        )
    classes, origin = tuple(names[label] for label in range(len(names))), str(file)
    if classes_file is not None:
        classes, origin = ClassFile(classes_file).for_classes(classes, "classes"), str(classes_file)
    samples = []
    for path, label, _ in content["test"]:
        relative = path.replace("\\", "/").lstrip("/")
        samples.append(Sample(relative, label, os.path.join(images, relative)))
    need_some(samples, protocol.title, f"{str(images)!r} holds {listing(images)}. Unpack the images there ({_HELP}).")
    return samples, classes, origin


def _collect_names(names: dict[int, str], entries: object, file: Path, part: str, classes: int) -> None:
    where = f"split file {str(file)!r}, {part!r}"
    if not isinstance(entries, list):
        raise InputError(f"{where} is not a list of [path, label, class name]: fetch the file again.")
    for place, entry in enumerate(entries):
        match entry:
            case [str() as path, int() as label, str() as name] if path and clean_name(name):
                pass
            case _:
                raise InputError(
                    f"{where}, entry {place} is {json.dumps(entry)[:80]}, not [path, label, class name]: "
                    "fetch the file again."
                )
        if not 0 <= label < classes:
            raise InputError(
                f"{where}, entry {place} ({path}): label {label} is out of range; {classes} classes have labels 0 to "
                f"{classes - 1}. Fetch the file again."
            )
        if names.setdefault(label, clean_name(name)) != clean_name(name):
            raise InputError(
                f"{where}, entry {place} ({path}): label {label} is {clean_name(name)!r} here but {names[label]!r} "
                "before; a label has one name. Fetch the file again."
            )


def _read_aircraft(
    protocol: Protocol, root: Path, images: Path, classes_file: str | Path | None
) -> tuple[list[Sample], tuple[str, ...], str]:
    # CoOp moves the lists up beside images/; the archive has them in data/.
    base = next((p for p in (images.parent, root / protocol.folder) if (p / "variants.txt").is_file()), images.parent)
    for name in ("variants.txt", "images_variant_test.txt"):
        if not (base / name).is_file():
            raise InputError(
                f"{protocol.title}: {name} is missing; {str(base)!r} holds {listing(base)}. "
                f"It comes with the images ({_HELP})."
            )
    variants = [line.strip() for line in _text(base / "variants.txt").splitlines() if line.strip()]
    label_of = {variant: label for label, variant in enumerate(variants)}
    samples = []
    for number, line in enumerate(_text(base / "images_variant_test.txt").splitlines(), start=1):
        if not line.strip():
            continue
        key, _, variant = line.strip().partition(" ")
        if variant not in label_of:
            raise InputError(
                f"{str(base / 'images_variant_test.txt')!r}, line {number}: {variant!r} is not one of the "
                f"{len(variants)} names in variants.txt. Fetch both files again."
            )
        samples.append(Sample(f"{key}.jpg", label_of[variant], os.path.join(images, f"{key}.jpg")))
    if not samples:
        raise InputError(f"{str(base / 'images_variant_test.txt')!r} lists no image: fetch it again.")
    need_some(samples, protocol.title, f"{str(images)!r} holds {listing(images)}. Unpack the images there ({_HELP}).")
    if classes_file is not None:
        return samples, ClassFile(classes_file).for_classes(variants, "classes"), str(classes_file)
    return samples, tuple(map(clean_name, variants)), str(base / "variants.txt")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{str(file)!r} cannot be read ({error}): fetch it again.") from error


def _folder_labels(protocol: Protocol) -> dict[str, int]:
    own = synsets(str(protocol.synsets))
    labels = {synset: label for label, synset in enumerate(own)}
    if protocol.name == "imagenet-v2":
        # Its folders are ImageNet's labels. Sorted as text ("0", "1", "10", ...) they give the order of the images, as
        # in published code; the classes keep ImageNet's order, so that both share one class list.
        labels |= {str(label): label for label in range(len(own))}
    return labels


def _read_synsets(
    protocol: Protocol, root: Path, images: Path, classes_file: str | Path | None
) -> tuple[list[Sample], tuple[str, ...], str]:
    labels = _folder_labels(protocol)
    folders = subfolders(images)
    strange = [name for name in folders if name not in labels]
    kind = "numbers 0 to 999" if protocol.name == "imagenet-v2" else f"{protocol.classes} synsets such as n01498041"
    if strange or not folders:
        flat = protocol.name == "imagenet" and not folders
        raise InputError(
            f"{protocol.title}: the folders in {str(images)!r} must be its classes ({kind}), but it holds "
            f"{shorten(strange) if strange else listing(images)}. "
            + ("Sort the validation images into one folder a synset." if flat else f"Give the right folder ({_HELP}).")
        )
    samples = [
        Sample(relative, labels[folder], full) for folder in folders for relative, full in images_below(images, folder)
    ]
    if not samples:
        raise InputError(f"{protocol.title}: the class folders in {str(images)!r} hold no image ({_HELP}).")
    own = synsets(str(protocol.synsets))
    if classes_file is not None:
        return samples, ClassFile(classes_file, own).for_classes(own, "classes"), str(classes_file)
    return samples, tuple(imagenet_names()[synset] for synset in own), "open_clip, by synset"
