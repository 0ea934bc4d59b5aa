"""SoC: semantic orthogonal calibration."""

import torch
from torch import Tensor

from ._tuner import text_term

QUANTILE = 0.2


@text_term(
    "soc", weight=30.0, relative=True,
    title="SoC", cite="Fillioux et al., CVPR 2026", place=50, headline=True, under_tda=True,
)  # fmt: skip
def semantic_separation(text: Tensor) -> Tensor:
    """TPT that also separates the text features, close pairs less than distant ones.

    L = L_TPT + weight * (H/R).detach() * R, H the entropy loss, so the term always equals `weight` times the entropy. R
    is a Huber penalty on pairwise cosines, min-max normalised over the pairs, with delta their 0.2-quantile (detached).
    The gradient also flows through minimum and maximum, and R = 0 if all cosines are equal.
    weight: 30 on fine-grained sets, 14 on ImageNet and its variants.
    """
    K = text.shape[-2]
    if K < 2:
        return text.new_zeros(text.shape[:-2])
    rows, columns = torch.tril_indices(K, K, offset=-1, device=text.device)
    cosine = (text @ text.mT)[..., rows, columns]
    low, high = cosine.amin(dim=-1, keepdim=True), cosine.amax(dim=-1, keepdim=True)
    spread = high - low
    s = torch.where(spread > 0, (cosine - low) / torch.where(spread > 0, spread, 1.0), 0.0)
    delta = _quantile(s.detach(), QUANTILE)
    return torch.where(s < delta, 0.5 * s.square(), delta * (s - 0.5 * delta)).mean(dim=-1)


def _quantile(values: Tensor, q: float) -> Tensor:
    """Quantile over the last axis, with linear interpolation; torch.quantile rejects more than 16 million values."""
    ordered = values.sort(dim=-1).values
    position = q * (values.shape[-1] - 1)
    below = int(position)
    above = min(below + 1, values.shape[-1] - 1)
    return torch.lerp(ordered[..., below], ordered[..., above], position - below)[..., None]
