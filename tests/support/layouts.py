"""Datasets in the layouts that cots reads, generated."""

from __future__ import annotations

import functools
import io
import json
import tarfile
from pathlib import Path

from PIL import Image

from cots.classes import synsets
from cots.data import PROTOCOLS

SPLITS = {
    "dtd": ("dtd/split_zhou_DescribableTextures.json", "dtd/images"),
    "flowers": ("oxford_flowers/split_zhou_OxfordFlowers.json", "oxford_flowers/jpg"),
    "food": ("food-101/split_zhou_Food101.json", "food-101/images"),
    "sun": ("sun397/split_zhou_SUN397.json", "sun397/SUN397"),
    "pets": ("oxford_pets/split_zhou_OxfordPets.json", "oxford_pets/images"),
    "caltech": ("caltech-101/split_zhou_Caltech101.json", "caltech-101/101_ObjectCategories"),
    "ucf": ("ucf101/split_zhou_UCF101.json", "ucf101/UCF-101-midframes"),
    "eurosat": ("eurosat/split_zhou_EuroSAT.json", "eurosat/2750"),
    "cars": ("stanford_cars/split_zhou_StanfordCars.json", "stanford_cars"),
}
FOLDERS = {
    "imagenet": "imagenet/images/val",
    "imagenet-a": "imagenet-adversarial/imagenet-a",
    "imagenet-v2": "imagenetv2/imagenetv2-matched-frequency-format-val",
    "imagenet-r": "imagenet-rendition/imagenet-r",
    "imagenet-sketch": "imagenet-sketch/images",
}


@functools.cache
def jpeg(colour: int = 128) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), (colour, 40, 90)).save(stream, "JPEG")
    return stream.getvalue()


def put(file: Path, data: bytes | None = None) -> Path:
    """Write an image (or `data`) to a file, with the folders above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(jpeg() if data is None else data)
    return file


def write_split(root: Path, name: str, classes: int | None = None, per_class: int = 2) -> Path:
    """A copy of a split protocol's layout with generated images; the split file's path."""
    file, images = (root / place for place in SPLITS[name])
    count = PROTOCOLS[name].classes if classes is None else classes
    parts: dict[str, list] = {"train": [], "val": [], "test": []}
    for label in range(count):
        parts["train"].append([f"c{label}/train.jpg", label, f"class_{label}"])
        for n in range(per_class):
            parts["test"].append([f"c{label}/{n}.jpg", label, f"class_{label}"])
    for path, _, _ in parts["test"]:
        put(images / path)
    file.write_text(json.dumps(parts))
    return file


def write_synsets(root: Path, name: str, classes: int = 120) -> list[str]:
    """A copy of an ImageNet-like layout with the first class folders; their names."""
    own = synsets(PROTOCOLS[name].synsets or "")
    folders = [str(n) if name == "imagenet-v2" else synset for n, synset in enumerate(own)][:classes]
    for folder in folders:
        put(root / FOLDERS[name] / folder / "x.JPEG", b"not opened here")
    return folders


def write_aircraft(root: Path, lists: str = "fgvc_aircraft", images: str = "fgvc_aircraft/images") -> list[str]:
    variants = ["707-320", "A300B4", "F/A-18", "Global Express", *(f"Type {n}" for n in range(96))]
    lines = [f"{n:07d} {variant}" for n, variant in enumerate(reversed(variants))]
    for line in lines:
        put(root / images / f"{line[:7]}.jpg")
    (root / lists).mkdir(exist_ok=True)
    (root / lists / "variants.txt").write_text("\n".join(variants) + "\n")
    (root / lists / "images_variant_test.txt").write_text("\n".join(lines) + "\n")
    return variants


def write_tar(file: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, mode) as tar:  # pyright: ignore[reportArgumentType, reportCallIssue]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file
