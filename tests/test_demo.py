"""The demo on generated photos: what it counts, what it says, the page and the command line."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from support.models import CLASSES, random_views, tiny, tiny_task
from typer.testing import CliRunner

import cots
from cots import cli, demo, metrics
from cots.cli._demo import NEXT_COMMAND, _table
from cots.evaluate import demo_page


def photo_sets() -> list[demo.PhotoSet]:
    task = tiny_task("vit")
    sets = []
    for i, name in enumerate(("birds", "cars")):
        features = random_views(task, samples=24, views=12, seed=i)
        labels = (features[:, 0] @ task.text_features.T).argmax(dim=1).numpy()
        labels[::4] = (labels[::4] + 1) % len(CLASSES)
        sets.append(demo.PhotoSet(name=name, classes=tuple(CLASSES), labels=labels, features=features.half()))
    return sets


@pytest.fixture(scope="module")
def result() -> demo.DemoResult:
    return demo.run_demo(photos=photo_sets(), backbone=tiny("vit"))


def test_rows_are_the_figures_of_every_set_and_of_all(result):
    assert {row["dataset"] for row in result.rows} == {"birds", "cars", demo.POOLED}
    assert len(result.rows) == 3 * len(demo.METHODS)
    assert {row["n"] for row in result.rows} == {24, 48}
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
        found = cots.calibrate(*args, **kwargs)
        moved = {k: getattr(found, k).as_subclass(OnCard) for k in ("probabilities", "prediction", "confidence")}
        with pytest.raises(TypeError, match="device tensor"):
            moved["probabilities"].double().numpy()
        return SimpleNamespace(**moved)

    monkeypatch.setattr("cots.pipeline.calibrate", away)
    assert demo.run_demo(photos=photo_sets(), backbone=tiny("vit")).rows == result.rows


def test_figures_match_a_run_by_hand(result):
    task, correct, confidence, loss = tiny_task("vit"), [], [], []
    for photos in photo_sets():
        for features, label in zip(photos.features.float(), photos.labels, strict=True):
            adapted = cots.adapt("otpt", features, task)
            p = (
                cots.calibrate(adapted.logits, adapted.zero_shot_logits, method="cots", rows="views")
                .probabilities.double()
                .numpy()
            )
            correct.append(p.argmax() == label)
            confidence.append(p.max())
            loss.append(-np.log(p[label]))
    row = result.row("otpt+cots")
    assert row["accuracy"] == pytest.approx(100 * np.mean(correct), abs=1e-3)
    assert row["mean_confidence"] == pytest.approx(100 * np.mean(confidence), abs=1e-2)
    assert row["nll"] == pytest.approx(np.mean(loss), abs=1e-3)
    assert row["ece"] == pytest.approx(100 * float(metrics.ece(confidence, correct)), abs=0.05)


def test_temperature_scaling_keeps_the_accuracy(result):
    for base in ("tpt", "ctpt", "otpt", "atpt", "soc"):
        assert result.row(f"{base}+cots")["accuracy"] == result.row(base)["accuracy"]
    assert result.row("tpt+cor")["mean_confidence"] == pytest.approx(
        result.row("zeroshot")["mean_confidence"], abs=1e-3
    )


def test_the_summary_is_computed_from_the_figures(result):
    first, second = demo.summary(result)
    zero, tpt, cots_row = (result.row(m) for m in ("zeroshot", "tpt", "tpt+cots"))
    assert f"NLL {zero['nll']:.3f} to {tpt['nll']:.3f}" in first
    assert f"ECE {zero['ece']:.1f}, {tpt['ece']:.1f}, {cots_row['ece']:.1f}" in second
    gap = tpt["mean_confidence"] - tpt["accuracy"]
    assert f"it is {abs(gap):.1f} points {'over' if gap > 0 else 'under'}-confident" in first
    swap = {"zeroshot": "tpt", "tpt": "zeroshot"}
    turned = demo.DemoResult(
        rows=[{**row, "method": swap.get(row["method"], row["method"])} for row in result.rows],
        outcomes=result.outcomes, model="x", weights_hash="0", alpha=result.alpha, noise_floor=1.0, noise_high=2.0,
    )  # fmt: skip
    word = "raised" if tpt["mean_confidence"] > zero["mean_confidence"] else "lowered"
    other = "lowered" if word == "raised" else "raised"
    assert f"(TPT) {word} the mean confidence" in first
    assert f"(TPT) {other} the mean confidence" in demo.summary(turned)[0]


def test_the_summary_counts_predictions_that_cots_changes(result):
    assert "CoTS kept every prediction of TPT" in demo.summary(result)[1]
    at = next(i for i, o in enumerate(result.outcomes) if (o.method, o.dataset) == ("tpt+cots", demo.POOLED))
    other = result.outcomes[at].prediction.copy()
    other[:3] += 1
    outcomes = [replace(o, prediction=other) if i == at else o for i, o in enumerate(result.outcomes)]
    assert "CoTS changed 3 predictions of TPT" in demo.summary(replace(result, outcomes=outcomes))[1]


def test_the_summary_says_of_which_the_ece_is_above_chance(result):
    highest = max(result.row(m)["ece"] for m in ("zeroshot", "tpt", "tpt+cots", "tpt+ecots"))
    lowest = min(result.row(m)["ece"] for m in ("zeroshot", "tpt", "tpt+cots", "tpt+ecots"))
    assert "all within what chance" in demo.summary(replace(result, noise_high=highest))[1]
    assert "order, only " in demo.summary(replace(result, noise_high=(lowest + highest) / 2))[1]
    assert "order, all above what chance" in demo.summary(replace(result, noise_high=lowest - 0.01))[1]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (91.26, 91.34, "left the mean confidence at 91.3%"),
        (91.24, 91.26, "raised the mean confidence from 91.2% to 91.3%"),
        (91.36, 91.24, "lowered the mean confidence from 91.4% to 91.2%"),
    ],
)
def test_a_move_is_told_where_the_shown_figures_differ(old, new, told):
    assert demo._moved({"mean_confidence": old}, {"mean_confidence": new}, "mean_confidence") == told


def test_tables_of_a_few_photos_fit_80_columns(result, capsys):
    bounds = {"accuracy": [79.2, 100.0], "ece": [11.7, 20.9], "nll": [0.02, 0.6], "mean_confidence": [89.4, 98.3]}
    figures = {"accuracy": 100.0, "ece": 14.2, "nll": 0.28, "mean_confidence": 94.2, "intervals": bounds}
    few = replace(result, rows=[{**row, **figures} for row in result.rows])
    Console(width=80).print(_table(few, demo.POOLED))
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if any(line.strip().startswith(m) for m in demo.METHODS)]
    assert len(rows) == len(demo.METHODS)
    assert all("79.2–100" in line and "0.02–0.60" in line for line in rows)


def test_quick_takes_a_seeded_part(monkeypatch):
    monkeypatch.setattr(demo, "QUICK", 5)
    small = demo.run_demo(photos=photo_sets(), backbone=tiny("vit"), quick=True, seed=1, methods=("zeroshot", "tpt"))
    again = demo.run_demo(photos=photo_sets(), backbone=tiny("vit"), quick=True, seed=1, methods=("zeroshot", "tpt"))
    assert small.rows == again.rows
    assert {row["n"] for row in small.rows} == {5, 10}


def test_the_page_stands_alone(result):
    page = demo_page(result, demo.summary(result), NEXT_COMMAND)
    assert page.count("<svg") == 4
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page
    for row in result.rows:
        assert f"<td>{row['method']}</td>" in page
    assert "birds" in page
    assert "--classes &#34;tabby cat" in page


def test_the_command_prints_tables_or_one_object(result, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "read_photos", photo_sets)
    monkeypatch.setattr(demo, "run_demo", lambda **options: result)
    runner = CliRunner()
    plain = runner.invoke(cli.app, ["demo", "--out", str(tmp_path / "a.html")])
    assert plain.exit_code == 0, plain.output
    assert "tpt+ecots" in plain.output
    assert "all photos: 48 photos" in plain.output
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    told = runner.invoke(cli.app, ["demo", "--json", "--out", str(tmp_path / "b.html")])
    data = json.loads(told.stdout)
    assert len(data["rows"]) == len(result.rows)
    assert data["model"] == "tiny-vit"


def test_a_page_that_cannot_be_written_costs_no_figure(result, monkeypatch, capsys, tmp_path):
    def full(self, *args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(demo, "read_photos", photo_sets)
    monkeypatch.setattr(demo, "run_demo", lambda **options: result)
    monkeypatch.setattr("sys.argv", ["cots", "demo", "--json", "--out", str(tmp_path / "page.html")])
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
    monkeypatch.setattr(demo, "run_demo", lambda **options: 1 / 0)
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
