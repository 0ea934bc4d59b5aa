"""ReTA: reliable test-time adaptation (Liang et al., ACM MM 2025, https://arxiv.org/abs/2507.09500).

Shape letters: V views, n selected views, K classes, D embedding width; 3 texts per class.
"""

import functools
import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from .._adam import AdamW
from .._arrays import by_entropy, entropy
from .._errors import InputError, check_one_of
from ..prompts import Task
from ._api import Adapted, adapter
from ._batch import Batch, check_tuning
from ._stream import State, run_stream, stack_logits
from .dpe import CONFIDENT, EPS, SHOTS, SMALLEST, TEMPERATURE
from .onzeta import log_mixture
from .tda import keep_lowest, mixed_entropy, query

TEXTS, DIRECTIONS = 3, 64  # texts per class; dimensions of the subspace in which they vote
ALL_TEXTS = 0.5  # reliability below which the alignment loss sees the mean of a class's texts


@dataclass(frozen=True, kw_only=True)
class ReTAState(State):
    """Texts of each class, the number of their updates, and per class the features of lowest reweighted entropy."""

    text: Tensor  # (K, 3, D)
    moves: Tensor  # (1,)
    features: Tensor  # (K, 3, D)
    entropy: Tensor  # (K, 3), inf where empty

    @classmethod
    def empty(cls, task: Task) -> Self:
        """The three texts of each class, and empty caches."""
        text = nested_means(task)
        new = text.new_zeros
        caches = {"features": torch.zeros_like(text), "entropy": new(len(text), SHOTS) + math.inf}
        return cls(text=text.clone(), moves=new(1), **caches)


@adapter("reta", title="ReTA", cite="Liang et al., ACM MM 2025", place=116, tunes_text=True)
def reta(
    batch: Batch,
    *,
    state: ReTAState | None = None,
    positive: tuple[float, float] = (6.0, 5.0),
    lambda_: float = 0.5,
    reliability: float = 1.0,
    lr: float = 6e-4,
    weight: float = 0.5,
    zeta: float = 0.05,
    cache_from: str = "weak",
    rho: float = 0.1,
) -> Adapted:
    """DPE's cache and evolving texts, with entropies weighted by agreement and classes as Gaussians of texts.

    A class needs three sentences or more (templates, descriptions); its texts T_kr are the normalised means of a third,
    two thirds and all of them, least typical first. With mu_k = mean_r T_kr, c = T - mu, s the logit scale, f as in
    `dpe`, and (a, b) = `positive`:
        y = arg max f . T_3, h = H / log2 K (H in nats); votes arg max_k x~ . T_kr of f on 64 directions, x~;
        w = reliability ln(3 / count * g), count of the commonest vote, g = 2 if it is not y, else 1;
        f enters the cache of y (3 per class) with the key h (1 + w); P_k is the normalised mean of its entries.
    The texts take one step of AdamW (eps 1e-3) on H(softmax q) + weight * InfoNCE(P, T_3) + [w = 0] zeta * CE(y),
        q = s f . T_3 + a exp(-b (1 - f . P)),
    CE on the rho*V views of lowest entropy under s x . mu_k + s^2 / 2 sum_d x_d^2 sum_r (c_yrd - c_krd)^2 / 4. Then
        p = lambda softmax(s x . T_3' + a exp(-b (1 - x . P))) + (1 - lambda) m,
    m the mean of softmax(s x_v . mu' + a exp(-b (1 - x_v . P))) over its rho*V views of lowest entropy; logits are
    log p. If H of the first term / log2 K < 0.1, the texts move as in `dpe`. Published for view 0; other views replace
    x in the first term.

    Settings by dataset follow the authors' code (Evelyn1ywliang/ReTA, b69a33c), which runs in float16, with ImageNet's
    as defaults. Choices of cots: thirds are rounded down; the directions are those of the texts at the start, not of
    the current ones; of three different votes the first counts; the gradient flows through c; with reliability < 0.5,
    where InfoNCE sees mu, mu is not normalised.
    """
    check_one_of("cache_from", cache_from, ("weak", "confident"))
    check_tuning(1, lr, rho, weight)
    if not 0 <= lambda_ <= 1:
        raise InputError(f"lambda_ must be in [0, 1], not {lambda_!r}.")
    task, before = batch.task, batch.zero_shot
    now = ReTAState.resumed(state, task) or ReTAState.empty(task)
    given = _Settings(
        positive=positive, lambda_=lambda_, reliability=reliability, lr=lr, weight=weight, zeta=zeta,
        cache_from=cache_from, rho=rho,
    )  # fmt: skip
    outputs, after = run_stream(task, functools.partial(advance, task, given), now, batch.features)

    def tuned() -> Tensor:
        return torch.stack([T for _, T in outputs]) if outputs else now.text.new_empty(0, *now.text[:, -1].shape)

    return Adapted(zero_shot_logits=before, logits=stack_logits(outputs, before), state=after, tuned_text=tuned)


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """Those of `reta`, whose values are checked."""

    positive: tuple[float, float]
    lambda_: float
    reliability: float
    lr: float
    weight: float
    zeta: float
    cache_from: str
    rho: float


def advance(
    task: Task, given: _Settings, x_VD: Tensor, text: Tensor, moves: Tensor, features: Tensor, lowest: Tensor
) -> tuple[Tensor, ...]:
    """Logits and texts of a sample, then the state after it; `features` and `lowest` change in place."""
    K, scale, n = len(text), task.logit_scale, max(1, int(given.rho * len(x_VD)))
    T_K3D, basis_DS = F.normalize(text, dim=-1), directions(task)
    (f,), y_1, (H,), _ = query(x_VD[None], scale * x_VD[None] @ T_K3D[:, -1].T, given.cache_from, given.rho)
    w = given.reliability * disagreement(f @ basis_DS, T_K3D @ basis_DS, y_1)
    keep_lowest(lowest, y_1, mixed_entropy(H, K) * (1 + w), (features, f))
    present, P_KD = lowest.isfinite().any(1), F.normalize(features.sum(1), dim=-1)
    near = functools.partial(cache_scores, P_KD=P_KD, present_K=present, positive=given.positive)

    by_text = given.zeta * (w == 0) * gaussian_gradient(T_K3D, x_VD, y_1, scale, n)
    by_text = by_text + given.weight * alignment_gradient(T_K3D, P_KD, present, given.reliability < ALL_TEXTS)
    by_text[:, -1] += torch.outer(scale * entropy_slope(scale * f @ T_K3D[:, -1].T + near(f)), f)
    length = text.norm(dim=-1, keepdim=True).clamp_min(SMALLEST)
    gradient = (by_text - (by_text * T_K3D).sum(-1, keepdim=True) * T_K3D) / length  # through the normalisation
    residual = AdamW(lr=given.lr, eps=EPS).step(torch.zeros_like(text), gradient)
    T_K3D = F.normalize(text + residual, dim=-1)

    first_VK = scale * x_VD @ T_K3D[:, -1].T + near(x_VD)
    log_m = log_mean(scale * x_VD @ T_K3D.mean(1).T + near(x_VD), n)
    logits_VK = log_mixture(first_VK.log_softmax(-1), H.new_full((), given.lambda_), log_m)
    sure_1 = mixed_entropy(entropy(first_VK[:1]), K) < CONFIDENT
    text = torch.where(sure_1, (text * (moves + 1) + T_K3D) / (moves + 2), text)
    return logits_VK, T_K3D[:, -1], text, moves + sure_1, features, lowest


def nested_means(task: Task) -> Tensor:
    """Three texts per class (K,3,D): normalised means of a third, two thirds and all sentences, least typical first."""
    return task.constant(("reta", "texts"), lambda: _nested_means(task))


def _nested_means(task: Task) -> Tensor:
    features_SD, class_S = task.every_text()
    texts = []
    for k, name in enumerate(task.classes):
        own = features_SD[class_S == k]
        if len(own) < TEXTS:
            raise InputError(
                f"reta needs at least {TEXTS} sentences per class, but {name[:60]!r} has {len(own)}. Pass several "
                "templates, or descriptions (--descriptions FILE)."
            )
        own = own[(own @ own.T).sum(1).argsort(stable=True)]
        texts.append(torch.stack([own[: r * len(own) // TEXTS].mean(0) for r in range(1, TEXTS + 1)]))
    return F.normalize(torch.stack(texts), dim=-1)


def directions(task: Task) -> Tensor:
    """The first 64 right singular vectors (D,S) of the classes' full means."""

    def compute() -> Tensor:
        _, _, vectors = torch.linalg.svd(nested_means(task)[:, -1].double(), full_matrices=False)
        return vectors[:DIRECTIONS].T.to(task.dtype).contiguous()

    return task.constant(("reta", "directions"), compute)


def disagreement(f: Tensor, text_K3S: Tensor, y_1: Tensor) -> Tensor:
    """ln(3 / count * g) of the texts' votes for f: 0 if all vote for y."""
    vote_3 = (text_K3S @ f).argmax(0)
    count_3 = (vote_3 == vote_3[:, None]).sum(1)
    commonest_1 = vote_3.index_select(0, count_3.argmax(0, keepdim=True))
    doubt = 1 + (commonest_1 != y_1)[0].to(f.dtype)
    return (doubt * TEXTS / count_3.amax()).log()


def cache_scores(x: Tensor, P_KD: Tensor, present_K: Tensor, positive: tuple[float, float]) -> Tensor:
    """a exp(-b (1 - x . P)) for the classes that have a prototype."""
    strength, sharpness = positive
    return strength * (-sharpness * (1 - x @ P_KD.T)).exp() * present_K


def log_mean(z_VK: Tensor, n: int) -> Tensor:
    """Log of the mean probability (K,) of the n views of lowest entropy."""
    chosen_nK = z_VK[by_entropy(z_VK)[:n]]
    return chosen_nK.log_softmax(-1).logsumexp(0) - math.log(n)


def entropy_slope(q_K: Tensor) -> Tensor:
    """dH/dq_k = -p_k (log p_k + H)"""
    log_p = q_K.log_softmax(-1)
    p = log_p.exp()
    return p * ((p * log_p).sum() - log_p)


def alignment_gradient(T_K3D: Tensor, P_KD: Tensor, present_K: Tensor, all_texts: bool) -> Tensor:
    """Gradient of InfoNCE from the prototypes to the last texts or to the mean of all, of classes that have one."""
    text_KD = T_K3D.mean(1) if all_texts else T_K3D[:, -1]
    match = (P_KD @ text_KD.T / TEMPERATURE).masked_fill(~present_K, -math.inf).softmax(-1)
    match.diagonal().sub_(1)
    match = match * (present_K / (TEMPERATURE * present_K.sum()))[:, None]
    by_text = torch.zeros_like(T_K3D)
    if all_texts:
        return by_text + (match.T @ P_KD / TEXTS)[:, None]
    by_text[:, -1] = match.T @ P_KD
    return by_text


def gaussian_gradient(T_K3D: Tensor, x_VD: Tensor, y_1: Tensor, scale: float, n: int) -> Tensor:
    """Gradient of CE(y) under Gaussian classes, on the n views of lowest entropy."""
    mu_KD = T_K3D.mean(1)
    c_K3D = T_K3D - mu_KD[:, None]
    apart_K3D = c_K3D.index_select(0, y_1) - c_K3D
    z_VK = scale * x_VD @ mu_KD.T + scale**2 / 2 * x_VD.square() @ (apart_K3D.square().sum(1) / (TEXTS + 1)).T
    chosen = by_entropy(z_VK)[:n]
    x_nD, wrong_nK = x_VD[chosen], z_VK[chosen].softmax(-1)
    wrong_nK = wrong_nK.index_add(1, y_1, -wrong_nK.new_ones(n, 1)) / n  # dCE/dz
    by_mean = scale * wrong_nK.T @ x_nD / TEXTS
    by_apart = scale**2 / (TEXTS + 1) * (wrong_nK.T @ x_nD.square())[:, None] * apart_K3D
    by_c = (-by_apart).index_add(0, y_1, by_apart.sum(0, keepdim=True))
    return by_mean[:, None] + by_c - by_c.mean(1, keepdim=True)
