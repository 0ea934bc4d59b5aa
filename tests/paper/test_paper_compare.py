"""A run beside the paper, from a stand-in run whose figures can be worked out in the head."""

from __future__ import annotations

import numpy as np
import pytest
from support.paper_run import FakeRun, N

import cots
from cots.data import PROTOCOLS
from cots.paper import compare, load_table


def row(comparison, **where):
    (found,) = [r for r in comparison.rows if all(getattr(r, name) == value for name, value in where.items())]
    return found


def test_one_cell_by_hand():
    # Seeds at 0.54, 0.55 and 0.56: mean 55, deviation 1. Every confidence is 0.75, so the ECE is 75 minus accuracy.
    run = FakeRun({("imagenet-a", "tpt+cots"): [(0.54, 0.75), (0.55, 0.75), (0.56, 0.75)]})
    comparison = compare(run, "table:imagenet-variants")
    found = row(comparison, metric="accuracy", dataset="imagenet-a")
    assert (found.method, found.paper, found.paper_std) == ("tpt+cots", 54.63, 0.07)
    assert found.ours == pytest.approx(55)
    assert found.ours_std == pytest.approx(1)
    assert found.difference == pytest.approx(0.37)
    ece = row(comparison, metric="ece", dataset="imagenet-a")
    assert (ece.ours, ece.ours_std) == (pytest.approx(20), pytest.approx(1))
    assert (ece.paper, ece.paper_std, ece.outside) == (7.85, 0.29, True)
    assert len(comparison.rows) == 2


def test_other_metrics_by_hand():
    """With one confidence c and accuracy a, all calibration errors are |a - c| and Brier is a(1-c)^2 + (1-a)c^2."""
    run = FakeRun({("pets", "tpt"): [(0.8, 0.9)]}, seeds=(7,))
    for table, metric, expected in (
        ("brier-fine-grained", "brier", 100 * (0.8 * 0.1**2 + 0.2 * 0.9**2)),
        ("cece-fine-grained", "cece", 10),
        ("aece-fine-grained", "aece", 10),
    ):
        found = row(compare(run, table), metric=metric)
        assert found.ours == pytest.approx(expected)
        assert (found.ours_std, found.paper_std, found.outside) == (None, None, False)


@pytest.mark.parametrize(("accuracy", "outside"), [(0.8715, False), (0.8748, False), (0.8750, True), (0.8700, True)])
def test_outside_is_two_deviations_and_rounding(accuracy, outside):
    """Pets, TPT: 87.25 with a deviation of 0.11, so 87.25 +- 0.235."""
    run = FakeRun({("pets", "tpt"): [(accuracy, 0.9, 1.0, 10_000)] * 3})
    assert row(compare(run, "fine-grained"), metric="accuracy").outside is outside


def test_figures_equal_to_the_paper_differ_by_nothing():
    table = load_table("imagenet-variants")
    figures = {}
    for cell in table.rows:
        if not cell.is_average:
            ece = table.value("ece", cell.method, cell.dataset)
            accuracy = table.value("accuracy", cell.method, cell.dataset)
            figures[cell.dataset, cell.method] = [(accuracy / 100, (accuracy + ece) / 100, 1.0, 10_000)] * 3
    comparison = compare(FakeRun(figures), table)
    assert len(comparison.rows) == 100
    assert not comparison.outside
    assert not comparison.notes
    # Averages of printed figures are within rounding of the printed averages.
    assert max(abs(r.difference) for r in comparison.rows) < 0.011
    without = [r for r in comparison.rows if r.method == "zeroshot" or r.dataset.startswith("average")]
    assert {r.paper_std for r in without} == {None}
    assert len([r for r in comparison.rows if r.paper_std is not None]) == 72


def test_an_average_needs_all_its_sets_and_shared_sets_are_compared_instead():
    run = FakeRun({(name, "tpt"): [(0.5 + i / 10, 0.9)] for i, name in enumerate(("pets", "dtd"))}, seeds=(0,))
    comparison = compare(run, "fine-grained")
    assert not [r for r in comparison.rows if r.dataset == "average:fine-grained"]
    shared = row(comparison, metric="accuracy", dataset="mean of dtd, pets")
    assert shared.ours == pytest.approx(55)
    assert shared.paper == pytest.approx((47.12 + 87.25) / 2)
    with pytest.raises(cots.InputError, match=r"has no cell of table 'plug-and-play'.*methods such as"):
        compare(run, "plug-and-play")


def test_averages_are_taken_a_seed_at_a_time():
    names = [p.name for p in PROTOCOLS.values() if p.average == "variants"]
    figures = {(n, "soc+cots"): [(0.2 + i / 10, 0.9), (0.6 - i / 10, 0.9)] for i, n in enumerate(names)}
    run = FakeRun(figures, seeds=(0, 1))
    found = row(compare(run, "plug-and-play"), metric="ece")
    # Seed 0 has accuracies .2 .3 .4 .5, seed 1 has .6 .5 .4 .3: means .35 and .45.
    assert found.ours == pytest.approx(50)
    assert found.ours_std == pytest.approx(np.std([55, 45], ddof=1))
    assert (found.dataset, found.paper) == ("average:variants", 4.37)


def test_standard_deviations_and_times():
    run = FakeRun({("dtd", "tpt"): [(0.4, 0.5), (0.5, 0.5)]}, seeds=(0, 1))
    found = row(compare(run, "std-fine-grained"), metric="accuracy_std")
    assert (found.ours, found.paper) == (pytest.approx(10 / np.sqrt(2)), 0.11)
    timed = FakeRun({("dtd", "tpt"): [(0.4, 0.5, 30)], ("dtd", "tpt+cots"): [(0.4, 0.5, 36)]}, seeds=(0,))
    comparison = compare(timed, "timing")
    assert row(comparison, metric="seconds").ours == pytest.approx(0.030)
    extra = row(comparison, metric="extra_seconds")
    assert (extra.ours, extra.paper, extra.method) == (pytest.approx(0.006), 0.053, "tpt+cots")
    alone = FakeRun({("dtd", "tpt+cots"): [(0.4, 0.5, 36)]}, seeds=(0,))
    with pytest.raises(cots.InputError, match="no cell"):
        compare(alone, "timing")


def test_model_and_prompt_choose_the_cells():
    names = [p.name for p in PROTOCOLS.values() if p.average == "variants"]
    figures = {(name, "tpt"): [(0.5, 0.5)] for name in names}
    small = FakeRun(figures, seeds=(0,), template="a photo of a small {}.")
    assert row(compare(small, "prompts"), metric="ece").paper == 14.97
    bad = FakeRun(figures, seeds=(0,), template="a bad photo of a {}.")
    assert [r.paper for r in compare([small, bad], "prompts").rows if r.metric == "ece"] == [14.97, 12.07]
    assert compare({"x": small, "y": bad}, "prompts") == compare([small, bad], "prompts")
    with pytest.raises(cots.InputError, match=r"prompt for table 'prompts'.*Run one of these"):
        compare(FakeRun(figures, seeds=(0,)), "prompts")
    resnet = FakeRun(figures, seeds=(0,), model="RN50-quickgelu/openai")
    assert row(compare(resnet, "backbones"), metric="ece").paper == 17.55
    with pytest.raises(cots.InputError, match="backbone for table 'backbones'"):
        compare(FakeRun(figures, seeds=(0,), model="mini"), "backbones")
    learnt = compare(FakeRun(figures, seeds=(0,), context="5f2c"), "coop")
    assert row(learnt, metric="ece").paper == 19.95
    assert not learnt.notes


def test_what_differs_is_said():
    figures = {("OxfordPets", "tpt"): [(0.9, 0.9, 1.0, N, 3)]}
    run = FakeRun(figures, seeds=(0,), model="mini", n=740, views=32, augmix=False)
    run.manifest["config"] = {"settings": {"tpt": {"steps": 2}}, "solver": "exact"}
    run.complete = False
    comparison = compare(run, "fine-grained")
    notes = "\n".join(comparison.notes)
    assert "backbone is ViT-B-16/openai, ours is mini" in notes
    assert "images unlike the paper's: pets 740 instead of 3669." in comparison.notes
    assert "views unlike the paper's: pets 32 instead of 64." in comparison.notes
    assert "AugMix unlike the paper's: pets False instead of True." in comparison.notes
    assert "not the paper's settings: settings {'tpt': {'steps': 2}}, solver exact." in comparison.notes
    assert "pets: 3 images could not be read" in notes
    assert "not finished" in notes
    assert all(note in comparison.text() for note in comparison.notes)


def test_an_unfinished_run_leaves_cells_out_and_a_finished_one_does_not_hide_errors():
    run = FakeRun({("pets", "tpt"): [(0.9, 0.9)], ("dtd", "soc"): [(0.9, 0.9)]}, seeds=(0,))
    run.complete = False
    assert {(r.dataset, r.method) for r in compare(run, "fine-grained").rows} == {("pets", "tpt"), ("dtd", "soc")}
    run.complete = True
    with pytest.raises(cots.CotsError, match="not there"):
        compare(run, "fine-grained")


def test_a_set_on_which_everything_failed_is_left_out():
    run = FakeRun({("pets", "tpt"): [(0.9, 0.9, 1.0, 0, 10)], ("dtd", "tpt"): [(0.9, 0.9)]}, seeds=(0,))
    comparison = compare(run, "fine-grained")
    assert {r.dataset for r in comparison.rows} == {"dtd"}
    assert "pets: 10 images could not be read and are left out." in comparison.notes


def test_own_data_is_not_taken_for_a_set_of_the_paper():
    run = FakeRun({("pets", "tpt"): [(0.9, 0.9)]}, seeds=(0,), average="own")
    with pytest.raises(cots.InputError, match="sets none of the paper"):
        compare(run, "fine-grained")


def test_the_papers_own_contradictions_are_footnotes():
    names = [p.name for p in PROTOCOLS.values() if p.average == "fine-grained"]
    run = FakeRun({(name, "tda"): [(0.6, 0.6)] for name in names}, seeds=(0,))
    comparison = compare(run, "fine-grained-tda")
    average = row(comparison, metric="accuracy", dataset="average:fine-grained")
    assert average.note == (
        "the printed average is not the mean of its row: it is the mean of the ten other sets, without ImageNet."
    )
    text = comparison.text()
    assert text.endswith(f"[1] {average.note}")
    assert text.count("[1]") == 3
    assert not row(comparison, metric="accuracy", dataset="pets").note


def test_text_and_markdown():
    run = FakeRun({("pets", "tpt"): [(0.88, 0.9), (0.87, 0.9)], ("my-photos", "tpt"): [(0, 1), (0, 1)]}, seeds=(0, 1))
    comparison = compare(run, "fine-grained")
    text = comparison.text()
    assert text.splitlines()[:2] == [
        "table:fine-grained: Fine-grained sets and ImageNet: accuracy and ECE (tab:main_standard)",
        "ours: ViT-B-16/openai, seeds 0, 1",
    ]
    assert "pets      tpt     87.50  0.71  87.25  0.11       +0.25  *" in text.splitlines()
    assert "2 of the 2 cells" in text
    assert "my-photos" not in text
    markdown = comparison.markdown()
    assert r"|pets|tpt|87.50|0.71|87.25|0.11|+0.25|\*|" in markdown.splitlines()


def test_bad_input():
    run = FakeRun({("my-photos", "tpt"): [(0.5, 0.5)]}, seeds=(0,))
    with pytest.raises(cots.InputError, match="sets none of the paper; methods tpt"):
        compare(run, "fine-grained")
    with pytest.raises(cots.InputError, match="is a figure"):
        compare(run, "figure:scatter")
    with pytest.raises(cots.InputError, match="Did you mean 'timing'"):
        compare(run, "timings")
    with pytest.raises(cots.InputError, match="no run to compare"):
        compare([], "timing")
