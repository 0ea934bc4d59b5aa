"""The paper's claims in its own words, as checks of its tables and of runs."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import InputError
from ..bench import Run
from ..evaluate.text import counted
from ..methods import method_title
from ..metrics import METRICS
from ._sides import Sides
from ._tables import MEMBERS, RunScores, load_table, read_data

COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "< half of": lambda left, right: left < right / 2,
}
STRENGTHS = {"always": "in every comparison", "mostly": "in most comparisons", "sometimes": "in some comparison"}
BALANCE = "balance"  # accuracy minus ECE: our reading of a balance or trade-off between the two
Pair = tuple[float, float] | None  # the values of a comparison, or None where there are none


@dataclass(frozen=True, kw_only=True)
class Check:
    """A comparison of a metric between two methods, on a dataset or an average of `table`.

    left, right: methods, with settings where they are not the defaults: `tpt+cots(views=weak)`.
    """

    table: str
    metric: str
    left: str
    sign: str
    right: str
    dataset: str
    backbone: str
    prompt: str

    def text(self, left: float, right: float) -> str:
        """The two values in words."""
        where, table = [self.dataset.removeprefix("average:")], load_table(self.table)
        if len(table.backbones) > 1:
            where.append(self.backbone)
        if len(table.prompts) > 1:
            where.append(self.prompt)
        metric = "accuracy - ECE" if self.metric == BALANCE else METRICS.info(self.metric).short
        methods = f"{method_title(self.left)} {left:.2f}, {method_title(self.right)} {right:.2f}"
        return f"{metric} on {', '.join(where)}: {methods}"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper: a quotation, the label of its table or figure, and the comparisons that it is about.

    strength: whether the words mean every comparison ("always"), most ("mostly": generally, usually, often) or at
    least one ("sometimes": may, sometimes).
    """

    quote: str
    where: str
    strength: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The number of comparisons that could be made for a claim, and descriptions of those that fail."""

    claim: Claim
    made: int
    failed: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether enough comparisons come out as claimed for the strength of the words."""
        held = self.made - len(self.failed)
        return held > {"always": self.made - 1, "mostly": self.made / 2, "sometimes": 0}[self.claim.strength]

    def line(self) -> str:
        if not self.made:
            return "no values to compare"
        held = self.made - len(self.failed)
        return f"{'holds' if self.holds else 'fails'}, true in {held} of {counted(self.made, 'comparison')}"


def _claim(quote: str, where: str, strength: str, checks: Sequence[Mapping[str, str]]) -> Claim:
    """A row of claims.json."""
    return Claim(quote=quote, where=where, strength=strength, checks=tuple(chain(*(_checks(**row) for row in checks))))


def _checks(tables: str, metric: str, left: str, sign: str, right: str, datasets: str = "") -> list[Check]:
    """Every pair of `left` and `right`, on `datasets` (default: the averages), per model and prompt of the tables.

    "*" on one side stands for the other, "others" for all methods of the table.
    """
    checks = []
    for name in tables.split():
        table = load_table(name)
        others: Sequence[str] = table.methods if right == "others" else right.split()
        where = datasets.split() or [average for average in MEMBERS if any(table.select(dataset=average))]
        for one, other, dataset, backbone, prompt in product(
            left.split(), others, where, table.backbones, table.prompts
        ):
            about = {"metric": metric, "sign": sign, "dataset": dataset, "backbone": backbone, "prompt": prompt}
            check = Check(table=name, left=one.replace("*", other), right=other.replace("*", one), **about)
            if check.left != check.right:
                checks.append(check)
    return checks


CLAIMS: tuple[Claim, ...] = tuple(_claim(**row) for row in read_data("claims.json")["rows"])


def judge(value: Callable[[Check], Pair], claims: Iterable[Claim] = CLAIMS) -> list[Verdict]:
    """Judge the claims; `value` returns the values of both sides of a check, or None."""
    verdicts = []
    for claim in claims:
        made, failed = 0, []
        for check in claim.checks:
            pair = value(check)
            if pair is None:
                continue
            made += 1
            if not COMPARE[check.sign](*pair):
                failed.append(check.text(*pair))
        verdicts.append(Verdict(claim=claim, made=made, failed=tuple(failed)))
    return verdicts


def printed(check: Check) -> Pair:
    """The paper's values of both sides, if it prints them: its figures have no numbers."""
    where = {"dataset": check.dataset, "backbone": check.backbone, "prompt": check.prompt}
    pair = []
    for method in (check.left, check.right):
        value = 0.0
        for metric, sign in _terms(check.metric):
            cells = list(load_table(check.table).select(metric=metric, method=method, **where))
            if not cells:
                return None
            value += sign * cells[0].value
        pair.append(value)
    return pair[0], pair[1]


def measured(runs: Sequence[Run]) -> Callable[[Check], Pair]:
    """The values of both sides from runs: means over seeds, and over the datasets of an average that they have."""
    sides = Sides(runs)

    def value(check: Check) -> Pair:
        found = sides.find(check.left, check.right, check.backbone, check.prompt)
        if found is None:
            return None
        pair = []
        for scores, method in found:
            total = 0.0
            for metric, sign in _terms(check.metric):
                values = scores.mean(metric, method, scores.members(check.dataset))
                if not values:
                    return None
                total += sign * float(np.mean(values))
            pair.append(total)
        return pair[0], pair[1]

    return value


def _terms(metric: str) -> tuple[tuple[str, int], ...]:
    return (("accuracy", 1), ("ece", -1)) if metric == BALANCE else ((metric, 1),)


def runs_in(folder: str | Path) -> list[Run]:
    """The runs in a folder that `cots run` or `cots paper run` wrote: the folder itself, or those below it."""
    path = Path(folder)
    manifests = [path / "manifest.json"] if (path / "manifest.json").exists() else []
    for pattern in ("*/manifest.json", "runs/*/manifest.json"):
        manifests += sorted(path.glob(pattern))
    if not manifests:
        raise InputError(f"{folder} has no run. Pass a folder that `cots run` or `cots paper run` wrote.")
    return [Run.open(manifest.parent) for manifest in manifests]


def claims_text(runs: Run | Sequence[Run] = ()) -> str:
    """Every claim with the verdicts from the paper's tables and from runs."""
    if not isinstance(runs, Sequence):
        runs = [runs]
    columns = {"paper": judge(printed)}
    if runs:
        columns["runs"] = judge(measured(runs))
    lines = []
    for i, claim in enumerate(CLAIMS):
        lines.append(f'"{claim.quote}" ({claim.where}; {STRENGTHS[claim.strength]})')
        for name, verdicts in columns.items():
            lines.append(f"  {name}: {verdicts[i].line()}")
            if claim.strength != "sometimes":
                lines += [f"    {failure}" for failure in verdicts[i].failed]
    for name, verdicts in columns.items():
        made = [verdict for verdict in verdicts if verdict.made]
        held = sum(verdict.holds for verdict in made)
        lines.append(f"{name}: {held} of {counted(len(made), 'claim')} with values hold, of {len(CLAIMS)}")
    return "\n".join([*lines, *_averages(runs)])


def _averages(runs: Sequence[Run]) -> list[str]:
    """How many datasets the averages of each model and prompt are over."""
    lines: dict[str, Any] = {}
    for scores in map(RunScores, runs):
        parts = []
        for average, members in MEMBERS.items():
            count = len(scores.members(average))
            if count:
                parts.append(f"{count} of {len(members)} {average.removeprefix('average:')} sets")
        if parts:
            lines[f"runs with {scores.run.manifest.model.name}: averages over {', '.join(parts)}"] = None
    return list(lines)
