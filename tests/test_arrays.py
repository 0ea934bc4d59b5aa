"""Arrays and tensors from outside: accepted types and checks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import cots
from cots._arrays import as_tensor, check_finite


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
