"""The fifteen test protocols of the paper as data: where they lie on disk, what they expect, how they are run."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from .._errors import InputError, unknown_name

Kind = Literal["split", "aircraft", "synsets"]

# Weight of each regulariser by column: what the paper's tables were made with, not each method's own default.
WEIGHTS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "fine-grained": MappingProxyType({"ctpt": 50.0, "otpt": 18.0, "atpt": 100.0, "soc": 30.0, "penalty": 10.0}),
        "imagenet": MappingProxyType({"ctpt": 20.0, "otpt": 18.0, "atpt": 60.0, "soc": 14.0, "penalty": 10.0}),
    }
)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One of the paper's test sets.

    aliases: other names it goes by, the short id of published code first. folder: below the data folder. images: the
    folders that may hold its images, relative to `folder` ("" is itself, "../x" lies beside it); the first that exists
    counts. kind: "split" (CoOp's split_zhou_*.json, named by `split`), "aircraft" (images_variant_test.txt), "synsets"
    (one folder a class, named by synset or, for ImageNet-V2, by number; `synsets` is timm's list). classes, test_size:
    what a complete copy has. average: the group of sets that the paper averages over; column: which regulariser weights
    apply (ImageNet belongs to the fine-grained average but to the imagenet column). tda_positive: (alpha, beta) of
    TDA's positive cache.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    folder: str
    images: tuple[str, ...]
    kind: Kind
    split: str | None = None
    synsets: str | None = None
    classes: int
    test_size: int
    average: Literal["fine-grained", "variants"]
    column: Literal["fine-grained", "imagenet"]
    tda_positive: tuple[float, float]
    views: int = 64
    augmix: bool
    template: str = "a photo of a {}."

    @property
    def weights(self) -> Mapping[str, float]:
        """Regulariser weight by adapter, from this protocol's column."""
        return WEIGHTS[self.column]

    def settings(self, adapter: str) -> dict[str, Any]:
        """The settings of `adapter` that this protocol fixes; none for most adapters.

        >>> PROTOCOLS["imagenet-a"].settings("ctpt"), PROTOCOLS["pets"].settings("tda(ctpt)")
        ({'weight': 20.0}, {'positive': (2.0, 7.0), 'weight': 50.0})
        """
        outer, _, inner = adapter.rstrip(")").partition("(")
        tuner = inner or outer
        found: dict[str, Any] = {"positive": self.tda_positive} if outer == "tda" else {}
        return found | ({"weight": self.weights[tuner]} if tuner in self.weights else {})


def _fine(
    name: str, title: str, folder: str, images: str, classes: int, size: int, tda: tuple[float, float], *aliases: str
) -> Protocol:
    aircraft = name == "aircraft"
    split = {"flowers": "OxfordFlowers", "dtd": "DescribableTextures"}.get(name, title)
    return Protocol(
        name=name, title=title, aliases=(*aliases, folder),
        folder=folder, classes=classes, test_size=size, tda_positive=tda,
        images=("images", "data/images", "fgvc-aircraft-2013b/data/images") if aircraft else (images,),
        kind="aircraft" if aircraft else "split", split=None if aircraft else f"split_zhou_{split}.json",
        average="fine-grained", column="fine-grained", augmix=True,
    )  # fmt: skip


def _imagenet(
    name: str, title: str, folder: str, images: tuple[str, ...], synsets: str, classes: int, size: int,
    tda: tuple[float, float], *aliases: str,
) -> Protocol:  # fmt: skip
    # The paper's text has AugMix everywhere; its numbers for ImageNet and the variants were made without.
    return Protocol(
        name=name, title=title, aliases=(*aliases, folder),
        folder=folder, images=images, kind="synsets", synsets=synsets,
        classes=classes, test_size=size, tda_positive=tda, augmix=False, column="imagenet",
        average="fine-grained" if name == "imagenet" else "variants",
    )  # fmt: skip


_ALL = (
    _imagenet(
        "imagenet", "ImageNet", "imagenet", ("images/val", "val"), "imagenet", 1000, 50_000, (2.0, 5.0),
        "I", "ImgNet", "ImageNet-1k", "ILSVRC2012",
    ),
    _fine("dtd", "DTD", "dtd", "images", 47, 1692, (2.0, 3.0), "DTD", "DescribableTextures", "textures"),
    _fine("flowers", "Flowers102", "oxford_flowers", "jpg", 102, 2463, (1.0, 5.0), "Flower102", "OxfordFlowers"),
    _fine("food", "Food101", "food-101", "images", 101, 30_300, (1.0, 1.0), "Food101"),
    _fine("sun", "SUN397", "sun397", "SUN397", 397, 19_850, (2.0, 3.0), "SUN397"),
    _fine("aircraft", "Aircraft", "fgvc_aircraft", "images", 100, 3333, (2.0, 2.0), "Aircraft", "FGVCAircraft"),
    _fine("pets", "OxfordPets", "oxford_pets", "images", 37, 3669, (2.0, 7.0), "Pets", "OxfordIIITPet"),
    _fine("caltech", "Caltech101", "caltech-101", "101_ObjectCategories", 100, 2465, (5.0, 5.0), "Caltech101"),
    _fine("ucf", "UCF101", "ucf101", "UCF-101-midframes", 101, 3783, (3.0, 8.0), "UCF101"),
    _fine("eurosat", "EuroSAT", "eurosat", "2750", 10, 8100, (4.0, 8.0), "eurosat"),
    _fine("cars", "StanfordCars", "stanford_cars", "", 196, 8041, (1.0, 7.0), "Cars", "Cars196"),
    _imagenet(
        "imagenet-a", "ImageNet-A", "imagenet-adversarial", ("imagenet-a", "../imagenet-a"), "imagenet_a", 200, 7500,
        (2.0, 5.0), "A", "ImageNet-Adversarial",
    ),
    _imagenet(
        "imagenet-v2", "ImageNet-V2", "imagenetv2",
        ("imagenetv2-matched-frequency-format-val", "../imagenetv2-matched-frequency-format-val"), "imagenet", 1000,
        10_000, (1.0, 8.0), "V", "V2", "ImageNet-V", "imagenetv2-matched-frequency",
    ),
    _imagenet(
        "imagenet-r", "ImageNet-R", "imagenet-rendition", ("imagenet-r", "../imagenet-r"), "imagenet_r", 200, 30_000,
        (1.0, 8.0), "R", "ImageNet-Rendition",
    ),
    _imagenet(
        "imagenet-sketch", "ImageNet-Sketch", "imagenet-sketch", ("images", "sketch", ""), "imagenet", 1000, 50_889,
        (2.363, 7.45), "K", "Sk", "ImageNet-K", "Sketch", "ImageNet-S",
    ),
)  # fmt: skip

PROTOCOLS: Mapping[str, Protocol] = MappingProxyType({protocol.name: protocol for protocol in _ALL})
"""The fifteen protocols by name, in the order of the paper's columns."""


def _key(name: str) -> str:
    return name.casefold().translate({ord(ch): None for ch in "-_ "})


_BY_KEY = {_key(alias): protocol for protocol in _ALL for alias in (protocol.name, protocol.title, *protocol.aliases)}


def is_protocol(name: object) -> bool:
    """Whether `name` is one of a protocol's names.

    >>> is_protocol("Flower102"), is_protocol("./pets"), is_protocol("petz")
    (True, False, False)
    """
    return isinstance(name, str) and _key(name) in _BY_KEY


def find_protocol(name: str) -> Protocol:
    """The protocol that `name` means: its name, title, folder or short id, in any case, with or without "-" and "_".

    >>> find_protocol("oxford_pets").name, find_protocol("V").title, find_protocol("Flower102").folder
    ('pets', 'ImageNet-V2', 'oxford_flowers')
    """
    if not isinstance(name, str):
        raise InputError(f"a dataset's name must be text, such as 'pets', not {name!r}.")
    if is_protocol(name):
        return _BY_KEY[_key(name)]
    near = difflib.get_close_matches(_key(name), _BY_KEY, n=1, cutoff=0.6)
    protocol = _BY_KEY[near[0]] if near else None
    # unknown_name compares with the short names alone; a slip in an alias or in upper case needs a word more.
    guessed = protocol is None or difflib.get_close_matches(name, PROTOCOLS, n=1, cutoff=0.5) == [protocol.name]
    hint = "" if guessed or protocol is None else f"The nearest is {protocol.name} ({protocol.title})."
    raise unknown_name("dataset", name, PROTOCOLS, hint)
