"""What the commands share: options, progress bars and tables."""

import contextlib
import functools
import inspect
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import typer

from .._errors import InputError, install_extra, unknown_name
from .._folders import image_endings, images_below, refuse_url, skipped_images
from .._interrupt import stop_in_order
from .._notation import read_part, split_method
from ..classes import DuplicateClass

FIRST_LINE_S, LINE_S = 10.0, 30.0  # seconds until the first line about the progress in a pipe, and between lines


def _read_views(text: str) -> int | str:
    """A number of views, or auto."""
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is neither a whole number above 0 nor auto.")
    return int(text)


AllowDuplicates = Annotated[
    bool, typer.Option("--allow-duplicates", help="Allow class names that are the same to the model.")
]
_AUGMIX = "AugMix on the strong views; default: the protocol's choice."
AugMix = Annotated[bool | None, typer.Option("--augmix/--no-augmix", help=_AUGMIX)]
AllowErrors = Annotated[bool, typer.Option("--allow-errors", help="Exit with 0 even if records contain errors.")]
_AVERAGE = "With --taxonomy: promise --risk on average over draws of labels."
Average = Annotated[bool, typer.Option("--average", help=_AVERAGE)]
Cache = Annotated[str | None, typer.Option(help="Folder of view features shared between runs.")]
_CLASSES = "Class names: comma-separated, a file (one per line, or JSON), or a known list (cots ls classes)."
Classes = Annotated[str | None, typer.Option(help=_CLASSES)]
Context = Annotated[Path | None, typer.Option(help="CoOp checkpoint (or ctx.safetensors) as initial context.")]
_SENTENCES = "JSON file of sentences about each class, averaged with the template; for methods that tune no context."
_WORDS = "JSON file of words for each class, for tca."
Attributes = Annotated[Path | None, typer.Option(help=_WORDS)]
Descriptions = Annotated[Path | None, typer.Option(help=_SENTENCES)]
_CORRUPT = "Corruption of ImageNet-C and severity, such as gaussian_noise:3."
Corrupt = Annotated[str | None, typer.Option(help=_CORRUPT)]
Cpus = Annotated[float | None, typer.Option(help="CPUs per worker with --engine ray.")]
Data = Annotated[Path | None, typer.Option(help="Folder that contains the datasets, in CoOp's layout.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: cuda if available.")]
Engine = Annotated[Literal["inline", "ray"] | None, typer.Option(help="inline (this process) or ray; default: inline.")]
Figures = Annotated[str, typer.Option(help="Comma-separated figure formats: svg, png, pdf; empty for none.")]
Gpus = Annotated[float | None, typer.Option(help="GPUs per worker with --engine ray; a fraction shares one.")]
_LOG = "Send figures to wandb, mlflow or tensorboard; repeatable."
Log = Annotated[list[str] | None, typer.Option(help=_LOG)]
Limit = Annotated[int | None, typer.Option(help="Number of evenly spaced samples per dataset; default: all.")]
MaxWorkers = Annotated[int | None, typer.Option(help="Maximum workers with --engine ray; default: as many as fit.")]
_PIXELS = "Largest photo in pixels of 8-bit RGB; default: 110 million."
MaxPixels = Annotated[int | None, typer.Option(min=1, help=_PIXELS)]
Model = Annotated[str | None, typer.Option(help="Model name (cots ls models); default: mini.")]
Part = Annotated[str | None, typer.Option(help="Do part i of n, such as 1/4, of a run that n processes share.")]
Plugin = Annotated[list[Path] | None, typer.Option(help="Python file with your own methods or metrics; repeatable.")]
_PRECISIONS = Literal["float32", "bfloat16", "float16"]
_PRESENT = "Several classes in one photo: which of them are there, each regardless of the others."
Present = Annotated[bool, typer.Option("--present", help=_PRESENT)]
Precision = Annotated[_PRECISIONS | None, typer.Option(help="Image encoder precision; default: float32.")]
_SWAPPED = "Food101's class names as published, with two of them swapped."
PublishedNames = Annotated[bool | None, typer.Option("--published-names", help=_SWAPPED)]
RayAddress = Annotated[str | None, typer.Option(help="Ray cluster; default: RAY_ADDRESS, else a local one.")]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Recompute the shards that contain errors.")]
Seeds = Annotated[str | None, typer.Option(help="Comma-separated view seeds.")]
_SOLVERS = Literal["adam", "exact"]
Solver = Annotated[_SOLVERS | None, typer.Option(help="Temperature solver; default: exact.")]
SolverOfRun = Annotated[
    _SOLVERS | None, typer.Option("--solver", help="Temperature solver; default: adam, the paper's.")
]
Templates = Annotated[
    list[str] | None,
    typer.Option("--template", help="Prompt with {} for the class name; repeat to average."),
]
_ORDERS = Literal["shuffled", "list"]
StreamOrder = Annotated[_ORDERS | None, typer.Option(help="Sample order of online methods: shuffled by seed, or list.")]
_TAXONOMY = "CSV of edges (parent,child) or ranks, or imagenet: answer at the rank that is sure."
Taxonomy = Annotated[str | None, typer.Option(help=_TAXONOMY)]
Template = Annotated[
    str | None,
    typer.Option(help='Prompt with one {}; default: "a photo of a {}.". With --context: "{}" and what follows.'),
]
_VIEWS = "Views per photo, or auto: as many of 64 as it needs; default: the policy's, else auto."
Views = Annotated[Any, typer.Option(parser=_read_views, metavar="INTEGER|auto", help=_VIEWS)]
ViewsOfRun = Annotated[int | None, typer.Option("--views", min=1, help="Views per photo; default: the protocol's 64.")]
Wait = Annotated[float | None, typer.Option(help="Seconds to wait for cluster resources.")]
Workers = Annotated[int | None, typer.Option(help="Processes that read images and make views.")]


_PADDED = 32  # characters of a column in a pipe
_CONVERT = f"Convert them to JPEG or PNG; for HEIC, {install_extra('formats')}."


def given_options(context: typer.Context, *, without: Iterable[str] = ()) -> dict[str, Any]:
    """The options that were given on the command line, by field of RunConfig."""
    given = {}
    for name, value in context.params.items():
        if name == "plugin" and value:
            given["plugins"] = value
        elif name != "plugin" and name not in without and value is not None:
            given[name] = value
    return given


def command_line(*words: object) -> str:
    """A command of cots as it is typed here: uv sets UV for the commands that it runs."""
    program = ("uv", "run", "cots") if "UV" in os.environ else ("cots",)
    return shlex.join([*program, *map(str, words)])


def with_plugins(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option --plugin to a command; its files are loaded first."""

    @functools.wraps(command)
    def run(*args: Any, plugin: list[Path] | None = None, **options: Any) -> None:
        if plugin:
            from .._registry import load_plugin

            for file in plugin:
                load_plugin(file)
        command(*args, **options)

    known = inspect.signature(command, eval_str=True)
    added = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugin)
    run.__signature__ = known.replace(parameters=[*known.parameters.values(), added])  # type: ignore[attr-defined]
    return run


@contextlib.contextmanager
def option_words() -> Iterator[None]:
    """Name the remedy for a duplicate class as an option, not as an argument of Python."""
    try:
        yield
    except DuplicateClass as error:
        raise InputError(f"{error.problem} Remove one, make them distinct, or pass --allow-duplicates.") from None


def split_names(text: str) -> tuple[str, ...]:
    """The names in a comma-separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The given files, and the images in folders at any depth, sorted by name."""
    found: list[Path] = []
    skipped: Counter[str] = Counter()
    for path in paths:
        refuse_url(path)
        if not path.is_dir():
            found.append(path)
            continue
        inside = [Path(full) for _, full in images_below(path)]
        here = skipped_images(path)
        if not inside:
            also = f" It has {_counts(here)}, which cots does not read: {_CONVERT}" if here else ""
            raise InputError(f"The folder {path} has no images ({', '.join(image_endings())}) at any depth.{also}")
        found += inside
        skipped += here
    if skipped:
        print(f"cots: skipped images in folders: {_counts(skipped)}. {_CONVERT}", file=sys.stderr)
    return found


def _counts(endings: Counter[str]) -> str:
    return ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items()))


def check_methods(methods: Iterable[str], kinds: Sequence[str] = ("adapter", "calibrator")) -> None:
    """Refuse unknown names before importing torch, which takes seconds; `parse_method` checks everything else.

    A built-in adapter or calibrator has the name of its file.
    """
    if "torch" in sys.modules:
        return
    known = {kind: _method_names(f"{kind}s") for kind in ("adapter", "calibrator")}
    for method in methods:
        for kind, part in zip(kinds, split_method(method), strict=False):
            name = read_part(part).name
            if name.partition("(")[0] not in known["adapter"] | known["calibrator"]:
                raise unknown_name(kind, name, known[kind])


def _method_names(package: str) -> set[str]:
    files = (Path(__file__).parents[1] / package).glob("[!_]*.py")
    return {file.stem for file in files} | entry_points(group=f"cots.{package}").names


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: int = 0, markdown: bool = False
) -> None:
    """Print a table that fits the terminal, or in a pipe a line per row; the last `right` columns are right-aligned."""
    if markdown:
        for row in (columns, ["---"] * len(columns), *rows):
            print(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |")
        return
    if not sys.stdout.isatty():
        _print_lines([columns, *rows], right)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index >= len(columns) - right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _print_lines(rows: Sequence[Sequence[str]], right: int) -> None:
    """Aligned columns; one with long cells is not padded beyond `_PADDED`."""
    widths = [min(_PADDED, max(map(len, column))) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            cells.append(cell.rjust(width) if index >= len(row) - right else cell.ljust(width))
        print("  ".join(cells).rstrip())


def sleep_while_waiting() -> None:
    """Let torch's waiting threads sleep instead of taking the cores from those that work. Read when torch is imported.

    On a busy machine, spinning threads double the CPU time of a photo.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class Bars:
    """Progress on standard error: bars on a terminal, else a line now and then.

    `show` adds a bar for each new name.
    """

    def __init__(self, hidden: bool = False) -> None:
        stop_in_order()  # progress is shown once the work begins
        self._hidden = hidden or sys.stderr is None
        self._due = time.monotonic() + FIRST_LINE_S
        self._began: dict[str, tuple[float, int]] = {}  # when each name was first shown, and how many were done
        self._progress: Any = None
        self._by_name: dict[str, Any] = {}
        if hidden or sys.stderr is None or not sys.stderr.isatty():
            return  # and leave rich, which takes a while to import, alone
        from rich import progress
        from rich.console import Console

        self._progress = progress.Progress(
            progress.SpinnerColumn("line"),  # moves while the bar does not
            progress.TextColumn("{task.description:<26}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[rate]}"),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress:
            self._progress.stop()

    def show(self, name: str, done: int, total: int | None, shown: str | None = None) -> None:
        bars = self._progress
        if not bars:
            self._line(shown or name, done, total)
            return
        if name not in self._by_name:
            self._by_name[name] = bars.add_task(name, total=total, rate="")
        task = bars.tasks[bars.task_ids.index(self._by_name[name])]
        task.total = total  # without one the bar pulses; `update` would keep the one before
        rate = f"{task.speed:.1f}/s" if task.speed and total else ""
        bars.update(task.id, completed=done, description=shown or name, rate=rate)

    def _line(self, name: str, done: int, total: int | None) -> None:
        """A line about the progress, if the last one is some time ago."""
        if self._hidden or not total:
            return
        now = time.monotonic()
        began, done_before = self._began.setdefault(name, (now, done))
        if now < self._due:
            return
        self._due = now + LINE_S
        line = f"cots: {name}: {done:,} of {total:,}"
        if done > done_before and now > began:
            rate = (done - done_before) / (now - began)
            line += f", {rate:.2g} per second, {duration((total - done) / rate)} left"
        print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Seconds up to two minutes, minutes up to two hours, then hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
