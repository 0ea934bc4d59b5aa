"""A run compared with a table of the paper, cell by cell."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .._errors import InputError, unknown_name
from ..bench import Run, RunOptions, seeds_text
from ..data import PROTOCOLS, find_protocol
from ..evaluate import aligned, deviation
from ..evaluate.text import counted
from ..methods import method_kind, method_title
from ._shown import means_note, shown_cells
from ._tables import METRIC_TITLES, NOT_STATED, Cell, RunScores, Table, load_table

SPREAD = 2.0  # standard deviations on either side
NOT_PRINTED = "\N{EN DASH}"
COLUMNS = ("dataset", "method", "ours", "std", "paper", "std", "difference", "")


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """Our value (mean over seeds) and the paper's, in the unit of `metric`.

    paper: None if the paper prints no value over these datasets. paper_std: its standard deviation over three seeds, if
    printed. outside: the difference exceeds 2 of these plus rounding. note: a known problem of the paper's value.
    encoding: seconds of encoding, included in ours.
    """

    metric: str
    dataset: str
    method: str
    ours: float
    ours_std: float | None
    paper: float | None
    paper_std: float | None
    outside: bool
    note: str = ""
    encoding: float | None = None

    @property
    def difference(self) -> float | None:
        return None if self.paper is None else self.ours - self.paper

    @property
    def adaptation(self) -> float | None:
        """Seconds without encoding, if that is known."""
        return None if self.encoding is None else self.ours - self.encoding


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of `compare`: `rows`, and `notes` that apply to all rows."""

    table: Table
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[ComparisonRow, ...]
    notes: tuple[str, ...]

    @property
    def outside(self) -> tuple[ComparisonRow, ...]:
        """The rows outside the paper's spread."""
        return tuple(row for row in self.rows if row.outside)

    def text(self) -> str:
        """A table for a terminal: one block per metric, `*` marks values outside the paper's spread."""
        lines = self._header()
        for note in self.notes:
            lines.append(f"note: {note}")
        for title, rows in self.blocks():
            lines += ["", title, aligned([self.columns, *rows])]
        return "\n".join([*lines, "", *self.footer()]).rstrip()

    def markdown(self) -> str:
        """The same as Markdown."""
        lines = ["  \n".join(self._header()), ""]
        for note in self.notes:
            lines.append(f"- {note}")
        head, rule = "|".join(self.columns), "--:|" * (len(self.columns) - 3)
        for title, rows in self.blocks():
            lines += ["", f"**{title}**", "", f"|{head}|", f"|---|---|{rule}---|"]
            for row in rows:
                lines.append(f"|{'|'.join(row)}|".replace("*", r"\*"))
        lines.append("")
        for line in self.footer():
            lines.append(line.replace("*", r"\*"))
        return "\n".join(lines).rstrip() + "\n"

    def _header(self) -> list[str]:
        ours = f"ours: {', '.join(self.models)}, {seeds_text(self.seeds)}"
        return [f"table:{self.table.id}: {self.table.title} ({self.table.label})", ours]

    @property
    def split(self) -> bool:
        """Whether seconds are also split into encoding and adaptation."""
        return any(row.encoding is not None for row in self.rows)

    @property
    def columns(self) -> tuple[str, ...]:
        if not self.split:
            return COLUMNS
        return (*COLUMNS[:3], "encoding", "adaptation", *COLUMNS[3:])

    def blocks(self) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
        """The title of each metric and its rows as text."""
        footnotes = self._footnotes()
        for metric in dict.fromkeys(row.metric for row in self.rows):
            yield METRIC_TITLES[metric], [self._cells(row, footnotes) for row in self.rows if row.metric == metric]

    def _cells(self, row: ComparisonRow, footnotes: list[str]) -> tuple[str, ...]:
        digits, mark = self.table.decimals, ""
        numbers = [row.ours, row.ours_std, row.paper, row.paper_std]
        if self.split:
            numbers[1:1] = [row.encoding, row.adaptation]
        cells = [row.dataset, row.method]
        for number in numbers:
            cells.append("" if number is None else f"{number:.{digits}f}")
        if row.outside:
            mark = "*"
        if row.note:
            mark += f"[{footnotes.index(row.note) + 1}]"
        if row.difference is None:
            cells[-2] = NOT_PRINTED
            return (*cells, "", mark)
        return (*cells, f"{row.difference:+.{digits}f}", mark)

    def footer(self) -> list[str]:
        """Explanations of marks and footnotes."""
        lines = []
        if known := sum(row.paper_std is not None for row in self.rows):
            lines.append(
                f"* outside the paper's spread (more than {SPREAD:g} of its standard deviations plus rounding): "
                f"{len(self.outside)} of the {known} cells for which it prints one."
            )
        if any(row.paper is None for row in self.rows):
            lines.append(f"{NOT_PRINTED} the paper prints no value over these datasets.")
        for number, note in enumerate(self._footnotes(), 1):
            lines.append(f"[{number}] {note}")
        return lines

    def _footnotes(self) -> list[str]:
        return list(dict.fromkeys(row.note for row in self.rows if row.note))


def compare(run: Run | Sequence[Run] | Mapping[str, Run], table: str | Table) -> Comparison:
    """Compare a run with a table of the paper; several runs where a table has several models or prompts.

    Cells without records in the run are omitted. Where the run has only some datasets of an average, the last
    rows have the mean over these, beside the paper's values over the same datasets where any of its tables prints them.
    """
    paper = table if isinstance(table, Table) else load_table(table)
    if isinstance(run, Mapping):
        run = list(run.values())
    elif not isinstance(run, Sequence):
        run = [run]
    scores = list(map(RunScores, run))
    if not scores:
        raise InputError("There is no run to compare; pass at least one.")
    rows, notes = [], []
    for one in scores:
        cells, mismatches = _matching_cells(one, paper)
        compared, means = _rows(one, cells, paper)
        rows += compared
        notes += [*mismatches, *means, *_notes(one, "seconds" in paper.metrics)]
        if not compared:
            notes.append(_no_cell(one, cells, paper))
    if not rows:
        raise InputError(notes[-1])
    seeds: set[int] = set()
    for one in scores:
        seeds |= set(one.run.seeds)
    return Comparison(
        table=paper,
        models=tuple(dict.fromkeys(one.run.manifest.model.name for one in scores)),
        seeds=tuple(sorted(seeds)),
        rows=tuple(rows),
        notes=tuple(dict.fromkeys(notes)),
    )


def _matching_cells(scores: RunScores, paper: Table) -> tuple[list[Cell], list[str]]:
    """The cells for the run's model and prompt, and a note if one of them differs from the paper's."""
    notes = []
    wanted = {"backbone": scores.model, "prompt": scores.prompt}
    for axis, known in (("backbone", paper.backbones), ("prompt", paper.prompts)):
        if wanted[axis] in known:
            continue
        if axis == "prompt" and len(known) > 1:
            raise unknown_name(f"{axis} for table {paper.id!r}:", wanted[axis], known, "Run one of these to compare.")
        notes.append(f"the paper's {axis} is {known[0]}, ours is {wanted[axis] or 'not the same for all datasets'}.")
        wanted[axis] = known[0]
    if wanted["backbone"] in NOT_STATED:
        notes.append(NOT_STATED[wanted["backbone"]])
    return list(paper.select(**wanted)), notes


def _rows(scores: RunScores, cells: list[Cell], paper: Table) -> tuple[list[ComparisonRow], list[str]]:
    """The rows that the run has values for, and notes on means over some datasets."""
    # Half a unit of the last digit for the printed mean, and for each of the two printed deviations.
    rounding = (0.5 + 0.5 * SPREAD) * 10**-paper.decimals
    rows, shown = [], []
    for cell in shown_cells(paper, cells, scores.entries):
        values = scores.mean(cell.metric, cell.method, cell.members)
        if not values:
            continue
        ours, encoding = float(np.mean(values)), ()
        if cell.metric == "seconds":
            encoding = scores.mean("encoding", cell.method, cell.members)
        outside = False
        if cell.std is not None and cell.paper is not None:
            outside = abs(ours - cell.paper) > SPREAD * cell.std + rounding
        row = ComparisonRow(
            metric=cell.metric, dataset=cell.dataset, method=cell.method, ours=ours, ours_std=deviation(values),
            paper=cell.paper, paper_std=cell.std, note=cell.note or _names_note(scores, cell.dataset),
            encoding=float(np.mean(encoding)) if encoding else None, outside=outside,
        )  # fmt: skip
        rows.append(row)
        shown.append(cell)
    return rows, list(means_note(shown))


def _names_note(scores: RunScores, dataset: str) -> str:
    published = scores.run.manifest.config.published_names
    if published or dataset not in PROTOCOLS or PROTOCOLS[dataset].published_swap is None:
        return ""
    return (
        "published code swaps two class names here (cheesecake and cheese plate, 600 of 30,300 images), so our "
        "accuracy is higher than the paper's; --published-names reproduces it."
    )


def _notes(scores: RunScores, timed: bool) -> Iterator[str]:
    """Notes on how the run differs from the paper's protocol."""
    if timed:
        yield (
            "our seconds include encoding, adaptation and calibration, but not reading images and making views; the "
            "paper's are inference times on an RTX A6000."
        )
        if scores.run.manifest.batch_size != 1:
            yield "our seconds are shares of batches; for single images, as in the paper, run table:timing."
    if scores.timed_apart:
        yield (
            f"{', '.join(sorted(scores.timed_apart))}: timed in another pass than the adapter alone, so the difference "
            "is unknown; run table:timing in a new folder."
        )
    if not scores.run.complete:
        yield "the run is not finished; these are its scores so far."
    for what, key, field in (("images", "n", "test_size"), ("views", "views", "views"), ("AugMix", "augmix", "augmix")):
        other = []
        for name, entry in scores.entries.items():
            ours, theirs = getattr(entry, key), getattr(find_protocol(name), field)
            if ours != theirs:
                other.append(f"{name} {ours} instead of {theirs}")
        if other:
            yield f"{what} not as in the paper: {', '.join(other)}."
    config, usual = scores.run.manifest.config, RunOptions()
    changed = []
    for key in ("settings", "solver", "corrupt"):
        if getattr(config, key) != getattr(usual, key):
            changed.append(f"{key} {getattr(config, key)}")
    if changed:
        yield f"settings not as in the paper: {', '.join(changed)}."
    if listed := _listed_methods(scores.run):
        titles = ", ".join(listed)
        yield f"{titles} processed the samples in list order; published code shuffles them (--stream-order shuffled)."
    for name, count in scores.failed.items():
        yield f"{name}: {count} images could not be read and are excluded."


def _listed_methods(run: Run) -> list[str]:
    """The titles of online methods that saw the samples in list order; runs without a `stream_order` did."""
    titles = []
    for by_method in run.manifest.settings.values():
        for method, settings in by_method.items():
            if method_kind(method) == "online" and settings.stream_order in (None, "list"):
                titles.append(method_title(method.partition("+")[0]))
    return list(dict.fromkeys(titles))


def _no_cell(scores: RunScores, cells: list[Cell], paper: Table) -> str:
    methods = sorted({cell.method for cell in cells}.intersection(scores.run.methods)) or paper.methods[:4]
    model, datasets = scores.run.manifest.model.name, ", ".join(scores.entries) or "none of the paper"
    return (
        f"The run ({model}; datasets {datasets}; {counted(len(scores.run.methods), 'method')}) has no cell of table "
        f"{paper.id!r}. That table needs methods such as {', '.join(methods[:4])} on {', '.join(paper.datasets)}."
    )
