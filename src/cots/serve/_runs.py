"""Benchmark runs as numbers for the page: the table, reliability bins and risk-coverage curves."""

import math
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from .._checked import DamagedFile
from .._errors import CotsError, InputError
from ..bench import Run
from ..evaluate import Scored, deviation, pool, score
from ..metrics import METRICS, binomial_interval
from ._schemas import ApiError, Fraction, Hash, Strict

BINS, POINTS, KEPT = 20, 200, 8
SHOWN = ("accuracy", "ece", "brier_top_label", "nll")
_EMPTY: dict[str, Any] = dict.fromkeys(("model", "weights_hash", "created"), "")
_EMPTY |= {"datasets": [], "methods": [], "seeds": [], "complete": False, "photos": 0}
Column = BeforeValidator(np.ndarray.tolist)
# NaN, in empty bins, is null in JSON.
PerBin = Annotated[list[Annotated[float | None, BeforeValidator(lambda v: None if math.isnan(v) else v)]], Column]
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)


class RunInfo(Strict):
    id: str
    damaged: str | None = Field(description="Why the run cannot be read; if set, the other fields are empty.")
    model: str
    weights_hash: Hash
    datasets: list[str]
    methods: list[str]
    seeds: list[int]
    complete: bool
    created: str
    photos: int = Field(description="Photos of all datasets together.")


class Runs(Strict):
    runs: list[RunInfo]


class Row(Strict):
    dataset: str = Field(description="A dataset, or `all` for all datasets pooled.")
    title: str
    method: str
    n: int
    failed: int
    accuracy: float = Field(description="Percent, mean over seeds; so are the other figures except nll.")
    ece: float
    nll: float
    brier: float = Field(description="Of the top label.")
    mean_confidence: float
    accuracy_std: float | None
    ece_std: float | None


class Bins(Strict):
    edges: Annotated[list[float], Column]
    count: Annotated[list[int], Column] = Field(validation_alias="counts")
    confidence: PerBin = Field(validation_alias="mean_confidence")
    accuracy: PerBin
    low: Annotated[list[Fraction], Column] = Field(description="95% interval of the accuracy.")
    high: Annotated[list[Fraction], Column]


class Curve(Strict):
    threshold: Annotated[list[float], Column] = Field(validation_alias="thresholds")
    coverage: Annotated[list[Fraction], Column]
    risk: Annotated[list[Fraction], Column]
    low: Annotated[list[Fraction], Column] = Field(description="95% interval of the risk.")
    high: Annotated[list[Fraction], Column]


class RunDetail(RunInfo):
    rows: list[Row]
    reliability: dict[str, dict[str, Bins]]
    risk_coverage: dict[str, dict[str, Curve]]
    caption: str


class RunFolders:
    """The run folders in one folder. A requested id is only compared with their names."""

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._cached = lru_cache(KEPT)(lambda folder, changed: _figures(Run.open(folder)))
        self._lock = threading.Lock()

    def list(self) -> list[dict[str, Any]]:
        """The description of each run, newest first."""
        found = [info for info, _ in self._open()]
        return sorted(found, key=lambda info: (info["created"], info["id"]), reverse=True)

    def detail(self, id: str) -> dict[str, Any]:
        """The figures of one run."""
        found = next((found for found in self._open() if found[0]["id"] == id), None)
        if found is None:
            raise ApiError(404, "unknown_run", "No run with this id; GET /v1/runs lists them.", "id")
        info, run = found
        # The full reason can contain paths of the server.
        damaged = ApiError(
            422, "damaged_run", "This run is damaged; run cots validate on the server for details.", "id"
        )
        if run is None:
            raise damaged
        folder = Path(str(run.folder))
        # One at a time: reading a run takes a while, and each reader would hold its records in memory.
        with self._lock:
            try:
                if not info["complete"]:
                    return {**info, **_figures(run)}
                return {**info, **self._cached(folder, (folder / "manifest.json").stat().st_mtime_ns)}
            except (CotsError, OSError, KeyError, ValueError):
                raise damaged from None

    def _open(self) -> Iterator[tuple[dict[str, Any], Run | None]]:
        for folder in sorted(self.folder.iterdir()) if self.folder is not None and self.folder.is_dir() else ():
            if not _NAME.fullmatch(folder.name) or not (folder / "manifest.json").is_file():
                continue
            try:
                run = Run.open(folder)
                yield _info(folder.name, run), run
            except (CotsError, OSError) as error:
                reason = error.reason if isinstance(error, DamagedFile) else "it cannot be read"
                yield {"id": folder.name, **_EMPTY, "damaged": f"manifest.json: {reason}"}, None


def _info(id: str, run: Run) -> dict[str, Any]:
    return {
        "id": id,
        "damaged": None,
        "model": run.manifest.model.name,
        "weights_hash": run.manifest.model.weights_hash,
        "datasets": list(run.datasets),
        "methods": list(run.methods),
        "seeds": list(run.seeds),
        "complete": run.complete and not run.missing(),
        "created": run.manifest.created,
        "photos": sum(run.dataset(name).n for name in run.datasets),
    }


def _figures(run: Run) -> dict[str, Any]:
    titles = {name: run.dataset(name).title or name for name in run.datasets}
    pooled = {} if "all" in titles else {"all": "All datasets, pooled"}
    columns = titles | pooled
    rows: list[dict[str, Any]] = []
    bins: dict[str, dict[str, Any]] = {name: {} for name in columns}
    curves: dict[str, dict[str, Any]] = {name: {} for name in columns}
    counted: list[tuple[dict[str, Any], np.ndarray, np.ndarray]] = []
    # Method by method, so that only one method's samples are in memory.
    for method in run.methods:
        scored = {dataset: _scored(run, dataset, method) for dataset in run.datasets}
        # Pool only seeds that all datasets have, so that figures are comparable.
        common = [seed for seed in run.seeds if all(seed in seeds for seeds in scored.values())]
        for name in pooled:
            scored[name] = {seed: pool([scored[dataset][seed] for dataset in titles]) for seed in common}
        for name, seeds in scored.items():
            if not seeds:
                continue
            rows.append({"dataset": name, "title": columns[name], "method": method, **_row(seeds)})
            whole = pool(list(seeds.values()), ())
            found, curve = whole.reliability(), whole.risk_coverage(POINTS)
            bins[name][method] = _columns(found, "edges", "counts", "mean_confidence", "accuracy")
            curves[name][method] = _columns(curve, "thresholds", "coverage", "risk")
            # A photo counts once for all its seeds, because its predictions are not independent.
            right, accepted = np.nan_to_num(found.accuracy) * found.counts, curve.coverage * curve.n
            counted.append((bins[name][method], right / len(seeds), found.counts / len(seeds)))
            counted.append((curves[name][method], curve.risk * accepted / len(seeds), accepted / len(seeds)))
    _add_intervals(counted)
    rows.sort(key=lambda row: (list(columns).index(row["dataset"]), run.methods.index(row["method"])))
    return {
        "rows": rows,
        "reliability": {name: found for name, found in bins.items() if found},
        "risk_coverage": {name: found for name, found in curves.items() if found},
        "caption": _caption(run, {row["title"]: row["n"] for row in rows if row["dataset"] in titles}),
    }


def _columns(found: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(found, name) for name in names}


def _add_intervals(counted: Sequence[tuple[dict[str, Any], np.ndarray, np.ndarray]]) -> None:
    """Add 95% intervals to diagrams, given with counts and totals; all at once, because one call costs 0.1 s."""
    if not counted:
        return
    diagrams, counts, totals = zip(*counted, strict=True)
    total = np.concatenate(totals)
    low, high = binomial_interval(np.minimum(np.concatenate(counts), total), total)
    ends = np.cumsum([len(part) for part in totals])[:-1]
    for diagram, own_low, own_high in zip(diagrams, np.split(low, ends), np.split(high, ends), strict=True):
        diagram |= {"low": own_low, "high": own_high}


def _scored(run: Run, dataset: str, method: str) -> dict[int, Scored]:
    """The figures per seed, for the seeds that have records."""
    found = {}
    for seed in run.seeds:
        try:
            records = run.records(dataset, method, seed)
        except InputError:  # unfinished
            continue
        if len(records):
            found[seed] = score(records, SHOWN, BINS)
    return found


def _row(seeds: Mapping[int, Scored]) -> dict[str, Any]:
    values = {name: [scored.values[name] for scored in seeds.values()] for name in SHOWN}
    means = {METRICS.info(name): float(np.mean(found)) for name, found in values.items()}
    spread = {name: deviation(values[name]) for name in ("accuracy", "ece")}
    return {
        "n": max(len(scored) for scored in seeds.values()),
        "failed": max(scored.failed for scored in seeds.values()),
        **{metric.name.removesuffix("_top_label"): metric.scale * mean for metric, mean in means.items()},
        "mean_confidence": 100 * float(np.mean([scored.mean_confidence for scored in seeds.values()])),
        **{f"{name}_std": None if std is None else 100 * std for name, std in spread.items()},
    }


def _caption(run: Run, sizes: Mapping[str, int]) -> str:
    counted = ", ".join(f"{title} n = {n}" for title, n in sizes.items()) or "no records yet"
    seeds = ", ".join(map(str, run.seeds))
    return (
        f"{counted}; {BINS} bins of equal width (lo, hi]; seed{'s' if len(run.seeds) > 1 else ''} {seeds}, figures are "
        f"means over seeds and diagrams pool them; model {run.manifest.model.name} "
        f"{run.manifest.model.weights_hash[:12]}; Brier score of the top label."
    )
