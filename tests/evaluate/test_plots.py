"""Figures show the numbers: bars, curves and dots are read back from the axes, and from the SVG of a page."""

from __future__ import annotations

from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from support.report_run import FakeRun

from cots import metrics
from cots.evaluate import score_columns, summarise
from cots.evaluate._write import confidence_svg, draw_figures, reliability_svg
from cots.evaluate.plots import (
    COLOURS,
    STYLE,
    draw_confidence,
    draw_overview,
    draw_reliability,
    draw_risk,
    inline_svg,
    look_of,
    right_and_wrong,
)

SVG = "{http://www.w3.org/2000/svg}"


def bars(axes, colour) -> dict[float, tuple[float, float]]:
    """Left edge -> (bottom, top) of the bars of one colour."""
    found = {}
    for patch in axes.patches:
        if mpl.colors.to_hex(patch.get_facecolor()) == colour:
            for corners in patch.get_path().vertices.reshape(-1, 5, 2):
                found[round(float(corners[0, 0]), 6)] = (float(corners[0, 1]), float(corners[1, 1]))
    return found


@pytest.fixture
def figure():
    with mpl.rc_context(STYLE):
        yield Figure()


@pytest.fixture(scope="module")
def scored():
    rng = np.random.default_rng(3)
    confidence = rng.random(400).astype(np.float32)
    return score_columns(confidence, rng.random(400) < confidence**2)


def test_reliability_bars_are_accuracy_and_gap(figure, scored):
    binned = scored.reliability()
    draw_reliability(figure, figure.add_gridspec(1, 1)[0], binned, "tpt")
    main, strip = figure.axes
    counts = {edge: top for edge, (_, top) in bars(strip, "#9aa4b1").items()}
    assert counts == {round(e, 6): n for e, n in zip(binned.edges[:-1], binned.counts, strict=True) if n}
    lows, over = bars(main, COLOURS[1]), bars(main, "#d9534f")
    for edge, accuracy, confidence in zip(binned.edges, binned.accuracy, binned.mean_confidence, strict=False):
        edge = round(edge, 6)
        assert lows.get(edge, (0, 0))[1] == pytest.approx(min(accuracy, confidence))
        if confidence > accuracy:
            assert over[edge] == pytest.approx((accuracy, confidence))
        else:
            assert edge not in over
    assert main.get_title(loc="left") == "tpt"


def test_empty_bins_have_a_tick_and_bins_without_hits_do_not(figure):
    binned = metrics.ece([0.52, 0.97], [False, True])
    draw_reliability(figure, figure.add_gridspec(1, 1)[0], binned, "tpt")
    _, ticks = figure.axes[0].lines
    assert ticks.get_xdata()[::3] == pytest.approx([(i + 0.5) / 20 for i in range(20) if i not in (10, 19)])


def test_histograms_count_right_and_wrong(figure):
    confidence = np.array([0.14, 0.14, 0.97, 0.99, 1.0, 0.52, 0.0], dtype=np.float32)
    scored = score_columns(confidence, [True, False, True, True, True, False, False])
    right, wrong = right_and_wrong(scored)
    assert (right[2], wrong[2], right[19], wrong[10], wrong[0]) == (1, 1, 3, 1, 1)
    assert (right.sum(), wrong.sum()) == (4, 3)
    draw_confidence(figure, figure.add_gridspec(1, 1)[0], scored, "tpt")
    up, down = figure.axes
    assert {edge: top for edge, (_, top) in bars(up, COLOURS[1]).items()} == {0.1: 1, 0.95: 3}
    assert {edge: top for edge, (_, top) in bars(down, "#d9534f").items()} == {0.0: 1, 0.1: 1, 0.5: 1}
    title = ElementTree.fromstring(confidence_svg(scored, "tpt & <co>")).find(f"{SVG}title").text
    assert title.startswith("Confidences of tpt & <co>: mean 53.7%, accuracy 57.1%, 7 records, 3 right and 0 wrong")


def test_a_method_without_errors_can_be_drawn(figure):
    perfect = score_columns(np.array([0.9, 0.8]), [True, True])
    draw_confidence(figure, figure.add_gridspec(1, 1)[0], perfect, "tpt")
    assert bars(figure.axes[1], "#d9534f") == {}
    axes = Figure().add_subplot()
    draw_risk(axes, {"tpt": perfect.risk_coverage()})
    assert set(axes.lines[0].get_ydata()) == {0.0}


def test_risk_curves_follow_risk_coverage(figure, scored):
    axes, curve = figure.add_subplot(), scored.risk_coverage(100)
    draw_risk(axes, {"tpt": curve, "zeroshot": curve})
    line = axes.lines[0]
    assert len(line.get_xdata()) == 100
    np.testing.assert_allclose(line.get_xdata(), 100 * curve.coverage)
    np.testing.assert_allclose(line.get_ydata(), np.minimum(100 * curve.risk, axes.get_ylim()[1]))
    whole = scored.risk_coverage()
    at = np.searchsorted(whole.coverage, curve.coverage)
    np.testing.assert_array_equal(whole.risk[at], curve.risk)


def test_dots_lie_where_the_figures_say_and_labels_do_not_overlap(figure):
    names = ["zeroshot", "tpt", "tpt+sals", "tpt+cots", "tpt+ecots", "tpt+ensemble"]
    points = {name: (0.70 + 0.001 * i, 0.05 + 0.002 * i) for i, name in enumerate(names)}
    axes = figure.add_subplot()
    draw_overview(axes, points)
    dots = {line.get_label(): line.get_xydata()[0] for line in axes.lines if line.get_marker() == "o"}
    assert all(tuple(dots[name] / 100) == pytest.approx(place) for name, place in points.items())
    links = [line for line in axes.lines if len(line.get_xdata()) == 2]
    assert len(links) == 4
    assert all(tuple(link.get_xydata()[0] / 100) == pytest.approx(points["tpt"]) for link in links)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) >= 5
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


def test_equal_accuracies_and_zero_errors_can_be_drawn(figure):
    axes = figure.add_subplot()
    draw_overview(axes, {"tpt": (0.5, 0.0), "tpt+cots": (0.5, 0.0)})
    assert axes.get_ylim() == (0, 1)


def test_more_methods_than_colours_get_a_dash():
    looks = [str(look_of(i)) for i in range(32)]
    assert len(set(looks)) == 32


def test_svg_of_a_page_takes_its_colours_and_fonts_from_the_page(figure, scored):
    first, second = (reliability_svg(scored.reliability(), name, "note") for name in ("tpt", "tpt+cots"))
    for svg in (first, second):
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        assert {"var(--acc)", "var(--over)", "var(--card)"} <= {
            part.split(": ")[1] for e in root.iter(f"{SVG}path") for part in e.get("style", "").split("; ")
        }
        for leak in ("<style", "<metadata", "DejaVu", "#3b6fb6", "clip-path", "2026"):
            assert leak not in svg
    draw_overview(figure.add_subplot(), {"tpt": (0.5, 0.1), "tpt+cots": (0.6, 0.05)})
    dots = [inline_svg(figure, spoken) for spoken in ("one", "another")]
    ids = [e.get("id") for svg in dots for e in ElementTree.fromstring(svg).iter() if e.get("id")]
    assert len(ids) == len(set(ids)) == 4
    for svg in dots:
        root = ElementTree.fromstring(svg)
        assert {e.get("href")[1:] for e in root.iter(f"{SVG}use")} <= {e.get("id") for e in root.iter()}


def test_a_report_draws_one_panel_per_method():
    many = ("zeroshot", "tpt", *(f"tpt+x{i}" for i in range(7)))
    run = FakeRun(sets={"pets": ("OxfordPets", 40, 4, None, 1.2)}, methods=many, seeds=(0,))
    drawn = {name: figure for name, _, _, figure in draw_figures(summarise(run, resamples=5))}
    lines = drawn["pets-risk-coverage"].axes[0].get_lines()
    assert len({(line.get_color(), str(line.get_linestyle())) for line in lines}) == 9
    assert len(drawn["pets-reliability"].axes) == len(drawn["pets-confidence"].axes) == 18


def test_names_of_files_are_safe():
    sets = dict.fromkeys(("../../etc/pass wd", "..."), ("Set", 5, 2, None, 1.2))
    run = FakeRun(sets=sets, methods=("tpt",), seeds=(0,))
    names = {name.removesuffix("-confidence") for name, *_ in draw_figures(summarise(run, resamples=5))}
    assert {"etc-pass-wd", "data"} <= names
