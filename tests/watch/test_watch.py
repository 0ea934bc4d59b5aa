"""The monitor: when it raises alarms, what they say, its state as a file, refusals, and the words."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

import cots
from cots.watch import SIGNALS, WINDOW, Watch, lines, reference_of
from cots.watch._predictions import KEPT
from cots.watch._signal import bet


def photo(confidence: float, agreement: float = 0.8, in_list: float = 0.9, **more) -> cots.Prediction:
    nothing = {"label": "a", "probabilities": np.array([confidence]), "classes": ("a",)}
    return cots.Prediction(confidence=confidence, agreement=agreement, in_list=in_list, **nothing, **more)


def draw(rng: np.random.Generator, n: int, shift: float = 0.0) -> dict[str, np.ndarray]:
    agreement = rng.binomial(64, 0.8, n) / 64  # with ties
    return {"confidence": rng.beta(4, 1, n) - shift, "agreement": agreement, "in_list": rng.beta(9, 1, n)}


def feed(watch: Watch, values: dict[str, np.ndarray]) -> None:
    for row in zip(*values.values(), strict=True):
        watch.add(dict(zip(values, row, strict=True)), f"{watch.seen().n + 1}.jpg")


def test_a_change_is_found_dated_and_shown_and_no_change_is_not():
    rng = np.random.default_rng(1)
    watch = Watch(reference=draw(rng, 500))
    feed(watch, draw(rng, 600))
    assert (watch.alarms, watch.seen().reference) == ((), 500)
    assert watch.seen().evidence < 1
    changed = draw(rng, 100, shift=0.2)
    feed(watch, changed)
    (alarm,) = watch.alarms
    assert (alarm.signal, alarm.higher) == ("confidence", False)
    assert abs(alarm.since - 601) < 20
    assert 610 < alarm.at < 680
    lowest = np.argsort(changed["confidence"][: alarm.at - 600])[:3] + 601
    assert {f"{n}.jpg" for n in lowest} <= {one.name for one in alarm.extremes}
    assert watch.seen().reference == 0, "what follows is the next reference"


def test_without_a_reference_the_first_photos_are_it():
    rng = np.random.default_rng(2)
    watch = Watch()
    feed(watch, draw(rng, WINDOW - 1))
    assert watch.seen().reference == 0
    feed(watch, draw(rng, 1))
    assert watch.seen().reference == WINDOW
    feed(watch, draw(rng, 100, shift=0.3))
    assert watch.alarms[0].since > WINDOW - 10


def test_each_start_spends_its_part_of_the_false_alarms():
    """Values that grow all the time: alarm i needs the capital J / (0.01 * 6 / (pi i)^2)."""
    watch = Watch(["x"], reference={"x": [0.0]}, false_alarms=0.01)
    for value in range(1000):
        watch.add({"x": value})
    first, second = watch.alarms[:2]
    # A start after an alarm collects its reference first.
    assert second.at - first.at > WINDOW
    growth = np.log(1.5)
    for number, bets in ((1, first.at), (2, second.at - first.at - WINDOW)):
        needed = np.log(np.pi**2 * number**2 / 6 / 0.01)
        assert needed / growth < bets < needed / growth + 12
    assert watch.seen().alarmed == len(watch.alarms)


def test_the_evidence_is_that_of_the_definition():
    """Bets after a reference of 50 values, numbered from 1, against p-values counted in a list."""
    rng = np.random.default_rng(5)
    reference, values = (rng.binomial(64, p, n) / 64 for p, n in ((0.5, 50), (0.55, 30)))  # with ties
    watch = Watch(["x"], {"x": reference.tolist()}, seed=9, false_alarms=0.001)
    capital, seen, found = np.zeros(3), reference.tolist(), []
    for n, value in enumerate(values.tolist(), start=1):
        watch.add({"x": value})
        seen.append(value)
        smaller, equal = sum(one < value for one in seen), seen.count(value)
        p = (smaller + np.random.default_rng((9, n)).random() * equal) / len(seen)
        capital = bet(capital, p, n)
        evidence = max(0.0, np.log(capital.sum()) / np.log(np.pi**2 / 6 / 0.001))
        found.append(evidence)
        assert watch.seen().evidence == pytest.approx(evidence, rel=1e-9)
    assert 0.1 < max(found) < 1


def test_equal_values_raise_no_alarm():
    watch = Watch(["x"], reference={"x": [0.5] * 10})
    for _ in range(3000):
        watch.add({"x": 0.5})
    assert not watch.alarms


def test_a_saved_monitor_continues_as_if_it_had_never_stopped(tmp_path):
    rng = np.random.default_rng(3)
    before, after = draw(rng, 300), draw(rng, 120, shift=0.15)
    whole, parts = Watch(seed=7, about="x"), Watch(seed=7, about="x")
    feed(whole, before)
    feed(parts, before)
    parts.save(tmp_path / "watch.json")
    parts = Watch.load(tmp_path / "watch.json", about="x")
    feed(whole, after)
    feed(parts, after)
    assert parts.to_dict() == whole.to_dict()
    assert parts.alarms
    assert Watch.from_dict(json.loads(json.dumps(whole.to_dict()))).to_dict() == whole.to_dict()
    with pytest.raises(cots.InputError, match="with another model, method, class list or policy"):
        Watch.load(tmp_path / "watch.json", about="y")


def test_the_state_does_not_grow_with_the_stream(tmp_path):
    rng = np.random.default_rng(4)
    watch = Watch()
    feed(watch, draw(rng, 3000))
    watch.save(tmp_path / "watch.json")
    assert (tmp_path / "watch.json").stat().st_size < 100_000


def test_damaged_and_foreign_files_are_refused(tmp_path):
    file = tmp_path / "watch.json"
    Watch().save(file)
    sound = file.read_bytes()
    for at in range(0, len(sound), 37):
        file.write_bytes(sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :])
        with pytest.raises(cots.CotsError, match=r"watch\.json (is damaged|is not the state)"):
            Watch.load(file)
    for content in ({"kind": "cots policy 1"}, {**Watch().to_dict(), "signals": ["a"]}, {"kind": "cots watch 1"}):
        file.write_text(json.dumps(content))
        with pytest.raises(cots.InputError, match=r"watch\.json is not the state of a monitor"):
            Watch.load(file)
    with pytest.raises(cots.InputError, match="is not the state of a monitor"):
        Watch.load(tmp_path / "none.json")


def test_predictions_of_online_methods_and_bad_values_are_refused():
    watch = Watch()
    with pytest.raises(cots.InputError, match=r"tda\+cots cannot be watched: it is an online method"):
        watch.add(photo(0.5, method="tda+cots"))
    watch.add(photo(0.5, method="tpt+cots"))
    watch.add(photo(float("nan"), error="not read"))
    assert watch.seen().n == 1
    with pytest.raises(cots.InputError, match="'in_list' is missing"):
        watch.add({"confidence": 0.5, "agreement": 0.5})
    with pytest.raises(cots.InputError, match="must be finite"):
        watch.add({"confidence": float("nan"), "agreement": 0.5, "in_list": 0.5})
    for reference in ({"x": []}, {"x": [np.nan]}, {"y": [1]}):
        with pytest.raises(cots.InputError, match="same number of finite values"):
            Watch(["x"], reference)
    with pytest.raises(cots.InputError, match="different names"):
        Watch(["x", "x"])
    with pytest.raises(cots.InputError, match="false_alarms must lie between 0 and 1"):
        Watch(false_alarms=0)


def test_predictions_without_agreement_are_watched_without_it():
    single = [photo(0.9 - i % 9 / 100, agreement=float("nan")) for i in range(300)]
    assert sorted(reference_of(single)) == ["confidence", "in_list"]
    watch = Watch()
    for one in single:
        watch.add(one)
    assert watch.seen().reference == WINDOW
    assert np.isnan(watch.seen().means["agreement"])
    assert "views" not in lines(watch.seen())[0]
    assert Watch.from_dict(json.loads(json.dumps(watch.to_dict()))).seen().n == 300


def test_from_several_threads():
    watch = Watch()
    assert np.isnan(watch.seen().means["confidence"])
    threads = [threading.Thread(target=lambda: [watch.add(photo(0.5)) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (watch.seen().n, watch.alarms) == (800, ())


def test_a_reference_is_a_random_sample():
    values = np.random.default_rng(0).uniform(size=3000)
    many = [photo(value, agreement=value / 2) for value in values]
    kept = reference_of([*many, photo(0.5, error="not read")])
    assert {name: len(column) for name, column in kept.items()} == dict.fromkeys(SIGNALS, KEPT)
    assert set(kept["confidence"]) <= set(values)
    assert len(set(kept["confidence"])) == KEPT
    assert kept["agreement"] == [value / 2 for value in kept["confidence"]], "the signals of the same photos"
    assert abs(np.mean(kept["confidence"]) - values.mean()) < 0.04
    with pytest.raises(cots.InputError, match="at least one prediction without an error"):
        reference_of([photo(0.5, error="not read")])


def test_what_is_said():
    watch = Watch()
    for i in range(10):
        watch.add(photo(0.9 + i / 1000))
    said = lines(watch.seen())
    assert said[0].startswith("10 photos: mean confidence 90.5%, 80.0% of the views agree with the answer, 0.0% of the")
    assert said[1] == "The next 200 photos are the reference; changes are found after them."
    assert said[-1].startswith(
        "A false alarm ever, with probability at most 1%. It shows when to look at the photos, not"
    )
    for i in range(250):
        watch.add(photo(0.9 + i % 10 / 1000))
    assert lines(watch.seen())[1] == "No change against the reference of 200 photos."
    for i in range(40):
        watch.add(photo(0.2 + i / 1000), f"{i}.jpg")
    said = lines(watch.seen())
    assert said[0].startswith("the last 200 of 300 photos: mean confidence")
    assert said[1].startswith("Changed: confidence is lower since about photo 26")
    assert "look at 0.jpg, 1.jpg, 2.jpg, 3.jpg, 4.jpg" in said[1]
