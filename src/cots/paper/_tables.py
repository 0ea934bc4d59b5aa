"""The paper's tables as data, with cots's names of methods and datasets; and a run's scores in the same units."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from .._errors import InputError, unknown_name
from ..bench import DatasetEntry, Run
from ..data import PROTOCOLS, find_protocol, is_protocol
from ..evaluate import Scored, deviation, pool, read_seeds, score

FINE_GRAINED, VARIANTS = "average:fine-grained", "average:variants"
MEMBERS = {
    average: tuple(p.name for p in PROTOCOLS.values() if f"average:{p.average}" == average)
    for average in (FINE_GRAINED, VARIANTS)
}
NOT_STATED = {
    "ViT-B-16-SigLIP/webli": "the paper does not name its SigLIP checkpoint; ViT-B-16-SigLIP/webli is our choice."
}
# Brier is the top-label score, the only one that fits the printed values.
METRIC_NAMES = {"brier": "brier_top_label", "cece": "classwise_ece", "aece": "adaptive_ece"}
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


def members_of(dataset: str) -> tuple[str, ...]:
    """The datasets of an average; any other dataset itself."""
    return MEMBERS.get(dataset, (dataset,))


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

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds that the paper prints for this value in another table, or None."""
        where = {"metric": f"{self.metric}_std", "method": self.method, "dataset": self.dataset}
        where |= {"backbone": self.backbone, "prompt": self.prompt}
        tables = (load_table("std-fine-grained"), load_table("std-imagenet-variants"))
        for table in tables:
            for cell in table.select(**where):
                return cell.value
        return None


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper; `rows` are its cells in printed order, values in the unit of their metric.

    note: what to know before running its experiment.

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
    note: str = ""

    backbones = property(lambda self: self._distinct("backbone"))
    prompts = property(lambda self: self._distinct("prompt"))
    metrics = property(lambda self: self._distinct("metric"))
    methods = property(lambda self: self._distinct("method"))

    def _distinct(self, axis: str) -> tuple[str, ...]:
        """In printed order, each once."""
        return tuple(dict.fromkeys(getattr(cell, axis) for cell in self.rows))

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets behind the cells, including the members of printed averages."""
        names: dict[str, None] = {}
        for dataset in self._distinct("dataset"):
            names |= dict.fromkeys(members_of(dataset))
        return tuple(names)

    def value(self, metric: str, method: str, dataset: str, **where: str) -> float:
        """The value of one cell; pass `backbone=` or `prompt=` if the table has several."""
        where |= {"metric": metric, "method": method, "dataset": dataset}
        values = [cell.value for cell in self.select(**where)]
        if len(values) != 1:
            remedy = "also pass backbone= or prompt=" if values else f"load_table({self.id!r}).rows lists its cells"
            raise InputError(f"Table {self.id!r} has {len(values)} cells with {where}; {remedy}.")
        return values[0]

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


def read_data(name: str) -> Any:
    """The content of a JSON file of this package."""
    return json.loads(files("cots.paper").joinpath(name).read_text(encoding="utf-8"))


PAPER_TABLES: tuple[str, ...] = tuple(read_data("index.json"))
"""Names of all tables, in the paper's order."""


@cache
def load_table(name: str) -> Table:
    """The table with this name (`timing` or `table:timing`) or this label in the paper's source."""
    short = name.removeprefix("table:")
    if name.startswith("tab:"):
        labels = {load_table(table).label: table for table in PAPER_TABLES}
        short = labels.get(name, name)
    if short not in PAPER_TABLES:
        raise unknown_name("table of the paper", short, PAPER_TABLES)
    data = read_data(f"tables/{short}.json")
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
    return Table(
        id=data["id"], title=data["title"], label=data["label"], decimals=data["decimals"], rows=tuple(cells),
        note=data.get("note", ""),
    )  # fmt: skip


@cache
def inconsistencies() -> tuple[Inconsistency, ...]:
    """Every place where the paper's tables disagree with themselves or each other by more than rounding."""
    return tuple(Inconsistency(**row) for row in read_data("inconsistencies.json")["rows"])


class RunScores:
    """Scores of a run, computed once on request: percent, or seconds for times, which include `encoding`.

    entries: the manifest's entries of the paper's datasets, by the paper's name.
    failed: number of unreadable images by dataset. timed_apart: methods whose times are of another pass than those of
    their adapter alone, as after a resume.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        # A user's own data may have the name of a dataset of the paper.
        self.entries: dict[str, DatasetEntry] = {
            find_protocol(entry.name).name: entry
            for entry in run.manifest.datasets
            if is_protocol(entry.name) and entry.average != "own"
        }
        self.failed: dict[str, int] = {}
        self.timed_apart: set[str] = set()
        self._of_dataset = cache(self._compute)

    @property
    def model(self) -> str:
        """As the tables name it: OpenAI's weights always use QuickGELU, so the suffix names the same model."""
        return self.run.manifest.model.name.replace("-quickgelu", "")

    @property
    def prompt(self) -> str:
        """The template of all datasets, or `coop` for a learned context; empty if they differ."""
        if self.run.manifest.config.context:
            return "coop"
        prompts = set()
        for entry in self.entries.values():
            prompts.add("coop" if entry.context else entry.template)
        return prompts.pop() if len(prompts) == 1 else ""

    def members(self, dataset: str) -> tuple[str, ...]:
        """The run's datasets behind a name in the tables: the dataset itself, or those of an average."""
        return tuple(name for name in members_of(dataset) if name in self.entries)

    def values(self, metric: str, method: str, dataset: str) -> tuple[float, ...]:
        """One value per seed (`..._std`: a single value); empty if the run lacks a dataset or a second seed."""
        members = self.members(dataset)
        return self.mean(metric, method, members) if members == members_of(dataset) else ()

    def mean(self, metric: str, method: str, datasets: Sequence[str]) -> tuple[float, ...]:
        """The mean over datasets, one value per seed; empty if one of them is missing."""
        if metric.endswith("_std"):
            spread = deviation(self.mean(metric.removesuffix("_std"), method, datasets))
            return () if spread is None else (spread,)
        rows = [self._of_dataset(metric, method, dataset) for dataset in datasets]
        if not rows or not all(rows):
            return ()
        return tuple(np.mean(rows, axis=0).tolist())

    def pooled(self, method: str, dataset: str) -> Scored:
        """The samples of all seeds together."""
        return pool(self._scored(method, dataset, ()), ())

    def _compute(self, metric: str, method: str, dataset: str) -> tuple[float, ...]:
        if metric == "extra_seconds":
            return self._extra_seconds(method, dataset)
        if metric in ("seconds", "encoding"):
            scored = self._scored(method, dataset, ())
            encoding = np.array([one.encoding for one in scored])
            if metric == "encoding":
                return () if np.isnan(encoding).any() else tuple((encoding / 1000).tolist())
            adaptation = np.array([one.milliseconds for one in scored])
            return tuple(((adaptation + np.nan_to_num(encoding)) / 1000).tolist())
        name = METRIC_NAMES.get(metric, metric)
        return tuple(100 * scored.values[name] for scored in self._scored(method, dataset, (name,)))

    def _extra_seconds(self, method: str, dataset: str) -> tuple[float, ...]:
        """Seconds of the calibrator per seed; none if it was not timed in one pass with the adapter alone."""
        base = method.partition("+")[0]
        if not {base, method} <= set(self.run.methods) or dataset not in self.entries:
            return ()
        seconds = []
        name = self.entries[dataset].name
        for (_, alone), (_, both) in zip(
            read_seeds(self.run, name, base), read_seeds(self.run, name, method), strict=True
        ):
            if alone is None or both is None or list(alone.ids) != list(both.ids):
                return ()
            extra = both.milliseconds.astype(np.float64) - alone.milliseconds
            if (extra < 0).any():
                self.timed_apart.add(method)
                return ()
            seconds.append(float(extra[np.isfinite(extra)].mean()) / 1000)
        return tuple(seconds)

    def _scored(self, method: str, dataset: str, metrics: Sequence[str]) -> list[Scored]:
        """One per seed; none if a seed of an unfinished run is missing, or all its images failed."""
        if method not in self.run.methods or dataset not in self.entries:
            return []
        scored = []
        for seed, records in read_seeds(self.run, self.entries[dataset].name, method):
            if records is None and self.run.complete:
                raise InputError(
                    f"The run is finished but has no records of {method} on {dataset} with seed {seed}. Check its "
                    "folder with cots validate."
                )
            if records is None:
                return []
            if records.failed:
                self.failed[dataset] = max(records.failed, self.failed.get(dataset, 0))
            if not len(records.label):
                return []
            scored.append(score(records, metrics))
        return scored
