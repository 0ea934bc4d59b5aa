"""`cots check`: does the confidence hold on a few labelled photos, and what can be promised?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .._errors import InputError
from ._shared import Bars, Classes, Device, Model, Precision, Views, check_methods


def check(
    photos: Annotated[str, typer.Argument(help="Labelled photos: a CSV with path,label, or one folder per class.")],
    classes: Classes = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The policy to write.")] = Path("policy.json"),
    risk: Annotated[float, typer.Option(help="Share of the accepted answers that may be wrong.")] = 0.05,
    certainty: Annotated[float, typer.Option(help="Certainty of that bound.")] = 0.95,
    coverage: Annotated[float, typer.Option(help="Share of photos whose class must be in the set.")] = 0.9,
    sets: Annotated[Literal["lac", "aps", "raps"], typer.Option(help="Kind of prediction sets.")] = "lac",
    temperature: Annotated[bool, typer.Option("--temperature", help="Fit a temperature on half the photos.")] = False,
    model: Model = None,
    method: Annotated[str, typer.Option(help="adapter or adapter+calibrator (cots ls methods).")] = "tpt+ecots",
    template: Annotated[str | None, typer.Option(help="Prompt with {} for the class name.")] = None,
    views: Views = 64,
    seed: Annotated[int, typer.Option(min=0, help="View seed.")] = 0,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """Judge the confidence by labelled photos; write the threshold and the sets they support as a policy."""
    check_methods([method])
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

    dataset = open_dataset(photos, classes_file=classes)
    options: dict[str, Any] = {"template": template, "device": device, "precision": precision}
    given = {key: value for key, value in options.items() if value is not None}
    classifier = Classifier(model or "mini", dataset.classes, method, views=views, seed=seed, **given)
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
    print(f"{result.n} photos, {len(dataset.classes)} classes, {method} with {classifier.backbone.name}")
    print("\n".join(result.lines()))
    if result.n < ENOUGH:
        print("cots: no policy was written.", file=sys.stderr)
        raise typer.Exit(1)
    Policy(
        model=classifier.backbone.name, weights_hash=classifier.backbone.weights_hash, classes=classifier.task.classes,
        method=method, template=classifier.task.template, views=views, n=result.n, accuracy=result.accuracy,
        mean_confidence=result.mean_confidence, temperature=result.temperature, error=result.error, sets=result.sets,
        none_below=threshold([prediction.in_list for prediction in found]),
    ).save(out)  # fmt: skip
    diagram = save_reliability(result.reliability, out.with_suffix(""), method, result.verdict)
    print(f"Written: {out}, {diagram}")
