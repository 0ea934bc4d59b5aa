"""The promise of a threshold, held against the equations and against 1,000 draws of labels."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom
from support.trees import random_rows, random_tree

from cots import InputError, Prediction
from cots.metrics import binomial_interval
from cots.taxonomy import RankRule, evaluate_ranks

CLASSES = 12
TREE = random_tree(1, CLASSES)
ROWS, LABELS = random_rows(1, 4000, CLASSES)  # a population: its error rate is known exactly


@pytest.mark.parametrize("risk", [0.05, 0.2])
@pytest.mark.parametrize("n", [10, 60, 200])
def test_thresholds_follow_the_equations(n, risk):
    sufficient = sorted(TREE.sufficient_thresholds(ROWS[:n], LABELS[:n]))
    rank = math.ceil((n + 1) * (1 - risk))
    average = RankRule.fit(TREE, ROWS[:n], LABELS[:n], risk, None).threshold
    assert average == (1.0 if rank > n else sufficient[rank - 1])
    # Conformal risk control: (errors + 1) / (n + 1) <= risk here, and not with any smaller threshold.
    errors = sum(value > average for value in sufficient)
    assert average == 1 or (errors + 1) / (n + 1) <= risk
    assert all((sum(v > t for v in sufficient) + 1) / (n + 1) > risk for t in [0.0, *sufficient] if t < average)

    certain = RankRule.fit(TREE, ROWS[:n], LABELS[:n], risk, 0.9).threshold
    passing = [t for t in (0.0, *sufficient) if binom.cdf(sum(v > t for v in sufficient), n, risk) <= 0.1]
    assert certain == min(passing, default=1.0)


@pytest.mark.parametrize("n", [60, 200])
def test_promises_hold_over_a_thousand_draws_of_labels(n):
    """The population's error rate under each threshold, against both bounds with the chance of 1,000 draws."""
    risk, certainty, draws = 0.1, 0.9, 1000
    rng, order = np.random.default_rng(n), np.sort(TREE.sufficient_thresholds(ROWS, LABELS))
    samples = np.sort(order[rng.integers(0, len(order), (draws, n))], axis=1)
    average = RankRule.fit(TREE, ROWS[:n], LABELS[:n], risk, None)
    certain = RankRule.fit(TREE, ROWS[:n], LABELS[:n], risk, certainty)
    first = np.sort(TREE.sufficient_thresholds(ROWS[:n], LABELS[:n]))
    ranks = [int(np.searchsorted(first, rule.threshold)) for rule in (average, certain)]  # the same for equal n
    errors = 1 - np.searchsorted(order, samples[:, ranks], side="right") / len(order)
    assert errors[:, 0].mean() <= risk + 3 * errors[:, 0].std() / math.sqrt(draws)
    assert errors[:, 0].mean() >= risk - 2 / (n + 1) - 3 * errors[:, 0].std() / math.sqrt(draws)
    broken = int((errors[:, 1] > risk).sum())
    assert broken <= binom.ppf(0.999, draws, 1 - certainty)
    assert broken > 0  # the bound is used up, not merely safe


def test_reports_count_from_the_definition():
    nodes, _ = TREE.climb(ROWS[:300], 0.8)
    report = evaluate_ranks(TREE, nodes, LABELS[:300])
    wrong = [label not in TREE.classes_below(node) for node, label in zip(nodes, LABELS[:300], strict=True)]
    assert report.errors == sum(wrong)
    assert report.interval == binomial_interval(sum(wrong), 300)
    assert sum(row.answers for row in report.by_depth) == report.n == 300
    assert sum(row.errors for row in report.by_depth) == report.errors
    depths = [len(TREE.path(node)) for node in nodes]
    assert report.mean_depth == pytest.approx(np.mean(depths))
    kept = [1 - math.log(len(TREE.classes_below(node))) / math.log(CLASSES) for node in nodes]
    assert report.information == pytest.approx(np.mean(kept))
    assert report.classes == sum(int(node) in TREE.leaves for node in nodes)
    assert report.by_depth[0].errors == 0  # the root
    assert f"0 of {report.roots} wrong" in "\n".join(report.lines())


def prediction(row):
    names = tuple(f"class {k}" for k in range(CLASSES))
    return Prediction(label=names[row.argmax()], confidence=float(row.max()), probabilities=row, classes=names)


def test_a_prediction_gets_its_answer():
    rule = RankRule(tree=TREE, threshold=0.8)
    nodes, shares = TREE.climb(ROWS[:60], 0.8)
    kinds = set()
    for row, node, share in zip(ROWS[:60], nodes.tolist(), shares, strict=True):
        given = prediction(row)
        found = rule.apply(given)
        kinds.add("root" if node == 0 else "class" if node in TREE.leaves else "group")
        assert found.abstained == (node == 0)
        assert found.label == (given.label if node in TREE.leaves else None)
        assert found.node == (TREE.names[node] if node else None)
        assert found.path == tuple(TREE.names[one] for one in TREE.path(node))
        assert found.node_probability == (share if node else None)
        inside = [(f"class {k}", row[k]) for k in TREE.classes_below(node)]
        expected = sorted(inside, key=lambda pair: -pair[1])[:5] if node not in TREE.leaves else []
        assert list(found.candidates) == expected
    assert kinds == {"root", "class", "group"}
    failed = replace(prediction(ROWS[0]), error="cannot be read")
    assert rule.apply(failed) is failed


def test_too_few_labels_answer_nothing_and_say_so():
    rule = RankRule.fit(TREE, ROWS[:20], LABELS[:20], 0.05, 0.95)
    assert rule.threshold == 1
    assert "no rank was sure enough" in rule.promise
    assert "on average" in RankRule.fit(TREE, ROWS[:100], LABELS[:100], 0.2, None).promise


def test_wrong_settings_and_other_trees_are_refused():
    for settings in ({"risk": 0.0}, {"certainty": 1.0}):
        with pytest.raises(InputError, match="must lie between 0 and 1"):
            RankRule.fit(TREE, ROWS[:9], LABELS[:9], **settings)
    with pytest.raises(InputError, match="probability"):
        RankRule(tree=TREE, threshold=1.5)
    with pytest.raises(InputError, match="differs"):
        RankRule(tree=TREE, checksum=random_tree(2, CLASSES).checksum)
