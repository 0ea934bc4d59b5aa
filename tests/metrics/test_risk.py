"""Risk-coverage curves and operating points against hand-worked cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.metrics import top

from cots.metrics import risk_coverage


def test_risk_coverage_by_hand():
    curve = risk_coverage([0.3, 0.9, 0.9, 0.6], [True, True, False, False])
    assert curve.thresholds.tolist() == [0.9, 0.6, 0.3]
    assert curve.coverage.tolist() == [0.5, 0.75, 1.0]
    assert curve.risk == pytest.approx([1 / 2, 2 / 3, 1 / 2])
    assert curve.aurc == float(curve) == pytest.approx((0.5 + 0.5 + 2 / 3 + 0.5) / 4)


def test_equal_confidence_gives_the_error_rate():
    curve = risk_coverage([0.7] * 5, [True, False, True, True, False])
    assert len(curve.risk) == 1
    assert curve.aurc == pytest.approx(0.4)


def test_threshold_for_risk_is_the_widest_that_keeps_the_promise():
    # Risk goes 1, 1/2, 1/3, 1/4, 2/5: it fails first and qualifies later.
    curve = risk_coverage([0.9, 0.8, 0.7, 0.6, 0.5], [False, True, True, True, False])
    point = curve.threshold_for_risk(0.25)
    assert (point.threshold, point.coverage, point.risk, point.accepted) == (0.6, 0.8, 0.25, 4)
    assert curve.threshold_for_risk(0.4).threshold == 0.5
    nothing = curve.threshold_for_risk(0.1)
    assert (nothing.threshold, nothing.coverage, nothing.accepted) == (math.inf, 0.0, 0)
    assert math.isnan(nothing.risk)


def test_threshold_for_risk_holds_when_applied():
    confidence, correct = top(3)
    point = risk_coverage(confidence, correct).threshold_for_risk(0.2)
    kept = confidence >= point.threshold
    assert 0 < kept.sum() < len(kept)
    assert kept.sum() == point.accepted
    assert kept.mean() == pytest.approx(point.coverage)
    assert (~correct[kept]).mean() == pytest.approx(point.risk)
    assert point.risk <= 0.2
    for lower in np.unique(confidence[~kept]):
        assert (~correct[confidence >= lower]).mean() > 0.2
