"""A run beside the paper: ours, theirs, the difference, and whether it is more than the paper's own spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._errors import InputError, unknown_name
from ..data import find_protocol
from ._measure import Measured, RunLike, deviation
from ._tables import MEMBERS, METRIC_TITLES, Cell, Inconsistency, Table, inconsistencies, load_table, spread_of
from ._text import aligned

SPREAD = 2.0  # standard deviations on either side
HEAD: tuple[str, ...] = ("data set", "method", "ours", "std", "paper", "std", "difference", "")
LEFT = (True, True, False, False, False, False, False, True)


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One figure of ours (mean over seeds) beside the paper's, in the unit of `metric`.

    paper_std: the paper's standard deviation over its three seeds, where it prints one; only then can a row be
    `outside`: further from the paper than 2 of these plus rounding. note: what to know before reading a difference.
    """

    metric: str
    dataset: str
    method: str
    ours: float
    ours_std: float | None
    paper: float
    difference: float
    paper_std: float | None
    outside: bool
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What `compare` returns: `rows`, and `notes` that hold for all of them."""

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
        """A table for a terminal, one block a metric, `*` beside what is outside the paper's spread."""
        lines = [*self._head(), *(f"note: {note}" for note in self.notes)]
        for metric, rows in self._blocks():
            lines += ["", METRIC_TITLES[metric], *aligned(rows, LEFT)]
        return "\n".join([*lines, "", *self._foot()]).rstrip()

    def markdown(self) -> str:
        """The same as Markdown."""
        lines = ["  \n".join(self._head()), "", *(f"- {note}" for note in self.notes)]
        rule = "|".join("---" if left else "--:" for left in LEFT)
        for metric, (head, *rows) in self._blocks():
            lines += ["", f"**{METRIC_TITLES[metric]}**", "", f"|{'|'.join(head)}|", f"|{rule}|"]
            lines += [_literal(f"|{'|'.join(row)}|") for row in rows]
        return "\n".join([*lines, "", *map(_literal, self._foot())]).rstrip() + "\n"

    def _head(self) -> list[str]:
        ours = f"ours: {', '.join(self.models)}, seeds {', '.join(map(str, self.seeds))}"
        return [f"table:{self.table.id}: {self.table.title} ({self.table.label})", ours]

    def _foot(self) -> list[str]:
        lines = []
        known = sum(row.paper_std is not None for row in self.rows)
        if known:
            lines.append(
                f"* outside the paper's spread (more than {SPREAD:g} of its standard deviations plus rounding): "
                f"{len(self.outside)} of the {known} cells for which it prints one."
            )
        return lines + [f"[{number}] {note}" for number, note in enumerate(self._footnotes(), 1)]

    def _footnotes(self) -> list[str]:
        return list(dict.fromkeys(row.note for row in self.rows if row.note))

    def _blocks(self) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
        """For each metric its rows as text, the heading first."""
        footnotes, digits = self._footnotes(), self.table.decimals
        for metric in dict.fromkeys(row.metric for row in self.rows):
            lines = [HEAD]
            for row in self.rows:
                if row.metric != metric:
                    continue
                numbers = (row.ours, row.ours_std, row.paper, row.paper_std)
                shown = ["" if number is None else f"{number:.{digits}f}" for number in numbers]
                marks = ("*" if row.outside else "") + (f"[{footnotes.index(row.note) + 1}]" if row.note else "")
                lines.append((row.dataset, row.method, *shown, f"{row.difference:+.{digits}f}", marks))
            yield metric, lines


def _literal(text: str) -> str:
    return text.replace("*", r"\*")


def compare(run: RunLike | Sequence[RunLike] | Mapping[str, RunLike], table: str | Table) -> Comparison:
    """Set a run beside a table of the paper, cell by cell; several runs where a table has several models or prompts.

    `run` is a `cots.bench.Run` or anything with its reading side. Cells that the run has no records for are left out.
    Where the run has only some sets of an average, the last rows compare the mean over the sets that both have.
    """
    paper = table if isinstance(table, Table) else load_table(_table_name(table))
    runs = list(run.values() if isinstance(run, Mapping) else run if isinstance(run, Sequence) else [run])
    measured = [Measured(one) for one in runs]
    rows, notes = [], []
    for one in measured:
        cells, about = _cells_for(one, paper)
        found = [*_rows(one, cells, paper), *_shared_rows(one, cells, paper)]
        rows += found
        notes += [*about, *_notes(one, "seconds" in paper.metrics), *([] if found else [_nothing(one, cells, paper)])]
    if not rows:
        raise InputError(notes[-1] if notes else "There is no run to compare; give at least one.")
    return Comparison(
        table=paper,
        models=tuple(dict.fromkeys(one.run.manifest["model"]["name"] for one in measured)),
        seeds=tuple(sorted({seed for one in measured for seed in one.run.seeds})),
        rows=tuple(rows),
        notes=tuple(dict.fromkeys(notes)),
    )


def _table_name(name: str) -> str:
    if name.startswith("figure:"):
        raise InputError(f"{name!r} is a figure and its numbers are not printed in the paper; compare with a table.")
    return name


def _cells_for(one: Measured, paper: Table) -> tuple[list[Cell], list[str]]:
    """The cells of the run's model and prompt, and what does not match."""
    model = one.run.manifest["model"]["name"]
    prompts = {prompt_of(one.run.manifest, entry) for entry in one.entries.values()}
    prompt = prompts.pop() if len(prompts) == 1 else None
    notes = []
    # QuickGELU is how OpenAI's weights are to be run; the suffix names the same model.
    wanted = {"backbone": model.replace("-quickgelu", ""), "prompt": prompt or ""}
    for axis, known in (("backbone", paper.backbones), ("prompt", paper.prompts)):
        only, *others = known
        if wanted[axis] in known:
            continue
        if others:
            raise unknown_name(f"{axis} for table {paper.id!r}:", wanted[axis], known, "Run one of these to compare.")
        notes.append(f"the paper's {axis} is {only}, ours is {wanted[axis] or 'not the same for all sets'}.")
        wanted[axis] = only
    return list(paper.select(**wanted)), notes


def prompt_of(manifest: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """The tables' name for a set's initial prompt: its template, or `coop` when a learnt context was given."""
    learnt = entry.get("context") or manifest.get("config", {}).get("context")
    return "coop" if learnt else str(entry.get("template", ""))


def _rows(one: Measured, cells: list[Cell], paper: Table) -> Iterator[ComparisonRow]:
    off = {(found.metric, found.method, found.dataset): found for found in inconsistencies() if found.table == paper.id}
    for cell in cells:
        found = off.get((cell.metric, cell.method, cell.dataset))
        note = "" if found is None else _doubt(found)
        plain = cell.metric.removesuffix("_std")
        values = one.values(plain, cell.method, cell.dataset)
        if plain != cell.metric:
            spread = deviation(values)
            values = () if spread is None else (spread,)
        if values:
            yield _row(cell.metric, cell.dataset, cell.method, values, cell.value, _spread(cell), paper, note)


def _doubt(found: Inconsistency) -> str:
    """In the same words for all cells of a kind, so that they share a footnote."""
    if found.kind == "average":
        return f"the printed average is not the mean of its row{': it is ' + found.note if found.note else ''}."
    return "the paper prints another figure for this in an earlier table; see cots.paper.inconsistencies()."


def _shared_rows(one: Measured, cells: list[Cell], paper: Table) -> Iterator[ComparisonRow]:
    """Means over the sets that run and table share, where an average's sets are not all in the run."""
    printed = {(cell.metric, cell.method, cell.dataset): cell.value for cell in cells}
    for cell in cells:
        shared = one.members(cell.dataset)
        if not cell.is_average or len(shared) < 2 or len(shared) == len(MEMBERS[cell.dataset]):
            continue
        theirs = [printed.get((cell.metric, cell.method, dataset)) for dataset in shared]
        ours = one.mean(cell.metric, cell.method, shared)
        if ours and None not in theirs:
            name = f"mean of {', '.join(shared) if len(shared) < 4 else f'{len(shared)} sets'}"
            mean = float(np.mean([value for value in theirs if value is not None]))
            yield _row(cell.metric, name, cell.method, ours, mean, None, paper, "")


def _row(
    metric: str,
    dataset: str,
    method: str,
    values: Sequence[float],
    paper: float,
    spread: float | None,
    table: Table,
    note: str,
) -> ComparisonRow:
    ours = float(np.mean(values))
    # Half a unit of the last digit for the printed mean, and for each of the two printed deviations.
    rounding = (0.5 + 0.5 * SPREAD) * 10**-table.decimals
    return ComparisonRow(
        metric=metric,
        dataset=dataset,
        method=method,
        ours=ours,
        ours_std=deviation(values),
        paper=paper,
        difference=ours - paper,
        paper_std=spread,
        outside=spread is not None and abs(ours - paper) > SPREAD * spread + rounding,
        note=note,
    )


def _spread(cell: Cell) -> float | None:
    return spread_of(cell.metric, cell.method, cell.dataset, cell.backbone, cell.prompt)


def _notes(one: Measured, timed: bool) -> Iterator[str]:
    if timed:
        yield "our seconds are adaptation and calibration alone; the paper's are of whole inference on an RTX A6000."
    if not one.run.complete:
        yield "the run is not finished; these are the figures of what is there."
    for what, field in (("images", "test_size"), ("views", "views"), ("AugMix", "augmix")):
        pairs = [
            (name, entry.get("n" if what == "images" else field), getattr(find_protocol(name), field))
            for name, entry in one.entries.items()
        ]
        other = [f"{name} {ours} instead of {theirs}" for name, ours, theirs in pairs if ours not in (None, theirs)]
        if other:
            yield f"{what} unlike the paper's: {', '.join(other)}."
    config = one.run.manifest.get("config", {})
    changed = [
        f"{key} {config[key]}"
        for key, usual in (("settings", {}), ("solver", "adam"))
        if config.get(key, usual) != usual
    ]
    if changed:
        yield f"not the paper's settings: {', '.join(changed)}."
    for name, count in one.failed.items():
        yield f"{name}: {count} images could not be read and are left out."


def _nothing(one: Measured, cells: list[Cell], paper: Table) -> str:
    known = sorted(set(one.methods) & {cell.method for cell in cells})
    return (
        f"The run ({one.run.manifest['model']['name']}; sets {', '.join(one.entries) or 'none of the paper'}; methods "
        f"{', '.join(one.methods)}) has no cell of table {paper.id!r}, which needs methods such as "
        f"{', '.join(known or paper.methods[:4])} on {', '.join(paper.datasets)}."
    )
