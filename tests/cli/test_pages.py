"""`cots demo`: the reliability diagram in the terminal. `cots serve`: accepted host names and warnings."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import tiny
from typer.testing import CliRunner

import cots
import cots.serve
from cots.cli import app
from cots.cli._pages import BINS, DIAGONAL, OVER, RIGHT, UNDER, WIDTH, _hosts, reliability_chart
from cots.evaluate import score_columns
from cots.serve import ServeSettings


@pytest.mark.parametrize(
    ("host", "further", "token", "answered"),
    [
        ("127.0.0.1", [], None, {"localhost", "127.0.0.1", "::1"}),
        ("::1", ["Photos.Example:443"], None, {"localhost", "127.0.0.1", "::1", "photos.example"}),
        ("127.0.0.1", [], "word", None),
        ("0.0.0.0", [], None, None),
        ("0.0.0.0", ["photos.example"], "word", {"localhost", "127.0.0.1", "::1", "0.0.0.0", "photos.example"}),
    ],
)
def test_accepted_host_names(host, further, token, answered):
    assert _hosts(host, further, token) == answered


def test_listening_on_the_network_without_a_token_is_warned_of(monkeypatch):
    started = []
    monkeypatch.setattr(cots.serve, "run_server", lambda app, host, port, grace_s: started.append((host, port)))
    monkeypatch.setattr("cots.backbones.load", lambda name, **options: tiny("vit"))
    result = CliRunner().invoke(app, ["serve", "--host", "0.0.0.0", "--port", "9"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "without a token" in result.stderr
    for words in (["--host", "0.0.0.0", "--token", "word"], ["--host", "::1"], []):
        result = CliRunner().invoke(app, ["serve", *words], catch_exceptions=False)
        assert "without a token" not in result.stderr
    assert started[0] == ("0.0.0.0", 9)
    assert started[-1] == ("127.0.0.1", 8000)


LIMITS = """
--max-body-mib 3 --max-pixels 400 --max-classes 7 --queue 5 --timeout 9.5 --batch-size 2 --views 6 --solver adam
--task-cache-mib 8 --token word --allow-host b.example --allow-origin https://a.example --ask 0.3
"""


def test_every_option_reaches_the_settings_of_the_server(monkeypatch, tmp_path):
    """And without options, they are those of Python."""
    made, stops = [], []
    monkeypatch.chdir(tmp_path)  # without a folder `runs`
    monkeypatch.setattr(cots.serve, "create_app", lambda backbones, settings: made.append(settings))
    monkeypatch.setattr(cots.serve, "run_server", lambda app, host, port, grace_s: stops.append(grace_s))
    monkeypatch.setattr("cots.backbones.load", lambda name, **options: tiny("vit"))
    for words in ([], [*LIMITS.split(), "--runs", str(tmp_path)]):
        assert CliRunner().invoke(app, ["serve", *words], catch_exceptions=False).exit_code == 0
    local = frozenset({"localhost", "127.0.0.1", "::1"})
    assert made[0] == ServeSettings(hosts=local)
    assert made[1] == ServeSettings(
        max_body=3 * 2**20, max_pixels=400, max_classes=7, queue=5, timeout_s=9.5, batch_size=2, views=6, solver="adam",
        task_cache_bytes=8 * 2**20, token="word", hosts=local | {"b.example"}, origins=frozenset({"https://a.example"}),
        ask=0.3, runs=tmp_path,
    )  # fmt: skip
    assert stops == [60, 9.5]


def test_a_server_whose_policy_has_no_threshold_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(cots.serve, "run_server", lambda app, host, port, grace_s: None)
    model = tiny("vit")
    monkeypatch.setattr("cots.backbones.load", lambda name, **options: model)
    cots.conformal.Policy(
        model="tiny-vit", weights_hash=model.weights_hash, classes=("cat", "car"), method="tpt", views=64, n=210,
        template="a photo of a {}.", accuracy=0.9, mean_confidence=0.9,
    ).save(tmp_path / "policy.json")  # fmt: skip
    result = CliRunner().invoke(app, ["serve", "--policy", str(tmp_path / "policy.json")], catch_exceptions=False)
    assert result.stderr.startswith("cots: The policy has no threshold, so it keeps unsure predictions.\n")


@pytest.mark.parametrize(
    ("words", "named"), [(["--runs", "/no/such/place"], "--runs"), (["--device", "cpu,cpu"], "--device")]
)
def test_options_that_cannot_be_used_are_named(words, named):
    with pytest.raises(cots.InputError, match=named):
        CliRunner().invoke(app, ["serve", *words], catch_exceptions=False)


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
