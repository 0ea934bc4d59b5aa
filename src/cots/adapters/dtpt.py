"""D-TPT: dimensional entropy maximisation (after Han et al., arXiv:2510.09473)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..prompts import Task
from ._api import Adapted, adapter
from ._start import Start
from ._tuner import TextTerm, tune_context


def dimensional_entropy(text: Tensor) -> Tensor:
    """-mean_i H(q_i), where q_id = t_id^2 is the share of dimension d in the unit vector t_i."""
    share = text.square()
    # xlogy is 0 at 0, where the derivative of q log q is not finite but that of t^2 log t^2 is 0.
    return torch.special.xlogy(share, share.clamp_min(torch.finfo(text.dtype).tiny)).sum(dim=-1).mean(dim=-1)


@adapter("dtpt", title="D-TPT", cite="after Han et al., arXiv:2510.09473", place=80)
def dtpt(
    features_BVD: Tensor,
    task: Task,
    *,
    start: Start,
    weight: float = 10.0,
    steps: int = 1,
    lr: float = 5e-3,
    rho: float = 0.1,
) -> Adapted:
    """TPT that also spreads each text feature over its dimensions. An interpretation: D-TPT has no public code.

    The CoTS paper says only that D-TPT "identifies and mitigates the influence of dominant feature dimensions". Here
    the squares of a unit vector are its distribution over dimensions, and their entropy is raised:
    L = L_TPT - weight * mean_i H(t_i^2). Neither this form nor the weight (10) is the authors'.
    """
    term = TextTerm(name="dtpt", value=dimensional_entropy, weight=weight)
    return tune_context(start, steps=steps, lr=lr, rho=rho, term=term)
