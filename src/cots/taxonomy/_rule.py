"""The threshold of answers at the rank that is sure, from labelled samples, with its promise; and how it did."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import numpy as np

from .._errors import InputError
from ..metrics import binomial_interval
from ..metrics.inputs import Values, class_labels, same_samples
from ..metrics.intervals import beta_cdf
from ._tree import Nodes, Taxonomy

P = TypeVar("P")

SURE = 0.9  # threshold without labels: a probability as stated, without a promise
CANDIDATES = 5


@dataclass(frozen=True, kw_only=True)
class RankRule:
    """Answers at the lowest node whose probability exceeds `threshold`.

    risk: at most this share of all answers is wrong, if the threshold comes from `n` labels: with probability
    `certainty` over the labels, or on average over them if that is None. checksum: of the tree.
    """

    tree: Taxonomy
    threshold: float = SURE
    risk: float | None = None
    certainty: float | None = None
    n: int = 0
    checksum: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise InputError(f"The threshold of a taxonomy is a probability, such as 0.9, not {self.threshold!r}.")
        if not self.checksum:
            object.__setattr__(self, "checksum", self.tree.checksum)
        elif self.checksum != self.tree.checksum:
            raise InputError("The taxonomy differs from the one that its threshold was made for; run cots check again.")

    @classmethod
    def fit(
        cls, tree: Taxonomy, probabilities: Values, labels: Values, risk: float = 0.05, certainty: float | None = 0.95
    ) -> Self:
        """The lowest threshold that promises `risk`; 1, which answers the root, if the labels are too few.

            split conformal:   theta = the ceil((n + 1)(1 - risk))-th smallest theta*_i
            learn then test:   theta = the (n - m)-th smallest, with the largest m such that
                               P(Binomial(n, risk) <= m) <= 1 - certainty

        theta*_i: see `Taxonomy.sufficient_thresholds`. The loss never rises with theta, so all thresholds can be tested
        from strict to loose without a correction. Needs labels from the same distribution as later samples, drawn
        without regard to the confidence; the probabilities need not be calibrated.
        """
        for name, value in (("risk", risk), ("certainty", certainty)):
            if value is not None and not 0 < value < 1:
                raise InputError(f"{name} must lie between 0 and 1, such as 0.05 or 0.95, not {value!r}.")
        sufficient = np.sort(tree.sufficient_thresholds(probabilities, labels))
        n = len(sufficient)
        rank = math.ceil((n + 1) * (1 - risk) - 1e-9)
        if certainty is not None:
            rank = n - _allowed(n, risk, 1 - certainty)
        threshold = 1.0 if rank > n else float(sufficient[max(rank, 1) - 1])
        return cls(tree=tree, threshold=threshold, risk=risk, certainty=certainty, n=n)

    @property
    def promise(self) -> str:
        """The promise in words."""
        if self.risk is None:
            return f"Answers at the lowest rank above {self.threshold:.1%}, without a promise."
        how = "on average" if self.certainty is None else f"with {self.certainty:.0%} certainty"
        words = f"at most {100 * self.risk:.3g}% of all answers are wrong, {how}"
        if self.threshold == 1:
            return f"Answers at the rank that is sure: {words}, but only because no rank was sure enough."
        return f"Answers at the lowest rank above {self.threshold:.2%}: {words}."

    def apply(self, prediction: P) -> P:
        """A `Prediction` with its answer: a class, a group (then without a label), or the root (then it abstains)."""
        given: Any = prediction
        if given.error is not None:
            return prediction
        (node,), (share,) = self.tree.climb(given.probabilities[None].astype(np.float64), self.threshold)
        below = self.tree.classes_below(node)
        likely = below[np.argsort(-given.probabilities[below], kind="stable")][:CANDIDATES]
        names = tuple(self.tree.names[one] for one in self.tree.path(node))
        answer: dict[str, Any] = {"path": names, "abstained": not names}
        if names:
            answer |= {"node": names[-1], "rank": self.tree.ranks[node], "node_probability": float(share)}
        if node in self.tree.leaves:
            return replace(given, **answer, label=given.classes[likely[0]])
        candidates = tuple((given.classes[k], float(given.probabilities[k])) for k in likely)
        unsure = self.tree.ranks[self.tree.leaves[likely[0]]] or "class"
        return replace(given, **answer, label=None, unsure=unsure, candidates=candidates)


def _allowed(n: int, risk: float, delta: float) -> int:
    """The largest number of errors m with P(Binomial(n, risk) <= m) <= delta; -1 if there is none."""
    low, high = -1, n
    while high - low > 1:
        middle = (low + high) // 2
        if 1.0 - beta_cdf(risk, middle + 1.0, n - middle) <= delta:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, kw_only=True)
class DepthRow:
    """Answers of one depth and their errors, with the exact 95% interval of the error rate."""

    depth: int
    answers: int
    errors: int
    interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """Answers on labelled samples. information: 1 for a class, 0 for the root (`Taxonomy.information`)."""

    n: int
    errors: int
    interval: tuple[float, float]
    mean_depth: float
    information: float
    classes: int
    roots: int
    by_depth: tuple[DepthRow, ...] = field(repr=False)

    @property
    def error_rate(self) -> float:
        return self.errors / self.n

    def lines(self) -> list[str]:
        """As `cots check` prints it."""
        low, high = self.interval
        lines = [
            f"On these photos: {self.error_rate:.1%} wrong (95% interval {low:.1%} to {high:.1%}), "
            f"{self.classes / self.n:.0%} answered with a class, {self.roots / self.n:.0%} with nothing, mean depth "
            f"{self.mean_depth:.2f}, information kept {self.information:.0%}. By depth:"
        ]
        for row in self.by_depth:
            low, high = row.interval
            lines.append(f"  {row.depth}: {row.errors} of {row.answers} wrong (95% interval {low:.1%} to {high:.1%})")
        return lines


def evaluate_ranks(tree: Taxonomy, nodes: Nodes, labels: Values) -> RankReport:
    """Error rate, depth and information of answers (nodes) on labelled samples, in all and by depth.

    The promise is about all answers together; the rows by depth show whether one depth does worse.
    """
    truth = class_labels(labels, len(tree.leaves))
    n = same_samples(nodes=nodes, labels=truth)
    wrong, depth = ~tree.contains(nodes, truth), tree.depth[nodes]
    rows = []
    for level in np.unique(depth).tolist():
        errors, answers = int(wrong[depth == level].sum()), int((depth == level).sum())
        rows.append(DepthRow(depth=level, answers=answers, errors=errors, interval=binomial_interval(errors, answers)))
    return RankReport(
        n=n, errors=int(wrong.sum()), interval=binomial_interval(int(wrong.sum()), n), mean_depth=float(depth.mean()),
        information=float(tree.information[nodes].mean()), classes=int(np.isin(nodes, tree.leaves).sum()),
        roots=int((nodes == 0).sum()), by_depth=tuple(rows),
    )  # fmt: skip
