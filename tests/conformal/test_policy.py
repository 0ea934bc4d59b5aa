"""Policies: what they do to predictions, where they refuse, and their file."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support.models import tiny
from support.serving import ask, client, photo

import cots
from cots import conformal
from cots._checked import read_json, write_json
from cots.conformal import tempered

CLASSES = ("cat", "car", "tree")


def policy(**changes) -> conformal.Policy:
    sets = conformal.ConformalSets(
        method="lac", coverage=0.9, per_class=False, thresholds=(0.8,) * 3, counts=(70, 70, 70)
    )
    error = conformal.ErrorControl(risk=0.05, certainty=0.95, threshold=0.9, n=210, accepted=150, errors=1)
    made = conformal.Policy(
        model="tiny-vit", weights_hash=tiny("vit").weights_hash, classes=CLASSES, method="tpt+ecots",
        template="a photo of a {}.", views=8, n=210, accuracy=0.9, mean_confidence=0.91, error=error, sets=sets,
        none_below=0.5,
    )  # fmt: skip
    return replace(made, **changes)


def test_a_policy_decides_on_predictions(tmp_path):
    policy().save(tmp_path / "policy.json")
    assert conformal.Policy.load(tmp_path / "policy.json") == policy()
    plain = cots.Classifier(tiny("vit"), CLASSES, views=8, solver="adam")(photo())
    found = cots.Classifier(tiny("vit"), CLASSES, views=8, policy=tmp_path / "policy.json")(photo())
    assert found.confidence == plain.confidence
    assert found.abstained == (plain.confidence < 0.9)
    assert found.label_set == tuple(name for name, p in plain.top(3) if 1 - p <= 0.8)
    assert found.none_of_these == (plain.in_list < 0.5)
    assert not plain.abstained
    assert plain.label_set is None
    hot = policy(temperature=2.0).apply(plain)
    square_root = np.sqrt(plain.probabilities.astype(float))
    np.testing.assert_allclose(hot.probabilities, square_root / square_root.sum(), rtol=1e-6)
    assert hot.confidence == hot.probabilities.max()
    assert tempered(np.array([1.0, 0.0]), 2.0).tolist() == [1.0, 0.0]
    failed = replace(plain, error="unreadable")
    assert policy().apply(failed) is failed


def test_a_policy_brings_its_views():
    automatic = cots.Classifier(tiny("vit"), CLASSES, policy=policy(views="auto", solver="exact"))
    assert automatic.setup.views == "auto"
    assert cots.Classifier(tiny("vit"), CLASSES, policy=policy()).setup.views == 8
    with pytest.raises(cots.InputError, match=r"made with other views \(8, not auto\)"):
        cots.Classifier(tiny("vit"), CLASSES, views="auto", policy=policy())
    assert client(views=None, policy=policy(views="auto")).get("/readyz").status_code == 200
    with pytest.raises(cots.InputError, match="made with auto views"):
        client(views=8, policy=policy(views="auto"))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_a_table_is_tempered_row_by_row(temperature):
    table = np.random.default_rng(0).dirichlet([0.2] * 4, size=50)
    powers = table ** (1 / temperature)
    np.testing.assert_allclose(tempered(table, temperature), powers / powers.sum(1, keepdims=True), rtol=1e-9)
    for row, one in zip(tempered(table, temperature), table, strict=True):
        np.testing.assert_array_equal(row, tempered(one, temperature))


def test_a_prediction_exactly_at_a_threshold_is_kept():
    plain = cots.Classifier(tiny("vit"), CLASSES, views=8)(photo())
    above = float(np.nextafter(plain.confidence, 1)), float(np.nextafter(plain.in_list, 1))
    for confidence, in_list, beyond in ((plain.confidence, plain.in_list, False), (*above, True)):
        error = conformal.ErrorControl(risk=0.05, certainty=0.95, threshold=confidence, n=210, accepted=150, errors=1)
        found = policy(error=error, none_below=in_list, sets=None).apply(plain)
        assert (found.abstained, found.none_of_these) == (beyond, beyond)
        assert (found.label is None) is beyond


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ("cat", "car")}, "other classes, so its guarantees"),
        ({"method": "tpt"}, r"other method \(tpt, not tpt\+ecots\)"),
        ({"views": 64}, "other views"),
        ({"weights_hash": "0"}, "other weights hash"),
        ({"augmix": False}, "other augmix"),
        ({"settings": {"rho": 0.3}}, "other settings"),
        ({"template": ("a {}", "the {}")}, "other template"),
    ],
)
def test_a_policy_of_other_settings_is_refused(change, message):
    with pytest.raises(cots.InputError, match=message):
        cots.Classifier(tiny("vit"), CLASSES, views=8, policy=policy(**change))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda data: data.update(views="64"), r"Invalid enum value .64. - at `\$.views`"),
        (lambda data: data.update(classes="cat"), r"\$.classes"),
        (lambda data: data["error"].update(threshold="high"), r"\$.error.threshold"),
        (lambda data: data["sets"].update(thresholds=["a"]), r"\$.thresholds"),
        (lambda data: data.update(sets=[]), "is not a policy"),
        (lambda data: data.update(sets={}), "is not a policy"),
        (lambda data: data["sets"].update(thresholds=7), "is not a policy"),
        (lambda data: data.update(signals={"confidence": 1}), r"\$.signals"),
    ],
)
def test_a_policy_with_a_value_of_the_wrong_type_is_refused(tmp_path, change, named):
    file = tmp_path / "policy.json"
    policy().save(file)
    data = read_json(file)
    change(data)
    write_json(file, data)
    with pytest.raises(cots.InputError, match=named):
        conformal.Policy.load(file)


def test_files_that_are_no_policy_are_refused(tmp_path):
    file = tmp_path / "policy.json"
    for text, message in {
        "{}": "is not a policy",
        '{"kind": "cots policy 1"}': "is not a policy",
        "[]": "is damaged .*not a JSON object",
        "no": "is damaged .*not JSON",
    }.items():
        file.write_text(text)
        with pytest.raises(cots.CotsError, match=message):
            conformal.Policy.load(file)
    with pytest.raises(cots.InputError, match=r"\.json: no such file"):
        conformal.Policy.load(tmp_path / "missing.json")


def test_a_changed_policy_is_refused(tmp_path):
    policy().save(file := tmp_path / "policy.json")
    file.write_text(file.read_text().replace("0.9", "0.8"))
    with pytest.raises(cots.CotsError, match=r"is damaged .*Write it again with cots check\."):
        conformal.Policy.load(file)


def test_the_server_applies_its_policy_to_requests_with_its_classes():
    web = client(policy=policy(), views=8)
    (result,) = ask(web, classes="\n".join(CLASSES)).json()["results"]
    assert result["label_set"] is not None
    assert result["abstained"] == (result["confidence"] < 0.9)
    (other,) = ask(web, classes="dog\ncar").json()["results"]
    assert other["label_set"] is None
    assert not other["abstained"]
    with pytest.raises(cots.InputError, match="with other weights"):
        client(policy=policy(weights_hash="0"), views=8)


def test_a_policy_of_a_method_without_a_temperature_leaves_others_their_solver():
    zeroshot = policy(method="zeroshot", solver="none")
    for solver in (None, "adam"):
        web = client(policy=zeroshot, views=8, solver=solver)
        answer = ask(web, classes="\n".join(CLASSES), methods="zeroshot,tpt+cots")
        results = answer.json()["results"]
        assert [(one["label_set"] is None, one["under_policy"]) for one in results] == [(False, True), (True, False)]
    with pytest.raises(cots.InputError, match="made with other method"):
        cots.Classifier(tiny("vit"), CLASSES, "tpt+cots", views=8, policy=zeroshot)


def test_another_seed_or_precision_earns_a_warning():
    with pytest.warns(UserWarning, match="made with seed 0, not 1, so single predictions can differ slightly"):
        cots.Classifier(tiny("vit"), CLASSES, views=8, seed=1, policy=policy())
    with pytest.warns(UserWarning, match="made with precision bfloat16, not float32"):
        cots.Classifier(tiny("vit"), CLASSES, views=8, policy=policy(precision="bfloat16"))


def sets_of(method: str, limit: float) -> conformal.ConformalSets:
    return conformal.ConformalSets(
        method=method, coverage=0.9, per_class=False, thresholds=(limit,) * 3, counts=(70, 70, 70)
    )


def test_an_empty_set_abstains_without_a_label():
    p = np.array([0.5, 0.3, 0.2])
    plain = cots.Prediction(label="cat", confidence=0.5, probabilities=p, classes=CLASSES, in_list=0.9)
    unsure = policy(sets=sets_of("lac", 0.4), error=None).apply(plain)
    assert (unsure.label, unsure.abstained, unsure.label_set) == (None, True, ())
    assert [name for name, _ in unsure.top(2)] == ["cat", "car"]
    one = policy(sets=sets_of("lac", 0.5), error=None).apply(plain)
    assert (one.label, one.abstained, one.label_set) == ("cat", False, ("cat",))
    low = policy(sets=sets_of("lac", 0.5)).apply(plain)
    assert (low.label, low.abstained, low.top(1)[0][0]) == (None, True, "cat")


@pytest.mark.parametrize("method", ["aps", "raps"])
def test_a_prediction_too_sure_for_an_aps_set_keeps_its_class(method):
    sure = cots.Prediction(
        label="car", confidence=0.98, probabilities=np.array([0.01, 0.98, 0.01]), classes=CLASSES, in_list=0.9
    )
    sets = sets_of(method, 0.9)
    assert not sets.sets(sure.probabilities[None]).any()
    found = policy(sets=sets).apply(sure)
    assert (found.label, found.abstained, found.label_set) == ("car", False, ("car",))


def test_the_server_gives_no_label_for_an_empty_set():
    web = client(policy=policy(sets=sets_of("lac", -1.0)), views=8)
    (result,) = ask(web, classes="\n".join(CLASSES)).json()["results"]
    assert (result["label"], result["abstained"], result["label_set"]) == (None, True, [])


def test_a_policy_without_a_threshold_says_so_and_comes_back(tmp_path):
    few = conformal.control_error(np.linspace(0.5, 1, 50), np.ones(50, dtype=bool))
    policy(error=few).save(tmp_path / "policy.json")
    assert conformal.Policy.load(tmp_path / "policy.json").error == few
    with pytest.warns(UserWarning, match="no threshold.*50 labels support at most 11% errors; about 54 more for 5%"):
        classifier = cots.Classifier(tiny("vit"), CLASSES, views=8, policy=tmp_path / "policy.json")
    assert not classifier(photo()).abstained
    assert "no threshold" in policy(error=None).warnings(policy())[0]
    assert policy().warnings(policy()) == []


def test_a_server_refuses_a_policy_of_other_views():
    with pytest.raises(cots.InputError, match="made with 64 views; start the server with that number"):
        client(policy=policy(views=64))


def test_of_equal_names_the_likelier_counts():
    names, p = ("cat", "cat", "dog"), np.array([0.2, 0.5, 0.3])
    twice = cots.Prediction(label="cat", confidence=0.5, probabilities=p, classes=names)
    assert policy(classes=names).apply(twice).confidence == 0.5


def test_several_templates_survive_the_file(tmp_path):
    made = policy(template=("a {}", "the {}"), signals={"confidence": [0.5], "agreement": [1.0], "in_list": [0.9]})
    made.save(tmp_path / "policy.json")
    assert conformal.Policy.load(tmp_path / "policy.json") == made


@pytest.mark.parametrize(("kept", "usable"), [(999, True), (1000, False)])
def test_the_reference_of_an_old_policy_is_read_if_it_has_all_photos(tmp_path, kept, usable):
    """Earlier versions kept evenly spaced order statistics of more photos, which are not exchangeable with new ones."""
    file = tmp_path / "policy.json"
    policy().save(file)
    content = json.loads(file.read_text())
    old = {name: [0.5] * kept for name in ("confidence", "agreement", "in_list")}
    content = {name: value for name, value in content.items() if name not in ("signals", "cots_checksum")}
    file.write_text(json.dumps({**content, "reference": old}))
    found = conformal.Policy.load(file)
    assert found.signals == (old if usable else None)
