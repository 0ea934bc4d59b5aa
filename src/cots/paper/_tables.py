"""The paper's tables as data: every printed value, with cots's names of methods and datasets."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from .._errors import InputError, unknown_name
from ..data import PROTOCOLS

FINE_GRAINED, VARIANTS = "average:fine-grained", "average:variants"
MEMBERS = {
    average: tuple(p.name for p in PROTOCOLS.values() if f"average:{p.average}" == average)
    for average in (FINE_GRAINED, VARIANTS)
}
NOT_STATED = {
    "ViT-B-16-SigLIP/webli": "the paper does not name its SigLIP checkpoint; ViT-B-16-SigLIP/webli is our choice."
}
METRIC_TITLES = {
    "accuracy": "accuracy (%)",
    "ece": "ECE (%)",
    "brier": "top-label Brier score (%)",
    "cece": "class-wise ECE (%)",
    "aece": "adaptive ECE (%)",
    "accuracy_std": "standard deviation of accuracy (points)",
    "ece_std": "standard deviation of ECE (points)",
    "seconds": "seconds per image",
    "extra_seconds": "seconds per image on top of TPT",
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One printed value.

    method: `adapter+calibrator`; `tda(ctpt)` is C-TPT's prompt with TDA's caches.
    dataset: a dataset, or an average: `average:fine-grained` (11 datasets) or `average:variants` (4 datasets).
    prompt: the initial template, or `coop` for contexts learned by CoOp. change: the printed difference from TPT.
    bold: whether the paper prints it in bold.
    """

    metric: str
    method: str
    dataset: str
    value: float
    backbone: str
    prompt: str
    change: float | None = None
    bold: bool = False

    @property
    def is_average(self) -> bool:
        return self.dataset in MEMBERS


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper; `rows` are its cells in printed order, values in the unit of their metric.

    >>> table = load_table("imagenet-variants")
    >>> table.label, table.backbones, len(table.rows)
    ('tab:imagenet_variants', ('ViT-B-16/openai',), 100)
    >>> table.value("ece", "tpt+cots", "imagenet-a")
    7.85
    """

    id: str
    title: str
    label: str
    decimals: int
    rows: tuple[Cell, ...]

    # In printed order, each once.
    backbones = property(lambda self: tuple(dict.fromkeys(cell.backbone for cell in self.rows)))
    prompts = property(lambda self: tuple(dict.fromkeys(cell.prompt for cell in self.rows)))
    metrics = property(lambda self: tuple(dict.fromkeys(cell.metric for cell in self.rows)))
    methods = property(lambda self: tuple(dict.fromkeys(cell.method for cell in self.rows)))

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets behind the cells, including the members of printed averages."""
        names = (name for cell in self.rows for name in MEMBERS.get(cell.dataset, (cell.dataset,)))
        return tuple(dict.fromkeys(names))

    def value(self, metric: str, method: str, dataset: str, **where: str) -> float:
        """The value of one cell; pass `backbone=` or `prompt=` if the table has several."""
        where |= {"metric": metric, "method": method, "dataset": dataset}
        found = [cell.value for cell in self.select(**where)]
        if len(found) != 1:
            remedy = "also pass backbone= or prompt=" if found else f"load_table({self.id!r}).rows lists its cells"
            raise InputError(f"Table {self.id!r} has {len(found)} cells with {where}; {remedy}.")
        return found[0]

    def select(self, **where: str) -> Iterator[Cell]:
        """The cells whose fields have these values."""
        return (cell for cell in self.rows if all(getattr(cell, name) == value for name, value in where.items()))


@dataclass(frozen=True, kw_only=True)
class Inconsistency:
    """A printed value that contradicts others in the paper by more than rounding.

    kind: "average" (not the mean of its row), "change" (not the difference it claims to be), or "printed twice"
    (different from the same quantity in an earlier table). expected: the value implied by the others. without: the
    dataset that an average omits.
    """

    kind: str
    table: str
    metric: str
    method: str
    dataset: str
    printed: float
    expected: float
    note: str = ""
    without: str = ""


def _read(name: str) -> Any:
    return json.loads(files("cots.paper").joinpath(name).read_text(encoding="utf-8"))


PAPER_TABLES: tuple[str, ...] = tuple(_read("index.json"))
"""Names of all tables, in the paper's order."""


@cache
def load_table(name: str) -> Table:
    """The table with this name (`timing` or `table:timing`) or this label in the paper's source."""
    short = name.removeprefix("table:")
    if name.startswith("tab:"):
        short = next((table for table in PAPER_TABLES if load_table(table).label == name), name)
    if short not in PAPER_TABLES:
        raise unknown_name("table of the paper", short, PAPER_TABLES)
    data = _read(f"tables/{short}.json")
    cells = (
        Cell(
            metric=row["metric"],
            method=row["method"],
            dataset=dataset,
            value=value,
            backbone=row.get("backbone", data["backbone"]),
            prompt=row.get("prompt", data["prompt"]),
            change=row.get("change", {}).get(dataset),
            bold=dataset in row.get("bold", ()),
        )
        for row in data["rows"]
        for dataset, value in row["cells"].items()
    )
    return Table(id=data["id"], title=data["title"], label=data["label"], decimals=data["decimals"], rows=tuple(cells))


@cache
def inconsistencies() -> tuple[Inconsistency, ...]:
    """Every place where the paper's tables disagree with themselves or each other by more than rounding."""
    return tuple(Inconsistency(**row) for row in _read("inconsistencies.json")["rows"])


@cache
def printed_std(metric: str, method: str, dataset: str, backbone: str, prompt: str) -> float | None:
    """The standard deviation over seeds that the paper prints for a cell, or None."""
    where = {"metric": f"{metric}_std", "method": method, "dataset": dataset, "backbone": backbone, "prompt": prompt}
    tables = (load_table("std-fine-grained"), load_table("std-imagenet-variants"))
    return next((cell.value for table in tables for cell in table.select(**where)), None)
