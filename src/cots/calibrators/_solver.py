"""The temperature of Eq. (5): where the adapted confidences of the views in Omega are nearest their zero-shot ones.

Two solvers. `adam` is the paper's: 50 steps on theta = log tau, last iterate, batched here with the gradient in closed
form. `exact` searches |log tau| <= 12 in float64 (50 Adam steps of rate 0.1 cannot get further than 6.3) and returns
the best point seen: never worse than tau = 1, nor than adam's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _kernels
from .._errors import InputError
from .._numeric import gaps
from ._api import SOLVERS
from ._settings import choice, no_effect, positive, whole

LOSSES = ("l2", "l1", "huber", "kl")
_BOUND = 12.0  # of |log tau| in the exact solver
_CELL = 0.1  # of its grid; a confidence needs a change of log tau several times as large to cross from low to high
_BASINS = 3
_ROOT_BITS, _SLOPE_BITS = 36, 32  # halvings of an interval
_AT_ONCE = 2**22  # numbers that the exact solver holds for the temperatures that it compares
_OVERFLOW = 30.0  # of |log tau| in adam: beyond it float32 cannot hold gap / tau; no paper setting comes near


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How the temperature is fitted; see `cots` for the meaning of each."""

    solver: str = "adam"
    loss: str = "l2"
    huber_delta: float = 0.1
    steps: int = 50
    lr: float = 0.1
    t0: float = 1.0

    def __post_init__(self) -> None:
        choice("solver", self.solver, SOLVERS)
        choice("loss", self.loss, LOSSES)
        whole("steps", self.steps, 0)
        for name in ("huber_delta", "lr", "t0"):
            positive(name, getattr(self, name))
        if self.loss != "huber":
            no_effect("huber_delta", self.huber_delta, 0.1, f"loss={self.loss!r}")
        elif self.huber_delta >= 1:
            raise InputError(
                f"huber_delta must be below 1, not {self.huber_delta!r}: confidences differ by less than 1, "
                "so a wider Huber loss is half the l2 loss; use loss='l2'."
            )
        if self.solver == "exact":
            for name, default in (("steps", 50), ("lr", 0.1), ("t0", 1.0)):
                no_effect(name, getattr(self, name), default, "solver='exact'")


def fit_tau(adapted_BnK: Tensor, zero_shot_BnK: Tensor, fit: Fit) -> Tensor:
    """tau (B,) of Eq. (5) on the logits of the views in Omega."""
    samples, _, classes = adapted_BnK.shape
    if classes == 1 or samples == 0:  # one class: the confidence is 1 at every temperature
        return adapted_BnK.new_full((samples,), fit.t0)
    if fit.solver == "adam":
        return _adam(_Objective(adapted_BnK, zero_shot_BnK, fit), fit)
    return _exact(adapted_BnK, zero_shot_BnK, fit)


class _Confidence(NamedTuple):
    """The largest probability p at one temperature, and what its derivative and logarithms are made of; each (B,n)."""

    top: Tensor  # p
    miss: Tensor  # 1 - p, exact where p rounds to 1
    gap: Tensor  # (z_max - E_p[z]) / (1 - p): the mean gap of the other classes
    odds: Tensor  # (1 - p) / p = total * exp(-depth)
    total: Tensor
    depth: Tensor

    @property
    def log_top(self) -> Tensor:
        return -self.odds.log1p()

    @property
    def log_miss(self) -> Tensor:
        return self.total.log() - self.depth + self.log_top


class _Curve:
    """Confidence as a function of tau, with the gap to the runner-up split off so that saturation loses nothing."""

    def __init__(self, logits_BnK: Tensor) -> None:
        d = gaps(logits_BnK)
        top = d.argmin(-1, keepdim=True)
        others = d.scatter(-1, top, torch.inf)
        self.runner_up = others.amin(-1)
        self.beyond = (others - self.runner_up[..., None]).clamp(max=torch.finfo(d.dtype).max)

    def at(self, tau: Tensor) -> _Confidence:
        """`tau` is (B,n) or (B,1); with candidates (C,B,1) the result is (C,B,n)."""
        weights = (self.beyond / -tau[..., None]).exp_()
        total = weights.sum(-1)
        gap = self.runner_up + weights.mul_(self.beyond).sum(-1) / total
        depth = self.runner_up / tau
        odds = total * (-depth).exp()
        top = 1 / (1 + odds)
        return _Confidence(top, odds * top, gap, odds, total, depth)


class _Objective:
    """The loss of Eq. (5) and its derivative with respect to theta = log tau, for each sample."""

    def __init__(self, adapted_BnK: Tensor, zero_shot_BnK: Tensor, fit: Fit) -> None:
        self.curve = _Curve(adapted_BnK)
        self.target = _Curve(zero_shot_BnK).at(adapted_BnK.new_ones(len(adapted_BnK), 1))
        self.fit = fit

    def kernels(self) -> _kernels.SquaredLoss | None:
        """The same on a GPU by few launches, where there are kernels for it."""
        curve, target = self.curve, self.target
        if self.fit.loss != "l2" or curve.beyond.dtype != torch.float64 or not _kernels.usable(curve.beyond):
            return None
        return _kernels.SquaredLoss(curve.beyond, curve.runner_up, target.top, target.miss)

    def residual(self, confidence: _Confidence) -> Tensor:
        """Adapted minus zero-shot confidence, taken on the side (p or 1 - p) that is small and so precise."""
        return torch.where(self.target.top > 0.5, self.target.miss - confidence.miss, confidence.top - self.target.top)

    def loss(self, tau: Tensor) -> Tensor:
        """tau: (B,), or candidates (C,B)."""
        confidence, c = self.curve.at(tau[..., None]), self.target
        r = self.residual(confidence)
        if self.fit.loss == "l2":
            loss = r.square()
        elif self.fit.loss == "l1":
            loss = r.abs()
        elif self.fit.loss == "huber":
            inner = r.abs().clamp(max=self.fit.huber_delta)
            loss = inner * (r.abs() - inner / 2)
        else:  # KL((c, 1 - c) || (p, 1 - p))
            loss = c.top * (c.log_top - confidence.log_top) + c.miss * (c.log_miss - confidence.log_miss)
        return loss.mean(-1)

    def slope(self, tau: Tensor) -> Tensor:
        """d loss / d theta, from d p / d theta = -(p / tau) * (z_max - E_p[z]); tau as in `loss`."""
        tau = tau[..., None]
        confidence = self.curve.at(tau)
        r = self.residual(confidence)
        change = -confidence.top * confidence.miss * (confidence.gap / tau)
        if self.fit.loss == "l2":
            slope = 2 * r * change
        elif self.fit.loss == "l1":
            slope = r.sign() * change
        elif self.fit.loss == "huber":
            slope = r.clamp(-self.fit.huber_delta, self.fit.huber_delta) * change
        else:  # d KL / d p = r / (p (1 - p)), which cancels against d p / d theta
            slope = -r * (confidence.gap / tau)
        return slope.mean(-1)


def _adam(objective: _Objective, fit: Fit, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Tensor:
    """Adam (Kingma & Ba 2015) on theta = log tau, every sample with a state of its own; the last iterate."""
    start = min(_OVERFLOW, max(-_OVERFLOW, math.log(fit.t0)))
    curve, target = objective.curve, objective.target
    if fit.loss == "l2" and curve.beyond.dtype == torch.float32 and _kernels.usable(curve.beyond):
        return _kernels.adam(
            curve.beyond, curve.runner_up, target.top, target.miss, steps=fit.steps, lr=fit.lr, start=start
        )
    theta = objective.target.top.new_full((len(objective.target.top),), start)
    first, second = torch.zeros_like(theta), torch.zeros_like(theta)
    for step in range(1, fit.steps + 1):
        slope = objective.slope(theta.exp())
        first = first * beta1 + slope * (1 - beta1)
        second = second * beta2 + slope * slope * (1 - beta2)
        scale = (second.sqrt() / math.sqrt(1 - beta2**step)) + eps
        theta = (theta - first / scale * (fit.lr / (1 - beta1**step))).clamp(-_OVERFLOW, _OVERFLOW)
    return theta.exp()


def _exact(adapted_BnK: Tensor, zero_shot_BnK: Tensor, fit: Fit) -> Tensor:
    """The best tau with |log tau| <= 12; of equally good ones the nearest to 1.

    Each view's confidence falls as tau grows, so its term of the loss falls up to a root and rises beyond it: the
    minimum lies between the lowest root and the highest. There: a grid, the roots themselves (the kinks of the l1
    loss), tau = 1 and adam's answer; then bisection of the slope around the best local minima.
    """
    objective = _Objective(adapted_BnK.double(), zero_shot_BnK.double(), fit)
    adam_B = _adam(_Objective(adapted_BnK, zero_shot_BnK, fit), Fit(loss=fit.loss, huber_delta=fit.huber_delta))
    roots_Bn = _roots(objective)
    theta_BC = torch.cat([_grid(roots_Bn), roots_Bn, torch.zeros_like(roots_Bn[:, :1])], 1)
    found_BC = _refined(objective, torch.cat([theta_BC, adam_B.double().log()[:, None]], 1))
    # Rounded to the caller's precision before the last comparison, so that what is returned is what was compared.
    tau_BC = torch.cat([torch.ones_like(adam_B)[:, None], adam_B[:, None], found_BC.exp().to(adam_B.dtype)], 1)
    theta_BC = tau_BC.double().log()
    return tau_BC.gather(1, _best(theta_BC, _losses(objective, tau_BC), 1))[:, 0]


def _roots(objective: _Objective) -> Tensor:
    """theta (B,n), nearest to 0, where each view's confidence reaches its target or else comes as near as it can."""
    if (kernels := objective.kernels()) is not None:
        return kernels.roots(_BOUND, _ROOT_BITS)
    near = torch.zeros_like(objective.target.top)
    sign = objective.residual(objective.curve.at(near.exp())).sign()  # too confident: a larger tau is needed
    far = _BOUND * sign
    within = (objective.residual(objective.curve.at(far.exp())) * sign).clamp(min=0)

    def reached(theta: Tensor) -> Tensor:
        return objective.residual(objective.curve.at(theta.exp())) * sign <= within

    return _narrowed(near, far, reached, _ROOT_BITS, 3)[1]


def _grid(roots_Bn: Tensor) -> Tensor:
    """Grid points (B,C) from just below the lowest root to just above the highest, infinite where a sample needs fewer.

    All are points of one fixed grid, so that no sample's answer depends on the batch it is in.
    """
    first_B, last_B = (roots_Bn.amin(1) / _CELL).floor() - 1, (roots_Bn.amax(1) / _CELL).ceil() + 1
    cells = int((last_B - first_B).max())
    index_BC = first_B[:, None] + torch.arange(cells + 1, device=roots_Bn.device)
    grid_BC = (index_BC * _CELL).clamp(-_BOUND, _BOUND)
    return torch.where(index_BC > last_B[:, None], torch.inf, grid_BC)


def _refined(objective: _Objective, theta_BC: Tensor) -> Tensor:
    """Of candidates: the best one, the best local minima, and what bisection of the slope makes of these."""
    theta_BC = theta_BC.sort(dim=1).values
    loss_BC = _losses(objective, theta_BC.clamp(max=_BOUND).exp()).where(theta_BC < torch.inf, torch.inf)
    best_B1 = theta_BC.gather(1, _best(theta_BC, loss_BC, 1))
    wall_B1 = torch.full_like(best_B1, torch.inf)
    # One point of a plateau is enough, hence < on one side and <= on the other.
    falls_before = loss_BC < torch.cat([wall_B1, loss_BC[:, :-1]], 1)
    rises_after = loss_BC <= torch.cat([loss_BC[:, 1:], wall_B1], 1)
    valley_BC = torch.where(falls_before & rises_after, loss_BC, torch.inf)
    chosen = _best(theta_BC, valley_BC, _BASINS)
    start = torch.where(valley_BC.gather(1, chosen) < torch.inf, theta_BC.gather(1, chosen), best_B1)
    return torch.cat([best_B1, start, _bisected(objective, start.T).T], 1)


def _bisected(objective: _Objective, theta_CB: Tensor) -> Tensor:
    """A zero of the slope within one cell of each theta."""
    low, high = (theta_CB - _CELL).clamp(min=-_BOUND), (theta_CB + _CELL).clamp(max=_BOUND)
    if (kernels := objective.kernels()) is not None:
        return kernels.bisected(low.T, high.T, _SLOPE_BITS).T
    low, high = _narrowed(low, high, lambda theta: objective.slope(theta.exp()) > 0, _SLOPE_BITS, 2)
    return (low + high) / 2


def _narrowed(
    low: Tensor, high: Tensor, holds: Callable[[Tensor], Tensor], bits: int, bits_at_once: int
) -> tuple[Tensor, Tensor]:
    """The ends of intervals after `bits` halvings, towards the first place from `low` on where `holds` becomes true.

    A GPU asks about several places at once, as it waits for the next question longer than it works on one.
    """
    parts = 2 ** (bits_at_once if low.is_cuda else 1)
    share = torch.arange(1, parts, device=low.device, dtype=low.dtype).view(-1, *(1 for _ in low.shape)) / parts
    for _ in range(-(-bits // (parts.bit_length() - 1))):
        inner = low + (high - low) * share
        true = holds(inner)
        first = torch.where(true.any(0), true.int().argmax(0), parts - 1)[None]
        ends = torch.cat([low[None], inner, high[None]])
        low, high = ends.gather(0, first)[0], ends.gather(0, first + 1)[0]
    return low, high


def _losses(objective: _Objective, tau_BC: Tensor) -> Tensor:
    """The loss at each of several temperatures: many at once for a small batch, one by one for a large one."""
    if (kernels := objective.kernels()) is not None:
        return kernels.losses(tau_BC.double())
    at_once = max(1, _AT_ONCE // objective.curve.beyond.numel())
    return torch.cat([objective.loss(tau_CB) for tau_CB in tau_BC.double().T.split(at_once)]).T


def _best(theta_BC: Tensor, loss_BC: Tensor, count: int) -> Tensor:
    """Indices (B,count) of the lowest losses; among equal losses of the smallest |theta|."""
    near_BC = theta_BC.abs().argsort(dim=1, stable=True)
    return near_BC.gather(1, loss_BC.gather(1, near_BC).argsort(dim=1, stable=True))[:, :count]
