"""ask.html in Chromium: labelling with keys, buttons and the list, and the table that it saves."""

from __future__ import annotations

import csv
import os
import re
import shutil

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from support.asked import asked
from support.readable import check_readable
from support.serving import photo

from cots.evaluate import NOBODY, NONE, Asked, ask_page, read_table

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
SIZE, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}
HOSTILE = '</script><img src=x onerror="window.broken=1">&amp;, "quoted"'
COMMAND = "cots check ask.csv -o policy.json"
SHORT = ("cat", "dog", HOSTILE)
LONG = (
    *(f"breed {n}" for n in range(20)),
    HOSTILE,
    "a-name-without-any-place-to-break-it-that-is-far-wider-than-a-phone",
)

expect.set_options(timeout=20_000)
pytestmark = pytest.mark.skipif(CHROMIUM is None and not IN_CI, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def browser():
    assert CHROMIUM, "there is no Chromium: the page cannot be tested"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    """A tab that must neither log to the console nor ask for anything but the file."""
    said, asked_for = [], []
    context = browser.new_context(viewport=SIZE, accept_downloads=True)
    tab = context.new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked_for.append(request.url))
    yield tab
    assert said == []
    assert {address.partition(":")[0] for address in asked_for} <= {"file", "data", "blob"}
    assert sum(address.startswith("file:") for address in asked_for) <= 3
    assert tab.evaluate("window.broken") is None
    context.close()


def open_page(page: Page, folder, classes: tuple[str, ...], labels: int = 4) -> Asked:
    drawn = asked(classes, labels=labels)
    drawn.save(folder / "ask.csv")
    sources = [photo(at, size=(60, 40 + at)) for at in range(labels)]
    (folder / "ask.html").write_text(ask_page(drawn, sources, "ask.csv", COMMAND), encoding="utf-8")
    page.goto((folder / "ask.html").as_uri())
    return drawn


def answer(page: Page, number: int):
    return page.locator("#answers button").nth(number)


def saved(page: Page, folder, drawn: Asked) -> tuple[int | str, ...]:
    with page.expect_download() as download:
        page.get_by_role("button", name="Save ask.csv").click()
    assert download.value.suggested_filename == "ask.csv"
    download.value.save_as(folder / "ask.csv")
    with open(folder / "ask.csv", newline="") as stream:
        rows = list(csv.reader(stream))
    assert [tuple(row[:-1]) for row in rows[1:]] == [row[:-1] for row in drawn.rows()]
    return read_table(folder / "ask.csv", Asked.load(folder / "ask.csv")).marks


def test_labels_by_keys_are_saved_and_kept(page, tmp_path):
    drawn = open_page(page, tmp_path, SHORT)
    expect(page.locator("#count")).to_have_text("0 of 4 labelled")
    expect(page.locator("#answers button")).to_have_text([f"{key + 1}{name}" for key, name in enumerate(SHORT)])
    first = drawn.predictions[0]
    expect(page.locator("#said")).to_have_text(f"Predicted: {first.label}, {first.confidence:.1%}")
    expect(page.locator("#path")).to_have_text(drawn.paths[0])
    page.keyboard.press("3")
    expect(page.locator("#place")).to_have_text("2 of 4")
    expect(page.locator("#status")).to_have_text(f"Photo 1: {HOSTILE}. 3 left.")
    page.keyboard.press("9")  # no such class
    page.keyboard.press("0")
    page.keyboard.press("?")
    page.keyboard.press("2")
    expect(page.locator("#status")).to_contain_text("All photos have a label: save ask.csv.")
    expect(page.locator("#count")).to_have_text("4 of 4 labelled, not saved yet")
    page.keyboard.press("Delete")
    expect(page.locator("#progress")).to_have_js_property("value", 3)
    page.reload()
    expect(page.locator("#place")).to_have_text("4 of 4")
    expect(page.locator("#count")).to_have_text("3 of 4 labelled, not saved yet")
    assert saved(page, tmp_path, drawn) == (2, NONE, NOBODY)
    expect(page.locator("#count")).to_have_text("3 of 4 labelled")
    page.reload()
    expect(page.locator("#count")).to_have_text("3 of 4 labelled")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#none")).to_have_attribute("aria-pressed", "true")


def test_labels_by_buttons_and_by_the_list(page, tmp_path):
    drawn = open_page(page, tmp_path, LONG)
    best = drawn.predictions[0].top(9)
    expect(page.locator("#answers button")).to_have_text([f"{key + 1}{name}" for key, (name, _) in enumerate(best)])
    answer(page, 1).focus()
    page.keyboard.press("Enter")
    expect(answer(page, 1)).to_be_focused()
    others = page.get_by_label("Another class of the list")
    others.fill("Breed 99")
    others.press("Enter")
    expect(page.locator("#status")).to_have_text("Breed 99 is not in the list.")
    left_out = min(set(LONG[:20]) - {name for name, _ in drawn.predictions[1].top(9)})
    others.fill(left_out.title())
    others.press("Enter")
    expect(page.locator("#place")).to_have_text("3 of 4")
    page.get_by_role("button", name="Back").click()
    expect(page.locator("#answers [aria-pressed=true]")).to_have_text(left_out)
    page.get_by_role("button", name="First without a label").click()
    expect(page.locator("#place")).to_have_text("3 of 4")
    page.get_by_role("button", name="Nobody can tell").click()
    page.get_by_role("button", name="None of these").click()
    assert saved(page, tmp_path, drawn) == (LONG.index(best[1][0]), LONG.index(left_out), NOBODY, NONE)


def test_readable_in_light_and_dark_on_a_desktop_and_on_a_phone(page, tmp_path):
    open_page(page, tmp_path, LONG)
    for size in (SIZE, PHONE):
        page.set_viewport_size(size)
        check_readable(page)
        page.keyboard.press("1")
        check_readable(page)
        assert page.locator("#photo").evaluate("image => image.naturalWidth") == 60
    wide = page.locator("#answers button").first.bounding_box()
    assert wide["height"] >= 40


def test_nothing_from_elsewhere_and_nothing_that_is_not_escaped():
    text = ask_page(asked(SHORT), [photo()] * 12, "ask.csv", COMMAND)
    assert not re.search(r"https?://", text)
    assert HOSTILE not in text
    assert f"<code>{COMMAND}</code>" in text
    assert text.count("<script") == text.count("</script>") == 2
    assert "default-src 'none'; img-src data:; style-src 'sha384-" in text
    script = text.rpartition("<script>")[2]
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", script)
