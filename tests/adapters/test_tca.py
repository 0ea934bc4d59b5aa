"""TCA against a second implementation from its equations: one sample, full-length prompts, autograd, torch.optim."""

from __future__ import annotations

import json

import pytest
import torch
from support import naive_adapt as naive
from support.models import CLASSES, WORDS, random_views, tiny
from support.runs import config, photos
from support.serving import photo
from typer.testing import CliRunner

import cots
from cots import bench
from cots.adapters.tca import AttributeBatch
from cots.cli import app
from cots.data import find_protocol

OURS = [name.replace("_", " ") for name in CLASSES]


def task_of(kind="vit", words=WORDS, classes=CLASSES):
    return cots.Task(tiny(kind, torch.float64), classes, attributes=words)


def naive_tca(x_VD, backbone, A, alpha, beta, double, steps=1, lr=5e-3, rho=0.1):
    """Class logits of all views before and after."""
    ids = naive.prompt_ids(backbone, [f"{word} {name}" for name in OURS for word in WORDS[name][:A]])
    scale = backbone.model.logit_scale.exp()
    context = torch.nn.Parameter(naive.initial_context(backbone).clone())
    optimiser = torch.optim.AdamW([context], lr=lr)

    def class_logits(u):
        z = torch.stack([(scale * x_VD @ u[k * A : (k + 1) * A].T).exp().sum(1).log() for k in range(len(OURS))], 1)
        return z, (z.softmax(1) if double else z)

    with torch.no_grad():
        before, seen = class_logits(naive.text_features(backbone, ids, context))
    chosen = naive.select(seen, rho)
    for _ in range(steps):
        u = naive.text_features(backbone, ids, context)
        m = torch.stack([sum(u[k * A : (k + 1) * A]) / A for k in range(len(OURS))])
        D = sum((one - sum(m) / len(m)).norm() for one in m) / len(m)
        distances = [(u[k * A + a] - m[k]).norm() for k in range(len(m)) for a in range(A)]
        R = sum(distances) / len(distances)
        loss = naive.mean_entropy(class_logits(u)[1][chosen]) - alpha * D + (beta * R if A > 1 else 0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        return before, class_logits(naive.text_features(backbone, ids, context))[0]


@pytest.mark.parametrize("kind", ["vit", "siglip"])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(("A", "steps", "alpha", "beta"), [(2, 1, 10.0, 35.0), (3, 2, 0.3, 0.2), (1, 1, 1.0, 10.0)])
def test_it_matches_the_naive_reference(kind, double, A, steps, alpha, beta):
    task = task_of(kind)
    views = random_views(task, samples=2, views=24)
    given = {"alpha": alpha, "beta": beta, "steps": steps}
    adapted = cots.adapt("tca", views, task, words=A, double_softmax=double, **given)
    for b in range(2):
        before, after = naive_tca(views[b], task.backbone, A, alpha, beta, double, steps=steps)
        torch.testing.assert_close(adapted.zero_shot_logits[b], before, rtol=0, atol=1e-8)
        torch.testing.assert_close(adapted.logits[b], after, rtol=0, atol=1e-7)
        assert (before - after).abs().max() > 0.02


def test_one_attribute_without_its_terms_is_tpt_with_longer_names():
    task = task_of()
    views = random_views(task, samples=2)
    longer = cots.Task(task.backbone, [f"{WORDS[name][0]} {name}" for name in OURS])
    ours = cots.adapt("tca", views, task, words=1, alpha=0.0, beta=0.0)
    theirs = cots.adapt("tpt", views, longer)
    torch.testing.assert_close(ours.zero_shot_logits, theirs.zero_shot_logits, rtol=0, atol=1e-10)
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=0, atol=1e-9)


def test_with_one_attribute_beta_has_no_effect_and_with_two_it_has():
    task = task_of()
    views = random_views(task, samples=1)
    for words, same in ((1, True), (2, False)):
        low, high = (cots.adapt("tca", views, task, words=words, beta=beta).logits for beta in (0.0, 1e3))
        assert torch.equal(low, high) == same


def test_the_order_of_attributes_changes_nothing():
    views = random_views(task_of(), samples=2)
    turned = {name: [*words[1::-1], words[2]] for name, words in WORDS.items()}
    one, other = (cots.adapt("tca", views, task_of(words=words)).logits for words in (WORDS, turned))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    third = {name: words[::-1] for name, words in WORDS.items()}
    assert (one - cots.adapt("tca", views, task_of(words=third)).logits).abs().max() > 0.05, "only the first two count"


def test_the_published_form_hardly_sees_the_image():
    """Softmax of probabilities is nearly uniform, so all images take nearly the same step."""
    task = task_of()
    views = random_views(task, samples=2)
    largest = {}
    for double in (False, True):
        batch = AttributeBatch(views, task.by_attribute(2), 2, double)
        _, gradient = batch.gradient(batch.selected(0.1), batch.loss)
        largest[double] = float(gradient.abs().max())
    assert largest[True] < 0.5 * largest[False]


def test_a_learned_context_is_shared_with_the_attributes():
    backbone = tiny("vit", torch.float64)
    context = torch.randn(3, cots.Task(backbone, CLASSES).initial_context.shape[1], dtype=torch.float64)
    task = cots.Task(backbone, CLASSES, "{}.", context=context, attributes=WORDS)
    ids = naive.prompt_ids(backbone, [f"{word} {name}" for name in OURS for word in WORDS[name][:2]], "x x x {}.")
    expected = naive.text_features(backbone, ids, context)
    torch.testing.assert_close(task.by_attribute(2).text_features, expected.detach(), rtol=0, atol=1e-8)


def test_datasets_have_the_published_weights():
    for name in ("imagenet", "imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch"):
        assert dict(find_protocol(name).settings("tca")) == {"alpha": 45.0, "beta": 15.0}
    assert dict(find_protocol("pets").settings("tca")) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"car": ["red"]}, r"attributes: no attributes for 4 classes: .* Add them"),
        ({**WORDS, "car": ["red"]}, r"'car' has 1 of the 2 attributes that are used\. Add more"),
        ({**WORDS, "car": ["red", "Red"]}, "attributes: 'car' has an attribute twice"),
        ({**WORDS, "car": []}, "attributes: 'car' needs a list of at least one attribute"),
        ({**WORDS, "car": ["red", 4]}, "'4' of 'car' is not an attribute"),
        ("none.json", "attributes none.json cannot be read"),
        (None, r"tca needs words for each class\. Pass attributes \(--attributes FILE\)"),
    ],
)
def test_what_is_wrong_with_attributes_is_named(given, message):
    with pytest.raises(cots.InputError, match=message):
        cots.adapt("tca", random_views(task_of()), task_of(words=given))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"words": 0}, "words must be a whole number >= 1"), ({"alpha": float("nan")}, "alpha must be finite")],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(cots.InputError, match=message):
        cots.adapt("tca", random_views(task_of()), task_of(), **settings)
    task = cots.Task(tiny("vit"), CLASSES, "{}.", attributes=WORDS)
    with pytest.raises(cots.InputError, match="has no word before"):
        cots.adapt("tca", random_views(task), task)


def test_no_step_gives_the_zero_shot_logits():
    task = task_of()
    adapted = cots.adapt("tca", random_views(task), task, steps=0)
    assert torch.equal(adapted.logits, adapted.zero_shot_logits)


def test_attributes_that_no_method_uses_are_refused():
    with pytest.raises(cots.InputError, match=r"attributes have no effect: .*add tca"):
        cots.Classifier(tiny("vit"), CLASSES, "tpt", attributes=WORDS)
    with pytest.raises(cots.InputError, match="tca needs words for each class"):
        cots.Classifier(tiny("vit"), CLASSES, "tca+cots")


def test_predict_takes_a_file_of_texts(tmp_path, monkeypatch):
    monkeypatch.setattr("cots.classifier.load", lambda name, **options: tiny("vit"))
    (tmp_path / "a.jpg").write_bytes(photo(0, kind="JPEG"))
    words = [
        "predict",
        str(tmp_path / "a.jpg"),
        "--classes",
        "cat,dog",
        "--method",
        "tca+cots",
        "--json",
        "--views",
        "9",
    ]
    found = []
    for cat in ("soft striped", "wet dark"):  # as in the published lists
        file = tmp_path / "names.json"
        file.write_text(json.dumps({"cat": cat, "dog": "loud loyal"}))
        result = CliRunner().invoke(app, [*words, "--attributes", str(file)])
        assert result.exit_code == 0, result.output
        found.append(json.loads(result.stdout.splitlines()[0])["confidence"])
    assert found[0] != found[1]


def test_a_run_takes_them_beside_other_methods_and_refuses_others(tmp_path):
    dataset, file = photos(tmp_path / "photos", 1), tmp_path / "names.json"
    file.write_text(json.dumps({name: ["old", "new"] for name in dataset.classes}))
    given = config(dataset, tmp_path / "run", methods=["tpt", "tca", "tca+cots"], views=4, attributes=file)
    finished = bench.run(given)
    assert finished.manifest.datasets[0].attributes is not None
    tca, tpt = (finished.records("photos", name, 0).confidence for name in ("tca", "tpt"))
    assert not (tca == tpt).all()
    file.write_text(json.dumps({name: ["old", "other"] for name in dataset.classes}))
    with pytest.raises(cots.InputError, match="attributes of photos"):
        bench.run(given)


def test_they_decide_whether_a_policy_applies():
    setup = cots.Classifier(tiny("vit"), CLASSES, "tca", attributes=WORDS).setup
    assert len(setup.attributes) == 64
