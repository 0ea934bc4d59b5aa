"""D-TPT: dimensional entropy maximisation."""

import torch
from torch import Tensor

from ._tuner import text_term


@text_term("dtpt", weight=10.0, title="D-TPT", cite="after Han et al., arXiv:2510.09473", place=80)
def dimensional_entropy(text: Tensor) -> Tensor:
    """TPT that also spreads each text feature over its dimensions: an interpretation.

    D-TPT has no public code. The CoTS paper only says that it "identifies and mitigates the influence of dominant
    feature dimensions". Here the squares of a unit vector are its distribution over dimensions, and their entropy is
    raised: L = L_TPT - weight * mean_i H(t_i^2). Neither this form nor the weight (10) comes from the authors.
    """
    q = text.square()
    # xlogy is 0 at 0, where the derivative of q log q is infinite but that of t^2 log t^2 is 0.
    return torch.special.xlogy(q, q.clamp_min(torch.finfo(text.dtype).tiny)).sum(dim=-1).mean(dim=-1)
