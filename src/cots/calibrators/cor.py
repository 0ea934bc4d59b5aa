"""CoR, confidence replacement: the paper's pilot study (section "Confidence Replacement")."""

import torch
from torch import Tensor

from ._api import Calibrated, calibrator
from ._solver import pin_argmax, scaled_softmax


@calibrator("cor", title="CoR", cite="the CoTS paper's pilot study", place=20, headline=True, one_view=True)
def cor(adapted_BVK: Tensor, zero_shot_BVK: Tensor) -> Calibrated:
    """CoR: the class from the adapted logits, its confidence c from the zero-shot logits, both of view 0.

    The paper defines only class and confidence. The other classes share 1 - c in proportion q to their adapted
    probabilities, blended with the uniform share 1/(K-1) by the smallest weight w in [0, 1] that leaves none above c:
    (1 - c) * ((1 - w) * max q + w / (K-1)) <= c. It exists because c >= 1/K.
    """
    weak_BK, classes = adapted_BVK[:, 0], adapted_BVK.shape[-1]
    if classes == 1:
        return Calibrated.of(torch.ones_like(weak_BK))
    one_B = weak_BK.new_ones(len(weak_BK))
    prediction_B1 = weak_BK.argmax(1, keepdim=True)
    c_B1 = scaled_softmax(zero_shot_BVK[:, 0], one_B).amax(1, keepdim=True)
    q_BK = scaled_softmax(weak_BK.scatter(1, prediction_B1, -torch.inf), one_B).scatter(1, prediction_B1, 0.0)
    most_B1, even = q_BK.amax(1, keepdim=True), 1 / (classes - 1)
    limit_B1 = c_B1 / (1 - c_B1)  # infinite for c = 1: there is nothing to share
    tiny = torch.finfo(weak_BK.dtype).tiny
    w_B1 = torch.where(most_B1 > limit_B1, (most_B1 - limit_B1) / (most_B1 - even).clamp(min=tiny), 0.0).clamp(max=1)
    rest_BK = (1 - c_B1) * ((1 - w_B1) * q_BK + w_B1 * even)
    probabilities_BK = torch.minimum(rest_BK, c_B1).scatter(1, prediction_B1, c_B1)
    prediction_B = prediction_B1[:, 0]
    return Calibrated.of(pin_argmax(probabilities_BK, prediction_B), prediction=prediction_B)
