"""O-TPT: orthogonality constraints on the text features (Sharifdeen et al., CVPR 2025)."""

from __future__ import annotations

from torch import Tensor

from ..prompts import Task
from ._api import Adapted, adapter
from ._start import Start
from ._tuner import TextTerm, tune_context


def orthogonality(text: Tensor) -> Tensor:
    """mean_i (||row i of T T'|| - 1): the closed form of the Householder expression, with no K x K x K tensor."""
    return (text @ text.mT).norm(dim=-1).mean(dim=-1) - 1


@adapter(
    "otpt",
    title="O-TPT",
    cite="Sharifdeen et al., CVPR 2025",
    place=30,
    headline=True,
    under_tda=True,
    weights={"fine-grained": 18.0, "imagenet": 18.0},
)
def otpt(
    features_BVD: Tensor,
    task: Task,
    *,
    start: Start,
    weight: float = 18.0,
    steps: int = 1,
    lr: float = 5e-3,
    rho: float = 0.1,
) -> Adapted:
    """TPT that also drives the text features towards orthogonality.

    L = L_TPT + weight * mean_i (||row i of T T'|| - 1). weight: 18 on all sets (the method's own code: 18 and 2).
    """
    term = TextTerm(name="otpt", value=orthogonality, weight=weight)
    return tune_context(start, steps=steps, lr=lr, rho=rho, term=term)
