"""The demo on generated photos: what it counts, what it says, the page and the command line."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from markupsafe import escape
from support.demo import photo_sets
from support.models import CLASSES, tiny, tiny_task
from support.scripts import load_script
from typer.testing import CliRunner

import cots
from cots import cli, demo, metrics
from cots.calibrators import calibrate_batch
from cots.cli._pages import NEXT_COMMAND
from cots.evaluate import demo_page

EXAMPLES = Path(__file__).parents[1] / "examples" / "photos"
DRAWS = {"seed": 0, "resamples": 200}


@pytest.fixture(scope="module")
def result() -> demo.DemoResult:
    return demo.run_demo(photo_sets(), backbone=tiny("vit"))


def test_rows_are_the_figures_of_every_set_and_of_every_kind(result):
    assert {row["dataset"] for row in result.rows} == {"birds", "cars", demo.KNOWN, demo.UNKNOWN}
    assert [(kind.name, kind.datasets, len(kind)) for kind in result.kinds] == [
        (demo.KNOWN, ("birds",), 24), (demo.UNKNOWN, ("cars",), 24),
    ]  # fmt: skip
    assert len(result.rows) == 4 * len(demo.METHODS)
    assert {row["n"] for row in result.rows} == {24}
    assert len(result) == 48
    for row in result.rows:
        assert 0 <= row["ece"] <= 100
        for name in ("accuracy", "ece", "nll", "mean_confidence"):
            low, high = row["intervals"][name]
            assert low <= row[name] <= high


def test_json_rows_have_the_seven_documented_keys(result):
    data = json.loads(result.as_json())
    keys = ["dataset", "method", "n", "accuracy", "ece", "nll", "mean_confidence"]
    assert all(list(row) == keys for row in data["rows"])
    assert len(data["intervals"]) == len(data["rows"])
    for row, bounds, whole in zip(data["rows"], data["intervals"], result.rows, strict=True):
        assert (row["dataset"], row["method"]) == (bounds["dataset"], bounds["method"])
        assert {k: bounds[k] for k in keys[3:]} == whole["intervals"]


class OnCard(torch.Tensor):
    """A tensor of another device: NumPy cannot have it until it has been copied."""

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert a device tensor to numpy")

    def cpu(self, *args, **kwargs):
        return self.as_subclass(torch.Tensor)


def test_results_on_another_device_are_copied(result, monkeypatch):
    def away(*args, **kwargs):
        found = calibrate_batch(*args, **kwargs)
        moved = {k: getattr(found, k).as_subclass(OnCard) for k in ("probabilities", "prediction", "confidence")}
        with pytest.raises(TypeError, match="device tensor"):
            moved["probabilities"].double().numpy()
        return SimpleNamespace(**moved)

    monkeypatch.setattr("cots.adaptation.calibrate_batch", away)
    assert demo.run_demo(photo_sets(), backbone=tiny("vit")).rows == result.rows


def test_figures_match_a_run_by_hand(result):
    task, correct, confidence, loss = tiny_task("vit"), [], [], []
    for photos in photo_sets()[:1]:
        for features, label in zip(photos.features.float(), photos.labels, strict=True):
            adapted = cots.adapt("tpt", features, task)
            p = (
                cots.calibrate(adapted.logits, adapted.zero_shot_logits, method="cots", solver="adam", rows="views")
                .probabilities.double()
                .numpy()
            )
            correct.append(p.argmax() == label)
            confidence.append(p.max())
            loss.append(-np.log(p[label]))
    row = result.row("tpt+cots", demo.KNOWN)
    assert row["accuracy"] == pytest.approx(100 * np.mean(correct), abs=1e-3)
    assert row["mean_confidence"] == pytest.approx(100 * np.mean(confidence), abs=1e-2)
    assert row["nll"] == pytest.approx(np.mean(loss), abs=1e-3)
    assert row["ece"] == pytest.approx(100 * float(metrics.ece(confidence, correct)), abs=0.05)


@pytest.mark.parametrize("kind", [demo.KNOWN, demo.UNKNOWN])
def test_temperature_scaling_keeps_the_accuracy(result, kind):
    assert result.row("tpt+cots", kind)["accuracy"] == result.row("tpt", kind)["accuracy"]
    assert result.row("tpt+sals", kind)["accuracy"] == result.row("tpt", kind)["accuracy"]


def test_the_claims_are_computed_from_the_figures(result):
    for kind in result.kinds:
        rows = {method: result.row(method, kind.name) for method in demo.METHODS}
        zero, tuned, calm = rows["zeroshot"], rows["tpt"], rows["tpt+cots"]
        gap, gain, turned, confidence, left, more = kind.sentences
        assert f"{zero['mean_confidence']:.1f}% sure, {zero['accuracy']:.1f}% right" in gap
        assert f"{tuned['accuracy'] - zero['accuracy'] + 0.0:+.1f} points" in gain
        assert f"{tuned['mean_confidence']:.1f}% sure, {tuned['accuracy']:.1f}% right" in turned
        assert f"{tuned['mean_confidence'] - zero['mean_confidence']:+.1f} points" in confidence
        assert f"{calm['mean_confidence'] - calm['accuracy'] + 0.0:+.1f} points" in left
        assert f"{rows['tpt+ecots']['accuracy'] - tuned['accuracy'] + 0.0:+.1f} points" in more
    data = json.loads(result.as_json())
    assert data["summary"] == {kind.name: " ".join(kind.sentences) for kind in result.kinds}
    assert list(data["summary"]) == [demo.KNOWN, demo.UNKNOWN]


def test_the_figures_of_all_test_photos_are_those_of_the_results():
    results = (Path(__file__).parents[1] / "docs" / "results.md").read_text()
    assert "| `tpt` | 92.3 | 93.6 |" in results
    assert "| +0.96 [0.51, 1.44] |" in results
    for figure in ("3,145", "+0.96 points [0.51, 1.44]", "93.6% sure", "92.3% right"):
        assert figure in demo.ALL_TEST_PHOTOS


def test_changed_answers_are_counted(result):
    pooled = dict(result.kinds[0].outcomes)
    zero, tuned = pooled["zeroshot"], pooled["tpt"]
    surer = replace(tuned, scored=replace(tuned.scored, confidence=(1 + zero.scored.confidence) / 2))
    other = zero.prediction.copy()
    other[:3] += 1
    pooled |= {"tpt": replace(surer, prediction=zero.prediction), "tpt+cots": replace(zero, prediction=other)}
    found = demo._sentences(pooled, DRAWS)
    assert "CoTS, with 3 answers changed, takes back 100% of that" in found[3]


def test_a_random_part_plays_the_labelled_photos(result):
    labelled = demo.labelled_part(500)
    assert labelled.sum() == demo.LABELS
    assert (labelled == demo.labelled_part(500)).all()
    assert (labelled != demo.labelled_part(500, seed=1)).any()
    assert demo.labelled_part(24).sum() == 14
    for kind in result.kinds:
        assert list(kind.acted) == list(demo.ACTING)
        for method, acted in kind.acted.items():
            scored, labelled = kind.outcomes[method].scored, demo.labelled_part(24)
            assert (acted.labels, acted.n) == (14, 10)
            kept = ~labelled & (scored.confidence >= acted.promise.threshold)
            assert (acted.kept, acted.wrong) == (kept.sum(), (kept & ~scored.correct).sum())
    rows = json.loads(result.as_json())["acting"]
    assert [(row["kind"], row["method"]) for row in rows[:5]] == [
        *((demo.KNOWN, method) for method in demo.ACTING), (demo.UNKNOWN, "zeroshot"),
    ]  # fmt: skip
    assert rows[0]["risk"] == result.kinds[0].acted["zeroshot"].promise.risk


def test_the_held_out_trial_counts_the_splits_in_which_the_promise_held(result):
    held_out = load_script("benchmarks/held_out.py", "held_out")
    kind = result.kinds[0]
    acted = held_out.trial(kind, "tpt", 3)
    assert [one.labels for one in acted] == [14] * 3
    assert len({one.promise.threshold for one in acted}) > 1, "the splits differ"
    kept = [replace(acted[0], n=10, kept=8, wrong=wrong) for wrong in (0, 0, 8)]
    assert held_out.line(kind, "tpt", kept).startswith(f"| {demo.KNOWN} | TPT | {100 * acted[0].promise.risk:.0f}% |")
    assert held_out.line(kind, "tpt", kept).endswith("| 80% | 33.3% | 2 of 3 |\n")


def test_drawn_photos_are_a_seeded_part_of_every_set():
    sets = photo_sets()
    part, again, other = (demo.draw_photos(sets, 20, seed) for seed in (1, 1, 2))
    assert [len(s.labels) for s in part] == [10, 10]
    assert all(torch.equal(a.features, b.features) for a, b in zip(part, again, strict=True))
    assert not all(torch.equal(a.features, b.features) for a, b in zip(part, other, strict=True))
    whole = demo.draw_photos(sets, 1000, 0)
    assert all(torch.equal(a.features, b.features) for a, b in zip(whole, sets, strict=True))


@pytest.mark.parametrize("names", [2, 3])
def test_long_lists_of_names_come_in_even_parts(names):
    whole = photo_sets()[1]
    parts = demo.short_lists([whole], names=names)
    assert [part.name for part in parts] == [f"cars {i + 1}" for i in range(len(parts))]
    assert sum((part.classes for part in parts), ()) == whole.classes
    sizes = [len(part.classes) for part in parts]
    assert max(sizes) <= names
    assert max(sizes) - min(sizes) <= 1
    named = [part.classes[label] for part in parts for label in part.labels]
    assert sorted(named) == sorted(whole.classes[label] for label in whole.labels)
    first = whole.take(np.flatnonzero(whole.labels < sizes[0]))
    assert torch.equal(parts[0].features, first.features)
    assert parts[0].labels.tolist() == first.labels.tolist()
    (kept,) = demo.short_lists([whole], names=len(CLASSES))
    assert kept.name == "cars"
    assert torch.equal(kept.features, whole.features)


def test_the_page_stands_alone(result):
    photo = demo.Shown(
        file=EXAMPLES / "cat.jpg",
        shows="a tabby cat",
        names=("tabby cat", "lynx"),
        answers={"tpt": ("lynx", 0.987), "tpt+cots": ("lynx", 0.612)},
    )
    page = demo_page(replace(result, shown=[photo]), NEXT_COMMAND, demo.ALL_TEST_PHOTOS)
    assert page.count("<svg") == 2 * (1 + 4)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page
    for row in result.rows:
        assert f"<td>{cots.parse_method(row['method']).title}</td>" in page
    for kind in result.kinds:
        for sentence in (*kind.sentences, kind.labels, kind.used):
            assert sentence
            assert str(escape(sentence)) in page
    assert f"So far on {len(result.kinds[0])} photos. {demo.ALL_TEST_PHOTOS}" in page
    assert "<figcaption>Shows a tabby cat</figcaption>" in page
    assert 'class="ours"' not in page, "a method is not the best because of its name"
    assert page.index("Known classes") < page.index("Unknown classes")
    assert page.count('src="data:image/jpeg;base64,/9j/') == 1
    assert "98.7%" in page
    assert "61.2%" in page
    assert "--classes &#34;tabby cat" in page


def test_the_photos_of_the_page_are_answered_by_every_method():
    seen = []
    shown = demo.show_photos(tiny("vit"), progress=lambda what, count: seen.append(what))
    assert seen == ["cat", "coffee", "rocket"]
    for photo in shown:
        assert photo.file.is_file()
        assert list(photo.answers) == ["zeroshot", "tpt", "tpt+cots"]
        assert photo.answers["tpt"][0] == photo.answers["tpt+cots"][0]
        assert all(answer in demo.NAMES and 0 < confidence <= 1 for answer, confidence in photo.answers.values())


@pytest.fixture
def ready(result, monkeypatch):
    """The command with its results computed already."""
    monkeypatch.setattr(demo, "read_photos", photo_sets)
    monkeypatch.setattr(demo, "show_photos", lambda backbone, progress: [])
    monkeypatch.setattr(demo, "run_demo", lambda photos, **options: result)
    monkeypatch.setattr("cots.backbones.load", lambda name: tiny("vit"))


def test_the_command_prints_one_table_or_one_object(ready, result, monkeypatch, tmp_path):
    runner = CliRunner()
    plain = runner.invoke(cli.app, ["demo", "--out", str(tmp_path / "a.html")])
    assert plain.exit_code == 0, plain.output
    rows = [line for line in plain.output.splitlines() if re.match(r" (Zero-shot|TPT[^,]*?)  +\d", line)]
    assert len(rows) == 2 * (len(demo.METHODS) + len(demo.ACTING))
    assert all(len(line) <= 80 for line in plain.output.splitlines() if "cots predict" not in line)
    said = " ".join(plain.output.split())
    for kind in result.kinds:
        assert f"{kind.name.capitalize()}, 24 photos" in said
        assert " ".join(kind.sentences) in said
        assert f"{kind.labels} {kind.used}" in said
    assert said.index(demo.ALL_TEST_PHOTOS) < said.index("Unknown classes")
    assert plain.output.count("│") >= 3
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    monkeypatch.setattr("cots.evaluate.demo_page", lambda *given: "")
    told = runner.invoke(cli.app, ["demo", "--json", "--out", str(tmp_path / "b.html")])
    data = json.loads(told.stdout)
    assert len(data["rows"]) == len(result.rows)
    assert data["model"] == "tiny-vit"


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_waiting_threads_sleep_unless_the_environment_says_otherwise(given, ready, monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr("cots.evaluate.demo_page", lambda *given: "")  # drawn by the tests of the page
    assert CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path / "a.html")]).exit_code == 0
    assert os.environ["OMP_WAIT_POLICY"] == (given or "PASSIVE")


def test_all_runs_every_method(ready, result, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(demo, "run_demo", lambda photos, **options: asked.append((photos, options)) or result)
    runner = CliRunner()
    monkeypatch.setattr(demo, "QUICK", 12)
    monkeypatch.setattr("cots.evaluate.demo_page", lambda *given: "")  # drawn by the tests of the page
    for options in ([], ["--quick"], ["--all"]):
        assert runner.invoke(cli.app, ["demo", *options, "--out", str(tmp_path / "a.html")]).exit_code == 0
    assert [options["methods"] for _, options in asked] == [demo.METHODS, demo.METHODS, demo.ALL_METHODS]
    assert set(demo.METHODS) < set(demo.ALL_METHODS)
    assert [sum(len(s.labels) for s in photos) for photos, _ in asked] == [48, 12, 48]


def test_a_page_that_cannot_be_written_costs_no_figure(ready, result, monkeypatch, capsys, tmp_path):
    def full(self, *args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sys.argv", ["cots", "demo", "--json", "--out", str(tmp_path / "page.html")])
    monkeypatch.setattr("cots.evaluate.demo_page", lambda *given: "")  # drawn by the tests of the page
    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    told = capsys.readouterr()
    assert stopped.value.code == 1
    assert len(json.loads(told.out)["rows"]) == len(result.rows)
    assert "page.html: No space left on device. Choose another --out." in " ".join(told.err.split())


@pytest.mark.parametrize("place", [("nowhere", "page.html"), (".",)])
def test_errors_on_the_command_line_are_one_line(place, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["cots", "demo", "--out", str(tmp_path.joinpath(*place))])
    monkeypatch.setattr(demo, "read_photos", photo_sets)
    monkeypatch.setattr(demo, "run_demo", lambda photos, **options: 1 / 0)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith("cots: ")
    assert str(tmp_path.joinpath(*place[:1])) in told.replace("\n", "")
    assert "--out" in told


def test_photos_can_be_taken_by_row():
    photos = photo_sets()[0]
    part = photos.take([3, 1])
    assert torch.equal(part.features, photos.features[[3, 1]])
    assert part.labels.tolist() == photos.labels[[3, 1]].tolist()
