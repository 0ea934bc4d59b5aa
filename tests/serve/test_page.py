"""The page in Chromium against a real server: results, errors, runs, keyboard, contrast."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import os
import re
import shutil
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright
from support.models import mini
from support.page_run import CLASSES, METHODS, sharp, write_run
from support.readable import check_readable

import cots
from cots.cli._outputs import COLUMNS
from cots.data import sample_photos
from cots.evaluate import write_report
from cots.prompts import DEFAULT_TEMPLATE
from cots.serve import ServeSettings, create_app

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "cots" / "serve" / "static"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
SCREENSHOT = "COTS_SCREENSHOT"  # set it to write docs/figures/page.png
QUICK = {"views": 8, "augmix": False}
SIZE, PHONE = {"width": 1180, "height": 900}, {"width": 360, "height": 740}
REFUSED = re.compile(r"Failed to load resource: (the server responded with a status of 4\d\d|net::ERR_)")

expect.set_options(timeout=20_000)
pytestmark = pytest.mark.skipif(CHROMIUM is None and not IN_CI, reason="no Chromium on this machine")


@contextlib.contextmanager
def server(backbone, **settings):
    """The application on a free port; its socket listens before the thread starts, so requests can be sent at once."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(create_app(backbone, ServeSettings(**settings)), log_level="warning", lifespan="on")
    one = uvicorn.Server(config)
    thread = threading.Thread(target=one.run, kwargs={"sockets": [listening]})
    thread.start()

    def stop():
        one.should_exit = True
        thread.join()
        listening.close()

    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", stop
    finally:
        stop()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    run = write_run(folder / "runs" / "first", folder / "first", n=30)
    write_report(run, folder / "runs" / "first" / "report", ("html",), figures=(), resamples=2)
    write_run(folder / "runs" / "two_sets", folder / "second", n=2, seeds=(0, 1), sets=("garden", "street"))
    return folder / "runs"


@pytest.fixture(scope="module")
def url(runs):
    with server(sharp(), runs=runs, **QUICK) as (address, _):
        yield address


@pytest.fixture(scope="module")
def browser():
    assert CHROMIUM, "there is no Chromium: the page cannot be tested"
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--renderer-process-limit=1"]
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield chromium
        chromium.close()


def new_page(browser) -> Page:
    context = browser.new_context(viewport=SIZE, reduced_motion="reduce")
    context.set_default_timeout(20_000)
    one = context.new_page()
    one.add_init_script(
        "window.violations = [];"
        "document.addEventListener('securitypolicyviolation', (e) => violations.push(e.violatedDirective))"
    )
    return one


@contextlib.contextmanager
def watched(one: Page):
    """The page, which must not log to the console, violate the policy or contact another host."""
    said, asked = [], []
    events = {
        "console": lambda message: said.append(f"{message.type}: {message.text}"),
        "pageerror": lambda error: said.append(f"exception: {error}"),
        "request": lambda request: asked.append(request.url),
    }
    for event, listener in events.items():
        one.on(event, listener)
    yield one
    assert one.evaluate("window.violations ?? []") == []
    one.unroute_all(behavior="wait")  # an answer that is still being made would fail in the next test
    one.evaluate("localStorage.clear(), sessionStorage.clear()")
    for event, listener in events.items():
        one.remove_listener(event, listener)
    # Chromium itself logs refused requests.
    assert [text for text in said if not REFUSED.search(text)] == []
    asked = [address for address in asked if not address.startswith(("data:", "blob:", "about:"))]
    assert {address.split("/")[2].split(":")[0] for address in asked} == {"127.0.0.1"}


@pytest.fixture(scope="module")
def tab(browser):
    """One tab for all tests: a new one costs as much as loading the page and classifying a photo."""
    return new_page(browser)


@pytest.fixture
def page(tab):
    tab.set_viewport_size(SIZE)
    with watched(tab):
        yield tab


def photo(seed: int = 3, size: tuple[int, int] = (64, 48)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def choose(page: Page, data: bytes, name: str = "photo.png") -> None:
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": data})


# The form and the result as the page opens them.
EMPTY = """() => {
  location.hash = "photo";
  document.querySelector("#preview button")?.click();
  document.querySelector("#form").reset();
  document.querySelectorAll("details").forEach((one) => { one.open = one.id === "options"; });
  document.querySelector("#results").replaceChildren();
}"""


def ready(page: Page, url: str, classes: str = "\n".join(CLASSES)) -> None:
    """An empty form with class names. The page is loaded unless the last test left it open: that costs most."""
    if page.url.partition("#")[0] == f"{url}/":
        page.evaluate(EMPTY)
    else:
        page.goto(url)
        page.locator("#options").evaluate("e => { e.open = true; }")
    expect(page.locator("#methods input").first).to_be_attached()
    page.fill("#classes", classes)


def open_run(page: Page, url: str, name: str) -> None:
    ready(page, url)
    with page.expect_response("**/v1/runs"):
        page.goto(f"{url}/#runs")  # closes the run that an earlier test has opened
    page.goto(f"{url}/#runs/{name}")


def send(page: Page) -> None:
    with page.expect_response("**/v1/predict"):
        page.click("#send")


@contextlib.contextmanager
def changed(page: Page, results=None, **values):
    """The server's answer with other values at its top and in each result."""

    def respond(route):
        answer = {**route.fetch().json(), **values}
        answer["results"] = [{**result, **(results or {})} for result in answer["results"]]
        route.fulfill(json=answer)

    page.route("**/v1/predict", respond)
    yield
    page.unroute("**/v1/predict")


# Per class, the text and the relative width of each method's bar.
BARS = """rows => rows.map((row) => [row.dataset.class, Object.fromEntries(
  [...row.querySelectorAll(".bar")].map((bar) => {
    const fill = bar.querySelector(".fill"), width = (e) => e.getBoundingClientRect().width;
    return [bar.dataset.method, [bar.querySelector(".value").innerText, width(fill) / width(fill.parentElement)]];
  }))])"""


@functools.cache
def by_hand(data: bytes, method: str) -> cots.Prediction:
    return cots.Classifier(sharp(), CLASSES, method, **QUICK)(data)


def test_everything_can_be_done_with_the_keyboard(page, url):
    page.goto(url)
    expect(page.locator("#methods input")).to_have_count(4)
    expect(page.locator("#list option:checked")).to_have_text("Everyday things (16)")
    expect(page.locator("#send")).to_be_enabled()
    page.locator("#options").evaluate("e => { e.open = true; }")
    press = page.keyboard.press
    press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    press("Tab")
    expect(page.get_by_role("tab", name="Photo")).to_be_focused()
    press("Tab")
    expect(page.locator("#file")).to_be_focused()
    # The system's own dialog cannot be driven here: that the key opens it is seen from the click, then a file is given.
    page.locator("#file").evaluate(
        "e => e.addEventListener('click', (c) => { c.preventDefault(); e.dataset.by = 'key'; })"
    )
    press("Enter")
    expect(page.locator("#file")).to_have_attribute("data-by", "key")
    choose(page, photo())
    expect(page.locator("#preview")).to_contain_text("photo.png")
    visited = []
    while "method-tpt" not in visited:
        press("Tab")
        visited.append(page.evaluate("document.activeElement.id"))
        assert len(visited) < 40
    assert {"list", "classes", "send"} <= set(visited), "the button comes after the class names, before the options"
    press("Space")
    while page.evaluate("document.activeElement.id") != "send":
        press("Shift+Tab")
    press("Enter")
    expect(page.locator(".legend tbody tr")).to_have_count(3)
    page.get_by_role("tab", name="Photo").focus()
    press("ArrowRight")
    expect(page.get_by_role("tab", name="Runs")).to_be_focused()
    expect(page.get_by_role("tabpanel", name="Runs")).to_be_visible()
    expect(page.get_by_role("tabpanel", name="Photo")).to_be_hidden()
    expect(page.locator(".runs a")).to_have_count(2)
    press("Tab")
    expect(page.locator(".runs a").first).to_be_focused()
    press("Tab")
    press("Enter")
    expect(page.locator("#run-title")).to_be_focused()
    press("Tab")
    expect(page.get_by_role("link", name="Open the report in a new tab")).to_be_focused()


def test_a_photo_gives_what_the_classifier_gives(page, url):
    ready(page, url)
    choose(page, photo())
    expect(page.locator("#preview")).to_contain_text("photo.png")
    expect(page.locator("#preview")).to_contain_text("64 × 48")
    send(page)
    expect(page.locator(".legend tbody tr")).to_have_count(len(METHODS))
    main = by_hand(photo(), "tpt+ecots")
    assert page.locator(".bars .name").all_inner_texts()[:5] == [name for name, _ in main.top(5)]
    bars = page.locator(".bars li").evaluate_all(BARS)
    assert len(bars) >= 5
    for method, plain in zip(METHODS, ("zero-shot", "tuned", "tuned + CoTS", "tuned + E-CoTS"), strict=True):
        expected = by_hand(photo(), method)
        heard, *cells = page.locator(f'.legend [data-method="{method}"] :is(th, td)').all_inner_texts()
        assert heard == f"{plain} {method}"
        assert cells[1] == expected.label
        assert cells[2] == f"{expected.tau:.2f}"
        assert (cells[3] == "–") == (expected.alpha is None)
        assert int(cells[4]) >= 0
        shares = dict(expected.top(len(CLASSES)))
        for name, drawn in bars:
            (said, width), share = drawn[method], shares[name]
            if said[0] not in "<>":
                assert float(said.rstrip("%")) == pytest.approx(100 * share, abs=0.051)
            assert width == pytest.approx(share, abs=0.01)
    starts = page.locator(".track").evaluate_all("bars => bars.map(b => b.getBoundingClientRect().left)")
    assert len(set(starts)) == 1, "the bars do not begin at one line"
    assert main.none_of_these
    expect(page.locator(".said")).to_have_text("None of these")
    closest = f"Closest class: {main.label} {100 * main.confidence:.1f}%"
    expect(page.locator("#below")).to_have_text(closest)
    expect(page.locator("#live")).to_contain_text(f"None of these. {closest}, according to tuned + E-CoTS")
    # View 0 and the selected ones, for the two methods that select any.
    assert page.locator(".thumbs img").count() == 1 + len(main.views)
    captions = page.locator(".thumbs figcaption").all_inner_texts()
    assert captions == ["whole photo", *(f"view {i}" for i in main.views)]
    assert page.locator(".thumbs img").evaluate_all("all => all.every(i => i.complete && i.naturalWidth > 0)")


def test_the_result_is_in_sight_wherever_the_button_is(page, url):
    ready(page, url)
    choose(page, photo())
    for width, height in ((1200, 500), (390, 700)):
        page.set_viewport_size({"width": width, "height": height})
        page.locator("#send").scroll_into_view_if_needed()
        send(page)
        expect(page.locator(".headline")).to_be_focused()
        expect(page.locator(".said")).to_be_in_viewport(ratio=1)


def test_several_photos_and_samples(page, url):
    ready(page, url)
    expect(page.locator("#samples button")).to_have_count(3)
    page.get_by_role("button", name="Sample photo: rocket").click()
    expect(page.locator("#preview")).to_contain_text("rocket.jpg")
    expect(page.locator("#preview img")).to_have_js_property("complete", True)
    expect(page.locator("#classes")).to_have_value(re.compile(r"^rocket\n"))
    page.locator("#list").select_option(label="Previous custom list")
    expect(page.locator("#classes")).to_have_value("\n".join(CLASSES))
    for total, pictures, further in ((8, 8, []), (10, 7, ["+3"])):
        files = [{"name": f"{i}.png", "mimeType": "image/png", "buffer": photo(i)} for i in range(total)]
        page.set_input_files("#file", files)
        expect(page.locator("#preview .about")).to_contain_text(f"{total} photos")
        expect(page.locator("#preview img")).to_have_count(pictures)
        expect(page.locator("#preview .further")).to_have_text(further)
    datas = {"a.png": photo(3), "bad.png": b"no photo", "c.png": photo(5)}
    page.set_input_files(
        "#file", [{"name": name, "mimeType": "image/png", "buffer": data} for name, data in datas.items()]
    )
    expect(page.locator("#preview")).to_contain_text("3 photos")
    page.click("#send")
    expect(page.locator(".card")).to_have_count(3)
    expected = {name: by_hand(datas[name], "tpt+ecots") for name in ("a.png", "c.png")}
    expect(page.locator("#several")).to_have_text("3 photos: 2 none of these, 1 failed")
    failed = page.locator(".card.failed")
    expect(failed).to_contain_text("bad.png")
    expect(failed).to_contain_text("Damaged, or not a photo in a format that this server can read")
    for name, one in expected.items():
        card = page.locator(".card button", has_text=name)
        expect(card.locator("b")).to_have_text("None of these")
        card.click()
        expect(page.locator("#whole h3").first).to_have_text(name)
        expect(page.locator("#whole #below")).to_contain_text(one.label)
        expect(page.locator("#whole .legend tbody tr")).to_have_count(4)
    check_downloads(page, expected)
    ids = page.locator("[id]").evaluate_all("all => all.map((e) => e.id)")
    assert len(set(ids)) == len(ids)


def test_what_is_said_of_a_class_of_none_and_of_an_unsure_photo(page, url):
    main = by_hand(photo(), "tpt+ecots")
    (first, p), (second, q) = main.top(2)
    ready(page, url)
    choose(page, photo())
    range_ = page.locator("#range")
    with changed(page, none_of_these=False, results={"confidence_range": [0.9871, 0.9923]}):
        send(page)
    expect(page.locator(".said")).to_have_text(f"{first} {100 * p:.1f}%")
    expect(page.locator("#below")).to_have_count(0)
    expect(range_).to_have_text("90% range with other random views: 98.7% to 99.2%")
    with changed(
        page, none_of_these=False, results={"confidence_range": [0.98712, 0.98713], "label_set": [first, second]}
    ):
        send(page)
    expect(page.locator("#label-set")).to_have_text(f"In the policy's set: {first} and {second}")
    expect(range_).to_have_count(0)
    unsure = {"label": None, "abstained": True}
    for set_, reason in (
        ([], "No class is likely enough under"),
        ([first], "The confidence is below the threshold of"),
    ):
        with changed(page, none_of_these=False, results={**unsure, "label_set": set_}):
            send(page)
        expect(page.locator(".said")).to_have_text("Unsure")
        expect(page.locator("#below")).to_have_text(
            f"Closest classes: {first} {100 * p:.1f}% and {second} {100 * q:.1f}%"
        )
        expect(page.locator("#meaning")).to_have_text(f"{reason} this server's policy. Look at this photo yourself.")
        expect(page.locator('.legend [data-method="tpt"] td').nth(1)).to_have_text("unsure")
        check_readable(page)
    with changed(page, none_of_these=False, results={**unsure, "path": [], "unsure": "species"}):
        send(page)
    expect(page.locator("#meaning")).to_contain_text("Neither a class nor a group of this server's taxonomy")
    noise = "The image looks like noise; nothing can be recognised in it."
    with changed(page, none_of_these=True, warnings=[noise, "Another."], results={"warnings": [noise]}):
        send(page)
    expect(page.locator(".said")).to_have_text("None of these")
    expect(page.locator("#meaning")).to_have_text(noise)
    expect(page.locator("#results .warn")).to_have_text(["Another."])
    group = {"label": None, "node": "heron", "rank": "family", "path": ["bird", "heron"], "node_probability": 0.943}
    group |= {"unsure": "species", "candidates": [{"class": "grey heron", "probability": 0.412}]}
    with changed(page, none_of_these=False, results=group):
        send(page)
    expect(page.locator(".said")).to_have_text("heron (family) 94.3%")
    expect(page.locator("#below")).to_have_text("Species unsure: grey heron 41.2%")
    expect(page.locator("#live")).to_contain_text("heron (family), 94%. Species unsure: grey heron 41.2%")
    expect(page.locator('.legend [data-method="tpt"] td').nth(0)).to_have_text("94.3%")
    expect(page.locator('.legend [data-method="tpt"] td').nth(1)).to_have_text("heron")
    check_readable(page)
    with changed(page, none_of_these=False, results={"under_policy": True}):
        send(page)
    ((label, share),) = by_hand(photo(), "zeroshot").top(1)
    expect(page.locator(".said")).to_have_text(f"{label} {100 * share:.1f}%")


def test_the_button_is_above_the_fold_and_the_table_fits_a_phone(page, url):
    page.set_viewport_size({"width": 1200, "height": 900})
    ready(page, url)
    choose(page, photo(size=(600, 800)))
    expect(page.locator("#preview img")).to_have_js_property("complete", True)
    expect(page.locator("#send")).to_be_in_viewport(ratio=1)
    send(page)
    page.set_viewport_size({"width": 390, "height": 800})
    box = page.locator(".scroll", has=page.locator(".legend"))
    assert box.evaluate("e => e.scrollWidth - e.clientWidth") == 0
    page.set_viewport_size(SIZE)


def test_the_monitor_says_what_is_known(page, url):
    changes = {"predictions": 1310, "reference": 300, "false_alarms": 0.01, "evidence": 0.1, "alarms": 0, "last": []}
    errors = {"asked": 118, "checked": 80, "level": 0.95, "verdict": "open", "text": "acted on 1,240: still open"}
    said = {"errors": None, "changes": changes}
    page.route("**/v1/monitor", lambda route: route.fulfill(json=said))
    page.goto(url)
    expect(page.get_by_role("button", name="Classify")).to_be_visible()
    card = page.get_by_role("region", name="Monitor")
    expect(card).to_be_hidden()
    said["errors"] = errors
    page.reload()
    expect(card).to_contain_text("acted on 1,240: still open")
    expect(card).to_contain_text("Certain to 95% at every look")
    expect(card).to_contain_text("38 of 118 asked labels have not come")
    expect(card).to_contain_text("No change in 1310 photos. A false alarm ever has probability 1% at most.")
    said["changes"] = {**changes, "last": [{"text": "confidence is lower, look at <b>1</b>" + 40 * ".jpg, 22"}]}
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    expect(card).to_contain_text("Changed: confidence is lower, look at <b>1</b>")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_what_is_clicked_while_the_page_connects_is_done_when_it_has(browser, url):
    """A context of its own, because its requests are held back."""
    context = browser.new_context(viewport=SIZE)
    page = context.new_page()
    held = []
    for paths in ("**/v1/*", "**/static/classes.json"):
        page.route(paths, lambda route: held.append(route))
    page.goto(url)
    page.get_by_role("button", name="Sample photo: rocket").click()
    expect(page.locator("#preview")).to_contain_text("rocket.jpg")
    expect(page.locator("#send")).to_have_text("Classify")
    page.click("#send")
    expect(page.locator("#send")).to_have_text("Connecting")
    expect(page.locator("#classes")).to_have_value("")
    page.unroute("**/static/classes.json")
    held.pop(0).continue_()
    expect(page.locator("#classes")).to_have_value(re.compile("^rocket\n"))
    expect(page.locator("#list option:checked")).to_have_text("Vehicles (8)")
    with page.expect_request("**/v1/runs"):
        page.get_by_role("tab", name="Runs").click()
    expect(page.locator("#runs")).to_have_text("Loading the runs")
    for route in held:
        route.continue_()
    page.unroute("**/v1/*")
    expect(page.locator(".runs a")).to_have_count(2)
    page.get_by_role("tab", name="Photo").click()
    expect(page.locator(".headline")).to_contain_text("out of 8 classes")
    expect(page.locator("#send")).to_have_text("Classify")
    context.close()


def test_a_server_that_cannot_be_reached_at_first_can_be_tried_again(page, url):
    page.route("**/v1/models", lambda route: route.abort())
    page.goto(url)
    page.fill("#classes", "\n".join(CLASSES))
    choose(page, photo())
    error = page.locator("#server-error")
    expect(error).to_contain_text("The server is not responding.")
    expect(page.locator("#send")).to_have_text("Classify")
    page.unroute("**/v1/models")
    page.click("#send")
    expect(page.locator(".headline")).to_be_visible()
    expect(error).to_be_hidden()


def check_downloads(page: Page, expected: dict[str, cots.Prediction]) -> None:
    """Both files have the results of all methods and the failure, under the names of a prediction's fields."""
    files = {}
    for name in ("CSV", "JSON"):
        with page.expect_download() as download:
            page.get_by_role("button", name=name).click()
        files[download.value.suggested_filename] = Path(download.value.path()).read_text()
    records = json.loads(files["predictions.json"])
    rows = list(csv.DictReader(io.StringIO(files["predictions.csv"])))
    assert [(row["file"], row["method"]) for row in rows] == [(one["file"], one.get("method", "")) for one in records]
    assert len(rows) == 2 * len(METHODS) + 1
    assert tuple(rows[0])[: len(COLUMNS)] == COLUMNS, "the columns of cots predict --csv"
    assert set(records[0]) == {"file", *expected["a.png"].to_dict(top=1)}, "the keys of cots predict --json"
    for record, row in zip(records, rows, strict=True):
        if record["file"] == "bad.png":
            assert row["error"] == record["error"] != ""
            assert (record["label"], row["label"]) == (None, "")
        elif record["method"] == "tpt+ecots":
            one = expected[record["file"]]
            assert record["label"] == row["label"] == row["class_1"] == one.label
            assert record["confidence"] == pytest.approx(one.confidence, abs=2e-6)
            assert float(row["confidence"]) == record["confidence"]
            assert [float(row["confidence_low"]), float(row["confidence_high"])] == record["confidence_range"]


def test_a_promise_needs_two_classes_and_a_measurement(page, url):
    sentence = page.locator("#meaning")
    ready(page, url)
    choose(page, photo())
    with changed(page, none_of_these=False):
        send(page)
    expect(sentence).to_have_text(
        "This confidence has not been verified for tpt+ecots with tiny-sharp; "
        "a run on 200 or more labelled photos would verify it."
    )
    page.fill("#classes", "tabby cat, car, tree")
    expect(page.locator("#classes-count")).to_have_text("3 classes")
    page.fill("#classes", "tabby cat")
    with changed(page, none_of_these=False):
        send(page)
    expect(sentence).to_have_text("With one class, the confidence is always 100% and means nothing.")


def test_methods_that_disagree_are_pointed_at(page, url):
    one, other = (cots.Classifier(sharp(), CLASSES, method, **QUICK) for method in ("zeroshot", "otpt"))
    data = next(data for data in map(photo, range(20)) if one(data).label != other(data).label)
    labels = {"zeroshot": one(data).label, "otpt": other(data).label}
    ready(page, url)
    for box in page.locator("#methods input").all():
        box.set_checked(box.input_value() == "zeroshot", force=True)
    page.fill("#more", "otpt")
    choose(page, data)
    with changed(page, none_of_these=False):
        send(page)
    expect(page.locator("#disagree")).to_contain_text(
        f"The methods disagree: zero-shot says {labels['zeroshot']}; tuned (otpt) says {labels['otpt']}."
    )
    page.fill("#classes", "car\ntree")
    expect(page.locator("#results")).to_have_class(re.compile("old"))


def test_a_photo_can_be_dropped_and_pasted(page, url, tmp_path):
    file = tmp_path / "dropped.png"
    file.write_bytes(photo())
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ready(page, url)
    box = page.locator("main").bounding_box()
    session = page.context.new_cdp_session(page)
    where = {"x": box["x"] + box["width"] - 20, "y": box["y"] + 300}  # far from the box that invites it
    data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
    session.send("Input.dispatchDragEvent", {"type": "dragEnter", **where, "data": data})
    session.send("Input.dispatchDragEvent", {"type": "dragOver", **where, "data": data})
    expect(page.locator("#drop")).to_have_class(re.compile("over"))
    session.send("Input.dispatchDragEvent", {"type": "drop", **where, "data": data})
    expect(page.locator("#preview")).to_contain_text("dropped.png")
    send(page)
    expect(page.locator("#below")).to_contain_text(by_hand(photo(), "tpt+ecots").label)

    page.get_by_role("button", name="Remove the photo").click()
    expect(page.locator("#preview")).to_be_hidden()
    page.evaluate(
        """async (bytes) => {
             const blob = new Blob([new Uint8Array(bytes)], {type: "image/png"});
             await navigator.clipboard.write([new ClipboardItem({"image/png": blob})]);
        }""",
        list(photo()),
    )
    page.keyboard.press("Control+V")
    expect(page.locator("#preview img")).to_be_visible()
    # Text that is pasted into a field stays text.
    page.evaluate("navigator.clipboard.writeText('zebra')")
    page.fill("#classes", "")
    page.focus("#classes")
    page.keyboard.press("Control+V")
    expect(page.locator("#classes")).to_have_value("zebra")


def refusal(page: Page, url: str, image: bytes, **fields: str) -> tuple[str, str]:
    """The field and the message of the API's own answer."""
    file = {"name": "photo.png", "mimeType": "image/png", "buffer": image}
    error = page.request.post(f"{url}/v1/predict", multipart={"image": file, **fields}).json()["error"]
    return error["field"], error["message"]


def test_each_error_stands_at_its_field(page, url):
    names = "\n".join(CLASSES)
    ready(page, url, classes="")
    page.click("#send")
    expect(page.locator("#error-image")).to_have_text("Choose a photo first, or drop or paste one.")
    expect(page.locator("#error-classes")).to_contain_text("at least one class name")
    expect(page.locator("#file")).to_be_focused()
    expect(page.locator("#classes")).to_have_attribute("aria-invalid", "true")

    choose(page, b"this is not a photo")
    expect(page.locator("#error-image")).to_be_hidden()
    expect(page.locator("#preview")).to_contain_text("No preview")
    page.fill("#classes", names)
    expect(page.locator("#error-classes")).to_be_hidden()
    send(page)
    field, message = refusal(page, url, b"this is not a photo", classes=names)
    assert field == "image"
    expect(page.locator("#error-image")).to_have_text(message.replace("image bytes", "photo.png"))
    expect(page.locator("#live")).to_have_text(message.replace("image bytes", "photo.png"))
    expect(page.locator("#file")).to_be_focused()

    choose(page, photo())
    page.fill("#more", "tptt+cots")
    send(page)
    expect(page.locator("#error-methods")).to_contain_text("Did you mean 'tpt'?")
    expect(page.locator("#more")).to_be_focused()
    page.fill("#more", "")
    page.fill("#classes", "car\ncar")
    expect(page.locator("#classes-count")).to_have_text("2 classes, 1 duplicate")
    send(page)
    field, message = refusal(page, url, photo(), classes="car\ncar")
    assert field == "classes"
    expect(page.locator("#error-classes")).to_have_text(message)
    page.fill("#classes", names)
    page.fill("#template", "no place for a name")
    page.click("#options > summary")
    send(page)
    field, message = refusal(page, url, photo(), classes=names, template="no place for a name")
    assert field == "template"
    expect(page.locator("#error-template")).to_have_text(message)
    expect(page.locator("#error-template")).to_be_visible()
    for box in page.locator("#methods input").all():
        box.uncheck(force=True)
    page.click("#send")
    expect(page.locator("#error-methods")).to_contain_text("Select at least one method")
    assert page.locator(".compare").count() == 0


def test_a_run_shows_its_report(page, url):
    page.goto(f"{url}/#runs")
    expect(page.locator(".runs a")).to_have_count(2)
    page.get_by_role("link", name="first").click()
    frame = page.frame_locator("iframe.report")
    expect(frame.locator("h1")).to_have_text("Calibration report")
    # Its own style sheet and figures work without scripts.
    assert frame.locator("table").first.evaluate("e => getComputedStyle(e).borderCollapse") == "collapse"
    assert frame.locator("svg").first.bounding_box()["height"] > 100
    expect(page.locator("iframe.report")).to_have_attribute("sandbox", "")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Open the report in a new tab").click()
    expect(opened.value.locator("h1")).to_have_text("Calibration report")
    opened.value.close()


def test_runs_without_a_report_and_runs_that_are_not_there(page, url):
    open_run(page, url, "two_sets")
    expect(page.locator("#run pre")).to_have_text("cots report RUNS/two_sets")
    expect(page.locator(".runs [aria-current]")).to_contain_text("no report")
    page.go_back()
    page.goto(f"{url}/#runs/gone")
    expect(page.locator("#run .alert")).to_have_text("There is no readable run gone.")


def test_readable_in_light_and_dark_on_a_phone_and_with_a_screen_reader(page, url):
    page.set_viewport_size(PHONE)
    ready(page, url, "\n".join([*CLASSES, "a-name-without-any-place-to-break-it-that-is-far-wider-than-a-phone"]))
    page.click("#catalogue summary")
    choose(page, photo(), name="a_file_name_that_is_as_long_as_those_of_cameras_and_messengers_are_nowadays.png")
    check_readable(page)
    send(page)
    expect(page.locator(".headline")).to_be_visible()
    check_readable(page)
    page.fill("#classes", "")
    page.click("#send")
    expect(page.locator("#error-classes")).to_be_visible()
    check_readable(page)
    open_run(page, url, "two_sets")
    expect(page.locator("#run pre")).to_be_visible()
    check_readable(page)
    open_run(page, url, "first")
    expect(page.frame_locator("iframe.report").locator("h1")).to_be_visible()
    check_readable(page)


def test_lists_are_kept(page, url):
    ready(page, url)
    pick = page.locator("#list")

    def save(names: str, title: str) -> None:
        page.fill("#classes", names)
        page.get_by_role("button", name="Save as").click()
        page.keyboard.type(title)
        page.keyboard.press("Enter")

    save("car\ntree", "Deleted")
    page.get_by_role("button", name="Delete").click()
    expect(pick.locator("optgroup")).to_have_count(1)
    expect(page.locator("#classes")).to_have_value("car\ntree")
    save("lynx\n\n otter \n", "My <b>zoo</b>")
    expect(page.locator("#classes-count")).to_have_text("2 classes")
    expect(pick.locator("option:checked")).to_have_text("My <b>zoo</b> (2)")
    page.fill("#classes", "typed but not saved")
    pick.select_option(label="Flowers (102)")
    expect(page.locator("#classes-count")).to_have_text("102 classes")
    page.reload()
    expect(page.locator("#classes-count")).to_have_text("102 classes")
    expect(pick.locator("optgroup").first.locator("option")).to_have_text(["My <b>zoo</b> (2)"])
    pick.select_option(label="Previous custom list")
    expect(page.locator("#classes")).to_have_value("typed but not saved")
    pick.select_option(label="My <b>zoo</b> (2)")
    expect(page.locator("#classes")).to_have_value("lynx\notter")
    for typed, shown in (("imagenet_r", "200 classes"), ("constructor", "1 class"), ("everyday, pets", "2 classes")):
        page.fill("#classes", typed)
        expect(page.locator("#classes-count")).to_have_text(shown)


def test_the_docs_page_lists_every_operation_and_is_readable(page, url):
    page.goto(f"{url}/docs")
    api = page.request.get(f"{url}/openapi.json").json()
    wanted = [f"{verb.upper()}\n{path}" for path, item in api["paths"].items() for verb in item]
    expect(page.locator(".operation")).to_have_count(len(wanted))
    shown = [heading.inner_text() for heading in page.locator(".operation h3").all()]
    assert [" ".join(text.split()) for text in shown] == [" ".join(text.split()) for text in wanted]
    predict = page.locator(".operation", has_text="/v1/predict").first
    fields = api["paths"]["/v1/predict"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"][
        "properties"
    ]
    assert predict.locator("tbody").first.locator("th code").all_inner_texts() == list(fields)
    for one in predict.locator("summary").all()[:3]:
        one.click()
    expect(predict.locator(".example pre").last).to_contain_text('"tabby cat"')
    expect(predict).to_contain_text("results[].top[].probability")
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    page.set_viewport_size(PHONE)
    check_readable(page)


def test_nothing_inline_and_nothing_from_elsewhere():
    files = sorted(STATIC.iterdir())
    assert {"index.html", "docs.html", "style.css", "main.js"} <= {file.name for file in files}
    for file in files:
        text = file.read_text()
        assert set(re.findall(r"https?://[^\"' )<]+", text)) <= {"http://www.w3.org/2000/svg"}, file.name
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", text), file.name
        assert len(text.splitlines()) <= 300
        if file.suffix == ".html":
            assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?![^>]*\ssrc=)", text), file.name


def test_the_page_starts_with_the_default_template():
    assert f'id="template" value="{DEFAULT_TEMPLATE}"' in (STATIC / "index.html").read_text()


def check_starters(page: Page) -> None:
    """The example lists use only words that the embedded model was trained on; others would warn, hence fail."""
    found = page.evaluate("import('/static/starters.js').then((module) => module.loadStarters())")
    assert len(found["starters"]) == 4
    assert {f"{name}.jpg" for name in found["samples"]} == {photo.name for photo in sample_photos().glob("*.jpg")}
    for photo, sample in found["samples"].items():
        assert photo in sample["names"], "the list of a sample photo has its class"
    for names in [*found["starters"].values(), *(sample["names"] for sample in found["samples"].values())]:
        assert len(set(names)) == len(names)
        cots.Task(mini(), names)


def check_claims(page: Page) -> None:
    """The figures that the page quotes for the embedded model are those of docs/results.md."""
    ((prefix, card),) = page.evaluate("import('/static/meaning.js').then((module) => module.CHECKED)").items()
    assert mini().weights_hash.startswith(prefix)
    assert card["photos"] == "3,145 photos"
    titles = page.evaluate("import('/static/starters.js').then((module) => module.loadStarters())")["starters"]
    assert set(card["lists"]) <= set(titles)
    pooled = (ROOT / "docs" / "results.md").read_text().split("All 3,145 photos pooled")[1]
    for method, figures in card["methods"].items():
        row = next(line for line in pooled.splitlines() if line.startswith(f"| `{method}` |"))
        assert [float(cell.split()[0]) for cell in row.split("|")[2:4]] == figures


def test_the_embedded_model_and_the_screenshot(page):
    wanted = bool(os.environ.get(SCREENSHOT))
    cat = (ROOT / "examples" / "photos" / "cat.jpg").read_bytes()
    names = ["tabby cat", "tiger cat", "egyptian cat", "persian cat", "siamese cat", "lynx", "red fox", "beagle"]
    settings = {"views": 64, "augmix": True} if wanted else QUICK
    with server(mini(), **settings) as (address, _):
        ready(page, address, "\n".join(names))
        choose(page, cat, "cat.jpg")
        send(page)
        expected = cots.Classifier(mini(), names, **settings)(cat)
        expect(page.locator(".said b")).to_have_text(expected.label)
        assert "cat" in expected.label
        expect(page.locator("#meaning")).to_contain_text("it was verified on other class names, with 3,145 photos of")
        check_starters(page)
        check_claims(page)
        if wanted:
            page.locator("#classes").evaluate("e => { e.scrollTop = 0; }")
            page.locator("#options").evaluate("e => { e.open = false; }")
            page.screenshot(path=ROOT / "docs" / "figures" / "page.png", full_page=True)


def test_a_server_with_a_token_a_small_limit_and_no_runs_that_is_busy_stops_and_comes_back(page):
    page.clock.install()  # for good: the last test in this tab
    with server(sharp(), token="open-sesame", max_body=20_000, **QUICK) as (address, stop):
        page.goto(address)
        dialog = page.get_by_role("dialog", name="This server requires a token")
        expect(dialog).to_be_visible()
        expect(page.get_by_label("Token", exact=True)).to_be_focused()
        page.keyboard.press("Escape")
        expect(dialog).to_be_visible()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#token-error")).to_contain_text("Wrong token.")
        page.get_by_label("Token", exact=True).fill("open-sesame")
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(page.locator("#model")).to_contain_text("tiny-sharp")
        page.reload()
        expect(page.locator("#methods input")).to_have_count(4)
        assert "sesame" not in page.content()
        choose(page, photo(size=(300, 200)))
        send(page)
        expect(page.locator("#error-image")).to_contain_text("20000 bytes")
        page.goto(f"{address}/#runs")
        expect(page.locator("#runs")).to_contain_text("cots run --data")

        ready(page, address)
        choose(page, photo())
        answer = check_waiting(page)
        ready(page, address)
        choose(page, photo())
        stop()
        page.click("#send")
        alert = page.locator("#error-general")
        expect(alert).to_contain_text("The server is not responding.")
        expect(page.locator("#send")).to_have_text("Classify")
        # What stands in for the restarted server: the same port is not ours to take.
        page.route("**/v1/predict", lambda route: route.fulfill(json=answer))
        page.route("**/v1/runs", lambda route: route.fulfill(json={"runs": []}))
        alert.get_by_role("button", name="Try again").click()
        expect(page.locator("#below")).to_contain_text(by_hand(photo(), "tpt+ecots").label)
        expect(alert).to_be_hidden()


def check_waiting(page: Page) -> dict:
    """A busy server is asked again, unless the user cancels; the answer in between."""
    answers = iter([429, 429, 200, 429])

    def respond(route):
        if next(answers) == 200:
            return route.continue_()
        error = {"code": "queue_full", "message": "Full; try again in 3 s.", "field": None}
        return route.fulfill(status=429, headers={"Retry-After": "3"}, json={"error": error})

    page.route("**/v1/predict", respond)
    page.click("#send")
    alert = page.locator("#error-general")
    expect(alert).to_contain_text("The server is busy. Retrying in 3 s.")
    page.clock.run_for(1000)
    expect(alert).to_contain_text("Retrying in 2 s.")
    page.clock.run_for(2000)
    expect(alert).to_contain_text("Retrying in 3 s.")
    with page.expect_response(lambda response: response.status == 200) as given:
        alert.get_by_role("button", name="Retry now").click()
    expect(page.locator(".said")).to_be_visible()
    expect(alert).to_be_hidden()
    page.click("#send")
    alert.get_by_role("button", name="Cancel").click()
    page.clock.run_for(10_000)
    expect(alert).to_be_hidden()
    assert next(answers, None) is None, "asked four times"
    page.unroute("**/v1/predict")
    return given.value.json()
