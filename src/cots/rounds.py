"""How many views a photo needs: they are encoded in rounds until more of them would not change the answer.

A round looks at the answer before adaptation, which costs nothing beside encoding: E-CoTS with tau = 1 and the task's
own text features. So all methods of a request share the views. They are those of a fixed number: view i depends only on
the photo, the seed and i. The constants were chosen with `mini` on training photos, pacs-photo and imagenette, also
with lists that have other names; docs/performance.md has what they do on the demo's photos.

Shape letters: B photos, V views so far, K classes, D embedding width.
"""

from typing import Literal

from torch import Tensor

from ._errors import InputError, whole_number
from .adapters import ADAPTERS
from .calibrators import calibrate_batch
from .prompts import Task

ROUNDS = (8, 16, 32, 64)  # views after each round
SURE = 0.9  # margin that ends a photo after any round
CLEAR = {16: 0.7, 32: 0.4}  # by the views so far: margin that ends a photo whose answer is steady
STEADY = 0.02  # change of the best probability since the round before
Views = int | Literal["auto"]
DEFAULT: Views = "auto"  # where people act; runs have the protocol's number


def untuned_answer(features_BVD: Tensor, task: Task) -> Tensor:
    """Eq. 6 with zero-shot logits z: p (B,K) = alpha * softmax(z_0) + (1 - alpha) * mean over Omega of softmax(z_i)."""
    logits_BVK = task.logit_scale * features_BVD @ task.text_features.T
    return calibrate_batch("ensemble", logits_BVK, logits_BVK, {"alpha": task.alpha}).probabilities


def enough(now_BK: Tensor, before_BK: Tensor | None, views: int) -> Tensor:
    """Which photos (B,) need no further views, from their answers now and after the round before, if any.

    With m the margin of the best class over the second: m > SURE, or m > CLEAR[views] and the best class is that of the
    round before, with a probability that changed by at most STEADY.
    """
    best_B, class_B = now_BK.max(1)
    margin_B = best_B - now_BK.scatter(1, class_B[:, None], 0.0).amax(1)
    sure_B = margin_B > SURE
    if before_BK is None or views not in CLEAR:
        return sure_B
    best_before_B, class_before_B = before_BK.max(1)
    steady_B = (class_B == class_before_B) & ((best_B - best_before_B).abs() <= STEADY)
    return sure_B | (steady_B & (margin_B > CLEAR[views]))


def chosen_views(views: Views | None, adapter: str, before: Views | None = None) -> Views:
    """The views that were asked for, else those of a policy (`before`), else the default.

    "auto" becomes all views where photos cannot stop early: an online method needs batches in the order of its stream,
    and a method that takes pixels needs those of all views at once.
    """
    chosen = views if views is not None else before if before is not None else DEFAULT
    if isinstance(chosen, str) and chosen != "auto":
        raise InputError(f'views must be a whole number >= 1 or "auto", not {chosen!r}.')
    if chosen != "auto":
        return whole_number("views", chosen, 1)
    info = ADAPTERS.info(adapter)
    return ROUNDS[-1] if info.online or info.takes != "features" else "auto"


def most_views(views: Views) -> int:
    """The number of views that are drawn for a photo."""
    return ROUNDS[-1] if views == "auto" else views


def rounds_of(views: Views) -> tuple[int, ...]:
    """Views after each round."""
    return ROUNDS if views == "auto" else (views,)
