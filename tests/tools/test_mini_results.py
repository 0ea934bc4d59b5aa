"""Figures of the recipe's runs: the pages print those of the files, and the recipe is the one that they choose."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from support.mini_scripts import CARD, CLASSES, PAGE, TOOLS

import cots

RESULTS = sorted((TOOLS / "results").iterdir())
OF_FOLDER = {
    "ablations-3000": {"full", "label 0.7", "no gains", "label 0.7, no gains"},
    "choices-caltech": {"full", "label 0.7", "label 0.3", "alpha 0.85", "no gains"},
    "choices-flowers": {"full", "label 0.7"},
    "choices-caltech-trunk": {
        "last stage, 1e-5",
        "last stage, 1e-4",
        "last stage, 1e-4, not kept",
        "last two stages, 1e-5",
    },
    "choices-pets": {"full", "label 0.7", "alpha 0.85", "no gains"},
    "trunk": set(),
} | {f"choices-{name}-{steps}": {"full"} for name in ("caltech", "pets") for steps in (1500, 4000)}


@pytest.mark.parametrize("folder", RESULTS, ids=[f.name for f in RESULTS])
def test_the_pages_tables_are_what_the_command_prints(recipe, folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ablate.py", "--out", str(folder), "--table"])
    recipe.ablate.main()
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert len(tables) == 2
    page = PAGE.read_text()
    for table in tables:
        assert f"\n\n{table}\n\n" in page


@pytest.mark.parametrize("folder", RESULTS, ids=[f.name for f in RESULTS])
def test_every_recipe_of_a_folder_has_three_seeds(recipe, folder):
    found: dict[str, set[int]] = {}
    for file in folder.glob("*.json"):
        result = json.loads(file.read_text())
        if "variant" in result:
            found.setdefault(result["variant"], set()).add(result["seed"])
            assert [result[s]["n"] for s in CLASSES] == [222, 369, 387]
            assert ("left_out" in result) == folder.name.startswith("choices-")
            parts = folder.name.split("-")
            assert parts[:2] == ["choices", result["left_out"]] if "left_out" in result else parts[0] == "ablations"
            assert result["steps"] == (int(parts[-1]) if parts[-1].isdigit() else 3000 if "left_out" in result else 600)
    assert set(found) == OF_FOLDER.get(folder.name, set(recipe.ablate.VARIANTS))
    assert all(seeds == {0, 1, 2} for seeds in found.values())


def test_figures_of_a_row_are_means_over_sets_and_seeds(recipe):
    files = [TOOLS / "results" / "ablations" / f"no_gains-{seed}.json" for seed in range(3)]
    results = [json.loads(f.read_text()) for f in files]
    nll = [np.mean([r[s]["factor 0.25"]["tpt"]["nll"] for s in CLASSES]) for r in results]
    rows = recipe.ablate.read(files[0].parent)["no gains"]
    assert [r["TPT NLL"] for r in rows] == pytest.approx(nll)
    line = next(x for x in recipe.ablate.table(files[0].parent) if x.startswith("| no gains |") and "| 3 |" in x)
    assert line.split(" | ")[2] == recipe.ablate.cell([100 * r["prototypes_agree"] for r in results], 1)
    assert f"{np.mean(nll):.3f} ± {np.std(nll, ddof=1):.3f}" in "\n".join(recipe.ablate.table(files[0].parent))


def test_only_differences_beyond_the_spread_of_seeds_are_bold(recipe):
    spread = [-1.0, 0.0, 1.0]
    groups = {
        "full": [{"a": x, "b": x} for x in spread],
        "no teacher": [{"a": 100 + x, "b": 2 + x} for x in spread],
        "no gains": [{"a": 0.5 + x, "b": 100.0} for x in spread],
        "shipped": [{"a": 500.0, "b": 500.0}],
    }
    assert recipe.ablate.apart(groups) == {("no teacher", "a"), ("no gains", "b")}


def test_another_s_is_not_bold_where_its_own_seeds_lie_as_far_apart(recipe):
    """Its rows are no part of the common spread: wide as they are, nothing is shown."""
    groups = {
        "full": [{"a": 80.0 + x, "b": x} for x in (-1.0, 0.0, 1.0)],
        "label 0.7": [{"a": 80.0 + x, "b": x} for x in (-1.0, 0.0, 1.0)],
        "full, s = 1": [{"a": 60.0 + 10 * x, "b": 60.0 + x} for x in (-1.0, 0.0, 1.0)],
    }
    assert recipe.ablate.apart(groups) == {("full, s = 1", "b")}


def test_the_card_counts_the_photos_of_everyday_words(recipe):
    """One photo a class: a word has as many photos as its group has ImageNet classes."""
    names = recipe.names
    labels = names.everyday_labels(recipe.train.Vocabulary(CLASSES))
    counts = {w: int((labels == k).sum()) for k, w in enumerate(names.EVERYDAY)}
    assert counts["dog"] == 118
    card = " ".join(CARD.read_text().split())
    assert f"({', '.join(names.EVERYDAY)}) on the {sum(counts.values())} photos of that sample" in card
    told = re.search(r"belong to their groups: [\d.]+%, at a mean confidence of [\d.]+%\. Weakest: ([^.]*)\.", card)
    assert told
    found = re.findall(r"(\w+) \d+ of (\d+)", told[1])
    assert len(found) == 4
    assert all(counts[word] == int(n) for word, n in found)


def test_runs_of_two_lengths_are_not_put_into_one_table(recipe, tmp_path):
    for seed, steps in ((0, 600), (1, 2000)):
        result = json.loads((TOOLS / "results" / "ablations" / f"full-{seed}.json").read_text())
        (tmp_path / f"full-{seed}.json").write_text(json.dumps(result | {"steps": steps}))
    with pytest.raises(SystemExit, match="steps 2000, 600"):
        recipe.ablate.read(tmp_path)


def test_another_s_has_a_row_where_it_was_measured(recipe):
    """With a set left out; at 3,000 steps labels alone were measured so with Caltech left out only."""

    def at_another_s(folder: str) -> set[str]:
        return {v for v in recipe.ablate.read(TOOLS / "results" / folder) if ", s = " in v}

    mixed, alone = ({f"{v}, s = {s}" for s in ("1", "0.5", "0.125")} for v in ("label 0.7", "full"))
    assert at_another_s("choices-pets") == mixed
    assert at_another_s("choices-caltech") == mixed | alone
    assert at_another_s("choices-pets-1500") == at_another_s("choices-caltech-4000") == alone
    final = {f"final, s = {s}" for s in ("1", "0.5", "0.25", "0.125")}
    assert at_another_s("ablations") == {"full, s = 1", "label 0.7, s = 1"} | final
    result = json.loads((TOOLS / "results" / "choices-pets" / "label_0.7-2.json").read_text())
    row = recipe.ablate.read(TOOLS / "results" / "choices-pets")["label 0.7, s = 0.5"][2]
    assert row["TPT NLL"] == result["pets"]["factor 0.5"]["tpt"]["nll"]


def test_the_cards_figures_of_names_without_photos_are_those_of_the_files():
    rows = re.findall(r"^\| (Caltech|Pets) \| (zero-shot|TPT[^|]*?) \| (.*) \|$", CARD.read_text(), re.M)
    assert len(rows) == 10
    for name, method, cells in rows:
        key = method.removeprefix("TPT + ").lower().replace("-", "")
        files = (TOOLS / "results" / f"choices-{name.lower()}").glob("full-*.json")
        found = [json.loads(f.read_text())[name.lower()]["factor 0.25"][key] for f in files]
        mean = [np.mean([r[figure] for r in found]) for figure in ("acc", "conf", "ece", "nll")]
        assert [float(c) for c in cells.split(" | ")] == pytest.approx(mean, abs=0.0501)
        assert float(cells.split(" | ")[-1]) == pytest.approx(mean[-1], abs=0.000501)


def lengths(name: str) -> list[Path]:
    return [TOOLS / "results" / f"choices-{name}{end}" for end in ("", "-1500", "-4000")]


TRUNK = [TOOLS / "results" / name for name in ("choices-caltech", "choices-caltech-trunk")]


@pytest.mark.parametrize("folders", [lengths("caltech"), lengths("pets"), TRUNK], ids=["caltech", "pets", "trunk"])
def test_the_pages_comparisons_are_what_the_command_prints(recipe, folders, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare.py", "--out", *map(str, folders)])
    recipe.compare.main()
    assert f"\n\n{capsys.readouterr().out.strip()}\n\n" in PAGE.read_text()


def runs(folder: str, variant: str) -> list[dict]:
    return [json.loads((TOOLS / "results" / folder / f"{variant}-{seed}.json").read_text()) for seed in range(3)]


def left_out_nll(found: list[dict], s: float = 0.25) -> np.ndarray:
    """Of each run on Caltech: the mean of four methods."""
    assert {r["left_out"] for r in found} == {"caltech"}
    figures = [r["caltech"][f"factor {s}"] for r in found]
    return np.array([np.mean([f[m]["nll"] for m in ("zeroshot", "tpt", "cots", "ecots")]) for f in figures])


def trained_nll(found: list[dict]) -> np.ndarray:
    """Of each run with Caltech left out, zero-shot: the mean of the sets that took part."""
    return np.array([np.mean([r[s]["all"]["nll"] for s in ("pets", "flowers")]) for r in found])


def test_the_recipe_is_the_one_that_the_rule_chooses(recipe):
    """The rule of docs/mini-recipe.md, from the files: Caltech left out, mean NLL of four methods and three seeds."""

    def nll(steps: int, variant: str, s: float) -> np.ndarray:
        found = runs(f"choices-caltech{'' if steps == 3000 else f'-{steps}'}", variant)
        assert {r["steps"] for r in found} == {steps}
        return left_out_nll(found, s)

    args = recipe.options.parse(["--data", "d", "--features", "f", "--out", "o"])
    pairs = {(n, s): nll(n, "full", s).mean() for n in (1500, 3000, 4000) for s in (1.0, 0.5, 0.25, 0.125)}
    assert min(pairs, key=pairs.__getitem__) == (args.steps, recipe.ablate.FACTOR)
    shares = {1.0: "full", 0.7: "label_0.7", 0.3: "label_0.3"}
    assert min(shares, key=lambda share: nll(3000, shares[share], 0.25).mean()) == args.hard
    assert args.gains
    with_gains, without = nll(3000, "full", 0.25), nll(3000, "no_gains", 0.25)
    error = np.sqrt((with_gains.var(ddof=1) + without.var(ddof=1)) / 3)
    assert with_gains.mean() - without.mean() < 2 * error
    trained = {v: trained_nll(runs("choices-caltech", v)).mean() for v in ("full", "no_gains")}
    assert trained["full"] < trained["no_gains"]
    told = re.search(r"the trunk itself ([\d.]+)%, so ([\d.]+)% of it", " ".join(CARD.read_text().split()))
    assert told
    assert float(told[2]) >= 85


def test_the_figures_of_the_rule_would_train_two_stages_and_the_page_says_why_not(recipe):
    """Standard errors from the spread of all recipes of 3,000 steps with Caltech left out."""
    folders = ("choices-caltech", "choices-caltech-trunk")
    named = {v: v.replace(",", "").replace(" ", "_") for f in folders for v in OF_FOLDER[f]}
    found = {v: runs(folders[v in OF_FOLDER[folders[1]]], name) for v, name in named.items()}
    passed = {}
    for figure in (left_out_nll, trained_nll):
        values = {v: figure(x) for v, x in found.items()}
        error = np.sqrt(np.mean([x.var(ddof=1) for x in values.values()]) * 2 / 3)
        apart = {v: (values[v].mean() - values["full"].mean()) / error for v in OF_FOLDER[folders[1]]}
        passed[figure] = {v for v, d in apart.items() if d < -2}, {v for v, d in apart.items() if d > 2}
    helps = set.union(*(better for better, _ in passed.values()))
    harms = set.union(*(worse for _, worse in passed.values()))
    assert harms == {"last stage, 1e-4, not kept"}
    assert min(helps - harms, key=lambda v: left_out_nll(found[v]).mean()) == "last two stages, 1e-5"
    weights = Path(cots.__file__).parent / "embedded" / "mini" / "open_clip_model.safetensors"
    assert recipe.trunk.trained_stages(weights) == 0
    assert "That was not followed." in " ".join(PAGE.read_text().split())
    lines = (TOOLS / "results" / "trunk" / "names.txt").read_text().splitlines()
    figures = [
        re.findall(r"([\d.]+)% of \d+ photos right, mean confidence ([\d.]+)%, NLL ([\d.]+)", x)[0] for x in lines
    ]
    table = PAGE.read_text().split("| 16 everyday words right |")[1].split("\n\n")[0].splitlines()[2:]
    expected = [(names[0], names[2], *words) for names, words in zip(figures[::2], figures[1::2], strict=True)]
    assert [tuple(line.split(" | ")[1:]) for line in table] == [(*x[:-1], f"{x[-1]} |") for x in expected]
    assert float(expected[1][2]) < float(expected[0][2]) - 5


def test_a_comparison_is_in_standard_errors_of_the_seeds(recipe):
    lines = recipe.compare.read(lengths("caltech"))
    values = {k: np.array([found[seed]["NLL"] for seed in range(3)]) for k, found in lines.items()}
    assert [v.mean() for v in values.values()] == sorted(v.mean() for v in values.values())
    shipped, other = values[3000, "full", 0.25], values[3000, "label 0.7", 0.25]
    spread = np.mean([v.var(ddof=1) for k, v in values.items() if k[2] == 0.25])
    again = values[3000, "full", 0.5] - shipped
    expected = {
        (3000, "full", 0.25): 0.0,
        (3000, "label 0.7", 0.25): (other.mean() - shipped.mean()) / np.sqrt(spread * 2 / 3),
        (3000, "full", 0.5): again.mean() / (again.std(ddof=1) / np.sqrt(3)),
    }
    found = recipe.compare.apart(lines)
    assert {k: found[k] for k in expected} == pytest.approx(expected)
    result = json.loads((TOOLS / "results" / "choices-caltech-1500" / "full-1.json").read_text())
    line = lines[1500, "full", 0.5][1]
    assert line["trained sets"] == pytest.approx(np.mean([result[s]["all"]["nll"] for s in ("pets", "flowers")]))
    assert line["zero-shot accuracy"] == result["caltech"]["factor 0.5"]["zeroshot"]["acc"]


def test_runs_in_progress_and_folders_named_twice_change_nothing(recipe, tmp_path):
    folder = tmp_path / "choices"
    shutil.copytree(lengths("caltech")[0], folder)
    recipe.ablate.take(folder / "full-3.json")
    assert list(recipe.compare.table([folder, folder])) == list(recipe.compare.table(lengths("caltech")[:1]))


@pytest.mark.parametrize(
    ("folders", "told"),
    [
        (["choices-pets", "choices-caltech"], "caltech, pets"),
        (["ablations-3000"], "none"),
        ([], "no runs"),
        (["choices-pets-1500"], "no run of the recipe, 3,000 steps at s = 0.25"),
    ],
)
def test_only_runs_of_one_set_left_out_are_compared(recipe, folders, told):
    with pytest.raises(SystemExit, match=told):
        list(recipe.compare.table([TOOLS / "results" / f for f in folders]))
