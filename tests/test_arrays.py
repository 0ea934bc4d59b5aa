"""Arrays and tensors from outside, entropy, and the mean similarity of text features."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import naive_calibrate as naive

import cots
from cots import InputError, mean_similarity
from cots._arrays import as_tensor, check_finite, entropy, one_thread_each


def test_floating_types_are_kept_and_others_become_float32():
    array = np.arange(6.0)[::-1].reshape(2, 3)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_tensor(array, "x").dtype == torch.float64
    assert as_tensor(torch.ones(2, dtype=torch.bfloat16), "x").dtype == torch.float32
    assert as_tensor([1, 2], "x").dtype == torch.float32


def test_bad_values_are_named():
    for bad in (np.array(["a"]), torch.tensor([True]), torch.ones(2, dtype=torch.complex64), object()):
        with pytest.raises(cots.InputError, match="x must"):
            as_tensor(bad, "x")
    with pytest.raises(cots.InputError, match=r"x .* 2 value\(s\) .* first is inf at index \[0, 1\]"):
        check_finite(torch.tensor([[0.0, torch.inf], [torch.nan, 1.0]]), "x")


def test_entropy_keeps_the_order_of_nearly_certain_views():
    gaps = torch.tensor([30.0, 20.0, 25.0, 40.0])
    logits = torch.stack([gaps, torch.zeros(4), torch.zeros(4)], -1)
    assert entropy(logits).argsort().tolist() == [3, 0, 2, 1]
    torch.testing.assert_close(
        entropy(logits.double()), torch.distributions.Categorical(logits=logits.double()).entropy()
    )
    assert entropy(torch.zeros(5)) == pytest.approx(math.log(5))


@pytest.mark.parametrize(("classes", "width"), [(2, 3), (7, 16), (40, 8)])
def test_mean_similarity(classes, width):
    features = torch.randn(classes, width, generator=torch.Generator().manual_seed(classes), dtype=torch.float64) + 0.5
    assert mean_similarity(features) == pytest.approx(naive.mean_similarity(features), abs=1e-12)
    assert mean_similarity(features.float().numpy()) == pytest.approx(naive.mean_similarity(features), abs=1e-6)


@given(classes=st.integers(1, 30), width=st.integers(1, 8), seed=st.integers(0, 2**31), magnitude=st.floats(-200, 200))
@settings(max_examples=60, deadline=None)
def test_mean_similarity_is_a_cosine(classes, width, seed, magnitude):
    features = np.random.default_rng(seed).normal(size=(classes, width))
    alpha = mean_similarity(features)
    assert -1 <= alpha <= 1
    assert alpha == pytest.approx(mean_similarity(features * 10**magnitude), abs=1e-9)


def test_mean_similarity_by_hand():
    assert mean_similarity(np.eye(5)) == pytest.approx(0, abs=1e-15)
    assert mean_similarity(np.ones((4, 3))) == pytest.approx(1)
    assert mean_similarity([[1.0, 2.0], [-2.0, -4.0]]) == pytest.approx(-1)
    assert mean_similarity([[3.0, 4.0]]) == 1.0


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones(3), r"must be \(K, D\), one row per class, not \(3,\)"),
        (np.ones((0, 3)), r"not \(0, 3\)"),
        ([[1.0, 0.0], [0.0, 0.0]], r"text_features\[1\] is all zeros"),
        ([[1.0, float("nan")]], r"text_features has .* at index \[0, 1\]"),
    ],
)
def test_mean_similarity_errors(features, message):
    with pytest.raises(InputError, match=message):
        mean_similarity(features)


def test_torchs_number_of_threads_is_restored_however_users_overlap():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread_each(on_cpu=True) as outer, one_thread_each(on_cpu=True) as inner:
            assert torch.get_num_threads() == 1
            assert list(outer.map(abs, [-1, -2])) == list(inner.map(abs, [1, 2]))
        assert torch.get_num_threads() == 2
        with one_thread_each(on_cpu=False):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
