"""Every adapter against a second implementation, its invariants, and bad input."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import naive_adapt as naive
from support.models import CLASSES, KINDS, random_views, tiny, tiny_task

import cots
from cots.adapters import ADAPTERS
from cots.adapters._tuning import AdamW

CONTEXT_TUNERS = {
    "tpt": None, "ctpt": 50.0, "otpt": 18.0, "atpt": 100.0, "soc": 30.0, "dtpt": 10.0, "penalty": 10.0, "zsnorm": None,
}  # fmt: skip
TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3}  # float32 rounds before a sign step


def random_pixels(backbone: cots.Backbone) -> torch.Tensor:
    return torch.randn(2, 4, 3, *backbone.image_size, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def recorded(monkeypatch):
    """The gradients that reach the optimiser."""
    gradients = []
    step = AdamW.step
    monkeypatch.setattr(AdamW, "step", lambda self, value, g: (gradients.append(g.clone()), step(self, value, g))[1])
    return gradients


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", CONTEXT_TUNERS)
def test_context_tuners_match_the_naive_reference(method, kind, steps, dtype, recorded):
    task, weight = tiny_task(kind, dtype), CONTEXT_TUNERS[method]
    views = random_views(task, samples=2)
    adapted = cots.adapt(method, views, task, steps=steps)
    assert len(recorded) == steps
    for b in range(len(views)):
        zero_shot, logits, gradients = naive.tune(method, views[b], task.backbone, CLASSES, weight=weight, steps=steps)
        torch.testing.assert_close(adapted.zero_shot_logits[b], zero_shot, rtol=0, atol=1e-4)
        torch.testing.assert_close(adapted.logits[b], logits, rtol=0, atol=TOLERANCE[dtype])
        size = max(float(g.abs().max()) for g in gradients)
        for ours, theirs in zip(recorded, gradients, strict=True):
            tolerance = 1e-9 if dtype == torch.float64 else 1e-3
            torch.testing.assert_close(ours[b], theirs, rtol=0, atol=tolerance * size)
    if method != "zsnorm":
        assert (adapted.logits - adapted.zero_shot_logits).abs().max() > 0.05


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("kind", KINDS)
def test_penalty_leaves_the_weak_view_on_its_own_bounds(kind, dtype):
    """Alone it is selected and lies on both bounds, beyond neither: nothing is added to TPT's step."""
    task = tiny_task(kind, dtype)
    weak = random_views(task, samples=9)[:, :1]
    torch.testing.assert_close(
        cots.adapt("penalty", weak, task, weight=1e3).logits, cots.adapt("tpt", weak, task).logits, rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_settings_reach_the_update(kind):
    task = tiny_task(kind, torch.float64)
    views = random_views(task, samples=1, views=20)
    given_settings = {"weight": 3.0, "steps": 2, "lr": 0.02, "rho": 0.25}
    ours = cots.adapt("ctpt", views, task, **given_settings)
    _, logits, _ = naive.tune("ctpt", views[0], task.backbone, CLASSES, **given_settings)
    torch.testing.assert_close(ours.logits[0], logits, rtol=0, atol=1e-8)


def test_first_step_is_the_published_sign_step():
    optimiser = AdamW(lr=5e-3)
    value, g = torch.randn(50, dtype=torch.float64), torch.randn(50, dtype=torch.float64)
    expected = value * (1 - 5e-5) - 0.005 * g / (g.abs() + 1e-8)
    torch.testing.assert_close(optimiser.step(value, g), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_tps_matches_the_naive_reference(kind, steps, dtype):
    task = tiny_task(kind, dtype)
    views = random_views(task)
    adapted = cots.adapt("tps", views, task, steps=steps)
    for b in range(len(views)):
        zero_shot, logits = naive.tps(views[b], task.text_features, task.logit_scale, steps=steps)
        torch.testing.assert_close(adapted.zero_shot_logits[b], zero_shot, rtol=0, atol=1e-4)
        torch.testing.assert_close(adapted.logits[b], logits, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)], ids=["f64", "f32"])
@pytest.mark.parametrize("kind", KINDS)
def test_tda_matches_the_naive_reference(kind, dtype, tolerance):
    task = tiny_task(kind, dtype)
    # Nearly uniform predictions and confident ones, so that both caches fill and overflow.
    stream = torch.cat([random_views(task, samples=20, views=3, seed=s) for s in range(3)])
    weaker = dataclasses.replace(task.backbone)
    scale = 80.0 if kind == "siglip" else 8.0  # its random text features lie close together
    weaker.__dict__["logit_scale"] = scale
    soft = cots.Task(weaker, CLASSES)
    adapted = cots.adapt("tda", stream, soft)
    expected = naive.tda(stream, soft.text_features, scale)
    assert bool(adapted.state.negative_entropy.isfinite().any())
    assert bool(adapted.state.positive_entropy.isfinite().all(dim=1).any())
    for b, (zero_shot, logits) in enumerate(expected):
        torch.testing.assert_close(adapted.zero_shot_logits[b], zero_shot)
        torch.testing.assert_close(adapted.logits[b], logits, rtol=0, atol=tolerance)


@pytest.mark.parametrize("tuner", ["ctpt", "otpt", "atpt", "soc", "penalty"])
def test_tda_over_a_tuned_prompt_matches_the_naive_reference(tuner):
    weaker = dataclasses.replace(tiny("vit", torch.float64))
    weaker.__dict__["logit_scale"] = float(weaker.model.logit_scale.exp())
    task = cots.Task(weaker, CLASSES)
    stream = torch.cat([random_views(task, samples=10, views=20, seed=s) for s in range(3)])
    # Not where the weak view is selected: there a hinge has two gradients.
    kept = [0 not in naive.select(task.logit_scale * views @ task.text_features.T, 0.1) for views in stream]
    stream, weight = stream[kept], 4.0
    assert len(stream) > 20
    adapted = cots.adapt(f"tda({tuner})", stream, task, weight=weight, positive=(1.0, 3.0))
    tuned = [naive.tune(tuner, views, task.backbone, CLASSES, weight=weight)[1] for views in stream]
    expected = naive.tda(stream, task.text_features, task.logit_scale, positive=(1.0, 3.0), tuned=tuned)
    for b, (zero_shot, logits) in enumerate(expected):
        torch.testing.assert_close(adapted.zero_shot_logits[b], zero_shot)
        torch.testing.assert_close(adapted.logits[b], logits, rtol=0, atol=1e-7)
        assert not torch.allclose(logits, tuned[b])
    first = cots.adapt(f"tda({tuner})", stream[:13], task, weight=weight, positive=(1.0, 3.0))
    second = cots.adapt(f"tda({tuner})", stream[13:], task, weight=weight, positive=(1.0, 3.0), state=first.state)
    torch.testing.assert_close(torch.cat([first.logits, second.logits]), adapted.logits, rtol=0, atol=1e-12)


def test_tda_state_is_explicit_and_survives_a_file(tmp_path):
    task = tiny_task("vit")
    stream = random_views(task, samples=12, views=4)
    whole = cots.adapt("tda", stream, task)
    first = cots.adapt("tda", stream[:5], task)
    kept = first.state.positive_entropy.clone()
    first.state.save(tmp_path / "state.safetensors")
    state = cots.TDAState.load(tmp_path / "state.safetensors")
    second = cots.adapt("tda", stream[5:], task, state=state)
    assert torch.equal(torch.cat([first.logits, second.logits]), whole.logits)
    assert torch.equal(first.state.positive_entropy, kept), "the given state must not change"
    for field in dataclasses.fields(state):
        assert torch.equal(getattr(second.state, field.name), getattr(whole.state, field.name))
    backwards = cots.adapt("tda", stream.flip(0), task)
    assert not torch.allclose(backwards.logits.flip(0), whole.logits), "the order of the stream is part of the protocol"


def test_tda_can_cache_the_confident_views():
    task = tiny_task("vit", torch.float64)
    views = random_views(task, samples=1, views=20)
    adapted = cots.adapt("tda", views, task, cache_from="confident")
    chosen = naive.select(adapted.zero_shot_logits[0], 0.1)
    k = int(adapted.zero_shot_logits[0, chosen].mean(dim=0).argmax())
    torch.testing.assert_close(adapted.state.positive_features[k, 0], views[0, chosen].mean(dim=0))


def test_tda_rejects_a_foreign_state(tmp_path):
    task, other = tiny_task("vit"), cots.Task(tiny("vit"), ["a", "b"])
    with pytest.raises(cots.InputError, match=r"for 2 classes .* this task has 5"):
        cots.adapt("tda", random_views(task), task, state=cots.TDAState.empty(other))
    (tmp_path / "x").write_bytes(b"nonsense")
    with pytest.raises(cots.InputError, match=r"no TDA state"):
        cots.TDAState.load(tmp_path / "x")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", ["vit", "siglip"])
def test_ttl_matches_the_naive_reference(kind, steps, dtype):
    from cots.adapters.ttl import _draw, _Tower

    task = tiny_task(kind, dtype)
    pixels = random_pixels(task.backbone).to(dtype)
    adapted = cots.adapt("ttl", pixels, task, steps=steps, rank=4, lora_alpha=8.0)
    A = _draw(_Tower(task.backbone, 3), rank=4, seed=0)
    for b in range(len(pixels)):
        zero_shot, logits = naive.ttl(pixels[b], task.backbone, task.text_features, A, steps=steps)
        torch.testing.assert_close(adapted.zero_shot_logits[b], zero_shot, rtol=0, atol=1e-3)
        torch.testing.assert_close(adapted.logits[b], logits, rtol=0, atol=TOLERANCE[dtype])
    assert (adapted.logits - adapted.zero_shot_logits).abs().max() > 0.05


def test_ttl_leaves_the_model_untouched():
    task = tiny_task("siglip")
    before = task.backbone.weights_hash
    pixels = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(2))
    untouched = cots.adapt("ttl", pixels, task, lr=0.0)
    torch.testing.assert_close(untouched.logits, untouched.zero_shot_logits, rtol=0, atol=1e-3)
    moved = cots.adapt("ttl", pixels, task)
    assert (moved.logits - moved.zero_shot_logits).abs().max() > 0.01
    backbone = dataclasses.replace(task.backbone)
    assert backbone.weights_hash == before


def test_ttl_xavier_scale_and_one_draw_per_run():
    from cots.adapters.ttl import _draw, _Tower

    tower = _Tower(tiny("vit"), 3)
    A = _draw(tower, rank=16, seed=0)
    assert A.shape == (3, 2, 16, 32)
    assert float(A.std()) == pytest.approx((2 / (16 + 32)) ** 0.5, rel=0.05)
    assert torch.equal(A, _draw(tower, rank=16, seed=0))
    assert not torch.equal(A, _draw(tower, rank=16, seed=1))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["vit", "siglip"])
def test_ttl_in_half_precision(kind, precision):
    full, half = tiny_task(kind), cots.Task(dataclasses.replace(tiny(kind), precision=precision), CLASSES)
    pixels = random_pixels(full.backbone)
    # Without a step the logits before and after are one thing: no rounding may pass for adaptation.
    still = cots.adapt("ttl", pixels, half, lr=0.0)
    torch.testing.assert_close(still.logits, still.zero_shot_logits, rtol=0, atol=1e-5)
    ours, expected = (cots.adapt("ttl", pixels, task) for task in (half, full))
    change = (expected.logits - expected.zero_shot_logits).abs().max()
    assert ours.logits.dtype == ours.zero_shot_logits.dtype == torch.float32
    for name in ("zero_shot_logits", "logits"):
        assert (getattr(ours, name) - getattr(expected, name)).abs().max() < 0.2 * change


def test_ttl_needs_a_vision_transformer():
    task = tiny_task("resnet")
    with pytest.raises(cots.InputError, match=r"vision transformer; the image tower of tiny-resnet has none"):
        cots.adapt("ttl", torch.randn(2, 3, 64, 64), task)
    with pytest.raises(cots.InputError, match=r"blocks must lie in 1..4"):
        cots.adapt("ttl", torch.randn(2, 3, 32, 32), tiny_task("vit"), blocks=5)


EPISODIC = [*CONTEXT_TUNERS, "tps", "zeroshot"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", EPISODIC)
def test_a_sample_never_depends_on_the_others(method, kind):
    task = tiny_task(kind, torch.float64)
    views = random_views(task, samples=4)
    together = cots.adapt(method, views, task)
    order = [2, 0, 3, 1]
    shuffled = cots.adapt(method, views[order], task)
    torch.testing.assert_close(shuffled.logits, together.logits[order], rtol=0, atol=1e-9)
    for b in range(len(views)):
        alone = cots.adapt(method, views[b], task)
        torch.testing.assert_close(alone.logits, together.logits[b], rtol=0, atol=1e-9)


def test_chunks_do_not_change_results(monkeypatch):
    task = tiny_task("vit", torch.float64)
    views = random_views(task, samples=5)
    whole = cots.adapt("otpt", views, task, steps=2)
    monkeypatch.setattr("cots.adapters._tuner.GRADIENT_TOKENS", {"cpu": 1})
    monkeypatch.setattr("cots.adapters._tuner.FORWARD_TOKENS", {"cpu": 1})
    monkeypatch.setattr("cots.prompts._towers.CHUNK", 2)
    torch.testing.assert_close(cots.adapt("otpt", views, task, steps=2).logits, whole.logits, rtol=0, atol=1e-9)
    siglip = tiny_task("siglip", torch.float64)
    views = random_views(siglip, samples=2)
    small = cots.adapt("tpt", views, siglip, steps=2).logits
    monkeypatch.setattr("cots.prompts._towers.CHUNK", 256)
    torch.testing.assert_close(cots.adapt("tpt", views, siglip, steps=2).logits, small, rtol=0, atol=1e-9)


def test_shared_work_is_never_stale():
    task = cots.Task(tiny("vit", torch.float64), CLASSES)
    views = random_views(task, samples=2)
    first = cots.adapt("tpt", views, task).logits
    other = cots.adapt("ctpt", views, task).logits
    views.numpy()[0, 0] = views.numpy()[1, 1]  # behind torch's back
    changed = cots.adapt("tpt", views, task).logits
    fresh = cots.Task(tiny("vit", torch.float64), CLASSES)
    assert torch.equal(changed, cots.adapt("tpt", views, fresh).logits)
    assert not torch.equal(changed[0], first[0])
    assert torch.equal(cots.adapt("tpt", views, task, rho=0.5).logits, cots.adapt("tpt", views, fresh, rho=0.5).logits)
    assert not torch.allclose(other, first)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**31), st.sampled_from(EPISODIC))
@settings(max_examples=40, deadline=None)
def test_any_number_of_views_and_classes_is_finite(views, classes, seed, method):
    names = tuple((CLASSES[:1] * 2 + CLASSES)[:classes])  # a duplicate name from two classes on
    task = tiny_task("vit", classes=names)
    adapted = cots.adapt(method, random_views(task, samples=2, views=views, seed=seed), task)
    assert adapted.logits.shape == (2, views, classes)
    assert bool(adapted.logits.isfinite().all())


@pytest.mark.parametrize("method", EPISODIC)
def test_identical_views_and_saturated_predictions_are_finite(method):
    task = tiny_task("vit", classes=("cat", "cat"))
    views = task.text_features[:1].expand(1, 4, -1)
    adapted = cots.adapt(method, views, task)
    assert bool(adapted.logits.isfinite().all())


@pytest.mark.parametrize("kind", ["vit", "siglip"])
@pytest.mark.parametrize("method", [*EPISODIC, "tda", "tda(soc)", "ttl"])
def test_no_samples_no_logits(method, kind):
    task = tiny_task(kind)
    inputs = random_pixels(task.backbone) if method == "ttl" else random_views(task)
    adapted = cots.adapt(method, inputs[:0], task)
    assert adapted.logits.shape == adapted.zero_shot_logits.shape == (0, inputs.shape[1], len(CLASSES))
    assert adapted.logits.dtype == torch.float32


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)], ids=["inference", "autocast"]
)
@pytest.mark.parametrize("method", [*EPISODIC, "tda", "ttl"])
def test_modes_of_the_caller_change_nothing(method, mode):
    pixels = random_pixels(tiny("vit"))
    outside = cots.Task(tiny("vit"), CLASSES)
    inputs = pixels if method == "ttl" else tiny("vit").encode_images(pixels)
    expected = cots.adapt(method, inputs, outside)
    with mode():
        task = cots.Task(tiny("vit"), CLASSES)
        assert task.alpha == outside.alpha  # and its text features are kept from here on
        made_inside = pixels.clone() if method == "ttl" else tiny("vit").encode_images(pixels)
        inside = cots.adapt(method, made_inside, task)
    later = cots.adapt(method, made_inside, task)
    for found in (inside, later):
        assert torch.equal(found.zero_shot_logits, expected.zero_shot_logits)
        assert torch.equal(found.logits, expected.logits)


def test_a_model_loaded_in_inference_mode_can_be_adapted():
    with torch.inference_mode():
        task = cots.Task(cots.load("mini"), ["cat", "dog"])
        views = random_views(task, samples=1, views=8)
        adapted = cots.adapt("tpt", views, task)
    assert torch.equal(adapted.logits, cots.adapt("tpt", views, cots.Task(cots.load("mini"), ["cat", "dog"])).logits)
    assert not torch.equal(adapted.logits, adapted.zero_shot_logits)


def test_zero_steps_change_nothing():
    task = tiny_task("vit")
    for method in [*CONTEXT_TUNERS, "tps"]:
        adapted = cots.adapt(method, random_views(task), task, steps=0)
        assert torch.equal(adapted.logits, adapted.zero_shot_logits)


def test_numpy_in_numpy_out_and_half_precision():
    task = tiny_task("vit")
    views = random_views(task, samples=1)[0]
    expected = cots.adapt("tpt", views, task)
    array = cots.adapt("tpt", views.numpy(), task)
    assert isinstance(array.logits, np.ndarray)
    np.testing.assert_array_equal(array.logits, expected.logits.numpy())
    half = cots.adapt("tpt", views.half(), task)
    assert half.logits.dtype == torch.float32
    torch.testing.assert_close(half.zero_shot_logits, expected.zero_shot_logits, rtol=0, atol=0.2)


def test_features_carry_no_graph():
    task = tiny_task("vit")
    adapted = cots.adapt("tpt", random_views(task).requires_grad_(), task)
    assert not adapted.logits.requires_grad


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t, v: cots.adapt("tptt", v, t), "Unknown adapter 'tptt'. Did you mean 'tpt'"),
        (lambda t, v: cots.adapt("tpt", v, t, step=2), "adapter 'tpt': 'step'. Did you mean 'steps'"),
        (lambda t, v: cots.adapt("tpt", v, t, weight=2), "Unknown setting of adapter 'tpt': 'weight'"),
        (lambda t, v: cots.adapt("tpt", v[..., :5], t), r"features must have shape \(V, 12\)"),
        (lambda t, v: cots.adapt("tpt", v[:, :0], t), "V >= 1"),
        (lambda t, v: cots.adapt("tpt", v * 3, t), "L2-normalised, but one view has length 3"),
        (lambda t, v: cots.adapt("tpt", v.index_fill(1, torch.tensor(2), torch.nan), t), r"nan at index \[0, 2, 0\]"),
        (lambda t, v: cots.adapt("tpt", v, t, steps=-1), "steps must be a whole number"),
        (lambda t, v: cots.adapt("tpt", v, t, steps=1.5), "steps must be a whole number"),
        (lambda t, v: cots.adapt("tpt", v, t, rho=0), "rho is a share"),
        (lambda t, v: cots.adapt("tpt", v, t, lr=float("inf")), "lr must be"),
        (lambda t, v: cots.adapt("ctpt", v, t, weight=float("nan")), "weight must be finite"),
        (lambda t, v: cots.adapt("penalty", v, t, weight=float("inf")), "weight must be finite"),
        (lambda t, v: cots.adapt("ttl", v, t), r"pixels must have shape \(V,3,H,W\)"),
        (lambda t, v: cots.adapt("tda", v, t, cache_from="strong"), "cache_from must be"),
        (lambda t, v: cots.adapt("tda", v, t, rho=0.5), "rho=0.5 has no effect with cache_from='weak'"),
        (lambda t, v: cots.adapt("tda", v, t, rho=2, cache_from="confident"), "rho is a share"),
        (lambda t, v: cots.adapt("tpt", v, cots.Task(t.backbone, CLASSES, "{}.")), "no word before {}"),
        (lambda t, v: cots.adapt("tpt", ["a"], t), "features must be a torch tensor"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, message):
    task = tiny_task("vit")
    with pytest.raises(cots.InputError, match=message):
        call(task, random_views(task))


def test_zero_shot_works_without_a_context():
    task = cots.Task(tiny("vit"), CLASSES, template="{}")
    assert cots.adapt("zeroshot", random_views(task), task).logits.shape == (3, 32, 5)


def test_third_party_adapter_by_decorator():
    task = tiny_task("vit")

    @cots.adapter("sharper")
    def sharper(features, task, *, factor=2.0):
        """Twice as sure."""
        logits = task.logit_scale * features @ task.text_features.T
        return cots.Adapted(zero_shot_logits=logits, logits=factor * logits)

    try:
        adapted = cots.adapt("sharper", random_views(task), task, factor=3.0)
        torch.testing.assert_close(adapted.logits, 3 * adapted.zero_shot_logits)
        assert "sharper" in ADAPTERS
        with pytest.raises(cots.InputError, match="already registered"):
            cots.adapter("sharper")(sharper)
    finally:
        ADAPTERS.unregister("sharper")


def test_third_party_adapter_must_return_adapted():
    task = tiny_task("vit")
    cots.adapter("wrong")(lambda features, task: features)
    try:
        with pytest.raises(cots.InputError, match=r"must return cots\.Adapted"):
            cots.adapt("wrong", random_views(task), task)
    finally:
        ADAPTERS.unregister("wrong")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda z: z[:, 0], r"adapter 'wrong' must return logits of shape \(3, 32, 5\).*not \(3, 5\)"),
        (lambda z: z[:, :, 1:], r"not \(3, 32, 4\)"),
        (lambda z: z[:2], r"not \(2, 32, 5\)"),
        (lambda z: z.numpy(), "as a torch tensor, not ndarray"),
    ],
)
def test_third_party_adapter_with_wrong_logits_is_named(change, message):
    task = tiny_task("vit")

    @cots.adapter("wrong")
    def wrong(features, task):
        logits = task.logit_scale * features @ task.text_features.T
        return cots.Adapted(zero_shot_logits=logits, logits=change(logits))

    try:
        with pytest.raises(cots.InputError, match=message):
            cots.adapt("wrong", random_views(task), task)
    finally:
        ADAPTERS.unregister("wrong")


def test_third_party_adapter_may_not_change_what_other_methods_read():
    task = tiny_task("vit")

    @cots.adapter("careless")
    def careless(features, task):
        features.neg_()  # still of length one: nothing after it could tell
        logits = task.logit_scale * features @ task.text_features.T
        return cots.Adapted(zero_shot_logits=logits, logits=logits)

    try:
        with pytest.raises(cots.InputError, match="adapter 'careless' changes its features in place"):
            cots.adapt("careless", random_views(task), task)
        with torch.inference_mode():
            cots.adapt("zeroshot", random_views(task), task)
    finally:
        ADAPTERS.unregister("careless")


def test_third_party_adapter_by_entry_point(tmp_path, monkeypatch):
    package = tmp_path / "other_method-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other-method\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[cots.adapters]\nother = other_method:other\n")
    (tmp_path / "other_method.py").write_text(
        "import cots\n"
        "def other(features, task, *, shift=1.0):\n"
        "    z = task.logit_scale * features @ task.text_features.T\n"
        "    return cots.Adapted(zero_shot_logits=z, logits=z + shift)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    task = tiny_task("vit")
    assert "other" in ADAPTERS
    try:
        adapted = cots.adapt("other", random_views(task), task, shift=2.0)
        torch.testing.assert_close(adapted.logits, adapted.zero_shot_logits + 2.0)
    finally:
        ADAPTERS.unregister("other")
