"""From records to figures: every metric of one method on one dataset with one seed."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from .._errors import InputError
from ..bench import Records, Run
from ..metrics import METRICS, BinnedScore, Metric, RiskCoverage, ece, nll, risk_coverage
from ..metrics.inputs import mean_of
from ..metrics.intervals import draw_weights, quantiles

TOP_LABEL = frozenset(("confidence", "correct"))  # the inputs that a score keeps
_ENTRIES = 1 << 21  # probabilities scored at once: about 100 MB with intermediate results


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Figures and the per-sample columns behind them, without class probabilities.

    values: fraction (NLL: nats) by metric name. columns: per-sample values of metrics of probabilities. tau,
    milliseconds (adaptation and calibration) and encoding (milliseconds of the views): means over samples, NaN if
    unknown.
    """

    ids: Sequence[Any] = field(repr=False)
    confidence: np.ndarray = field(repr=False)
    correct: np.ndarray = field(repr=False)
    columns: Mapping[str, np.ndarray] = field(repr=False)
    values: Mapping[str, float]
    bins: int
    failed: int = 0
    clipped: int = 0
    tau: float = math.nan
    milliseconds: float = math.nan
    encoding: float = math.nan

    def __len__(self) -> int:
        return len(self.correct)

    @property
    def mean_confidence(self) -> float:
        return float(self.confidence.mean(dtype=np.float64))

    def reliability(self) -> BinnedScore:
        """The ECE with its bins."""
        return ece(self.confidence, self.correct, self.bins)

    def risk_coverage(self, points: int | None = None) -> RiskCoverage:
        """The risk-coverage curve, thinned to `points` points, if given."""
        curve = risk_coverage(self.confidence, self.correct)
        if points is None or len(curve.thresholds) <= points:
            return curve
        kept = np.unique(np.linspace(0, len(curve.thresholds) - 1, points).round().astype(int))
        axes = {name: getattr(curve, name)[kept] for name in ("thresholds", "coverage", "risk")}
        return RiskCoverage(name=curve.name, value=curve.value, n=curve.n, **axes)

    def resampled(self, weights_BS: np.ndarray) -> dict[str, np.ndarray]:
        """Every metric that takes weights, one value per row of weights."""
        given = {"confidence": self.confidence, "correct": self.correct}
        means = {}
        for metric in map(METRICS.info, self.values):
            if metric.name in self.columns:
                means[metric.name] = mean_of(self.columns[metric.name], weights_BS)
            elif metric.resampled and given.keys() >= set(metric.inputs):
                means[metric.name] = metric.measure_resamples(given, self.bins, weights_BS)
        return means

    def intervals(self, seed: int, resamples: int = 1000, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Bootstrap intervals of the mean confidence and of every metric that takes weights, from the same draws.

        Repeated samples raise every calibration error, so intervals of such metrics are centred on the value.
        """
        means = drawn(lambda weights: {"confidence": mean_of(self.confidence, weights)}, len(self), seed, resamples)
        intervals = {"mean_confidence": quantiles(means["confidence"], level)}
        for name, figures in drawn(self.resampled, len(self), seed, resamples).items():
            metric = METRICS.info(name)
            centre = self.values[name] if metric.bins or metric.inflated else None
            intervals[name] = metric.clip(quantiles(figures, level, centre))
        return intervals


def read_seeds(run: Run, dataset: str, method: str) -> Iterator[tuple[int, Records | None]]:
    """The records of each seed of a run, one at a time; None where they are not finished."""
    for seed in run.seeds:
        try:
            records = run.records(dataset, method, seed)
        except InputError:
            records = None
        yield seed, records


def score(records: Records, metrics: Sequence[str] | None = None, bins: int = 20) -> Scored:
    """The named metrics of a set of records; default: all.

    Metrics of probabilities that take weights and have one value per sample are computed shard by shard. Only the
    others (`adaptive_ece` and `classwise_ece`) load the whole table of probabilities.
    """
    wanted = _named(metrics)
    streamed = [metric for metric in wanted if "probabilities" in metric.inputs and metric.resampled]
    whole = [metric for metric in wanted if not TOP_LABEL.issuperset(metric.inputs) and metric not in streamed]
    given = {"confidence": records.confidence, "correct": records.correct, "labels": records.label}
    parts: dict[str, list[np.ndarray]] = {metric.name: [] for metric in streamed}
    clipped = row = 0
    for chunk in _probabilities(records, bool(whole)) if streamed else ():
        rows = slice(row, row + len(chunk))
        row += len(chunk)
        here = {"probabilities": chunk, **{name: column[rows] for name, column in given.items()}}
        for metric in list(streamed):
            found = metric.measure(here, bins)
            clipped += found.clipped
            if found.per_sample is None:  # a figure of all samples together
                streamed.remove(metric)
                whole.append(metric)
            else:
                parts[metric.name].append(found.per_sample)
    columns = {metric.name: np.concatenate(parts[metric.name]) for metric in streamed}
    tables = {}
    for metric in whole:
        if "probabilities" in metric.inputs:
            given["probabilities"] = records.probabilities
        found = metric.measure(given, bins)
        tables[metric.name] = found.value
        if found.per_sample is not None:
            columns[metric.name] = found.per_sample
    return score_columns(
        records.confidence, records.correct, columns, [metric.name for metric in wanted], bins, tables=tables,
        ids=records.ids, failed=records.failed, clipped=clipped, tau=_mean(records.tau),
        milliseconds=_mean(records.milliseconds), encoding=records.encoding,
    )  # fmt: skip


def score_columns(
    confidence: np.ndarray,
    correct: np.ndarray,
    columns: Mapping[str, np.ndarray] | None = None,
    metrics: Sequence[str] | None = None,
    bins: int = 20,
    *,
    tables: Mapping[str, float] | None = None,
    ids: Sequence[Any] | None = None,
    **about: Any,
) -> Scored:
    """The metrics of per-sample columns: those of confidence and correct, and the means of `columns`.

    columns: per-sample values by metric name, such as {"nll": losses}. metrics: default: all that can be computed.
    """
    confidence, correct = np.asarray(confidence), np.asarray(correct, dtype=bool)
    columns, tables = dict(columns or {}), tables or {}
    given = {"confidence": confidence, "correct": correct}
    values = {}
    for metric in _named(metrics):
        if metric.name in columns:
            values[metric.name] = float(mean_of(np.asarray(columns[metric.name], dtype=np.float64)))
        elif metric.name in tables:
            values[metric.name] = tables[metric.name]
        elif given.keys() >= set(metric.inputs):
            found = metric.measure(given, bins)
            values[metric.name] = found.value
            if found.per_sample is not None and not metric.resampled:
                columns[metric.name] = found.per_sample
    ids = range(len(correct)) if ids is None else ids
    return Scored(ids=ids, confidence=confidence, correct=correct, columns=columns, values=values, bins=bins, **about)


def score_predictions(
    probabilities: Any, prediction: np.ndarray, confidence: np.ndarray, labels: np.ndarray, metrics: Sequence[str]
) -> Scored:
    """The metrics of calibrated logits, with confidences in float32 as in a run, so that the ECE is the same."""
    losses = {"nll": nll(probabilities, labels).per_sample}
    return score_columns(np.asarray(confidence, dtype=np.float32), prediction == labels, losses, metrics)


def pool(parts: Sequence[Scored], metrics: Sequence[str] | None = None) -> Scored:
    """Several sets as one, such as all datasets of a seed or all seeds of a dataset.

    metrics: default: those of the parts that per-sample columns determine. Times are means over samples.
    """
    columns, names, sizes = {}, [], list(map(len, parts))
    for name in parts[0].columns:
        if all(name in part.columns for part in parts):
            columns[name] = np.concatenate([part.columns[name] for part in parts])
    for name in parts[0].values if metrics is None else metrics:
        if name in columns or TOP_LABEL.issuperset(METRICS.info(name).inputs):
            names.append(name)

    def values(name: str) -> list[Any]:
        return [getattr(part, name) for part in parts]

    return score_columns(
        np.concatenate(values("confidence")), np.concatenate(values("correct")), columns, names, parts[0].bins,
        ids=list(chain(*values("ids"))), failed=sum(values("failed")), clipped=sum(values("clipped")),
        tau=float(np.average(values("tau"), weights=sizes)),
        milliseconds=float(np.average(values("milliseconds"), weights=sizes)),
        encoding=float(np.average(values("encoding"), weights=sizes)),
    )  # fmt: skip


def drawn(
    figures: Callable[[np.ndarray], Mapping[str, np.ndarray]], n: int, seed: int, resamples: int
) -> dict[str, np.ndarray]:
    """Figures by name, one value per resample of n samples, with the draws of `cots.metrics.bootstrap`.

    figures: a function of weights (B,n), one row per resample.
    """
    parts: dict[str, list[np.ndarray]] = {}
    for weights_Bn in draw_weights(n, seed, resamples):
        for name, values in figures(weights_Bn).items():
            parts.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}


def halves(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The indices of a random half of n samples, and those of the others in order."""
    order = np.random.default_rng(0).permutation(n)
    return order[: n // 2], np.sort(order[n // 2 :])


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation over seeds (divisor seeds - 1); None for a single seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _named(metrics: Sequence[str] | None) -> list[Metric]:
    return METRICS.infos() if metrics is None else list(map(METRICS.info, metrics))


def _probabilities(records: Records, whole: bool) -> Iterator[np.ndarray]:
    """The probabilities in pieces: of the whole table if it is loaded anyway, else shard by shard."""
    for table in [records.probabilities] if whole else records.chunks("probabilities"):
        rows = max(1, _ENTRIES // max(1, table.shape[1]))  # no columns where every sample of a shard failed
        yield from (table[start : start + rows] for start in range(0, len(table), rows))


def _mean(values: np.ndarray) -> float:
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    return float(known.mean()) if known.size else math.nan
