"""`cots export`: a classifier with fixed classes as a folder with an ONNX file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._errors import InputError
from . import _shared as option
from ._predict import check_classes
from ._shared import Bars, check_methods, find_images, option_words, sleep_while_waiting

if TYPE_CHECKING:
    from ..classifier import Classifier

_METHOD = "adapter or adapter+calibrator; default: zeroshot, which is exported as it is."
_PHOTOS = "Folder of unlabelled photos to check on and, for other methods than zeroshot, to fit the temperature on."
_LABELLED = "Labelled photos (CSV with path,label, or one folder per class) to fit the temperature on."


def export(
    policy: Annotated[Path | None, typer.Argument(help="Policy of cots check; or use --classes.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="New folder to write.")] = Path("export"),
    classes: option.Classes = None,
    photos: Annotated[Path | None, typer.Option(help=_PHOTOS)] = None,
    labelled: Annotated[str | None, typer.Option(help=_LABELLED)] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Also write model_int8.onnx, and compare it.")] = False,
    model: option.Model = None,
    method: Annotated[str | None, typer.Option(help=_METHOD)] = None,
    template: option.Templates = None,
    descriptions: option.Descriptions = None,
    allow_duplicates: option.AllowDuplicates = False,
    max_pixels: option.MaxPixels = None,
    views: Annotated[int | None, typer.Option(min=1, help="Views per photo of the method; default: 64.")] = None,
    device: option.Device = None,
) -> None:
    """Export a classifier with fixed classes: ONNX, torch.export, and what other tools need. Needs the extra export.

    Methods that tune, and temperatures per photo, become zero-shot with one temperature, fitted on --photos or
    --labelled; how far its confidences are from the original is printed.
    """
    check_methods([method] if method else [])
    own = {"classes": classes, "model": model, "method": method, "template": template or None, "views": views}
    given = {name: value for name, value in own.items() if value is not None}
    if policy is None:
        check_classes(classes)
        given = {"method": "zeroshot", **given}
    elif given:
        raise InputError(f"The policy decides {', '.join(given)}; omit --{next(iter(given))}, or the policy.")
    if photos is not None and labelled is not None:
        raise InputError("Pass --photos or --labelled, not both.")
    sleep_while_waiting()
    from ..export import require_packages

    require_packages()
    others = {"descriptions": descriptions, "max_pixels": max_pixels, "device": device}
    given |= {name: value for name, value in others.items() if value is not None}
    given["allow_duplicates"] = allow_duplicates
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        with option_words():
            classifier = _classifier(policy, given)
        _export(classifier, out, photos, labelled, int8)


def _classifier(file: Path | None, given: dict[str, Any]) -> Classifier:
    from ..classifier import Classifier
    from ..conformal import Policy

    if file is None:
        return Classifier(**given)
    policy = Policy.load(file)
    of_policy = {
        "model": policy.model, "classes": policy.classes, "method": policy.method, "template": policy.template,
        "views": policy.views, "augmix": policy.augmix, "seed": policy.seed, "policy": policy,
    }  # fmt: skip
    return Classifier(**{**of_policy, **given, "allow_duplicates": True})


def _export(classifier: Classifier, out: Path, photos: Path | None, labelled: str | None, int8: bool) -> None:
    from ..data import open_dataset, sample_photos
    from ..export import exact_temperature, export_classifier

    labels = None
    if labelled is not None:
        dataset = open_dataset(labelled)
        found: list[Any] = [dataset.read(index) for index in range(len(dataset))]
        labels = _indices(classifier.task.classes, [dataset.classes[sample.label] for sample in dataset.samples])
    elif photos is not None:
        found = find_images([photos])
    elif exact_temperature(classifier) is not None:
        found = find_images([sample_photos()])
    else:
        raise InputError(
            f"{classifier.method} cannot be exported, only zero-shot with one temperature in its place. Pass --photos, "
            "a folder of unlabelled photos to fit it on, or --labelled, or --method zeroshot."
        )
    with Bars() as bars:
        done = export_classifier(classifier, out, found, labels=labels, int8=int8, progress=bars.show)
    print("\n".join(done.lines()))
    print(f"Written: {done.folder}")


def _indices(classes: tuple[str, ...], names: list[str]) -> list[int]:
    place = {name: index for index, name in enumerate(classes)}
    for name in names:
        if name not in place:
            raise InputError(f"The label {name!r} is none of the classes. Check the labels.")
    return [place[name] for name in names]
