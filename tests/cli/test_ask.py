"""`cots check --ask` and `cots check ask.csv`: from a folder to a table, and from its labels to a policy."""

from __future__ import annotations

import csv
import json

import pytest
from support.models import tiny
from support.serving import photo
from typer.testing import CliRunner

import cots
from cots.cli import app
from cots.cli._shared import command_line
from cots.conformal import Policy
from cots.evaluate import Asked

CLASSES = ("cat", "car")


@pytest.fixture(autouse=True)
def small_model(monkeypatch):
    monkeypatch.setattr("cots.classifier.load", lambda name, **options: tiny("vit"))


@pytest.fixture
def folder(tmp_path):
    """Twelve photos, three of them in a folder of their own, and one that cannot be read."""
    for at in range(12):
        file = tmp_path / "photos" / ("more" if at < 3 else ".") / f"{at}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(photo(at))
    (tmp_path / "photos" / "bad.jpg").write_bytes(b"no photo")
    (tmp_path / "names.txt").write_text("\n".join(CLASSES))
    return tmp_path


def run(*words, code: int = 0):
    result = CliRunner().invoke(app, ["check", *map(str, words), "--views", "2"])
    if isinstance(result.exception, cots.CotsError):
        raise result.exception
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def ask(folder, labels: int, *words):
    files = folder / "photos", "--classes", folder / "names.txt", "-o", folder / "ask.csv"
    return run(*files, "--method", "zeroshot", "--ask", labels, *words)


def fill(file, label) -> None:
    """Give every photo of a table the label that `label` makes of its row."""
    with open(file, newline="") as stream:
        header, *rows = csv.reader(stream)
    rows = [[*row[:-1], label(row)] for row in rows]
    with open(file, "w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])


def test_a_folder_becomes_a_table_a_page_and_tasks(folder):
    said = ask(folder, 6, "--format", "label-studio")
    table = folder / "ask.csv"
    drawn = Asked.load(table)
    heads = drawn.draw.heads.sum()
    assert said.stdout.splitlines()[0] == (
        f"Drew 6 of 12 photos: {heads} uniformly, the others more often the less sure the prediction is."
    )
    assert (
        f"Written: {table}, {folder / 'ask.html'}, {folder / 'ask.pool'}, {folder / 'ask.predictions'}, " in said.stdout
    )
    assert f"{folder / 'ask.json'}, {folder / 'ask.xml'}\n" in said.stdout
    assert f"A policy takes 200 labels of uniformly drawn photos, and this draw has {heads}" in said.stdout
    assert "With fewer than 100 labels, --uniform gives narrower intervals." in said.stdout
    assert f"then run: cots check {table}\n" in said.stdout, "too few labels for a policy"
    assert "bad.jpg" in said.stderr
    classifier = cots.Classifier(tiny("vit"), CLASSES, "zeroshot", views=2)
    assert drawn.setup == classifier.setup
    for path, expected in zip(drawn.paths, drawn.predictions, strict=True):
        found = classifier(folder / path)
        assert (found.label, found.confidence) == (expected.label, pytest.approx(expected.confidence, abs=1e-5))
    tasks = json.loads((folder / "ask.json").read_text())
    assert [task["data"]["path"] for task in tasks] == list(drawn.paths)
    assert tasks[0]["data"]["image"].endswith(f"{folder}/{drawn.paths[0]}".lstrip("/"))
    assert '<Choice value="none of these"/>' in (folder / "ask.xml").read_text()
    for task in tasks:
        task["annotations"] = [{"result": [{"value": {"choices": ["cat"]}}]}]
    (folder / "export.json").write_text(json.dumps(tasks))
    assert run(folder / "export.json").stdout.startswith("6 of 6 photos labelled, drawn from 12.")


def test_next_commands_are_as_the_program_was_started(monkeypatch):
    assert command_line("check", "my photos/ask.csv") == "cots check 'my photos/ask.csv'"
    monkeypatch.setenv("UV", "/bin/uv")
    assert command_line("report", "runs/x") == "uv run cots report runs/x"


def test_few_labels_give_intervals_and_no_policy(folder):
    ask(folder, 6)
    table = folder / "ask.csv"
    with pytest.raises(cots.InputError, match="no label for the first photo"):
        run(table)
    fill(table, lambda row: row[1])
    found = run(table)
    assert found.stdout.startswith("6 of 6 photos labelled, drawn from 12.\naccuracy 100.0%")
    assert "cots: no policy: it takes 200 labels of uniformly drawn photos, and " in found.stderr
    assert "these serve. Draw them with --ask 200 --uniform." in found.stderr
    assert not (folder / "policy.json").exists()
    run(table, "-o", folder / "policy.json", code=1)
    with pytest.raises(cots.InputError, match=r"would overwrite its labels\. Choose another"):
        ask(folder, 6)
    with pytest.raises(cots.InputError, match="--method was set with --ask; omit it"):
        run(table, "--method", "zeroshot")
    with pytest.raises(cots.InputError, match=r"must end in \.json"):
        run(table, "-o", folder / "policy.txt")


def test_200_uniform_labels_give_a_policy(folder, monkeypatch):
    monkeypatch.setattr("cots.evaluate._check.ENOUGH", 8)
    monkeypatch.setattr("cots.evaluate._labels.ENOUGH", 8)
    monkeypatch.setattr("cots.evaluate.ENOUGH", 8)
    said = ask(folder, 10, "--uniform").stdout
    assert said.startswith("Drew 10 of 12 photos: each of the remaining photos with the same probability.\n")
    assert f"then run: cots check {folder / 'ask.csv'} -o policy.json\n" in said
    assert f"<code>cots check {folder / 'ask.csv'} -o policy.json</code>" in (folder / "ask.html").read_text()
    assert said.count("policy") == 1
    fill(folder / "ask.csv", lambda row: "none of these" if row[0] == "photos/5.png" else row[1])
    said = run(folder / "ask.csv", "-o", folder / "policy.json", "--risk", "0.5").stdout
    assert "zeroshot with tiny-vit" in said
    assert "did not stop" not in said
    policy = Policy.load(folder / "policy.json")
    drawn = Asked.load(folder / "ask.csv")
    assert policy.n == 10 - ("photos/5.png" in drawn.paths)
    assert len(policy.photos) == policy.n
    tried = (folder / "ask.csv").read_text().replace("none of these", "cat")
    (folder / "tried.csv").write_text(tried)
    with pytest.raises(cots.InputError, match=f"{policy.n} of these 10 photos made this policy"):
        run(folder / "tried.csv", "--policy", folder / "policy.json")
    assert policy.mean_confidence == pytest.approx(
        sum(one.confidence for path, one in zip(drawn.paths, drawn.predictions, strict=True) if path != "photos/5.png")
        / policy.n
    )
    fill(folder / "ask.csv", lambda row: row[1] if row[0] in drawn.paths[:3] else "")
    assert "and 3 of these serve. Label the next 5 photos of the table." in run(folder / "ask.csv").stderr
    fill(folder / "ask.csv", lambda row: row[1] if row[0] != drawn.paths[-1] else "")
    assert "did not stop because of what" in run(folder / "ask.csv", "-o", folder / "policy.json").stdout
    assert cots.Classifier(tiny("vit"), CLASSES, "zeroshot", views=2, policy=policy)(folder / "photos" / "7.png").label


def test_what_is_refused_before_the_work(folder):
    photos, names = folder / "photos", ("--classes", folder / "names.txt")
    for words, message in [
        ((photos, "--ask", 3), "--ask needs the class names"),
        ((photos, "--ask", 14, *names, "-o", folder / "ask.csv"), "--ask 14 is more than the 13 photos. Ask for"),
        ((photos, "--ask", 3, *names, "-o", folder / "ask.json"), r"must end in \.csv"),
        ((photos, "--uniform", *names), "--uniform and --format need --ask"),
    ]:
        with pytest.raises(cots.InputError, match=message):
            run(*words)
    with pytest.raises(cots.InputError, match="--ask 13 is more than the 12 photos that could be read"):
        ask(folder, 13)
    (folder / "ask.csv").write_text("path,label\na.jpg,cat\n")
    with pytest.raises(cots.InputError, match="would overwrite a file that cots check --ask did not write"):
        ask(folder, 3)
