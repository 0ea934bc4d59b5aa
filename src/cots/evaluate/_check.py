"""Check the confidence on labelled photos: a verdict and guarantees; and prediction sets in a report."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._errors import InputError
from ..bench import Records, Run
from ..calibrators import fit_temperature
from ..conformal import ConformalSets, Coverage, ErrorControl, Policy, control_error, evaluate, fit
from ..conformal._policy import tempered
from ..metrics import BinnedScore, binomial_interval, ece, top_label
from ._score import noise_floor

ENOUGH = 200  # labelled photos; fewer support no guarantee
COVERAGE = 0.9
LEAST = 50  # samples, to fit sets on half of them
PER_CLASS = 5  # test samples of a class whose coverage is reported
FIRM = 0.02  # half the width of a precise interval of the accuracy


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The verdict on labelled photos, with the threshold and the prediction sets that they support.

    chance: the 95% quantile of the ECE of a calibrated model on such photos. needed: number of labels for an accuracy
    interval of +-2 points. error: None if no threshold is supported; refused: the reason. sets_on_these: coverage and
    size of the sets on the photos they were fitted on.
    """

    n: int
    accuracy: float
    interval: tuple[float, float]
    mean_confidence: float
    reliability: BinnedScore = field(repr=False)
    chance: float
    needed: int
    temperature: float
    error: ErrorControl | None
    refused: str | None
    sets: ConformalSets = field(repr=False)
    sets_on_these: Coverage

    @property
    def holds(self) -> bool:
        """Whether these photos are consistent with the stated confidence."""
        low, high = self.interval
        return low <= self.mean_confidence <= high and self.reliability.value <= self.chance

    @property
    def verdict(self) -> str:
        if self.n < ENOUGH:
            return f"No verdict: {self.n} photos are too few. Label at least {ENOUGH}."
        if self.holds:
            return f"The confidence holds: nothing in these {self.n} photos contradicts it."
        gap = self.mean_confidence - self.accuracy
        found = f"it is {100 * abs(gap):.1f} points too {'high' if gap > 0 else 'low'}."
        if self.interval[0] <= self.mean_confidence <= self.interval[1]:
            found = "it is right on average, but not at every level. See the diagram."
        return f"The confidence does not hold: {found}"

    def lines(self) -> list[str]:
        """The output of `cots check`."""
        low, high = self.interval
        found = [
            f"accuracy {self.accuracy:.1%} (95% interval {low:.1%} to {high:.1%}), mean confidence "
            f"{self.mean_confidence:.1%}, ECE {self.reliability.value:.1%} (chance alone: up to {self.chance:.1%})",
            self.verdict,
        ]
        if self.needed > self.n:
            found.append(f"For an interval of ±{100 * FIRM:g} points, label {self.needed:,} photos.")
        if self.temperature != 1.0:
            found.append(f"Temperature {self.temperature:.3f}, fitted on the other half of the photos.")
        if self.error is None:
            found.append(f"No threshold: {self.refused}")
        else:
            e = self.error
            found.append(
                f"Threshold {e.threshold:.2%}: at most {e.risk:.0%} of the predictions at or above it are wrong, with "
                f"{e.certainty:.0%} certainty. It accepts {e.coverage:.0%} of these photos, with {e.errors} errors in "
                f"{e.accepted}; the bound on the error rate is {e.bound:.1%}."
            )
        found.append(
            f"Sets: {self.sets.coverage:.0%} of new photos have their class in the set; mean size here: "
            f"{self.sets_on_these.mean_size:.2f} classes."
        )
        return found


def check(
    probabilities: np.ndarray,
    labels: np.ndarray,
    *,
    risk: float = 0.05,
    certainty: float = 0.95,
    coverage: float = 0.9,
    method: str = "lac",
    temperature: bool = False,
    bins: int = 20,
) -> Checked:
    """Check probabilities (samples, classes) against labels.

    temperature: fit one on a random half of the samples and use it for the other half, so that threshold and sets keep
    their guarantees.
    """
    tau, rows = 1.0, np.arange(len(labels))
    if temperature:
        if len(labels) < 2:
            raise InputError("A temperature needs at least two labelled photos.")
        order = np.random.default_rng(0).permutation(len(labels))
        first, rows = order[: len(order) // 2], np.sort(order[len(order) // 2 :])
        with np.errstate(divide="ignore"):
            logits = np.maximum(np.log(np.asarray(probabilities[first], dtype=np.float64)), -700.0)
        tau = float(fit_temperature(logits, labels[first]))
    table, truth = tempered(np.asarray(probabilities, dtype=np.float64)[rows], tau), np.asarray(labels)[rows]
    confidence, prediction = top_label(table)
    correct = prediction == truth
    n, hits = len(truth), int(correct.sum())
    error, refused = None, None
    try:
        error = control_error(confidence, correct, risk, certainty)
    except InputError as reason:
        refused = str(reason)
    sets = fit(table, truth, coverage, method=method)
    share = (hits + 1) / (n + 2)
    return Checked(
        n=n, accuracy=hits / n, interval=binomial_interval(hits, n), mean_confidence=float(confidence.mean()),
        reliability=ece(confidence, correct, bins), chance=noise_floor(confidence)[1],
        needed=math.ceil(1.96**2 * share * (1 - share) / FIRM**2), temperature=tau, error=error, refused=refused,
        sets=sets, sets_on_these=evaluate(sets.sets(table), truth),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SetRow:
    """Sets of a method on a dataset, evaluated on samples that they were not fitted on."""

    dataset: str
    method: str
    wanted: float
    found: Coverage
    lowest: float | None
    of_policy: bool

    @property
    def cells(self) -> tuple[str, ...]:
        low, high = self.found.interval
        lowest = "–" if self.lowest is None else f"{100 * self.lowest:.1f}"
        covered = f"{100 * self.found.coverage:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        return self.dataset, self.method, covered, f"{self.found.mean_size:.2f}", lowest, str(self.found.n)


def sets_table(rows: Sequence[SetRow]) -> dict[str, Any] | None:
    """Heads, rows and caption of the table of prediction sets; None if there are no rows."""
    if not rows:
        return None
    own = any(row.of_policy for row in rows)
    made = "The policy's sets" if own else "LAC sets fitted on a random half of the samples, evaluated on the other"
    caption = (
        f"{made}; target coverage {100 * rows[0].wanted:g}%, first seed, with exact 95% intervals; lowest class: the "
        f"smallest coverage among classes with {PER_CLASS} or more test samples."
    )
    heads = ("dataset", "method", "coverage %", "classes per set", "lowest class %", "samples")
    return {"heads": heads, "rows": [row.cells for row in rows], "caption": caption}


def set_rows(run: Run, policy: Policy | None = None) -> Iterator[SetRow]:
    """One row per dataset and method with enough records; with a policy, only for its classes and method."""
    for name in run.datasets:
        entry = run.dataset(name)
        for method in run.methods:
            own = tuple(entry["classes"]), method, run.manifest["model"]["weights_hash"]
            if policy is not None and (policy.classes, policy.method, policy.weights_hash) != own:
                continue
            try:
                records = run.records(name, method, run.seeds[0])
            except InputError:  # unfinished
                continue
            if len(records) >= (1 if policy else LEAST) and len(entry["classes"]) > 1:
                yield _row(entry.get("title") or name, method, records, policy)


def _row(dataset: str, method: str, records: Records, policy: Policy | None) -> SetRow:
    table, labels = np.asarray(records.probabilities, dtype=np.float64), records.label
    table = table / table.sum(1, keepdims=True)
    if policy is not None and policy.sets is not None:
        sets, table = policy.sets, tempered(table, policy.temperature)
    else:
        order = np.random.default_rng(0).permutation(len(labels))
        half, rest = order[: len(order) // 2], order[len(order) // 2 :]
        sets = fit(table[half], labels[half], COVERAGE)
        table, labels = table[rest], labels[rest]
    found = evaluate(sets.sets(table), labels)
    often = np.bincount(labels, minlength=table.shape[1]) >= PER_CLASS
    lowest = float(found.per_class[often].min()) if often.any() else None
    return SetRow(
        dataset=dataset, method=method, wanted=sets.coverage, found=found, lowest=lowest, of_policy=policy is not None
    )
