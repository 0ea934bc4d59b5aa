"""The prediction sets of a run: their coverage and size on samples that they were not fitted on."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..bench import Records, Run
from ..conformal import Coverage, Policy, evaluate, fit, tempered
from ._score import halves, read_seeds

COVERAGE = 0.9
LEAST = 50  # samples, to fit sets on half of them
PER_CLASS = 5  # test samples of a class whose coverage is reported


@dataclass(frozen=True, kw_only=True)
class SetRow:
    """Sets of a method on a dataset. lowest: the coverage of the worst class with enough samples."""

    dataset: str
    method: str
    target: float
    coverage: Coverage
    lowest: float | None

    @property
    def cells(self) -> tuple[str, ...]:
        """As tables print it, in the order of `SetTable.heads`."""
        low, high = self.coverage.interval
        covered = f"{100 * self.coverage.coverage:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        lowest = "–" if self.lowest is None else f"{100 * self.lowest:.1f}"
        return self.dataset, self.method, covered, f"{self.coverage.mean_size:.2f}", lowest, str(self.coverage.n)


@dataclass(frozen=True, kw_only=True)
class SetTable:
    """The table of prediction sets in a report."""

    rows: tuple[SetRow, ...]
    caption: str
    heads = ("dataset", "method", "coverage %", "classes per set", "lowest class %", "samples")


def sets_table(run: Run, policy: Policy | None = None) -> SetTable | None:
    """The table of the policy's sets, or of sets fitted on half of the samples; None if there are no rows."""
    rows = tuple(set_rows(run, policy))
    if not rows:
        return None
    made = "LAC sets fitted on a random half of the samples, evaluated on the other"
    if policy is not None:
        made = "The policy's sets"
    caption = (
        f"{made}; target coverage {100 * rows[0].target:g}%, first seed, with exact 95% intervals; lowest class: the "
        f"smallest coverage among classes with {PER_CLASS} or more test samples."
    )
    return SetTable(rows=rows, caption=caption)


def set_rows(run: Run, policy: Policy | None = None) -> Iterator[SetRow]:
    """One row per dataset and method with enough records; with a policy, only for its classes and method."""
    for name, method in product(run.datasets, run.methods):
        entry = run.dataset(name)
        made_for = entry.classes, method, run.manifest.model.weights_hash
        if policy is not None and (policy.classes, policy.method, policy.weights_hash) != made_for:
            continue
        _, records = next(read_seeds(run, name, method))
        least = LEAST if policy is None else 1
        if records is not None and len(records) >= least and len(entry.classes) > 1:
            yield _row(entry.title or name, method, records, policy)


def _row(title: str, method: str, records: Records, policy: Policy | None) -> SetRow:
    probabilities, labels = np.asarray(records.probabilities, dtype=np.float64), records.label
    probabilities = probabilities / probabilities.sum(1, keepdims=True)
    if policy is not None and policy.sets is not None:
        sets, probabilities = policy.sets, tempered(probabilities, policy.temperature)
        inside = sets.decide(probabilities)
    else:
        half, rest = halves(len(labels))
        sets = fit(probabilities[half], labels[half], COVERAGE)
        probabilities, labels = probabilities[rest], labels[rest]
        inside = sets.sets(probabilities)
    coverage = evaluate(inside, labels)
    often = np.bincount(labels, minlength=probabilities.shape[1]) >= PER_CLASS
    lowest = float(coverage.per_class[often].min()) if often.any() else None
    return SetRow(dataset=title, method=method, target=sets.coverage, coverage=coverage, lowest=lowest)
