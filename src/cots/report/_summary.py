"""The figures of a run: every metric of every method on every dataset, over seeds, with intervals and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .._errors import CotsError, InputError
from ._cells import Cell, Column, all_cells, averages
from ._metrics import METRICS, Scored, score

Progress = Callable[[str, int, int], None]


class RunLike(Protocol):
    """The reading side of a run folder, `cots.bench.Run`."""

    @property
    def manifest(self) -> Mapping[str, Any]: ...
    @property
    def complete(self) -> bool: ...
    def records(self, dataset: str, method: str, seed: int) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A sample without a result, and where."""

    dataset: str
    sample: str
    error: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    records: int  # of methods and seeds: how many times it failed


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All figures of a run; made by `summarize`."""

    model: str
    weights_hash: str
    precision: str
    version: str
    created: str
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, str, str], Cell] = field(repr=False)
    scored: Mapping[tuple[str, str], Mapping[int, Scored]] = field(repr=False)
    failures: tuple[Failure, ...]
    missing: tuple[tuple[str, str, int], ...]
    complete: bool
    bins: int
    level: float
    resamples: int

    @property
    def datasets(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if not column.average)

    def cell(self, column: str, method: str, metric: str) -> Cell | None:
        return self.cells.get((column, method, metric))

    def best(self, column: str, metric: str) -> set[str]:
        """The methods with the best figure of a column as it is printed; none where there is only one method."""
        shown = next(m for m in METRICS if m.name == metric)
        found = {m: cell.mean for m in self.methods if (cell := self.cell(column, m, metric))}
        if len(found) < 2:
            return set()
        rounded = {m: round(shown.goodness(shown.scale * value), shown.digits) for m, value in found.items()}
        top = max(rounded.values())
        return {m for m, value in rounded.items() if value == top} if min(rounded.values()) < top else set()

    def samples(self, dataset: str) -> tuple[int, int]:
        """The least and the most samples that a method and seed has figures for."""
        sizes = [len(run.ids) for (name, _), runs in self.scored.items() if name == dataset for run in runs.values()]
        return (min(sizes), max(sizes)) if sizes else (0, 0)

    def failed(self, dataset: str) -> int:
        """Samples of a dataset that failed in at least one method and seed."""
        return len({failure.sample for failure in self.failures if failure.dataset == dataset})

    def pooled(self, dataset: str, method: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Confidence and correctness of all seeds together, for diagrams."""
        runs = self.scored.get((dataset, method))
        if not runs:
            return None
        return (
            np.concatenate([run.confidence for run in runs.values()]),
            np.concatenate([run.correct for run in runs.values()]),
        )


def summarize(
    run: RunLike,
    *,
    bins: int = 20,
    resamples: int = 1000,
    level: float = 0.95,
    progress: Progress = lambda what, done, total: None,
) -> Summary:
    """The figures of a run, as `write_report` shows them.

    summary = summarize(cots.bench.Run.open("runs/x"))
    summary.cell("pets", "tpt+cots", "ece").mean
    """
    if not 0.0 < level < 1.0:
        raise InputError(f"level must be a fraction between 0 and 1 such as 0.95, not {level!r}.")
    if resamples < 2:
        raise InputError(f"resamples must be at least 2, not {resamples!r}; 1000 gives steady intervals.")
    manifest = run.manifest
    methods, seeds = tuple(manifest["methods"]), tuple(manifest["seeds"])
    datasets = [_column(entry) for entry in manifest["datasets"]]
    todo = [(d.name, m, s) for d in datasets for m in methods for s in seeds]
    scored: dict[tuple[str, str], dict[int, Scored]] = {}
    failures: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
    missing = []
    for done, (dataset, method, seed) in enumerate(todo):
        progress(f"{dataset} {method} seed {seed}", done, len(todo))
        try:
            records = run.records(dataset, method, seed)
        except (CotsError, FileNotFoundError, KeyError):
            missing.append((dataset, method, seed))
            continue
        errors = dict(records.errors)
        for sample, error in errors.items():
            failures.setdefault((dataset, sample, str(error)), []).append((method, seed))
        if not len(records.ids):
            missing.append((dataset, method, seed))
            continue
        scored.setdefault((dataset, method), {})[seed] = score(records, len(errors), bins)
    if not scored:
        raise InputError("The run has no records yet, so there is nothing to report; let `cots run` write some first.")
    columns = (*datasets, *averages(datasets))
    progress("intervals", len(todo), len(todo))
    cells = all_cells(scored, columns, methods, bins, resamples, level)
    model = manifest["model"]
    return Summary(
        model=model["name"],
        weights_hash=model["weights_hash"],
        precision=str(model.get("precision", "float32")),
        version=str(manifest.get("cots", "")),
        created=str(manifest.get("created", "")),
        seeds=seeds,
        methods=methods,
        columns=columns,
        cells=cells,
        scored=scored,
        failures=tuple(
            Failure(
                dataset=dataset,
                sample=sample,
                error=error,
                methods=tuple(dict.fromkeys(m for m, _ in where)),
                seeds=tuple(dict.fromkeys(s for _, s in where)),
                records=len(where),
            )
            for (dataset, sample, error), where in failures.items()
        ),
        missing=tuple(missing),
        complete=bool(run.complete) and not missing,
        bins=bins,
        level=level,
        resamples=resamples,
    )


def _column(entry: Mapping[str, Any]) -> Column:
    alpha = entry.get("alpha")
    return Column(
        name=entry["name"],
        title=entry.get("title") or entry["name"],
        n=int(entry["n"]),
        classes=len(entry["classes"]),
        alpha=None if alpha is None else float(alpha),
        group=entry.get("average"),
    )
