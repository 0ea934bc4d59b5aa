"""The softmax at a temperature; the temperature of Eq. (5): confidence as a function of tau, loss, and two solvers.

`adam` is the paper's: 50 steps on theta = log tau, last iterate, batched over samples, with the gradient in closed
form. `exact` then searches |theta| <= 12 in float64 (50 Adam steps at rate 0.1 reach at most 6.3) and returns the best
point it evaluates: never worse than tau = 1 or than adam's.

Shape letters: B samples, n views in Omega, K classes, C candidate temperatures.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .._adam import AdamW
from .._arrays import gaps
from .._errors import InputError, check_one_of, check_positive, check_unused, whole_number
from ..accelerate import accelerator

LOSSES = ("l2", "l1", "huber", "kl")
SOLVERS = ("adam", "exact")
SETTINGS_OF_ADAM = ("steps", "lr", "t0")
_OVERFLOW = 30.0  # limit of |theta| in adam: beyond it float32 cannot represent gap / tau
_BOUND = 12.0  # limit of |theta| in the exact solver
_PER_UNIT = 10  # grid points per unit of theta; a confidence rises from low to high over several cells
_BASINS = 3  # local minima to refine
_ROOT_BITS, _SLOPE_BITS = 36, 32  # halvings of an interval
_SPARE_BITS = 8  # of them, which do not change a float32 tau
_PLACING_BITS = 10  # enough to place the grid around a root
_AT_ONCE = 2**22  # numbers held while candidate temperatures are compared


def scaled_softmax(logits: Tensor, tau: Tensor) -> Tensor:
    """softmax(z / tau); `tau` has the leading axes of `logits`."""
    return (gaps(logits) / -tau[(...,) + (None,) * (logits.ndim - tau.ndim)]).softmax(-1)


def pin_argmax(probabilities_BK: Tensor, prediction_B: Tensor) -> Tensor:
    """The probabilities, with classes that rounding lifted to the predicted class moved one ulp below it.

    A high temperature can round two different logits to equal probabilities; the arg max must stay that of the logits.
    """
    top_B1 = probabilities_BK.gather(1, prediction_B[:, None])
    moved_B1 = (probabilities_BK.argmax(1) != prediction_B)[:, None]
    below = torch.minimum(probabilities_BK, torch.nextafter(top_B1, torch.zeros_like(top_B1)))
    pinned = torch.where(moved_B1, below, probabilities_BK)
    return pinned.scatter(1, prediction_B[:, None], top_B1)


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


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How the temperature is fitted; `cots` documents each setting."""

    solver: str = "adam"
    loss: str = "l2"
    huber_delta: float = 0.1
    steps: int = 50
    lr: float = 0.1
    t0: float = 1.0

    def __post_init__(self) -> None:
        check_one_of("solver", self.solver, SOLVERS)
        check_one_of("loss", self.loss, LOSSES)
        whole_number("steps", self.steps)
        for name in ("huber_delta", "lr", "t0"):
            check_positive(name, getattr(self, name))
        if self.loss != "huber":
            check_unused("huber_delta", self.huber_delta, 0.1, f"loss={self.loss!r}")
        elif self.huber_delta >= 1:
            raise InputError(
                f"huber_delta must be below 1, not {self.huber_delta!r}. Confidences differ by less than 1, "
                "so a wider Huber loss is half the l2 loss; use loss='l2'."
            )
        if self.solver == "exact":
            for name, default in zip(SETTINGS_OF_ADAM, (50, 0.1, 1.0), strict=True):
                check_unused(name, getattr(self, name), default, "solver='exact'")

    @property
    def start(self) -> float:
        """The first theta."""
        return min(_OVERFLOW, max(-_OVERFLOW, math.log(self.t0)))


def fit_tau(adapted_BnK: Tensor, zero_shot_BnK: Tensor, fit: Fit) -> Tensor:
    """tau (B,) of Eq. (5) from the logits of the views in Omega."""
    samples, _, classes = adapted_BnK.shape
    if classes == 1 or samples == 0:  # one class: the confidence is 1 at every temperature
        return adapted_BnK.new_full((samples,), fit.t0)
    objective = Objective(adapted_BnK, zero_shot_BnK, make_loss(fit.loss, fit.huber_delta))
    tau_B = accelerator().fit_tau(objective, fit, adam)
    if fit.solver == "adam":
        return tau_B
    return accelerator().search_tau(adapted_BnK, zero_shot_BnK, fit, tau_B, exact)


def adam(objective: Objective, fit: Fit) -> Tensor:
    """Adam (Kingma & Ba 2015) on theta = log tau, with moments per sample; returns the last iterate."""
    top = objective.target.top
    theta = top.new_full((len(top),), fit.start)
    optimiser = AdamW(lr=fit.lr, weight_decay=0.0)
    for _ in range(fit.steps):
        slope = objective.slope(theta.exp())
        theta = optimiser.step(theta, slope).clamp(-_OVERFLOW, _OVERFLOW)
    return theta.exp()


def halvings(fit: Fit, dtype: torch.dtype) -> tuple[int, int]:
    """Of the intervals around roots and around zeros of the slope, for a tau of this precision."""
    spare = 0 if dtype == torch.float64 else _SPARE_BITS
    # Only the l1 loss has minima at roots where its slope is not zero.
    return _ROOT_BITS - spare if fit.loss == "l1" else _PLACING_BITS, _SLOPE_BITS - spare


def exact(adapted_BnK: Tensor, zero_shot_BnK: Tensor, fit: Fit, adam_B: Tensor) -> Tensor:
    """The best tau with |theta| <= 12, the nearest to 1 among equally good ones, found in float64.

    The confidence of a view falls as tau grows, so its loss falls up to a root (p = c) and rises after it: the minimum
    lies between the lowest and the highest root. Compared are tau = 1, adam's result, the roots (kinks of the l1 loss),
    and the best points of a grid between the roots, refined by bisection of the slope.
    """
    objective = Objective(adapted_BnK.double(), zero_shot_BnK.double(), make_loss(fit.loss, fit.huber_delta))
    root_bits, slope_bits = halvings(fit, adam_B.dtype)
    roots_Bn = _roots(objective, root_bits)
    theta_BC = torch.cat([_refined(objective, _grid(roots_Bn), slope_bits), roots_Bn], 1)
    # Rounded to the caller's precision before the last comparison, so that the returned value is the compared one.
    tau_BC = torch.cat([torch.ones_like(adam_B)[:, None], adam_B[:, None], theta_BC.exp().to(adam_B.dtype)], 1)
    losses_BC = _losses(objective, tau_BC.double())
    return tau_BC.gather(1, _best(tau_BC.double().log(), losses_BC, 1))[:, 0]


def _roots(objective: Objective, bits: int) -> Tensor:
    """theta (B,n), nearest to 0, where the confidence of each view reaches its target or comes closest to it."""

    def residual(theta: Tensor) -> Tensor:
        return objective.residual(objective.curve.at(theta.exp()))

    zero = torch.zeros_like(objective.target.top)
    sign = residual(zero).sign()  # too confident: a larger tau is needed
    limit = (residual(_BOUND * sign) * sign).clamp(min=0)
    return _bisect(zero, _BOUND * sign, lambda theta: residual(theta) * sign <= limit, bits)[1]


def _grid(roots_Bn: Tensor) -> Tensor:
    """Grid points (B,C) from just below the lowest root to just above the highest, padded with inf.

    All belong to one fixed grid, so that no result depends on the other samples of the batch.
    """
    first_B, last_B = (roots_Bn.amin(1) * _PER_UNIT).floor() - 1, (roots_Bn.amax(1) * _PER_UNIT).ceil() + 1
    cells = int((last_B - first_B).max())
    index_BC = first_B[:, None] + torch.arange(cells + 1, device=roots_Bn.device)
    grid_BC = (index_BC / _PER_UNIT).clamp(-_BOUND, _BOUND)
    return torch.where(index_BC > last_B[:, None], torch.inf, grid_BC)


def _refined(objective: Objective, theta_BC: Tensor, bits: int) -> Tensor:
    """The best point of the grid, and a zero of the slope near each of its lowest local minima."""
    loss_BC = _losses(objective, theta_BC.clamp(max=_BOUND).exp()).where(theta_BC < torch.inf, torch.inf)
    best_B1 = theta_BC.gather(1, _best(theta_BC, loss_BC, 1))
    wall_B1 = torch.full_like(best_B1, torch.inf)
    # < on one side and <= on the other, because one point of a plateau is enough.
    falls_before = loss_BC < torch.cat([wall_B1, loss_BC[:, :-1]], 1)
    rises_after = loss_BC <= torch.cat([loss_BC[:, 1:], wall_B1], 1)
    valley_BC = torch.where(falls_before & rises_after, loss_BC, torch.inf)
    basins = min(_BASINS, int(valley_BC.isfinite().sum(1).max()))
    chosen = _best(theta_BC, valley_BC, basins)
    # A sample with fewer basins than others has the best point once more, so that it does not depend on them.
    real = valley_BC.gather(1, chosen) < torch.inf
    start = torch.where(real, theta_BC.gather(1, chosen), best_B1).T
    width = real.T.to(start.dtype)
    low = ((start * _PER_UNIT - width) / _PER_UNIT).clamp(min=-_BOUND)
    high = ((start * _PER_UNIT + width) / _PER_UNIT).clamp(max=_BOUND)
    low, high = _bisect(low, high, lambda theta: objective.slope(theta.exp()) > 0, bits)
    return torch.cat([best_B1, (low + high).T / 2], 1)


def _bisect(low: Tensor, high: Tensor, condition: Callable[[Tensor], Tensor], halvings: int) -> tuple[Tensor, Tensor]:
    """Intervals around the point between `low` and `high` where `condition` becomes true."""
    for _ in range(halvings):
        middle = low + (high - low) * 0.5
        true = condition(middle)
        low, high = torch.where(true, low, middle), torch.where(true, middle, high)
    return low, high


def _losses(objective: Objective, tau_BC: Tensor) -> Tensor:
    """The loss at several temperatures: many at once for a small batch, one by one for a large batch."""
    at_once = max(1, _AT_ONCE // objective.curve.beyond.numel())
    return torch.cat([objective.value(tau_CB) for tau_CB in tau_BC.T.split(at_once)]).T


def _best(theta_BC: Tensor, loss_BC: Tensor, count: int) -> Tensor:
    """Indices (B,count) of the lowest losses; the smallest |theta| comes first among equal losses."""
    near_BC = theta_BC.abs().argsort(dim=1, stable=True)
    return near_BC.gather(1, loss_BC.gather(1, near_BC).argsort(dim=1, stable=True))[:, :count]
