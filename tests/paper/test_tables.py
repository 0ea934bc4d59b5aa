"""The paper's tables as data: cells copied from the printed pages by eye, and every printed average recomputed."""

from __future__ import annotations

from fractions import Fraction
from itertools import groupby

import pytest

import cots
from cots.data import PROTOCOLS
from cots.paper import PAPER_TABLES, inconsistencies, load_table

CELLS = {
    "fine-grained": 240,
    "imagenet-variants": 100,
    "plug-and-play": 60,
    "coop": 60,
    "ttl-tps": 24,
    "backbones": 80,
    "timing": 14,
    "fine-grained-rn50": 240,
    "imagenet-variants-rn50": 100,
    "fine-grained-tda": 216,
    "imagenet-variants-tda": 90,
    "fine-grained-siglip": 240,
    "imagenet-variants-siglip": 100,
    "std-fine-grained": 198,
    "std-imagenet-variants": 72,
    "brier-fine-grained": 120,
    "brier-imagenet-variants": 50,
    "cece-fine-grained": 120,
    "cece-imagenet-variants": 50,
    "aece-fine-grained": 120,
    "aece-imagenet-variants": 50,
    "prompts": 98,
    "ensemble-only": 60,
    "zero": 28,
}

# Copied from the printed pages, not from the data files.
BY_EYE = """
fine-grained accuracy penalty pets 82.94
fine-grained ece tpt+ecots aircraft 5.73
fine-grained ece otpt sun 8.42
fine-grained ece zeroshot imagenet 1.98
imagenet-variants accuracy tpt+ecots imagenet-a 60.72
imagenet-variants ece ctpt imagenet-sketch 10.20
imagenet-variants ece soc imagenet-r 4.50
plug-and-play ece otpt+sals average:fine-grained 4.56
plug-and-play ece penalty+cots average:variants 5.14
plug-and-play accuracy atpt+ecots average:fine-grained 65.07
coop ece tpt average:variants 19.95
coop ece soc+ecots average:fine-grained 4.98
coop accuracy otpt+ecots average:variants 63.36
ttl-tps ece ttl+cots average:variants 9.42
ttl-tps accuracy tps+ecots average:fine-grained 65.11
ttl-tps ece tps+sals average:variants 23.98
fine-grained-rn50 ece soc eurosat 14.79
fine-grained-rn50 accuracy atpt cars 56.17
imagenet-variants-rn50 ece tpt imagenet-a 30.96
imagenet-variants-rn50 accuracy tpt+ecots imagenet-sketch 35.65
fine-grained-tda accuracy tda(penalty) aircraft 24.12
fine-grained-tda ece tda+ecots cars 7.02
imagenet-variants-tda ece tda(otpt) imagenet-v2 10.48
imagenet-variants-tda accuracy tda+ecots imagenet-r 78.36
fine-grained-siglip accuracy penalty caltech 96.19
fine-grained-siglip ece tpt+cots eurosat 15.12
imagenet-variants-siglip ece tpt+ecots imagenet-a 10.64
imagenet-variants-siglip accuracy soc imagenet-v2 68.75
std-fine-grained ece_std tpt+ecots dtd 0.86
std-fine-grained accuracy_std atpt aircraft 0.35
std-imagenet-variants ece_std tpt+cots imagenet-a 0.29
std-imagenet-variants accuracy_std atpt imagenet-v2 0.19
brier-fine-grained brier penalty pets 10.21
brier-imagenet-variants brier tpt+sals imagenet-a 23.34
cece-fine-grained cece otpt eurosat 7.39
cece-imagenet-variants cece tpt+ecots average:variants 0.13
aece-fine-grained aece penalty pets 0.80
aece-imagenet-variants aece tpt average:variants 0.10
ensemble-only ece atpt+ensemble average:fine-grained 4.00
ensemble-only accuracy soc+ecots average:variants 61.81
zero ece tpt+zero average:variants 28.34
zero accuracy zeroshot+zero average:fine-grained 64.41
zero accuracy zeroshot+ensemble average:variants 61.86
timing seconds soc imagenet-a 0.256
timing extra_seconds tpt+cots dtd 0.053
"""


def rows_of(table):
    """The exact cells of each printed row, by metric, method, backbone and prompt."""

    def key(cell):
        return (cell.metric, cell.method, cell.backbone, cell.prompt)

    for row, cells in groupby(sorted(table.rows, key=key), key):
        yield row, {cell.dataset: exact(cell.value) for cell in cells}


def exact(value: float) -> Fraction:
    """The printed decimal number, without the rounding of its float."""
    return Fraction(str(value))


def test_every_table_has_all_its_cells():
    assert {name: len(load_table(name).rows) for name in PAPER_TABLES} == CELLS
    assert sum(CELLS.values()) == 2530
    assert len({load_table(name).label for name in PAPER_TABLES}) == 24
    assert all(0 <= cell.value < 100 for name in PAPER_TABLES for cell in load_table(name).rows)


def test_cells_match_the_printed_page():
    for line in BY_EYE.strip().splitlines():
        table, metric, method, dataset, value = line.split()
        assert load_table(table).value(metric, method, dataset) == float(value), line


def test_cells_of_tables_with_several_backbones_and_prompts():
    prompts, backbones = load_table("prompts"), load_table("backbones")
    low = "a low contrast photo of a {}."
    assert prompts.value("ece", "tpt+sals", "average:variants", prompt=low) == 8.12
    assert prompts.value("accuracy", "soc", "average:variants", prompt="a photo of a small {}.") == 58.15
    assert backbones.value("ece", "atpt", "average:variants", backbone="RN50/openai") == 7.76
    assert backbones.value("ece", "atpt", "average:variants", backbone="ViT-B-16/openai") == 4.34
    with pytest.raises(cots.InputError, match=r"2 cells .* also pass backbone= or prompt="):
        backbones.value("ece", "atpt", "average:variants")
    with pytest.raises(cots.InputError, match="0 cells"):
        backbones.value("ece", "zsnorm", "average:variants")


def test_averages_add_up_except_where_the_list_says_so():
    """A printed value stands for an interval; an average is wrong when its interval misses that of the row's mean."""
    found, checked = set(), 0
    for name in PAPER_TABLES:
        table = load_table(name)
        half = Fraction(1, 2) / 10**table.decimals
        for (metric, method, _, _), cells in rows_of(table):
            single = [value for dataset, value in cells.items() if not dataset.startswith("average:")]
            for dataset in cells:
                if not dataset.startswith("average:") or not single:
                    continue
                checked += 1
                assert len(single) == (11 if dataset == "average:fine-grained" else 4)
                low, high = sum(single) / len(single) - half, sum(single) / len(single) + half
                if high < cells[dataset] - half or low > cells[dataset] + half:
                    mean = round(float(sum(single) / len(single)), 3)
                    found.add((name, metric, method, dataset, float(cells[dataset]), mean))
    listed = {
        (one.table, one.metric, one.method, one.dataset, one.printed, one.expected)
        for one in inconsistencies()
        if one.kind == "average"
    }
    assert checked == 216
    assert found == listed
    assert len(found) == 16


def test_the_wrong_averages_leave_imagenet_out():
    table = load_table("fine-grained-tda")
    wrong = {(one.metric, one.method) for one in inconsistencies() if one.kind == "average"}
    for (metric, method, _, _), cells in rows_of(table):
        ten = [value for dataset, value in cells.items() if dataset not in ("imagenet", "average:fine-grained")]
        off = abs(sum(ten) / 10 - cells["average:fine-grained"])
        assert ((metric, method) in wrong) == (off <= Fraction(1, 100)), (metric, method)
    # One row of the table, Penalty, is averaged over all eleven datasets.
    assert {method for _, method in wrong} == set(table.methods) - {"tda(penalty)"}


def test_printed_differences_from_tpt():
    """Each of the three values is rounded to half a unit, so they agree to one and a half."""
    checked = 0
    for name in PAPER_TABLES:
        table = load_table(name)
        for cell in table.rows:
            if cell.change is None or cell.method == "zeroshot":
                continue
            checked += 1
            base = table.value(cell.metric, "tpt", cell.dataset)
            assert abs(exact(cell.value) - exact(base) - exact(cell.change)) <= Fraction(15, 1000), cell
    assert checked == 36
    assert not [one for one in inconsistencies() if one.kind == "change"]


def test_the_same_quantity_in_two_tables():
    first, found = {}, set()
    for name in PAPER_TABLES:
        for cell in load_table(name).rows:
            key = (cell.metric, cell.method, cell.backbone, cell.prompt, cell.dataset)
            if first.setdefault(key, cell.value) != cell.value:
                found.add((name, cell.metric, cell.method, cell.dataset, cell.value, first[key]))
    listed = {
        (one.table, one.metric, one.method, one.dataset, one.printed, one.expected)
        for one in inconsistencies()
        if one.kind == "printed twice"
    }
    assert found == listed
    # One table comes from other runs than the rest; all others repeat each other exactly.
    assert {one[0] for one in found} == {"ensemble-only"}
    assert len(found) == 38


def test_names_are_those_of_cots():
    for name in PAPER_TABLES:
        table = load_table(name)
        assert all(str(cots.parse_method(method)) == method for method in table.methods)
        assert set(table.datasets) <= set(PROTOCOLS)


def test_cots_keeps_the_accuracy_of_its_adapter():
    checked = 0
    for table in map(load_table, PAPER_TABLES):
        for cell in table.select(metric="accuracy"):
            adapter, _, calibrator = cell.method.partition("+")
            if calibrator == "cots":
                where = {"backbone": cell.backbone, "prompt": cell.prompt}
                assert table.value("accuracy", adapter, cell.dataset, **where) == cell.value
                checked += 1
    assert checked == 79


def test_bold_cells():
    """All bold values of the paper, by eye."""
    bold = {(name, c.method, c.dataset, c.value) for name in PAPER_TABLES for c in load_table(name).rows if c.bold}
    fine, variants = "average:fine-grained", "average:variants"
    assert bold == {
        ("cece-fine-grained", "tpt+ecots", fine, 0.95),
        ("cece-imagenet-variants", "tpt+ecots", variants, 0.13),
        ("aece-fine-grained", "tpt+cots", fine, 0.91),
        ("aece-imagenet-variants", "tpt", variants, 0.10),
        ("aece-imagenet-variants", "tpt+sals", variants, 0.10),
        ("zero", "zeroshot", variants, 4.98),
        ("zero", "zeroshot+zero", variants, 62.42),
        ("zero", "zeroshot+ensemble", fine, 65.21),
        ("zero", "zeroshot+ensemble", fine, 4.00),
        ("zero", "tpt+zero", variants, 62.97),
        ("zero", "tpt+ensemble", fine, 65.32),
        ("zero", "tpt+ecots", fine, 4.31),
        ("zero", "tpt+ecots", variants, 5.38),
    }


def test_tables_by_other_names():
    table = load_table("imagenet-variants")
    assert load_table("table:imagenet-variants") == table
    assert load_table("tab:imagenet_variants") == table
    with pytest.raises(cots.InputError, match="Did you mean 'imagenet-variants'"):
        load_table("imagenet-variant")
    with pytest.raises(cots.InputError, match="table of the paper 'tab:nothing'"):
        load_table("tab:nothing")
