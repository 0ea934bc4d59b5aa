"""The documentation: links and files exist, commands and names are current, pages keep to their length."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from support.models import CLASSES, tiny
from typer.testing import CliRunner

import cots
from cots.adapters import ADAPTERS
from cots.cli import app
from cots.metrics import METRICS

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS]
LINKED = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "tools/mini/README.md",
    ROOT / "examples/README.md",
]


def ids(pages: list[Path]) -> list[str]:
    return [str(p.relative_to(ROOT)) for p in pages]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def words(page: Path) -> int:
    return len(page.read_text().split())


def test_pages_are_short():
    assert {p.name: words(p) for p in DOCS if words(p) > 1500} == {}
    assert sum(map(words, PAGES)) <= 17_000


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", LINKED, ids=ids(LINKED))
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        file, _, heading = target.partition("#")
        found = (page.parent / file) if file else page
        assert found.exists(), target
        assert not heading or heading in anchors(found), target


def test_the_site_has_every_page():
    listed = re.findall(r"^ +- .*: (\w[\w-]*\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == [page.name for page in DOCS]


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_files_named_in_the_text_exist(page):
    """Paths of the repository, from its root or from the package."""
    roots = (ROOT, ROOT / "docs", ROOT / "src", ROOT / "src/cots")
    named = re.findall(r"(?<![\w/.])((?:\w+/)+_?\w+\.(?:py|json|svg))\b", page.read_text())
    missing = [n for n in named if not any((root / n).exists() for root in roots)]
    assert not missing


def test_figures_and_measurements_are_cited():
    text = "".join(p.read_text() for p in PAGES)
    kept = [*(ROOT / "docs/figures").iterdir(), *(ROOT / "benchmarks/results").iterdir()]
    assert [f.name for f in kept if f.name not in text] == []


def test_the_api_page_has_every_public_name():
    described = set(re.findall(r"^::: cots\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE))
    assert described == {*cots.__all__, "conformal", "evaluate", "export", "paper"}


def commands(page: Path) -> list[list[str]]:
    """Every `cots ...` of the page's shell blocks, as words."""
    found = []
    for block in blocks(page, "sh"):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            text = re.sub(r"\s#.*$", "", line)
            for part in re.split(r"&&|;|\|", text):
                parts = shlex.split(part) if part.count('"') % 2 == 0 and part.count("'") % 2 == 0 else part.split()
                if "cots" in parts and parts[0] not in ("pip", "curl"):
                    found.append(parts[parts.index("cots") + 1 :])
    return found


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_commands_and_options_exist(page):
    root = typer.main.get_command(app)
    for parts in commands(page):
        command, rest = root, list(parts)
        while rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0)]
        assert command is not root, parts
        options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        assert [w for w in rest if re.match(r"--?[a-z]", w) and w.split("=")[0] not in options] == [], parts


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_python_is_valid_and_uses_public_names(page):
    for block in blocks(page, "python"):
        compile(block, page.name, "exec")
        for name in re.findall(r"\bcots((?:\.[A-Za-z]\w*)+)", re.sub(r"^\s*(from|import) .*$", "", block, flags=re.M)):
            found = cots
            for part in name[1:].split("."):
                found = getattr(found, part)
        for line in re.findall(r"^(?:from|import) [^.].*$", block, re.MULTILINE):
            exec(line, {})


def test_method_tables_are_generated():
    """Regenerate with `cots ls methods --markdown`."""
    printed = CliRunner().invoke(app, ["ls", "methods", "--markdown"]).output.strip()
    found = re.search(r"<!-- methods -->\n(.*?)<!-- /methods -->", (ROOT / "docs/methods.md").read_text(), re.DOTALL)
    assert found
    assert found[1].strip() == printed


def run_block(page: str, containing: str, **names: object) -> dict[str, object]:
    """Run the Python block of a page that contains a text."""
    block = next(b for b in blocks(ROOT / page, "python") if containing in b)
    names = {"cots": cots, **names}
    exec(compile(block, page, "exec"), names)
    return names


@pytest.fixture
def features():
    return torch.nn.functional.normalize(torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(0)), dim=-1)


def test_added_methods_and_metrics_work(features):
    """The files of CONTRIBUTING.md and docs/design.md and README's adapter, run as if they were part of the package."""
    task = cots.Task(tiny("vit"), CLASSES)
    try:
        run_block("CONTRIBUTING.md", '"mine"', __name__="cots.adapters.mine", __package__="cots.adapters")
        spread = cots.adapt("mine", features, task)
        ADAPTERS.unregister("mine")
        run_block("docs/design.md", '"mine"', __name__="cots.adapters.mine", __package__="cots.adapters")
        adapted = cots.adapt("mine", features, task)
        assert not torch.equal(adapted.logits, adapted.zero_shot_logits)
        assert torch.equal(adapted.logits, spread.logits)
        assert (ADAPTERS.info("mine").title, ADAPTERS.settings("mine")["weight"]) == ("Mine", 50.0)
        assert "tda(mine)" in ADAPTERS
        run_block("docs/design.md", '"sharper"', __name__="cots.adapters.sharper", __package__="cots.adapters")
        adapted = cots.adapt("sharper", features, task, factor=2.0)
        torch.testing.assert_close(adapted.logits, 2.0 * adapted.zero_shot_logits)
        ADAPTERS.unregister("mine")
        run_block("README.md", '"mine"')
        adapted = cots.adapt("mine", features, task, strength=0.5)
        torch.testing.assert_close(adapted.logits, 1.5 * adapted.zero_shot_logits)
        run_block("docs/design.md", '"error"', __name__="cots.metrics.error", __package__="cots.metrics")
        assert METRICS.info("error").measure({"correct": np.array([True, False])}).value == 0.5
    finally:
        for name in ("mine", "tda(mine)", "sharper"):
            ADAPTERS.unregister(name)
        METRICS.unregister("error")


def test_calibration_needs_logits_only():
    adapted, zero_shot = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(0))
    given = {"my_adapted_logits": adapted, "my_zero_shot_logits": zero_shot}
    assert run_block("README.md", "my_adapted_logits", **given)["result"].probabilities.shape == (4, 5)
    text = torch.nn.functional.normalize(torch.randn(5, 12, generator=torch.Generator().manual_seed(1)), dim=-1)
    given = {"adapted_logits": adapted, "zero_shot_logits": zero_shot, "text_features": text}
    assert run_block("docs/calibration.md", "mean_similarity", **given)["result"].tau.shape == (4,)
