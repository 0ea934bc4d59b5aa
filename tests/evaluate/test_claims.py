"""The demo's sentences against their figures: a claim whose interval includes zero is not made."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from cots.conformal import control_error, lowest_threshold
from cots.evaluate import act, claims, score_columns

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
        r"Tuning added (\S+) points \[\S+, \S+\] of confidence; CoTS, with the same answers, takes back (\d+)% of that "
        r"\[(\d+), (\d+)\]\.",
        said,
    )
    assert found
    values = [float(word) for word in found.groups()]
    assert values[:2] == [round(100 * (tuned.mean() - zero.mean()), 1), round(100 * share)]
    # The same interval, by resampling the photos one set at a time.
    rng, shares = np.random.default_rng(5), []
    for _ in range(500):
        pick = rng.integers(0, N, N)
        a, b, c = (x[pick].mean() for x in (zero, tuned, calmed))
        shares.append((b - c) / (b - a))
    assert values[2:] == pytest.approx(100 * np.quantile(shares, [0.025, 0.975]), abs=1.5)


@pytest.mark.parametrize(
    ("added", "kept", "says"),
    [
        (0.2, 0.3, "CoTS, with the same answers, adds another 51% of that [49, 53]"),
        (0.0, 0.0, "On these photos tuning did not clearly add confidence"),
        (-0.2, 0.0, "On these photos tuning took confidence away (-20."),
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
    low, high = (int(x) for x in re.findall(r"\[(-?\d+), (-?\d+)\]\.", said)[0])
    assert low < 0 < high
    assert "takes back a share that is within chance" in said


@pytest.mark.parametrize(
    ("gained", "lost", "says"),
    [
        (40, 0, "TPT is right more often than zero-shot: +10.0"),
        (0, 40, "TPT is right less often than zero-shot: -10.0"),
        (5, 5, "TPT is right as often as zero-shot, within chance: +0.0"),
    ],
)
def test_accuracy_is_claimed_only_where_it_is_clear(base, gained, lost, says):
    confidence, correct = base
    after = correct.copy()
    after[np.flatnonzero(~correct)[:gained]] = True
    after[np.flatnonzero(correct)[:lost]] = False
    said = claims.accuracy_claim("TPT", scored(confidence, correct), scored(confidence, after), "zero-shot", **DRAWS)
    assert said.startswith(says)


@pytest.mark.parametrize(
    ("sure", "says"),
    [(0.5, "over-confident"), (0.3, "under-confident"), (0.4, "calibrated within chance")],
)
def test_the_gap_of_a_method_is_tested_on_both_sides(sure, says):
    correct = np.arange(N) % 5 < 2  # 40% are right
    said = claims.gap_claim("Zero-shot", scored(np.full(N, sure), correct), **DRAWS)
    assert said.startswith(
        f"Zero-shot is {says}: {100 * sure:.1f}% sure, 40.0% right, gap {100 * sure - 40:+.1f} points"
    )


@pytest.mark.parametrize("sure", [0.0, 1.0])
def test_a_gap_of_exactly_zero_is_within_chance(sure):
    said = claims.gap_claim("Zero-shot", scored(np.full(N, sure), np.full(N, sure > 0)), **DRAWS)
    assert said.startswith("Zero-shot is calibrated within chance")


@pytest.mark.parametrize(
    ("zero", "calm", "says"),
    [
        (0.5, 0.5, "of the gap is zero-shot's own, and only labels can correct it: +10.0"),
        (0.4, 0.4, "What CoTS leaves of the gap is within chance: +0.0 points"),
        (0.4, 0.5, "CoTS leaves a gap: +10.0 points"),
        (0.5, 0.3, "CoTS leaves a gap: -10.0 points"),
    ],
)
def test_what_is_left_is_put_down_to_zero_shot_only_where_it_is(zero, calm, says):
    correct = np.arange(N) % 5 < 2
    assert says in claims.remaining_claim(scored(np.full(N, zero), correct), scored(np.full(N, calm), correct), **DRAWS)


def test_believed_confidences_match_a_loop():
    rng = np.random.default_rng(3)
    confidence, correct = rng.random(50), rng.random(50) < 0.5
    order = np.argsort(-confidence)
    most = max((i + 1 for i in range(50) if np.mean(1 - confidence[order[: i + 1]]) <= 0.2), default=0)
    assert 0 < most < 50
    assert claims.believed(confidence, correct, 0.2) == (most, (~correct[order[:most]]).sum())
    assert claims.believed(np.full(4, 0.5), np.ones(4, bool), 0.1) == (0, 0)


@pytest.fixture
def ranked():
    """500 photos; the more confident, the more often right: 99% of the upper half, 70% of the lower."""
    rng = np.random.default_rng(6)
    confidence = rng.permutation(np.linspace(0.2, 0.99, 500))
    return confidence, rng.random(500) < np.where(confidence > 0.6, 0.99, 0.7)


def test_a_threshold_from_labels_is_applied_to_the_other_photos(ranked):
    confidence, correct = ranked
    labelled = np.arange(500) % 5 < 3
    acted = act(scored(confidence, correct), labelled, risk=0.1)
    wanted = control_error(confidence[labelled], correct[labelled], 0.1)
    assert acted.promise == wanted
    assert (acted.labels, acted.n) == (300, 200)
    kept = confidence[~labelled] >= wanted.threshold
    assert (acted.kept, acted.wrong) == (kept.sum(), (~correct[~labelled][kept]).sum())
    assert acted.cells[0] == "10%"
    assert acted.as_dict()["threshold"] == wanted.threshold


def test_labels_that_do_not_support_the_risk_promise_the_smallest_that_they_do(ranked):
    confidence, correct = ranked
    few = np.arange(500) < 60
    found = act(scored(confidence, correct), few, risk=0.01).promise
    assert found.threshold is not None
    assert found.bound <= found.risk
    assert control_error(confidence[few], correct[few], found.risk - 0.01).threshold is None
    none = act(scored(confidence, np.zeros(500, bool)), few)
    assert (none.promise.threshold, none.kept, none.verdict) == (None, 0, "within chance")
    assert none.cells == ("none", "0%", "–", "–")
    assert claims.labels_claim("cats", scored(confidence, np.zeros(500, bool)), none, few).endswith(
        "60 labelled photos support no promise."
    )


@pytest.mark.parametrize(("wrong", "says"), [(0, "kept"), (5, "within chance"), (40, "broken")])
def test_a_promise_is_judged_by_the_interval_of_the_error_rate(ranked, wrong, says):
    promise = control_error(np.linspace(0.5, 1, 400), np.ones(400, bool), 0.05)
    acted = claims.Acted(risk=0.05, labels=400, promise=promise, n=120, kept=100, wrong=wrong)
    assert acted.verdict == says
    assert acted.interval[0] <= acted.error_rate <= acted.interval[1]


def test_what_labels_buy_is_said_beside_what_the_confidence_promises(ranked):
    confidence, _ = ranked
    correct = np.arange(500) % 2 == 0
    labelled = np.arange(500) % 5 < 3
    sure = scored(np.full(500, 0.97) + 0.02 * confidence, correct)
    said = claims.labels_claim("cats", sure, act(sure, labelled), labelled)
    assert said.startswith(
        "Cats: taken at its word, CoTS's confidence promises at most 5% errors on 100% of the photos"
    )
    assert "; 50.0% of these are wrong, so the promise is" in said
    assert "so the promise is broken. 300 labelled photos promise no better than " in said
    assert said.endswith("of these are wrong, so the promise is kept.")
    few = claims.Acted(risk=0.05, labels=300, promise=act(sure, labelled).promise, n=200, kept=100, wrong=60)
    assert "60.0% [49.7, 69.7] of these are wrong, which is within chance of" in claims.labels_claim(
        "cats", sure, few, labelled
    )


@pytest.mark.parametrize(
    ("tuned", "calm", "says"),
    [
        (True, True, "CoTS uses as many as TPT, within chance: +0 points [+0, +0]."),
        (False, True, "CoTS uses the most photos, 69%. CoTS uses more than TPT: +48 points [+42, +55]."),
        (True, False, "TPT uses the most photos, 69%. CoTS uses fewer than TPT: -48 points [-55, -42]."),
    ],
)
def test_methods_are_compared_by_the_photos_that_they_let_use(tuned, calm, says):
    rank = np.random.default_rng(1).permutation(2000)
    labelled, confidence = np.arange(2000) % 2 == 0, 1 - rank / 2000
    clear, vague = rank < 1500, (rank < 500) | (rank % 5 > 0)  # right: the upper three quarters, or one
    found = {
        "TPT": scored(confidence, clear if tuned else vague),
        "CoTS": scored(confidence, clear if calm else vague),
    }
    acted = {title: act(one, labelled, risk=0.05) for title, one in found.items()}
    said = claims.used_claim(found, acted, labelled, **DRAWS)
    assert says in said
    assert said.startswith("With labels, no promise is broken, whichever confidence the threshold is for. ")


def test_shares_under_different_promises_are_not_compared(ranked):
    confidence, correct = ranked
    labelled = np.arange(500) % 5 < 3
    one = scored(confidence, correct)
    acted = {"TPT": act(one, labelled, risk=0.05), "CoTS": act(one, labelled, risk=0.1)}
    said = claims.used_claim({"TPT": one, "CoTS": one}, acted, labelled, **DRAWS)
    assert said.endswith("; the promises differ, so the shares of photos used do not compare.")


def test_broken_promises_and_unused_photos_are_named(ranked):
    confidence, correct = ranked
    labelled = np.arange(500) % 5 < 3
    one = scored(confidence, correct)
    kept = act(one, labelled, risk=0.05)
    broken = replace(kept, wrong=kept.kept)
    said = claims.used_claim({"TPT": one, "CoTS": one}, {"TPT": broken, "CoTS": kept}, labelled, **DRAWS)
    assert said.startswith("With labels, the promise of TPT is broken. TPT uses the most photos, ")
    wrong = scored(confidence, np.zeros(500, bool))
    unused = act(wrong, labelled)
    said = claims.used_claim({"TPT": wrong, "CoTS": wrong}, {"TPT": unused, "CoTS": unused}, labelled, **DRAWS)
    assert said == "With labels, no promise is broken, whichever confidence the threshold is for; no photo is used."


def test_the_threshold_alone_is_that_of_the_promise(ranked):
    confidence, correct = ranked
    for risk in (0.001, 0.05, 0.1, 0.3):
        assert lowest_threshold(confidence, correct, risk, 0.95) == control_error(confidence, correct, risk).threshold
