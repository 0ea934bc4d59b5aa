"""`cots predict`: classify photos; prints a table on a terminal, JSON lines in a pipe."""

from __future__ import annotations

import csv
import json as jsonlib
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from .._errors import InputError
from ._shared import AllowDuplicates, Bars, Device, Model, Precision, Templates, Views, check_methods, split_names

if TYPE_CHECKING:
    from ..classifier import Classifier
    from ..methods import Prediction

COLUMNS = (
    "file", "label", "confidence", "abstained", "tau", "alpha", "method", "in_list", "none_of_these", "confidence_low",
    "confidence_high", "set",
)  # fmt: skip
NONE, UNSURE = "none of these", "unsure"  # printed instead of a class


def predict(
    images: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")],
    classes: Annotated[
        str | None, typer.Option(help="Comma-separated class names, or a list: cots ls classes.")
    ] = None,
    classes_file: Annotated[Path | None, typer.Option(help="File with one class name per line.")] = None,
    model: Model = None,
    method: Annotated[str | None, typer.Option(help="adapter or adapter+calibrator; default: tpt+ecots.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Classes to show per photo.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines, even on a terminal.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    abstain: Annotated[float | None, typer.Option(help="Print no class below this confidence, such as 0.7.")] = None,
    none_of_these: Annotated[
        bool, typer.Option("--none-of-these", help="Print no class for photos that seem to belong to none.")
    ] = False,
    reference: Annotated[Path | None, typer.Option(help="Folder of photos that belong, for --none-of-these.")] = None,
    range_: Annotated[
        bool, typer.Option("--range", help="Show the 90% range of the confidence under other random views.")
    ] = False,
    policy: Annotated[Path | None, typer.Option(help="Policy of cots check: sets, threshold, class names.")] = None,
    template: Templates = None,
    allow_duplicates: AllowDuplicates = False,
    views: Views = 64,
    seed: Annotated[int, typer.Option(min=0, help="View seed.")] = 0,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Photos per batch; default: 1, or 64 on a GPU.")] = None,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """Classify photos with calibrated confidence. Files that cannot be read are listed at the end."""
    if json and csv:
        raise InputError("--json and --csv cannot be combined; choose one.")
    if abstain is not None and not 0 < abstain <= 1:
        raise InputError(f"--abstain is a confidence in (0, 1], such as 0.7, not {abstain:g}.")
    check_methods([method] if method else [])
    if policy is None or classes is not None or classes_file is not None:
        _check_given(images, classes, classes_file)
    # Torch's waiting threads would take the cores from those that draw views. Read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given: dict[str, Any] = {"template": template or None, "batch_size": batch_size, "device": device}
    given |= {"precision": precision, "method": method, "model": model}
    given = {name: value for name, value in given.items() if value is not None}
    given |= {"views": views, "seed": seed, "ranges": range_, "allow_duplicates": allow_duplicates}
    files = find_images(images)
    if reference is not None:
        given["reference"] = find_images([reference])
    classifier = _classifier(policy, classes, classes_file, given)
    if csv:
        write = _csv(sys.stdout, top)
    elif json or not sys.stdout.isatty():
        write = _json(sys.stdout, top)
    else:
        write = _table(files, top)
    _Session(files, none_of_these, abstain, write).run(classifier)


@dataclass
class _Session:
    """The predictions of one command: written as they come, and what to report at its end."""

    files: Sequence[Path]
    none_of_these: bool
    abstain: float | None
    write: Write
    failed: list[str] = field(default_factory=list)
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
            self._report()
        if self.failed:
            raise typer.Exit(1)

    def _add(self, file: Path, prediction: Prediction) -> None:
        if prediction.error is not None:
            self.failed.append(f"{file}: {prediction.error}")
            return
        self.outside += prediction.none_of_these
        instead = None
        if self.none_of_these and prediction.none_of_these:
            instead = NONE
        elif prediction.abstained or (self.abstain is not None and prediction.confidence < self.abstain):
            instead = UNSURE
        self.write(file, prediction, instead)

    def _report(self) -> None:
        if self.outside and not self.none_of_these:
            kind = "photo seems" if self.outside == 1 else "photos seem"
            print(f"cots: {self.outside} {kind} to show none of these classes; see --none-of-these.", file=sys.stderr)
        if self.failed:
            print(f"cots: {len(self.failed)} of {len(self.files)} could not be read:", file=sys.stderr)
        for line in self.failed:
            print(f"  {line}", file=sys.stderr)


def _check_given(images: Sequence[Path], classes: str | None, file: Path | None) -> None:
    """Check what does not require torch, whose import takes seconds."""
    if (classes is None) == (file is None):
        problem = "cannot be combined" if file else "are both missing"
        raise InputError(
            f"--classes and --classes-file {problem}. Pass the class names as --classes 'tabby cat,golden retriever', "
            "or in a file, one per line."
        )
    if classes is not None and not split_names(classes):
        raise InputError("--classes has no class names. Pass at least two.")
    if classes is not None and (classes.endswith((".txt", ".csv")) or os.path.isfile(classes)):
        raise InputError(f"--classes {classes} is a file name, not class names. Pass it as --classes-file {classes}.")
    missing = [str(path) for path in (*images, *filter(None, [file])) if not path.exists()]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise InputError(f"{', '.join(missing[:5])}{more}: no such file or folder; check the path.")


def read_names(classes: str | None, file: Path | None) -> tuple[str, ...]:
    """Class names from --classes, which can be a known list, or --classes-file."""
    from ..data import ClassFile
    from ..prompts import list_or_names

    if file is not None:
        return ClassFile.read(file).names
    return list_or_names(split_names(classes or ""))


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The given files, and the images in folders at any depth, sorted by name."""
    from ..data import IMAGE_ENDINGS, images_below, skipped_images

    files: list[Path] = []
    skipped: Counter[str] = Counter()
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside = [Path(full) for _, full in images_below(path)]
        if not inside:
            raise InputError(f"The folder {path} has no images ({', '.join(IMAGE_ENDINGS)}) at any depth.")
        files += inside
        skipped += skipped_images(path)
    if skipped:
        counts = ", ".join(f"{count} {ending}" for ending, count in sorted(skipped.items()))
        print(f"cots: skipped images in folders: {counts}. Convert them to JPEG or PNG.", file=sys.stderr)
    return files


def _classifier(policy: Path | None, classes: str | None, file: Path | None, given: dict[str, Any]) -> Classifier:
    """The classifier of a policy or of a class list; what is given on the command line comes first."""
    from ..classifier import Classifier
    from ..conformal import Policy
    from ..prompts import ONE_CLASS

    if policy is not None:
        rules = Policy.load(policy)
        given = {"policy": rules, "template": rules.template, "classes": rules.classes, "method": rules.method, **given}
    if classes is not None or file is not None:
        given["classes"] = read_names(classes, file)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        classifier = Classifier(**given)
    messages = [str(warning.message) for warning in caught]
    if len(classifier.task.classes) == 1:
        messages.append(ONE_CLASS)
    for message in messages:
        print(f"cots: {message}", file=sys.stderr)
    return classifier


Write = Callable[[Path, "Prediction", str | None], None]


def _json(out: TextIO, top: int) -> Write:
    def write(file: Path, prediction: Prediction, instead: str | None) -> None:
        ranked = [{"class": name, "probability": p} for name, p in prediction.top(top)]
        print(jsonlib.dumps({**_cells(file, prediction, instead), "top": ranked}), file=out, flush=True)

    return write


def _csv(out: TextIO, top: int) -> Write:
    writer = csv.writer(out, lineterminator="\n")
    columns = list(COLUMNS)
    for rank in range(1, top + 1):
        columns += [f"class_{rank}", f"probability_{rank}"]
    writer.writerow(columns)

    def write(file: Path, prediction: Prediction, instead: str | None) -> None:
        cells = _cells(file, prediction, instead)
        for name in ("abstained", "none_of_these"):
            cells[name] = str(cells[name]).lower()
        cells["set"] = "|".join(cells["set"] or ())
        row = list(cells.values())
        for pair in prediction.top(top):
            row += pair
        writer.writerow(row + [""] * (len(columns) - len(row)))
        out.flush()

    return write


def _cells(file: Path, prediction: Prediction, instead: str | None) -> dict[str, Any]:
    low, high = prediction.confidence_range or (None, None)
    values = (
        str(file), None if instead else prediction.label, prediction.confidence, instead is not None, prediction.tau,
        prediction.alpha, prediction.method, prediction.in_list, prediction.none_of_these, low, high,
        prediction.label_set,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def _table(files: Sequence[Path], top: int) -> Write:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    width = min(max(len(str(file)) for file in files), max(16, console.width // 3))
    header = True

    def write(file: Path, prediction: Prediction, instead: str | None) -> None:
        # One table per photo with fixed widths, so that each row appears as soon as it is ready.
        nonlocal header
        ranked = [f"{name} {_share(p)}" for name, p in prediction.top(top)]
        label, rest, title = Text(prediction.label or "", "bold"), ", ".join(ranked[1:]), "then"
        if instead:
            label, rest, title = Text(instead, "yellow"), ", ".join(ranked), "candidates"
        if prediction.label_set is not None:
            rest = f"set: {', '.join(prediction.label_set) or 'empty'}"
        confidence, digits = _share(prediction.confidence, 1), 10
        if prediction.confidence_range is not None:
            low, high = prediction.confidence_range
            confidence, digits = f"{confidence} ({_share(low)} to {_share(high)})", 22
        table = Table(box=SIMPLE_HEAD, show_header=header, padding=(0, 1, 0, 0), show_edge=False, expand=True)
        table.add_column("photo", width=width, overflow="fold")
        table.add_column("class", ratio=2, overflow="fold")
        table.add_column("confidence", width=digits, justify="right")
        table.add_column(title, ratio=3, overflow="fold", style="dim")
        table.add_row(Text(str(file)), label, confidence, Text(rest))
        console.print(table)
        header = False

    return write


def _share(p: float, digits: int = 0) -> str:
    """A percentage that is never rounded to 0% or 100%."""
    if p < 0.0005:
        return "<0.1%"
    if p >= 0.9995:
        return ">99.9%"
    if 0.095 <= p < 0.995:
        return f"{p:.{digits}%}"
    return f"{p:.1%}"
