"""DAC: distance-aware calibration by text features (Wang et al., ICML 2024, https://arxiv.org/abs/2402.04655)."""

import torch
from torch import Tensor

from .._errors import InputError, whole_number
from ._api import Calibrated, calibrator


@calibrator("dac", title="DAC", cite="Wang et al., ICML 2024", place=64, one_view=True)
def dac(
    adapted_BVK: Tensor,
    zero_shot_BVK: Tensor,
    *,
    text_features: Tensor | None = None,
    tuned_features: Tensor | None = None,
    neighbours: int = 5,
    threshold: float = 0.05,
) -> Calibrated:
    """DAC: a temperature from how far tuning moved the predicted class's text feature.

    p = softmax(gamma z_adapted[0]), gamma = exp(d_zs - d), d the mean distance from the text feature of the predicted
    class to its 5 nearest neighbours, zero-shot (text_features, `(K,D)`) and tuned (tuned_features, `(B,K,D)`);
    gamma = 1 if the smallest tuned distance is below `threshold`. A pipeline passes both; adapters that do not tune
    the text have no gamma.

    A variant of DAC, which measures distances to the classes of the tuning set. Here these are all classes, so a class
    is excluded from its own neighbours. Defaults and threshold follow the authors' code
    (ml-stat-Sustech/CLIP_Calibration, 5b68fb1). Not verified in the paper: the threshold and its figures.
    """
    if text_features is None or tuned_features is None:
        raise InputError(
            "dac compares tuned text features with zero-shot ones; pass text_features= and tuned_features=."
        )
    (samples, _, classes), prediction_B = adapted_BVK.shape, adapted_BVK[:, 0].argmax(1)
    zero_shot_KD, tuned_BKD = (t.to(adapted_BVK) for t in (text_features, tuned_features))
    if zero_shot_KD.ndim != 2 or len(zero_shot_KD) != classes or tuned_BKD.shape != (samples, *zero_shot_KD.shape):
        got = tuple(zero_shot_KD.shape), tuple(tuned_BKD.shape)
        raise InputError(
            f"dac needs text_features ({classes}, D) and tuned_features ({samples}, {classes}, D), not {got}."
        )
    nearest = min(whole_number("neighbours", neighbours, 1), classes - 1)
    if nearest == 0:
        return Calibrated.scaled(adapted_BVK, adapted_BVK.new_ones(samples))

    def distances(text_BKD: Tensor) -> Tensor:
        mine_B1D = text_BKD.gather(1, prediction_B[:, None, None].expand(-1, 1, text_BKD.shape[2]))
        away_BK = (text_BKD - mine_B1D).norm(dim=-1).scatter(1, prediction_B[:, None], torch.inf)
        return away_BK.topk(nearest, largest=False).values

    before_Bn, after_Bn = distances(zero_shot_KD.expand_as(tuned_BKD)), distances(tuned_BKD)
    tau_B = (after_Bn.mean(1) - before_Bn.mean(1)).exp()  # 1 / gamma
    return Calibrated.scaled(adapted_BVK, torch.where(after_Bn.amin(1) < threshold, 1.0, tau_B))
