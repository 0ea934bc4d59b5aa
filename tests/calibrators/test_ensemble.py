"""Omega: which views fit the temperature and enter the ensemble."""

from __future__ import annotations

import pytest
import torch
from support.logits import random_logits

from cots import calibrate


def test_omega_counts_views_from_the_weak_one_and_sorts_by_entropy():
    sharpness = torch.tensor([9.0, 1.0, 4.0, 2.0, 3.0])
    logits = sharpness[:, None] * torch.tensor([1.0, 0.0, -1.0])
    for method in ("cots", "ecots", "ensemble"):
        assert calibrate(logits, logits, method, alpha=0.5, k=2, rows="views").views.tolist() == [2, 4]
        assert calibrate(logits, logits, method, alpha=0.5, views="top", k=2, rows="views").views.tolist() == [0, 2]
        assert calibrate(logits, logits, method, alpha=0.5, views="all_strong", rows="views").views.tolist() == [
            2,
            4,
            3,
            1,
        ]
        assert calibrate(logits, logits, method, alpha=0.5, views="weak", rows="views").views.tolist() == [0]
    assert calibrate(logits, logits, "zero", rho=0.6, rows="views").views.tolist() == [0, 2, 4]
    assert calibrate(logits, logits, "none", rows="views").views.tolist() == []


def test_omega_is_selected_on_the_adapted_logits():
    adapted, zero_shot = torch.tensor([[1.0, 0], [9, 0], [1, 0]]), torch.tensor([[1.0, 0], [1, 0], [9, 0]])
    assert calibrate(adapted, zero_shot, rows="views").views.tolist() == [1]
    assert calibrate(zero_shot, adapted, rows="views").views.tolist() == [2]


@pytest.mark.parametrize(("views", "count"), [(1, 1), (2, 1), (10, 1), (21, 2), (64, 6)])
def test_omega_has_a_tenth_of_the_strong_views(views, count):
    result = calibrate(*random_logits(views, 3), "cots", rows="views")
    assert len(result.views) == count
    assert (result.views > 0).all() or views == 1


def test_equal_entropies_go_to_the_lower_index():
    logits = torch.tensor([[3.0, 0.0, 0.0]]).expand(20, 3)
    assert calibrate(logits, logits, k=4, rows="views").views.tolist() == [1, 2, 3, 4]
    assert calibrate(logits, logits, "zero", rows="views").views.tolist() == [0, 1, 2, 3, 4, 5]


def test_without_strong_views_the_weak_one_stands_in():
    adapted, zero_shot = random_logits(1, 6)
    for views in ("top_strong", "all_strong", "top", "weak"):
        result = calibrate(adapted, zero_shot, "ecots", alpha=0.3, views=views, solver="exact", rows="views")
        assert result.views.tolist() == [0]
        torch.testing.assert_close(result.probabilities, (adapted[0] / result.tau).softmax(-1))
