"""`cots check`: whether the confidence holds on your photos."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .._errors import InputError
from . import _shared as option
from ._shared import Bars, check_methods, option_words

if TYPE_CHECKING:
    from ..classifier import Classifier
    from ..conformal import Policy
    from ..data import Dataset
    from ..evaluate import Checked
    from ..methods import Prediction
    from ..taxonomy import Taxonomy


def check(
    photos: Annotated[str, typer.Argument(help="Labelled photos: a CSV with path,label, or one folder per class.")],
    unlabelled: Annotated[
        bool, typer.Option("--unlabelled", help="Photos without labels, in any folders: look for changes.")
    ] = False,
    classes: option.Classes = None,
    policy: Annotated[Path | None, typer.Option(help="Policy to compare with, for --unlabelled.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="File that keeps the state of --unlabelled, to continue with later photos.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The policy to write.")] = Path("policy.json"),
    risk: Annotated[float, typer.Option(help="Maximum error rate of accepted predictions.")] = 0.05,
    certainty: Annotated[float, typer.Option(help="Certainty of that bound.")] = 0.95,
    coverage: Annotated[float, typer.Option(help="Share of photos whose set contains their class.")] = 0.9,
    sets: Annotated[Literal["lac", "aps", "raps"], typer.Option(help="Kind of prediction sets.")] = "lac",
    taxonomy: option.Taxonomy = None,
    average: option.Average = False,
    temperature: Annotated[bool, typer.Option("--temperature", help="Fit a temperature on half the photos.")] = False,
    model: option.Model = None,
    method: Annotated[str | None, typer.Option(help="adapter or adapter+calibrator; default: tpt+ecots.")] = None,
    template: option.Templates = None,
    allow_duplicates: option.AllowDuplicates = False,
    max_pixels: option.MaxPixels = None,
    views: option.Views = 64,
    seed: Annotated[int, typer.Option(min=0, help="View seed.")] = 0,
    device: option.Device = None,
    precision: option.Precision = None,
) -> None:
    """Check the confidence on labelled photos. Writes a threshold and prediction sets as a policy."""
    check_methods([method] if method else [])
    options: dict[str, Any] = {"template": template or None, "device": device, "precision": precision}
    options["max_pixels"] = max_pixels
    given = {key: value for key, value in options.items() if value is not None}
    given |= {"views": views, "seed": seed, "allow_duplicates": allow_duplicates}
    if unlabelled:
        from ._watch import watch_photos

        watch_photos(Path(photos), classes, policy, model or "mini", method, state, given)
        return
    _check_written(policy, state, out)
    from ..classifier import Classifier
    from ..data import open_dataset
    from ..evaluate import check as check_probabilities

    dataset = open_dataset(photos, classes=classes)
    tree = _tree(taxonomy, average, dataset.classes)
    with option_words():
        classifier = Classifier(model or "mini", dataset.classes, method or "tpt+ecots", **given)
    predictions, labels = _classify(classifier, dataset)
    checked = check_probabilities(
        [prediction.probabilities for prediction in predictions], labels, risk=risk, certainty=certainty,
        coverage=coverage, method=sets, temperature=temperature, taxonomy=tree, average=average,
    )  # fmt: skip
    _write(classifier, predictions, checked, views, seed, out)


def _write(
    classifier: Classifier, predictions: Sequence[Prediction], checked: Checked, views: int, seed: int, out: Path
) -> None:
    """Print what the labels say, and write the policy and the reliability diagram if there are enough of them."""
    from ..evaluate import save_reliability

    names, model = classifier.task.classes, classifier.backbone.name
    print(f"{checked.n} photos, {len(names)} classes, {classifier.method} with {model}")
    print("\n".join(checked.lines()))
    if not checked.enough:
        print("cots: no policy was written.", file=sys.stderr)
        raise typer.Exit(1)
    _policy(classifier, predictions, checked, views, seed).save(out)
    diagram = save_reliability(checked.reliability, out.with_suffix(""), str(classifier.method), checked.verdict)
    print(f"Written: {out}, {diagram}")


def _check_written(policy: Path | None, state: Path | None, out: Path) -> None:
    if policy is not None or state is not None:
        raise InputError(
            "--policy and --state require --unlabelled. To apply a policy, use cots predict; to write one, --out."
        )
    if out.suffix != ".json":
        raise InputError(f"--out {out} must end in .json.")


def _tree(taxonomy: str | None, average: bool, classes: Sequence[str]) -> Taxonomy | None:
    from ..taxonomy import TaxonomyFile

    if taxonomy is not None:
        return TaxonomyFile.read(taxonomy).tree(classes)
    if average:
        raise InputError("--average is about the answers of a taxonomy; pass one with --taxonomy.")
    return None


def _classify(classifier: Classifier, dataset: Dataset) -> tuple[list[Prediction], list[int]]:
    """The predictions for the photos that can be read, and their labels."""
    predictions, labels = [], []
    with Bars() as bars:
        sources = (dataset.read(i) for i in range(len(dataset)))
        for sample, prediction in zip(dataset.samples, classifier.stream(sources), strict=True):
            if prediction.error is None:
                predictions.append(prediction)
                labels.append(sample.label)
            else:
                print(f"cots: {sample.id}: {prediction.error}", file=sys.stderr)
            bars.show("photos", len(predictions), len(dataset))
    if not predictions:
        raise InputError(f"None of the photos in {dataset.where} could be read.")
    return predictions, labels


def _policy(
    classifier: Classifier, predictions: Sequence[Prediction], checked: Checked, views: int, seed: int
) -> Policy:
    from ..conformal import Policy
    from ..novelty import threshold
    from ..watch import reference_of

    backbone = classifier.backbone
    policy = Policy(
        model=backbone.name, weights_hash=backbone.weights_hash, classes=classifier.task.classes,
        method=str(classifier.method), template=classifier.task.template, views=views, seed=seed,
        precision=backbone.precision, n=checked.n, accuracy=checked.accuracy, mean_confidence=checked.mean_confidence,
        temperature=checked.temperature, error=checked.error, sets=checked.sets, ranks=checked.ranks,
        none_below=threshold([prediction.in_list for prediction in predictions]),
    )  # fmt: skip
    return replace(policy, signals=reference_of([policy.apply(prediction) for prediction in predictions]))
