"""`cots predict`: classify photos."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .._errors import InputError, check_fraction
from .._folders import refuse_url
from ..classes import read_classes
from . import _shared as option
from ._outputs import Output, choose_format, open_output
from ._shared import Bars, check_methods, find_images, option_words, sleep_while_waiting

if TYPE_CHECKING:
    from ..classifier import Classifier
    from ..methods import Prediction

_FORMATS = Literal["table", "json", "csv", "parquet", "fiftyone", "label-studio"]


def predict(
    images: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")],
    classes: option.Classes = None,
    model: option.Model = None,
    method: Annotated[str | None, typer.Option(help="adapter or adapter+calibrator; default: tpt+ecots.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Classes to show per photo.")] = 5,
    format: Annotated[
        _FORMATS | None,
        typer.Option(help="Output; default: by the ending of --out, else table on a terminal, JSON lines in a pipe."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Short for --format csv.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; default: standard output.")] = None,
    abstain: Annotated[float | None, typer.Option(help="Give no class below this confidence, such as 0.7.")] = None,
    none_of_these: Annotated[
        bool, typer.Option("--none-of-these", help="Give no class to photos that seem to belong to none.")
    ] = False,
    reference: Annotated[Path | None, typer.Option(help="Folder of photos that belong, for --none-of-these.")] = None,
    range_: Annotated[
        bool, typer.Option("--range", help="Show the 90% range of the confidence under other random views.")
    ] = False,
    policy: Annotated[Path | None, typer.Option(help="Policy of cots check: sets, threshold, class names.")] = None,
    taxonomy: option.Taxonomy = None,
    present: option.Present = False,
    template: option.Templates = None,
    descriptions: option.Descriptions = None,
    attributes: option.Attributes = None,
    allow_duplicates: option.AllowDuplicates = False,
    max_pixels: option.MaxPixels = None,
    solver: option.Solver = None,
    views: option.Views = None,
    seed: Annotated[int, typer.Option(min=0, help="View seed.")] = 0,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Photos per batch; default: 1, or 64 on a GPU.")] = None,
    device: option.Device = None,
    precision: option.Precision = None,
) -> None:
    """Classify photos with calibrated confidence. Files that cannot be read are listed at the end."""
    kind = choose_format(format, json, csv, out)
    if present and kind not in ("table", "json"):
        raise InputError(f"--present prints a table or JSON lines, not {kind}. Use --json.")
    if abstain is not None:
        check_fraction("--abstain", abstain)
    check_methods([method] if method else [])
    if policy is None or classes is not None:
        check_classes(classes)
    _check_files(images)
    sleep_while_waiting()
    given: dict[str, Any] = {"template": template or None, "batch_size": batch_size, "device": device}
    given |= {"precision": precision, "method": method, "model": model, "max_pixels": max_pixels, "abstain": abstain}
    given |= {"taxonomy": taxonomy, "solver": solver, "descriptions": descriptions, "attributes": attributes}
    given |= {"mode": "present" if present else None, "views": views}
    given = {name: value for name, value in given.items() if value is not None}
    given |= {"seed": seed, "ranges": range_, "allow_duplicates": allow_duplicates}
    given["none_of_these"] = none_of_these
    files = find_images(images)
    if reference is not None:
        given["reference"] = find_images([reference])
    classifier = _classifier(policy, classes, given)
    _Session(files, open_output(kind, files, top, out, _last_column(classifier))).run(classifier)


def _last_column(classifier: Classifier) -> str:
    """The title of the table's last column, the same for all rows."""
    if classifier.mode == "present":
        return "each class by itself"
    abstaining = classifier.policy, classifier.ranks, classifier.abstain, classifier.none_of_these or None
    return "then" if all(one is None for one in abstaining) else "candidates"


@dataclass
class _Session:
    """The predictions of one command: written as they come, and what to report at its end."""

    files: Sequence[Path]
    output: Output
    failed: list[str] = field(default_factory=list)
    unsure: int = 0
    outside: int = 0

    def run(self, classifier: Classifier) -> None:
        out = sys.stdout
        try:
            with Bars(hidden=out.isatty()) as bars:  # on a terminal the rows show the progress themselves
                for done, prediction in enumerate(classifier.stream(self.files), start=1):
                    self._add(self.files[done - 1], prediction)
                    bars.show("photos", done, len(self.files))
        except BrokenPipeError:  # such as `cots predict ... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # Python flushes standard output once more at exit
            raise typer.Exit(1) from None
        finally:  # also when interrupted
            self.output.close()
            self._report()
        if self.failed:
            raise typer.Exit(1)

    def _add(self, file: Path, prediction: Prediction) -> None:
        if prediction.error is not None:
            self.failed.append(f"{file}: {prediction.error}")
        self.outside += prediction.none_of_these
        for text in prediction.warnings:
            print(f"cots: {file}: {text}", file=sys.stderr)
        self.unsure += prediction.abstained and not prediction.none_of_these
        self.output.write(file, prediction)

    def _report(self) -> None:
        found = []
        if self.unsure:
            found.append(f"{self.unsure} unsure")
        if self.outside:
            found.append(f"{self.outside} perhaps none of these classes")
        if found:
            count = "1 photo" if len(self.files) == 1 else f"{len(self.files)} photos"
            print(f"cots: {count}: {', '.join(found)}.", file=sys.stderr)
        if self.failed:
            print(f"cots: {len(self.failed)} of {len(self.files)} could not be read:", file=sys.stderr)
        for line in self.failed:
            print(f"  {line}", file=sys.stderr)


def check_classes(classes: str | None) -> None:
    """Refuse a missing or wrong class list before torch is imported, which takes seconds."""
    if classes is None:
        raise InputError(
            "--classes is missing. Pass names ('tabby cat,golden retriever'), a file with one per line, or a known "
            "list (cots ls classes)."
        )
    read_classes(classes, where="--classes")


def _check_files(images: Sequence[Path]) -> None:
    for path in images:
        refuse_url(path)
    missing = [str(path) for path in images if not path.exists()]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise InputError(f"{', '.join(missing[:5])}{more}: no such file or folder; check the path.")


def _classifier(policy: Path | None, classes: str | None, given: dict[str, Any]) -> Classifier:
    """The classifier of a policy or of a class list; what is given on the command line comes first."""
    from ..classifier import Classifier
    from ..conformal import Policy
    from ..presence import PresencePolicy

    if policy is not None and "mode" in given:
        level = PresencePolicy.load(policy)
        given = {"policy": level, "template": level.template, "classes": level.classes, **given}
    elif policy is not None:
        rules = Policy.load(policy)
        given = {"policy": rules, "template": rules.template, "classes": rules.classes, "method": rules.method, **given}
        abstain, threshold = given.get("abstain"), rules.threshold
        if abstain is not None and threshold is not None and abstain <= threshold:
            print(
                f"cots: --abstain {abstain:g} has no effect: the policy abstains below {threshold:.2%}.",
                file=sys.stderr,
            )
    if classes is not None:
        given["classes"] = classes
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        with option_words():
            classifier = Classifier(**given)
    for warning in caught:
        print(f"cots: {warning.message}", file=sys.stderr)
    return classifier
