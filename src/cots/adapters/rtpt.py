"""R-TPT: prompt tuning on single views, and an ensemble of reliable views (Sheng et al., CVPR 2025)."""

from dataclasses import replace

import torch
from torch import Tensor

from .._errors import check_positive, whole_number
from ._api import Adapted, adapter
from ._batch import Batch, marginal_entropy
from ._tuner import tune_context


def pointwise_entropy(logits_BnK: Tensor, weak_BK: Tensor) -> Tensor:
    """The mean entropy of the views; TPT takes the entropy of the mean."""
    return marginal_entropy(logits_BnK.flatten(0, 1)[:, None]).unflatten(0, logits_BnK.shape[:2]).mean(1)


def reliability(features_BVD: Tensor, neighbours: int, temperature: float) -> Tensor:
    """Weights (B,V): softmax of the mean cosine to the nearest other views, over `temperature`."""
    views = features_BVD.shape[1]
    if views == 1:
        return torch.ones_like(features_BVD[..., 0])
    cosine = features_BVD @ features_BVD.mT
    cosine.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    nearest = cosine.topk(min(neighbours, views - 1), dim=-1).values
    return (nearest.mean(-1) / temperature).softmax(-1)


@adapter("rtpt", title="R-TPT", cite="Sheng et al., CVPR 2025", place=15, tunes_text=True, one_template=True)
def rtpt(
    batch: Batch,
    *,
    steps: int = 1,
    lr: float = 5e-3,
    rho: float = 0.1,
    neighbours: int = 20,
    temperature: float = 0.01,
) -> Adapted:
    """TPT on the entropy of single views, then a reliability-weighted mean of all views.

    L = mean over the rho*V views of lowest entropy of H(p_v); AdamW on the context as for TPT. With c_vu = x_v . x_u
    and r_v the mean of view v's 20 largest c_vu, u != v, the result is sum_v w_v z*_v, w = softmax(r / 0.01), z* the
    tuned logits. View 0 gets this sum, the other views keep their own z*_v.

    Defaults follow the authors' code (TomSheng21/R-TPT, e085f134; not licensed, so only its facts are used). It drops a
    view from its own neighbours if c_vv >= 1 in float32, which depends on rounding; here it is always dropped. Not
    verified against the paper.
    """
    whole_number("neighbours", neighbours, 1)
    check_positive("temperature", temperature)
    tuned = tune_context(batch, steps=steps, lr=lr, rho=rho, objective=pointwise_entropy)
    logits, weights_BV = tuned.logits.clone(), reliability(batch.features, neighbours, temperature)
    logits[:, 0] = (weights_BV[..., None] * tuned.logits).sum(1)
    return replace(tuned, logits=logits)
