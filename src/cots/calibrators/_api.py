"""The public door: checks, kinds and batching done once, the methods themselves plain functions on tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._arrays import as_tensor, check_finite, like, refuse_changes
from .._errors import InputError
from .._registry import Registry
from ._settings import choice

ALPHA_REMEDY = "pass alpha=task.alpha, or alpha=cots.mean_similarity(text_features), or a fixed number such as 0.6"
SOLVERS = ("adam", "exact")
_SUM_TOLERANCE = 1e-3  # half precision on the way to float32 is off by less

CALIBRATORS = Registry("calibrator", "cots.calibrators")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What a calibrator returns: torch tensors or numpy arrays, as the logits were; without B for one sample.

    probabilities (B,K); prediction (B,), the class; confidence (B,), its probability; tau (B,), the temperature, 1
    where the method has none; alpha, the ensemble's weight, None where there is no ensemble; views (B,n), the views in
    Omega (0 weak, 1 to V-1 strong), lowest entropy first, n = 0 where the method selects none; method, its name.
    """

    probabilities: Any
    prediction: Any
    confidence: Any
    tau: Any
    alpha: float | None
    views: Any
    method: str = ""

    @classmethod
    def of(
        cls,
        probabilities_BK: Tensor,
        *,
        prediction: Tensor | None = None,
        tau: Tensor | None = None,
        alpha: float | None = None,
        views: Tensor | None = None,
    ) -> Calibrated:
        """A result from its probabilities; what is left out takes its neutral value."""
        samples = len(probabilities_BK)
        prediction = probabilities_BK.argmax(1) if prediction is None else prediction
        return cls(
            probabilities=probabilities_BK,
            prediction=prediction,
            confidence=probabilities_BK.gather(1, prediction[:, None])[:, 0],
            tau=probabilities_BK.new_ones(samples) if tau is None else tau,
            alpha=alpha,
            views=prediction.new_empty(samples, 0) if views is None else views,
        )


def calibrator(name: str) -> Callable[[F], F]:
    """Decorator: make a function `f(adapted_BVK, zero_shot_BVK, *, ...)` available as `method=name`.

    Its keyword-only parameters are its settings; `alpha` and `solver` are handed over if it has parameters of these
    names. It returns probabilities (B,K), or a `Calibrated` (see `Calibrated.of`).

    >>> @calibrator("halved")
    ... def halved(adapted_BVK, zero_shot_BVK, *, temperature=2.0):
    ...     return (adapted_BVK[:, 0] / temperature).softmax(-1)
    >>> calibrate([[0.0, 0.0]], [[1.0, 0.0]], method="halved").probabilities
    array([0.5, 0.5])
    >>> CALIBRATORS.unregister("halved")
    """
    return CALIBRATORS.register(name)  # pyright: ignore[reportReturnType]


def calibrate(
    adapted_logits: Any,
    zero_shot_logits: Any,
    method: str = "cots",
    alpha: float | None = None,
    solver: str = "adam",
    **settings: Any,
) -> Calibrated:
    """Calibrated probabilities from the logits of all views before and after adaptation, of any method.

    adapted_logits, zero_shot_logits: (V,K) or (B,V,K), view 0 weak, the others strong; torch or numpy, and so the
    result. method: `none sals cor cots ecots ensemble zero ts`, or a registered one. alpha: the weight of the weak
    view, a constant of the task that only ensembles read. solver: "adam" (the paper) or "exact", for methods that fit
    a temperature. settings: those of the method; one that would have no effect is an error.

    >>> import numpy as np
    >>> zero_shot = np.array([[2.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    >>> result = calibrate(4 * zero_shot, zero_shot, solver="exact")
    >>> float(result.tau.round(6)), result.probabilities.round(3), result.views
    (4.0, array([0.787, 0.107, 0.107]), array([1]))
    """
    function = CALIBRATORS.get(method)
    adapted, zero_shot = _logits(adapted_logits, "adapted_logits"), _logits(zero_shot_logits, "zero_shot_logits")
    adapted, zero_shot = _matched(adapted, zero_shot, isinstance(zero_shot_logits, Tensor))
    given = _settings(method, settings, _alpha(alpha), solver)
    batched = adapted.ndim == 3
    if not batched:
        adapted, zero_shot = adapted[None], zero_shot[None]
    unchanged = refuse_changes(f"calibrator {method!r}", {"adapted_logits": adapted, "zero_shot_logits": zero_shot})
    with torch.no_grad():
        result = _completed(function(adapted, zero_shot, **given), method, adapted, given.get("alpha"))
    unchanged()
    if not getattr(function, "__module__", "").startswith("cots."):  # ours end with a softmax or a vote
        _check_probabilities(result.probabilities, method)

    def finish(value: Tensor) -> Any:
        return like(value if batched else value[0], adapted_logits)

    return replace(
        result,
        probabilities=finish(result.probabilities),
        prediction=finish(result.prediction),
        confidence=finish(result.confidence),
        tau=finish(result.tau),
        views=finish(result.views),
        method=method,
    )


def _logits(value: Any, name: str) -> Tensor:
    tensor = as_tensor(value, name)
    if tensor.ndim not in (2, 3):
        raise InputError(
            f"{name} must be (views, classes) or (samples, views, classes), not {tuple(tensor.shape)}. "
            "For a single view of one sample, pass logits[None]."
        )
    for axis, what in ((-2, "view"), (-1, "class")):
        if tensor.shape[axis] == 0:
            raise InputError(f"{name} of shape {tuple(tensor.shape)} has no {what}; at least one is needed.")
    return tensor


def _matched(adapted: Tensor, zero_shot: Tensor, placed: bool) -> tuple[Tensor, Tensor]:
    """Both finite, of one shape, device and precision; `placed`: the zero-shot logits have a device of their own."""
    if adapted.shape != zero_shot.shape:
        raise InputError(
            f"adapted_logits {tuple(adapted.shape)} and zero_shot_logits {tuple(zero_shot.shape)} must have the same "
            "shape: the same views and classes, before and after adaptation."
        )
    if placed and adapted.device != zero_shot.device:
        raise InputError(
            f"adapted_logits are on {adapted.device} and zero_shot_logits on {zero_shot.device}; "
            "move one with .to(device)."
        )
    check_finite(adapted, "adapted_logits")
    check_finite(zero_shot, "zero_shot_logits")
    dtype = torch.promote_types(adapted.dtype, zero_shot.dtype)
    return adapted.to(dtype), zero_shot.to(adapted.device, dtype)


def _alpha(alpha: Any) -> float | None:
    if alpha is None:
        return None
    try:
        value = float("nan") if isinstance(alpha, str) else float(alpha)
    except (TypeError, ValueError, RuntimeError):
        value = float("nan")
    if not -1 <= value <= 1:
        raise InputError(
            f"alpha must be one number in [-1, 1], as it is a mean cosine similarity, not {alpha!r}; {ALPHA_REMEDY}."
        )
    return value


def _settings(method: str, settings: dict[str, Any], alpha: float | None, solver: str) -> dict[str, Any]:
    """The keyword arguments of one call: the settings given, alpha and solver where the method has them."""
    CALIBRATORS.check_settings(method, settings)
    choice("solver", solver, SOLVERS)
    known = CALIBRATORS.settings(method)
    if "solver" not in known and solver != "adam":
        raise InputError(
            f"solver={solver!r} has no effect on {method!r}, which fits no temperature; leave solver out, "
            "or use method='cots' or 'ecots'."
        )
    common = {"alpha": alpha, "solver": solver}
    given = {**settings, **{name: value for name, value in common.items() if name in known}}
    missing = [name for name, default in known.items() if default is inspect.Parameter.empty and name not in given]
    if missing:
        raise InputError(f"calibrator {method!r} needs a value for its setting {missing[0]!r}; pass {missing[0]}=...")
    return given


def _completed(result: Any, method: str, adapted_BVK: Tensor, alpha: float | None) -> Calibrated:
    """The result of any calibrator as a `Calibrated`, once its probabilities are what a user can rely on."""
    if isinstance(result, Tensor) and result.ndim == 2:
        result = Calibrated.of(result, alpha=alpha)
    samples, _, classes = adapted_BVK.shape
    expected = f"calibrator {method!r} must return probabilities ({samples}, {classes}) or cots.Calibrated"
    if not isinstance(result, Calibrated):
        got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise InputError(f"{expected}, not {got}.")
    if tuple(result.probabilities.shape) != (samples, classes):
        raise InputError(f"{expected}, not {tuple(result.probabilities.shape)}.")
    check_finite(result.probabilities, f"the result of calibrator {method!r}")
    for name in ("prediction", "confidence", "tau"):
        if (got := tuple(getattr(result, name).shape)) != (samples,):
            raise InputError(f"calibrator {method!r} must return a {name} of shape ({samples},), not {got}.")
    if result.views.ndim != 2 or len(result.views) != samples:
        got = tuple(result.views.shape)
        raise InputError(f"calibrator {method!r} must return views of shape ({samples}, n), not {got}.")
    return result


def _check_probabilities(probabilities_BK: Tensor, method: str) -> None:
    """Scores that are no distribution would give confidences, and calibration errors, that mean nothing."""
    sums_B = probabilities_BK.sum(1)
    bad_B = ((sums_B - 1).abs() > _SUM_TOLERANCE) | (probabilities_BK < 0).any(1)
    if bool(bad_B.any()):
        row = int(bad_B.nonzero()[0])
        raise InputError(
            f"calibrator {method!r} must return probabilities, 0 or more and 1 in sum: those of sample {row} have the "
            f"least value {float(probabilities_BK[row].min()):.4g} and the sum {float(sums_B[row]):.4g}. "
            "End it with a softmax."
        )
