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
from ._ask import POLICY, TABLE, draw_photos, read_labels, report
from ._present import check_present, refuse_others
from ._shared import check_methods, option_words, sleep_while_waiting
from ._trial import KEPT, classify, hashes_of, refuse_overwrite, try_policy
from ._watch import watch_photos

_PHOTOS = "Labelled photos: a CSV with path,label, one folder per class, or the table of --ask."
Photos = Annotated[str, typer.Argument(help=_PHOTOS)]
Ask = Annotated[int | None, typer.Option(min=1, help="Draw so many of these unlabelled photos to be labelled.")]
_UNIFORM = "With --ask: all with the same probability, as a policy needs them."
Uniform = Annotated[bool, typer.Option("--uniform", help=_UNIFORM)]
_TASKS = Literal["label-studio"]
Format = Annotated[_TASKS | None, typer.Option(help="With --ask: also write tasks for Label Studio.")]
_UNLABELLED = "Photos without labels, in any folders: look for changes."
Unlabelled = Annotated[bool, typer.Option("--unlabelled", help=_UNLABELLED)]
_STATE = "File that keeps the state of --unlabelled, to continue with later photos."
State = Annotated[Path | None, typer.Option(help=_STATE)]
_IN_ORDER = "With --unlabelled: read the photos in the order of their names, such as times."
InOrder = Annotated[bool, typer.Option("--in-order", help=_IN_ORDER)]
_FLAG = "Maximum share of photos of the classes that none-of-these flags."
Flag = Annotated[float, typer.Option(help=_FLAG)]
_OUT = f"The policy to write ({POLICY}), or the table of --ask ({TABLE})."
_FORCE = "Overwrite a policy of other photos."
Force = Annotated[bool, typer.Option("--force", help=_FORCE)]
Out = Annotated[Path | None, typer.Option("--out", "-o", help=_OUT)]

if TYPE_CHECKING:
    from ..conformal import Policy, Setup
    from ..evaluate import Checked, Labels
    from ..methods import Prediction
    from ..taxonomy import Taxonomy


def check(
    photos: Photos,
    ask: Ask = None,
    uniform: Uniform = False,
    format: Format = None,
    unlabelled: Unlabelled = False,
    classes: option.Classes = None,
    policy: Annotated[Path | None, typer.Option(help="Policy to test on the photos, instead of writing one.")] = None,
    state: State = None,
    in_order: InOrder = False,
    out: Out = None,
    force: Force = False,
    risk: Annotated[float, typer.Option(help="Maximum error rate of accepted predictions.")] = 0.05,
    certainty: Annotated[float, typer.Option(help="Certainty of that bound.")] = 0.95,
    coverage: Annotated[float, typer.Option(help="Share of photos whose set contains their class.")] = 0.9,
    sets: Annotated[Literal["auto", "lac", "aps", "raps"], typer.Option(help="Kind of prediction sets.")] = "auto",
    flag: Flag = 0.05,
    taxonomy: option.Taxonomy = None,
    present: option.Present = False,
    average: option.Average = False,
    temperature: Annotated[bool, typer.Option("--temperature", help="Fit a temperature on half the photos.")] = False,
    model: option.Model = None,
    method: Annotated[str | None, typer.Option(help="adapter or adapter+calibrator; default: tpt+ecots.")] = None,
    template: option.Templates = None,
    descriptions: option.Descriptions = None,
    attributes: option.Attributes = None,
    allow_duplicates: option.AllowDuplicates = False,
    max_pixels: option.MaxPixels = None,
    solver: option.Solver = None,
    views: option.Views = None,
    seed: Annotated[int, typer.Option(min=0, help="View seed.")] = 0,
    device: option.Device = None,
    precision: option.Precision = None,
) -> None:
    """Check the confidence on labelled photos. Writes a threshold and prediction sets as a policy.

    Predictions are kept beside the policy, so that a second check, also after Ctrl-C, computes only what is new.
    """
    sleep_while_waiting()
    check_methods([method] if method else [])
    rest = {"template": template or None, "precision": precision, "solver": solver, "views": views, "seed": seed}
    texts = _chosen({"descriptions": descriptions, "attributes": attributes})
    given = _chosen({**rest, **texts, "device": device, "max_pixels": max_pixels, "allow_duplicates": allow_duplicates})
    promises = {"risk": risk, "certainty": certainty, "coverage": coverage, "method": sets, "flag": flag}
    promises |= {"temperature": temperature, "average": average}
    _check_shares(promises)
    if unlabelled:
        watch_photos(Path(photos), classes, policy, model or "mini", method, state, in_order, given)
        return
    _check_options(state or in_order, ask, out, policy, uniform or format)
    settings = _chosen({"classes": classes, "model": model, "method": method})
    if present:
        refuse_others(policy=policy, ask=ask, taxonomy=taxonomy, average=average, temperature=temperature)
        check_present(photos, {**settings, **given}, risk, out or POLICY)
    elif policy is not None:
        try_policy(photos, policy, {**settings, **texts}, device)
    elif ask is not None:
        draw_photos(Path(photos), {**settings, **given}, ask, out or TABLE, KEPT, uniform, format)
    else:
        _check_labels(photos, taxonomy, settings, given, out, promises, force)


def _check_shares(promises: dict[str, Any]) -> None:
    """Before photos are classified, which takes minutes."""
    for name in ("risk", "certainty", "coverage", "flag"):
        if not 0 < promises[name] < 1:
            raise InputError(f"--{name} must lie between 0 and 1, such as 0.05 or 0.95, not {promises[name]:g}.")


def _chosen(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _check_options(
    about_stream: object, ask: int | None, out: Path | None, policy: Path | None, about_ask: object
) -> None:
    if about_stream:
        raise InputError("--state and --in-order require --unlabelled.")
    if policy is not None and (ask is not None or out is not None):
        raise InputError("--policy tests a policy and writes none; omit --ask and --out.")
    if about_ask and ask is None:
        raise InputError("--uniform and --format need --ask, which draws photos to label.")
    if ask is None and out is not None and out.suffix != ".json":
        raise InputError(f"--out {out} must end in .json.")


def _check_labels(
    photos: str, taxonomy: str | None, settings: dict[str, Any], given: dict[str, Any], out: Path | None,
    promises: dict[str, Any], force: bool,
) -> None:  # fmt: skip
    if labels := read_labels(Path(photos)):
        _check_asked(labels, taxonomy, settings, out, promises, force)
    else:
        _check_labelled(photos, taxonomy, {**settings, **given}, out or POLICY, promises, force)


def _check_labelled(
    photos: str, taxonomy: str | None, settings: dict[str, Any], out: Path, promises: dict[str, Any], force: bool
) -> None:
    from ..classifier import Classifier
    from ..data import open_dataset

    dataset = open_dataset(photos, classes=settings.pop("classes", None))
    tree = _tree(taxonomy, promises["average"], dataset.classes)
    hashes = hashes_of(dataset)
    if not force:
        refuse_overwrite(out, hashes)
    with option_words():
        classifier = Classifier(classes=dataset.classes, **settings)
    predictions, labels = classify(classifier, dataset, out.with_suffix(KEPT))
    write_policy(classifier.setup, predictions, labels, out, hashes, taxonomy=tree, **promises)


def _check_asked(
    labels: Labels, taxonomy: str | None, settings: dict[str, Any], out: Path | None, promises: dict[str, Any],
    force: bool,
) -> None:  # fmt: skip
    """What the labels of drawn photos say, and a policy if enough of them were drawn uniformly."""
    if settings:
        raise InputError(f"--{next(iter(settings))} was set with --ask; omit it.")
    setup = labels.asked.setup
    tree = _tree(taxonomy, promises["average"], setup.classes)
    if report(labels):
        out = out or POLICY
        if not force:
            refuse_overwrite(out, labels.asked.hashes)
        write_policy(setup, *labels.uniform(), out, labels.uniform_photos(), taxonomy=tree, **promises)
    elif out is not None:
        raise typer.Exit(1)


def _tree(taxonomy: str | None, average: bool, classes: Sequence[str]) -> Taxonomy | None:
    from ..taxonomy import TaxonomyFile

    if taxonomy is not None:
        return TaxonomyFile.read(taxonomy).tree(classes)
    if average:
        raise InputError("--average is about the answers of a taxonomy; pass one with --taxonomy.")
    return None


def write_policy(
    setup: Setup, predictions: Sequence[Prediction], labels: Sequence[int], out: Path, hashes: Sequence[str],
    **choices: Any,
) -> None:  # fmt: skip
    """Print the verdict on labelled photos, and write the policy that they support and a diagram.

    hashes: of the photos.
    choices: what is promised, as for `evaluate.check`.
    """
    from ..evaluate import check as check_probabilities
    from ..evaluate import save_reliability

    probabilities = [prediction.probabilities for prediction in predictions]
    in_list = [prediction.in_list for prediction in predictions]
    checked = check_probabilities(probabilities, labels, in_list=in_list, **choices)
    print(f"{checked.n} photos, {len(setup.classes)} classes, {setup.method} with {setup.model}")
    print("\n".join(checked.lines()))
    if not checked.enough:
        print("cots: no policy was written.", file=sys.stderr)
        raise typer.Exit(1)
    replace(_policy(setup, predictions, checked), photos=tuple(hashes)).save(out)
    diagram = save_reliability(checked.reliability, out.with_suffix(""), setup.method, checked.verdict)
    print(f"Written: {out}, {diagram}")


def _policy(setup: Setup, predictions: Sequence[Prediction], checked: Checked) -> Policy:
    from ..conformal import Policy
    from ..watch import reference_of

    flag = checked.flag if checked.flag and checked.flag.below is not None else None
    policy = Policy(
        **vars(setup), n=checked.n, accuracy=checked.accuracy, mean_confidence=checked.mean_confidence,
        temperature=checked.temperature, error=checked.error, sets=checked.sets, ranks=checked.ranks,
        none_below=flag and flag.below, flag=flag and flag.share,
    )  # fmt: skip
    return replace(policy, signals=reference_of([policy.apply(prediction) for prediction in predictions]))
