"""A report's tables as text: Markdown, LaTeX, CSV, and the words around them."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from types import SimpleNamespace

import pytest
from support.report_run import HASH, FakeRun, small_run

from cots.bench import MethodSettings
from cots.evaluate import summarise
from cots.evaluate._write import CSV_COLUMNS, _texts, tidy_csv
from cots.evaluate.text import (
    arrow,
    figure_caption,
    kind,
    kinds,
    mark,
    provenance,
    render,
    sentences,
    spoken_change,
    table_caption,
    tex,
    text_table,
    warnings,
)
from cots.metrics import METRICS

FAST = {"resamples": 60}


@pytest.fixture(scope="module")
def summary():
    return summarise(small_run(), **FAST)


def markdown(summary, drawn=()):
    return _texts(summary, ("md",), drawn, ("svg",))["report.md"]


def latex_tables(summary):
    return _texts(summary, ("tex",))["tables.tex"]


def says_where_it_comes_from(text: str) -> bool:
    wanted = (
        "20 equal-width bins (lo, hi], the first closed at 0",
        "seeds 0, 1",
        "model mini",
        f"weights {HASH[:12]})",
    )
    return all(words in text for words in wanted) and HASH[:13] not in text


def test_methods_are_marked_as_episodic_or_online(summary):
    assert kinds(summary) == "All methods are episodic."
    streams = dataclasses.replace(summary, methods=("zeroshot", "tda", "tda+cots", "ecalp", "not-installed"))
    assert kinds(streams) == "Online, in the order of the records: tda, ecalp; the others are episodic."
    entry, orders = {}, {"mine": "shuffled", "mine+cots": "shuffled", "other+cots": None}
    for method, order in orders.items():
        entry[method] = MethodSettings(adapter={}, calibrator={}, stream_order=order)
    manifest = SimpleNamespace(settings={"pets": entry})
    plugged = dataclasses.replace(summary, manifest=manifest, methods=tuple(orders))
    assert [kind(plugged, method) for method in orders] == ["online", "online", "episodic"], "as the run recorded"
    assert kinds(plugged) == "Online, in the order of the records: mine; the others are episodic."
    for text in (markdown(summary), latex_tables(summary), text_table(summary)):
        assert "All methods are episodic." in text


def test_captions_say_n_bins_edges_seeds_and_model(summary):
    for metric in METRICS.infos():
        caption = table_caption(summary, metric)
        assert "OxfordPets n = 60; DTD n = 46 (2 failed); My <photos>" in caption
        assert metric.direction in caption
        if metric.name == "adaptive_ece":
            assert "20 ranges of equal mass; seeds 0, 1; model mini (weights 0123456789ab)" in caption
        else:
            assert says_where_it_comes_from(caption)
        assert ("95% bootstrap interval over images" in caption) == (
            metric.name not in ("adaptive_ece", "classwise_ece")
        )
    for column in summary.datasets:
        caption = figure_caption(summary, column, "How to read it.")
        assert caption.startswith("How to read it. The records of all seeds are pooled.")
        assert says_where_it_comes_from(caption)
        assert f"{column.title} n = " in caption


def test_one_seed_has_no_spread():
    found = summarise(small_run(seeds=(3,)), **FAST)
    caption = table_caption(found, METRICS.info("ece"))
    assert "One seed, so no spread over seeds" in caption
    assert "; seed 3; model" in caption
    assert "±" not in markdown(found)
    assert "pm" not in latex_tables(found)
    assert ",std," not in tidy_csv(found)


def test_samples_that_failed_under_some_methods_only_show_as_a_range():
    run = small_run()
    inner = run.records

    def records(dataset, method, seed):
        return inner(dataset, method, seed) if method == "tpt" else small_run(broken={}).records(dataset, method, seed)

    run.records = records
    assert "DTD n = 46 to 48 (2 failed)" in table_caption(summarise(run, **FAST), METRICS.info("ece"))


def test_probabilities_of_zero_are_mentioned_with_the_likelihood():
    run = small_run(seeds=(0,), methods=("tpt",))
    records = run.records("pets", "tpt", 0)
    records.probabilities[0] = 0.0
    records.probabilities[0, (records.label[0] + 1) % 5] = 1.0
    run.records = lambda dataset, method, seed: records
    found = summarise(run, **FAST)
    assert "In 3 records the label has probability 0, counted as" in table_caption(found, METRICS.info("nll"))
    assert "probability 0" not in table_caption(found, METRICS.info("ece"))


def test_marks(summary):
    ece = METRICS.info("ece")
    cell = dataclasses.replace(
        summary.cell("dtd", "tpt+cots", "ece"), change=-0.0321, change_low=-0.05, change_high=-0.01, better=True
    )
    assert (mark(ece, cell), arrow(ece, cell)) == ("down", "▼")
    assert spoken_change(ece, cell) == "better than tpt: −3.21 [−5.0, −1.0]"
    chance = dataclasses.replace(cell, change=0.0321, change_low=-0.01, change_high=0.07, better=False)
    assert (mark(ece, chance), arrow(ece, chance)) == ("up", "△")
    assert spoken_change(ece, chance).startswith("worse than tpt: +3.21")
    none = dataclasses.replace(cell, change=0.00004, change_low=-0.01, change_high=0.01)
    assert (mark(ece, none), arrow(ece, none), spoken_change(ece, none)) == ("same", "=", "the same as tpt")
    alone = summary.cell("dtd", "tpt", "ece")
    assert (mark(ece, alone), arrow(ece, alone)) == ("", "")


def test_markdown_tables_have_every_cell(summary):
    text = markdown(summary, [("a", "Reliability", "A caption.")])
    tables = re.findall(r"(?:^\|.*\|\n?)+", text, flags=re.M)
    assert len(tables) == len(METRICS.infos()) + 2  # and those of times and of failed samples
    assert "| tpt+cots | " in tables[-2]
    assert tables[-2].splitlines()[0] == "| method | tau | encoding, ms | adaptation, ms |"
    for metric, table in zip(METRICS.infos(), tables, strict=False):
        head, rule, *rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.strip().splitlines()]
        assert len(head) == len(rule) == 1 + len(summary.columns)
        assert [row[0].strip() for row in rows] == list(summary.methods)
        for row in rows:
            assert len(row) == len(head)
            cell = summary.cell("dtd", row[0].strip(), metric.name)
            assert metric.show(cell.mean) in row[2]
            has_interval = metric.name not in ("adaptive_ece", "classwise_ece")
            assert (f"[{metric.show(cell.low, interval=True)}, " in row[2]) == has_interval
            assert ("**" in row[2]) == (row[0].strip() in summary.best("dtd", metric.name))
    assert "![Reliability](figures/a.svg)" in text
    assert "| dtd | dtd/0007.jpg | image is truncated \\| at byte 5 |" in text
    assert "—" not in text


def test_latex_is_balanced_and_escaped(summary):
    tables = latex_tables(summary)
    assert tables.count("\\begin{table}") == tables.count("\\end{table}") == len(METRICS.infos())
    plain = re.sub(r"\\[\\{}&%$#_]", "", tables)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    code = "\n".join(line for line in plain.splitlines() if not line.startswith("%"))
    assert not re.search(r"[%#_]", code.replace("%\n", "\n"))
    assert tables.isascii()
    assert r"My $<$photos$>$ \& 100\%\_more" in tables
    for body in re.findall(r"\\midrule\n(.*?)\\bottomrule", tables, flags=re.S):
        rows = body.strip().splitlines()
        assert len(rows) == len(summary.methods)
        # One & before each column; escaped ones are part of a name.
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(summary.columns)}
        assert all(row.endswith(r"\\") for row in rows)
    assert "\\begin{tabular}{lrrrr}" in tables
    assert [line.split(" & ")[0] for line in tables.splitlines() if line.startswith("C-TPT")][:1] == ["C-TPT + CoTS"]


def test_latex_arrows_show_what_is_clear(summary):
    row = next(line for line in latex_tables(summary).split("tab:cots-nll")[1].splitlines() if "TPT + CoTS" in line)
    for column, text in zip(summary.columns, row.split(" & ")[1:], strict=True):
        cell = summary.cell(column.name, "tpt+cots", "nll")
        assert ("$\\downarrow$" in text) == (cell.clear and cell.change < 0)
        assert ("$(\\downarrow)$" in text) == (not cell.clear and cell.change < 0)


def test_latex_document_inputs_the_tables_and_figures():
    text = render("report.tex", figures=[("figures/my_set-risk.pdf", "Risk", "100% of it_all")])
    assert text.index("\\begin{document}") < text.index("\\input{tables.tex}") < text.index("\\end{document}")
    assert "\\usepackage{booktabs}" in text
    assert "{\\detokenize{figures/my_set-risk.pdf}}" in text
    assert "\\caption{Risk. 100\\% of it\\_all}" in text
    plain = re.sub(r"\\[\\{}&%$#_]", "", text)
    assert plain.count("{") == plain.count("}")


def test_every_special_character_of_latex_is_escaped():
    assert tex("a_b&c%d$e#f{g}h~i^j\\k") == (
        r"a\_b\&c\%d\$e\#f\{g\}h\textasciitilde{}i\textasciicircum{}j\textbackslash{}k"
    )
    assert tex("1 ± 2 – 3") == r"1 $\pm$ 2 -- 3"


def test_csv_is_tidy_and_exact(summary):
    rows = list(csv.DictReader(io.StringIO(tidy_csv(summary))))
    assert tuple(rows[0]) == CSV_COLUMNS
    key = ("dataset", "method", "metric", "statistic", "seed")
    found = {tuple(row[name] for name in key): row for row in rows}
    assert len(found) == len(rows)
    for cell in summary.cells.values():
        at = (cell.column, cell.method, cell.metric)
        for seed, value in zip(cell.seeds, cell.values, strict=True):
            assert float(found[(*at, "seed", str(seed))]["value"]) == value
        for statistic in ("mean", "std", "low", "high", "change", "change_low", "change_high"):
            value, row = getattr(cell, statistic), found.get((*at, statistic, "all"))
            assert (row is None) == (value is None)
            assert row is None or float(row["value"]) == value
    row = found["dtd", "tpt", "ece", "seed", "1"]
    assert (row["n"], row["failed"], row["bins"], row["edges"]) == ("46", "2", "20", "(lo, hi]")
    assert (row["weights_hash"], row["unit"], row["group"]) == (HASH, "fraction", "fine-grained")
    assert found["dtd", "tpt", "nll", "low", "all"]["resamples"] == "60"
    assert found["dtd", "tpt", "nll", "low", "all"]["unit"] == "nats"
    assert found["dtd", "tpt", "nll", "mean", "all"]["resamples"] == ""


def test_the_text_for_a_terminal(summary):
    text = text_table(summary)
    head = next(line for line in text.splitlines() if line.startswith("ECE %"))
    row = next(line for line in text.split(head)[1].splitlines() if line.startswith("tpt+cots"))
    assert head.index("DTD") + 3 == row.index(
        METRICS.info("ece").show(summary.cell("dtd", "tpt+cots", "ece").mean)
    ) + len(text_figure(summary, "dtd", "tpt+cots"))
    assert re.findall(r"^(\w+) (?:%|nats) ", text, re.MULTILINE) == ["accuracy", "ECE", "NLL"]
    assert says_where_it_comes_from(text)
    assert "2 samples failed (2 of DTD); all figures exclude records without a result (16 records)." in text


def text_figure(summary, column, method):
    ece, cell = METRICS.info("ece"), summary.cell(column, method, "ece")
    return f"{ece.show(cell.mean)} ± {ece.show(cell.std)} {arrow(ece, cell)}"


def test_the_sentence_names_the_least_error_and_its_base():
    sets = {name: (name, 400, 20, "fine-grained", 1.2) for name in ("pets", "caltech")}
    found = summarise(FakeRun(sets=sets, methods=("tpt", "tpt+sals", "tpt+cots", "tpt+ecots"), seeds=(0,)), **FAST)
    (sentence,) = sentences(found)
    cells = {m: found.cell("average:fine-grained", m, "ece") for m in found.methods}
    least = min(cells, key=lambda m: cells[m].mean)
    assert least == "tpt+ecots"
    ece, right = METRICS.info("ece"), METRICS.info("accuracy")
    accuracy = {m: right.show(found.cell("average:fine-grained", m, "accuracy").mean) for m in found.methods}
    assert sentence == (
        f"Averaged over 2 fine-grained sets, tpt+ecots has the lowest calibration error (ECE): "
        f"{ece.show(cells[least].mean)}% (tpt alone: {ece.show(cells['tpt'].mean)}%). It is right "
        f"{accuracy['tpt+ecots']}% of the time, tpt {accuracy['tpt']}%."
    )


def test_where_an_adapter_alone_is_best_the_best_calibrated_one_is_named_too(summary):
    cells = dict(summary.cells)
    for method, value in (("zeroshot", 0.01), ("tpt", 0.2), ("tpt+cots", 0.1), ("ctpt+cots", 0.05)):
        cell = cells["average:fine-grained", method, "ece"]
        change = None if cell.change is None else -0.1
        cells["average:fine-grained", method, "ece"] = dataclasses.replace(
            cell, values=(value, value), change=change, change_low=change, change_high=change
        )
    (sentence,) = sentences(dataclasses.replace(summary, cells=cells))
    assert sentence.startswith(
        "Averaged over 2 fine-grained sets, zeroshot has the lowest calibration error (ECE): 1.00%. Of the calibrated "
        "methods, tpt+cots has the lowest: 10.00% (tpt alone: 20.00%). Both are right equally often: "
    )


def test_a_sentence_claims_no_more_than_the_interval():
    found = summarise(small_run(methods=("tpt", "tpt+cots")), **FAST)
    cell = found.cell("average:fine-grained", "tpt+cots", "ece")
    unclear = dataclasses.replace(cell, change_low=-0.2, change_high=0.1)
    changed = dataclasses.replace(found, cells={**found.cells, (cell.column, cell.method, "ece"): unclear})
    assert "Both are right equally often:" in sentences(found)[0]
    assert "%, a difference within chance)" in sentences(changed)[0]
    assert sentences(summarise(small_run(methods=("tpt",)), **FAST)) == []


def test_warnings_come_only_with_a_reason(summary):
    sets = {"pets": ("OxfordPets", 1000, 5, None, 1.0)}
    assert warnings(summarise(FakeRun(sets=sets, methods=("tpt",), seeds=(0,)), **FAST)) == []
    unfinished = small_run(absent=(("pets", "tpt", 1),), broken={"dtd": {0: "x"}}, seeds=(0, 1))
    first, second, third = warnings(summarise(unfinished, **FAST))
    assert first.startswith("This run is not finished: 1 of 24 parts (a method on a dataset with a seed)")
    assert second.startswith("1 sample failed (1 of DTD); all figures exclude")
    assert third.startswith("With fewer than 1,000 samples (OxfordPets, DTD, My <photos>")
    assert warnings(dataclasses.replace(summary, complete=False))[0] == (
        "This run is not finished. The figures can still change."
    )


def test_captions_of_an_unfinished_run_do_not_claim_every_seed(summary):
    part = summarise(small_run(absent=(("pets", "tpt", 1),), seeds=(0, 1)), **FAST)
    assert "seeds 0, 1 (not all of them for every method)" in provenance(part)
    assert "over up to 2 seeds" in markdown(part)
    assert "not all" not in provenance(summary)
    assert "over 2 seeds" in markdown(summary)


def test_markdown_prints_manifest_strings_as_text(summary):
    hostile = "<img src=x onerror=alert(1)> & [x](javascript:alert(1))\n\n# title"
    columns = [dataclasses.replace(column, title=hostile) for column in summary.columns]
    text = markdown(dataclasses.replace(summary, columns=tuple(columns), model=hostile))
    assert "<img" not in text
    assert "](javascript" not in text
    assert "\n# title" not in text
    assert "&lt;img src=x onerror=alert(1)> &amp; [x]\\(javascript:alert(1)) # title" in text
