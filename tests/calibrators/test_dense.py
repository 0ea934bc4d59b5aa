"""Dense logits: the same as a loop over pixels, with masks, boxes and arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cots

COLUMNS = ("probabilities", "prediction", "confidence", "tau", "views")


def logits(*shape, seed=0):
    zero_shot = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 2.5 * zero_shot + 0.1, zero_shot


@pytest.mark.parametrize("method", ["cots", "ecots", "sals", "cor", "none", "zero", "ensemble"])
def test_dense_logits_equal_the_loop_over_pixels(method):
    adapted, zero_shot = logits(2, 12, 5, 2, 3)
    alpha = {"alpha": 0.6} if method in ("ecots", "ensemble") else {}
    dense = cots.calibrate(adapted, zero_shot, method, **alpha)
    for b in range(2):
        for y in range(2):
            for x in range(3):
                one = cots.calibrate(adapted[b, :, :, y, x], zero_shot[b, :, :, y, x], method, rows="views", **alpha)
                for name in COLUMNS:
                    ours = getattr(dense, name)
                    place = ours[b, :, y, x] if ours.ndim == 4 else ours[b, y, x]
                    torch.testing.assert_close(place, getattr(one, name), rtol=0, atol=1e-12)
    assert (dense.method, dense.alpha) == (method, alpha.get("alpha"))


def test_a_mask_leaves_places_out_and_does_not_touch_the_others(monkeypatch):
    adapted, zero_shot = logits(2, 12, 5, 3, 4)
    mask = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(1)) < 0.5
    monkeypatch.setattr("cots.calibrators._api.LOGITS_AT_ONCE", 3 * 12 * 5)  # several parts
    whole, masked = cots.calibrate(adapted, zero_shot), cots.calibrate(adapted, zero_shot, mask=mask)
    assert torch.equal(masked.confidence[mask], whole.confidence[mask])
    assert torch.equal(masked.probabilities.permute(0, 2, 3, 1)[mask], whole.probabilities.permute(0, 2, 3, 1)[mask])
    assert bool(masked.probabilities.permute(0, 2, 3, 1)[~mask].isnan().all())
    assert set(masked.prediction[~mask].tolist()) == {-1}
    assert bool(masked.tau[~mask].isnan().all())


def test_boxes_and_arrays():
    adapted, zero_shot = logits(2, 12, 5, 7)
    boxes = cots.calibrate(adapted.numpy(), zero_shot.numpy(), "ecots", alpha=0.5, mask=np.ones((2, 7), dtype=bool))
    assert isinstance(boxes.probabilities, np.ndarray)
    assert (boxes.probabilities.shape, boxes.tau.shape, boxes.views.shape) == ((2, 5, 7), (2, 7), (2, 1, 7))
    as_samples = (each.permute(0, 3, 1, 2).flatten(0, 1) for each in (adapted, zero_shot))
    flat = cots.calibrate(*as_samples, "ecots", alpha=0.5)
    np.testing.assert_allclose(boxes.tau.ravel(), flat.tau.numpy(), atol=1e-12)


def test_bad_input():
    adapted, zero_shot = logits(1, 4, 3, 2, 2)
    mask = torch.ones(1, 2, 2, dtype=torch.bool)
    for options, message in (
        ({"mask": mask[0]}, r"mask must have the images and places of the logits, \(1, 2, 2\), not \(2, 2\)"),
        ({"mask": mask.float()}, "mask must be boolean"),
        ({"mask": ~mask}, "mask is False everywhere"),
        ({"rows": "views"}, "rows"),
    ):
        with pytest.raises(cots.InputError, match=message):
            cots.calibrate(adapted, zero_shot, **options)
    with pytest.raises(cots.InputError, match="mask"):
        cots.calibrate(adapted[..., 0, 0], zero_shot[..., 0, 0], mask=mask)
    with pytest.raises(cots.InputError, match="at least one view and one class"):
        cots.calibrate(adapted[:, :0], zero_shot[:, :0])
