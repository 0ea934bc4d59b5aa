"""A run compared with the paper, from a stand-in run whose scores are known."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.paper_run import FakeRun, N, row

import cots
from cots.bench import MethodSettings, RunOptions
from cots.data import PROTOCOLS
from cots.paper import PAPER_TABLES, compare, load_table
from cots.paper._shown import preview


def test_one_cell_by_hand():
    # Seeds at 0.54, 0.55 and 0.56: mean 55, deviation 1. Every confidence is 0.75, so the ECE is 75 minus accuracy.
    run = FakeRun({("imagenet-a", "tpt+cots"): [(0.54, 0.75), (0.55, 0.75), (0.56, 0.75)]})
    accuracy, ece = compare(run, "table:imagenet-variants").rows
    assert (accuracy.method, accuracy.dataset, accuracy.paper, accuracy.paper_std) == (
        "tpt+cots",
        "imagenet-a",
        54.63,
        0.07,
    )
    assert (accuracy.ours, accuracy.ours_std) == (pytest.approx(55), pytest.approx(1))
    assert accuracy.difference == pytest.approx(0.37)
    assert (ece.ours, ece.ours_std) == (pytest.approx(20), pytest.approx(1))
    assert (ece.paper, ece.paper_std, ece.outside) == (7.85, 0.29, True)


@pytest.mark.parametrize(("accuracy", "outside"), [(0.8715, False), (0.8748, False), (0.8750, True), (0.8700, True)])
def test_outside_is_two_deviations_and_rounding(accuracy, outside):
    """Pets, TPT: 87.25 with a deviation of 0.11, so 87.25 +- 0.235."""
    run = FakeRun({("pets", "tpt"): [(accuracy, 0.9, 1.0, 10_000)]}, seeds=(0,))
    assert row(compare(run, "fine-grained"), metric="accuracy").outside is outside


def test_a_run_with_the_papers_scores_does_not_differ():
    table = load_table("imagenet-variants")
    figures = {}
    for cell in table.rows:
        if not cell.is_average:
            ece = table.value("ece", cell.method, cell.dataset)
            accuracy = table.value("accuracy", cell.method, cell.dataset)
            figures[cell.dataset, cell.method] = [(accuracy / 100, (accuracy + ece) / 100, 1.0, 10_000)]
    comparison = compare(FakeRun(figures, seeds=(0,)), table)
    assert len(comparison.rows) == 100
    assert not comparison.outside
    assert not comparison.notes
    # Averages of printed values are within rounding of the printed averages.
    assert max(abs(r.difference) for r in comparison.rows) < 0.011
    without = [r for r in comparison.rows if r.method == "zeroshot" or r.dataset.startswith("average")]
    assert {r.paper_std for r in without} == {None}
    assert len([r for r in comparison.rows if r.paper_std is not None]) == 72


def test_an_average_needs_all_its_datasets_and_shared_datasets_are_compared_instead():
    run = FakeRun({(name, "tpt"): [(0.5 + i / 10, 0.9)] for i, name in enumerate(("pets", "dtd"))}, seeds=(0,))
    comparison = compare(run, "fine-grained")
    assert not [r for r in comparison.rows if r.dataset == "average:fine-grained"]
    shared = row(comparison, metric="accuracy", dataset="mean of dtd, pets")
    assert shared.ours == pytest.approx(55)
    assert shared.paper == pytest.approx((47.12 + 87.25) / 2)
    with pytest.raises(cots.InputError, match=r"has no cell of table 'plug-and-play'.*methods such as") as error:
        compare(run, "plug-and-play")
    assert len(str(error.value)) < 300


def test_a_table_of_averages_is_compared_over_the_datasets_at_hand():
    """plug-and-play prints two averages. The main tables print the single datasets of its base methods."""
    here = ("dtd", "pets", "imagenet-a")
    run = FakeRun({(n, m): [(0.5, 0.9)] for n in here for m in ("otpt", "otpt+cots")}, seeds=(0,))
    comparison = compare(run, "plug-and-play")
    base = row(comparison, metric="ece", method="otpt", dataset="mean of dtd, pets")
    assert (base.ours, base.paper) == (pytest.approx(40), pytest.approx((7.66 + 2.13) / 2))
    assert row(comparison, metric="ece", method="otpt", dataset="imagenet-a").paper == 6.68
    alone = row(comparison, metric="ece", method="otpt+cots", dataset="mean of dtd, pets")
    assert (alone.ours, alone.paper, alone.difference, alone.outside) == (pytest.approx(40), None, None, False)
    text = comparison.text()
    assert "\u2013 the paper prints no value over these datasets." in text
    assert next(line for line in text.splitlines() if "otpt+cots" in line).split()[-2:] == ["40.00", "\u2013"]
    assert len(comparison.rows) == 6, "accuracy of otpt, ECE of both, on fine-grained and on variants"


def test_every_dataset_of_a_mean_is_named():
    names = ("dtd", "flowers", "food", "pets", "cars")
    comparison = compare(FakeRun({(n, "ttl"): [(0.5, 0.9)] for n in names}, seeds=(0,)), "ttl-tps")
    assert {r.dataset for r in comparison.rows} == {"mean of 5 datasets"}
    assert comparison.notes == ("mean of 5 datasets: dtd, flowers, food, pets, cars.",)


@pytest.mark.parametrize("table", PAPER_TABLES)
def test_the_preview_of_a_table_is_what_a_run_shows(table):
    """Counted from a run with every method of the table on three datasets."""
    paper, here = load_table(table), ("dtd", "flowers", "imagenet-a")
    shown = preview(paper, here)
    assert preview(paper, PROTOCOLS) == ""
    if table == "timing":
        assert preview(paper, here) == "", "it needs no other datasets"
        return
    runs = []
    for backbone in paper.backbones:
        for prompt in paper.prompts:
            figures = {(n, m): [(0.5, 0.9, 1.0, 10)] * 2 for n in here for m in paper.methods}
            coop = {"context": "5f2c"} if prompt == "coop" else {"template": prompt}
            runs.append(FakeRun(figures, (0, 1), backbone, **coop))
    rows = compare(runs, table).rows
    printed = sum(r.paper is not None for r in rows)
    if printed == len(rows):
        assert shown.endswith("(the paper prints all of these values)")
    else:
        assert shown.endswith(f"(the paper prints {printed or 'none'} of these {len(rows)} values)")
    assert set(shown.rpartition(" (")[0].split("; ")) == {r.dataset for r in rows}


def test_online_methods_in_list_order_are_noted():
    run = FakeRun({("pets", method): [(0.5, 0.9)] for method in ("tpt", "tda", "tda(soc)")}, seeds=(0,))
    unknown, listed, shuffled = (
        MethodSettings(adapter={}, calibrator={}, stream_order=order) for order in (None, "list", "shuffled")
    )
    methods = {"tpt": unknown, "tda": shuffled, "tda(soc)+cots": listed}
    run.manifest = replace(run.manifest, settings={"pets": methods})
    assert any(note.startswith("TDA (SoC) processed the samples in list order") for note in _notes(run))
    methods["tda(soc)+cots"] = unknown  # as 0.1.0 wrote it
    assert any(note.startswith("TDA (SoC) processed") for note in _notes(run))
    methods["tda(soc)+cots"] = shuffled
    assert not any("in list order" in note for note in _notes(run))


def _notes(run):
    return compare(run, "fine-grained").notes


def test_model_and_prompt_select_the_cells():
    names = [p.name for p in PROTOCOLS.values() if p.average == "variants"]

    def run(**options):
        return FakeRun({(name, "tpt"): [(0.5, 0.5)] for name in names}, seeds=(0,), **options)

    small, bad = (run(template=t) for t in ("a photo of a small {}.", "a bad photo of a {}."))
    assert row(compare(small, "prompts"), metric="ece").paper == 14.97
    assert [r.paper for r in compare([small, bad], "prompts").rows if r.metric == "ece"] == [14.97, 12.07]
    assert compare({"x": small, "y": bad}, "prompts") == compare([small, bad], "prompts")
    with pytest.raises(cots.InputError, match=r"prompt for table 'prompts'.*Run one of these"):
        compare(run(), "prompts")
    assert row(compare(run(model="RN50-quickgelu/openai"), "backbones"), metric="ece").paper == 17.55
    other = compare(run(model="mini"), "backbones")
    assert row(other, metric="ece").paper == 11.9
    assert other.notes[0] == "the paper's backbone is ViT-B-16/openai, ours is mini."
    coop = compare(run(context="5f2c"), "coop")
    assert row(coop, metric="ece").paper == 19.95
    assert not coop.notes


def test_notes_name_every_departure_from_the_protocol():
    figures = {("OxfordPets", "tpt"): [(0.9, 0.9, 1.0, N, 3)]}
    run = FakeRun(figures, seeds=(0,), model="mini", n=740, views=32, augmix=False)
    run.manifest = replace(run.manifest, config=RunOptions(settings={"tpt": {"steps": 2}}, solver="exact"))
    run.complete = False
    comparison = compare(run, "fine-grained")
    assert comparison.notes == (
        "the paper's backbone is ViT-B-16/openai, ours is mini.",
        "the run is not finished; these are its scores so far.",
        "images not as in the paper: pets 740 instead of 3669.",
        "views not as in the paper: pets 32 instead of 64.",
        "AugMix not as in the paper: pets False instead of True.",
        "settings not as in the paper: settings {'tpt': {'steps': 2}}, solver exact.",
        "pets: 3 images could not be read and are excluded.",
    )
    assert all(note in comparison.text() for note in comparison.notes)


def test_averages_under_tda_are_over_the_papers_sets():
    """Every row but Penalty leaves ImageNet out of its average; the run's average leaves it out too."""
    table = load_table("fine-grained-tda")
    figures = {}
    for cell in table.rows:
        if cell.metric == "accuracy" and not cell.is_average:
            figures[cell.dataset, cell.method] = [(cell.value / 100, 0.9, 1.0, 10_000)]
    comparison = compare(FakeRun(figures, seeds=(0,)), table)
    averages = [r for r in comparison.rows if r.metric == "accuracy" and r.dataset == "average:fine-grained"]
    assert len(averages) == 9
    assert max(abs(r.difference) for r in averages) < 0.011  # the paper's own rounding
    assert [r.method for r in averages if not r.note] == ["tda(penalty)"]
    # Without ImageNet, the ten sets give every average except Penalty's.
    ten = {key: value for key, value in figures.items() if key[0] != "imagenet"}
    ours = [r for r in compare(FakeRun(ten, seeds=(0,)), table).rows if r.dataset == "average:fine-grained"]
    assert {r.method for r in ours} == {r.method for r in averages if r.note}


def test_contradictions_in_the_paper_are_footnotes():
    names = [p.name for p in PROTOCOLS.values() if p.average == "fine-grained"]
    comparison = compare(FakeRun({(name, "tda"): [(0.6, 0.6)] for name in names}, seeds=(0,)), "fine-grained-tda")
    average = row(comparison, metric="accuracy", dataset="average:fine-grained")
    assert average.note == ("the printed average is not the mean of its row: it omits imagenet, and so does ours.")
    text = comparison.text()
    assert text.endswith(f"[2] {average.note}")  # [1] is on the names of Food101
    assert text.count("[2]") == 3
    assert not row(comparison, metric="accuracy", dataset="pets").note


def test_our_choices_and_published_names_are_noted():
    run = FakeRun({("food", "tpt"): [(0.8, 0.9)], ("pets", "tpt"): [(0.8, 0.9)]}, (0,), "ViT-B-16-SigLIP/webli")
    comparison = compare(run, "fine-grained-siglip")
    assert comparison.notes == ("the paper does not name its SigLIP checkpoint; ViT-B-16-SigLIP/webli is our choice.",)
    assert "cheesecake and cheese plate" in row(comparison, metric="accuracy", dataset="food").note
    assert not row(comparison, metric="accuracy", dataset="pets").note
    run.manifest = replace(run.manifest, config=RunOptions(published_names=True))
    assert not row(compare(run, "fine-grained-siglip"), metric="accuracy", dataset="food").note


def test_text_and_markdown():
    run = FakeRun({("pets", "tpt"): [(0.88, 0.9), (0.87, 0.9)], ("my-photos", "tpt"): [(0, 1), (0, 1)]}, seeds=(0, 1))
    comparison = compare(run, "fine-grained")
    text = comparison.text()
    assert text.splitlines()[:2] == [
        "table:fine-grained: Fine-grained datasets and ImageNet: accuracy and ECE (tab:main_standard)",
        "ours: ViT-B-16/openai, seeds 0, 1",
    ]
    assert "pets        tpt  87.50  0.71  87.25  0.11       +0.25  *" in text.splitlines()
    assert "2 of the 2 cells" in text
    assert "my-photos" not in text
    assert r"|pets|tpt|87.50|0.71|87.25|0.11|+0.25|\*|" in comparison.markdown().splitlines()


def test_bad_input():
    run = FakeRun({("pets", "tpt"): [(0.5, 0.5)]}, seeds=(0,))
    with pytest.raises(cots.InputError, match="Unknown table of the paper 'figure:scatter'"):
        compare(run, "figure:scatter")
    with pytest.raises(cots.InputError, match="Did you mean 'timing'"):
        compare(run, "timings")
    with pytest.raises(cots.InputError, match="no run to compare"):
        compare([], "timing")
