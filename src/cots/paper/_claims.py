"""The paper's claims as checks of its own tables and of a run."""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, product

import numpy as np

from ..bench import Run
from ..evaluate.text import counted
from ..methods import method_title
from ..metrics import METRICS
from ._tables import MEMBERS, RunScores, load_table, read_data

COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
    "< half of": lambda left, right: left < right / 2,
}
Sides = tuple[float, float] | None  # the values of a comparison, or None where there are none


@dataclass(frozen=True, kw_only=True)
class Check:
    """A comparison of a metric between two methods, on a dataset or an average of `table`."""

    table: str
    metric: str
    left: str
    sign: str
    right: str
    dataset: str

    def text(self, left: float, right: float) -> str:
        """The two values in words."""
        where = self.dataset.removeprefix("average:")
        methods = f"{method_title(self.left)} {left:.2f}, {method_title(self.right)} {right:.2f}"
        return f"{METRICS.info(self.metric).short} on {where}: {methods}"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper, paraphrased, and its comparisons."""

    text: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The number of comparisons that could be made for a claim, and descriptions of those that fail."""

    claim: Claim
    made: int
    failed: tuple[str, ...]

    def line(self) -> str:
        if not self.made:
            return "not in the run"
        of = counted(self.made, "comparison")
        return f"holds ({of})" if not self.failed else f"fails in {len(self.failed)} of {of}"


def _claim(text: str, tables: str, metric: str, left: str, sign: str, right: str, datasets: str = "") -> Claim:
    """A row of claims.json: every pair of `left` and `right`, on `datasets` (default: the two averages).

    "*" on one side stands for the other, "others" for all methods of the table; "each": averages and all datasets.
    """
    where: Sequence[str] = datasets.split() or tuple(MEMBERS)
    if datasets == "each":
        where = (*MEMBERS, *chain(*MEMBERS.values()))
    others: Sequence[str] = right.split()
    if right == "others":
        others = load_table(tables.split()[0]).methods
    checks = []
    for table, one, other, dataset in product(tables.split(), left.split(), others, where):
        a, b = one.replace("*", other), other.replace("*", one)
        if a != b and any(load_table(table).select(method=a, dataset=dataset)):
            checks.append(Check(table=table, metric=metric, left=a, sign=sign, right=b, dataset=dataset))
    return Claim(text=text, checks=tuple(checks))


CLAIMS: tuple[Claim, ...] = tuple(_claim(**row) for row in read_data("claims.json")["rows"])


def judge(value: Callable[[Check], Sides], claims: Iterable[Claim] = CLAIMS) -> list[Verdict]:
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


def printed(check: Check) -> Sides:
    """The paper's values of both sides."""
    table = load_table(check.table)
    left = table.value(check.metric, check.left, check.dataset)
    return left, table.value(check.metric, check.right, check.dataset)


def measured(run: Run) -> Callable[[Check], Sides]:
    """A run's values of both sides: means over seeds, and over the datasets of an average that it has."""
    scores = RunScores(run)
    backbones = {load_table(check.table).backbones[0] for claim in CLAIMS for check in claim.checks}
    # Models that are not in the paper are compared with its main model.
    model = scores.model if scores.model in backbones else "ViT-B-16/openai"

    def value(check: Check) -> Sides:
        table = load_table(check.table)
        if table.backbones[0] != model or ("coop" in table.prompts) != (scores.prompt == "coop"):
            return None
        members = scores.members(check.dataset)
        left = scores.mean(check.metric, check.left, members)
        right = scores.mean(check.metric, check.right, members)
        return (float(np.mean(left)), float(np.mean(right))) if left and right else None

    return value


def claims_text(run: Run | None = None) -> str:
    """Every claim with the verdicts from the paper's tables and from a run."""
    columns = {"paper": judge(printed)}
    if run is not None:
        columns["run"] = judge(measured(run))
    lines = []
    for i, claim in enumerate(CLAIMS):
        lines.append(claim.text)
        for name, verdicts in columns.items():
            lines.append(f"  {name}: {verdicts[i].line()}")
            lines += [f"    {failure}" for failure in verdicts[i].failed]
    for name, verdicts in columns.items():
        made = [verdict for verdict in verdicts if verdict.made]
        held = sum(not verdict.failed for verdict in made)
        lines.append(f"{name}: {held} of {len(made)} claims hold throughout")
    parts = []
    for average, members in MEMBERS.items():
        count = 0 if run is None else len(RunScores(run).members(average))
        if count:
            parts.append(f"{count} of {len(members)} {average.removeprefix('average:')} sets")
    if parts:
        lines.append(f"run: averages over {', '.join(parts)}")
    return "\n".join(lines)
