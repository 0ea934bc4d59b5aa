"""README: every command and every block of Python is run as printed, in the order of the page.

Commands run in this process. The outputs that the README prints are those of kept predictions of `mini` for real photos
(tools/readme.py). For the other commands, a small random model with plain crops as views stands in for `mini` and CLIP,
except where a photo is classified for the first time, and the demo has a few photos of its own.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from support.demo import photo_sets
from support.layouts import write_split
from support.models import mini, tiny
from support.scripts import load_script
from typer.testing import CliRunner

import cots.bench
import cots.classifier
import cots.demo
import cots.serve
from cots.adapters import ADAPTERS
from cots.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ACTING = (ROOT / "docs/acting.md").read_text()
NOT_HERE = {"pip install uv", "uv run pytest"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def lines() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines()]


def commands() -> list[str]:
    found = [part.strip() for line in lines() for part in re.sub(r"\s#.*$", "", line).split("&&")]
    return [command for command in found if command not in NOT_HERE]


def use_model(patch: pytest.MonkeyPatch, backbone: cots.Backbone) -> None:
    """Replace `load` wherever it was imported to."""
    original = cots.load
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "cots"]
    for module in modules:
        if vars(module).get("load") is original:
            patch.setattr(module, "load", lambda name="mini", **options: backbone)


def use_small_model(patch: pytest.MonkeyPatch) -> None:
    use_model(patch, tiny("vit"))
    settings = cots.ViewSettings.from_preprocess
    crops = {"augmix": False}  # which takes most of the time of small photos
    patch.setattr(cots.ViewSettings, "from_preprocess", lambda cfg, **changes: settings(cfg, **changes | crops))


def save_svg_only(patch: pytest.MonkeyPatch) -> None:
    """Tests of reports check the other formats; embedding fonts in a PDF is slow."""
    from matplotlib.figure import Figure

    save = Figure.savefig

    def save_svg(figure: Figure, file: object, **options: object) -> None:
        if isinstance(file, Path) and file.suffix != ".svg":
            file.touch()
        else:
            save(figure, file, **options)

    patch.setattr(Figure, "savefig", save_svg)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A folder with the repository's examples, datasets in CoOp's layout as DATA, and few photos for the demo."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "examples").symlink_to(ROOT / "examples")
    write_split(folder / "DATA", "eurosat", per_class=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cots.demo, "read_photos", photo_sets)
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def printed(clone):
    """What each command prints, by command."""
    found: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cots.serve, "run_server", lambda app, host, port, grace_s: found.update(app=app))
        save_svg_only(patch)
        for command in commands():
            words = shlex.split(command)
            assert words[:3] == ["uv", "run", "cots"], command
            with pytest.MonkeyPatch.context() as model:
                if words[3:5] == ["predict", "examples/photos/cat.jpg"]:
                    use_model(model, mini())
                else:
                    use_small_model(model)
                result = CliRunner().invoke(app, words[3:], catch_exceptions=False)
            assert result.exit_code == 0, (command, result.output)
            found[command] = result.stdout
    return found


@pytest.fixture(scope="module")
def tool():
    return load_script("tools/readme.py", "readme_tool")


def output(printed, words: str) -> str:
    return next(text for command, text in printed.items() if command.startswith(f"uv run cots {words}"))


def test_no_block_of_the_readme_is_left_out(tool):
    """What these tests run is all there is: no block has another language, no line is skipped."""
    fences = re.findall(r"^\s*```(.*)$", README, re.MULTILINE)
    assert set(fences[1::2]) == {""}
    languages = Counter(fences[::2])
    assert set(languages) == {"sh", "console", "python"}
    for language, count in languages.items():
        assert len(blocks(language)) == count
    assert len(list(tool.PRINTED.finditer(README))) == languages["console"] == 6
    started = [line for line in lines() if re.match(r"(uv run|pip install uv)( |$)", line)]
    assert started == lines()
    assert len(commands()) >= 5


def test_every_command_runs_as_printed(printed, clone):
    assert set(printed) == {*commands(), "app"}
    assert '"label": "tabby cat"' in output(printed, "predict examples/photos/cat.jpg")
    assert TestClient(printed["app"], base_url="http://127.0.0.1:8000").get("/healthz").status_code == 200
    assert (clone / "cots-demo.html").stat().st_size > 10_000
    report = clone / "runs/table-fine-grained/report"
    assert (report / "report.html").exists()
    assert {file.suffix for file in report.rglob("*.*")} >= {".html", ".md", ".tex", ".csv", ".svg"}, "as the line says"
    assert "tpt+ecots" in output(printed, "paper run")


@pytest.mark.parametrize(("page", "count"), [(README, 6), (ACTING, 1)], ids=["README.md", "acting.md"])
def test_commands_print_what_the_page_says(page, count, tool, tmp_path):
    example = tool.Example(tmp_path)
    examples = list(tool.PRINTED.finditer(page))
    assert len(examples) == count
    for found in examples:
        assert example.run(found["command"]) == found["output"]


def test_the_names_of_methods_are_current(tool):
    assert tool.names() in README


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 220


def test_every_python_block_runs_as_printed(clone, monkeypatch, capsys):
    use_small_model(monkeypatch)
    adapted, zero_shot = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(0))
    names = {"my_adapted_logits": adapted, "my_zero_shot_logits": zero_shot}
    try:
        for block in blocks("python"):
            exec(compile(block, "README.md", "exec"), names)
    finally:
        ADAPTERS.unregister("mine")
    assert names["result"].probabilities.shape == (4, 5)
    assert names["result"].tau.shape == (4,)
    label, confidence = capsys.readouterr().out.splitlines()[0].rsplit(" ", 1)
    assert label in names["names"]
    assert 1 / 3 <= float(confidence) <= 1


def test_the_version_is_the_same_everywhere():
    printed = CliRunner().invoke(app, ["--version"]).stdout.strip()
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    released = re.search(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert cited
    assert released
    assert printed == version("cots") == cited[1] == released[1]
