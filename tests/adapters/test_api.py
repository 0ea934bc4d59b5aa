"""What holds for every adapter: invariants, bad input, third-party methods."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.compiler import without_compiler
from support.models import CLASSES, CONTEXT_TUNERS, EPISODIC, mini, random_pixels, random_views, tiny, tiny_task

import cots
from cots.accelerate import LIMITS
from cots.adapters import ADAPTERS


# Adapters of features see a model's text tower only: CLIP's, which both vit and resnet have, or SigLIP's.
@pytest.mark.parametrize(
    ("method", "kind"),
    [*((method, "vit") for method in EPISODIC), *((method, "siglip") for method in ("tpt", "soc", "rtpt", "tps"))],
)
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


@pytest.mark.parametrize("method", [info.name for info in ADAPTERS.infos() if info.takes == "features"])
def test_the_methods_that_need_one_view_say_so(method):
    """Without the other views, the result for view 0 and the state stay the same if and only if `one_view` says so."""
    task, info = tiny_task("vit", torch.float64, method=method), ADAPTERS.info(method)
    views = random_views(task, samples=6, views=8)
    cases = [info.one_view or {}]
    if "cache_from" in info.settings:
        cases.append({"cache_from": "confident", "rho": 0.5})
    for case in cases:
        given = case | ({"length": 6} if "length" in info.settings else {})
        all_views, one = (cots.adapt(method, some, task, **given) for some in (views, views[:, :1]))
        same = torch.allclose(all_views.logits[:, 0], one.logits[:, 0], rtol=1e-12, atol=1e-12)
        for field in dataclasses.fields(one.state) if info.online else ():
            mine, other = (getattr(adapted.state, field.name) for adapted in (one, all_views))
            same = same and torch.equal(mine.isfinite(), other.isfinite())
            same = same and torch.allclose(
                mine.double().nan_to_num(), other.double().nan_to_num(), rtol=1e-12, atol=1e-12
            )
        assert same == info.uses_one_view(given)


@without_compiler()
def test_chunks_do_not_change_results(monkeypatch):
    task = tiny_task("vit", torch.float64)
    views = random_views(task, samples=3)
    whole = cots.adapt("otpt", views, task, steps=2)
    for what in ("gradient tokens", "tuned tokens", "gradient values", "prompt tokens"):
        monkeypatch.setitem(LIMITS, what, 1)
    monkeypatch.setitem(LIMITS, "prompts", 2)
    torch.testing.assert_close(cots.adapt("otpt", views, task, steps=2).logits, whole.logits, rtol=0, atol=1e-9)
    siglip = tiny_task("siglip", torch.float64)
    views = random_views(siglip, samples=2)
    small = cots.adapt("tpt", views, siglip, steps=2).logits
    monkeypatch.setitem(LIMITS, "prompts", 256)
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
@settings(max_examples=25, deadline=None)
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


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        *((method, "vit") for method in (*EPISODIC, "tda", "tda(soc)", "ttl")),
        *((method, "siglip") for method in ("tpt", "rtpt", "tda(soc)", "ttl")),
    ],
)
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
    assert torch.equal(adapted.logits, cots.adapt("tpt", views, cots.Task(mini(), ["cat", "dog"])).logits)
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
        (lambda t, v: cots.adapt("tda", v, t, cache_from="strong"), "Unknown cache_from 'strong'"),
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
    def sharper(batch, *, factor=2.0):
        """Twice as sure."""
        return cots.Adapted(zero_shot_logits=batch.zero_shot, logits=factor * batch.zero_shot)

    try:
        adapted = cots.adapt("sharper", random_views(task), task, factor=3.0)
        torch.testing.assert_close(adapted.logits, 3 * adapted.zero_shot_logits)
        assert "sharper" in ADAPTERS
        with pytest.warns(UserWarning, match="adapter 'sharper' was registered before"):
            cots.adapter("sharper")(sharper)
    finally:
        ADAPTERS.unregister("sharper")


def test_an_adapter_of_the_former_signature_is_told_the_new_one():
    with pytest.raises(cots.InputError, match=r"write def old\(batch, \*, ...\), and batch.features"):

        @cots.adapter("old")
        def old(features, task, *, factor=2.0):
            return features

    assert "old" not in ADAPTERS


def test_third_party_adapter_must_return_adapted():
    task = tiny_task("vit")
    cots.adapter("wrong")(lambda batch: batch.features)
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
    def wrong(batch):
        return cots.Adapted(zero_shot_logits=batch.zero_shot, logits=change(batch.zero_shot))

    try:
        with pytest.raises(cots.InputError, match=message):
            cots.adapt("wrong", random_views(task), task)
    finally:
        ADAPTERS.unregister("wrong")


def test_third_party_adapter_may_not_change_what_other_methods_read():
    task = tiny_task("vit")

    @cots.adapter("careless")
    def careless(batch):
        batch.features.neg_()  # still of length one: nothing after it could tell
        return cots.Adapted(zero_shot_logits=batch.zero_shot, logits=batch.zero_shot)

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
        "def other(batch, *, shift=1.0):\n"
        "    return cots.Adapted(zero_shot_logits=batch.zero_shot, logits=batch.zero_shot + shift)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    task = tiny_task("vit")
    assert "other" in ADAPTERS
    try:
        adapted = cots.adapt("other", random_views(task), task, shift=2.0)
        torch.testing.assert_close(adapted.logits, adapted.zero_shot_logits + 2.0)
    finally:
        ADAPTERS.unregister("other")
