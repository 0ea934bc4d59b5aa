"""TS, temperature scaling with a labelled validation set (Guo et al. 2017, https://arxiv.org/abs/1706.04599)."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from .._arrays import as_tensor, check_finite, gaps
from .._errors import InputError, check_positive
from ._api import Calibrated, calibrator

LOWEST, HIGHEST = 0.01, 10.0  # temperatures of the search, for logits with a mean gap of 1
_ROWS = 4096  # rows in float64 at a time: a validation set can be as large as ImageNet's


@calibrator("ts", title="TS", cite="Guo et al., ICML 2017", place=60, one_view=True)
def ts(adapted_BVK: Tensor, zero_shot_BVK: Tensor, *, temperature: float = 1.16) -> Calibrated:
    """TS: p = softmax(z_adapted[0] / temperature), one fixed temperature for all samples.

    1.16 is the usual value for CLIP ViT-B/16 (1.15 for RN50). `fit_temperature` fits it to your own validation set;
    TS is the only calibrator that needs labels.
    """
    check_positive("temperature", temperature)
    return Calibrated.scaled(adapted_BVK, adapted_BVK.new_full((len(adapted_BVK),), float(temperature)))


def fit_temperature(logits: Any, labels: Any) -> float:
    """The temperature with the lowest negative log-likelihood on labelled logits (N,K), for `method="ts"`.

    mean_n -log softmax(z_n / tau)[y_n] is convex in 1 / tau; bracketed Newton steps in float64 find the zero of its
    derivative. The search covers 0.01 to 10, multiplied by the mean gap between the highest logit of a sample and the
    others where that makes the range wider. Without a minimum inside (every sample right, or labels no better than
    chance), the result is where the search ended, with a warning.

    >>> round(fit_temperature([[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [3.0, 0.0]], [0, 0, 0, 1]), 4)
    2.7307
    """
    z_NK = as_tensor(logits, "logits")
    if z_NK.ndim != 2 or 0 in z_NK.shape:
        raise InputError(
            f"logits must be (N, K), one row of class logits per labelled sample, not {tuple(z_NK.shape)}."
        )
    check_finite(z_NK, "logits")
    y_N1 = _labels(labels, z_NK)[:, None]
    gap = _mean_gap(z_NK)
    if gap == 0:
        return 1.0  # equal logits: every temperature gives the same probabilities
    low, high = ends = -math.log(HIGHEST * max(1.0, gap)), -math.log(LOWEST * min(1.0, gap))
    u, curvature, last = 0.0, 0.0, math.inf  # u = log(1 / tau)
    for _ in range(200):
        slope, curvature = _derivatives(z_NK, y_N1, math.exp(u))
        if slope == 0:
            break
        low, high = (u, high) if slope < 0 else (low, u)
        inverse = math.exp(u) - slope / curvature if curvature > 0 else 0.0
        step = math.log(inverse) - u if inverse > 0 else math.inf
        if not (low < u + step < high and abs(step) < abs(last) / 2):
            step = (low + high) / 2 - u
        if abs(step) < 1e-14:
            break
        u, last = u + step, step
    if curvature == 0 or min(u - ends[0], ends[1] - u) < 1e-6:
        reason = "nearly every sample is right" if u > 0 else "the labels are no better explained than by chance"
        warnings.warn(
            f"These logits and labels have no best temperature ({reason}); the search ended at {math.exp(-u):.3g}. "
            "Check the labels, or use more of them.",
            stacklevel=2,
        )
    return math.exp(-u)


def _mean_gap(z_NK: Tensor) -> float:
    """The mean gap between the highest logit of a row and the others; 0 for a single class."""
    total = sum(float(gaps(z.double()).sum()) for z in z_NK.split(_ROWS))
    return total / (len(z_NK) * max(1, z_NK.shape[1] - 1))


def _derivatives(z_NK: Tensor, y_N1: Tensor, inverse: float) -> tuple[float, float]:
    """First and second derivative of the summed NLL with respect to b = 1 / tau: gap of the label - E_p[gap], and
    Var_p[gap]."""
    slope = curvature = 0.0
    for z, y in zip(z_NK.split(_ROWS), y_N1.split(_ROWS), strict=True):
        d = gaps(z.double())
        p = (d * -inverse).softmax(-1)
        mean = (p * d).sum(-1, keepdim=True)
        slope += float((d.gather(1, y) - mean).sum())
        curvature += float((p * (d - mean).square()).sum())
    return slope, curvature


def _labels(labels: Any, z_NK: Tensor) -> Tensor:
    rows, classes = z_NK.shape
    y = torch.as_tensor(labels, device=z_NK.device)
    if y.is_floating_point() or y.dtype == torch.bool or y.shape != (rows,):
        raise InputError(
            f"labels must be {rows} class indices, one per row of logits, not {y.dtype} of shape {tuple(y.shape)}."
        )
    wrong = (y < 0) | (y >= classes)
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise InputError(f"labels[{at}] is {int(y[at])}, but the logits have classes 0 to {classes - 1}.")
    return y.long()
