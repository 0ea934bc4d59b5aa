"""The online methods against second implementations, and what holds for all of them: order, state, resuming."""

from __future__ import annotations

import dataclasses
import functools
import math

import pytest
import torch
from support import naive_toolbox as naive
from support.models import CLASSES, NEEDS, random_views, tiny, tiny_task

import cots
from cots._files import location
from cots.adapters import ADAPTERS
from cots.bench._binding import Binding
from cots.bench._shards import load_state, save_state

ONLINE = [info.name for info in ADAPTERS.infos() if info.online and "(" not in info.name]
SAMPLES = 18
SETTINGS = {"onzeta": {"length": SAMPLES}}


@functools.cache
def task_for(name=""):
    """Predictions from nearly certain to nearly uniform, so that gates open and close and caches overflow."""
    softer = dataclasses.replace(tiny("vit", torch.float64))
    softer.__dict__["logit_scale"] = 6.0
    return cots.Task(softer, CLASSES, **NEEDS.get(name, {}))


@pytest.fixture(scope="module")
def task():
    return task_for()


@pytest.fixture(scope="module")
def stream(task):
    return torch.cat([random_views(task, samples=SAMPLES // 3, views=12, seed=s) for s in range(3)])


def adapt(name, stream, task, **settings):
    return cots.adapt(name, stream, task, **SETTINGS.get(name, {}), **settings)


def check(adapted, expected, task, stream, atol=1e-9):
    torch.testing.assert_close(adapted.zero_shot_logits, task.logit_scale * stream @ task.text_features.T)
    torch.testing.assert_close(adapted.logits, torch.stack(expected), rtol=0, atol=atol)


@pytest.mark.parametrize("alpha", [1.0, 0.0])
def test_onzeta_matches_the_naive_reference(task, stream, alpha):
    adapted = adapt("onzeta", stream, task, alpha=alpha)
    check(adapted, naive.onzeta(stream, task.text_features, task.logit_scale, SAMPLES, alpha), task, stream)
    assert bool((adapted.state.dual >= 0).all())
    assert bool((adapted.state.dual > 0).any()) == (alpha > 0)
    torch.testing.assert_close(adapted.state.proxies.norm(dim=1), torch.ones(len(CLASSES), dtype=torch.float64))


def test_onzeta_without_prior_and_proxies_is_zero_shot(task, stream):
    adapted = adapt("onzeta", stream, task, alpha=0.0, beta=0.0)
    torch.testing.assert_close(adapted.logits, adapted.zero_shot_logits.log_softmax(-1))


def test_onzeta_needs_the_length_of_the_stream(task, stream):
    with pytest.raises(cots.InputError, match="pass length="):
        cots.adapt("onzeta", stream, task)


@pytest.mark.parametrize("shots", [50, 2])
def test_dmn_matches_the_naive_reference(task, stream, shots):
    adapted = adapt("dmn", stream, task, shots=shots)
    expected, memory = naive.dmn(stream, task.text_features, task.logit_scale, shots)
    check(adapted, expected, task, stream)
    kept = adapted.state.entropy.isfinite().sum(1)
    assert kept.tolist() == [len(memory[k]) for k in range(len(CLASSES))]
    assert bool((kept == shots).any()) == (shots == 2)
    with pytest.raises(cots.InputError, match=f"has {shots} slots per class"):
        adapt("dmn", stream, task, shots=3, state=adapted.state)


@pytest.mark.parametrize(("extra", "query"), [(1, "weak"), (0, "weak"), (3, "confident")])
def test_boostadapter_matches_the_naive_reference(task, stream, extra, query):
    stream = torch.cat([stream, stream.flip(1)])[:, :6]  # enough for the negative cache to drop its oldest entries
    rho = {"rho": 0.5} if query == "confident" else {}
    adapted = adapt("boostadapter", stream, task, extra=extra, cache_from=query, **rho)
    given = {"extra": extra, "query": query, **rho}
    expected, plus, minus = naive.boostadapter(stream, task.text_features, task.logit_scale, **given)
    check(adapted, expected, task, stream)
    assert max(map(len, plus.values())) == 3
    assert max(map(len, minus.values())) == 2
    filled = adapted.state.positive_entropy.isfinite().sum(1)
    assert filled.tolist() == [len(plus[k]) for k in range(len(CLASSES))]  # the sample's own views are dropped


def test_boostadapter_without_views_of_its_own_is_tda_with_a_queue(task, stream):
    """With no negative cache and nothing boosted, what is left is TDA's positive cache."""
    none = {"negative": (0.0, 1.0)}
    tda = adapt("tda", stream[:, :1], task, **none).logits
    boosted = adapt("boostadapter", stream[:, :1], task, extra=0, **none).logits
    first = 2.0 * (task.text_features.new_ones(()))
    torch.testing.assert_close((boosted - tda)[0].max(), first)  # view 0 is in the cache, and boosts itself


@pytest.mark.parametrize("query", ["weak", "confident"])
def test_dpe_matches_autograd_and_torch_optim(task, stream, query):
    settings = {"lr": 2e-3, "weight": 0.5}
    rho = {"rho": 0.25} if query == "confident" else {}
    adapted = adapt("dpe", stream, task, cache_from=query, **settings, **rho)
    expected, text, moves = naive.dpe(stream, task.text_features, task.logit_scale, query=query, **settings, **rho)
    check(adapted, expected, task, stream, atol=1e-7)
    torch.testing.assert_close(adapted.state.text, text)
    assert 0 < moves == int(adapted.state.moves) < SAMPLES
    logits = task.logit_scale * stream[:, :1] @ adapted.tuned_text().mT
    bonus = adapted.logits[:, :1] - logits
    assert float(bonus.min()) > -1e-9, "the tuned text explains the logits up to the visual prototypes' part"


def test_dpe_without_steps_and_prototypes_is_zero_shot(task, stream):
    adapted = adapt("dpe", stream, task, lr=0.0, positive=(0.0, 5.0))
    torch.testing.assert_close(adapted.logits, adapted.zero_shot_logits)
    torch.testing.assert_close(adapted.state.text, task.text_features)


def test_ecalp_matches_a_graph_built_anew_for_every_sample(task, stream):
    stream = stream[:, :4]
    adapted = adapt("ecalp", stream, task)
    check(adapted, [10_000 * rows for rows in naive.ecalp(stream, task.text_features)], task, stream, atol=1e-6)
    alone = adapt("ecalp", task.text_features[2].expand(1, 1, -1), task).logits
    assert int(alone.argmax()) == 2, "the first image's answer is the zero-shot one"
    shares = adapt("ecalp", stream, task, output="share").logits.exp()
    scores = adapted.logits.clamp_min(0)
    torch.testing.assert_close(shares, scores / scores.sum(-1, keepdim=True), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ONLINE)
def test_a_stream_resumes_bit_identically_and_its_order_matters(name, stream, tmp_path):
    task = task_for(name)
    whole = adapt(name, stream, task)
    first = adapt(name, stream[:7], task)
    kept = {f.name: getattr(first.state, f.name).clone() for f in dataclasses.fields(first.state)}
    first.state.save(tmp_path / "state.safetensors")
    state = type(first.state).load(tmp_path / "state.safetensors")
    bind = functools.partial(Binding, run="", dataset="x", seed=0, part=name, samples=0, settings="")
    save_state(location(tmp_path / "run"), bind(index=6), first.state)  # as a run does between two shards
    after, resumed = load_state(location(tmp_path / "run"), 9, lambda shard: bind(index=shard))
    assert after == 7
    assert torch.equal(adapt(name, stream[7:], task, state=resumed).logits, whole.logits[7:])
    second = adapt(name, stream[7:], task, state=state)
    assert torch.equal(torch.cat([first.logits, second.logits]), whole.logits)
    for field, value in kept.items():
        assert torch.equal(getattr(first.state, field), value), "the given state must not change"
        assert torch.equal(getattr(second.state, field), getattr(whole.state, field))
    backwards = adapt(name, stream.flip(0), task)
    assert not torch.allclose(backwards.logits.flip(0), whole.logits), "the order of the stream is part of the protocol"


@pytest.mark.parametrize("name", ONLINE)
def test_a_prediction_does_not_depend_on_later_samples(name, stream):
    task = task_for(name)
    whole = adapt(name, stream, task)
    torch.testing.assert_close(adapt(name, stream[:9], task).logits, whole.logits[:9], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ONLINE)
@pytest.mark.parametrize(("views", "classes"), [(1, 2), (3, 1), (12, 2)])
def test_small_streams_are_finite(name, views, classes):
    task = tiny_task("vit", classes=("cat", "cat")[:classes], method=name)
    same = task.text_features[:1].expand(3, views, -1)
    for stream in (random_views(task, samples=3, views=views), same, same[:0]):
        adapted = adapt(name, stream, task)
        assert adapted.logits.shape == (len(stream), views, classes)
        assert bool(adapted.logits.isfinite().all())


@pytest.mark.parametrize("name", ONLINE)
def test_a_foreign_state_is_refused(name, stream, tmp_path):
    task, other = task_for(name), cots.Task(tiny("vit", torch.float64), ["a", "b"], **NEEDS.get(name, {}))
    state = adapt(name, stream[:2], other).state
    with pytest.raises(cots.InputError, match=r"for 2 classes of width 12; this task has 5 .* Start with state=None"):
        adapt(name, stream, task, state=state)
    (tmp_path / "x").write_bytes(b"nonsense")
    with pytest.raises(cots.InputError, match=r"is not a state written by \w+\.save"):
        type(state).load(tmp_path / "x")


def test_entropy_gates_are_in_nats_over_bits():
    from cots.adapters.tda import mixed_entropy

    uniform = torch.tensor(math.log(8.0))
    assert float(mixed_entropy(uniform, 8)) == pytest.approx(math.log(2))


@pytest.mark.parametrize("name", ONLINE)
def test_a_state_of_another_method_or_task_is_refused(name, stream):
    """The next method's state has other tensors; a task of two classes has other sizes."""
    task, other = task_for(name), ONLINE[(ONLINE.index(name) + 1) % len(ONLINE)]
    foreign = adapt(other, stream[:2], task_for(other)).state
    kind = type(foreign).__name__
    with pytest.raises(cots.InputError, match=rf"of the same method \(\w+State\), not {kind}\. Start with state=None"):
        adapt(name, stream, task, state=foreign)
    with pytest.raises(cots.InputError, match="not str"):
        adapt(name, stream, task, state="tda.safetensors")
    fewer = adapt(name, stream[:2], cots.Task(task.backbone, CLASSES[:2], **NEEDS.get(name, {}))).state
    with pytest.raises(cots.InputError, match=r"state is for 2 classes of width 12; this task has 5 of width 12"):
        adapt(name, stream, task, state=fewer)
