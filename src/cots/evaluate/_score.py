"""From records to figures: every metric of one method on one dataset with one seed, and its prediction sets."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from .._errors import InputError
from ..bench import Records, Run
from ..conformal import Coverage, Policy, evaluate, fit, tempered
from ..metrics import METRICS, BinnedScore, Metric, RiskCoverage, ece, nll, risk_coverage
from ..metrics._intervals import draw_weights, quantiles
from ..metrics._metric import mean_of, top_label_inputs
from ..metrics.binned import bin_of, bin_sums, equal_width

COVERAGE = 0.9  # of prediction sets in reports
LEAST = 50  # samples, to fit sets on half of them
PER_CLASS = 5  # test samples of a class whose coverage is reported
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
    bins: int = 20
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
        found = {}
        for metric in map(METRICS.info, self.values):
            if metric.name in self.columns:
                found[metric.name] = mean_of(self.columns[metric.name], weights_BS)
            elif metric.resampled:
                result = metric(given, self.bins, weights_BS)
                found[metric.name] = np.asarray(getattr(result, "value", result))
        return found

    def intervals(self, seed: int, resamples: int = 1000, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Bootstrap intervals of the mean confidence and of every metric that takes weights, from the same draws.

        Repeated samples raise every calibration error, so intervals of binned metrics are centred on the value.
        """
        means = drawn(lambda weights: {"confidence": mean_of(self.confidence, weights)}, len(self), seed, resamples)
        intervals = {"mean_confidence": quantiles(means["confidence"], level)}
        for name, figures in drawn(self.resampled, len(self), seed, resamples).items():
            metric = METRICS.info(name)
            intervals[name] = metric.clip(quantiles(figures, level, self.values[name] if metric.bins else None))
        return intervals


def score(records: Records, metrics: Sequence[str] | None = None, bins: int = 20) -> Scored:
    """The named metrics of a set of records; default: all.

    Metrics of probabilities that take weights are computed shard by shard. Only the others (`adaptive_ece` and
    `classwise_ece`) load the whole table of probabilities.
    """
    wanted = _named(metrics)
    of_table = [metric for metric in wanted if "probabilities" in metric.inputs]
    whole = [metric for metric in of_table if not metric.resampled]
    parts: dict[str, list[np.ndarray]] = {metric.name: [] for metric in of_table if metric.resampled}
    clipped = row = 0
    for chunk in _probabilities(records, bool(whole)) if parts else ():
        given = {"probabilities": chunk, "labels": records.label[row : row + len(chunk)]}
        row += len(chunk)
        for name, found in parts.items():
            result = METRICS.info(name)(given, bins)
            found.append(result.per_sample)
            clipped += getattr(result, "clipped", 0)
    columns = {name: np.concatenate(found) for name, found in parts.items()}
    tables = {m.name: float(m({"probabilities": records.probabilities, "labels": records.label}, bins)) for m in whole}
    names = [metric.name for metric in wanted]
    about = {"failed": records.failed, "clipped": clipped, "tau": _mean(records.tau), "ids": records.ids}
    about |= {"milliseconds": _mean(records.milliseconds), "encoding": records.encoding}
    return score_columns(records.confidence, records.correct, columns, names, bins, tables=tables, **about)


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
    columns, tables = columns or {}, tables or {}
    given = {"confidence": confidence, "correct": correct}
    values = {}
    for metric in _named(metrics):
        if metric.name in columns:
            values[metric.name] = float(mean_of(np.asarray(columns[metric.name], dtype=np.float64)))
        elif metric.name in tables:
            values[metric.name] = tables[metric.name]
        elif given.keys() >= set(metric.inputs):
            values[metric.name] = float(metric(given, bins))
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
    shared = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    names = parts[0].values if metrics is None else metrics
    names = [name for name in names if name in shared or "probabilities" not in METRICS.info(name).inputs]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in shared}
    confidence = np.concatenate([part.confidence for part in parts])
    correct = np.concatenate([part.correct for part in parts])
    about: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in ("failed", "clipped")}
    for name in ("tau", "milliseconds", "encoding"):
        about[name] = float(np.average([getattr(part, name) for part in parts], weights=list(map(len, parts))))
    ids = [sample for part in parts for sample in part.ids]
    return score_columns(confidence, correct, columns, names, parts[0].bins, ids=ids, **about)


def noise_floor(confidence: np.ndarray, seed: int = 0, draws: int = 400) -> tuple[float, float]:
    """Mean and 95% quantile of the ECE of a perfectly calibrated model with these confidences."""
    rng = np.random.default_rng(seed)
    correct = rng.random((draws, len(confidence))) < confidence
    scores, hits, _ = top_label_inputs(confidence, correct[0])
    edges = equal_width(20)
    # The draws differ in the hits alone, so one matrix product counts them for all: `ece` of each row of `correct`.
    in_bin_SM = bin_of(scores, edges)[:, None] == np.arange(20)
    hits_BM = correct.astype(np.float64) @ in_bin_SM.astype(np.float64)
    found = bin_sums(scores[:, None], hits[:, None], edges)._replace(hits=hits_BM).mean_gap()
    return float(found.mean()), float(np.quantile(found, 0.95))


def drawn(
    figures: Callable[[np.ndarray], Mapping[str, np.ndarray]], n: int, seed: int, resamples: int
) -> dict[str, np.ndarray]:
    """Figures by name, one value per resample of n samples, with the draws of `cots.metrics.bootstrap`.

    figures: a function of weights (B,n), one row per resample.
    """
    stacks = [figures(weights_Bn) for weights_Bn in draw_weights(n, seed, resamples)]
    return {name: np.concatenate([stack[name] for stack in stacks]) for name in stacks[0]}


def halves(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The indices of a random half of n samples, and those of the others in order."""
    order = np.random.default_rng(0).permutation(n)
    return order[: n // 2], np.sort(order[n // 2 :])


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation over seeds (divisor seeds - 1); None for a single seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _named(metrics: Sequence[str] | None) -> list[Metric]:
    return METRICS.infos() if metrics is None else [METRICS.info(name) for name in metrics]


def _probabilities(records: Records, whole: bool) -> Iterator[np.ndarray]:
    """The probabilities in pieces: of the whole table if it is loaded anyway, else shard by shard."""
    for table in [records.probabilities] if whole else records.chunks("probabilities"):
        rows = max(1, _ENTRIES // max(1, table.shape[1]))  # no columns where every sample of a shard failed
        yield from (table[start : start + rows] for start in range(0, len(table), rows))


def _mean(values: np.ndarray) -> float:
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    return float(known.mean()) if known.size else math.nan


@dataclass(frozen=True, kw_only=True)
class SetRow:
    """Sets of a method on a dataset, evaluated on samples that they were not fitted on.

    wanted: the target coverage. lowest: the coverage of the worst class with enough samples.
    """

    dataset: str
    method: str
    wanted: float
    found: Coverage
    lowest: float | None

    @property
    def cells(self) -> tuple[str, ...]:
        low, high = self.found.interval
        lowest = "–" if self.lowest is None else f"{100 * self.lowest:.1f}"
        covered = f"{100 * self.found.coverage:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        return self.dataset, self.method, covered, f"{self.found.mean_size:.2f}", lowest, str(self.found.n)


def sets_table(run: Run, policy: Policy | None = None) -> dict[str, Any] | None:
    """Heads, rows and caption of the table of prediction sets; None if there are no rows."""
    rows = list(set_rows(run, policy))
    if not rows:
        return None
    fitted = "LAC sets fitted on a random half of the samples, evaluated on the other"
    made = fitted if policy is None else "The policy's sets"
    caption = (
        f"{made}; target coverage {100 * rows[0].wanted:g}%, first seed, with exact 95% intervals; lowest class: the "
        f"smallest coverage among classes with {PER_CLASS} or more test samples."
    )
    heads = ("dataset", "method", "coverage %", "classes per set", "lowest class %", "samples")
    return {"heads": heads, "rows": [row.cells for row in rows], "caption": caption}


def set_rows(run: Run, policy: Policy | None = None) -> Iterator[SetRow]:
    """One row per dataset and method with enough records; with a policy, only for its classes and method."""
    for name, method in product(run.datasets, run.methods):
        entry = run.dataset(name)
        own = tuple(entry["classes"]), method, run.manifest["model"]["weights_hash"]
        if policy is not None and (policy.classes, policy.method, policy.weights_hash) != own:
            continue
        try:
            records = run.records(name, method, run.seeds[0])
        except InputError:  # unfinished
            continue
        if len(records) >= (1 if policy else LEAST) and len(entry["classes"]) > 1:
            wanted, found, lowest = _covered(records, policy)
            dataset = entry.get("title") or name
            yield SetRow(dataset=dataset, method=method, wanted=wanted, found=found, lowest=lowest)


def _covered(records: Records, policy: Policy | None) -> tuple[float, Coverage, float | None]:
    """Target coverage, coverage found and that of the worst class: of the policy's sets, or of sets fitted on half."""
    table, labels = np.asarray(records.probabilities, dtype=np.float64), records.label
    table = table / table.sum(1, keepdims=True)
    if policy is not None and policy.sets is not None:
        sets, table = policy.sets, tempered(table, policy.temperature)
    else:
        half, rest = halves(len(labels))
        sets = fit(table[half], labels[half], COVERAGE)
        table, labels = table[rest], labels[rest]
    found = evaluate(sets.sets(table), labels)
    often = np.bincount(labels, minlength=table.shape[1]) >= PER_CLASS
    return sets.coverage, found, float(found.per_class[often].min()) if often.any() else None
