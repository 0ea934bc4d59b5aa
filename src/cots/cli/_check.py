"""`cots check`: whether the confidence holds on a few labelled photos, and which guarantees they support."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .._errors import InputError
from ._shared import AllowDuplicates, Bars, Classes, Device, Model, Precision, Templates, Views, check_methods


def check(
    photos: Annotated[str, typer.Argument(help="Labelled photos: a CSV with path,label, or one folder per class.")],
    unlabelled: Annotated[
        bool, typer.Option("--unlabelled", help="Photos without labels, in any folders: look for changes.")
    ] = False,
    classes: Classes = None,
    policy: Annotated[Path | None, typer.Option(help="Policy to compare with, for --unlabelled.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The policy to write.")] = Path("policy.json"),
    risk: Annotated[float, typer.Option(help="Maximum error rate of accepted predictions.")] = 0.05,
    certainty: Annotated[float, typer.Option(help="Certainty of that bound.")] = 0.95,
    coverage: Annotated[float, typer.Option(help="Share of photos whose set contains their class.")] = 0.9,
    sets: Annotated[Literal["lac", "aps", "raps"], typer.Option(help="Kind of prediction sets.")] = "lac",
    temperature: Annotated[bool, typer.Option("--temperature", help="Fit a temperature on half the photos.")] = False,
    model: Model = None,
    method: Annotated[str | None, typer.Option(help="adapter or adapter+calibrator; default: tpt+ecots.")] = None,
    template: Templates = None,
    allow_duplicates: AllowDuplicates = False,
    views: Views = 64,
    seed: Annotated[int, typer.Option(min=0, help="View seed.")] = 0,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """Check the confidence on labelled photos, and write a threshold and prediction sets as a policy."""
    check_methods([method] if method else [])
    options: dict[str, Any] = {"template": template or None, "device": device, "precision": precision}
    given = {key: value for key, value in options.items() if value is not None}
    given |= {"views": views, "seed": seed, "allow_duplicates": allow_duplicates}
    if unlabelled:
        _watch(Path(photos), classes, policy, model or "mini", method, given)
        return
    if policy is not None:
        raise InputError("--policy requires --unlabelled. To apply a policy, use cots predict; to write one, --out.")
    if out.suffix != ".json":
        raise InputError(f"--out {out} must end in .json.")
    import numpy as np

    from ..classifier import Classifier
    from ..conformal import Policy
    from ..data import open_dataset
    from ..evaluate import check as judge
    from ..evaluate import save_reliability
    from ..evaluate._check import ENOUGH
    from ..novelty import threshold
    from ..watch import reference_of

    dataset = open_dataset(photos, classes_file=classes)
    classifier = Classifier(model or "mini", dataset.classes, method or "tpt+ecots", **given)
    found, truth = [], []
    with Bars() as bars:
        sources = (dataset.read(i) for i in range(len(dataset)))
        for sample, prediction in zip(dataset.samples, classifier.stream(sources), strict=True):
            if prediction.error is None:
                found.append(prediction)
                truth.append(sample.label)
            else:
                print(f"cots: {sample.id}: {prediction.error}", file=sys.stderr)
            bars.show("photos", len(found), len(dataset))
    if not found:
        raise InputError(f"None of the photos in {photos} could be read.")
    table = np.stack([prediction.probabilities for prediction in found])
    result = judge(
        table, np.array(truth), risk=risk, certainty=certainty, coverage=coverage, method=sets, temperature=temperature
    )
    print(f"{result.n} photos, {len(dataset.classes)} classes, {classifier.method} with {classifier.backbone.name}")
    print("\n".join(result.lines()))
    if result.n < ENOUGH:
        print("cots: no policy was written.", file=sys.stderr)
        raise typer.Exit(1)
    made = Policy(
        model=classifier.backbone.name, weights_hash=classifier.backbone.weights_hash, classes=classifier.task.classes,
        method=str(classifier.method), template=classifier.task.template, views=views, seed=seed,
        precision=classifier.backbone.precision, n=result.n, accuracy=result.accuracy,
        mean_confidence=result.mean_confidence, temperature=result.temperature, error=result.error, sets=result.sets,
        none_below=threshold([prediction.in_list for prediction in found]),
    )  # fmt: skip
    replace(made, reference=reference_of([made.apply(prediction) for prediction in found])).save(out)
    diagram = save_reliability(result.reliability, out.with_suffix(""), made.method, result.verdict)
    print(f"Written: {out}, {diagram}")


def _watch(
    photos: Path, classes: Path | None, policy: Path | None, model: str, method: str | None, given: dict[str, Any]
) -> None:
    """Print signals of the classifier on unlabelled photos, and whether they differ from the reference."""
    from ..classifier import Classifier
    from ..conformal import Policy
    from ..data._files import ClassFile
    from ..watch import Watch, lines
    from ._predict import find_images

    rules = None if policy is None else Policy.load(policy)
    if rules is not None:
        method, given = method or rules.method, {"template": rules.template, **given, "policy": rules}
    if rules is None and classes is None:
        raise InputError("--unlabelled needs the class names: --classes FILE, or --policy.")
    names = rules.classes if rules and classes is None else ClassFile.read(classes or "").names
    files = find_images([photos])
    classifier, watch = Classifier(model, names, method or "tpt+ecots", **given), Watch(rules and rules.reference)
    with Bars() as bars:
        for done, (file, found) in enumerate(zip(files, classifier.stream(files), strict=True), start=1):
            if found.error is not None:
                print(f"cots: {file}: {found.error}", file=sys.stderr)
            watch.add(found)
            bars.show("photos", done, len(files))
    print("\n".join(lines(watch.seen())))
