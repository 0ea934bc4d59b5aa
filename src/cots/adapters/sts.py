"""STS: spectrum-aware steering of the text features (NeurIPS 2025, https://arxiv.org/abs/2511.09809).

Shape letters: B samples, V views, n selected views, K classes, D embedding width, R directions of the subspace.
"""

import math
import warnings

import torch
from torch import Tensor
from torch.nn import functional as F

from .._adam import AdamW
from .._errors import InputError, whole_number
from ..prompts import Task
from ._api import Adapted, adapter
from ._batch import Batch, check_tuning
from ._tuner import untuned

FEW_CLASSES = 20
SMALLEST = 1e-12


@adapter("sts", title="STS", cite="Dafnis and Metaxas, NeurIPS 2025", place=91, tunes_text=True)
def sts(batch: Batch, *, steps: int = 1, lr: float = 5e-3, rho: float = 0.1, directions: int = 0) -> Adapted:
    """One shift for all text features, inside the subspace of their largest singular values.

    t_k' = normalise(t_k + B gamma), where B (D,R) has the first R right singular vectors of the text features (not
    centred); gamma = 0 at the start of every episode, tuned by AdamW on the loss of TPT (Eq. 2), with its gradient in
    closed form. R counts the singular values >= omega(beta) median(s) with beta = min(K,D) / max(K,D) and
    omega(beta) = 0.56 beta^3 - 0.95 beta^2 + 1.82 beta + 1.43, the threshold of Gavish and Donoho (2014);
    `directions` sets another R, a variant. With few classes R is 1, the mean direction, which hardly changes a
    prediction.

    Written from published summaries, because neither the paper's text nor its code was available. Not verified: the
    result is that of view 0, as in TPT. Published with crops and flips only; here, views are those of the dataset. The
    published penalty on |B gamma| is left out, because its gradient is zero at the published single step.
    """
    check_tuning(steps, lr, rho)
    task, before = batch.task, batch.zero_shot
    B_DR = task.constant(("sts", directions), lambda: subspace(task, directions))
    if steps == 0 or len(before) == 0:
        return untuned(batch)
    scale, text_KR = task.logit_scale, task.text_features @ B_DR
    selected = batch.selected(rho)
    at_zero_BnK, near_BnR = selected @ task.text_features.T, selected @ B_DR

    def length(gamma_BR: Tensor) -> Tensor:
        """|t_k + B gamma|, (B,K)"""
        square = 1 + 2 * gamma_BR @ text_KR.T + gamma_BR.square().sum(-1, keepdim=True)
        return square.clamp_min(SMALLEST).sqrt()

    gamma, optimiser = before.new_zeros(len(before), B_DR.shape[1]), AdamW(lr=lr)
    for _ in range(steps):
        length_BK = length(gamma)
        z_BnK = scale * (at_zero_BnK + near_BnR @ gamma[..., None]) / length_BK[:, None]
        w_BnK = entropy_slope(z_BnK)
        towards = scale * ((w_BnK / length_BK[:, None]).sum(-1)[:, None] @ near_BnR)[:, 0]
        radial_BK = (w_BnK * z_BnK).sum(1) / length_BK.square()  # through the normalisation
        gradient = towards - radial_BK @ text_KR - radial_BK.sum(-1, keepdim=True) * gamma
        gamma = optimiser.step(gamma, gradient)

    shifted = before + scale * batch.features @ (gamma @ B_DR.T)[..., None]

    def tuned_text() -> Tensor:
        return F.normalize(task.text_features + (gamma @ B_DR.T)[:, None], dim=-1)

    return Adapted(zero_shot_logits=before, logits=shifted / length(gamma)[:, None], tuned_text=tuned_text)


def entropy_slope(z_BnK: Tensor) -> Tensor:
    """dH/dz of the entropy H of the mean probability m: p (a - p . a) / n with a = -log m."""
    log_p = z_BnK.log_softmax(-1)
    n, p = z_BnK.shape[1], log_p.exp()
    a_B1K = math.log(n) - log_p.logsumexp(1, keepdim=True)
    return p * (a_B1K - (p * a_B1K).sum(-1, keepdim=True)) / n


def subspace(task: Task, directions: int) -> Tensor:
    """The first `directions` right singular vectors of the text features (D,R); 0: those above the threshold."""
    text_KD = task.text_features.double()
    most = min(text_KD.shape)
    if whole_number("directions", directions) > most:
        raise InputError(
            f"directions is {directions}, but the text features have {most} singular values. Use {most} or less, or 0 "
            "for the published threshold."
        )
    _, values, vectors_RD = torch.linalg.svd(text_KD, full_matrices=False)
    if directions == 0:
        if len(text_KD) < FEW_CLASSES:
            warnings.warn(
                f"sts shifts texts along their common directions, of which {len(text_KD)} classes have hardly any: its "
                f"result is close to zero-shot's. Use it with {FEW_CLASSES} classes or more, or set directions.",
                stacklevel=2,
            )
        directions = int((values >= threshold(*text_KD.shape) * values.quantile(0.5)).sum())
    return vectors_RD[:directions].T.to(task.dtype)


def threshold(rows: int, columns: int) -> float:
    """omega(beta): the singular values to keep, in units of their median, when the noise is unknown."""
    beta = min(rows, columns) / max(rows, columns)
    return 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
