"""A-TPT: angular diversity of the text features (Ahamed et al., ICLR 2026)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..prompts import Task
from ._api import Adapted, adapter
from ._start import Start
from ._tuner import TextTerm, tune_context

CLAMP = 0.999


def angular_diversity(text: Tensor) -> Tensor:
    """-mean_i min_{j != i} angle(t_i, t_j); cosines are clamped to +-0.999, where the gradient of acos is finite."""
    K = text.shape[-2]
    if K == 1:
        return text.new_zeros(text.shape[:-2])
    cosine = (text @ text.mT).clamp(-CLAMP, CLAMP)
    itself = torch.eye(K, dtype=torch.bool, device=text.device)
    nearest = cosine.masked_fill(itself, -2.0).max(dim=-1).values
    return -nearest.acos().mean(dim=-1)


@adapter(
    "atpt",
    title="A-TPT",
    cite="Ahamed et al., ICLR 2026",
    place=40,
    headline=True,
    under_tda=True,
    weights={"fine-grained": 100.0, "imagenet": 60.0},
)
def atpt(
    features_BVD: Tensor,
    task: Task,
    *,
    start: Start,
    weight: float = 100.0,
    steps: int = 1,
    lr: float = 5e-3,
    rho: float = 0.1,
) -> Adapted:
    """TPT that also widens the angle from each text feature to its nearest neighbour.

    L = L_TPT - weight * mean_i min_j angle(t_i, t_j). weight: 100 on fine-grained sets, 60 on ImageNet and its variants
    (the method's own code: 80 and 10, clamp 0.99999).
    """
    term = TextTerm(name="atpt", value=angular_diversity, weight=weight)
    return tune_context(start, steps=steps, lr=lr, rho=rho, term=term)
