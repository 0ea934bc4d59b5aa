"""`cots check` and `cots predict --policy`: from labelled photos to a policy and back to photos."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.models import tiny
from support.serving import photo
from typer.testing import CliRunner

import cots
from cots.cli import app

CLASSES = ("cat", "car")


@pytest.fixture(autouse=True)
def small_model(monkeypatch):
    monkeypatch.setattr("cots.classifier.load", lambda name, **options: tiny("vit"))


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Two photos, listed 210 times with the class that the model gives them, a few times with the other."""
    tmp_path = tmp_path_factory.mktemp("labelled")
    files = [tmp_path / f"{i}.png" for i in range(2)]
    rows = ["path,label"]
    for i, file in enumerate(files):
        file.write_bytes(photo(i))
        said = cots.Classifier(tiny("vit"), CLASSES, "zeroshot", views=2)(file).label
        other = next(name for name in CLASSES if name != said)
        rows += [f"{file},{said}"] * 104 + [f"{file},{other}"]
    (tmp_path / "photos.csv").write_text("\n".join(rows))
    (tmp_path / "names.txt").write_text("\n".join(CLASSES))
    return tmp_path


def run(*words, code: int = 0):
    result = CliRunner().invoke(app, [*map(str, words), "--views", "2"])
    if isinstance(result.exception, cots.CotsError):
        raise result.exception
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def check(folder, photos, policy, *words, code: int = 0):
    files = folder / photos, "--classes", folder / "names.txt", "-o", policy
    return run("check", *files, "--method", "zeroshot", *words, code=code)


def test_a_policy_is_written_and_applied(labelled):
    policy = labelled / "policy.json"
    said = check(labelled, "photos.csv", policy)
    assert said.stdout.startswith("210 photos, 2 classes, zeroshot with tiny-vit\naccuracy 99.0% (95% interval")
    assert "The confidence does not hold: it is" in said.stdout
    assert "points too low" in said.stdout, "a random model is right here and unsure"
    assert "Threshold 0.00%: at most 5% of the predictions at or above it are wrong, with 95% certainty." in said.stdout
    assert (labelled / "policy.svg").read_text().startswith("<?xml")
    found = cots.conformal.Policy.load(policy)
    assert (found.n, found.classes, found.views) == (210, CLASSES, 2)
    (line,) = map(json.loads, run("predict", labelled / "0.png", "--policy", policy).stdout.splitlines())
    assert line["label"] in line["label_set"]
    assert line["abstained"] is False
    assert "set: " not in line
    assert set(found.signals) == {"confidence", "in_list"}, "zeroshot has no agreement of views"
    assert len(found.signals["confidence"]) == 210
    said = run("check", labelled, "--unlabelled", "--policy", policy)
    assert "No change against the reference of 210 photos." in said.stdout
    said = run("predict", labelled / "0.png", "--policy", policy, "--abstain", "1").stderr
    assert "has no effect" not in said
    high = replace(found, error=replace(found.error, threshold=0.9))
    high.save(labelled / "high.json")
    said = run("predict", labelled / "0.png", "--policy", labelled / "high.json", "--abstain", "0.5").stderr
    assert "--abstain 0.5 has no effect: the policy abstains below 90.00%." in said
    with pytest.raises(cots.InputError, match="other classes"):
        run("predict", labelled / "0.png", "--policy", policy, "--classes", "cat,dog")


def test_labels_that_support_no_threshold_get_an_offer_that_is_accepted(labelled, tmp_path):
    policy = tmp_path / "policy.json"
    said = check(labelled, "photos.csv", policy, "--risk", "0.01").stdout
    assert "No threshold: these 210 labels support at most 5% errors; about 290,000 more for 1%." in said
    assert " A policy without one keeps unsure predictions. --risk 0.05 gives a threshold.\n" in said
    found = run("predict", labelled / "0.png", "--policy", policy)
    assert "no threshold, so it keeps unsure predictions: these 210 labels support at most 5%" in found.stderr
    assert json.loads(found.stdout)["abstained"] is False
    assert "Threshold 0.00%: at most 5%" in check(labelled, "photos.csv", policy, "--risk", "0.05").stdout


def test_a_policy_is_tried_out_on_other_photos(labelled, tmp_path):
    policy = tmp_path / "policy.json"
    said = check(labelled, "photos.csv", policy).stdout
    assert "None of these: at most 5% of the photos of these classes are flagged, with 95% certainty; 0 of" in said
    found = cots.conformal.Policy.load(policy)
    assert (found.flag, found.solver) == (0.05, "none")
    others = tmp_path / "photos.csv"
    others.write_text((labelled / "photos.csv").read_text().replace(str(labelled), str(tmp_path)))
    for i in range(2):
        (tmp_path / f"{i}.png").write_bytes(photo(i) + b"another file")
    words = "check", others, "--policy", policy
    before = sorted(tmp_path.iterdir())
    lines = run(*words).stdout.splitlines()
    assert lines[0] == f"210 photos, zeroshot with tiny-vit, policy {policy} from 210 photos"
    assert lines[1] == "Answered 210 of 210 photos; the others abstain."
    assert lines[2].startswith("Errors at or above the threshold: promised at most 5%, found 2 of 210, 1.0% (95%")
    assert lines[2].endswith("The promise held.")
    assert lines[3].startswith("Class in the set: promised at least 90%, found")
    assert lines[4].startswith("Flagged as none of these: promised at most 5%, found 0 of 210")
    assert sorted(tmp_path.iterdir()) == before
    with others.open("a") as rows:
        rows.write(f"\n{labelled / '0.png'},cat")
    with pytest.raises(cots.InputError, match="1 of these 211 photos made this policy, so they cannot test it"):
        run(*words)
    replace(found, photos=()).save(tmp_path / "old.json")
    assert "The promise held." in run(*words[:-1], tmp_path / "old.json").stdout
    with pytest.raises(cots.InputError, match="writes none; omit --ask and --out"):
        run(*words, "-o", tmp_path / "other.json")
    (tmp_path / "other.csv").write_text(f"path,label\n{labelled / '0.png'},dog")
    with pytest.raises(cots.InputError, match="does not know the class 'dog'"):
        run("check", tmp_path / "other.csv", "--policy", policy)


def test_a_policy_of_other_photos_is_not_overwritten(labelled, tmp_path):
    policy, more = tmp_path / "policy.json", tmp_path / "more.csv"
    check(labelled, "photos.csv", policy, "--risk", "0.1")
    rows = (labelled / "photos.csv").read_text()
    (tmp_path / "2.png").write_bytes(photo(2))
    more.write_text(f"{rows}\n{tmp_path / '2.png'},cat")
    check(labelled, "photos.csv", policy)
    check(labelled, more, policy)
    assert len(cots.conformal.Policy.load(policy).photos) == 211
    before = policy.read_bytes()
    with pytest.raises(cots.InputError, match="made from other photos: 1 of them are not among these"):
        check(labelled, "photos.csv", policy)
    assert policy.read_bytes() == before
    check(labelled, "photos.csv", policy, "--force")
    assert cots.conformal.Policy.load(policy).n == 210
    policy.write_text("{}")
    with pytest.raises(cots.InputError, match=r"is not a policy of labelled photos\. Choose another --out"):
        check(labelled, "photos.csv", policy)


@pytest.mark.parametrize("option", ["--risk", "--certainty", "--coverage", "--flag"])
def test_shares_are_checked_before_photos_are_classified(option, labelled):
    with pytest.raises(cots.InputError, match=f"{option} must lie between 0 and 1, such as 0.05 or 0.95, not 2"):
        check(labelled, "missing.csv", labelled / "policy.json", option, "2")


def test_below_200_photos_nothing_is_promised(labelled, tmp_path):
    rows = (labelled / "photos.csv").read_text().splitlines()[:61]
    (labelled / "few.csv").write_text("\n".join([*rows, f"{labelled / 'none.png'},cat"]))
    policy = tmp_path / "policy.json"
    with pytest.warns(UserWarning, match="nearly every sample is right"):
        said = check(labelled, "few.csv", policy, "--temperature", code=1)
    assert "Temperature" in said.stdout
    assert "No verdict: 30 photos are too few. Label at least 200." in said.stdout
    assert "No threshold: these 30 labels support at most" in said.stdout
    assert "gives a threshold" not in said.stdout
    assert "no policy was written" in said.stderr
    assert "none.png" in said.stderr
    assert not policy.exists()
    with pytest.raises(cots.InputError, match=r"must end in .json"):
        check(labelled, "few.csv", tmp_path / "policy.txt")


def test_photos_without_labels_are_watched(labelled):
    folder = labelled / "incoming"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.png").write_bytes(photo(i))
    (folder / "bad.jpg").write_bytes(b"no photo")
    names = labelled / "names.txt"
    said = run("check", folder, "--unlabelled", "--classes", names)
    expected = cots.Classifier(tiny("vit"), CLASSES, views=2)(sorted(folder.glob("?.png")))
    mean = sum(one.confidence for one in expected) / 3
    agree = sum(one.agreement for one in expected) / 3
    assert said.stdout.startswith(
        f"3 photos: mean confidence {mean:.1%}, {agree:.1%} of the views agree with the answer"
    )
    assert "The next 200 photos are the reference" in said.stdout
    assert "when to look at the photos, not whether" in said.stdout
    assert "bad.jpg" in said.stderr
    state = labelled / "watch.json"
    said = run("check", folder, "--unlabelled", "--classes", names, "--state", state)
    assert said.stdout.startswith(f"3 photos: mean confidence {mean:.1%}")
    with pytest.raises(cots.InputError, match="with another model, method, class list or policy"):
        run("check", folder, "--unlabelled", "--classes", names, "--state", state, "--method", "zeroshot")
    with pytest.raises(cots.InputError, match="--state and --in-order require --unlabelled"):
        run("check", labelled / "photos.csv", "--classes", names, "--state", state)
    with pytest.raises(cots.InputError, match=r"tda cannot be watched: it is an online method"):
        run("check", folder, "--unlabelled", "--classes", names, "--method", "tda")
    with pytest.raises(cots.InputError, match="--unlabelled needs the class names"):
        run("check", folder, "--unlabelled")


def test_a_photo_is_watched_once(labelled, monkeypatch):
    """In a folder that is given again, that has grown, and after a run that was killed; but not if it has changed."""
    monkeypatch.setattr("cots.cli._watch.SAVE_EVERY", 2)
    folder, other, state = labelled / "grows", labelled / "other", labelled / "once.json"
    for i in range(5):
        for place in (folder, other):
            place.mkdir(exist_ok=True)
            (place / f"{i}.png").write_bytes(photo(i))
    (folder / "3.png").rename(labelled / "3.png")

    def watch(photos, code: int = 0) -> str:
        words = "--classes", labelled / "names.txt", "--method", "zeroshot", "--state", state
        return run("check", photos, "--unlabelled", *words, code=code).stdout

    def watched(photos) -> int:
        return int(watch(photos).split()[0])

    assert [watched(folder), watched(folder)] == [4, 4]
    (folder / "5.png").write_bytes(photo(5))
    assert watched(folder) == 5
    (folder / "0a.png").write_bytes(photo(7))
    assert watched(folder) == 6, "a new name between those that were seen"
    (folder / "5.png").write_bytes(photo(6) + b"changed")
    assert watched(folder) == 7, "not the same photo, so it is new"
    state.unlink()
    add = cots.watch.Watch.add

    def killed(watch, *given):
        if watch.seen().n == 3:
            raise KeyboardInterrupt
        add(watch, *given)

    with monkeypatch.context() as patched:
        patched.setattr(cots.watch.Watch, "add", killed)
        watch(other, code=130)
    assert cots.watch.Watch.load(state).seen().n == 2
    assert watched(other) == 5


def test_the_order_of_names_plays_no_part(labelled, tmp_path, monkeypatch):
    """Names that begin with the class sort the photos; read in that order, they look like a stream that changes."""
    order = []
    monkeypatch.setattr(cots.watch.Watch, "add", lambda watch, prediction, name: order.append(Path(name).name))
    monkeypatch.setattr("cots.cli._watch.lines", lambda seen: [], raising=False)
    names = [f"{name}_{i:02}.png" for name in CLASSES for i in range(20)]
    for name in names:
        (tmp_path / name).write_bytes(photo(0))

    def read(*words) -> list[str]:
        order.clear()
        files = "check", tmp_path, "--unlabelled", "--classes", labelled / "names.txt", "--method", "zeroshot"
        said = run(*files, *words)
        assert ("so nothing can change among them" in said.stderr) == (not words)
        return list(order)

    first = read()
    assert sorted(first) == sorted(names)
    assert 4 <= sum(name.startswith("cat") for name in first[:20]) <= 16
    assert read() == first
    assert read("--in-order") == sorted(names)
    with pytest.raises(cots.InputError, match="--state and --in-order require --unlabelled"):
        run("check", labelled / "photos.csv", "--classes", labelled / "names.txt", "--in-order")
