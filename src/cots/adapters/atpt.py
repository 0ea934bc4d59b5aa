"""A-TPT: angular diversity of the text features."""

import torch
from torch import Tensor

from ._tuner import text_term

CLAMP = 0.999  # limit of cosines, so that the gradient of acos is finite


@text_term(
    "atpt", weight=100.0,
    title="A-TPT", cite="Ahamed et al., ICLR 2026", place=40, headline=True, under_tda=True,
)  # fmt: skip
def angular_diversity(text: Tensor) -> Tensor:
    """TPT that also widens the angle from each text feature to its nearest neighbour.

    L = L_TPT - weight * mean_i min_{j != i} angle(t_i, t_j). weight: 100 on fine-grained sets, 60 on ImageNet and its
    variants (the authors' code: 80 and 10, clamp 0.99999). Cosines are clamped at 0.999, so pairs closer than 2.6
    degrees (duplicate names) have no gradient.
    """
    K = text.shape[-2]
    if K == 1:
        return text.new_zeros(text.shape[:-2])
    cosine = (text @ text.mT).clamp(-CLAMP, CLAMP)
    itself = torch.eye(K, dtype=torch.bool, device=text.device)
    nearest = cosine.masked_fill(itself, -2.0).max(dim=-1).values
    return -nearest.acos().mean(dim=-1)
