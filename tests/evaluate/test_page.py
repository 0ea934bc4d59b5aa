"""The report's page: self-contained, accessible, and drawn to the figures."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from support.report_run import HASH, FakeRun, small_run

from cots.evaluate import summarise
from cots.evaluate._write import report_page
from cots.metrics import METRICS

METHODS = ("tpt", "tpt+cots")
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Tree(HTMLParser):
    """Checks that tags close in order, and keeps every element with its path and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[dict] = []
        self.all: list[dict] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "at": dict(attrs), "text": "", "path": [e["tag"] for e in self.open]}
        assert len(attrs) == len(element["at"]), f"an attribute twice in <{tag}>"
        self.all.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.all.append({"tag": tag, "at": dict(attrs), "text": "", "path": [e["tag"] for e in self.open]})

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def find(self, tag: str, **at: str) -> list[dict]:
        return [e for e in self.all if e["tag"] == tag and all(e["at"].get(k) == v for k, v in at.items())]


@pytest.fixture(scope="module")
def summary():
    return summarise(small_run(methods=METHODS), resamples=60)


@pytest.fixture(scope="module")
def page(summary):
    return report_page(summary)


@pytest.fixture(scope="module")
def tree(page):
    return Tree(page)


def test_the_page_needs_nothing_from_outside(page, tree):
    assert not [e for e in tree.all if e["tag"] in ("script", "link", "img", "iframe", "object", "base", "form")]
    assert not [e for e in tree.all for name in e["at"] if name.startswith("on") or name == "src"]
    addresses = set(re.findall(r"https?://[^\"' )<]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert "@import" not in page
    assert "url(" not in page


def test_links_lead_somewhere_and_ids_are_unique(tree):
    ids = [e["at"]["id"] for e in tree.all if "id" in e["at"]]
    assert len(ids) == len(set(ids))
    links = [e["at"]["href"] for e in tree.find("a")]
    assert len(links) > 5
    assert all(link[0] == "#" and link[1:] in ids for link in links)


def test_it_fits_light_and_dark_and_a_phone(page, tree):
    assert tree.find("meta", name="viewport")
    assert page.count("prefers-color-scheme: dark") == 1
    light, dark = (
        set(re.findall(r"(--\w+):", "".join(blocks)))
        for blocks in (
            re.findall(r"^:root \{(.*?)\}", page, flags=re.M | re.S),
            re.findall(r"dark\) \{\s*:root \{(.*?)\}", page, flags=re.S),
        )
    )
    assert light == dark
    assert set(re.findall(r"var\((--\w+)\)", page)) - {"--c"} <= light


def test_every_picture_has_a_name_for_who_cannot_see_it(tree):
    pictures = [e for e in tree.find("svg") if "aria-hidden" not in e["at"]]
    # Per dataset and method a reliability diagram and a histogram, per dataset a curve, and the overview.
    assert len(pictures) == 2 * 3 * 2 + 3 + 1
    titles = [e["text"] for e in tree.find("title") if e["path"][-1] == "svg"]
    assert all(e["at"]["role"] == "img" for e in pictures)
    assert len(titles) == len(set(titles)) == len(pictures)
    assert all(len(title) > 40 for title in titles)


def test_tables_have_captions_and_headers(summary, tree):
    tables = tree.find("table")
    captions = [e["text"] for e in tree.find("caption")]
    assert len(tables) == len(captions) == len(METRICS.infos()) + 2
    assert [
        c for c, m in zip(captions, METRICS.infos(), strict=False) if m.title in c and m.direction in c
    ] == captions[: len(METRICS.infos())]
    assert all(e["at"].get("scope") in ("row", "col") for e in tree.find("th"))
    scrolling = [e for e in tree.all if e["at"].get("class") in ("scroll", "grid")]
    assert all(e["at"]["tabindex"] == "0" and e["at"]["aria-label"] for e in scrolling)
    assert len(scrolling) == len(tables) + 2 * 3


def test_every_cell_shows_its_figure(summary, tree):
    cells = [e["text"] for e in tree.find("td")]
    wanted = [
        (metric, summary.cell(column.name, method, metric.name))
        for metric in sorted(METRICS.infos(), key=lambda m: m.name not in ("accuracy", "ece"))
        for method in summary.methods
        for column in summary.columns
    ]
    assert len(wanted) == len(METRICS.infos()) * 2 * 4
    for text, (metric, cell) in zip(cells, wanted, strict=False):
        assert " ".join(text.split()).startswith(f"{metric.show(cell.mean)} ± {metric.show(cell.std).lstrip('+')}")
        assert (f"[{metric.show(cell.low, interval=True)}, " in text) == (
            metric.name not in ("adaptive_ece", "classwise_ece")
        )
        assert ("tpt" in text) == (cell.base is not None)  # what the arrow says aloud names the base


def test_the_arrows_colour_follows_better_and_worse(summary, page):
    loss = METRICS.info("nll")
    table = page.split(f'aria-label="{loss.title}"')[1].split("</table>")[0]
    marks = re.findall(r'class="arrow (\w+)" title="(\w+)[^"]*">\s*<span aria-hidden="true">(.)</span>', table)
    cells = [summary.cell(column.name, "tpt+cots", "nll") for column in summary.columns]
    assert len(marks) == len(cells)
    for (kind, words, sign), cell in zip(marks, cells, strict=True):
        assert (kind, words) == (("up", "better") if cell.better else ("down", "worse"))
        assert (
            sign
            == {(True, True): "▼", (True, False): "▽", (False, True): "▲", (False, False): "△"}[
                cell.change < 0, cell.clear
            ]
        )


def test_text_from_the_run_is_escaped(page, undrawn):
    assert "<photos>" not in page
    assert "My &lt;photos&gt; &amp; 100%_more" in page
    hostile = small_run(broken={"dtd": {0: "<script>alert(1)</script>"}}, methods=("tpt",), seeds=(0,))
    assert "<script>" not in report_page(summarise(hostile, resamples=10))


def test_captions_are_on_the_page(tree):
    notes = [e["text"] for e in tree.find("p", **{"class": "note"})]
    # One for each table of figures, three for each dataset, one for the overview, one for the last table.
    assert len(notes) == len(METRICS.infos()) + 9 + 1 + 1
    for note in notes:
        assert f"(weights {HASH[:12]})" in note
        assert "seeds 0, 1" in note
        assert " n = " in note
        assert "20 " in note


def test_failed_samples_are_listed(tree, page, undrawn):
    assert "2 samples failed (2 of DTD)" in page
    rows = [e["text"] for e in tree.find("tr") if "truncated" in e["text"]]
    assert rows == ["dtddtd/0007.jpgimage is truncated | at byte 52 methods, seeds 0, 1"]
    assert 'id="failed"' not in report_page(summarise(small_run(broken={}), resamples=10))


def test_only_some_of_many_failures_are_listed(undrawn):
    sets = {"pets": ("OxfordPets", 100, 5, None, 1.0)}
    run = FakeRun(sets=sets, methods=("tpt",), seeds=(0,), broken={"pets": dict.fromkeys(range(60), "broken")})
    text = report_page(summarise(run, resamples=10))
    assert text.count("<td>broken</td>") == 50
    assert "and 10 more in the run folder" in text


def test_an_unfinished_run_gives_a_page_with_dashes(undrawn):
    absent = tuple(("mine", method, seed) for method in small_run().methods for seed in (0, 1))
    text = report_page(summarise(small_run(absent=(*absent, ("pets", "tpt", 0), ("pets", "tpt", 1))), resamples=10))
    tree = Tree(text)
    assert "This run is not finished: 10 of 24 parts" in text
    empty = tree.find("span", title="no records")
    # No own set for any method, and for tpt neither pets nor the average that needs it.
    assert len(empty) == len(METRICS.infos()) * (4 + 2)
    assert "No records yet." in text


def test_a_wide_table_starts_with_the_averages(undrawn):
    sets = {f"set{i}": (f"Set {i}", 20, 3, "variants" if i < 2 else None, 1.0) for i in range(7)}
    for count, first in ((7, "Average of 2 ImageNet variants"), (4, "Set 0")):
        some = dict(list(sets.items())[:count])
        tree = Tree(report_page(summarise(FakeRun(sets=some, methods=("tpt",), seeds=(0,)), resamples=10)))
        head = [e["text"] for e in tree.find("th", scope="col")]
        assert head[:2] == ["accuracy %", first]
        assert sorted(head[1 : count + 2]) == ["Average of 2 ImageNet variants", *(f"Set {i}" for i in range(count))]
