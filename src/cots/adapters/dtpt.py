"""D-TPT: dimensional entropy maximisation, in two readings of a paper without public code."""

import math

import torch
from torch import Tensor

from .._errors import check_one_of
from ._api import Adapted, adapter
from ._batch import Batch
from ._tuner import TextTerm, tune_context
from .rtpt import pointwise_entropy


@adapter(
    "dtpt", title="D-TPT", cite="after Han et al., arXiv:2510.09473", place=80, tunes_text=True, one_template=True
)  # fmt: skip
def dtpt(
    batch: Batch, *, weight: float = 10.0, form: str = "squares", steps: int = 1, lr: float = 5e-3, rho: float = 0.1
) -> Adapted:
    """TPT that also spreads each text feature over its dimensions: an interpretation.

    D-TPT has no public code, and neither form has been compared with the authors' numbers.
    form="squares" rests on the CoTS paper, which only says that D-TPT "identifies and mitigates the influence of
    dominant feature dimensions": the squares of a unit vector are its distribution over dimensions, and their entropy
    is raised, L = L_TPT - weight * mean_i H(t_i^2).
    form="softmax" rests on public reviews of D-TPT: the term is a divergence from the uniform distribution, and the
    entropies of the views are averaged, L = mean_v H(p_v) + weight * mean_i KL(softmax(t_i) || uniform).
    The weight (10) is a choice of cots in both.
    """
    check_one_of("form", form, ("squares", "softmax"))
    if form == "squares":
        return tune_context(
            batch, steps=steps, lr=lr, rho=rho, term=TextTerm(name="dtpt", value=dimensional_entropy, weight=weight)
        )
    term = TextTerm(name="dtpt, softmax", value=divergence_from_uniform, weight=weight)
    return tune_context(batch, steps=steps, lr=lr, rho=rho, objective=pointwise_entropy, term=term)


def dimensional_entropy(text: Tensor) -> Tensor:
    """-mean_i H(t_i^2)"""
    q = text.square()
    # xlogy is 0 at 0, where the derivative of q log q is infinite but that of t^2 log t^2 is 0.
    return torch.special.xlogy(q, q.clamp_min(torch.finfo(text.dtype).tiny)).sum(dim=-1).mean(dim=-1)


def divergence_from_uniform(text: Tensor) -> Tensor:
    """mean_i KL(softmax(t_i) || uniform) = log D - mean_i H(softmax(t_i))"""
    log_q = text.log_softmax(dim=-1)
    return math.log(text.shape[-1]) + (log_q.exp() * log_q).sum(dim=-1).mean(dim=-1)
