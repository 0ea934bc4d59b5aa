"""The calibrators a second time: one sample, one line of the equations after the other, autograd and torch.optim.

Nothing here is shared with `cots.calibrators`; logits are (V,K) tensors and every function returns
(probabilities (K,), class, tau, Omega).
"""

from __future__ import annotations

import math
from collections import Counter

import torch

from support.compiler import without_compiler


def confidence(logits):
    return torch.softmax(logits, dim=-1).max(dim=-1).values


def entropy(logits):
    # float64, as the plain formula loses the order of nearly certain views in float32
    return torch.distributions.Categorical(logits=logits.double()).entropy().item()


def omega(adapted, views="top_strong", k=None, rho=0.1):
    candidates = {
        "weak": [0],
        "top": list(range(len(adapted))),
        "all_strong": list(range(1, len(adapted))) or [0],
        "top_strong": list(range(1, len(adapted))) or [0],
    }[views]
    ranked = sorted(candidates, key=lambda i: entropy(adapted[i]))
    if views in ("weak", "all_strong"):
        return ranked
    return ranked[: max(1, int(len(candidates) * rho)) if k is None else k]


def log_odds(logits):
    """log p and log(1 - p) of the confidence p of each row."""
    logs = torch.log_softmax(logits, dim=-1)
    top = logs.argmax(dim=-1, keepdim=True)
    return logs.gather(-1, top)[..., 0], torch.logsumexp(logs.scatter(-1, top, -torch.inf), dim=-1)


def objective(tau, adapted, zero_shot, views, loss="l2", huber_delta=0.1):
    scaled, target = adapted[views] / tau, zero_shot[views]
    p, c = confidence(scaled), confidence(target)
    if loss == "l2":
        return ((p - c) ** 2).mean()
    if loss == "l1":
        return (p - c).abs().mean()
    if loss == "huber":
        return torch.nn.functional.huber_loss(p, c, delta=huber_delta)
    (log_p, log_not_p), (log_c, log_not_c) = log_odds(scaled), log_odds(target)
    return (log_c.exp() * (log_c - log_p) + log_not_c.exp() * (log_not_c - log_not_p)).mean()


@without_compiler()
def adam_tau(adapted, zero_shot, views, loss="l2", huber_delta=0.1, steps=50, lr=0.1, t0=1.0):
    theta = torch.tensor(math.log(t0), dtype=adapted.dtype, requires_grad=True)
    optimizer = torch.optim.Adam([theta], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        objective(theta.exp(), adapted, zero_shot, views, loss, huber_delta).backward()
        optimizer.step()
    return theta.exp().item()


def none(adapted, zero_shot):
    p = torch.softmax(adapted[0], dim=0)
    return p, p.argmax().item(), 1.0, []


def ts(adapted, zero_shot, temperature=1.16):
    p = torch.softmax(adapted[0] / temperature, dim=0)
    return p, p.argmax().item(), temperature, []


def sals(adapted, zero_shot):
    z, target = adapted[0], zero_shot[0]
    unit = (z - z.min()) / (z.max() - z.min())
    mapped = unit * (target.max() - target.min()) + target.min()
    p = torch.softmax(mapped, dim=0)
    return p, p.argmax().item(), ((z.max() - z.min()) / (target.max() - target.min())).item(), []


def cor(adapted, zero_shot):
    """The blend towards uniform found by bisection instead of the closed form."""
    p, c = torch.softmax(adapted[0], dim=0), confidence(zero_shot[0])
    best = p.argmax().item()
    others = [j for j in range(len(p)) if j != best]
    share = torch.softmax(adapted[0][others], dim=0)
    low, high = 0.0, 1.0
    if ((1 - c) * share).max() <= c:
        high = 0.0
    for _ in range(60):
        w = (low + high) / 2
        fits = ((1 - c) * ((1 - w) * share + w / len(others))).max() <= c
        low, high = (low, w) if fits else (w, high)
    result = torch.empty_like(p)
    result[best] = c
    result[others] = (1 - c) * ((1 - high) * share + high / len(others))
    return result, best, 1.0, []


def cots(adapted, zero_shot, views="top_strong", k=None, rho=0.1, **fit):
    selected = omega(adapted, views, k, rho)
    tau = adam_tau(adapted, zero_shot, selected, **fit)
    p = torch.softmax(adapted[0] / tau, dim=0)
    return p, p.argmax().item(), tau, selected


def ecots(adapted, zero_shot, alpha, views="top_strong", k=None, rho=0.1, **fit):
    selected = omega(adapted, views, k, rho)
    tau = adam_tau(adapted, zero_shot, selected, **fit)
    return mixed(adapted, tau, selected, alpha)


def ensemble(adapted, zero_shot, alpha, views="top_strong", k=None, rho=0.1):
    return mixed(adapted, 1.0, omega(adapted, views, k, rho), alpha)


def mixed(adapted, tau, selected, alpha):
    scaled = torch.softmax(adapted / tau, dim=1)
    p = alpha * scaled[0] + (1 - alpha) * scaled[selected].mean(0)
    return p, p.argmax().item(), tau, selected


def zero(adapted, zero_shot, rho=0.3):
    ranked = sorted(range(len(adapted)), key=lambda i: entropy(adapted[i]))
    kept = max(1, int(len(adapted) * rho))
    votes = [adapted[i].argmax().item() for i in ranked]
    counts = Counter(votes[:kept])
    leaders = {label for label, count in counts.items() if count == max(counts.values())}
    winner = next(label for label in votes[kept:] + votes[:kept] if label in leaders)
    p = torch.zeros_like(adapted[0])
    for label, count in counts.items():
        p[label] = count / kept
    return p, winner, 1.0, ranked[:kept]


def mean_similarity(features):
    total, count = 0.0, 0
    for i, a in enumerate(features):
        for j, b in enumerate(features):
            if i != j:
                total += torch.nn.functional.cosine_similarity(a, b, dim=0).item()
                count += 1
    return total / count
