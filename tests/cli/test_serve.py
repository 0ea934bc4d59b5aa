"""`cots serve`: which host names it accepts and what it warns of."""

from __future__ import annotations

import pytest
from support.models import tiny
from typer.testing import CliRunner

import cots
import cots.serve
from cots.cli import app
from cots.cli._serve import _hosts


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


@pytest.mark.parametrize(
    ("words", "named"), [(["--runs", "/no/such/place"], "--runs"), (["--device", "cpu,cpu"], "--device")]
)
def test_options_that_cannot_be_used_are_named(words, named):
    with pytest.raises(cots.InputError, match=named):
        CliRunner().invoke(app, ["serve", *words], catch_exceptions=False)
