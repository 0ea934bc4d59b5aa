"""Pooled figures of a run, against figures computed by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest


@pytest.fixture
def run():
    """Two sets of four and two photos, two seeds, two methods: TPT is more confident and as often right."""
    confident = {"zeroshot": 0.6, "tpt": 0.9}

    def records(dataset: str, method: str, seed: int) -> SimpleNamespace:
        n, top = (4, confident[method]) if dataset == "a" else (2, confident[method] - 0.05)
        probabilities = np.tile(np.array([top, 1 - top], dtype=np.float32), (n, 1))
        label = np.zeros(n, dtype=int)
        label[: seed + 1] = 1  # wrong
        return SimpleNamespace(
            ids=range(n), label=label, confidence=probabilities.max(1), correct=label == 0, failed=0,
            chunks=lambda name: [probabilities], tau=np.ones(n), milliseconds=np.ones(n), encoding=np.nan,
        )  # fmt: skip

    return SimpleNamespace(datasets=("a", "b"), methods=("zeroshot", "tpt"), seeds=(0, 1), records=records)


def test_pooled_figures_and_paired_differences(mini, run):
    table = mini.pooled.rows(run, resamples=20)
    values = [float(cell.split()[0]) for cell in table[3].split(" | ")[1:]]
    accuracy, confidence = 100 * (4 + 2) / 12, 100 * (4 * 0.9 + 2 * 0.85) / 6
    nll = -np.mean([np.log(0.9)] * 5 + [np.log(0.1)] * 3 + [np.log(0.85)] + [np.log(0.15)] * 3)
    # Bins of 4 and 2 photos, per seed: |accuracy - confidence| weighted by their share.
    gaps = [abs(3 / 4 - 0.9) * 4 / 6 + abs(1 / 2 - 0.85) * 2 / 6, abs(2 / 4 - 0.9) * 4 / 6 + abs(0 - 0.85) * 2 / 6]
    assert values == pytest.approx([accuracy, confidence, 100 * np.mean(gaps), nll], abs=6e-4)
    assert table[2].startswith("| `zeroshot` | 50.000 [")
    assert table[-1].startswith("| `tpt` - `zeroshot` | 0.000 [0.000, 0.000] | 30.000 [30.000, 30.000]")
