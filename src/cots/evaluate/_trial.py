"""A policy on labelled photos that it was not made from: each promise beside what happened."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..conformal import Coverage, Policy, evaluate
from ..methods import Prediction
from ..metrics import binomial_interval
from ..taxonomy import RankReport, evaluate_ranks


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A promised share and what was counted: `count` of `n`; at_most: whether it is an upper or a lower bound."""

    promised: float
    count: int
    n: int
    at_most: bool = True

    @property
    def interval(self) -> tuple[float, float]:
        return binomial_interval(self.count, self.n)

    @property
    def kept(self) -> bool:
        """Whether the share on these photos is within the promise."""
        share = self.count / self.n
        return share <= self.promised if self.at_most else share >= self.promised

    @property
    def verdict(self) -> str:
        """Two-sided: a share beyond the promise can be chance, if the interval includes what was promised."""
        if self.kept:
            return "The promise held."
        low, high = self.interval
        if low <= self.promised <= high:
            return "Beyond the promise by no more than chance explains."
        return "The promise did not hold: label some of these photos and run cots check again."

    def line(self, what: str) -> str:
        low, high = self.interval
        bound = "at most" if self.at_most else "at least"
        found = f"{self.count} of {self.n}, {self.count / self.n:.1%} (95% interval {low:.1%} to {high:.1%})"
        return f"{what}: promised {bound} {100 * self.promised:.3g}%, found {found}. {self.verdict}"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a policy did on n labelled photos.

    wrong: among the predictions at or above the threshold, if the policy has one, or among all answers of a policy with
    a taxonomy, whose report is ranks. answered: with a label or a group.
    """

    n: int
    answered: int
    wrong: Outcome | None
    sets: Coverage | None
    coverage: Outcome | None
    flagged: Outcome | None
    ranks: RankReport | None

    def lines(self) -> list[str]:
        """The output of `cots check --policy`."""
        lines = [f"Answered {self.answered} of {self.n} photos; the others abstain."]
        if self.wrong is not None:
            about = "Errors at or above the threshold" if self.ranks is None else "Errors among all answers"
            lines.append(self.wrong.line(about))
        elif self.ranks is None:
            lines.append("The policy has no threshold, so it promises no error rate.")
        if self.coverage is not None and self.sets is not None:
            lines.append(f"{self.coverage.line('Class in the set')} Mean size {self.sets.mean_size:.2f} classes.")
        if self.flagged is not None:
            lines.append(self.flagged.line("Flagged as none of these"))
        if self.ranks is not None:
            lines += self.ranks.lines()
        return lines


def try_out(policy: Policy, predictions: Sequence[Prediction], labels: Sequence[int]) -> Trial:
    """Predictions under a policy against labels, indices into its classes."""
    table, truth = np.array([one.probabilities for one in predictions], dtype=np.float64), np.asarray(labels)
    correct = table.argmax(1) == truth
    wrong = sets = coverage = flagged = ranks = None
    if policy.ranks is not None:
        tree = policy.ranks.tree
        ranks = evaluate_ranks(tree, tree.climb(table, policy.ranks.threshold)[0], truth)
        if policy.ranks.risk is not None:
            wrong = Outcome(promised=policy.ranks.risk, count=ranks.errors, n=ranks.n)
    elif policy.error is not None and policy.threshold is not None:
        above = np.array([one.confidence for one in predictions]) >= policy.threshold
        if above.any():
            errors = int((above & ~correct).sum())
            wrong = Outcome(promised=policy.error.risk, count=errors, n=int(above.sum()))
    if policy.sets is not None:
        sets = evaluate(policy.sets.decide(table), truth)
        coverage = Outcome(promised=policy.sets.coverage, count=round(sets.coverage * sets.n), n=sets.n, at_most=False)
    if policy.flag is not None:
        flagged = Outcome(promised=policy.flag, count=sum(one.none_of_these for one in predictions), n=len(truth))
    answered = sum(not one.abstained for one in predictions)
    return Trial(
        n=len(truth), answered=answered, wrong=wrong, sets=sets, coverage=coverage, flagged=flagged, ranks=ranks
    )
