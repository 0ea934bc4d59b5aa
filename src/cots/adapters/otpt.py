"""O-TPT: orthogonality constraints on the text features."""

from torch import Tensor

from ._tuner import text_term


@text_term(
    "otpt", weight=18.0,
    title="O-TPT", cite="Sharifdeen et al., CVPR 2025", place=30, headline=True, under_tda=True,
)  # fmt: skip
def orthogonality(text: Tensor) -> Tensor:
    """TPT that also drives the text features towards orthogonality.

    L = L_TPT + weight * mean_i (||row i of T T'|| - 1), the closed form of the Householder expression, with no
    K x K x K tensor. weight: 18 on all sets (the authors' code: 18 and 2).
    """
    return (text @ text.mT).norm(dim=-1).mean(dim=-1) - 1
