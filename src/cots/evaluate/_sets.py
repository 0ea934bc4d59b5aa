"""Prediction sets in a report: coverage and size, of a policy's sets or of sets fitted on half of the samples."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .._errors import InputError
from ..bench import Records, Run
from ..conformal import Coverage, Policy, evaluate, fit
from ..conformal._policy import tempered

COVERAGE = 0.9
LEAST = 50  # samples, to fit sets on half of them
PER_CLASS = 5  # test samples of a class whose coverage is reported


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


HEADS = ("dataset", "method", "coverage %", "classes per set", "lowest class %", "samples")


def caption(rows: list[SetRow]) -> str:
    own = any(row.of_policy for row in rows)
    made = "The policy's sets" if own else "LAC sets fitted on a random half of the samples, evaluated on the other"
    return (
        f"{made}; target coverage {100 * rows[0].wanted:g}%, first seed, with exact 95% intervals; lowest class: the "
        f"smallest coverage among classes with {PER_CLASS} or more test samples."
    )


def set_rows(run: Run, policy: Policy | None = None) -> Iterator[SetRow]:
    """One row per dataset and method with enough records; with a policy, only for its classes and method."""
    for name in run.datasets:
        entry = run.dataset(name)
        for method in run.methods:
            if policy is not None and (policy.classes, policy.method) != (tuple(entry["classes"]), method):
                continue
            if policy is not None and policy.weights_hash != run.manifest["model"]["weights_hash"]:
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
