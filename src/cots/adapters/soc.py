"""SoC: semantic orthogonal calibration (Fillioux et al., CVPR 2026)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..prompts import Task
from ._api import Adapted, adapter
from ._start import Start
from ._tuner import TextTerm, tune_context

QUANTILE = 0.2


def semantic_separation(text: Tensor) -> Tensor:
    """Huber penalty on pairwise cosines, min-max normalised over the pairs, with delta their 0.2-quantile (detached).

    The gradient flows through the minimum and the maximum too. Where all cosines are equal there is nothing to
    normalise: the value is 0.
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
    """Linear-interpolation quantile over the last axis; torch.quantile refuses more than 16 million values."""
    ordered = values.sort(dim=-1).values
    place = q * (values.shape[-1] - 1)
    below = int(place)
    above = min(below + 1, values.shape[-1] - 1)
    return torch.lerp(ordered[..., below], ordered[..., above], place - below)[..., None]


@adapter(
    "soc",
    title="SoC",
    cite="Fillioux et al., CVPR 2026",
    place=50,
    headline=True,
    under_tda=True,
    weights={"fine-grained": 30.0, "imagenet": 14.0},
)
def soc(
    features_BVD: Tensor,
    task: Task,
    *,
    start: Start,
    weight: float = 30.0,
    steps: int = 1,
    lr: float = 5e-3,
    rho: float = 0.1,
) -> Adapted:
    """TPT that also separates the text features, close pairs less than distant ones.

    L = L_TPT + weight * (H/R).detach() * R, H the entropy loss and R the Huber penalty, so that the term always is
    `weight` times the entropy. weight: 30 on fine-grained sets, 14 on ImageNet and its variants.
    """
    term = TextTerm(name="soc", value=semantic_separation, weight=weight, relative=True)
    return tune_context(start, steps=steps, lr=lr, rho=rho, term=term)
