"""`calibrate`, its result and the registry: inputs are checked and batched here, so methods are functions on tensors.

Shape letters: B samples or images, V views, K classes.
"""

import contextlib
import functools
import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from .._arrays import SUM_SLACK, as_tensor, check_finite, like, looks_like_probabilities, missing_axis, refuse_changes
from .._errors import InputError, no_effect, one_of
from .._kernels import Recorded, plain
from .._registry import Info, Registry
from ._solver import SOLVERS, pin_argmax, scaled_softmax

ALPHA_REMEDY = "pass alpha=task.alpha, or alpha=cots.mean_similarity(text_features), or a fixed number such as 0.6"
COLUMNS = ("probabilities", "prediction", "confidence", "tau", "views")
LOGITS_AT_ONCE = 2**24  # held while dense predictions are calibrated
TEXT = ("text_features", "tuned_features")  # settings that a pipeline fills in for adapters that tune the text
_RECORDED_LOGITS = 2**22  # per batch; a larger batch keeps the GPU busy while its kernels are launched

CALIBRATORS = Registry("calibrator", "cots.calibrators", Info)


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The result of a calibrator: torch tensors or numpy arrays, like the logits; without B for one sample.

    probabilities (B,K); prediction (B,), the class; confidence (B,), its probability; tau (B,), the temperature, 1 for
    methods without one; alpha, the weight of the ensemble, or None; views (B,n), the views in Omega (0 weak, 1 to V-1
    strong), lowest entropy first, n = 0 for methods that select none; method, its name.
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
        cls, probabilities_BK: Tensor, *, prediction: Tensor | None = None, tau: Tensor | None = None,
        alpha: float | None = None, views: Tensor | None = None,
    ) -> Self:  # fmt: skip
        """A result from its probabilities, with neutral values for omitted columns."""
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

    @classmethod
    def scaled(cls, adapted_BVK: Tensor, tau_B: Tensor, views_Bn: Tensor | None = None) -> Self:
        """p = softmax(z_adapted[0] / tau); its arg max is that of the adapted logits for every tau."""
        weak_BK = adapted_BVK[:, 0]
        prediction_B = weak_BK.argmax(1)
        probabilities_BK = pin_argmax(scaled_softmax(weak_BK, tau_B), prediction_B)
        return cls.of(probabilities_BK, prediction=prediction_B, tau=tau_B, views=views_Bn)


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
    if (replayed := _replayed(method, adapted_logits, zero_shot_logits, alpha, solver, rows, settings)) is not None:
        return replayed
    adapted, zero_shot = _checked(adapted_logits, zero_shot_logits)
    given = _settings(method, settings, alpha, solver)
    if adapted.ndim > 3:
        no_effect("rows", rows, None, "dense logits")
        again = {"alpha": alpha, "solver": solver, **settings}
        result = _each_place(adapted, zero_shot, mask, lambda a, z: calibrate(a, z, method, **again))
        return replace(result, **{name: like(getattr(result, name), adapted_logits) for name in COLUMNS})
    if message := looks_like_probabilities(adapted_logits=adapted, zero_shot_logits=zero_shot):
        warnings.warn(message, UserWarning, stacklevel=2)
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

    return replace(result, method=method, **{name: finish(getattr(result, name)) for name in COLUMNS})


def _replayed(
    method: str, adapted: Any, zero_shot: Any, alpha: Any, solver: str, rows: str | None, settings: dict[str, Any]
) -> Calibrated | None:
    """The result for a small batch on a GPU from a recorded graph; None if the batch cannot be replayed."""
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
    if found is None or not bool(found[-1]):  # invalid inputs: the caller computes again and raises the error
        return None
    columns = [column[0] if axis == 0 else column for column in found[:-1]]
    return Calibrated(**dict(zip(COLUMNS, columns, strict=True)), alpha=given.get("alpha"), method=method)


@functools.lru_cache(maxsize=32)
def _recorded(method: str, given: tuple[tuple[str, Any], ...]) -> Recorded:
    def run(adapted_BVK: Tensor, zero_shot_BVK: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            result = CALIBRATORS.get(method)(adapted_BVK, zero_shot_BVK, **dict(given))
            finite = [tensor.isfinite().all() for tensor in (adapted_BVK, zero_shot_BVK, result.probabilities)]
            sums = [(logits[0, 0].sum() - 1).abs() > SUM_SLACK for logits in (adapted_BVK, zero_shot_BVK)]
            return (*(getattr(result, name) for name in COLUMNS), torch.stack([*finite, *sums]).all())

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
    one_of("solver", solver, SOLVERS)
    known = CALIBRATORS.settings(method)
    if "solver" not in known and solver != "adam":
        raise InputError(f"solver={solver!r} has no effect on {method!r}, which fits no temperature; omit solver.")
    common = {"alpha": alpha, "solver": solver}
    given = {**settings, **{name: value for name, value in common.items() if name in known}}
    missing = [name for name, default in known.items() if default is inspect.Parameter.empty and name not in given]
    if missing:
        raise InputError(f"calibrator {method!r} needs a value for its setting {missing[0]!r}; pass {missing[0]}=...")
    return given


def _each_place(
    adapted: Tensor, zero_shot: Tensor, mask: Any, calibrate: Callable[[Tensor, Tensor], Calibrated]
) -> Calibrated:
    """Calibrate dense logits (B,V,K,...), each pixel or box as a sample of its own; `calibrate` takes samples (N,V,K).

    The columns of the result end with the axes of the places: probabilities (B,K,...), tau (B,...), and so on. Where
    `mask` (B,...) is False, floats are NaN, and prediction and views are -1.
    """
    images, views, classes, *places = adapted.shape
    shape = (images, *places)
    if mask is None:
        mask = torch.ones(shape, dtype=torch.bool)
    elif not isinstance(mask, Tensor):
        mask = torch.from_numpy(np.array(mask))
    if tuple(mask.shape) != shape:
        raise InputError(f"mask must have the images and places of the logits, {shape}, not {tuple(mask.shape)}.")
    if mask.dtype != torch.bool:
        raise InputError(f"mask must be boolean, True where a place counts, not {mask.dtype}.")
    kept = mask.to(adapted.device).flatten()
    if not bool(kept.any()):
        raise InputError("mask is False everywhere; set it to True for the places to calibrate.")
    flat = [logits.flatten(3).permute(0, 3, 1, 2).reshape(-1, views, classes)[kept] for logits in (adapted, zero_shot)]
    size = max(1, LOGITS_AT_ONCE // (views * classes))
    parts = [calibrate(*pair) for pair in zip(*(logits.split(size) for logits in flat), strict=True)]

    def spread(name: str) -> Tensor:
        values = torch.cat([getattr(part, name) for part in parts])
        blank = float("nan") if values.is_floating_point() else -1
        whole = values.new_full((len(kept), *values.shape[1:]), blank)
        whole[kept] = values
        whole = whole.unflatten(0, (images, -1))  # (B,P) or (B,P,n)
        return (whole.mT if whole.ndim == 3 else whole).unflatten(-1, places)

    return replace(parts[0], **{name: spread(name) for name in COLUMNS})


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
