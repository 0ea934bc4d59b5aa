"""Figures: what is drawn is read back from the drawing and compared with the records."""

from __future__ import annotations

import functools
from itertools import product
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image
from support.paper_run import FakeRun

import cots
from cots.bench import RunOptions
from cots.paper import EXPERIMENTS, draw, find_experiment

FIGURES = [name for name in EXPERIMENTS if name.startswith("figure:")]


def runs_for(name, datasets=None, methods=None):
    """One run per variant; accuracy falls by 0.01 from one variant to the next, confidence is 0.9."""
    experiment = find_experiment(name)
    runs = {}
    for i, variant in enumerate(experiment.variants):
        figures = {}
        for dataset, method in product(datasets or experiment.datasets, methods or variant.methods):
            figures[dataset, method] = [(0.8 - 0.01 * i, 0.9, 1.0, 100), (0.82 - 0.01 * i, 0.9, 1.0, 100)]
        runs[variant.name] = FakeRun(figures, seeds=(0, 1))
        config = RunOptions(settings=variant.settings)  # as earlier versions wrote them
        runs[variant.name].manifest = replace(runs[variant.name].manifest, config=config)
    return runs


def labels(figure):
    return [text.get_text() for axis in figure.axes for text in axis.get_xticklabels()]


def titles(figure):
    return [axis.get_title(loc="left") for axis in figure.axes]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Every figure once, of the datasets that the tests below look at."""
    datasets = {
        "figure:scatter": ["dtd", "pets"],
        "figure:view-selection": ["dtd", "pets"],
        "figure:alpha-sweep": None,
        "figure:steps": None,
        "figure:reliability": ["dtd", "pets", "cars"],
        "figure:sensitivity": ["dtd", "imagenet-a"],
    }

    @functools.cache
    def drawn(name):
        folder = tmp_path_factory.mktemp("figures")
        methods = ("soc", "tpt+cots") if name == "figure:reliability" else None  # a row of panels each
        return draw(name, runs_for(name, datasets.get(name, ["dtd"]), methods), folder, ("svg",))

    return drawn


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_and_saved(name, drawn):
    drawn = drawn(name)
    (file,) = drawn.files
    assert file.name == f"{name.removeprefix('figure:')}.svg"
    assert ElementTree.parse(file).getroot().tag.endswith("svg")
    for part in ("model ViT-B-16/openai (weights 0123456789ab)", "seeds 0, 1", "dtd n = 1,692", "20 equal-width bins"):
        assert part in drawn.caption
    assert str(file) in drawn.text()


def test_the_same_run_gives_the_same_files_in_every_format(tmp_path):
    runs = runs_for("figure:similarity", ["pets"])
    first, second = (draw("figure:similarity", runs, tmp_path / "new" / place).files for place in "ab")
    assert [file.name for file in first] == ["similarity.svg", "similarity.png", "similarity.pdf"]
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
    with Image.open(first[1]) as image:
        assert np.asarray(image.convert("L")).min() < 100
    assert first[2].read_bytes().startswith(b"%PDF")


def test_scatter_has_our_point_and_the_papers(drawn):
    figure = drawn("figure:scatter").figure
    (axis,) = figure.axes
    assert titles(figure) == ["fine-grained, 2 of 11 datasets"]
    points = {(round(float(x), 3), round(float(y), 3)) for line in axis.lines for x, y in line.get_xydata()}
    # Ours: accuracy 81, confidence 90. The paper's CoTS over the same two datasets.
    assert (9.0, 81.0) in points
    assert (round((6.67 + 2.91) / 2, 3), round((47.12 + 87.25) / 2, 3)) in points


def test_bars_have_the_heights_of_the_averages(drawn):
    figure = drawn("figure:view-selection").figure
    (axis,) = figure.axes
    cots_names = ["CoTS, weak view", "CoTS, all strong", "CoTS, top 6", "CoTS, top 6 strong"]
    assert labels(figure) == ["TPT", "TPT + CoR", *cots_names]
    # The variants' accuracies are 81, 80, 79, 78 at a confidence of 90; TPT and CoR come with the last.
    assert [round(patch.get_height(), 6) for patch in axis.patches] == [12, 12, 9, 10, 11, 12]
    assert axis.get_ylim()[0] == 0


def test_sweeps_put_each_variant_at_its_value(drawn):
    figure = drawn("figure:alpha-sweep").figure
    assert titles(figure) == ["fine-grained", "ImageNet variants", "", ""]
    line, rule = figure.axes[0].lines[0], figure.axes[0].lines[-1]
    np.testing.assert_allclose(line.get_xydata(), [(0.2 * i, 81 - i) for i in range(6)])
    np.testing.assert_allclose(rule.get_ydata(), 75)
    np.testing.assert_allclose(figure.axes[2].lines[0].get_xydata()[:, 1], [9 + i for i in range(6)])
    steps = drawn("figure:steps").figure
    assert titles(steps)[:2] == ["DTD", "ImageNet-A"]
    assert steps.axes[0].lines[0].get_xdata().tolist() == [0, 1, 2, 5, 10, 20, 30, 40, 50, 75, 100]


def test_similarity_is_the_ratio_of_accuracies():
    runs = FakeRun(
        {
            ("dtd", "tpt"): [(0.6, 0.9)],
            ("dtd", "tpt+ensemble(alpha=0)"): [(0.5, 0.9)],
            ("pets", "tpt"): [(0.8, 0.9)],
            ("pets", "tpt+ensemble(alpha=0)"): [(0.0, 0.9)],
        },
        seeds=(0,),
    )
    (axis,) = draw("figure:similarity", runs).figure.axes
    assert axis.lines[0].get_xydata().tolist() == [[0.5, pytest.approx(1.2)]]
    # A dataset on which the strong views are never correct has no ratio, but is drawn at the upper edge.
    assert [text.get_text() for text in axis.texts] == ["DTD", "OxfordPets: strong views never right"]
    assert list(axis.lines[-2].get_xdata()) == [0.51]


def test_reliability_shows_pooled_bins(drawn):
    figure = drawn("figure:reliability").figure
    columns = ["DTD", "Flowers102", "OxfordPets", "ImageNet-V2"]  # the paper's, run or not
    assert titles(figure) == [f"{method}: {name}" for method in ("SoC", "TPT + CoTS") for name in columns]
    assert [axis.texts[0].get_text() for axis in figure.axes[:4]] == ["ECE 9.00%", "not run", "ECE 9.00%", "not run"]
    accuracy, gap = (patch.get_path().get_extents() for patch in figure.axes[0].patches)
    assert (accuracy.x0, accuracy.y1) == (pytest.approx(0.85), pytest.approx(0.81))
    assert gap.height == pytest.approx(0.09)
    assert figure.axes[0].texts[0].get_text() == "ECE 9.00%"


def test_missing_methods_are_left_out():
    run = FakeRun({("dtd", "tpt"): [(0.5, 0.6)], ("dtd", "soc"): [(0.5, 0.6)]}, seeds=(0,))
    assert labels(draw("figure:cor", run).figure) == ["TPT", "SoC"]
    assert len(draw("figure:reliability", run).figure.axes) == 4


def test_confidence_replacement_has_the_papers_bars(drawn):
    names = ["TPT", "C-TPT", "TPT + SaLS", "TPT + CoR", "A-TPT", "SoC"]
    assert labels(drawn("figure:cor").figure) == names


def test_k_and_t0_are_one_figure(drawn):
    figure = drawn("figure:sensitivity").figure
    assert [axis.get_xlabel() for axis in figure.axes] == ["number of strong views K", "initial temperature $T_0$"]
    fine, variants = figure.axes[0].lines[0], figure.axes[1].lines[1]
    np.testing.assert_allclose(fine.get_xydata(), [(k, 9 + i) for i, k in enumerate((1, 2, 4, 6, 8, 12, 16, 32))])
    assert variants.get_xdata().tolist() == [0.5, 0.75, 1.0, 1.25, 1.5, 2.0]


def test_bad_input(tmp_path):
    runs = runs_for("figure:loss", ["dtd"])
    for bad in (runs["loss-l1"], {"loss-l3": runs["loss-l1"]}, {}):
        with pytest.raises(cots.InputError, match=r"one run for each of loss-l1, .*Pass a mapping .*open_runs"):
            draw("figure:loss", bad)
    with pytest.raises(cots.InputError, match="is a table; compare a run with it"):
        draw("table:zero", runs)
    with pytest.raises(cots.InputError, match="Did you mean 'svg'"):
        draw("figure:loss", runs, tmp_path, formats=("svgz",))
    with pytest.raises(cots.InputError, match="none of the paper's datasets"):
        draw("figure:scatter", FakeRun({("my-photos", "tpt"): [(0.5, 0.5)]}, seeds=(0,)))
