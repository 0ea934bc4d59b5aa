"""ZS-Norm: tune on logits rescaled to the zero-shot range (Murugesan et al., ECCV 2024)."""

import torch
from torch import Tensor

from ._api import Adapted, adapter
from ._batch import Batch, marginal_entropy
from ._tuner import tune_context


@adapter("zsnorm", title="ZS-Norm", cite="Murugesan et al., ECCV 2024", place=70, tunes_text=True, one_template=True)
def zsnorm(batch: Batch, *, steps: int = 1, lr: float = 5e-3, rho: float = 0.1) -> Adapted:
    """TPT whose loss sees the logits of each view min-max rescaled to the weak view's zero-shot range.

    L = L_TPT(z'), z' = (z - min z) / (max z - min z) * (max_zs - min_zs) + min_zs. The zero-shot bounds are constants;
    the gradient flows through a view's own minimum and maximum. The authors' code takes the bounds of the most
    confident view, which changed logits by up to 3.1 where both were compared. Returned logits, and those used to
    select views, are not rescaled (choices of cots).
    """

    def objective(logits_BnK: Tensor, weak_BK: Tensor) -> Tensor:
        low, high = logits_BnK.amin(dim=-1, keepdim=True), logits_BnK.amax(dim=-1, keepdim=True)
        zero_low, zero_high = (bound[:, None, None] for bound in (weak_BK.amin(dim=-1), weak_BK.amax(dim=-1)))
        spread = high - low
        unit = torch.where(spread > 0, (logits_BnK - low) / torch.where(spread > 0, spread, 1.0), 0.0)
        return marginal_entropy(unit * (zero_high - zero_low) + zero_low)

    return tune_context(batch, steps=steps, lr=lr, rho=rho, objective=objective)
