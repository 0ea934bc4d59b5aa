"""The paper's claims as checks of its own tables and of a run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ..bench import Run
from ..methods import method_title
from ._scores import RunScores
from ._tables import FINE_GRAINED, MEMBERS, VARIANTS, load_table

GROUPS = (FINE_GRAINED, VARIANTS)
BASES = ("tpt", "ctpt", "penalty", "otpt", "atpt", "soc")
METRICS = {"accuracy": "accuracy", "ece": "ECE"}
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "=": lambda left, right: left == right,
    "< half of": lambda left, right: left < right / 2,
}
Pair = tuple[float, float] | None  # the values of a comparison, or None where there are none


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
        return f"{METRICS[self.metric]} on {where}: {methods}"


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
        of = f"{self.made} comparison{'s' if self.made > 1 else ''}"
        return f"holds ({of})" if not self.failed else f"fails in {len(self.failed)} of {of}"


def _claim(
    text: str, tables: str, metric: str, left: str, sign: str, right: str, datasets: tuple[str, ...] = GROUPS
) -> Claim:
    """Every pair of `left` and `right`; "*" in one stands for the other, "others" for all methods of the table."""
    others = " ".join(load_table(tables.split()[0]).methods)
    pairs = [
        (a.replace("*", b), b.replace("*", a))
        for a in left.split()
        for b in (others if right == "others" else right).split()
    ]
    checks = [
        Check(table=table, metric=metric, left=a, sign=sign, right=b, dataset=dataset)
        for table in tables.split()
        for a, b in pairs
        for dataset in datasets
        if a != b and any(load_table(table).select(method=a, dataset=dataset))
    ]
    return Claim(text=text, checks=tuple(checks))


_MAIN, _BASES, _EACH = "fine-grained imagenet-variants", " ".join(BASES), tuple(m for g in GROUPS for m in MEMBERS[g])
_COOP = "tpt ctpt otpt atpt soc"
_RN50, _SIGLIP, _TDA = (f"fine-grained-{kind} imagenet-variants-{kind}" for kind in ("rn50", "siglip", "tda"))
CLAIMS: tuple[Claim, ...] = (
    _claim("CoTS keeps the accuracy of TPT exactly.", _MAIN, "accuracy", "tpt+cots", "=", "tpt", (*GROUPS, *_EACH)),
    _claim("CoTS has the lowest average ECE of all methods on fine-grained datasets.",
           "fine-grained", "ece", "tpt+cots", "<", "others", (FINE_GRAINED,)),
    _claim("On Flowers, CoTS has the lowest ECE, even below zero-shot.",
           "fine-grained", "ece", "tpt+cots", "<", "others", ("flowers",)),
    _claim("CoTS more than halves the average ECE of TPT.", _MAIN, "ece", "tpt+cots", "< half of", "tpt"),
    _claim("CoTS has a lower average ECE than SaLS.", _MAIN, "ece", "tpt+cots", "<", "tpt+sals"),
    _claim("E-CoTS improves the average accuracy of TPT.", _MAIN, "accuracy", "tpt+ecots", ">", "tpt"),
    _claim("E-CoTS has the best average accuracy of all methods on ImageNet variants.",
           "imagenet-variants", "accuracy", "tpt+ecots", ">", "others", (VARIANTS,)),
    _claim("E-CoTS lowers the average ECE of TPT.", _MAIN, "ece", "tpt+ecots", "<", "tpt"),
    _claim("TPT is more accurate than zero-shot.", _MAIN, "accuracy", "tpt", ">", "zeroshot"),
    _claim("TPT has a higher average ECE than zero-shot.", _MAIN, "ece", "tpt", ">", "zeroshot"),
    _claim("Regularised methods lower the average ECE of TPT.", _MAIN, "ece", "ctpt otpt atpt soc", "<", "tpt"),
    _claim("Regularised methods cost accuracy.", _MAIN, "accuracy", "otpt atpt soc", "<", "tpt"),
    _claim("E-CoTS improves the accuracy of every base method.", "plug-and-play", "accuracy", "*+ecots", ">", _BASES),
    _claim("CoTS lowers the ECE of every base method.", "plug-and-play", "ece", "*+cots", "<", _BASES),
    _claim("E-CoTS lowers the ECE of every base method.", "plug-and-play", "ece", "*+ecots", "<", _BASES),
    _claim("From CoOp's contexts, CoTS lowers the ECE of every base method.", "coop", "ece", "*+cots", "<", _COOP),
    _claim("From CoOp's contexts, E-CoTS improves the accuracy of every base method.",
           "coop", "accuracy", "*+ecots", ">", _COOP),
    _claim("CoTS lowers the ECE of TTL and TPS.", "ttl-tps", "ece", "*+cots", "<", "ttl tps"),
    _claim("The ensemble alone improves the accuracy of every base method.",
           "ensemble-only", "accuracy", "*+ensemble", ">", _COOP),
    _claim("With ResNet-50, CoTS lowers the average ECE of TPT.", _RN50, "ece", "tpt+cots", "<", "tpt"),
    _claim("With ResNet-50, E-CoTS improves the average accuracy of TPT.", _RN50, "accuracy", "tpt+ecots", ">", "tpt"),
    _claim("With SigLIP, CoTS lowers the average ECE of TPT.", _SIGLIP, "ece", "tpt+cots", "<", "tpt"),
    _claim("On top of TDA, CoTS lowers the average ECE.", _TDA, "ece", "tda+cots", "<", "tda"),
    _claim("On top of TDA, E-CoTS improves the average accuracy.", _TDA, "accuracy", "tda+ecots", ">", "tda"),
)  # fmt: skip


def judge(value: Callable[[Check], Pair], claims: Iterable[Claim] = CLAIMS) -> list[Verdict]:
    """Judge the claims; `value` returns the values of both sides of a check, or None."""
    found = []
    for claim in claims:
        pairs = [(check, pair) for check in claim.checks if (pair := value(check)) is not None]
        failed = (check.text(*pair) for check, pair in pairs if not COMPARE[check.sign](*pair))
        found.append(Verdict(claim=claim, made=len(pairs), failed=tuple(failed)))
    return found


def printed(check: Check) -> Pair:
    """The paper's values of both sides."""
    left, right = (
        load_table(check.table).value(check.metric, method, check.dataset) for method in (check.left, check.right)
    )
    return left, right


def measured(run: Run) -> Callable[[Check], Pair]:
    """A run's values of both sides: means over seeds, and over the datasets of an average that it has."""
    scores = RunScores(run)
    model = run.manifest["model"]["name"].replace("-quickgelu", "")
    learned = any(entry.get("context") for entry in scores.entries.values())
    backbones = {load_table(check.table).backbones[0] for claim in CLAIMS for check in claim.checks}

    def value(check: Check) -> Pair:
        table = load_table(check.table)
        # Models that are not in the paper are compared with its main model.
        if table.backbones[0] != (model if model in backbones else "ViT-B-16/openai"):
            return None
        if ("coop" in table.prompts) != learned:
            return None
        members = scores.members(check.dataset)
        sides = [scores.mean(check.metric, method, members) for method in (check.left, check.right)]
        return (float(np.mean(sides[0])), float(np.mean(sides[1]))) if all(sides) else None

    return value


def claims_text(run: Run | None = None) -> str:
    """Every claim with the verdicts from the paper's tables and from a run."""
    columns = {"paper": judge(printed)} | ({"run": judge(measured(run))} if run is not None else {})
    lines = []
    for place, claim in enumerate(CLAIMS):
        lines.append(claim.text)
        for name, verdicts in columns.items():
            lines.append(f"  {name}: {verdicts[place].line()}")
            lines += [f"    {failure}" for failure in verdicts[place].failed]
    for name, verdicts in columns.items():
        made = [verdict for verdict in verdicts if verdict.made]
        held = sum(not verdict.failed for verdict in made)
        lines.append(f"{name}: {held} of {len(made)} claims hold throughout")
    if run is not None and (part := _parts(RunScores(run))):
        lines.append(f"run: averages over {part}")
    return "\n".join(lines)


def _parts(scores: RunScores) -> str:
    counts = {average: (len(scores.members(average)), len(members)) for average, members in MEMBERS.items()}
    return ", ".join(
        f"{here} of {all_} {a.removeprefix('average:')} sets" for a, (here, all_) in counts.items() if here
    )
