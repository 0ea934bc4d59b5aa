"""The demo's sentences against their figures: a claim whose interval includes zero is not made."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cots.evaluate import claims, score_columns

DRAWS = {"seed": 0, "resamples": 500}
N = 400


@pytest.fixture
def base():
    """Confidences around 0.5, of which 40% are right."""
    rng = np.random.default_rng(0)
    return rng.uniform(0.3, 0.6, N), rng.random(N) < 0.4


def scored(confidence, correct):
    return score_columns(confidence, correct)


def noise(scale, seed=1):
    return np.random.default_rng(seed).normal(0, scale, N)


def test_what_is_taken_back_is_the_share_of_the_added_confidence(base):
    confidence, correct = base
    zero, tuned, calmed = confidence, confidence + 0.2 + noise(0.02), confidence + 0.05 + noise(0.02, 2)
    said = claims.confidence_claim(*(scored(c, correct) for c in (zero, tuned, calmed)), 0, **DRAWS)
    share = (tuned.mean() - calmed.mean()) / (tuned.mean() - zero.mean())
    found = re.fullmatch(
        r"TPT claims (\d+)% and is right (\d+)%; CoTS claims (\d+)% with the same answers: it takes back (\d+)% of the "
        r"confidence that tuning added \(95% interval (\d+)% to (\d+)%\)\.",
        said,
    )
    assert found
    values = [int(word) for word in found.groups()]
    assert values[:4] == [round(100 * x) for x in (tuned.mean(), correct.mean(), calmed.mean(), share)]
    # The same interval, by resampling the photos one set at a time.
    rng, shares = np.random.default_rng(5), []
    for _ in range(500):
        pick = rng.integers(0, N, N)
        a, b, c = (x[pick].mean() for x in (zero, tuned, calmed))
        shares.append((b - c) / (b - a))
    assert values[4:] == pytest.approx(100 * np.quantile(shares, [0.025, 0.975]), abs=1.5)


@pytest.mark.parametrize(
    ("added", "kept", "says"),
    [
        (0.2, 0.3, "it adds another 51% of the confidence that tuning added (95% interval 49% to 53%)"),
        (0.0, 0.0, "on these photos tuning did not clearly add confidence"),
        (-0.2, 0.0, "on these photos tuning took confidence away (-20."),
    ],
)
def test_other_outcomes_are_stated_plainly(base, added, kept, says):
    confidence, correct = base
    tuned, calmed = confidence + added + noise(0.02), confidence + kept + noise(0.02, 2)
    said = claims.confidence_claim(*(scored(c, correct) for c in (confidence, tuned, calmed)), 0, **DRAWS)
    assert says in said
    assert "takes back" not in said


def test_a_share_that_may_be_zero_is_not_claimed(base):
    confidence, correct = base
    tuned = confidence + 0.2
    calmed = tuned + noise(0.05) - noise(0.05).mean() - 0.001
    said = claims.confidence_claim(*(scored(c, correct) for c in (confidence, tuned, calmed)), 0, **DRAWS)
    low, high = (int(x) for x in re.findall(r"(-?\d+)% to (-?\d+)%", said)[0])
    assert low < 0 < high
    assert "is not clear" in said
    assert ": it takes back" not in said


@pytest.mark.parametrize(
    ("gained", "lost", "says"),
    [
        (40, 0, "Tuning also gained accuracy: +10.0"),
        (0, 40, "Tuning cost accuracy: -10.0"),
        (5, 5, "no clear accuracy: +0.0"),
    ],
)
def test_accuracy_is_claimed_only_where_it_is_clear(base, gained, lost, says):
    confidence, correct = base
    after = correct.copy()
    after[np.flatnonzero(~correct)[:gained]] = True
    after[np.flatnonzero(correct)[:lost]] = False
    assert says in claims.accuracy_claim(scored(confidence, correct), scored(confidence, after), **DRAWS)


def test_believed_confidences_match_a_loop():
    rng = np.random.default_rng(3)
    confidence, correct = rng.random(50), rng.random(50) < 0.5
    draws = rng.integers(0, 50, (4, 50))
    weights = np.stack([np.bincount(draw, minlength=50) for draw in draws])
    kept, wrong = claims.believed(confidence, correct, errors=0.2, weights=weights)
    for b, draw in enumerate(draws):
        order = draw[np.argsort(-confidence[draw], kind="stable")]
        mean = np.cumsum(1 - confidence[order]) / np.arange(1, 51)
        # A photo drawn several times is kept with all its copies or with none.
        most = max((i + 1 for i in range(50) if mean[i] <= 0.2 and (i == 49 or order[i] != order[i + 1])), default=0)
        assert kept[b] == pytest.approx(most / 50)
        assert wrong[b] == pytest.approx((~correct[order[:most]]).mean() if most else 0.0)
    assert claims.believed(np.full(4, 0.5), np.ones(4, bool), errors=0.1) == (0.0, 0.0)


def test_selective_prediction_is_described_both_ways(base):
    _, correct = base
    rng = np.random.default_rng(4)
    over, calm = np.where(correct, 0.95, 0.93) + 0.01 * rng.random(N), np.where(correct, 0.93, 0.4)
    better = claims.trust_claim(scored(over, correct), scored(calm, correct), **DRAWS)
    assert "With TPT you keep 100% of the photos and" in better
    assert "CoTS leaves fewer errors (-" in better
    assert "CoTS leaves more errors (+" in claims.trust_claim(scored(calm, correct), scored(over, correct), **DRAWS)
    same = claims.trust_claim(scored(over, correct), scored(over, correct), **DRAWS)
    assert "a difference that may be chance (+0.0 points, 95% interval +0.0 to +0.0)" in same
    assert same.endswith("Neither keeps the promise.")
    keeps = claims.coverage_claim(scored(rng.random(N), correct), scored(calm, correct), **DRAWS)
    share = 100 * (correct.mean() / 0.9)  # all right ones, and as many wrong ones as 10% allow
    assert (
        f"you keep {100 * correct.mean():.1f}% of the photos instead of" in keeps or f"you keep {share:.1f}%" in keeps
    )
    assert "CoTS keeps more (+" in keeps
