"""`cots check --policy`: what a policy does on labelled photos; the predictions that every check needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._errors import InputError
from ._shared import Bars, option_words

if TYPE_CHECKING:
    from ..classifier import Classifier
    from ..data import Dataset
    from ..methods import Prediction

KEPT = ".predictions"  # ending of the file beside the policy that keeps the predictions


def try_policy(photos: str, file: Path, given: dict[str, Any], device: str | None) -> None:
    """Print the promises of a policy beside what happened on labelled photos; `given`: what the policy replaces."""
    from ..classifier import Classifier
    from ..conformal import Policy
    from ..data import open_dataset
    from ..evaluate import try_out

    policy = Policy.load(file)
    dataset = open_dataset(photos, classes=given.pop("classes", None))
    unknown = sorted(set(dataset.classes) - set(policy.classes))
    if unknown:
        raise InputError(f"The policy does not know the class {unknown[0]!r} of {dataset.where}. Check the labels.")
    photos_of_policy = set(policy.photos)
    known = sum(photo in photos_of_policy for photo in hashes_of(dataset))
    if known:
        raise InputError(
            f"{known} of these {len(dataset):,} photos made this policy, so they cannot test it. Test it on others."
        )
    settings = {
        "model": policy.model,
        "method": policy.method,
        "template": policy.template,
        "views": policy.views,
        "seed": policy.seed,
        "solver": None if policy.solver == "none" else policy.solver,
    }
    settings |= {"device": device, "precision": policy.precision, **given}
    with option_words():
        classifier = Classifier(classes=policy.classes, allow_duplicates=True, **settings)
    policy.refuse_other(classifier.setup)
    predictions, labels = classify(classifier, dataset, file.with_suffix(KEPT))
    place = {name: k for k, name in enumerate(policy.classes)}
    truth = [place[dataset.classes[label]] for label in labels]
    print(f"{len(truth)} photos, {policy.method} with {policy.model}, policy {file} from {policy.n} photos")
    print("\n".join(try_out(policy, [policy.apply(one) for one in predictions], truth).lines()))


def hashes_of(dataset: Dataset) -> list[str]:
    """Of the photos that can be read, in their order."""
    from ..kept import content_hash

    hashes = map(content_hash, map(dataset.read, range(len(dataset))))
    return list(filter(None, hashes))


def refuse_overwrite(file: Path, photos: Sequence[str]) -> None:
    """Refuse to replace a policy of other photos, or another file; more photos than before are fine.

    A damaged policy, or one of an earlier version, which does not know its photos, can be replaced.
    """
    from .._checked import DamagedFile
    from ..conformal import Policy

    if not file.exists():
        return
    try:
        lost = len(set(Policy.load(file).photos) - set(photos))
    except DamagedFile:
        return
    except InputError:
        raise InputError(f"{file} is not a policy of labelled photos. Choose another --out, or pass --force.") from None
    if lost:
        raise InputError(
            f"{file} was made from other photos: {lost} of them are not among these. Choose another --out, or pass "
            "--force to overwrite it."
        )


def classify(classifier: Classifier, dataset: Dataset, file: Path) -> tuple[list[Prediction], list[int]]:
    """The predictions for the photos that can be read, and their labels; `file` keeps what is done."""
    from ..kept import PredictionFile

    predictions, labels = [], []
    samples = dataset.samples
    with Bars() as bars:
        found = PredictionFile(file).complete(
            classifier,
            [sample.id for sample in samples],
            dataset.read,
            lambda done, total: bars.show("photos", done, total),
        )
    for sample, prediction in zip(samples, found, strict=True):
        if prediction.error is None:
            predictions.append(prediction)
            labels.append(sample.label)
            for text in prediction.warnings:
                print(f"cots: {sample.id}: {text}", file=sys.stderr)
        else:
            print(f"cots: {sample.id}: {prediction.error}", file=sys.stderr)
    if not predictions:
        raise InputError(f"None of the photos in {dataset.where} could be read.")
    return predictions, labels
