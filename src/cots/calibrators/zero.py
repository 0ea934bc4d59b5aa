"""ZERO (Farina et al. 2024, "Frustratingly easy test-time adaptation of vision-language models")."""

import torch
from torch import Tensor

from .._arrays import by_entropy
from .._errors import check_share
from ._api import Calibrated, calibrator


@calibrator("zero", title="ZERO", cite="Farina et al., NeurIPS 2024", place=70)
def zero(adapted_BVK: Tensor, zero_shot_BVK: Tensor, *, rho: float = 0.3) -> Calibrated:
    """ZERO: a vote of the most confident views, each for its arg max.

    The int(V * rho) views with the lowest entropy vote, the limit of temperature zero. Probabilities are vote shares. A
    tie goes to the class that the next views in order of entropy vote for first, or else to that of the most confident
    kept view; only `.prediction` shows which.
    """
    check_share("rho", rho)
    views, classes = adapted_BVK.shape[1:]
    kept = max(1, int(views * rho))
    order_BV = by_entropy(adapted_BVK)
    votes_BV = adapted_BVK.argmax(-1).gather(1, order_BV)
    ballots = adapted_BVK.new_ones(len(adapted_BVK), kept)
    counts_BK = adapted_BVK.new_zeros(len(adapted_BVK), classes).scatter_add(1, votes_BV[:, :kept], ballots)
    leading_BK = counts_BK == counts_BK.amax(1, keepdim=True)
    deciding_BV = votes_BV.roll(-kept, 1)  # the views after the kept ones, then the kept ones
    first_B1 = leading_BK.gather(1, deciding_BV).to(torch.uint8).argmax(1, keepdim=True)
    return Calibrated.of(
        counts_BK / kept, prediction=deciding_BV.gather(1, first_B1)[:, 0], views=order_BV[:, :kept].contiguous()
    )
