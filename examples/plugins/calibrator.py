"""Template of a calibrator: from the logits of all views before and after adaptation to probabilities.

cots run --plugin examples/plugins/calibrator.py --methods tpt,tpt+smoothed ...
"""

import torch

import cots


@cots.calibrator("smoothed", title="Smoothed", cite="you, 2026", place=500)
def smoothed(adapted: torch.Tensor, zero_shot: torch.Tensor, *, share: float = 0.1) -> torch.Tensor:
    """Smoothed: p = (1 - share) softmax(z_adapted[0]) + share / K. The logits are (B,V,K), the result is (B,K)."""
    probabilities = adapted[:, 0].softmax(dim=-1)
    return (1 - share) * probabilities + share / probabilities.shape[-1]
