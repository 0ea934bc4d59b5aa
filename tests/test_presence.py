"""Presence: Platt scaling against an optimiser, the control of missed classes by simulation, and the doors."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit
from support.models import CLASSES, tiny
from support.serving import photo
from typer.testing import CliRunner

import cots
from cots import novelty, presence
from cots.cli import app


def photos(seed: int, n: int, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels of photos that show up to all of the classes, with another level for each class."""
    rng = np.random.default_rng(seed)
    labels = rng.random((n, classes)) < 0.4
    return rng.normal(size=(n, classes)) + 1.5 * labels + np.linspace(-1, 1, classes), labels


def test_platt_scaling_is_the_minimum_of_its_loss():
    scores, labels = photos(0, 60, 3)

    def loss(x):
        z = x[0] * scores + x[1] + x[2:]
        nll = -np.where(labels, np.log(expit(z)), np.log(expit(-z))).sum()
        return nll + (x[0] / 10) ** 2 / 2 + (x[2:] ** 2).sum() / 2

    best = minimize(loss, np.zeros(5), method="BFGS", options={"gtol": 1e-8})
    slope, intercepts = presence.platt(scores, labels.astype(float))
    np.testing.assert_allclose([slope, *intercepts], [best.x[0], *(best.x[1] + best.x[2:])], atol=1e-5)


def test_separable_and_missing_classes_stay_finite_and_shrink_to_the_others():
    scores, labels = photos(1, 60, 3)
    labels[:, 2] = False
    slope, _ = presence.platt(np.where(labels, 5.0, -5.0), labels.astype(float))
    assert math.isfinite(slope)
    assert slope > 0
    slope, few = presence.platt(scores[:, :2], labels[:, :2].astype(float))
    _, more = presence.platt(np.c_[scores[:, :2], scores[:0].sum(0)[:1] + np.zeros((60, 1))], labels.astype(float))
    assert more[2] < few.mean(), "a class that is never shown is less likely"
    assert more[2] > -10, "but not excluded"


def naive_threshold(p, labels, risk):
    """The largest of all probabilities of shown classes that satisfies the condition, by trying each."""
    shown = labels.any(1)
    found = [0.0]
    for limit in p[labels]:
        missed = [(labels[i] & (p[i] < limit)).sum() / labels[i].sum() for i in np.flatnonzero(shown)]
        if (sum(missed) + 1) / (shown.sum() + 1) <= risk:
            found.append(limit)
    return max(found)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("risk", [0.02, 0.1, 0.3])
def test_thresholds_follow_the_equation(risk, per_class):
    scores, labels = photos(2, 120)
    scores = scores.round(1)  # ties
    rule = presence.fit(scores, labels, risk, per_class=per_class)
    rest = np.random.default_rng(0).permutation(120)[60:]
    p = rule.probabilities(scores[rest])
    if per_class:
        for k, limit in enumerate(rule.thresholds):
            assert limit == naive_threshold(p[:, k : k + 1], labels[rest][:, k : k + 1], risk)
    else:
        assert set(rule.thresholds) == {naive_threshold(p, labels[rest], risk)}
    np.testing.assert_array_equal(rule.present(scores), rule.probabilities(scores) >= np.array(rule.thresholds))


@pytest.mark.parametrize("per_class", [False, True])
def test_missed_classes_stay_within_the_promise_on_average(per_class):
    scores, labels = photos(3, 5000)
    missed = []
    for seed in range(200):
        rows = np.random.default_rng(seed).integers(0, len(scores), 120)
        rule = presence.fit(scores[rows], labels[rows], 0.1, per_class=per_class)
        found = rule.present(scores[:3000])
        if per_class:
            missed.append([(~found[:, k])[labels[:3000, k]].mean() for k in range(4)])
        else:
            missed.append([presence.missed_share(found, labels[:3000])])
    mean, error = np.mean(missed, 0), np.std(missed, 0) / math.sqrt(200)
    assert (mean <= 0.1 + 3 * error).all()
    assert (mean >= 0.04).all(), "and not by calling everything present"


def test_shares_are_counted_from_the_definition():
    labels = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1]], dtype=bool)
    found = np.array([[1, 0, 1], [1, 1, 1], [0, 0, 1]], dtype=bool)
    assert presence.missed_share(found, labels) == 0.25
    assert math.isnan(presence.missed_share(found, np.zeros_like(labels)))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"risk": 1.0}, "risk must lie between 0 and 1"),
        ({"risk": 0.0}, "risk must lie between 0 and 1"),
        ({"labels": np.full((30, 4), 2)}, "labels must be 0 or 1"),
        ({"labels": np.zeros((30, 3))}, "scores have 4 classes, not 3"),
        ({"scores": np.zeros((19, 4)), "labels": np.zeros((19, 4))}, "20 labelled photos or more, not 19"),
        ({"scores": np.full((30, 4), np.nan)}, "scores has 120 value"),
    ],
)
def test_wrong_inputs_are_refused(changes, problem):
    scores, labels = photos(4, 30)
    with pytest.raises(cots.InputError, match=problem):
        presence.fit(**{"scores": scores, "labels": labels, **changes})


def test_twenty_photos_are_enough():
    scores, labels = photos(4, 20)
    assert presence.fit(scores, labels, risk=0.2).n == 20


def test_scores_are_standardised_cosines_and_those_of_in_list():
    task = cots.Task(tiny("vit"), CLASSES)
    features = torch.nn.functional.normalize(torch.randn(3, 2, 12, generator=torch.Generator().manual_seed(0)), dim=-1)
    found = novelty.presence_scores(features, task)
    words, view = novelty.background(task).double(), features[:, 0].double()
    expected = view @ task.text_features.double().T
    expected = (expected - (view @ words.T).mean(1)[:, None]) / (view @ words.T).std(1)[:, None]
    torch.testing.assert_close(found, expected)
    best = torch.special.ndtr(found.amax(1)) ** len(CLASSES)
    torch.testing.assert_close(novelty.in_list(features, task), best)


def test_siglip_uses_its_sigmoid_and_bias():
    backbone = tiny("siglip")
    assert tiny("vit").logit_bias is None
    task = cots.Task(backbone, ["cat", "dog"])
    features = torch.nn.functional.normalize(torch.randn(2, 1, 12, generator=torch.Generator().manual_seed(0)), dim=-1)
    pairs = backbone.logit_scale * (features[:, 0] @ task.text_features.T) + backbone.logit_bias
    torch.testing.assert_close(novelty.presence_scores(features, task).float(), pairs, rtol=1e-4, atol=1e-4)
    (one, _) = presence.read_scores(pairs, task.classes, sigmoid=True)
    np.testing.assert_allclose(one.probabilities, torch.sigmoid(pairs[0]), rtol=1e-5)
    assert one.present is None


@pytest.fixture
def small_model(monkeypatch):
    monkeypatch.setattr("cots.classifier.load", lambda name, **options: tiny("vit"))


@pytest.fixture
def listed(tmp_path):
    """30 photos; the first half shows cat, every third also or only car, some nothing."""
    rows = ["path,label"]
    for i in range(30):
        (tmp_path / f"{i}.png").write_bytes(photo(i))
        labels = ["cat"] * (i < 15) + ["sports_car"] * (i % 3 == 0)
        rows.append(f"{i}.png,{';'.join(labels)}")
    (tmp_path / "photos.csv").write_text("\n".join(rows))
    return tmp_path


def run(*words):
    """`cots` with the small model."""
    result = CliRunner().invoke(app, list(map(str, words)))
    if isinstance(result.exception, cots.CotsError):
        raise result.exception
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result


def test_check_writes_what_predict_applies(listed, small_model):
    policy = listed / "present.json"
    said = run("check", listed / "photos.csv", "--present", "-o", policy, "--risk", "0.2").stdout
    assert said.startswith("30 photos, 2 classes, presence with tiny-vit\nAUROC per class: mean ")
    assert "of the classes that a photo shows, at most 20% are missed on average. On these photos" in said
    line = json.loads(run("predict", listed / "0.png", "--present", "--policy", policy).stdout)
    found = presence.PresencePolicy.load(policy)
    classifier = cots.Classifier("tiny", found.classes, mode="present", policy=found)
    one = classifier(listed / "0.png").presence
    assert line["presence"] == one.ranked(5)
    assert {entry["class"] for entry in line["presence"] if entry["present"]} == set(one.present)
    np.testing.assert_allclose(one.probabilities, found.rule.probabilities(one.scores[None])[0])
    few = run("check", listed / "photos.csv", "--present", "-o", policy, "--risk", "0.01").stdout
    assert "No threshold: 30 photos are too few for 1%; label 198 that show a class." in few


def test_without_labels_there_are_scores_and_a_warning(listed, small_model):
    with pytest.warns(UserWarning, match="their level is not identified"):
        classifier = cots.Classifier("tiny", ["cat", "car"], mode="present")
    one = classifier(listed / "0.png").presence
    assert one.probabilities is None
    assert one.present is None
    found = run("predict", listed / "0.png", "--present", "--classes", "cat,car")
    assert json.loads(found.stdout)["presence"][0]["probability"] is None
    assert "their level is not identified" in found.stderr
    assert one.words(1) == f"{one.ranked(1)[0]['class']} {one.scores.max():.1f}"


def test_lists_can_have_a_row_per_label(tmp_path):
    file = tmp_path / "list.csv"
    file.write_text("label,path\ncat,a.png\nsports_car,a.png\n,b.png\ncat;cat,c.png\n")
    listed = cots.data.open_present(file)
    assert listed.classes == ("cat", "sports car")
    assert listed.labels.tolist() == [[True, True], [False, False], [True, False]]
    assert [path.name for path in listed.files] == ["a.png", "b.png", "c.png"]
    assert cots.data.open_present(file, "cat,dog,sports car").labels.shape == (3, 3)


@pytest.mark.parametrize(
    ("text", "classes", "problem"),
    [
        ("path,label\na.png,\n", None, "has no labels"),
        ("path,label\na.png,cat;dgo\n", "cat,dog", r"Unknown label in .*line 2: 'dgo'\. Did you mean 'dog'"),
        ("path,label\n,cat\n", None, "line 2: path or label is missing"),
        ("photo,label\na.png,cat\n", None, "must be the header path,label"),
    ],
)
def test_bad_lists_are_refused(text, classes, problem, tmp_path):
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(cots.InputError, match=problem):
        cots.data.open_present(tmp_path / "list.csv", classes)


def test_wrong_uses_are_refused(listed, small_model):
    with pytest.raises(cots.InputError, match="is not a CSV file"):
        run("check", listed, "--present")
    with pytest.raises(cots.InputError, match="looks at the plain image"):
        cots.Classifier("tiny", ["cat", "car"], "tpt", mode="present")
    with pytest.raises(cots.InputError, match="--taxonomy has no effect with --present"):
        run("check", listed / "photos.csv", "--present", "--taxonomy", "imagenet")
    with (
        pytest.warns(UserWarning, match="level is not identified"),
        pytest.raises(cots.InputError, match=r"abstain=0\.5 has no effect with mode='present'"),
    ):
        cots.Classifier("tiny", ["cat", "car"], mode="present", abstain=0.5)
    with pytest.raises(cots.InputError, match="Unknown mode 'presnt'"):
        cots.Classifier("tiny", ["cat", "car"], mode="presnt")
    with pytest.raises(cots.InputError, match="prints a table or JSON lines, not csv"):
        run("predict", listed / "0.png", "--present", "--classes", "cat,car", "--csv")
    policy = listed / "present.json"
    run("check", listed / "photos.csv", "--present", "-o", policy)
    with pytest.raises(cots.InputError, match="The policy was made with other classes"):
        run("predict", listed / "0.png", "--present", "--policy", policy, "--classes", "cat,dog")
    with pytest.raises(cots.InputError, match="it is one of cots check --present; use it with --present"):
        cots.Classifier("tiny", ["cat", "sports car"], policy=policy)
    with pytest.raises(cots.InputError, match=r"not one of mode='class'"):
        cots.Classifier("tiny", ["cat", "sports car"], policy=presence.PresencePolicy.load(policy))
    policy.write_text("{}")
    with pytest.raises(cots.InputError, match="is not a policy of presence"):
        presence.PresencePolicy.load(policy)
