"""The recipe of the embedded model: its switches do what they say, and the pages' figures are those of the files."""

from __future__ import annotations

import copy
import json
import re
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import cots

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / "tools" / "mini"
RESULTS = sorted((TOOLS / "results").iterdir())
CLASSES = {
    "pets": ["abyssinian", "beagle", "birman", "boxer", "pug", "ragdoll", "siamese"],
    "caltech": ["anchor", "ant", "brain", "chair", "cup", "lamp", "pizza"],
    "flowers": ["daffodil", "fire lily", "foxglove", "primula", "rose", "sunflower", "tree poppy"],
}  # fmt: skip
WIDTH, WAYS, SIDE = 1280, 19, 2
ALONE = ("--context-weight", "0", "--pairs-weight", "0")  # without the captions, which take most of a step's time
SIXTH = ("conv_pw", "conv_dw", "conv_pwl", "bn1", "bn2", "bn3")  # layers of the trunk's last stage
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
CARD, PAGE = (ROOT / "docs" / name for name in ("mini.md", "mini-recipe.md"))


@pytest.fixture(scope="module")
def recipe():
    """The scripts of tools/mini as modules, gone again afterwards: their names are everyday words."""
    names = [f.stem for f in TOOLS.glob("*.py")]
    sys.path.insert(0, str(TOOLS))
    try:
        import ablate
        import bank
        import choose
        import compare
        import demo
        import export
        import features
        import measure_names
        import options
        import photos
        import tower
        import train
        import trunk

        yield SimpleNamespace(
            ablate=ablate,
            bank=bank,
            choose=choose,
            compare=compare,
            demo=demo,
            export=export,
            features=features,
            names=measure_names,
            options=options,
            photos=photos,
            tower=tower,
            train=train,
            trunk=trunk,
        )
    finally:
        sys.path.remove(str(TOOLS))
        for name in names:
            sys.modules.pop(name, None)


def features(width: int, classes: int, seed: int) -> dict[str, torch.Tensor]:
    """Four training and two held-out photos a class: noise around a direction of the class."""
    draw = torch.Generator().manual_seed(seed)
    centres = 2 * torch.rand(classes, width, generator=draw)
    found = {}
    for prefix, n in (("", 4), ("held_", 2)):
        labels = torch.arange(classes).repeat(n)
        found[f"{prefix}labels"] = labels
        for kind, m in (("views", 3), ("described", WAYS)):
            noise = torch.rand(len(labels), m, width, generator=draw)
            found[f"{prefix}{kind}"] = (centres[labels][:, None] + noise).half()
    return found


@pytest.fixture(scope="module")
def folders(recipe, tmp_path_factory):
    """Generated features of the three sets, in the real vocabulary, for a tiny text tower."""
    data, out = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("features")
    for seed, (name, (folder, split, _)) in enumerate(recipe.photos.SETS.items()):
        (data / folder).mkdir()
        rows = [[f"{word}.jpg", k, word] for k, word in enumerate(CLASSES[name])]
        (data / folder / split).write_text(json.dumps({"train": rows}))
        save_file(features(WIDTH, len(CLASSES[name]), seed), out / f"{name}.safetensors")
    draw = torch.Generator().manual_seed(9)
    head = {"weight": torch.randn(1000, WIDTH, generator=draw) / 20, "bias": torch.zeros(1000)}
    save_file(head, out / "classifier.safetensors")
    vocabulary = recipe.train.Vocabulary(CLASSES)
    tokens = vocabulary.encode([f"a photo of a {n}." for n in vocabulary.names])[:, :30].to(torch.int16)
    save_file({"tokens": tokens.repeat(len(vocabulary.templates), 1, 1)}, out / "captions.safetensors")
    patch, config = pytest.MonkeyPatch(), recipe.tower.config

    def small(vocab_size: int) -> dict:
        found = config(vocab_size)
        found["model_cfg"]["text_cfg"] |= {"width": 32, "layers": 1, "heads": 2}
        return found

    patch.setattr(recipe.tower, "config", small)
    yield data, out
    patch.undo()


@pytest.fixture(scope="module")
def trainer(recipe, folders):
    data, out = folders
    common = ["--data", str(data), "--features", str(out), "--out", str(out / "model.safetensors"), "--device", "cpu"]
    args = recipe.options.parse([*common, "--steps", "2", "--pairs", "50", "--batch", "8"])
    return recipe.train.Trainer(args, recipe.train.Material.load(args))


def test_each_variant_changes_what_its_name_says(recipe):
    common = ["--data", "d", "--features", "f", "--out", "o"]
    full = vars(recipe.options.parse(common))
    changed = {}
    common_to_both = set(recipe.ablate.VARIANTS) & set(recipe.ablate.CHOICES)
    assert common_to_both == {"full", "label 0.7", "no gains"}
    assert all(recipe.ablate.VARIANTS[v] == recipe.ablate.CHOICES[v] for v in common_to_both)
    assert recipe.ablate.ALL.items() >= (recipe.ablate.VARIANTS | recipe.ablate.CHOICES).items()
    for variant, switches in recipe.ablate.ALL.items():
        chosen = vars(recipe.options.parse([*common, *switches]))
        changed[variant] = {k: v for k, v in chosen.items() if v != full[k]}
    assert changed == {
        "full": {},
        "no alpha penalty": {"alpha_weight": 0.0},
        "no view captions": {"context_weight": 0.0},
        "no composed captions": {"pairs_weight": 0.0},
        "no teacher": {"teacher": False},
        "no residuals": {"residuals": False},
        "label 0.7": {"hard": 0.7},
        "no gains": {"gains": False},
        "label 0.3": {"hard": 0.3},
        "alpha 0.85": {"alpha": 0.85},
        "label 0.7, no gains": {"hard": 0.7, "gains": False},
        "last stage, 1e-5": {"trunk_stages": 1},
        "last stage, 1e-4": {"trunk_stages": 1, "trunk_lr": 1e-4},
        "last stage, 1e-4, not kept": {"trunk_stages": 1, "trunk_lr": 1e-4, "keep_weight": 0.0},
        "last two stages, 1e-5": {"trunk_stages": 2},
    }


def test_what_is_not_said_is_the_recipe_of_the_card(recipe):
    args = recipe.options.parse(["--data", "d", "--features", "f", "--out", "o"])
    assert (args.hard, args.leave_out, args.teacher, args.residuals, args.gains) == (1.0, None, True, True, True)
    assert args.trunk_stages == 0
    card = " ".join(CARD.read_text().split())
    assert f"{args.steps:,} steps of AdamW, seed {args.seed}, on" in card
    assert f"holds alpha at {args.alpha} for every list" in card
    assert args.report is None
    assert f"moved every {args.steps // recipe.options.MOVES} steps" in card
    assert f"multiplied by s = {recipe.ablate.FACTOR}:" in card


def test_labels_alone_drops_the_probes_share_of_the_targets(recipe, tmp_path):
    tensors = features(16, 5, seed=0)
    # One photo is labelled wrongly: a probe that has not seen it must say so, and the label alone must not.
    tensors["labels"][0] = 3
    save_file(tensors, tmp_path / "set.safetensors")
    torch.manual_seed(0)
    alone, mixed = (recipe.bank.load_set(tmp_path, "set", "cpu", hard) for hard in (1.0, 0.7))
    truth = torch.eye(5)[alone.labels_N][:, None]
    for kind in ("targets_NVK", "targets_described_NAK"):
        assert torch.equal(getattr(alone, kind).float(), truth.expand_as(getattr(alone, kind)))
        probe = (getattr(mixed, kind).float() - 0.7 * truth) / 0.3
        torch.testing.assert_close(probe.sum(-1), torch.ones(probe.shape[:2]), rtol=0, atol=0.02)
        wrong = int((tensors["labels"].sort(stable=True).indices == 0).nonzero())
        assert probe[wrong, :, 0].mean() > 0.5
        assert probe[wrong, :, 3].mean() < 0.5
        assert probe.min() > -0.01


def test_gains_move_towards_one_scale_and_the_switch_holds_them(trainer, monkeypatch):
    """Names of pets that lie on their photos want a large scale, names that lie anywhere the smallest."""
    draw = torch.Generator().manual_seed(1)
    text = torch.nn.functional.normalize(torch.randn(len(trainer.lists.everything), 256, generator=draw), dim=-1)
    photos = trainer.bank.sets["pets"]
    views = trainer.model.visual.head(photos.held_views_MVF[:, 0].float()).detach()
    means = torch.stack([views[photos.held_labels_M == k].mean(0) for k in range(len(CLASSES["pets"]))])
    text[trainer.lists.rows["pets"]] = torch.nn.functional.normalize(means - means.mean(0), dim=-1)
    monkeypatch.setattr(trainer, "text", lambda tokens: text)
    before = dict(trainer.gain)
    assert set(before.values()) == {1.0}
    trainer.args.gains = False
    torch.manual_seed(0)
    held = trainer.held_out()
    assert trainer.gain == before
    trainer.args.gains = True
    torch.manual_seed(0)
    assert trainer.held_out() == held
    moved = dict(trainer.gain)
    trainer.gain.update(before)
    assert moved == pytest.approx({k: np.clip((held["scale"] / held[f"{k} scale"]) ** 0.5, 0.5, 2) for k in before})
    assert held["pets scale"] > 2 * held["imagenet scale"]
    assert moved["pets"] < 0.9
    assert moved["imagenet"] > moved["pets"]


def test_gains_act_on_the_targets_of_their_list_alone(trainer):
    def terms(**gains: float) -> dict[str, float]:
        trainer.gain.update(dict.fromkeys(trainer.gain, 1.0) | gains)
        torch.manual_seed(3)
        return {k: v.item() for k, v in trainer.terms(0).items()}

    plain, pets, names = terms(), terms(pets=1.5), terms(imagenet=1.5)
    trainer.gain.update(dict.fromkeys(trainer.gain, 1.0))
    assert {k for k in plain if plain[k] != pets[k]} == {"own", "joint"}
    assert {k for k in plain if plain[k] != names[k]} == {"names", "groups"}


@pytest.mark.parametrize(
    ("switch", "gone"),
    [({"context_weight": 0.0}, {"context"}), ({"pairs_weight": 0.0}, {"pairs"}), ({"teacher": False}, {"real"})],
)
def test_parts_left_out_have_no_term(trainer, monkeypatch, switch, gone):
    everything = set(trainer.terms(0))
    assert everything == {"own", "joint", "real", "names", "groups", "alpha", "context", "pairs"}
    for option, value in switch.items():
        monkeypatch.setattr(trainer.args, option, value)
    assert set(trainer.terms(0)) == everything - gone


def test_without_residuals_a_prototype_lies_on_its_own_direction(trainer, monkeypatch):
    labels = torch.zeros(50, dtype=torch.long)
    with_noise = trainer.prototypes(labels)
    monkeypatch.setattr(trainer.args, "residuals", False)
    alone = trainer.prototypes(labels)
    # Mean + size * (a mixture of two directions), cut at zero: without residuals all lie in a space of three dimensions
    # where nothing is cut.
    kept = alone.amin(0) > 0
    ranks = [torch.linalg.matrix_rank(x[:, kept].double(), rtol=1e-4).item() for x in (with_noise, alone)]
    assert kept.sum() > 100
    assert ranks[1] <= 3 < ranks[0]


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


def test_gains_move_eight_times_in_a_run_of_any_length(trainer, monkeypatch, tmp_path):
    moved = []
    monkeypatch.setattr(trainer, "report", lambda step, seconds, terms: moved.append(step))
    monkeypatch.setattr(trainer, "terms", lambda step: {"own": trainer.model.logit_scale.square()})
    monkeypatch.setattr(trainer.args, "steps", 40)
    monkeypatch.setattr(trainer.args, "out", tmp_path / "new" / "folder" / "model.safetensors")
    trainer.train()
    assert moved == [5, 10, 15, 20, 25, 30, 35, 40]
    assert trainer.args.out.is_file()


def test_a_missing_folder_is_named_with_what_to_do(recipe, tmp_path, monkeypatch):
    argv = ["train.py", "--data", str(tmp_path), "--features", str(tmp_path), "--out", str(tmp_path / "m"), "--device"]
    monkeypatch.setattr(sys, "argv", [*argv, "cpu"])
    with pytest.raises(SystemExit, match=r"split_zhou_OxfordPets\.json is missing: --data must name"):
        recipe.train.main()
    with pytest.raises(SystemExit, match=r"pets\.safetensors is missing: make it with features\.py"):
        recipe.bank.load_set(tmp_path, "pets", "cpu")
    save_file(features(WIDTH, 3, seed=0), tmp_path / "pets.safetensors")
    with pytest.raises(SystemExit, match=r"pets-maps-2\.safetensors is missing: make it with features\.py --stages 2"):
        recipe.bank.load_set(tmp_path, "pets", "cpu", stages=2)
    with pytest.raises(SystemExit, match="holds no finished runs"):
        list(recipe.ablate.table(tmp_path))


def test_runs_of_two_lengths_are_not_put_into_one_table(recipe, tmp_path):
    for seed, steps in ((0, 600), (1, 2000)):
        result = json.loads((TOOLS / "results" / "ablations" / f"full-{seed}.json").read_text())
        (tmp_path / f"full-{seed}.json").write_text(json.dumps(result | {"steps": steps}))
    with pytest.raises(SystemExit, match="steps 2000, 600"):
        recipe.ablate.read(tmp_path)


def test_photos_of_a_set_left_out_only_serve_to_measure(recipe, folders, tmp_path, monkeypatch):
    """Other photos of that set give the same model and scale, and other figures of that set alone."""
    data, features_of = folders
    monkeypatch.setattr(recipe.bank, "probe", partial(recipe.bank.probe, steps=2))
    monkeypatch.setattr(recipe.choose, "SELECTED", 2)
    monkeypatch.setattr(recipe.tower, "SCALES", recipe.tower.SCALES[::20])
    monkeypatch.setitem(recipe.ablate.CHOICES, "full", ["--pairs", "50"])
    found = []
    for seed in (2, 8):  # 2: as they were generated
        here = tmp_path / str(seed)
        shutil.copytree(features_of, here)
        save_file(features(WIDTH, len(CLASSES["flowers"]), seed), here / "flowers.safetensors")
        places = {"--out": here / "out", "--data": data, "--features": here}
        argv = ["ablate.py", *(str(word) for pair in places.items() for word in pair), "--device", "cpu"]
        argv += ["--steps", "2", "--seeds", "0", "--leave-out", "flowers", "--variants", "full"]
        monkeypatch.setattr(sys, "argv", argv)
        recipe.ablate.main()
        files = {f.stem: json.loads(f.read_text()) for f in (here / "out").glob("*.json")}
        found.append(
            {k: {n: v for n, v in r.items() if n not in ("seconds", "photos_agree", "pairs")} for k, r in files.items()}
        )
    assert set(found[0]) == {"full-0"}
    for name, first in found[0].items():
        assert first["left_out"] == "flowers"
        assert {k for k in first if first[k] != found[1][name][k]} == {"flowers"}
    factors = {k for k in found[0]["full-0"]["flowers"] if k.startswith("factor")}
    assert factors == {f"factor {s}" for s in (1.0, 0.5, 0.25, 0.125)}
    (row,) = recipe.ablate.read(tmp_path / "2" / "out")["full, s = 0.5"]
    assert row["CoTS NLL"] == found[0]["full-0"]["flowers"]["factor 0.5"]["cots"]["nll"]


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


@pytest.fixture
def pictures(recipe, tmp_path):
    """Nine test photos of each set, of one colour each, and the script's arguments for six of them."""
    for name, (folder, split, images) in recipe.photos.SETS.items():
        (tmp_path / folder / images).mkdir(parents=True)
        rows = [[f"{word}_{k}.png", label, word] for label, word in enumerate(CLASSES[name][:3]) for k in range(3)]
        for i, (file, *_) in enumerate(rows):
            Image.new("RGB", (40, 30), (28 * i, 255 - 28 * i, 90)).save(tmp_path / folder / images / file)
        (tmp_path / folder / split).write_text(json.dumps({"train": rows, "test": rows}))
    return SimpleNamespace(data=tmp_path, seed=0, photos=6, workers=1, model="model", device="cpu")


def test_the_demos_photos_are_drawn_by_the_seed_alone_in_the_order_of_the_list(recipe, pictures):
    drawn = recipe.demo.drawn(pictures)
    assert list(drawn) == list(CLASSES)
    orders = []
    for name, photos in drawn.items():
        everything = [p.path.name for p in recipe.photos.read_split(pictures.data, name, "test")]
        places = [everything.index(p.path.name) for p in photos]
        assert places == sorted(set(places))
        assert len(places) == 6
        orders.append(places)
    assert recipe.demo.drawn(pictures) == drawn
    pictures.seed = 1
    assert recipe.demo.drawn(pictures) != drawn
    assert len({tuple(x) for x in orders}) > 1


def test_workers_share_the_demos_photos_and_give_the_same_features(recipe, pictures, tmp_path, monkeypatch):
    """Two workers' parts together are one worker's, and a feature is that of the photo's own views."""
    settings = cots.ViewSettings(n=4, size=(8, 8), augmix=True)
    monkeypatch.setattr(cots.ViewSettings, "from_preprocess", lambda preprocess, augmix: settings)
    backbone = SimpleNamespace(preprocess=None, encode_images=lambda views: views.flatten(1)[:, ::16])
    monkeypatch.setattr(cots, "load", lambda model, device: backbone)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    found = {}
    for pictures.workers in (1, 2):
        folder = tmp_path / str(pictures.workers)
        folder.mkdir()
        for rank in range(pictures.workers):
            recipe.demo.encode(rank, pictures, str(folder))
        parts = [load_file(f) for f in sorted(folder.iterdir())]
        assert sum(map(len, parts)) == 18
        found[pictures.workers] = {k: v for part in parts for k, v in part.items()}
    assert set(found[1]) == {f"{name}.{i}" for name in CLASSES for i in range(6)}
    assert all(torch.equal(found[1][k], found[2][k]) for k in found[1])
    photo = recipe.demo.drawn(pictures)["caltech"][4]
    views = cots.make_views(photo.path, settings, cots.sample_seed(0, "caltech", photo.path.name))
    assert torch.equal(found[1]["caltech.4"], backbone.encode_images(views).half())


def test_a_run_is_taken_once(recipe, tmp_path):
    assert recipe.ablate.take(tmp_path / "full-0.json")
    assert not recipe.ablate.take(tmp_path / "full-0.json")


def test_a_run_that_fails_can_be_taken_again(recipe, tmp_path, monkeypatch):
    def fail(args):
        raise RuntimeError("no memory")

    monkeypatch.setattr(recipe.ablate, "class_names", lambda data, name: CLASSES[name])
    monkeypatch.setattr(recipe.ablate.Material, "load", fail)
    argv = ["ablate.py", "--out", str(tmp_path), "--data", "d", "--features", "f", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(RuntimeError, match="no memory"):
        recipe.ablate.main()
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def trunk(recipe):
    """The trunk with random weights, and batch norms that are no identity."""
    torch.manual_seed(0)
    trunk = recipe.trunk.timm.create_model(recipe.trunk.NAME, pretrained=False).eval()
    for name, tensor in trunk.state_dict().items():
        if name.endswith(("running_mean", "running_var")):
            tensor.uniform_(0.5, 1.0) if name.endswith("var") else tensor.normal_(0, 0.1)
    return recipe.trunk.round_to_half(trunk)


def test_the_last_stages_make_the_trunks_features_from_the_maps_that_enter_them(recipe, trunk):
    pixels = torch.randint(256, (3, 3, 224, 224), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = trunk.forward_head(trunk.forward_features((pixels.float() - 127) / 128), pre_logits=True)
    features, maps = recipe.trunk.trunk_outputs(trunk, pixels, (1, 2))
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    assert expected.std(0).max() > 1e-3
    for stages, shape in {1: (7, 7, 192), 2: (14, 14, 112)}.items():
        assert maps[stages].shape == (3, np.prod(shape))
        tail = recipe.trunk.Tail(trunk, stages).train()
        assert not any(m.training for m in tail.modules())
        rows = torch.cat([torch.full((3, WIDTH), torch.nan), maps[stages]], 1)
        with torch.inference_mode():
            torch.testing.assert_close(tail(rows[:, None], batch=2)[:, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def maps(recipe, trunk, folders, tmp_path_factory):
    """Features of three sets that come out of the trunk's last stage, and the maps that enter it."""
    data, before = folders
    out = tmp_path_factory.mktemp("maps")
    for file in ("classifier.safetensors", "captions.safetensors"):
        shutil.copy(before / file, out)
    save_file(trunk.state_dict(), out / recipe.trunk.TRUNK)
    tail = recipe.trunk.Tail(trunk, 1)
    for seed, name in enumerate(recipe.photos.SETS):
        tensors = features(SIDE * SIDE * 192, len(CLASSES[name]), seed)
        wide = {k: v for k, v in tensors.items() if "labels" not in k}
        with torch.inference_mode():
            rows = {k: tail(torch.cat([torch.zeros(*v.shape[:2], WIDTH), v], -1)).half() for k, v in wide.items()}
        save_file({k: v for k, v in tensors.items() if "labels" in k} | rows, out / f"{name}.safetensors")
        save_file(wide, out / recipe.bank.maps_file(name, 1))
    return data, out


def run_of(recipe, folders, out: Path, *more: str):
    data, found = folders
    common = ["--data", str(data), "--features", str(found), "--out", str(out / "run.safetensors"), "--device", "cpu"]
    args = recipe.options.parse([*common, "--steps", "2", "--pairs", "50", "--batch", "8", *more])
    return recipe.train.Trainer(args, recipe.train.Material.load(args))


def test_a_trunk_that_may_change_starts_as_the_frozen_one_with_a_term_that_keeps_it(
    recipe, maps, tmp_path, monkeypatch
):
    frozen, free = run_of(recipe, maps, tmp_path), run_of(recipe, maps, tmp_path, "--trunk-stages", "1")
    terms = []
    for trainer in (frozen, free):
        torch.manual_seed(3)
        terms.append({k: v.item() for k, v in trainer.terms(0).items()})
    keep = terms[1].pop("keep")
    assert terms[1] == pytest.approx(terms[0], rel=2e-3)
    drawn = []
    monkeypatch.setattr(free.bank, "photos", lambda *_, draw=free.bank.photos: drawn.append(draw(*_)) or drawn[-1])

    def kept() -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The term of the photos that are drawn from here on, and the trunk's softmax of them."""
        drawn.clear()
        torch.manual_seed(3)
        term = free.terms(0)["keep"]
        return term, [(x[:, :WIDTH] @ free.bank.weight.T + free.bank.bias).softmax(-1) for x, _ in drawn]

    # At the start the term is the teacher's own entropy, its least value.
    _, teachers = kept()
    assert keep == pytest.approx(np.mean([-(p * p.log()).sum(-1).mean().item() for p in teachers]), rel=1e-3)
    with torch.no_grad():
        free.model.visual.trunk.conv_head.weight.mul_(1.5)
    term, teachers = kept()
    logits = [free.model.visual.trunk(x) @ free.bank.weight.T + free.bank.bias for x, _ in drawn]
    gaps = [-(p * z.log_softmax(-1)).sum(-1).mean().item() for p, z in zip(teachers, logits, strict=True)]
    assert term.item() == pytest.approx(np.mean(gaps), rel=1e-5)
    assert term.item() > keep + 0.1
    (gradient,) = torch.autograd.grad(term, [free.model.visual.trunk.blocks["6"][0].conv_pw.weight])
    assert gradient.abs().sum() > 0


def test_captions_meet_what_the_trained_stages_see(recipe, maps, tmp_path):
    """The features that are in the cache are read by the teacher alone."""
    trainer = run_of(recipe, maps, tmp_path, "--trunk-stages", "1")
    for table in (trainer.bank.views, trainer.bank.described, *(s.held_views_MVF for s in trainer.bank.sets.values())):
        table[..., :WIDTH] = torch.nan
    assert trainer.context_batch()[0].isfinite().all()
    assert trainer.pair_batch()[0].isfinite().all()
    assert all(np.isfinite(v) for v in trainer.held_out().values())


def test_a_trunk_without_a_gradient_stays_and_the_weight_of_its_term_moves_it(recipe, maps, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe.tower, "SCALES", recipe.tower.SCALES[::20])
    found = []
    for weight in ("0", "50"):
        switches = ("--trunk-stages", "1", "--trunk-lr", "0.1", "--keep-weight", weight, *ALONE)
        trainer = run_of(recipe, maps, tmp_path, *switches)
        trainer.train()
        found.append(trainer.model.visual.trunk.conv_head.weight.detach().clone())
    assert not torch.equal(*found)
    still = {k: v.clone() for k, v in trainer.model.visual.trunk.state_dict().items()}
    stages = list(trainer.model.visual.trunk.parameters())
    term = {"own": trainer.model.logit_scale.square() + 0 * sum(p.sum() for p in stages)}
    monkeypatch.setattr(trainer.args, "steps", 1)
    monkeypatch.setattr(trainer, "terms", lambda step: term)
    trainer.train()
    assert all(torch.equal(v, still[k]) for k, v in trainer.model.visual.trunk.state_dict().items())


def test_options_of_a_trunk_that_is_frozen_are_refused(recipe, capsys):
    common = ["--data", "d", "--features", "f", "--out", "o"]
    for option in ("--trunk-lr", "--keep-weight"):
        with pytest.raises(SystemExit):
            recipe.options.parse([*common, option, "0.5"])
        assert "add --trunk-stages" in capsys.readouterr().err
    args = recipe.options.parse([*common, "--trunk-stages", "1", "--keep-weight", "0"])
    assert (args.trunk_lr, args.keep_weight) == (1e-5, 0.0)


@pytest.mark.parametrize("rate", [0.0, 0.1])  # of which the first steps take a hundredth
def test_only_the_last_stages_move_at_their_own_rate_and_reach_the_exported_model(
    recipe, trunk, maps, tmp_path, monkeypatch, rate
):
    monkeypatch.setattr(recipe.tower, "SCALES", recipe.tower.SCALES[::20])
    trainer = run_of(recipe, maps, tmp_path, "--trunk-stages", "1", "--trunk-lr", str(rate), *ALONE)
    trainer.train()
    file = tmp_path / "run.safetensors"
    saved, before = load_file(file), trunk.state_dict()
    own = {k.removeprefix(recipe.trunk.PREFIX): v for k, v in saved.items() if k.startswith(recipe.trunk.PREFIX)}
    assert {k.rsplit(".", 1)[0] for k in own} == {f"blocks.6.0.{x}" for x in SIXTH} | {"conv_head", "bn2"}
    moved = {k for k, v in own.items() if not torch.equal(v, before[k])}
    learnt = {k for k in own if k.endswith((".weight", ".bias"))}
    assert moved == (learnt if rate else set())
    assert recipe.trunk.trained_stages(file) == 1

    model = recipe.choose.load_checkpoint(file, len(trainer.vocabulary.tokens), "cpu")
    rows = trainer.bank.sets["flowers"].held_views_MVF
    features_of = recipe.tower.see(model, rows)
    torch.testing.assert_close(features_of, recipe.tower.see(trainer.model, rows))
    assert torch.allclose(features_of, rows[..., :WIDTH].float(), atol=5e-3) != bool(rate)

    weights, out = tmp_path / "trunk.pth", tmp_path / "model"
    torch.save(before, weights)
    recipe.export.write_model(model, 50.0, trainer.vocabulary, weights, out)
    assert recipe.trunk.trained_stages(out / "open_clip_model.safetensors") == 1
    shipped = load_file(out / "open_clip_model.safetensors")
    expected = {k: v for k, v in (before | own).items() if not k.startswith("classifier")}
    assert all(torch.equal(shipped[recipe.trunk.PREFIX + k].float(), v.half().float()) for k, v in expected.items())
    again = recipe.choose.load_checkpoint(out / "open_clip_model.safetensors", len(trainer.vocabulary.tokens), "cpu")
    rounding = (recipe.tower.see(again, rows) - features_of).abs().mean()
    moved_by = (features_of - rows[..., :WIDTH]).abs().mean()
    assert moved_by > 10 * rounding if rate else rounding == 0
    whole = recipe.trunk.overlaid(trunk, shipped)
    assert torch.equal(whole.conv_head.weight, shipped[recipe.trunk.PREFIX + "conv_head.weight"].float())
    assert torch.equal(trunk.conv_head.weight, before["conv_head.weight"])


def moved_checkpoint(recipe, trainer) -> Path:
    """A checkpoint whose trunk is far from what it was."""
    file = trainer.args.out
    with torch.no_grad():
        trainer.model.visual.trunk.conv_head.weight.mul_(1.3)
    save_file(trainer.model.state_dict(), file, metadata=recipe.trunk.said(trainer.model.visual.trunk))
    return file


def test_everything_is_measured_on_what_the_trained_stages_see(recipe, trunk, maps, tmp_path, monkeypatch):
    """The same as of a frozen model whose cached features came out of those stages; and so from the command line."""
    monkeypatch.setattr(recipe.choose, "SELECTED", 2)
    monkeypatch.setattr(recipe.tower, "SCALES", recipe.tower.SCALES[::20])
    file = moved_checkpoint(recipe, trainer := run_of(recipe, maps, tmp_path, "--trunk-stages", "1"))
    words, (data, found) = trainer.vocabulary, maps
    model = recipe.choose.load_checkpoint(file, len(words.tokens), "cpu")
    wide = recipe.bank.Bank(found, list(CLASSES), "cpu", stages=1, training=False)
    plain = recipe.bank.Bank(found, list(CLASSES), "cpu")
    for name, s in wide.sets.items():
        seen = {k: recipe.tower.see(model, getattr(s, k)) for k in ("held_views_MVF", "held_described_MAF")}
        plain.sets[name] = replace(plain.sets[name], **seen)
    flat = copy.deepcopy(model)
    flat.visual.trunk = torch.nn.Identity()
    projected: list[list[torch.Tensor]] = []
    for module in (recipe.choose, recipe.export):
        monkeypatch.setattr(module, "project", lambda m, x, real=module.project: projected[-1].append(x) or real(m, x))
    results, scales = [], []
    for m, bank in ((model, wide), (flat, plain)):
        projected.append([])
        results.append(recipe.choose.measure(m, bank, words, CLASSES, [1.0], 4, list(CLASSES), ["pets"]))
        scales.append(recipe.export.held_out_scale(m, bank, words, CLASSES, prototypes=50))
    for seen, expected in zip(*projected, strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-4)
    assert results[0]["flowers"]["all"] == pytest.approx(results[1]["flowers"]["all"], rel=1e-4)

    torch.save(trunk.state_dict(), weights := tmp_path / "trunk.pth")
    out, told = tmp_path / "model", tmp_path / "told.json"
    common = ["--data", str(data), "--features", str(found), "--device", "cpu"]
    argv = [
        "export.py",
        *common,
        "--checkpoint",
        str(file),
        "--out",
        str(out),
        "--factor",
        "1",
        "--weights",
        str(weights),
    ]
    monkeypatch.setattr(sys, "argv", argv)
    recipe.export.main()
    assert load_file(out / "open_clip_model.safetensors")["logit_scale"].exp().item() == pytest.approx(
        scales[0], rel=2e-3
    )
    monkeypatch.setattr(sys, "argv", ["choose.py", *common, "--model", str(out), "--factors", "1", "--out", str(told)])
    recipe.choose.main()
    assert json.loads(told.read_text())["flowers"]["all"]["nll"] == pytest.approx(
        results[0]["flowers"]["all"]["nll"], rel=0.01
    )


def test_names_are_measured_on_the_checkpoints_own_trunk(recipe, trunk, maps, tmp_path, monkeypatch, capsys):
    file = moved_checkpoint(recipe, run_of(recipe, maps, tmp_path, "--trunk-stages", "1"))
    first = {"classifier.weight": torch.zeros(1000, WIDTH), "classifier.bias": torch.eye(1000)[0]}
    torch.save(trunk.state_dict() | first, tmp_path / "trunk.pth")
    data = shutil.copytree(maps[0], tmp_path / "data")
    for k in range(3):
        (folder := data / "imagenet-sample" / f"{k:04d}").mkdir(parents=True)
        Image.new("RGB", (40, 30), (80 * k, 255 - 80 * k, 90)).save(folder / "photo.png")
    argv = ["measure_names.py", "--data", str(data), "--checkpoint", str(file), "--device", "cpu"]
    lines = []
    for switch in ([], ["--no-own-trunk"]):
        monkeypatch.setattr(sys, "argv", [*argv, "--trunk-weights", str(tmp_path / "trunk.pth"), *switch])
        recipe.names.main()
        lines.append(re.findall(r"of 3 photos right, mean confidence ([\d.]+)%, NLL ([\d.]+)", capsys.readouterr().out))
    assert [len(x) for x in lines] == [2, 2]
    assert lines[0] != lines[1]


def test_maps_of_other_views_are_refused_and_removed(recipe, maps, tmp_path, monkeypatch):
    shutil.copytree(maps[1], tmp_path / "f")
    file = tmp_path / "f" / recipe.bank.maps_file("pets", 1)
    save_file({k: v[1:] if k == "views" else v for k, v in load_file(file).items()}, file)
    told = r"pets-maps-1\.safetensors has other views than pets\.safetensors: make both in one run of features\.py"
    with pytest.raises(SystemExit, match=told):
        recipe.bank.load_set(tmp_path / "f", "pets", "cpu", stages=1)
    seen = []

    def spawn(work, args, nprocs, join):
        seen.append((args[0].stages, sorted(f.name for f in (tmp_path / "f").iterdir())))
        raise KeyboardInterrupt

    monkeypatch.setattr(recipe.features.mp, "spawn", spawn)
    argv = ["features.py", "--data", str(maps[0]), "--out", str(tmp_path / "f"), "--stages", "2", "1", "2"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(KeyboardInterrupt):
        recipe.features.main()
    kept = {"captions", "classifier", "caltech", "flowers", "pets"}
    assert seen == [([1, 2], sorted(f"{name}.safetensors" for name in kept))]


def test_a_left_out_set_is_seen_through_the_trained_stages(recipe, maps, tmp_path, monkeypatch):
    """And its training photos have no maps."""
    data, found = maps
    bank = recipe.bank.Bank(found, ["pets", "flowers"], "cpu", stages=1).with_set(found, "caltech")
    assert bank.sets["caltech"].views_NVF.shape == (28, 3, WIDTH)
    assert bank.sets["caltech"].held_views_MVF.shape == (14, 3, WIDTH + SIDE * SIDE * 192)
    assert bank.sets["flowers"].views_NVF.untyped_storage().data_ptr() == bank.views.untyped_storage().data_ptr()
    monkeypatch.setattr(recipe.choose, "SELECTED", 2)
    monkeypatch.setattr(recipe.tower, "SCALES", recipe.tower.SCALES[::20])
    monkeypatch.setitem(recipe.ablate.OTHER_FACTORS, True, ())
    monkeypatch.setitem(recipe.ablate.ALL, "full", ["--pairs", "50", *ALONE])
    switches = ["--pairs", "50", "--trunk-stages", "1", "--trunk-lr", "0.1", *ALONE]
    monkeypatch.setitem(recipe.ablate.ALL, "last stage, 1e-5", switches)
    argv = ["ablate.py", "--data", str(data), "--features", str(found), "--out", str(tmp_path), "--device", "cpu"]
    argv += ["--steps", "2", "--seeds", "0", "--leave-out", "caltech", "--variants", "full", "last stage, 1e-5"]
    monkeypatch.setattr(sys, "argv", argv)
    recipe.ablate.main()
    frozen, moved = (
        json.loads((tmp_path / f"{name}-0.json").read_text())["caltech"]["factor 0.25"]["zeroshot"]["nll"]
        for name in ("full", "last_stage_1e-5")
    )
    assert moved != pytest.approx(frozen, rel=1e-4)


def test_features_and_maps_are_of_the_same_views(recipe, trunk, pictures, tmp_path, monkeypatch):
    for module in (recipe.features, recipe.photos):
        monkeypatch.setattr(module, "SETS", {"pets": recipe.photos.SETS["pets"]})
    monkeypatch.setattr(recipe.features, "VIEWS", 3)
    monkeypatch.setattr(recipe.features, "CHANGES", list(recipe.features.CHANGES)[:2])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    pictures.weights, pictures.out, pictures.crops, pictures.held_out = tmp_path / "trunk.pth", tmp_path, 1, 0.34
    torch.save(trunk.state_dict(), pictures.weights)
    pictures.stages = [1]
    recipe.features.work(0, pictures)
    found = {k: recipe.features.gather(pictures, "pets", k) for k in (0, 1)}
    photos = recipe.photos.read_split(pictures.data, "pets", "train")
    first = recipe.photos.held_out(photos, 0.34).tolist().index(False)
    views, described = recipe.features.photo_features(trunk, photos[first], 1, "0/pets", [])[0]
    assert torch.equal(found[0]["views"][0], views)
    assert torch.equal(found[0]["described"][0], described)
    assert found[0]["labels"][0] == photos[first].label
    assert set(found[1]) == {"views", "described", "held_views", "held_described"}
    tail = recipe.trunk.Tail(trunk, 1)
    for kind, shape in {"views": (6, 2), "described": (6, 2), "held_views": (3, 3), "held_described": (3, 2)}.items():
        assert found[0][kind].shape == (*shape, WIDTH)
        with torch.inference_mode():
            again = tail(torch.cat([found[0][kind], found[1][kind]], -1))
        torch.testing.assert_close(again, found[0][kind].float(), rtol=5e-3, atol=2e-3)
