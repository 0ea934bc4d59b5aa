"""The extractor on small tables with the layouts of the paper's."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools" / "paper"


@pytest.fixture
def extract(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    names = ("latex", "check", "extract")
    yield importlib.import_module("extract")
    for name in names:
        sys.modules.pop(name, None)


def rows(table):
    return {(row["metric"], row["method"], row["backbone"], row["prompt"]): row["cells"] for row in table["rows"]}


def read_one(extract, body, label="tab:main_standard", columns="ll"):
    source = rf"\label{{{label}}}\begin{{tabular}}{{{columns}}}{body}\end{{tabular}}"
    ((found, cells),) = extract.tables(source)
    return extract.read(found, cells)


def test_metric_down_the_side_with_subscripts_and_colours(extract):
    table = read_one(
        extract,
        r"""\toprule
        (\%) & Method & ImgNet & Cars & Average \\ \midrule
        \multirow{2}{*}{\rotatebox[origin=c]{90}{Accuracy}}
        & TPT~\cite{a} & 60.00 & 50.10 & 55.05$_\texttt{{\textcolor{white!100}{+0.00}}}$ \\ % a remark, 1.00
        & \cellcolor{x} \texttt{\hspace*{-2pt}CoTS} & \cellcolor{x}60.00 & \cellcolor{x}50.10
        & \cellcolor{x}\textbf{55.05}$_\texttt{{\textcolor{red!100}{-0.63}}}$ \\ \midrule
        \multirow{1}{*}{\rotatebox[origin=c]{90}{ECE}} & SALS & 1.00 & 2.00 & 1.50 \\ \bottomrule""",
    )
    model, prompt = "ViT-B-16/openai", "a photo of a {}."
    sets = {"imagenet": 60.0, "cars": 50.1, "average:fine-grained": 55.05}
    assert rows(table) == {
        ("accuracy", "tpt", model, prompt): sets,
        ("accuracy", "tpt+cots", model, prompt): sets,
        ("ece", "tpt+sals", model, prompt): {"imagenet": 1.0, "cars": 2.0, "average:fine-grained": 1.5},
    }
    assert [row.get("change") for row in table["rows"]] == [
        {"average:fine-grained": 0.0},
        {"average:fine-grained": -0.63},
        None,
    ]
    assert [row.get("bold") for row in table["rows"]] == [None, ["average:fine-grained"], None]


def test_metric_across_the_top(extract):
    table = read_one(
        extract,
        r"""\multirow{2}{*}{\textbf{Method}} & \multicolumn{2}{c}{Accuracy (\%)} & \multicolumn{2}{c}{ECE (\%)} \\
        \cmidrule(lr){2-3} \cmidrule(lr){4-5}
        & -A & Avg. & -A & Avg. \\ \midrule
        \rowcolor{x} \texttt{E-CoTS} & 1.00 & 2.00 & 3.00 & 4.00 \\""",
        label="tab:imagenet_variants_rn50",
    )
    assert {(key[0], key[2]): cells for key, cells in rows(table).items()} == {
        ("accuracy", "RN50/openai"): {"imagenet-a": 1.0, "average:variants": 2.0},
        ("ece", "RN50/openai"): {"imagenet-a": 3.0, "average:variants": 4.0},
    }


def test_adapters_across_and_calibrators_down(extract):
    table = read_one(
        extract,
        r"""\multirow{3}{*}{(\%)} & \multirow{3}{*}{Method} & \multicolumn{1}{c}{Fine-grained datasets}
        & \multicolumn{1}{c}{ImageNet variants} \\
        & & \shortstack[c]{SoC} & SoC \\ & & \cite{a} & \cite{a} \\
        \multirow{2}{*}{\rotatebox[origin=c]{90}{ECE}} & base & 1.00 & 2.00 \\
        & + \ecots & 3.00 & 4.00 \\""",
        label="tab:coop_cots_ablation_full",
    )
    assert {(key[1], key[3]): cells for key, cells in rows(table).items()} == {
        ("soc", "coop"): {"average:fine-grained": 1.0, "average:variants": 2.0},
        ("soc+ecots", "coop"): {"average:fine-grained": 3.0, "average:variants": 4.0},
    }


def test_calibrators_under_an_adapter_belong_to_it(extract):
    table = read_one(
        extract,
        r"""Method & \multicolumn{1}{c}{ImageNet variants} \\ & ACC (\%) \\
        Zero-Shot & 1.00 \\ w/ ZERO & 2.00 \\ TPT & 3.00 \\ w/ Ensemble (Ours) & 4.00 \\""",
        label="tab:zero_ensemble_comparison",
    )
    assert [row["method"] for row in table["rows"]] == ["zeroshot", "zeroshot+zero", "tpt", "tpt+ensemble"]


def test_methods_under_tda_prompts_and_times(extract):
    online = read_one(
        extract, r"Method & ECE (\%) \\ & -A \\ TDA & 1.00 \\ C-TPT & 2.00 \\ CoTS & 3.00 \\", label="tab:online_tta"
    )
    assert [row["method"] for row in online["rows"]] == ["tda", "tda(ctpt)", "tda+cots"]
    prompts = read_one(
        extract,
        r"\multirow{2}{*}{Prompt template} & Metric & TPT \\ & (\%) & \cite{a} \\"
        r"\multirow{1}{*}{\texttt{ "
        r'"a\_good\_photo\_of\_a"}} & ACC & 1.00 \\',
        label="tab:prompt_imagenet_variants",
        columns=r"lc>{\columncolor{x}}c",
    )
    assert prompts["rows"][0]["prompt"] == "a good photo of a {}."
    times = read_one(
        extract, r"Dataset & TPT & \cots~ \\ DTD & 0.192 & +0.053 \\", label="tab:time_table_dtd_imageneta"
    )
    assert [(row["metric"], row["cells"]) for row in times["rows"]] == [
        ("seconds", {"dtd": 0.192}),
        ("extra_seconds", {"dtd": 0.053}),
    ]
    assert times["decimals"] == 3


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (r"Method & ECE \\ & -A \\ X-TPT & 1.00 \\", "unknown word 'X-TPT'"),
        (r"Method & ECE \\ & -A \\ \emph{TPT} & 1.00 \\", "Unsupported LaTeX"),
        (r"Method & ECE & ECE \\ & -A & -A \\ TPT & 1.00 & 2.00 \\", "same cell twice"),
        (r"Method & ECE & ECE \\ & -A & -V \\ TPT & 1.00 & 2.00 \\ SoC & 1.00 \\", "2 cells instead of 3"),
        (r"Method & ECE & ECE \\ & -A & -V \\ TPT & 1.00 & none \\", "'none' is not a number"),
        (r"Method & -A \\ TPT & 1.00 \\", "no metric"),
        (r"Method & ECE \\ & -A \\ Accuracy & 1.00 \\", "metric appears twice"),
    ],
)
def test_unsupported_tables_are_errors(extract, body, message):
    with pytest.raises(ValueError, match=message):
        read_one(extract, body)


def test_the_committed_inconsistencies_are_up_to_date(extract):
    folder = Path(__file__).parents[2] / "src" / "cots" / "paper"
    found = []
    for name in json.loads((folder / "index.json").read_text()):
        table = json.loads((folder / "tables" / f"{name}.json").read_text())
        common = {axis: table[axis] for axis in ("backbone", "prompt")}
        found.append({**table, "rows": [{**common, **row} for row in table["rows"]]})
    expected = extract.dump({"rows": extract.inconsistencies(found)}, "rows")
    assert (folder / "inconsistencies.json").read_text() == expected
    found[0]["rows"][0]["cells"]["imagenet"] += 1.0
    assert len(extract.inconsistencies(found)) == len(extract.inconsistencies(found[1:])) + 1


def test_another_source_is_refused(extract, tmp_path):
    tex = tmp_path / "other.tex"
    tex.write_text(r"\label{tab:timing}\begin{tabular}{l}Dataset & TPT \\ DTD & 0.100\end{tabular}")
    with pytest.raises(KeyError):
        extract.main(str(tex), str(tmp_path))
    tex.write_text("no table")
    with pytest.raises(ValueError, match="does not have the expected tables"):
        extract.main(str(tex), str(tmp_path))


def test_quotations_are_compared_with_the_text_without_citations(extract):
    source = r"""TPT~\cite{a} is better, % a remark
    and \cots~and \texttt{E-CoTS} keep 62.95\% of the $\mathcal{L}_2$ loss."""
    quotes = ["TPT is better, and CoTS and E-CoTS keep 62.95% of the L2 loss", "a remark", "TPT is worse"]
    assert extract.misquoted(source, quotes) == ["a remark", "TPT is worse"]
