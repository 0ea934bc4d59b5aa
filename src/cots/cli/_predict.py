"""`cots predict`: photos in, a table on a terminal or JSON lines in a pipe out."""

from __future__ import annotations

import contextlib
import csv
import json as jsonlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from .._errors import InputError, UntrainedWordWarning
from ._bars import Bars
from ._bench import Device, Precision

if TYPE_CHECKING:
    from ..classifier import Prediction

UNSURE = "unsure"
COLUMNS = ("file", "label", "confidence", "abstained", "tau", "alpha", "method")


def predict(
    images: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")],
    classes: Annotated[str | None, typer.Option(help="Class names, with commas.")] = None,
    classes_file: Annotated[Path | None, typer.Option(help="File with a class name a line.")] = None,
    model: Annotated[str, typer.Option(help="Model, as for cots.load.")] = "mini",
    method: Annotated[str, typer.Option(help="adapter or adapter+calibrator (cots ls methods).")] = "tpt+ecots",
    top: Annotated[int, typer.Option(min=1, help="Classes shown for each photo.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="JSON lines, on a terminal too.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="CSV instead.")] = False,
    abstain: Annotated[
        float | None, typer.Option(help="Confidence below which no class is named, such as 0.7.")
    ] = None,
    template: Annotated[str, typer.Option(help="Sentence with {} for the class name.")] = "a photo of a {}.",
    views: Annotated[int, typer.Option(min=1, help="Views of each photo.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Draws the views.")] = 0,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Photos at a time: 8, on a GPU 64 if not given.")
    ] = None,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """Classify photos with a confidence that can be trusted; what cannot be read is listed at the end."""
    from ..methods import parse_method

    if json and csv:
        raise InputError("--json and --csv exclude each other; give one of them.")
    if abstain is not None and not 0 < abstain <= 1:
        raise InputError(f"--abstain is a confidence: a number above 0, at most 1, such as 0.7, not {abstain:g}.")
    parse_method(method)
    names = read_names(classes, classes_file)
    files = find_images(images)
    classifier = _classifier(
        model, names, method, template=template, views=views, seed=seed, device=device, batch_size=batch_size,
        precision=precision or "float32",
    )  # fmt: skip
    out = sys.stdout
    terminal = out.isatty()
    as_table = terminal and not json and not csv
    write = _table(files, top) if as_table else _csv(out, top) if csv else _json(out, top)
    # Lines that come by on a terminal are progress enough; a bar would be in their way.
    bar: Any = Bars() if as_table or not terminal else contextlib.nullcontext()
    failed: list[tuple[Path, str]] = []
    with _told_at_the_end(failed, len(files)), bar, _quiet_when_closed(out):
        if isinstance(bar, Bars):
            bar.update("photos", 0, len(files))
        for done, (file, found) in enumerate(zip(files, classifier.stream(files), strict=True), start=1):
            if found.error is None:
                with bar.aside() if as_table else contextlib.nullcontext():
                    write(file, found, abstain is not None and found.confidence < abstain)
            else:
                failed.append((file, found.error))
            if isinstance(bar, Bars):
                bar.update("photos", done, len(files))
    if failed:
        raise typer.Exit(1)


def read_names(classes: str | None, file: Path | None) -> list[str]:
    """Class names from --classes or --classes-file; blank lines, a byte-order mark and CRLF do no harm."""
    from ..prompts import clean_name

    if (classes is None) == (file is None):
        many = "exclude each other" if file else "are both missing"
        raise InputError(
            f"--classes and --classes-file {many}: give the names to choose from as --classes 'tabby cat,golden "
            "retriever', or one a line in a file."
        )
    if file is None:
        where, given = "--classes", list(enumerate((classes or "").split(","), start=1))
    else:
        where = f"the classes file {str(file)!r}"
        try:
            given = list(enumerate(file.read_text(encoding="utf-8-sig").splitlines(), start=1))
        except FileNotFoundError:
            raise InputError(f"{where} does not exist: check the path.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{where} cannot be read ({error}): it must be UTF-8 text, one name a line.") from None
    seen: dict[str, int] = {}
    for place, text in given:
        name = clean_name(text)
        if name in seen:
            unit = "line" if file else "name"
            raise InputError(
                f"{where} holds the class {name!r} twice ({unit}s {seen[name]} and {place}), so its probability would "
                "be split. Remove one or make the names distinct."
            )
        if name:
            seen[name] = place
    if not seen:
        raise InputError(f"{where} holds no class name: give at least one, and better two.")
    return list(seen)


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, and the images in folders at any depth, sorted by name."""
    from ..data._files import IMAGE_ENDINGS, images_below

    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise InputError(f"{', '.join(missing[:5])}{more}: no such file or folder; check the path.")
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = [Path(full) for _, full in images_below(path, "")]
        if not inside:
            raise InputError(
                f"The folder {path} holds no image ({', '.join(IMAGE_ENDINGS)}) at any depth; give the "
                "folder with the photos, or the files themselves."
            )
        found += inside
    return found


def _classifier(model: str, names: list[str], method: str, **options: Any) -> Any:
    from ..classifier import Classifier
    from ..prompts import ONE_CLASS

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UntrainedWordWarning)
        classifier = Classifier(model, names, method, **options)
    for warning in caught:
        print(f"cots: {warning.message}", file=sys.stderr)
    if len(names) == 1:
        print(f"cots: {ONE_CLASS}", file=sys.stderr)
    return classifier


Write = Callable[[Path, "Prediction", bool], None]


def _json(out: TextIO, top: int) -> Write:
    def write(file: Path, found: Prediction, unsure: bool) -> None:
        ranked = [{"class": name, "probability": p} for name, p in found.top(top)]
        print(jsonlib.dumps({**_cells(file, found, unsure), "top": ranked}), file=out, flush=True)

    return write


def _csv(out: TextIO, top: int) -> Write:
    writer = csv.writer(out, lineterminator="\n")
    ranked = [f"{what}_{place}" for place in range(1, top + 1) for what in ("class", "probability")]
    writer.writerow([*COLUMNS, *ranked])

    def write(file: Path, found: Prediction, unsure: bool) -> None:
        cells = _cells(file, found, unsure)
        cells["abstained"] = str(unsure).lower()
        best = [cell for pair in found.top(top) for cell in pair]
        writer.writerow([*cells.values(), *best, *[""] * (2 * top - len(best))])
        out.flush()

    return write


def _cells(file: Path, found: Prediction, unsure: bool) -> dict[str, Any]:
    values = (str(file), None if unsure else found.label, found.confidence, unsure, found.tau, found.alpha)
    return dict(zip(COLUMNS, (*values, found.method), strict=True))


def _table(files: Sequence[Path], top: int) -> Write:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    width = min(max(len(str(file)) for file in files), max(16, console.width // 3))
    first = True

    def write(file: Path, found: Prediction, unsure: bool) -> None:
        # A table of its own for each photo, with the same widths, so that rows appear as they are ready.
        nonlocal first
        table = Table(box=SIMPLE_HEAD, show_header=first, padding=(0, 1, 0, 0), show_edge=False, expand=True)
        table.add_column("photo", width=width, overflow="fold")
        table.add_column("class", ratio=2, overflow="fold")
        table.add_column("confidence", width=10, justify="right")
        table.add_column("then" if not unsure else "candidates", ratio=3, overflow="fold", style="dim")
        ranked = [f"{name} {_share(p)}" for name, p in found.top(top)]
        label = f"[yellow]{UNSURE}[/yellow]" if unsure else f"[bold]{_plain(found.label)}[/bold]"
        rest = ", ".join(ranked if unsure else ranked[1:])
        table.add_row(_plain(str(file)), label, _share(found.confidence, 1), _plain(rest))
        console.print(table)
        first = False

    return write


def _share(p: float, digits: int = 0) -> str:
    """Per cent, never rounded to certainty or to nothing."""
    if not 0.0005 <= p < 0.9995:
        return ">99.9%" if p > 0.5 else "<0.1%"
    return f"{p:.{digits}%}" if 0.095 <= p < 0.995 else f"{p:.1%}"


def _plain(text: str | None) -> str:
    from rich.markup import escape

    return escape(text or "")


@contextlib.contextmanager
def _told_at_the_end(failed: list[tuple[Path, str]], total: int) -> Any:
    """The photos that could not be read, also when the run is stopped before its end."""
    try:
        yield
    finally:
        if failed:
            print(f"cots: {len(failed)} of {total} could not be read:", file=sys.stderr)
        for file, reason in failed:
            print(f"  {file}: {reason}", file=sys.stderr)


@contextlib.contextmanager
def _quiet_when_closed(out: TextIO) -> Any:
    """`cots predict ... | head` ends without a traceback: what nobody reads is not written."""
    try:
        yield
    except BrokenPipeError:
        # Python flushes standard output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        raise typer.Exit(1) from None
