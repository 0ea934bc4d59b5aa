"""Taxonomies in Python, on the command line and in the server."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from support.models import tiny
from support.serving import ask, client, photo, refused
from support.trees import random_rows
from typer.testing import CliRunner

import cots
from cots._checked import read_json, write_json
from cots.cli import app
from cots.conformal import ErrorControl, Policy
from cots.evaluate import check, try_out
from cots.methods import Prediction
from cots.taxonomy import RankRule, TaxonomyFile

CLASSES = ("persian", "siamese", "pug")
EDGES = "parent,child,rank\n,cat,species\n,dog,species\ncat,persian,breed\ncat,siamese,breed\ndog,pug,breed\n"


@pytest.fixture(autouse=True)
def small_model(monkeypatch):
    monkeypatch.setattr("cots.classifier.load", lambda name, **options: tiny("vit"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("taxonomy")
    (folder / "tree.csv").write_text(EDGES)
    (folder / "names.txt").write_text("\n".join(CLASSES))
    rows = ["path,label"]
    for i in range(2):
        (folder / f"{i}.png").write_bytes(photo(i))
        rows += [f"{i}.png,{name}" for name in CLASSES] * 35
    (folder / "photos.csv").write_text("\n".join(rows))
    return folder


def classifier(folder, **settings):
    return cots.Classifier("tiny", CLASSES, "zeroshot", views=2, taxonomy=folder / "tree.csv", **settings)


def test_a_classifier_answers_at_the_rank_that_is_sure(folder):
    plain = cots.Classifier("tiny", CLASSES, "zeroshot", views=2)(photo())
    persian, siamese, pug = map(float, plain.probabilities)
    above = max(persian + siamese, pug) - 1e-4
    found = classifier(folder, abstain=above)(photo())
    cat = persian + siamese > pug
    best = "persian" if persian > siamese else "siamese"
    assert max(persian, siamese, pug) < 0.9, "a random model is unsure"
    assert cat, "this photo shows the case of a group"
    assert (found.label, found.node, found.rank, found.path) == (None, "cat", "species", ("cat",))
    assert (found.abstained, found.unsure) == (False, "breed")
    assert found.node_probability == pytest.approx(persian + siamese)
    assert found.name == "cat (species)"
    assert found.doubt.startswith(f"breed unsure: {best} {100 * max(persian, siamese):.0f}%, ")
    assert "pug" not in found.doubt
    assert "cat (species)" in found._repr_html_()
    sure = classifier(folder, abstain=0.01)(photo())
    assert (sure.label, sure.node, sure.path, sure.candidates) == (plain.label, plain.label, ("cat", plain.label), ())
    root = classifier(folder)(photo())
    assert (root.label, root.node, root.path, root.abstained, root.name) == (None, None, (), True, "unsure")
    flagged = replace(sure, none_of_these=True).abstain(none_of_these=True)
    assert (flagged.label, flagged.node, flagged.abstained) == (None, None, True)


def test_a_policy_keeps_its_tree(folder, tmp_path):
    tree = TaxonomyFile.read(folder / "tree.csv").tree(CLASSES)
    rows, labels = random_rows(0, 300, 3)
    checked = check(rows, labels, risk=0.2, taxonomy=tree)
    assert checked.ranks == RankRule.fit(tree, rows, labels, 0.2)
    assert checked.ranks_on_these.error_rate <= 0.2
    assert check(rows, labels, risk=0.2, taxonomy=tree, average=True).ranks.certainty is None
    said = "\n".join(checked.lines())
    assert "at most 20% of all answers are wrong, with 95% certainty" in said
    assert "threshold" not in said.lower(), "that of the label, which a taxonomy replaces"
    assert "these abstain" not in said
    policy = Policy(
        model="tiny-vit", weights_hash=tiny("vit").weights_hash, classes=CLASSES, method="zeroshot",
        template="a photo of a {}.", views=2, n=300, accuracy=0.7, mean_confidence=0.8, error=checked.error,
        sets=checked.sets, ranks=checked.ranks,
    )  # fmt: skip
    policy.save(file := tmp_path / "policy.json")
    assert Policy.load(file) == policy
    nodes, predictions = tree.climb(rows[:40], checked.ranks.threshold)[0].tolist(), []
    for row, node in zip(rows[:40], nodes, strict=True):
        plain = Prediction(label=CLASSES[row.argmax()], confidence=row.max(), probabilities=row, classes=CLASSES)
        predictions.append(plain)
        found = policy.apply(plain)
        assert found.path == tuple(tree.names[one] for one in tree.path(node)), "in place of the threshold and the sets"
        assert found.label_set is not None
    found = try_out(policy, [policy.apply(one) for one in predictions], labels[:40])
    wrong = sum(label not in tree.classes_below(node) for node, label in zip(nodes, labels[:40], strict=True))
    assert f"Errors among all answers: promised at most 20%, found {wrong} of 40" in "\n".join(found.lines())
    content = read_json(file)
    content["ranks"]["tree"]["names"][1] = "dog"
    write_json(file, content)
    with pytest.raises(cots.InputError, match="differs from the one that its threshold was made for"):
        Policy.load(file)
    never = replace(policy, ranks=replace(checked.ranks, threshold=1.0))
    assert any("answers no photo" in line for line in never.warnings(never))
    with pytest.raises(cots.InputError, match="no effect with a policy that has a taxonomy"):
        cots.Classifier("tiny", CLASSES, "zeroshot", views=2, policy=policy, abstain=0.5)
    (folder / "other.csv").write_text(EDGES.replace(",siamese", ",sphynx"))
    with pytest.raises(cots.InputError, match="another tree than"):
        cots.Classifier("tiny", CLASSES, "zeroshot", views=2, policy=policy, taxonomy=folder / "other.csv")
    with pytest.raises(cots.InputError, match="The policy has no taxonomy, so it promises nothing"):
        classifier(folder, policy=replace(policy, ranks=None))
    same = classifier(folder, policy=policy)(photo())
    assert same.to_dict(3) == cots.Classifier("tiny", CLASSES, "zeroshot", views=2, policy=policy)(photo()).to_dict(3)


def run(*words):
    result = CliRunner().invoke(app, [*map(str, words), "--views", "2", "--method", "zeroshot"])
    if isinstance(result.exception, cots.CotsError):
        raise result.exception
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result.stdout


def test_the_command_line(folder, tmp_path):
    names = "--classes", folder / "names.txt"
    plain = json.loads(run("predict", folder / "0.png", *names))
    assert [plain[key] for key in ("node", "rank", "path", "candidates")] == [None, None, None, []]
    tree = "--taxonomy", folder / "tree.csv"
    said = json.loads(run("predict", folder / "0.png", *names, *tree, "--abstain", "0.01"))
    assert (said["node"], said["path"], said["rank"]) == (said["label"], ["cat", said["label"]], "breed")
    (row,) = csv.DictReader(io.StringIO(run("predict", folder / "0.png", *names, *tree, "--abstain", "0.01", "--csv")))
    assert (row["node"], row["path"]) == (said["label"], f"cat|{said['label']}")
    policy = tmp_path / "policy.json"
    said = run("check", folder / "photos.csv", "--classes", folder / "names.txt", *tree, "-o", policy, "--risk", "0.5")
    assert "at most 50% of all answers are wrong, with 95% certainty" in said
    assert "On these photos: " in said
    found = json.loads(run("predict", folder / "1.png", "--policy", policy))
    assert found["path"] is not None
    with pytest.raises(cots.InputError, match="--average is about the answers of a taxonomy"):
        run("check", folder / "photos.csv", "--classes", folder / "names.txt", "--average")


def test_the_server(folder):
    web = client(taxonomy=TaxonomyFile.read(folder / "tree.csv"), views=2)
    fields = {"methods": "zeroshot", "classes": "\n".join(CLASSES)}
    (result,) = ask(web, abstain="0.01", **fields).json()["results"]
    expected = classifier(folder, abstain=0.01)(photo()).to_dict(5)
    for name in ("node", "rank", "path", "unsure", "candidates", "label", "abstained"):
        assert result[name] == expected[name]
    assert result["node_probability"] == pytest.approx(expected["node_probability"], abs=2e-6)
    (result,) = ask(web, **fields).json()["results"]
    assert (result["path"], result["abstained"], result["unsure"]) == ([], True, "breed")
    assert len(result["candidates"]) == 3
    (result,) = ask(web, methods="zeroshot", classes="car\ntree").json()["results"]
    assert (result["path"], result["abstained"]) == (None, False)
    (folder / "twice.csv").write_text("genus,species,name\nArdea,alba,egret\nMorus,alba,mulberry\n")
    web = client(taxonomy=TaxonomyFile.read(folder / "twice.csv"), views=2)
    assert "2 places" in refused(ask(web, methods="zeroshot", classes="alba\nx"), 422, "ambiguous_class", "classes")


def test_a_policy_decides_alone_in_a_server_with_a_taxonomy(folder):
    error = ErrorControl(risk=0.05, certainty=0.95, threshold=0.999, n=300, accepted=200, errors=1)
    policy = Policy(
        model="tiny-vit", weights_hash=tiny("vit").weights_hash, classes=CLASSES, method="zeroshot",
        template="a photo of a {}.", views=2, n=300, accuracy=0.7, mean_confidence=0.8, error=error,
    )  # fmt: skip
    web = client(taxonomy=TaxonomyFile.read(folder / "tree.csv"), views=2, policy=policy)
    answers = ask(web, methods="zeroshot,tps", classes="\n".join(CLASSES)).json()["results"]
    assert (answers[0]["abstained"], answers[0]["path"]) == (True, None), "its threshold is not overridden"
    assert answers[1]["path"] is not None, "another method is not under the policy"


def test_the_table_shows_group_and_doubt(folder, capsys):
    from cots.cli._outputs import Table

    found = classifier(folder, abstain=0.5)(photo())
    assert np.isfinite(found.node_probability)
    Table([folder / "0.png"], 3, "candidates").write(folder / "0.png", found)
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("cat (species)", f"{found.node_probability:.1%}", "breed unsure:"):
        assert part.split()[0] in shown
