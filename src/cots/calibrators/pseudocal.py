"""PseudoCal: temperature scaling on mixed, pseudo-labelled pairs (Hu et al., ICML 2024, arXiv:2307.07489)."""

from typing import Any

import torch
from torch import Tensor

from .._arrays import as_tensor, check_finite
from .._errors import InputError, whole_number
from ._api import Calibrated, calibrator
from .ts import fit_temperature, ts

SHARE = 0.65  # weight of the first sample of a pair


@calibrator("pseudocal", title="PseudoCal", cite="Hu et al., ICML 2024", place=62, one_view=True)
def pseudocal(adapted_BVK: Tensor, zero_shot_BVK: Tensor, *, temperature: float | None = None) -> Calibrated:
    """PseudoCal: TS with a temperature fitted to mixed pairs of samples, without labels.

    p = softmax(z_adapted[0] / temperature), with the temperature of `fit_pseudo_temperature` on the logits of the whole
    set. It depends on the set, not on a sample or a batch, so it has no default.
    """
    if temperature is None:
        raise InputError(
            "pseudocal needs one temperature for the whole set of samples: pass temperature=, from "
            "cots.calibrators.fit_pseudo_temperature(logits) on the adapted logits of view 0."
        )
    return ts(adapted_BVK, zero_shot_BVK, temperature=temperature)


def fit_pseudo_temperature(logits: Any, features: Any = None, *, repeats: int = 5, seed: int = 0) -> float:
    """The temperature for `method="pseudocal"` from unlabelled logits (N,K) of the adapted model.

    Samples are paired (a, b) by random permutations; pairs with the same prediction are dropped. The mixture of a pair
    is 0.65 a + 0.35 b, labelled with the prediction of a; the temperature minimises the negative log-likelihood.

    A variant of PseudoCal, which mixes pixels. Here logits are mixed; given the unit features (N,D), they are divided
    by the length of the mixed features, which is exact for mixed and renormalised features under one set of text
    features. 0.65 follows the authors' code (LHXXHB/PseudoCal, ea45ce6), which repeats five times; here the pairs of
    all repeats are fitted together. Not verified: whether the paper's tables use these hard labels or soft ones.
    """
    z_NK = as_tensor(logits, "logits")
    if z_NK.ndim != 2 or len(z_NK) < 2:
        raise InputError(f"logits must be (N, K) with at least two samples, not {tuple(z_NK.shape)}.")
    check_finite(z_NK, "logits")
    draws = torch.Generator().manual_seed(whole_number("seed", seed))
    count = whole_number("repeats", repeats, 1)
    b = torch.cat([torch.randperm(len(z_NK), generator=draws) for _ in range(count)]).to(z_NK.device)
    a = torch.arange(len(z_NK), device=z_NK.device).repeat(count)
    answers = z_NK.argmax(1)
    differ = answers[a] != answers[b]
    if not bool(differ.any()):
        raise InputError(
            "All samples have the same prediction, so there is no pair to mix; fit on a set with several classes."
        )
    a, b = a[differ], b[differ]
    mixed = SHARE * z_NK[a] + (1 - SHARE) * z_NK[b]
    if features is not None:
        x_ND = as_tensor(features, "features").to(z_NK.device)
        if x_ND.ndim != 2 or len(x_ND) != len(z_NK):
            raise InputError(f"features must be (N, D) for {len(z_NK)} samples, not {tuple(x_ND.shape)}.")
        mixed = mixed / (SHARE * x_ND[a] + (1 - SHARE) * x_ND[b]).norm(dim=1, keepdim=True)
    return fit_temperature(mixed, answers[a])
