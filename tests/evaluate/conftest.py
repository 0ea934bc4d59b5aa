"""Pages without their figures, which take most of the time."""

import pytest


@pytest.fixture
def undrawn(monkeypatch):
    for name in ("plots.risk_figure", "plots.overview_figure", "_write.single_panel", "_write.inline_svg"):
        monkeypatch.setattr(f"cots.evaluate.{name}", lambda *given, **options: "<svg></svg>")
