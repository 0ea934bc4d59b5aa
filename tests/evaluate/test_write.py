"""Writing a report: the files, the figures in them, and what is refused."""

from __future__ import annotations

import ast
import errno
import struct
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from support.models import tiny as tiny_model
from support.report_run import HASH, FakeRun, small_run

import cots.evaluate
from cots import bench, metrics
from cots._errors import CotsError, InputError
from cots.data import open_dataset
from cots.evaluate import summarise, write_report
from cots.evaluate._write import _texts, draw_figures
from cots.evaluate.plots import STYLE

FAST = {"resamples": 20}


def tiny(**changes) -> FakeRun:
    sets = {"pets": ("OxfordPets", 40, 4, None, 1.2)}
    return FakeRun(**{"sets": sets, "methods": ("tpt",), "seeds": (0, 1), **changes})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "new" / "folder"
    with pytest.MonkeyPatch.context() as patch:
        # Embedding fonts in PDFs is slow; tests/paper/test_figures.py writes one with its fonts.
        patch.setitem(STYLE, "pdf.use14corefonts", True)
        return out, write_report(tiny(), out, **FAST)


def test_all_files_are_there_and_named(written):
    out, report = written
    names = {path.relative_to(out).as_posix() for path in report.files}
    figures = {
        f"figures/pets-{kind}.{ending}"
        for kind in ("overview", "reliability", "confidence", "risk-coverage")
        for ending in ("svg", "png", "pdf")
    }
    assert names == {"report.html", "report.md", "report.tex", "tables.tex", "report.csv"} | figures
    assert names == {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert report.page == out / "report.html"


def test_the_text_shows_the_tables_and_where_the_files_are(written):
    out, report = written
    text = report.text()
    assert text.startswith("accuracy %")
    assert f"  {out / 'report.html'}" in text
    assert f"  {out / 'figures'} (12 files)" in text


def test_links_to_figures_hold(written):
    out, _ = written
    linked = [line.split("](")[1].rstrip(")") for line in (out / "report.md").read_text().splitlines() if "![" in line]
    assert len(linked) == 4
    included = [part.split("}")[0] for part in (out / "report.tex").read_text().split("\\detokenize{")[1:]]
    assert len(included) == 4
    assert all((out / path).is_file() for path in linked + included)
    assert {path.rsplit(".", 1)[1] for path in included} == {"pdf"}


def test_figures_are_what_their_names_say(written):
    out, _ = written
    for path in (out / "figures").iterdir():
        data = path.read_bytes()
        if path.suffix == ".png":
            width, height = struct.unpack(">II", data[16:24])
            assert data[:8] == b"\x89PNG\r\n\x1a\n"
            assert min(width, height) > 600
        elif path.suffix == ".pdf":
            assert data.startswith(b"%PDF")
            assert data.rstrip().endswith(b"%%EOF")
        else:
            assert ElementTree.fromstring(data).tag.endswith("svg")


def test_a_figure_that_travels_alone_says_what_it_is(written):
    out, _ = written
    for path in (out / "figures").glob("*.svg"):
        text = " ".join(path.read_text().split())
        assert f"(weights {HASH[:12]})" in text
        assert "OxfordPets n = 40" in text
        assert "20 equal-width bins (lo, hi], the first closed at 0; seeds 0, 1; model mini" in text


def test_the_same_run_gives_the_same_bytes(written, tmp_path):
    out, _ = written
    again = write_report(tiny(), tmp_path, figures=("svg",), **FAST)
    for path in again.files:
        same = out / path.relative_to(tmp_path)
        if path.suffix != ".html" and path.name != "report.tex":
            assert path.read_bytes() == same.read_bytes(), path.name
    assert (tmp_path / "report.html").read_text() == (out / "report.html").read_text()


def test_formats_are_chosen(tmp_path):
    report = write_report(tiny(), tmp_path, "md, CSV", figures=(), **FAST)
    assert sorted(path.name for path in report.files) == ["report.csv", "report.md"]
    assert report.page is None
    assert not (tmp_path / "figures").exists()
    assert "![" not in (tmp_path / "report.md").read_text()
    assert "figures" not in report.text()


def test_tex_without_pdf_takes_png_and_without_either_none(written):
    _, report = written
    drawn = [("pets-risk", "Risk", "A caption.")]
    assert "figures/pets-risk.png" in _texts(report.summary, ("tex",), drawn, ("svg", "png"))["report.tex"]
    assert "includegraphics" not in _texts(report.summary, ("tex",), drawn, ("svg",))["report.tex"]


def test_a_dataset_without_records_has_no_figures():
    run = small_run(methods=("tpt",), seeds=(0,), absent=(("mine", "tpt", 0),))
    names = {name for name, *_ in draw_figures(summarise(run, **FAST))}
    assert sorted({name.rsplit("-", 1)[0] for name in names}) == [
        "average-fine-grained", "dtd", "dtd-risk", "pets", "pets-risk"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"formats": ("htm",)}, "Unknown report format 'htm'. Did you mean 'html'?"),
        ({"figures": ("jpg",)}, "Unknown figure format 'jpg'"),
        ({"formats": (), "figures": ()}, "Nothing to write. Pass at least one report format of html, md, tex, csv"),
    ],
)
def test_unknown_formats_are_refused_before_any_work(tmp_path, settings, words):
    run = tiny()
    run.records = None  # any reading would fail
    with pytest.raises(InputError) as caught:
        write_report(run, tmp_path / "x", **settings)
    assert words in str(caught.value)
    assert not (tmp_path / "x").exists()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(InputError, match="x is a file; pass a folder"):
        write_report(tiny(), tmp_path / "x")


def test_a_report_is_replaced_but_no_other_file(tmp_path, undrawn):
    formats = ("html", "md", "tex", "csv")
    first = write_report(tiny(), tmp_path, formats, figures=(), **FAST)
    assert write_report(tiny(seeds=(0,)), tmp_path, formats, figures=(), **FAST).files == first.files
    for file in first.files:
        ours = file.read_bytes()
        for foreign in (b"<html>my notes</html>", b"\xff\xfe", b""):
            file.write_bytes(foreign)
            with pytest.raises(InputError, match=rf"{file.name} was not written by cots report.*--out"):
                write_report(tiny(), tmp_path, formats, figures=(), **FAST)
            assert file.read_bytes() == foreign
        file.write_bytes(ours)
    (tmp_path / "report.md").write_text("mine")
    write_report(tiny(), tmp_path, ("csv",), figures=(), **FAST)  # a format that is not written does not matter
    assert (tmp_path / "report.md").read_text() == "mine"


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(self, *args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CotsError, match=r"could not be written to .*: No space left on device"):
        write_report(tiny(), tmp_path, ("csv",), figures=(), **FAST)


def test_matplotlib_is_imported_only_to_draw():
    """`cots.evaluate` is imported by the demo and the command line, which must start fast."""
    for file in Path(cots.evaluate.__file__).parent.glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            names = (
                [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "") or ""]
            )
            assert not any(name.split(".")[0] == "matplotlib" for name in names), file.name


def test_a_real_run_folder_can_be_reported(tmp_path):
    """Not the made-up run: images, model, records on disk, one of them an error, then the report of the folder."""
    rng = np.random.default_rng(0)
    for name in ("car", "tabby cat", "tree"):
        for i in range(4):
            file = tmp_path / "photos" / name / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(file)
    (tmp_path / "photos" / "car" / "broken.png").write_bytes(b"not a photo")
    config = bench.RunConfig(
        model=tiny_model("vit"),
        datasets=[open_dataset(tmp_path / "photos")],
        methods=("zeroshot", "tpt", "tpt+cots"),
        seeds=(0, 1),
        views=4,
        batch_size=4,
        shard_size=8,
        out=tmp_path / "run",
    )
    run = bench.run(config)
    report = write_report(bench.Run.open(tmp_path / "run"), tmp_path / "report", ("md",), figures=(), **FAST)
    for method in run.methods:
        records = [run.records("photos", method, seed) for seed in run.seeds]
        expected = [float(metrics.ece(r.confidence, r.correct)) for r in records]
        assert report.summary.cell("photos", method, "ece").values == tuple(expected)
    assert report.summary.complete
    assert report.summary.weights_hash == tiny_model("vit").weights_hash
    assert [failure.sample for failure in report.summary.failures] == ["car/broken.png"]
    assert "photos n = 12 (1 failed)" in (tmp_path / "report" / "report.md").read_text()
