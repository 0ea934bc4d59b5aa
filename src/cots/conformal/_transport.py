"""Conf-OT: probabilities of labelled and new samples together, by optimal transport, before conformal sets are fitted.

Silva-Rodriguez, Ben Ayed and Dolz, "Conformal Prediction for Zero-Shot Models", CVPR 2025.
"""

from typing import Any

import numpy as np
import torch

from .._arrays import as_tensor, check_finite, like
from .._checks import whole_number
from .._errors import InputError
from ..metrics._inputs import class_labels


def conf_ot(logits: Any, new_logits: Any, labels: Any, iterations: int = 3) -> tuple[Any, Any]:
    """Probabilities of the labelled samples and of the new ones, moved so that the classes get their known shares.

    logits (N,K), new_logits (M,K): zero-shot logits, cosines times the logit scale. The plan exp(logits) over all N + M
    samples is scaled in turn (Sinkhorn) to the class shares of `labels` and to equal weight per sample; rows are then
    probabilities. Fit on the first result with `labels`, apply to the second:

        p, p_new = conf_ot(logits, new_logits, labels)
        sets = fit(p, labels).sets(p_new)

    Labelled and new samples pass through one symmetric step, and only the class shares depend on the labels, so the
    coverage holds up to the sampling error of these shares.
    """
    whole_number("iterations", iterations, 1)
    old_NK, new_MK = as_tensor(logits, "logits").double(), as_tensor(new_logits, "new_logits").double()
    if old_NK.ndim != 2 or new_MK.ndim != 2 or old_NK.shape[1] != new_MK.shape[1]:
        raise InputError(
            f"logits {tuple(old_NK.shape)} and new_logits {tuple(new_MK.shape)} must be two-dimensional, "
            "with the same classes."
        )
    check_finite(old_NK, "logits")
    check_finite(new_MK, "new_logits")
    truth = class_labels(labels, old_NK.shape[1])
    if len(truth) != len(old_NK):
        raise InputError(
            f"labels has {len(truth)} values; it must have one for each of the {len(old_NK)} rows of logits."
        )
    # One sample more of each class, so that a class without labels keeps a place.
    counts_K = torch.from_numpy(np.bincount(truth, minlength=old_NK.shape[1])).double() + 1
    log_share_K = (counts_K / counts_K.sum()).log().to(old_NK.device)
    plan_SK = torch.cat([old_NK, new_MK.to(old_NK.device)])
    for _ in range(iterations):
        plan_SK = plan_SK - plan_SK.logsumexp(0) + log_share_K
        plan_SK = plan_SK.log_softmax(1)
    found = plan_SK.exp()
    return like(found[: len(old_NK)], logits), like(found[len(old_NK) :], logits)
