"""The container file, read: its user, what it copies, and the check of its health."""

from __future__ import annotations

import re
from pathlib import Path

from typer.main import get_command

from cots.cli import app

ROOT = Path(__file__).parents[1]
LINES = re.sub(r"\\\n\s*", "", (ROOT / "Containerfile").read_text()).splitlines()
STEPS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]


def of(kind: str) -> list[str]:
    return [rest for step, rest in STEPS if step == kind]


def test_it_runs_as_a_user_without_rights():
    steps = [step for step, _ in STEPS]
    assert of("USER") == ["10001:10001"]
    assert steps.index("USER") < steps.index("ENTRYPOINT")
    assert max(place for place, step in enumerate(steps) if step == "RUN") < steps.index("USER")
    assert not any("--privileged" in rest or "sudo" in rest or "chmod 777" in rest for _, rest in STEPS)


def test_what_it_copies_exists_and_is_not_ignored():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for rest in of("COPY") for source in rest.split()[:-1]}
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)
    assert not of("ADD")
    assert any("--constraint constraints.txt" in rest for rest in of("RUN"))


def test_it_serves_where_its_health_is_checked():
    (entry,) = of("ENTRYPOINT")
    words = re.findall(r'"([^"]+)"', entry)
    assert words[:2] == ["cots", "serve"]
    options = {option for parameter in get_command(app).commands["serve"].params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
    (health,) = of("HEALTHCHECK")
    assert f"127.0.0.1:{of('EXPOSE')[0]}/readyz" in health
