"""C-TPT: calibrated test-time prompt tuning by text-feature dispersion (Yoon et al., ICLR 2024)."""

from __future__ import annotations

from torch import Tensor

from ..prompts import Task
from ._api import Adapted, adapter
from ._start import Start
from ._tuner import TextTerm, tune_context


def dispersion(text: Tensor) -> Tensor:
    """-mean_i ||t_i - mean(t)||; the centroid is not normalised again."""
    return -(text - text.mean(dim=-2, keepdim=True)).norm(dim=-1).mean(dim=-1)


@adapter(
    "ctpt",
    title="C-TPT",
    cite="Yoon et al., ICLR 2024",
    place=20,
    headline=True,
    under_tda=True,
    weights={"fine-grained": 50.0, "imagenet": 20.0},
)
def ctpt(
    features_BVD: Tensor,
    task: Task,
    *,
    start: Start,
    weight: float = 50.0,
    steps: int = 1,
    lr: float = 5e-3,
    rho: float = 0.1,
) -> Adapted:
    """TPT that also pushes the text features away from their centroid.

    L = L_TPT - weight * mean_i ||t_i - mean(t)||. weight: 50 on fine-grained sets, 20 on ImageNet and its variants.
    """
    term = TextTerm(name="ctpt", value=dispersion, weight=weight)
    return tune_context(start, steps=steps, lr=lr, rho=rho, term=term)
