"""The public contract of `calibrate`: kinds, shapes, degenerate inputs, invariances, errors, third-party methods."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.compiler import without_compiler
from support.logits import CALLS, METHODS, NEED_SETTINGS, random_logits

from cots import Calibrated, calibrate, calibrator, calibrators
from cots._errors import InputError
from cots.calibrators import CALIBRATORS


def fields(result):
    return [result.probabilities, result.prediction, result.confidence, result.tau, result.views]


# --- kinds and shapes


def test_every_public_module_is_one_described_method():
    modules = {m.name for m in pkgutil.iter_modules(calibrators.__path__) if not m.name.startswith("_")}
    assert modules == {*METHODS, *NEED_SETTINGS}
    infos = [CALIBRATORS.info(name) for name in modules]
    assert len({info.title for info in infos}) == len({info.place for info in infos}) == len(modules)
    assert all(info.summary for info in infos)
    assert all(info.cite for info in infos if info.name != "none")


@pytest.mark.parametrize(("method", "extra"), CALLS)
def test_the_methods_that_need_one_view_say_so(method, extra):
    """Without the other views, the probabilities stay the same if and only if `one_view` says so."""
    adapted, zero_shot = random_logits(6, 8, 5)
    if "alpha" in CALIBRATORS.settings(method):
        extra = {**extra, "alpha": 0.5}
    all_views = calibrate(adapted, zero_shot, method, **extra).probabilities
    one = calibrate(adapted[:, :1], zero_shot[:, :1], method, **extra).probabilities
    assert np.allclose(all_views, one, rtol=0, atol=1e-9) == CALIBRATORS.info(method).one_view


@pytest.mark.parametrize(("method", "extra"), CALLS)
def test_one_sample_is_a_batch_of_one(method, extra):
    adapted, zero_shot = random_logits(12, 5)
    one = calibrate(adapted, zero_shot, method, alpha=0.6, rows="views", **extra)
    batch = calibrate(adapted[None], zero_shot[None], method, alpha=0.6, **extra)
    assert one.probabilities.shape == (5,)
    assert one.prediction.shape == one.confidence.shape == one.tau.shape == ()
    for a, b in zip(fields(one), fields(batch), strict=True):
        assert b.shape == (1, *a.shape)
        assert torch.equal(a, b[0])
    assert one.method == batch.method == method
    assert one.prediction.dtype == one.views.dtype == torch.int64
    assert one.alpha == (0.6 if method in ("ecots", "ensemble") else None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_precision(dtype):
    adapted, zero_shot = random_logits(2, 12, 5, dtype=dtype)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    for method in METHODS:
        result = calibrate(adapted, zero_shot, method, alpha=0.6)
        assert result.probabilities.dtype == result.confidence.dtype == result.tau.dtype == expected
        upcast = calibrate(adapted.to(expected), zero_shot.to(expected), method, alpha=0.6)
        assert all(torch.equal(a, b) for a, b in zip(fields(result), fields(upcast), strict=True))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("method", METHODS)
def test_numpy_in_numpy_out(method, dtype):
    adapted, zero_shot = (x.numpy().astype(dtype) for x in random_logits(2, 12, 5))
    result = calibrate(adapted, zero_shot, method, alpha=0.6)
    expected = calibrate(torch.from_numpy(adapted), torch.from_numpy(zero_shot), method, alpha=0.6)
    for mine, theirs in zip(fields(result), fields(expected), strict=True):
        assert isinstance(mine, np.ndarray)
        assert isinstance(theirs, torch.Tensor)
        np.testing.assert_array_equal(mine, theirs.numpy())
    single = calibrate(adapted[0], zero_shot[0], method, alpha=0.6, rows="views")
    assert all(isinstance(x, np.ndarray) for x in fields(single))


@pytest.mark.parametrize("method", METHODS)
@without_compiler()
def test_results_stay_on_the_device(method):
    """On the device without data, where a tensor made elsewhere cannot be mixed in."""
    logits = torch.zeros(2, 12, 5, device="meta")
    given = {"alpha": 0.6} if method in ("ecots", "ensemble") else {}
    given |= {"steps": 2} if method in ("cots", "ecots") else {}
    assert {x.device.type for x in fields(CALIBRATORS.get(method)(logits, logits, **given))} == {"meta"}


def test_inputs_are_left_alone_and_no_graph_is_kept():
    adapted, zero_shot = random_logits(2, 12, 5)
    adapted.requires_grad_()
    before = adapted.detach().clone(), zero_shot.clone()
    for method, extra in CALLS:
        result = calibrate(adapted, zero_shot, method, alpha=0.6, **extra)
        assert not result.probabilities.requires_grad
    assert torch.equal(adapted, before[0])
    assert torch.equal(zero_shot, before[1])


@pytest.mark.parametrize(("method", "extra"), CALLS)
def test_no_samples_no_results(method, extra):
    result = calibrate(torch.zeros(0, 12, 5), torch.zeros(0, 12, 5), method, alpha=0.6, **extra)
    assert result.probabilities.shape == (0, 5)
    assert result.prediction.shape == result.confidence.shape == result.tau.shape == (0,)
    assert result.views.shape[0] == 0


# --- what holds for every method


DEGENERATE = {
    "one class": random_logits(2, 12, 1),
    "two classes": random_logits(2, 12, 2),
    "one view": random_logits(2, 1, 5),
    "two views": random_logits(2, 2, 5),
    "duplicate classes": tuple(x[..., [0, 0, 1, 1, 2]] for x in random_logits(2, 12, 3)),
    "duplicate views": tuple(x[:, [0] * 12] for x in random_logits(2, 1, 5)),
    "all equal": (torch.full((2, 12, 5), 7.0), torch.full((2, 12, 5), -3.0)),
    "equal adapted": (torch.zeros(2, 12, 5), random_logits(2, 12, 5)[0]),
    "equal zero-shot": (random_logits(2, 12, 5)[0], torch.zeros(2, 12, 5)),
    "saturated": tuple(1e4 * x.sign() for x in random_logits(2, 12, 5)),
    "saturated adapted": (1e4 * random_logits(2, 12, 5)[0], random_logits(2, 12, 5)[1]),
    "saturated zero-shot": (random_logits(2, 12, 5)[0], 1e4 * random_logits(2, 12, 5)[1]),
    "one class and view": random_logits(1, 1, 1),
    "half precision": random_logits(2, 12, 5, scale=3e4 / 4, dtype=torch.float16),
    "largest floats": tuple(3e38 * x.sign() for x in random_logits(2, 12, 5)),
    "tiny": tuple(1e-30 * x for x in random_logits(2, 12, 5)),
}


def same_shapes():
    """The cases by name, those of one shape and dtype as one batch: a sample does not depend on its batch."""
    groups = {}
    for name, (adapted, zero_shot) in DEGENERATE.items():
        groups.setdefault((adapted.shape[1:], adapted.dtype), []).append((name, adapted, zero_shot))
    for group in groups.values():
        names, adapted, zero_shot = zip(*group, strict=True)
        yield ", ".join(names), torch.cat(adapted), torch.cat(zero_shot)


@pytest.mark.parametrize(("method", "extra"), CALLS)
def test_degenerate_inputs(method, extra):
    for names, adapted, zero_shot in same_shapes():
        check_degenerate(names, adapted, zero_shot, method, extra)


def check_degenerate(names, adapted, zero_shot, method, extra):
    result = calibrate(adapted, zero_shot, method, alpha=0.6, **extra)
    p = result.probabilities
    assert torch.isfinite(p).all(), names
    assert (p >= 0).all(), names
    np.testing.assert_allclose(p.sum(-1), 1, rtol=0, atol=2e-6, err_msg=names)
    assert torch.isfinite(result.tau).all(), names
    assert (result.tau > 0).all(), names
    assert torch.equal(result.confidence, p.gather(1, result.prediction[:, None])[:, 0]), names
    assert torch.equal(result.confidence, p.amax(1)), names
    if method in ("none", "sals", "cor", "cots", "ts"):
        assert torch.equal(result.prediction, adapted[:, 0].argmax(-1)), names
        assert torch.equal(p.argmax(-1), result.prediction), names


def test_equal_logits_are_uniform():
    for method, extra in CALLS:
        if method != "zero":
            p = calibrate(*DEGENERATE["all equal"], method, alpha=0.6, **extra).probabilities
            torch.testing.assert_close(p, torch.full((2, 5), 0.2))
    p = calibrate(*DEGENERATE["equal zero-shot"], "sals").probabilities
    torch.testing.assert_close(p, torch.full((2, 5), 0.2))


@given(
    seed=st.integers(0, 2**31),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(1, 9)),
    scales=st.tuples(st.floats(-3, 4), st.floats(-3, 4)),
    call=st.sampled_from([("cots", {}), ("cots", {"solver": "exact"}), ("sals", {}), ("cor", {}), ("none", {})]),
    double=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_the_arg_max_is_kept(seed, shape, scales, call, double):
    dtype = torch.float64 if double else torch.float32
    adapted, _ = random_logits(*shape, scale=10 ** scales[0], seed=seed, dtype=dtype)
    _, zero_shot = random_logits(*shape, scale=10 ** scales[1], seed=seed, dtype=dtype)
    result = calibrate(adapted, zero_shot, call[0], **call[1])
    assert torch.equal(result.prediction, adapted[:, 0].argmax(-1))
    assert torch.equal(result.probabilities.argmax(-1), result.prediction)
    torch.testing.assert_close(result.probabilities.sum(-1), torch.ones(shape[0], dtype=dtype), rtol=0, atol=2e-6)


def test_the_arg_max_survives_rounding():
    """At this temperature all probabilities round to the same number; the class must not become the first one."""
    adapted = torch.arange(6.0).expand(2, 3, 6)
    result = calibrate(adapted, adapted, "ts", temperature=1e30)
    assert result.prediction.tolist() == [5, 5]
    assert result.probabilities.argmax(-1).tolist() == [5, 5]
    torch.testing.assert_close(result.probabilities, torch.full((2, 6), 1 / 6))


@pytest.mark.parametrize(("method", "extra"), CALLS)
def test_a_sample_does_not_depend_on_its_batch(method, extra):
    """Bit for bit: alone, in another order, among samples of very different scales."""
    adapted, zero_shot = random_logits(9, 12, 7, seed=4)
    scale = 10 ** torch.linspace(-2, 3, 9)[:, None, None]
    adapted, zero_shot = adapted * scale, zero_shot * scale.flip(0)
    whole = fields(calibrate(adapted, zero_shot, method, alpha=0.6, **extra))
    order = torch.tensor([4, 8, 0, 2])
    part = fields(calibrate(adapted[order], zero_shot[order], method, alpha=0.6, **extra))
    alone = fields(calibrate(adapted[4], zero_shot[4], method, alpha=0.6, rows="views", **extra))
    for w, p, a in zip(whole, part, alone, strict=True):
        assert torch.equal(w[order], p)
        assert torch.equal(w[4], a)


@pytest.mark.parametrize("method", ["cots", "ecots", "ensemble"])
def test_the_order_of_the_strong_views_does_not_matter(method):
    adapted, zero_shot = random_logits(3, 12, 7, seed=5, dtype=torch.float64)
    order = torch.tensor([0, 7, 3, 11, 1, 2, 10, 9, 8, 4, 6, 5])
    result = calibrate(adapted, zero_shot, method, alpha=0.6, k=4)
    moved = calibrate(adapted[:, order], zero_shot[:, order], method, alpha=0.6, k=4)
    assert torch.equal(result.probabilities, moved.probabilities)
    assert torch.equal(result.views, order[moved.views])


# --- third-party methods


@pytest.fixture
def mine():
    @calibrator("mine")
    def mine(adapted_BVK, zero_shot_BVK, *, power=1.0, alpha=None):
        p = adapted_BVK[:, 0].softmax(-1) ** power
        return p / p.sum(-1, keepdim=True)

    yield mine
    CALIBRATORS.unregister("mine")


def test_a_registered_function_is_a_method(mine):
    adapted, zero_shot = (x.numpy() for x in random_logits(2, 12, 5))
    result = calibrate(adapted, zero_shot, "mine", power=2.0, alpha=0.25)
    np.testing.assert_allclose(result.probabilities, calibrate(2 * adapted, zero_shot, "none").probabilities, rtol=1e-5)
    assert isinstance(result.probabilities, np.ndarray)
    assert result.prediction.tolist() == adapted[:, 0].argmax(-1).tolist()
    assert result.tau.tolist() == [1.0, 1.0]
    assert result.views.shape == (2, 0)
    assert result.alpha == 0.25
    assert result.method == "mine"
    with pytest.raises(InputError, match="Did you mean 'power'"):
        calibrate(adapted, zero_shot, "mine", powr=2.0)
    with pytest.raises(InputError, match="no effect on 'mine'"):
        calibrate(adapted, zero_shot, "mine", solver="exact")
    with pytest.warns(UserWarning, match="calibrator 'mine' was registered before"):
        calibrator("mine")(mine)
    with pytest.raises(InputError, match="calibrator 'cots' is built in"):
        calibrator("cots")


def test_it_is_gone_once_unregistered(mine):
    CALIBRATORS.unregister("mine")
    with pytest.raises(InputError, match="Unknown calibrator 'mine'"):
        calibrate(*random_logits(2, 12, 5), "mine")


def test_a_registered_function_may_return_calibrated_and_need_settings():
    @calibrator("theirs")
    def theirs(adapted_BVK, zero_shot_BVK, *, solver, temperature):
        tau = torch.full((len(adapted_BVK),), temperature + (solver == "exact"))
        return Calibrated.of((adapted_BVK[:, 0] / tau[:, None]).softmax(-1), tau=tau)

    try:
        logits = random_logits(2, 12, 5)
        assert calibrate(*logits, "theirs", temperature=2.0, solver="exact").tau.tolist() == [3.0, 3.0]
        assert calibrate(*logits, "theirs", temperature=2.0).method == "theirs"
        with pytest.raises(InputError, match=r"needs a value for its setting 'temperature'; pass temperature="):
            calibrate(*logits, "theirs")
    finally:
        CALIBRATORS.unregister("theirs")


def result_of(logits, **columns):
    return Calibrated.of(logits[:, 0].softmax(-1), **columns)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda z: z[:, 0, :2], r"must return probabilities \(2, 5\) or cots.Calibrated, not \(2, 2\)"),
        (lambda z: z[0, 0], r"not \(5,\)"),
        (lambda z: None, "not NoneType"),
        (lambda z: z[:, 0] / 0, "the result of calibrator 'broken' has"),
        (lambda z: 2 * z[:, 0].softmax(-1), "calibrator 'broken' must return non-negative probabilities.*and sum 2"),
        (lambda z: torch.tensor([[0.5, 0.5, 0, 0, 0], [1.5, -0.5, 0, 0, 0]]), "sample 1 have minimum -0.5 and sum 1"),
        (lambda z: result_of(z, tau=torch.ones(3)), r"a tau of shape \(2,\), not \(3,\)"),
        (lambda z: result_of(z, views=torch.ones(2).long()), r"views of shape \(2, n\), not \(2,\)"),
    ],
)
def test_a_broken_result_is_named(returned, message):
    calibrator("broken")(lambda adapted, zero_shot: returned(adapted))
    try:
        with pytest.raises(InputError, match=message):
            calibrate(*random_logits(2, 12, 5), "broken")
    finally:
        CALIBRATORS.unregister("broken")


def test_a_registered_function_may_not_change_what_other_methods_read():
    @calibrator("careless")
    def careless(adapted_BVK, zero_shot_BVK):
        adapted_BVK /= 2
        return adapted_BVK[:, 0].softmax(-1)

    try:
        with pytest.raises(InputError, match="calibrator 'careless' changes its adapted_logits in place"):
            calibrate(*random_logits(2, 12, 5), "careless")
    finally:
        CALIBRATORS.unregister("careless")


def test_rows_say_what_two_dimensional_logits_are():
    adapted, zero_shot = random_logits(12, 5)
    result = calibrate(adapted, zero_shot, "ecots", alpha=0.6, rows="samples")
    expected = calibrate(adapted[:, None], zero_shot[:, None], "ecots", alpha=0.6)
    assert all(torch.equal(a, b) for a, b in zip(fields(result), fields(expected), strict=True))


def test_probabilities_in_place_of_logits_cause_a_warning():
    adapted, zero_shot = random_logits(3, 12, 5)
    with pytest.warns(UserWarning, match="rows of adapted_logits sum to one.*pass logits"):
        calibrate(adapted.softmax(-1), zero_shot)
    with pytest.warns(UserWarning, match="rows of zero_shot_logits sum to one"):
        calibrate(adapted, zero_shot.softmax(-1).half())
    negative = adapted - adapted.mean(-1, keepdim=True) + 0.2  # rows that sum to one, with negative values
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrate(negative, zero_shot)
        calibrate(adapted.softmax(-1) * torch.tensor([1.0, 1, 2])[:, None, None], zero_shot)
        calibrate(torch.ones(3, 2, 1), torch.ones(3, 2, 1))


# --- errors


GOOD = random_logits(2, 12, 5)[0]


def spoilt(value):
    bad = GOOD.clone()
    bad[1, 3, 2] = value
    return bad


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((spoilt(float("nan")), GOOD), {}, r"adapted_logits has 1 value.*nan at index \[1, 3, 2\]"),
        ((GOOD, spoilt(float("inf"))), {}, r"zero_shot_logits has 1 value.*inf at index \[1, 3, 2\]"),
        (
            (GOOD[0, 0], GOOD[0, 0]),
            {},
            r"adapted_logits must be \(samples, views, classes\).* not \(5,\).*logits\[None\]",
        ),
        ((GOOD[0], GOOD[0]), {}, "Two-dimensional logits can be .*pass rows='views' or rows='samples'"),
        ((GOOD[0], GOOD[0]), {"rows": "view"}, "Unknown rows 'view'. Did you mean 'views'"),
        ((GOOD, GOOD), {"rows": "samples"}, "rows='samples' has no effect with logits of shape"),
        ((GOOD[0, 0], GOOD[0, 0]), {}, r"not \(5,\)"),
        ((GOOD, GOOD[:, :3]), {}, r"\(2, 12, 5\) and zero_shot_logits \(2, 3, 5\) must have the same shape"),
        ((GOOD, GOOD[0]), {}, "must have the same shape"),
        ((GOOD[:, :0], GOOD[:, :0]), {}, "needs at least one view and one class"),
        ((GOOD[..., :0], GOOD[..., :0]), {}, "needs at least one view and one class"),
        ((GOOD, GOOD.to("meta")), {}, "on cpu, zero_shot_logits on meta; move one"),
        ((GOOD, GOOD, "cotts"), {}, "Unknown calibrator 'cotts'. Did you mean 'cots'"),
        ((GOOD, GOOD), {"solver": "exat"}, "Unknown solver 'exat'. Did you mean 'exact'"),
        ((GOOD, GOOD), {"step": 5}, "Unknown setting of calibrator 'cots': 'step'. Did you mean 'steps'"),
        ((GOOD, GOOD, "none"), {"solver": "exact"}, "solver='exact' has no effect on 'none'"),
        ((GOOD, GOOD, "none"), {"steps": 5}, "Unknown setting of calibrator 'none': 'steps'"),
        ((GOOD, GOOD, "ecots"), {}, r"alpha=task.alpha, or alpha=cots.mean_similarity\(text_features\).* 0.6"),
        ((GOOD, GOOD, "ensemble"), {}, r"needs its weight alpha: pass alpha=task.alpha"),
        ((GOOD, GOOD, "ecots"), {"alpha": 1.01}, r"must be one number in \[-1, 1\], not 1.01; pass alpha=task"),
        ((GOOD, GOOD, "cots"), {"alpha": -2}, r"in \[-1, 1\]"),
        ((GOOD, GOOD, "ecots"), {"alpha": float("nan")}, r"in \[-1, 1\]"),
        ((GOOD, GOOD, "ecots"), {"alpha": "0.5"}, r"in \[-1, 1\]"),
        ((GOOD, GOOD, "ecots"), {"alpha": torch.ones(2)}, r"alpha, a mean cosine, must be one number"),
        ((GOOD, GOOD), {"views": "strong"}, "Unknown views 'strong'. Did you mean"),
        ((GOOD, GOOD), {"loss": "l3"}, "Unknown loss 'l3'"),
        ((GOOD, GOOD), {"k": 12}, "k=12 exceeds the 11 available strong views; use k=11 or less"),
        ((GOOD, GOOD), {"k": 13, "views": "top"}, "k=13 exceeds the 12 available views"),
        ((GOOD[:, :1], GOOD[:, :1]), {"k": 2}, "k=2 exceeds the 1 available views"),
        ((GOOD, GOOD), {"k": 0}, "k must be a whole number >= 1, not 0"),
        ((GOOD, GOOD), {"k": 2.0}, "k must be a whole number"),
        ((GOOD, GOOD), {"k": 3, "rho": 0.5}, "rho=0.5 has no effect with k=3; omit rho"),
        ((GOOD, GOOD), {"k": 3, "views": "weak"}, "k=3 has no effect with views='weak'"),
        ((GOOD, GOOD), {"rho": 0.3, "views": "all_strong"}, "rho=0.3 has no effect with views='all_strong'"),
        ((GOOD, GOOD), {"rho": 0}, "rho is a share of the views"),
        ((GOOD, GOOD, "zero"), {"rho": 1.5}, "rho is a share of the views"),
        ((GOOD, GOOD), {"huber_delta": 0.2}, "huber_delta=0.2 has no effect with loss='l2'"),
        ((GOOD, GOOD), {"huber_delta": 1.0, "loss": "huber"}, "huber_delta must be below 1.*use loss='l2'"),
        ((GOOD, GOOD), {"huber_delta": 0, "loss": "huber"}, "huber_delta must be a positive number .1e-30 to 1e30."),
        ((GOOD, GOOD), {"solver": "exact", "steps": 9}, "steps=9 has no effect with solver='exact'; omit steps"),
        ((GOOD, GOOD), {"solver": "exact", "lr": 0.2}, "lr=0.2 has no effect with solver='exact'"),
        ((GOOD, GOOD), {"solver": "exact", "t0": 2.0}, "t0=2.0 has no effect with solver='exact'"),
        ((GOOD, GOOD), {"steps": -1}, "steps must be a whole number >= 0, not -1"),
        ((GOOD, GOOD), {"steps": True}, "steps must be a whole number"),
        ((GOOD, GOOD), {"lr": 0.0}, "lr must be a positive number .1e-30 to 1e30., not 0.0"),
        ((GOOD, GOOD), {"t0": float("inf")}, "t0 must be a positive number .1e-30 to 1e30."),
        (
            (GOOD, GOOD, "ts"),
            {"temperature": "hot"},
            "temperature must be a positive number .1e-30 to 1e30., not 'hot'",
        ),
    ],
)
def test_errors_name_the_thing_and_the_remedy(arguments, keywords, message):
    with pytest.raises(InputError, match=message):
        calibrate(*arguments, **keywords)


def test_settings_at_their_defaults_are_always_accepted():
    """So that a resolved protocol, which names every setting, can be replayed."""
    adapted, zero_shot = random_logits(2, 12, 5)
    everything = CALIBRATORS.settings("cots") | {"solver": "exact", "views": "weak"}
    assert calibrate(adapted, zero_shot, "cots", **everything).views.tolist() == [[0], [0]]


def test_the_doctests():
    modules = [m.name for m in pkgutil.iter_modules(calibrators.__path__, "cots.calibrators.")]
    results = [doctest.testmod(importlib.import_module(name)) for name in modules]
    assert sum(r.failed for r in results) == 0
    assert sum(r.attempted for r in results) >= 8
