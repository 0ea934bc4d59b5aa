"""The leaderboard: its figures against the report's, wins against a count by hand, protocols, and the page itself."""

from __future__ import annotations

import csv
import io
import json
import shutil

import pytest
from msgspec.structs import replace as with_field
from support.report_run import FakeRun
from support.runs import config, photos
from typer.testing import CliRunner

import cots
from cots import bench
from cots.cli import app
from cots.evaluate import compare_methods, make_leaderboard, summarise, write_leaderboard
from cots.evaluate._leaderboard import _letter
from cots.evaluate._leaderboard_page import leaderboard_csv, leaderboard_page

SETS = {"pets": ("OxfordPets", 90, 5, "fine-grained", 1.0), "dtd": ("DTD", 80, 6, "fine-grained", 1.6)}


class Finished(FakeRun):
    folder = "runs/made-up"

    def missing(self):
        return []


def made(methods=("zeroshot", "tpt", "tpt+cots"), seeds=(0, 1), sets=SETS):
    return Finished(sets, methods=methods, seeds=seeds)


def test_the_figures_are_those_of_the_report():
    run = made()
    table, summary = make_leaderboard({"one": run}, resamples=200), summarise(run, resamples=200)
    assert len(table.rows) == 3 * 3  # two datasets and their average
    for row in table.rows:
        for name, (value, low, high) in row.figures.items():
            cell = summary.cell(row.column.name, row.method, name)
            assert value == pytest.approx(cell.mean, abs=1e-12)
            assert (low, high) == (cell.low, cell.high)
        if not row.column.average:
            runs = summary.scored[row.column.name, row.method].values()
            assert row.milliseconds == pytest.approx(sum(one.milliseconds for one in runs) / 2)
            assert row.samples == 2 * SETS[row.column.name][1]
    assert [column.name for column in table.columns] == ["average:fine-grained", "pets", "dtd"]


def test_wins_are_the_clear_differences_of_all_pairs():
    """Of methods in one run, and of the same methods in two runs."""
    methods = ("zeroshot", "tpt", "tpt+cots", "tpt+ecots")
    whole = made(methods)
    found = compare_methods(whole, metrics=("accuracy", "ece", "nll"), resamples=300)
    parts = {"one": made(methods[:2]), "other": made(methods[2:])}
    for runs in ({"whole": whole}, parts):
        table, clear = make_leaderboard(runs, resamples=300), 0
        for row in table.rows:
            for name, (won, lost) in row.wins.items():
                own = [
                    d
                    for d in found.select(name)
                    if d.column.name == row.column.name and row.method in (d.first, d.second)
                ]
                sure = [d for d in own if d.winner and d.clear(0.95)]
                assert won == sum(d.winner == row.method for d in sure)
                assert lost == sum(d.winner != row.method for d in sure)
                clear += won
        assert clear > 5, "the made-up methods differ"


def test_other_protocols_are_refused_unless_mixed():
    runs = {"one": made(), "other": made(seeds=(0,)), "third": made(sets={"pets": SETS["pets"]})}
    for names, what in (
        (("one", "other"), "seeds 0, 1 against 0"),
        (("one", "third"), "datasets dtd, pets against pets"),
    ):
        with pytest.raises(cots.InputError, match=f"one and {names[1]} have different protocols: {what}.*--mixed"):
            make_leaderboard({name: runs[name] for name in names})
    table = make_leaderboard(runs, mixed=True, resamples=50)
    assert [source.protocol for source in table.sources] == ["A", "B", "C"]
    assert len(table.notes) == 2
    alone = make_leaderboard({"other": runs["other"]}, resamples=50)
    assert [row.wins for row in table.rows if row.source.name == "other"] == [row.wins for row in alone.rows]
    page = leaderboard_page(table)
    assert "different protocols" in page
    assert "B (other) differs from A (one): seeds 0, 1 against 0" in page
    assert "different protocols" not in leaderboard_page(make_leaderboard({"one": made()}, resamples=50))


@pytest.mark.parametrize("field", ["split_hash", "limit", "views", "augmix", "corrupt"])
def test_each_part_of_the_protocol_counts(field, monkeypatch):
    changed = {"split_hash": "cd" * 32, "limit": 5, "views": 8, "augmix": False, "corrupt": "fog:3"}[field]
    one, other = made(), made()
    manifest = other.manifest
    entries = tuple(with_field(entry, **{field: changed}) for entry in manifest.datasets)
    monkeypatch.setattr(Finished, "manifest", property(lambda self: one_manifest if self is one else other_manifest))
    one_manifest, other_manifest = manifest, with_field(manifest, datasets=entries)
    with pytest.raises(cots.InputError, match="have different protocols"):
        make_leaderboard({"one": one, "other": other}, resamples=50)


def test_letters_go_on_after_z():
    assert [_letter(number) for number in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


def test_the_page_runs_only_its_own_script_and_names_every_row():
    table = make_leaderboard({"<b>run</b>": made()}, resamples=50)
    page = leaderboard_page(table)
    assert page.count("<script") == 1
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "<b>run</b>" not in page
    assert page.count("<tr data-of=") == len(table.rows)
    lines = list(csv.DictReader(io.StringIO(leaderboard_csv(table))))
    assert len(lines) == len(table.rows)
    assert float(lines[0]["ece"]) == table.rows[0].figures["ece"][0]
    assert lines[0]["weights_hash"] == made().manifest.model.weights_hash


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaderboard")
    dataset = photos(folder / "photos", 3)
    for name, methods in (("first", ["zeroshot", "tpt"]), ("second", ["tps"])):
        bench.run(config(dataset, folder / "runs" / name, methods=methods, views=4))
    return folder / "runs"


def test_the_command_takes_folders_and_packed_runs(finished, tmp_path, undrawn):
    packed = bench.pack_run(str(finished / "second"), tmp_path / "second.cots.tar")
    words = ["leaderboard", str(finished / "first"), str(packed), "-o", str(tmp_path / "page"), "--resamples", "20"]
    for _ in range(2):  # a page is updated in place
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
    page = (tmp_path / "page" / "index.html").read_text()
    data = json.loads((tmp_path / "page" / "leaderboard.json").read_text())
    assert {(row["run"], row["method"]) for row in data["rows"]} == {
        ("first", "zeroshot"),
        ("first", "tpt"),
        ("second", "tps"),
    }
    manifest = bench.Run.open(str(finished / "second")).manifest
    assert data["runs"][1]["weights"] == manifest.model.weights_hash
    for name in ("first", "second"):
        assert f'href="reports/{name}/report.html"' in page
        assert (tmp_path / "page" / "reports" / name / "report.html").is_file()


def test_what_cannot_be_a_leaderboard_is_refused(finished, tmp_path):
    first = str(finished / "first")
    other = tmp_path / "page"
    other.mkdir()
    (other / "index.html").write_text("mine")
    with pytest.raises(cots.InputError, match="was not written by cots leaderboard"):
        write_leaderboard([first], other)
    with pytest.raises(cots.InputError, match="are the same run"):
        write_leaderboard([first, first], tmp_path / "new")
    with pytest.raises(cots.InputError, match="needs at least one run"):
        make_leaderboard({})
    with pytest.raises(cots.InputError, match="does not exist"):
        write_leaderboard([tmp_path / "nothing"], tmp_path / "new")

    class Unfinished(Finished):
        def missing(self):
            return ["a shard"]

    with pytest.raises(cots.InputError, match=r"is unfinished\. Re-run"):
        make_leaderboard({"one": Unfinished(SETS)})


def test_the_page_sorts_and_filters(tmp_path):
    """In Chromium: the best first, then the worst; one dataset at a time; words of the filter in any order."""
    chromium = shutil.which("chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    if chromium is None:
        pytest.skip("no Chromium")
    table = make_leaderboard({"one": made()}, resamples=20)
    file = tmp_path / "index.html"
    file.write_text(leaderboard_page(table))
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.goto(file.as_uri())

        def shown():
            return page.locator("#board tbody tr:visible th").all_inner_texts()

        assert len(shown()) == 3
        page.select_option("#dataset", "pets")
        of_pets = [row for row in table.rows if row.column.name == "pets"]
        for name, column in (("ece", 3), ("accuracy", 2)):
            best = sorted(of_pets, key=lambda row: row.figures[name][0], reverse=name == "accuracy")
            button = page.locator("#board thead button").nth(column)
            button.click()
            assert [row.figures[name][0] for row in best] == [
                next(row.figures[name][0] for row in of_pets if row.method == method) for method in shown()
            ]
            state = page.locator("#board thead [aria-sort]").get_attribute("aria-sort")
            assert state == ("descending" if name == "accuracy" else "ascending")
            button.click()
            assert shown()[-1] == best[0].method
        page.fill("#find", "ONE cots")
        assert shown() == ["tpt+cots"]
        page.select_option("#dataset", "")
        assert shown() == ["tpt+cots"] * 3
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        browser.close()
