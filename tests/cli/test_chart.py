"""The reliability diagram in the terminal."""

from __future__ import annotations

import numpy as np

from cots.cli._demo import BINS, DIAGONAL, OVER, RIGHT, UNDER, WIDTH, reliability_chart
from cots.evaluate import score_columns


def test_bars_show_accuracy_gap_and_diagonal():
    confidence = np.repeat([0.92, 0.52, 0.32], 100)
    correct = np.concatenate([np.arange(100) < right for right in (60, 80, 32)])
    lines = reliability_chart({"TPT": score_columns(confidence, correct)}).plain.splitlines()
    assert len(lines) == BINS + 2
    assert all(len(line) <= 80 for line in lines)
    bars = {line[:3].strip(): line[12:] for line in lines[1:-1]}
    over, under, right, empty = bars["90"], bars["50"], bars["30"], bars["10"]
    assert over[:WIDTH] == RIGHT * 15 + OVER * 8 + DIAGONAL + " "
    assert over.endswith("60%")
    assert under[:WIDTH] == RIGHT * 13 + DIAGONAL + UNDER * 6 + " " * 5
    assert right[:WIDTH] == RIGHT * 8 + DIAGONAL + " " * 16
    assert not empty.strip()


def test_two_methods_fit_80_columns():
    rng = np.random.default_rng(0)
    one = score_columns(rng.random(500), rng.random(500) < 0.5)
    lines = reliability_chart({"TPT": one, "TPT + CoTS": one}).plain.splitlines()
    assert all(len(line) <= 80 for line in lines)
    marks = [line.index(DIAGONAL) for line in lines[1:-1]]
    assert marks == sorted(marks)
