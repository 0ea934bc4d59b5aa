"""No calibration."""

from torch import Tensor

from ._api import Calibrated, calibrator


@calibrator("none", title="None", place=0, one_view=True)
def none(adapted_BVK: Tensor, zero_shot_BVK: Tensor) -> Calibrated:
    """No calibration: p = softmax(z_adapted[0])."""
    return Calibrated.scaled(adapted_BVK, adapted_BVK.new_ones(len(adapted_BVK)))
