"""What of a table can be shown on some datasets: our means over those at hand, and the paper's over the same ones."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..evaluate.text import counted
from ._tables import MEMBERS, PAPER_TABLES, Cell, Table, inconsistencies, load_table

LISTED = 4  # datasets that a label names; more are counted
TWICE = "the paper prints another value for this in an earlier table; see cots.paper.inconsistencies()."


@dataclass(frozen=True, kw_only=True)
class ShownCell:
    """A value to show: the mean over `members` in a run, beside the paper's.

    dataset: a name of the table, or a label such as "mean of dtd, pets". paper: None if the paper prints no value over
    these datasets. std: the paper's standard deviation, if printed. note: a known problem of the paper's value.
    """

    metric: str
    method: str
    dataset: str
    members: tuple[str, ...]
    paper: float | None
    std: float | None = None
    note: str = ""


def shown_cells(table: Table, cells: Iterable[Cell], datasets: Collection[str]) -> list[ShownCell]:
    """The cells of `table` that these datasets allow, then means where an average has only some of its datasets."""
    cells = list(cells)
    own = {_key(cell, cell.dataset): cell.value for cell in cells}
    doubts = {(d.metric, d.method, d.dataset): d for d in inconsistencies() if d.table == table.id}
    whole, partial = [], []
    for cell in cells:
        note, without = "", ""
        doubt = doubts.get((cell.metric, cell.method, cell.dataset))
        if doubt:  # the same text for all cells of a kind, so that they share a footnote
            note, without = TWICE, doubt.without
        if doubt and doubt.kind == "average":
            note = "the printed average is not the mean of its row."
            if without:
                note = note[:-1] + f": it omits {without}, and so does ours."
        members = tuple(name for name in MEMBERS.get(cell.dataset, (cell.dataset,)) if name != without)
        here = tuple(name for name in members if name in datasets)
        about = {"metric": cell.metric, "method": cell.method, "members": here}
        if here == members:
            whole.append(ShownCell(**about, dataset=cell.dataset, paper=cell.value, std=cell.std, note=note))
        elif any(_key(cell, name) not in own for name in here) or len(here) > 1:
            partial.append(ShownCell(**about, dataset=mean_label(here), paper=_printed_mean(cell, here, own)))
    return whole + partial


def preview(table: Table, datasets: Collection[str]) -> str:
    """What a comparison with `table` shows on these datasets; empty if they are all that it needs."""
    if set(table.datasets) <= set(datasets):
        return ""
    shown = shown_cells(table, table.rows, datasets)
    labels = list(dict.fromkeys(cell.dataset for cell in shown))
    if len(labels) > LISTED:
        labels = [f"{len(labels) - 1} datasets", labels[-1]]
    printed = sum(cell.paper is not None for cell in shown)
    found = f"the paper prints {printed or 'none'} of these {counted(len(shown), 'value')}"
    if printed == len(shown):
        found = "the paper prints all of these values"
    return f"{'; '.join(labels)} ({found})"


def mean_label(datasets: Collection[str]) -> str:
    """The label of a mean over some datasets; a single one is itself."""
    if len(datasets) == 1:
        return next(iter(datasets))
    return f"mean of {', '.join(datasets) if len(datasets) < LISTED else f'{len(datasets)} datasets'}"


def means_note(shown: Iterable[ShownCell]) -> Iterator[str]:
    """Which datasets a counted mean is over."""
    for members in dict.fromkeys(cell.members for cell in shown if cell.dataset.startswith("mean of ")):
        if len(members) >= LISTED:
            yield f"{mean_label(members)}: {', '.join(members)}."


def _key(cell: Cell, dataset: str) -> tuple[str, ...]:
    return cell.metric, cell.method, dataset, cell.backbone, cell.prompt


def _printed_mean(cell: Cell, datasets: Collection[str], own: dict[tuple[str, ...], float]) -> float | None:
    """The mean of the values that the paper prints for these datasets, in this table or another."""
    values = []
    for dataset in datasets:
        key = _key(cell, dataset)
        values.append(own.get(key, _printed().get(key)))
    return None if None in values else float(np.mean(values))


@cache
def _printed() -> dict[tuple[str, ...], float]:
    """Every printed value; the first one if it is printed twice."""
    values: dict[tuple[str, ...], float] = {}
    for name in PAPER_TABLES:
        for cell in load_table(name).rows:
            values.setdefault(_key(cell, cell.dataset), cell.value)
    return values
