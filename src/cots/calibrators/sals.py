"""SaLS, sample-adaptive logit scaling (Murugesan et al. 2024, "Robust calibration of large VLM adapters")."""

import torch
from torch import Tensor

from .._arrays import gaps
from ._api import Calibrated, calibrator


@calibrator("sals", title="SaLS", cite="Murugesan et al., ECCV 2024", place=10, headline=True, one_view=True)
def sals(adapted_BVK: Tensor, zero_shot_BVK: Tensor) -> Calibrated:
    """SaLS: view 0's adapted logits mapped onto the range of its zero-shot logits.

    The min-max map (z - min z) / range(z) * range(z_zs) + min z_zs is a temperature and a shift, and softmax ignores
    shifts: p = softmax(z_adapted[0] / tau) with tau = range(z_adapted[0]) / range(z_zs[0]). Equal zero-shot logits give
    the largest finite tau, and so uniform probabilities; equal adapted logits give tau = 1 and are uniform anyway.
    """
    ours_B = _range(adapted_BVK[:, 0])
    tau_B = torch.where(ours_B > 0, ours_B / _range(zero_shot_BVK[:, 0]), 1.0)
    finite = torch.finfo(tau_B.dtype)
    return Calibrated.scaled(adapted_BVK, tau_B.clamp(finite.tiny, finite.max))


def _range(logits_BK: Tensor) -> Tensor:
    return gaps(logits_BK).amax(1)
