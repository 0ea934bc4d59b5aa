"""`calibrate` and the registry: inputs are checked and batched here, so that methods are plain functions on tensors."""

import contextlib
import functools
import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .._arrays import SUM_SLACK, as_tensor, check_finite, like, looks_like_probabilities, missing_axis, refuse_changes
from .._errors import InputError, check_one_of, check_unused
from .._registry import Info, Registry
from ..fast.graphs import Recorded, plain
from ._calibrated import COLUMNS, Calibrated, each_place
from ._solver import SOLVERS

ALPHA_REMEDY = "pass alpha=task.alpha, or alpha=cots.mean_similarity(text_features), or a fixed number such as 0.6"
TEXT = ("text_features", "tuned_features")  # settings that a pipeline fills in for adapters that tune the text
_RECORDED_LOGITS = 2**22  # per batch; a larger batch keeps the GPU busy while its kernels are launched

CALIBRATORS = Registry("calibrator", "cots.calibrators", Info)


def calibrator(name: str, **described: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: make a function `f(adapted_BVK, zero_shot_BVK, *, ...)` available as `method=name`.

    Its keyword-only parameters are its settings; `alpha` and `solver` are passed if it has such parameters. It returns
    probabilities (B,K), or a `Calibrated` (see `Calibrated.of`). described: title, cite, place, headline.

    >>> @calibrator("halved")
    ... def halved(adapted_BVK, zero_shot_BVK, *, temperature=2.0):
    ...     return (adapted_BVK[:, 0] / temperature).softmax(-1)
    >>> calibrate([[0.0, 0.0]], [[3.0, 0.0]], method="halved", rows="views").probabilities
    array([0.5, 0.5])
    >>> CALIBRATORS.unregister("halved")
    """
    return CALIBRATORS.register(name, **described)


def calibrate(
    adapted_logits: Any,
    zero_shot_logits: Any,
    method: str = "cots",
    alpha: float | None = None,
    solver: str = "adam",
    rows: str | None = None,
    mask: Any = None,
    **settings: Any,
) -> Calibrated:
    """Calibrate the logits of all views before and after adaptation by any method.

    adapted_logits, zero_shot_logits: (B,V,K), view 0 weak, the others strong; torch or numpy, like the result. Dense
    logits (B,V,K,H,W), or (B,V,K,N) for boxes, are calibrated per pixel or box: probabilities are (B,K,H,W), and places
    where `mask` (B,H,W) is False are left out (NaN in the result, prediction -1).
    rows: what the rows of two-dimensional logits are, "views" of one sample (V,K) or "samples" of one view (B,K).
    method: the name of a calibrator, see `cots ls methods`. alpha: the weight of the weak view, a constant of the task
    that only ensembles use. solver: "adam" (the paper) or "exact", for methods that fit a temperature. settings: those
    of the method; a setting without effect is an error. Logits that look like probabilities cause a warning.

    >>> import numpy as np
    >>> zero_shot = np.array([[2.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    >>> result = calibrate(4 * zero_shot, zero_shot, solver="exact", rows="views")
    >>> float(result.tau.round(6)), result.probabilities.round(3), result.views
    (4.0, array([0.787, 0.107, 0.107]), array([1]))
    """
    given = (adapted_logits, zero_shot_logits, method, alpha, solver, rows, mask)
    result, valid = begin_calibration(*given, **settings)
    if valid is not None and not bool(valid):
        result, _ = begin_calibration(*given, replay=False, **settings)  # raises the error
    return result


def begin_calibration(
    adapted_logits: Any,
    zero_shot_logits: Any,
    method: str,
    alpha: float | None = None,
    solver: str = "adam",
    rows: str | None = None,
    mask: Any = None,
    replay: bool = True,
    **settings: Any,
) -> tuple[Calibrated, Tensor | None]:
    """Like `calibrate`, without waiting for a GPU. The second value says whether the logits are valid; None if known.

    replay: use a recorded graph if there is one.
    """
    replayed = _replayed(method, adapted_logits, zero_shot_logits, alpha, solver, rows, settings) if replay else None
    if replayed is not None:
        return replayed
    adapted, zero_shot = _checked(adapted_logits, zero_shot_logits)
    given = _settings(method, settings, alpha, solver)
    if adapted.ndim > 3:
        check_unused("rows", rows, None, "dense logits")
        again = {"alpha": alpha, "solver": solver, **settings}
        result = each_place(adapted, zero_shot, mask, lambda a, z: calibrate(a, z, method, **again))
        return replace(result, **{name: like(getattr(result, name), adapted_logits) for name in COLUMNS}), None
    if message := looks_like_probabilities(adapted_logits=adapted, zero_shot_logits=zero_shot):
        warnings.warn(message, UserWarning, stacklevel=3)
    if mask is not None:
        raise InputError("mask has no effect on logits (samples, views, classes), which are not dense; omit it.")
    axis = missing_axis(adapted.ndim, rows)
    if axis is not None:
        adapted, zero_shot = adapted.unsqueeze(axis), zero_shot.unsqueeze(axis)
    unchanged = refuse_changes(f"calibrator {method!r}", {"adapted_logits": adapted, "zero_shot_logits": zero_shot})
    with torch.no_grad():
        result = _completed(CALIBRATORS.get(method)(adapted, zero_shot, **given), method, adapted, given.get("alpha"))
    unchanged()

    def finish(value: Tensor) -> Any:
        return like(value[0] if axis == 0 else value, adapted_logits)

    return replace(result, method=method, **{name: finish(getattr(result, name)) for name in COLUMNS}), None


def _replayed(
    method: str, adapted: Any, zero_shot: Any, alpha: Any, solver: str, rows: str | None, settings: dict[str, Any]
) -> tuple[Calibrated, Tensor] | None:
    """The result for a small batch on a GPU from a recorded graph, and whether the logits are valid.

    None if the batch cannot be replayed.
    """
    if not (isinstance(adapted, Tensor) and isinstance(zero_shot, Tensor)) or adapted.device.type != "cuda":
        return None
    if (adapted.device, adapted.dtype, adapted.shape) != (zero_shot.device, zero_shot.dtype, zero_shot.shape):
        return None
    if adapted.dtype not in (torch.float32, torch.float64) or adapted.ndim not in (2, 3):
        return None
    small = 0 < adapted.numel() <= _RECORDED_LOGITS
    if not small or solver != "adam" or not CALIBRATORS.built_in(method) or not plain(settings):
        return None
    axis = missing_axis(adapted.ndim, rows)
    if axis == 1 or adapted.shape[-2] == 1:  # a single view
        return None
    given = _settings(method, settings, alpha, solver)
    recorded = _recorded(method, tuple(sorted(given.items())))
    found = recorded(*(each.detach()[None] if axis == 0 else each.detach() for each in (adapted, zero_shot)))
    if found is None:
        return None
    columns = [column[0] if axis == 0 else column for column in found[:-1]]
    result = Calibrated(**dict(zip(COLUMNS, columns, strict=True)), alpha=given.get("alpha"), method=method)
    return result, found[-1]


@functools.lru_cache(maxsize=32)
def _recorded(method: str, given: tuple[tuple[str, Any], ...]) -> Recorded:
    def run(adapted_BVK: Tensor, zero_shot_BVK: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            result = CALIBRATORS.get(method)(adapted_BVK, zero_shot_BVK, **dict(given))
            # Sums that overflow only cost a second computation.
            finite = torch.stack([each.sum() for each in (adapted_BVK, zero_shot_BVK, result.probabilities)]).isfinite()
            rows = torch.stack([adapted_BVK[0, 0], zero_shot_BVK[0, 0]])
            sums = (rows.sum(1) - 1).abs() > SUM_SLACK
            return (*(getattr(result, name) for name in COLUMNS), torch.cat([finite, sums]).all())

    return Recorded(run)


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


def _settings(method: str, settings: dict[str, Any], alpha: Any, solver: str) -> dict[str, Any]:
    """The keyword arguments of one call: the settings, with alpha and solver if the method has them."""
    if alpha is not None:
        value = math.nan
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            value = math.nan if isinstance(alpha, str) else float(alpha)
        if not -1 <= value <= 1:
            raise InputError(f"alpha, a mean cosine, must be one number in [-1, 1], not {alpha!r}; {ALPHA_REMEDY}.")
        alpha = value
    CALIBRATORS.check_settings(method, settings)
    check_one_of("solver", solver, SOLVERS)
    known = CALIBRATORS.settings(method)
    if "solver" not in known and solver != "adam":
        raise InputError(f"solver={solver!r} has no effect on {method!r}, which fits no temperature; omit solver.")
    common = {"alpha": alpha, "solver": solver}
    given = {**settings, **{name: value for name, value in common.items() if name in known}}
    missing = [name for name, default in known.items() if default is inspect.Parameter.empty and name not in given]
    if missing:
        raise InputError(f"calibrator {method!r} needs a value for its setting {missing[0]!r}; pass {missing[0]}=...")
    return given


def _completed(result: Any, method: str, adapted_BVK: Tensor, alpha: float | None) -> Calibrated:
    """The result of a calibrator as a `Calibrated`, with columns of the right shape and finite probabilities."""
    samples, _, classes = adapted_BVK.shape
    if isinstance(result, Tensor) and result.ndim == 2:
        result = Calibrated.of(result, alpha=alpha)
    p_BK = result.probabilities if isinstance(result, Calibrated) else result
    got = tuple(p_BK.shape) if isinstance(p_BK, Tensor) else type(p_BK).__name__
    if not isinstance(result, Calibrated) or got != (samples, classes):
        expected = f"probabilities ({samples}, {classes}) or cots.Calibrated"
        raise InputError(f"calibrator {method!r} must return {expected}, not {got}.")
    check_finite(p_BK, f"the result of calibrator {method!r}")
    for name in ("prediction", "confidence", "tau"):
        if (got := tuple(getattr(result, name).shape)) != (samples,):
            raise InputError(f"calibrator {method!r} must return a {name} of shape ({samples},), not {got}.")
    if result.views.ndim != 2 or len(result.views) != samples:
        got = tuple(result.views.shape)
        raise InputError(f"calibrator {method!r} must return views of shape ({samples}, n), not {got}.")
    if CALIBRATORS.built_in(method):  # ends with a softmax or a vote
        return result
    # The calibration error of scores that are not distributions would be meaningless.
    bad_B = ((p_BK.sum(1) - 1).abs() > SUM_SLACK) | (p_BK < 0).any(1)
    if bool(bad_B.any()):
        row = int(bad_B.nonzero()[0])
        raise InputError(
            f"calibrator {method!r} must return non-negative probabilities that sum to 1, but those of sample {row} "
            f"have minimum {float(p_BK[row].min()):.4g} and sum {float(p_BK[row].sum()):.4g}. End it with a softmax."
        )
    return result
