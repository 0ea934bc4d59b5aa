"""DPE: dual prototype evolving (Zhang et al., NeurIPS 2024, https://arxiv.org/abs/2410.12790)."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from .._adam import AdamW
from .._arrays import entropy
from ..prompts import Task
from ._api import Adapted, adapter
from ._batch import Batch, check_tuning
from ._stream import State, run_stream, stack_logits
from .tda import check_query, keep_lowest, mixed_entropy, query

SHOTS, CONFIDENT = 3, 0.1  # entries per class; H / log2 K below which the text prototypes evolve
TEMPERATURE, EPS = 0.01, 1e-3  # of the alignment loss; of AdamW
SMALLEST = 1e-12


@dataclass(frozen=True, kw_only=True)
class DPEState(State):
    """Text prototypes, the number of their updates, and per class the features of lowest entropy (inf: empty)."""

    text: Tensor  # (K, D)
    moves: Tensor  # (1,)
    features: Tensor  # (K, 3, D)
    entropy: Tensor  # (K, 3)

    @classmethod
    def empty(cls, task: Task) -> Self:
        """Text prototypes start at the text features."""
        K, D = task.text_features.shape
        new = task.text_features.new_zeros
        caches = {"features": new(K, SHOTS, D), "entropy": new(K, SHOTS) + math.inf}
        return cls(text=task.text_features.clone(), moves=new(1), **caches)


@adapter(
    "dpe", title="DPE", cite="Zhang et al., NeurIPS 2024", place=114, tunes_text=True, one_view={"cache_from": "weak"}
)
def dpe(
    batch: Batch,
    *,
    state: DPEState | None = None,
    positive: tuple[float, float] = (6.0, 5.0),
    lr: float = 6e-4,
    weight: float = 0.5,
    cache_from: str = "weak",
    rho: float = 0.1,
) -> Adapted:
    """Text and visual prototypes that shift with each sample and evolve with the stream.

    f, l: feature and logits s f . T of view 0 (cache_from="weak") or the mean of the rho*V confident views. f enters
    the cache of its class (3 of lowest entropy), whose mean is the visual prototype P_k. Residuals of T and P, zero at
    first, take one step of AdamW (eps 1e-3) on H(softmax q) + weight * InfoNCE(P, T), both normalised,
        q_k = l_k + a exp(-b (1 - f . P_k)),  (a, b) = `positive`, for the classes that have a prototype,
    and the logits of every view are z = s x . T' + a exp(-b (1 - x . P')). If H(softmax z_0) / log2 K < 0.1 (H in
    nats), T <- (n T + T') / (n + 1), with n the number of such samples. InfoNCE: image to text, temperature 0.01.

    Settings by dataset follow the authors' code (zhangce01/DPE-CLIP, fecae5a), with ImageNet's as defaults; it selects
    views only on ImageNet and its variants. Their code runs in float16, which makes steps up to 5 times longer, and
    averages re-selected views on ImageNet-A. The paper updates the cache after learning and has a symmetric alignment
    loss (not verified); this implementation follows the code. Their text features average a template with CuPL's
    sentences of a language model; those of one template do not reach their accuracy (`descriptions=` takes yours).
    """
    check_query(cache_from, rho)
    check_tuning(1, lr, rho, weight)
    task, before = batch.task, batch.zero_shot
    now = DPEState.resumed(state, task) or DPEState.empty(task)
    (strength, sharpness), scale, K = positive, task.logit_scale, before.shape[-1]

    def step(x_VD: Tensor, text: Tensor, moves: Tensor, features: Tensor, lowest: Tensor) -> tuple[Tensor, ...]:
        """Logits and text prototypes of a sample, then the state after it; `features` and `lowest` change in place."""
        asked = query(x_VD[None], scale * x_VD[None] @ F.normalize(text, dim=-1).T, cache_from, rho)
        (f,), k_1, (H,), _ = asked
        keep_lowest(lowest, k_1, mixed_entropy(H, K), (features, f))
        filled = lowest.isfinite()
        visual, present = features.sum(1) / filled.sum(1, keepdim=True).clamp_min(1), filled.any(1)
        both = torch.stack([text, visual])
        slope = gradient(both, present, f, scale, (strength, sharpness), weight)
        residuals = AdamW(lr=lr, eps=EPS).step(torch.zeros_like(slope), slope)
        T, P = F.normalize(both + residuals, dim=-1)
        z_VK = scale * x_VD @ T.T + strength * (-sharpness * (1 - x_VD @ P.T)).exp() * present
        sure_1 = mixed_entropy(entropy(z_VK[:1]), K) < CONFIDENT
        count = moves + 1
        text = torch.where(sure_1, (text * count + T) / (count + 1), text)
        return z_VK, T, text, torch.where(sure_1, count, moves), features, lowest

    outputs, after = run_stream(task, step, now, batch.features)

    def tuned() -> Tensor:
        return torch.stack([T for _, T in outputs]) if outputs else now.text.new_empty(0, *now.text.shape)

    return Adapted(zero_shot_logits=before, logits=stack_logits(outputs, before), state=after, tuned_text=tuned)


def gradient(
    both_2KD: Tensor, present_K: Tensor, f: Tensor, scale: float, positive: tuple[float, float], weight: float
) -> Tensor:
    """Gradient `(2,K,D)` of the loss with respect to the residuals of text and visual prototypes, at zero."""
    length = both_2KD.norm(dim=-1, keepdim=True).clamp_min(SMALLEST)
    T, P = unit = both_2KD / length
    near_K = positive[0] * (-positive[1] * (1 - P @ f)).exp() * present_K
    log_p = (scale * (T @ f) + near_K).log_softmax(-1)
    p = log_p.exp()
    dq = p * ((p * log_p).sum() - log_p)  # dH/dq_k = -p_k (log p_k + H)
    match = (P @ T.T / TEMPERATURE).masked_fill(~present_K, -math.inf).softmax(-1)
    match.diagonal().sub_(1)
    match = match * (present_K * (weight / TEMPERATURE) / present_K.sum())[:, None]
    by_unit = torch.outer(torch.cat([scale * dq, positive[1] * dq * near_K]), f).view_as(unit)
    by_unit = by_unit + torch.stack([match.T @ P, match @ T])
    return (by_unit - (by_unit * unit).sum(-1, keepdim=True) * unit) / length  # through the normalisation
