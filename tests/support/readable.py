"""Whether a page can be read: names of its fields, width, contrast in light and dark."""

from __future__ import annotations

from playwright.sync_api import Page

NAMES = """() => [...document.querySelectorAll("input, select, textarea, button, [role=region], [role=img]")]
  .filter((e) => e.checkVisibility())
  .filter((e) => !(e.labels?.length || e.textContent.trim() && e.tagName !== "SELECT" || e.ariaLabel))
  .map((e) => e.outerHTML)"""
CONTRAST = """() => {
  const linear = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = (rgb) => rgb.reduce((sum, v, i) => sum + linear(v / 255) * [.2126, .7152, .0722][i], 0);
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const behind = (e) => { for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor;
    if (c.startsWith("rgb") && (numbers(c)[3] ?? 1) === 1) return numbers(c); }
    return [255, 255, 255]; };
  return [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && !e.closest("svg, .tip, option")
      && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
    .map((e) => [light(numbers(getComputedStyle(e).color).slice(0, 3)), light(behind(e)), e.outerHTML])
    .map(([a, b, html]) => [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), html])
    .filter(([ratio]) => ratio < 4.5);
}"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def check_readable(page: Page) -> None:
    assert page.evaluate(NAMES) == []
    assert page.evaluate(OVERFLOW) == 0
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (max(paper) < 60) == (scheme == "dark")
        assert page.evaluate(CONTRAST) == []
