"""MTA: mean-shift over the views of an image (Zanella and Ben Ayed, CVPR 2024, https://arxiv.org/abs/2405.02266)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .._errors import check_positive, check_share
from ._api import Adapted, adapter
from ._batch import Batch

ROUNDS, STEPS, SETTLED = 5, 5, 1e-6
NARROWEST = 1e-8  # minimum squared bandwidth, for identical views


@adapter("mta", title="MTA", cite="Zanella and Ben Ayed, CVPR 2024", place=92)
def mta(batch: Batch, *, affinity: float = 4.0, spread: float = 0.2, neighbours: float = 0.3) -> Adapted:
    """The mode of the views' features, by mean-shift, replaces view 0.

    With x_v the features, A_vu = p_v . p_u, and k_v(m) = exp(-|x_v - m|^2 / (2 h_v^2)), in turn
        y <- softmax_v((k_v(m) + affinity * (A y)_v) / spread),
        u <- sum_v w_v x_v with w_v ~ k_v(m) y_v,  m <- u / |u|,
    from y = 1/V and m = x_0: 5 rounds of at most 5 updates each, until a change is below 1e-6. h_v^2 is half the mean
    squared distance to the nearest `neighbours` (a share) of the other views. The mode's logits are
    sum_v w_v z_v / |u|; the other views get z_v / |u|, so CoTS finds tau = 1 / |u| and undoes the sharpening exactly.

    Defaults (4, 0.2, 0.3; all views) follow the authors' code (MaxZanella/MTA, cafafdfa), for every dataset. Not
    verified in the paper: the factor one half in h^2.
    """
    check_positive("affinity", affinity)
    check_positive("spread", spread)
    check_share("neighbours", neighbours)
    before, x = batch.zero_shot, batch.features
    views = x.shape[1]
    if views == 1:
        return Adapted(zero_shot_logits=before, logits=before.clone())
    p = before.softmax(-1)
    A = p @ p.mT
    nearest = max(1, int(neighbours * (views - 1)))
    distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").sort(-1).values[..., 1 : 1 + nearest]
    h2 = (0.5 * distance.square().mean(-1)).clamp_min(NARROWEST)

    def kernel(m_BD: Tensor) -> Tensor:
        return (-(x - m_BD[:, None]).square().sum(-1) / (2 * h2)).exp()

    y, u, m = torch.full_like(h2, 1 / views), x[:, 0], x[:, 0]
    for _ in range(ROUNDS):
        k, moving = kernel(m), torch.ones_like(h2[:, :1], dtype=torch.bool)
        for _ in range(STEPS):
            new = ((k + affinity * (A @ y[..., None])[..., 0]) / spread).softmax(-1)
            y, moving = torch.where(moving, new, y), moving & ((new - y).norm(dim=-1, keepdim=True) >= SETTLED)
        moving = torch.ones_like(moving)
        for _ in range(STEPS):
            w = kernel(m) * y
            w = w / w.sum(-1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
            u = torch.where(moving, (w[..., None] * x).sum(1), u)
            new = F.normalize(u, dim=-1)
            m, moving = new, moving & ((new - m).norm(dim=-1, keepdim=True) >= SETTLED)
    logits = before / u.norm(dim=-1).clamp_min(NARROWEST)[:, None, None]
    logits[:, 0] = batch.task.logit_scale * m @ batch.task.text_features.T
    return Adapted(zero_shot_logits=before, logits=logits)
