"""The objective of Eq. (5): the views in Omega, the confidence as a function of tau, and the loss.

Shape letters: B samples, V views, n views in Omega, K classes, C candidate temperatures.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .._arrays import by_entropy, gaps
from .._errors import InputError, no_effect, one_of, share, whole_number

POOLS = ("top_strong", "top", "all_strong", "weak")
LOSSES = ("l2", "l1", "huber", "kl")


def select(adapted_BVK: Tensor, *, views: str = "top_strong", k: int | None = None, rho: float = 0.1) -> Tensor:
    """Omega (B,n): the views used to fit the temperature, lowest entropy after adaptation first.

    `views`: "top_strong" (the paper), the k strong views with the lowest entropy, k = max(1, int((V-1) * rho));
    "top", the same among all views, k = max(1, int(V * rho)); "all_strong"; "weak", only view 0.
    With V = 1 there is no strong view, and view 0 is used.
    """
    one_of("views", views, POOLS)
    share("rho", rho)
    if views in ("weak", "all_strong"):
        no_effect("k", k, None, f"views={views!r}")
        no_effect("rho", rho, 0.1, f"views={views!r}")
    elif k is not None:
        no_effect("rho", rho, 0.1, f"k={k!r}")
    if views == "weak":
        return torch.zeros(len(adapted_BVK), 1, dtype=torch.long, device=adapted_BVK.device)
    total = adapted_BVK.shape[1]
    first = 0 if views == "top" or total == 1 else 1
    available = total - first
    if views == "all_strong":
        k = available
    elif k is None:
        k = max(1, int(available * rho))
    if whole_number("k", k, 1) > available:
        kind = "views" if first == 0 else "strong views"
        raise InputError(f"k={k} exceeds the {available} available {kind}; use k={available} or less.")
    return (by_entropy(adapted_BVK[:, first:]) + first)[:, :k].contiguous()


class Confidence(NamedTuple):
    """The largest probability p of each view at one temperature, with terms that keep 1 - p exact where p rounds to 1.

    odds = (1 - p) / p = total * exp(-depth); every field is (B,n), or (C,B,n) for several temperatures.
    """

    top: Tensor  # p
    miss: Tensor  # 1 - p
    gap: Tensor  # (z_max - E_p[z]) / (1 - p): the mean gap of the other classes
    odds: Tensor
    total: Tensor
    depth: Tensor
    tau: Tensor

    @property
    def log_top(self) -> Tensor:
        return -self.odds.log1p()

    @property
    def log_miss(self) -> Tensor:
        return self.total.log() - self.depth + self.log_top

    @property
    def change(self) -> Tensor:
        """d p / d theta = -p (z_max - E_p[z]) / tau, with theta = log tau"""
        return -self.top * self.miss * (self.gap / self.tau)


class Curve:
    """Confidence as a function of tau.

    With d_k = z_max - z_k, and the gap d_2 of the runner-up split off so that saturation loses no digits:
    (1 - p) / p = sum over k other than the top class of exp(-d_k / tau)
                = exp(-d_2 / tau) * sum of exp(-(d_k - d_2) / tau).
    """

    def __init__(self, logits_BnK: Tensor) -> None:
        d = gaps(logits_BnK)
        others = d.scatter(-1, d.argmin(-1, keepdim=True), torch.inf)
        self.runner_up = others.amin(-1)
        self.beyond = (others - self.runner_up[..., None]).clamp(max=torch.finfo(d.dtype).max)

    def at(self, tau: Tensor) -> Confidence:
        """`tau` is (B,n) or (B,1); with candidates (C,B,1) the result is (C,B,n)."""
        weights = (self.beyond / -tau[..., None]).exp_()
        total = weights.sum(-1)
        gap = self.runner_up + weights.mul_(self.beyond).sum(-1) / total
        depth = self.runner_up / tau
        odds = total * (-depth).exp()
        top = 1 / (1 + odds)
        return Confidence(top, odds * top, gap, odds, total, depth, tau)


class Loss(NamedTuple):
    """The loss of one view: a value and its slope d loss / d theta, for residual r = p - c and target confidence c."""

    value: Callable[[Tensor, Confidence, Confidence], Tensor]  # (r, p, c)
    slope: Callable[[Tensor, Confidence], Tensor]  # (r, p)


def make_loss(name: str, huber_delta: float) -> Loss:
    def huber(r: Tensor, p: Confidence, c: Confidence) -> Tensor:
        inner = r.abs().clamp(max=huber_delta)
        return inner * (r.abs() - inner / 2)

    def kl(r: Tensor, p: Confidence, c: Confidence) -> Tensor:
        """KL((c, 1 - c) || (p, 1 - p))"""
        return c.top * (c.log_top - p.log_top) + c.miss * (c.log_miss - p.log_miss)

    return {
        "l2": Loss(lambda r, p, c: r.square(), lambda r, p: 2 * r * p.change),
        "l1": Loss(lambda r, p, c: r.abs(), lambda r, p: r.sign() * p.change),
        "huber": Loss(huber, lambda r, p: r.clamp(-huber_delta, huber_delta) * p.change),
        # d KL / d p = r / (p (1 - p)), which cancels against d p / d theta.
        "kl": Loss(kl, lambda r, p: -r * (p.gap / p.tau)),
    }[name]


class Objective:
    """The mean loss over Omega as a function of tau, per sample; Eq. (5) minimises it."""

    def __init__(self, adapted_BnK: Tensor, zero_shot_BnK: Tensor, loss: Loss) -> None:
        self.curve = Curve(adapted_BnK)
        self.target = Curve(zero_shot_BnK).at(adapted_BnK.new_ones(len(adapted_BnK), 1))
        self.loss = loss

    def residual(self, p: Confidence) -> Tensor:
        """p - c, computed from 1 - p and 1 - c where c is large, because they have more digits there."""
        c = self.target
        return torch.where(c.top > 0.5, c.miss - p.miss, p.top - c.top)

    def value(self, tau: Tensor) -> Tensor:
        """tau: (B,), or candidates (C,B)."""
        p = self.curve.at(tau[..., None])
        return self.loss.value(self.residual(p), p, self.target).mean(-1)

    def slope(self, tau: Tensor) -> Tensor:
        """d value / d theta; tau as in `value`."""
        p = self.curve.at(tau[..., None])
        return self.loss.slope(self.residual(p), p).mean(-1)
