"""The pipeline gives what its stages give by hand, and runs each adapter once."""

from __future__ import annotations

import pytest
import torch
from support.logits import published
from support.models import random_views, tiny_task

import cots
from cots.adaptation import Pipeline
from cots.adapters import ADAPTERS
from cots.methods import headline_methods, method_title, parse_method, predictions_of

METHODS = ("zeroshot", "tpt", "tpt+cots", "soc+ecots", "penalty+sals", "tps+cor", "tda", "tda(ctpt)+cots")


@pytest.fixture(scope="module")
def task():
    return tiny_task("vit")


def by_hand(features, task, method, state=None):
    adapter, _, calibrator = method.partition("+")
    settings = {"state": state} if adapter.startswith("tda") else {}
    adapted = cots.adapt(adapter, features, task, **settings)
    result = published(adapted.logits, adapted.zero_shot_logits, method=calibrator or "none", alpha=task.alpha)
    return result, adapted.state


def same(a, b):
    for name in ("probabilities", "prediction", "confidence", "tau", "views"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


def test_results_are_those_of_the_stages(task):
    first, second = random_views(task, samples=3, seed=0), random_views(task, samples=2, seed=1)
    pipeline = Pipeline(task, METHODS)
    found = [pipeline.run(first), pipeline.run(second)]
    for method in METHODS:
        state = None
        for features, outcomes in zip((first, second), found, strict=True):
            expected, state = by_hand(features, task, method, state)
            same(outcomes[parse_method(method)].calibrated, expected)


def test_pieces_of_a_batch_are_adapted_one_by_one_and_calibrated_together(task):
    features = random_views(task, samples=5, seed=2)
    whole, cut = (Pipeline(task, ["tda+cots", "tpt+ecots"]) for _ in range(2))
    expected, found = whole.run(features), cut.run(iter(features.split(2)))
    for method in expected:
        torch.testing.assert_close(found[method].calibrated.probabilities, expected[method].calibrated.probabilities)
    assert Pipeline(task, ["tpt"]).run(iter([])) == {}


def test_settings_go_to_their_part(task):
    features = random_views(task, samples=2, seed=3)
    pipeline = Pipeline(
        task, ["ctpt+ts"], adapter_settings={"ctpt": {"weight": 2.0}}, calibrator_settings={"ts": {"temperature": 3.0}}
    )
    adapted = cots.adapt("ctpt", features, task, weight=2.0)
    (outcome,) = pipeline.run(features).values()
    torch.testing.assert_close(outcome.calibrated.probabilities, (adapted.logits[:, 0] / 3.0).softmax(-1))
    with pytest.raises(cots.InputError, match="setting of adapter 'tpt'"):
        Pipeline(task, ["tpt"], adapter_settings={"tpt": {"weight": 1.0}})


def test_a_stream_advances_without_results_and_resumes_from_its_state(task):
    first, second = random_views(task, samples=3, seed=4), random_views(task, samples=2, seed=5)
    method = parse_method("tda")
    whole = Pipeline(task, [method])
    whole.run(first)
    expected = whole.run(second)[method].calibrated
    passing = Pipeline(task, [method])
    assert passing.run(first, methods=[], advance=["tda"]) == {}
    same(passing.run(second)[method].calibrated, expected)
    resumed = Pipeline(task, [method])
    resumed.states["tda"] = cots.adapt("tda", first, task).state
    same(resumed.run(second)[method].calibrated, expected)


def test_an_adapter_runs_once_and_shared_work_is_done_once(task, monkeypatch):
    calls = []
    pull_back = task.pull_back
    monkeypatch.setattr(task, "pull_back", lambda cotangent: calls.append(len(cotangent)) or pull_back(cotangent))
    features = random_views(task, samples=3, seed=6)
    pipeline = Pipeline(task, ["tpt", "tpt+cots", "tpt+ecots", "ctpt", "soc+cots", "otpt", "tda(otpt)"])
    pipeline.run(features)  # also the constants of each regulariser, one gradient each
    assert calls.count(3) == 1
    calls.clear()
    pipeline.run(features)
    assert calls == [3]


@pytest.mark.parametrize("view", [0, 3])
def test_features_that_are_not_finite_give_no_prediction(task, view):
    """The pipeline trusts its encoder; what that got wrong is refused where the result reaches the host."""
    features = random_views(task, samples=2, seed=9)
    features[1, view] = torch.nan
    pipeline = Pipeline(task, ["tpt+cots"])
    (outcome,) = pipeline.run(features).values()
    with pytest.raises(cots.InputError, match=r"tpt\+cots has .* not finite"):
        predictions_of(outcome, task, pipeline.methods[0], torch.ones(2), 0.5)()


def test_methods_describe_themselves():
    assert method_title("tda(soc)+cots") == "TDA (SoC) + CoTS"
    assert method_title("unheard-of+cots") == "unheard-of+cots"
    assert headline_methods()[:6] == ("zeroshot", "tpt", "tpt+sals", "tpt+cor", "tpt+cots", "tpt+ecots")
    info = ADAPTERS.info("soc")
    assert (info.title, info.one_template, info.online, info.takes) == ("SoC", True, False, "features")
    assert ADAPTERS.info("tda(soc)").online
    assert ADAPTERS.info("ttl").takes == "pixels"


@pytest.mark.parametrize("method", ["zeroshot", "tpt+cots", "tpt+ecots", "zeroshot+cor"])
def test_agreement_counts_the_views_whose_best_class_is_the_prediction(method, task):
    features = random_views(task, samples=6, views=8, seed=7)
    pipeline = Pipeline(task, [method])
    (outcome,) = pipeline.run(features).values()
    adapted = cots.adapt(method.partition("+")[0], features, task)
    shares = []
    for views, label in zip(adapted.logits.tolist(), outcome.calibrated.prediction.tolist(), strict=True):
        best = [row.index(max(row)) for row in views]
        shares.append(best.count(label) / 8)
    assert outcome.agreement.tolist() == shares
    assert len(set(shares)) > 2
    predictions = predictions_of(outcome, task, pipeline.methods[0], torch.ones(6), 0.5)()
    assert [one.agreement for one in predictions] == shares


def test_the_range_of_a_confidence_by_hand():
    task = tiny_task("vit")
    features = random_views(task, 3, 16)
    pipeline = Pipeline(task, ["tpt+ecots", "tpt+cots", "tpt", "zeroshot"], ranges=True)
    outcomes = {str(method): outcome for method, outcome in pipeline.run(features).items()}
    assert outcomes["tpt"].confidence_range is None, "the prompt depends on the views, and nothing here says how far"
    assert outcomes["zeroshot"].confidence_range is None, "it uses only the weak view"
    adapted = cots.adapt("tpt", features, task)
    draws = torch.randint(1, 16, (40, 16), generator=torch.Generator().manual_seed(0))
    draws[:, 0] = 0
    for name in ("ecots", "cots"):
        found = outcomes[f"tpt+{name}"]
        for place, confidence in enumerate(found.calibrated.confidence.double()):
            both = adapted.logits[place, draws], adapted.zero_shot_logits[place, draws]
            width = 3 * 1.645 * published(*both, name, alpha=task.alpha).confidence.double().logit().std()
            expected = torch.stack([confidence.logit() - width, confidence.logit() + width]).sigmoid()
            torch.testing.assert_close(found.confidence_range[place], expected, atol=1e-5, rtol=1e-4)
    assert Pipeline(task, ["tpt+ecots"]).run(features)[pipeline.methods[0]].confidence_range is None
    one = Pipeline(task, ["tpt+ecots"], ranges=True).run(features[:, :1])[pipeline.methods[0]]
    assert torch.equal(one.confidence_range[:, 0], one.confidence_range[:, 1]), "one view cannot be drawn again"


def test_several_settings_of_one_method(task, monkeypatch):
    """Each adapter with each setting runs once; results are those of a pipeline with the settings apart."""
    features = random_views(task, samples=3, seed=4)
    names = ["tpt", "tpt+cots", "tpt+cots(k=4)", "tpt(steps=2)+cots", "tpt(steps=2)+cots(k=4,loss=l1)"]
    names += ["tda(ctpt(weight=2))", "tda(ctpt,weight=2,steps=2)+ecots(alpha=0.25)"]
    runs, adapt = [], Pipeline.adapt
    monkeypatch.setattr(Pipeline, "adapt", lambda self, name, batch: runs.append(name) or adapt(self, name, batch))
    found = Pipeline(task, names).run(features)
    assert runs == ["tpt", "tpt(steps=2)", "tda(ctpt,weight=2)", "tda(ctpt,weight=2,steps=2)"]
    for name in names:
        method = parse_method(name)
        adapter, calibrator = dict(method.adapter_settings), dict(method.calibrator_settings)
        alone = Pipeline(
            task,
            [f"{method.adapter}+{method.calibrator}", "zeroshot"],
            adapter_settings={method.adapter: adapter},
            calibrator_settings={method.calibrator: calibrator},
        )
        (expected, _) = alone.run(features).values()
        same(found[method].calibrated, expected.calibrated)
    tuned = cots.adapt("ctpt", features, task, weight=2.0, steps=2)
    under = cots.adapt("tda(ctpt)", features, task, weight=2.0, steps=2)
    assert torch.equal(tuned.zero_shot_logits, under.zero_shot_logits)
    assert not torch.equal(under.logits, cots.adapt("tda(ctpt)", features, task, weight=2.0).logits)


def test_settings_in_a_name_take_precedence(task):
    features = random_views(task, samples=2, seed=5)
    given = {"calibrator_settings": {"cots": {"k": 2, "t0": 0.5}}}
    mixed = Pipeline(task, ["tpt+cots(k=4)", "tpt+cots"], **given).run(features)
    both = Pipeline(task, ["tpt+cots"], calibrator_settings={"cots": {"k": 4, "t0": 0.5}}).run(features)
    same(mixed[parse_method("tpt+cots(k=4)")].calibrated, both[parse_method("tpt+cots")].calibrated)
    assert mixed[parse_method("tpt+cots")].calibrated.views.shape[1] == 2
