"""`calibrate` and the registry: inputs are checked and batched here, so that methods are plain functions on tensors."""

import contextlib
import functools
import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from .._arrays import SUM_SLACK, as_tensor, check_finite, like, looks_like_probabilities, missing_axis, unchanged
from .._errors import InputError, check_one_of, check_unused
from .._registry import Info, Registry
from ..accelerate import accelerator
from ._calibrated import COLUMNS, Calibrated, each_place
from ._solver import SETTINGS_OF_ADAM, SOLVERS

ALPHA_REMEDY = "pass alpha=task.alpha, or alpha=cots.mean_similarity(text_features), or a fixed number such as 0.6"
TEXT = ("text_features", "tuned_features")  # settings that a pipeline fills in for adapters that tune the text


@dataclass(frozen=True, kw_only=True)
class CalibratorInfo(Info):
    """A calibrator and its description. one_view: it uses only the logits of view 0."""

    one_view: bool = False


CALIBRATORS = Registry("calibrator", "cots.calibrators", CalibratorInfo)


def calibrator(name: str, **described: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: make a function `f(adapted_BVK, zero_shot_BVK, *, ...)` available as `method=name`.

    Its keyword-only parameters are its settings; `alpha` and `solver` are passed if it has such parameters. It returns
    probabilities (B,K), or a `Calibrated` (see `Calibrated.of`). described: title, cite, place, headline,
    one_view.

    >>> @calibrator("halved")
    ... def halved(adapted_BVK, zero_shot_BVK, *, temperature=2.0):
    ...     return (adapted_BVK[:, 0] / temperature).softmax(-1)
    >>> calibrate([[0.0, 0.0]], [[3.0, 0.0]], method="halved", rows="views").probabilities
    array([0.5, 0.5])
    >>> CALIBRATORS.unregister("halved")
    """
    return CALIBRATORS.register(name, **described)


@overload
def calibrate(  # pyright: ignore[reportOverlappingOverload]
    adapted_logits: Tensor, zero_shot_logits: Any, method: str = ..., alpha: float | None = ..., solver: str = ...,
    rows: str | None = ..., mask: Any = ..., **settings: Any,
) -> Calibrated[Tensor]: ...  # fmt: skip


@overload
def calibrate(
    adapted_logits: Any, zero_shot_logits: Any, method: str = ..., alpha: float | None = ..., solver: str = ...,
    rows: str | None = ..., mask: Any = ..., **settings: Any,
) -> Calibrated[np.ndarray]: ...  # fmt: skip


def calibrate(
    adapted_logits: Any,
    zero_shot_logits: Any,
    method: str = "cots",
    alpha: float | None = None,
    solver: str | None = None,
    rows: str | None = None,
    mask: Any = None,
    **settings: Any,
) -> Calibrated:
    """Calibrate the logits of all views before and after adaptation by any method.

    - adapted_logits, zero_shot_logits: (B,V,K), view 0 weak, the others strong; torch or numpy, like the result
    - method: the name of a calibrator, see `cots ls methods`
    - alpha: the weight of the weak view, a constant of the task that only ensembles use
    - solver: for methods that fit a temperature, "exact", the minimum of Eq. 5, or "adam", the 50 steps of the paper;
      default: "exact", or "adam" if one of its settings (steps, lr, t0) is given
    - rows: what the rows of two-dimensional logits are, "views" of one sample (V,K) or "samples" of one view (B,K)
    - mask: for dense logits (B,V,K,H,W), or (B,V,K,N) for boxes, which are calibrated per pixel or box: places where it
      (B,H,W) is False are left out (NaN in the result, prediction -1)
    - settings: those of the method; a setting without effect is an error

    Logits that look like probabilities cause a warning.

    >>> import numpy as np
    >>> zero_shot = np.array([[2.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    >>> result = calibrate(4 * zero_shot, zero_shot, rows="views")
    >>> float(result.tau.round(6)), result.probabilities.round(3), result.views
    (4.0, array([0.787, 0.107, 0.107]), array([1]))
    """
    adapted, zero_shot = _checked(adapted_logits, zero_shot_logits)
    chosen = chosen_solver(method, solver, settings)
    checked = check_call(method, settings | {"alpha": alpha} | ({} if chosen is None else {"solver": chosen}))

    def run(adapted_BVK: Tensor, zero_shot_BVK: Tensor) -> Calibrated:
        if message := looks_like_probabilities(adapted_logits=adapted_BVK, zero_shot_logits=zero_shot_BVK):
            warnings.warn(message, UserWarning, stacklevel=3)
        result = calibrate_batch(method, adapted_BVK, zero_shot_BVK, checked)
        check_finite(result.probabilities, f"the result of calibrator {method!r}")
        return result

    axis = None
    if adapted.ndim > 3:
        check_unused("rows", rows, None, "dense logits")
        result = each_place(adapted, zero_shot, mask, run)
    else:
        axis = missing_axis(adapted.ndim, rows)
        if mask is not None:
            raise InputError("mask has no effect on logits (samples, views, classes), which are not dense; omit it.")
        if axis is not None:
            adapted, zero_shot = adapted.unsqueeze(axis), zero_shot.unsqueeze(axis)
        result = run(adapted, zero_shot)
    columns = {}
    for name in COLUMNS:
        value = getattr(result, name)
        columns[name] = like(value[0] if axis == 0 else value, adapted_logits)
    return replace(result, **columns)


def calibrate_batch(method: str, adapted_BVK: Tensor, zero_shot_BVK: Tensor, call: Mapping[str, Any]) -> Calibrated:
    """Like `calibrate`, for checked logits and the keyword arguments that `check_call` gives."""
    function = functools.partial(CALIBRATORS.get(method), **call)
    alpha = call.get("alpha")
    if not CALIBRATORS.built_in(method):
        inputs = {"adapted_logits": adapted_BVK, "zero_shot_logits": zero_shot_BVK}
        with unchanged(f"calibrator {method!r}", inputs), torch.no_grad():
            result = function(adapted_BVK, zero_shot_BVK)
        return replace(_check_result(result, method, adapted_BVK, alpha), method=method)

    def run(adapted_BVK: Tensor, zero_shot_BVK: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            result = function(adapted_BVK, zero_shot_BVK)
        return tuple(getattr(result, name) for name in COLUMNS)

    # The plain exact solver decides by values that it computes. With one class, the weight of an ensemble is not its
    # setting.
    decides = call.get("solver") == "exact" and not accelerator().searches(call.get("loss", "l2"), adapted_BVK.device)
    fixed = not decides and min(adapted_BVK.shape[1:]) > 1
    if not fixed or not 0 < adapted_BVK.numel() <= accelerator().batch_limit("logits", adapted_BVK.device):
        with torch.no_grad():
            return replace(function(adapted_BVK, zero_shot_BVK), method=method)
    columns = accelerator().compiled(run)(adapted_BVK, zero_shot_BVK)
    return Calibrated(**dict(zip(COLUMNS, columns, strict=True)), alpha=alpha, method=method)


def _checked(adapted_logits: Any, zero_shot_logits: Any) -> tuple[Tensor, Tensor]:
    """Both as finite tensors of the same shape, device and precision."""
    given = {"adapted_logits": adapted_logits, "zero_shot_logits": zero_shot_logits}
    tensors = {name: as_tensor(value, name) for name, value in given.items()}
    for name, tensor in tensors.items():
        if tensor.ndim < 2:
            raise InputError(
                f"{name} must be (samples, views, classes), or two-dimensional with rows=, not {tuple(tensor.shape)}. "
                "For a single view of one sample, pass logits[None] with rows='views'."
            )
        if 0 in (tensor.shape[-2:] if tensor.ndim < 4 else tensor.shape[1:]):
            raise InputError(f"{name} has shape {tuple(tensor.shape)} but needs at least one view and one class.")
    adapted, zero_shot = tensors.values()
    if adapted.shape != zero_shot.shape:
        raise InputError(
            f"adapted_logits {tuple(adapted.shape)} and zero_shot_logits {tuple(zero_shot.shape)} must have the same "
            "shape: the same views and classes, before and after adaptation."
        )
    if isinstance(zero_shot_logits, Tensor) and adapted.device != zero_shot.device:
        raise InputError(f"adapted_logits are on {adapted.device}, zero_shot_logits on {zero_shot.device}; move one.")
    for name, tensor in tensors.items():
        check_finite(tensor, name)
    dtype = torch.promote_types(adapted.dtype, zero_shot.dtype)
    return adapted.to(dtype), zero_shot.to(adapted.device, dtype)


def chosen_solver(method: str, solver: str | None, given: Mapping[str, Any]) -> str | None:
    """The solver of a calibrator, by default the exact one, or adam if one of its settings is given.

    None for a calibrator that fits no temperature. Runs use the calibrator's own default, the paper's.
    """
    if "solver" not in CALIBRATORS.settings(method):
        if solver is not None:
            raise InputError(f"solver={solver!r} has no effect on {method!r}, which fits no temperature; omit solver.")
        return None
    if solver is None:
        default = "adam" if given.keys() & set(SETTINGS_OF_ADAM) else "exact"
        solver = str(given.get("solver", default))
    check_one_of("solver", solver, SOLVERS)
    return solver


def check_call(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of one call: checked settings, with `alpha` if the method has it."""
    call = dict(given)
    alpha = call.pop("alpha", None)
    if alpha is not None:
        value = math.nan
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            value = math.nan if isinstance(alpha, str) else float(alpha)
        if not -1 <= value <= 1:
            raise InputError(f"alpha, a mean cosine, must be one number in [-1, 1], not {alpha!r}; {ALPHA_REMEDY}.")
        alpha = value
    CALIBRATORS.check_settings(method, call)
    known = CALIBRATORS.settings(method)
    if "alpha" in known:
        call["alpha"] = alpha
    for name, default in known.items():
        if default is inspect.Parameter.empty and name not in call:
            raise InputError(f"calibrator {method!r} needs a value for its setting {name!r}; pass {name}=...")
    return call


def _check_result(result: Any, method: str, adapted_BVK: Tensor, alpha: float | None) -> Calibrated:
    """What a plug-in returned, as a `Calibrated` with columns of the right shape and real probabilities."""
    samples, _, classes = adapted_BVK.shape
    if isinstance(result, Tensor) and result.ndim == 2:
        result = Calibrated.of(result, alpha=alpha)
    p_BK = result.probabilities if isinstance(result, Calibrated) else result
    got = tuple(p_BK.shape) if isinstance(p_BK, Tensor) else type(p_BK).__name__
    if not isinstance(result, Calibrated) or got != (samples, classes):
        expected = f"probabilities ({samples}, {classes}) or cots.Calibrated"
        raise InputError(f"calibrator {method!r} must return {expected}, not {got}.")
    for name in ("prediction", "confidence", "tau"):
        if (got := tuple(getattr(result, name).shape)) != (samples,):
            raise InputError(f"calibrator {method!r} must return a {name} of shape ({samples},), not {got}.")
    if result.views.ndim != 2 or len(result.views) != samples:
        got = tuple(result.views.shape)
        raise InputError(f"calibrator {method!r} must return views of shape ({samples}, n), not {got}.")
    check_finite(p_BK, f"the result of calibrator {method!r}")
    # The calibration error of scores that are not distributions would be meaningless.
    bad_B = ((p_BK.sum(1) - 1).abs() > SUM_SLACK) | (p_BK < 0).any(1)
    if bool(bad_B.any()):
        row = int(bad_B.nonzero()[0])
        raise InputError(
            f"calibrator {method!r} must return non-negative probabilities that sum to 1, but those of sample {row} "
            f"have minimum {float(p_BK[row].min()):.4g} and sum {float(p_BK[row].sum()):.4g}. End it with a softmax."
        )
    return result
