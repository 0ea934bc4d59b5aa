"""C-TPT: calibrated test-time prompt tuning by text-feature dispersion."""

from torch import Tensor

from ._tuner import text_term


@text_term(
    "ctpt", weight=50.0,
    title="C-TPT", cite="Yoon et al., ICLR 2024", place=20, headline=True, under_tda=True,
)  # fmt: skip
def dispersion(text: Tensor) -> Tensor:
    """TPT that also pushes the text features away from their centroid.

    L = L_TPT - weight * mean_i ||t_i - mean(t)||; the centroid is not renormalised. weight: 50 on fine-grained
    sets, 20 on ImageNet and its variants.
    """
    return -(text - text.mean(dim=-2, keepdim=True)).norm(dim=-1).mean(dim=-1)
