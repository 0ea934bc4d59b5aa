"""Finished runs as numbers for the page: rows, reliability bins and risk-coverage curves."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .. import metrics
from .._errors import CotsError
from ..bench import Run
from ..bench._run import Records
from ._schemas import ApiError

BINS, POINTS, KEPT = 20, 200, 8
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)


class RunFolders:
    """The run folders directly under one folder. An id is only ever compared with their names."""

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._details: dict[tuple[str, int, bool], dict[str, Any]] = {}
        self._lock = threading.Lock()

    def list(self) -> list[dict[str, Any]]:
        """What each run is, the newest first."""
        found = [_info(name, run) for name, run in self._open()]
        return sorted(found, key=lambda info: (info["created"], info["id"]), reverse=True)

    def detail(self, id: str) -> dict[str, Any]:
        """The figures of one run."""
        run = next((run for name, run in self._open() if name == id), None)
        if run is None:
            raise ApiError(404, "unknown_run", "No run with this id; GET /v1/runs lists them.", "id")
        key = id, Path(str(run.folder), "manifest.json").stat().st_mtime_ns, run.complete
        # One at a time: reading a run takes a while, and several readers would each hold its records.
        with self._lock:
            if key not in self._details:
                try:
                    detail = _detail(id, run)
                except (CotsError, OSError, KeyError, ValueError):
                    # The reason names files of the server.
                    raise ApiError(
                        422,
                        "damaged_run",
                        "This run cannot be read; run cots report on the server for the reason.",
                        "id",
                    ) from None
                if not run.complete:
                    return detail
                self._details[key] = detail
                while len(self._details) > KEPT:
                    del self._details[next(iter(self._details))]
            return self._details[key]

    def _open(self) -> Iterator[tuple[str, Run]]:
        if self.folder is None or not self.folder.is_dir():
            return
        for folder in sorted(self.folder.iterdir()):
            if not _NAME.fullmatch(folder.name) or not (folder / "manifest.json").is_file():
                continue
            try:
                run = Run.open(folder)
                _info(folder.name, run)
            except (CotsError, OSError, KeyError, TypeError):
                continue
            yield folder.name, run


def _info(id: str, run: Run) -> dict[str, Any]:
    model = run.manifest["model"]
    return {
        "id": id,
        "model": model["name"],
        "weights_hash": model["weights_hash"],
        "datasets": list(run.datasets),
        "methods": list(run.methods),
        "seeds": list(run.seeds),
        "complete": run.complete,
        "created": run.manifest["created"],
    }


class _Columns:
    """Confidence, correctness and loss of one method on one dataset under one seed; no class probabilities."""

    def __init__(self, records: Records) -> None:
        self.confidence = records.confidence.astype(np.float64)
        self.correct = np.asarray(records.correct)
        self.failed = records.failed
        losses, row = [], 0
        for chunk in records.chunks("probabilities"):
            if len(chunk):
                losses.append(metrics.nll(chunk, records.label[row : row + len(chunk)]).per_sample)
                row += len(chunk)
        self.loss = np.concatenate(losses) if losses else np.empty(0)


def _detail(id: str, run: Run) -> dict[str, Any]:
    titles = {name: run.dataset(name).get("title") or name for name in run.datasets}
    rows: list[dict[str, Any]] = []
    reliability: dict[str, dict[str, Any]] = {name: {} for name in titles}
    curves: dict[str, dict[str, Any]] = {name: {} for name in titles}
    if "all" not in titles:
        reliability["all"], curves["all"] = {}, {}
    for method in run.methods:
        by_seed: dict[int, list[_Columns]] = {}
        for dataset in run.datasets:
            mine: dict[int, list[_Columns]] = {}
            for seed in run.seeds:
                try:
                    records = run.records(dataset, method, seed)
                except CotsError:
                    continue
                if len(records):
                    mine[seed] = [_Columns(records)]
                    by_seed.setdefault(seed, []).extend(mine[seed])
            if mine:
                rows.append(_row(dataset, titles[dataset], method, mine))
                _draw(reliability[dataset], curves[dataset], method, mine)
        # Seeds pooled over different sets of datasets could not be compared.
        whole = {seed: parts for seed, parts in by_seed.items() if len(parts) == len(run.datasets)}
        if whole and "all" not in titles:
            rows.append(_row("all", "All datasets, pooled", method, whole))
            _draw(reliability["all"], curves["all"], method, whole)
    info = _info(id, run)
    places = [*titles, "all"]
    rows.sort(key=lambda row: (places.index(row["dataset"]), run.methods.index(row["method"])))
    return {
        **info,
        "rows": rows,
        "reliability": {name: found for name, found in reliability.items() if found},
        "risk_coverage": {name: found for name, found in curves.items() if found},
        "caption": _caption(run, rows, titles),
    }


def _row(dataset: str, title: str, method: str, seeds: dict[int, list[_Columns]]) -> dict[str, Any]:
    figures = []
    for parts in seeds.values():
        confidence, correct, loss = _joined(parts)
        figures.append(
            (
                float(metrics.accuracy(correct)),
                float(metrics.ece(confidence, correct, bins=BINS)),
                float(metrics.brier_top_label(confidence, correct)),
                float(confidence.mean()),
                float(loss.mean()),
            )
        )
    table = np.array(figures)
    mean = table.mean(axis=0)
    spread = table.std(axis=0, ddof=1) if len(table) > 1 else None
    return {
        "dataset": dataset,
        "title": title,
        "method": method,
        "n": max(sum(len(part.correct) for part in parts) for parts in seeds.values()),
        "failed": max(sum(part.failed for part in parts) for parts in seeds.values()),
        "accuracy": 100 * float(mean[0]),
        "ece": 100 * float(mean[1]),
        "brier": 100 * float(mean[2]),
        "mean_confidence": 100 * float(mean[3]),
        "nll": float(mean[4]),
        "accuracy_std": None if spread is None else 100 * float(spread[0]),
        "ece_std": None if spread is None else 100 * float(spread[1]),
    }


def _draw(reliability: dict[str, Any], curves: dict[str, Any], method: str, seeds: dict[int, list[_Columns]]) -> None:
    confidence, correct, _ = _joined([part for parts in seeds.values() for part in parts])
    bins = metrics.ece(confidence, correct, bins=BINS)
    reliability[method] = {
        "edges": bins.edges.tolist(),
        "count": bins.counts.tolist(),
        "confidence": [None if np.isnan(value) else float(value) for value in bins.mean_confidence],
        "accuracy": [None if np.isnan(value) else float(value) for value in bins.accuracy],
    }
    curve = metrics.risk_coverage(confidence, correct)
    # Every point that is kept is exact for its own threshold.
    kept = np.unique(np.linspace(0, len(curve.thresholds) - 1, POINTS).round().astype(int))
    curves[method] = {
        "threshold": curve.thresholds[kept].tolist(),
        "coverage": curve.coverage[kept].tolist(),
        "risk": curve.risk[kept].tolist(),
    }


def _joined(parts: list[_Columns]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        np.concatenate([part.confidence for part in parts]),
        np.concatenate([part.correct for part in parts]),
        np.concatenate([part.loss for part in parts]),
    )


def _caption(run: Run, rows: list[dict[str, Any]], titles: dict[str, str]) -> str:
    sizes = {row["dataset"]: row["n"] for row in rows if row["dataset"] in titles}
    counted = ", ".join(f"{titles[name]} n = {n}" for name, n in sizes.items()) or "no records yet"
    seeds = ", ".join(map(str, run.seeds))
    return (
        f"{counted}; {BINS} bins of equal width (lo, hi]; seed{'s' if len(run.seeds) > 1 else ''} {seeds}, figures are "
        f"means over seeds and diagrams pool them; model {run.manifest['model']['name']} "
        f"{run.manifest['model']['weights_hash'][:12]}; Brier score of the top label."
    )
