"""None of these: whether a photo belongs to any class of the list, from features that are computed anyway.

Three scores of view 0, higher if the photo belongs: `max_cosine`, `mcm` and `in_list`. The last compares the best class
with everyday words that are not in the list, so it needs neither labels nor other photos.
"""

import math
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from ._errors import InputError, check_share
from .metrics import binomial_interval
from .metrics.intervals import upper_bound
from .prompts import Task

NONE_BELOW = 0.8  # threshold of in_list; docs/acting.md has the share of photos on either side
FEWEST = 5  # minimum number of classes assumed; with one or two, a chance match would pass too easily
_KEPT = 8  # templates whose background features are cached per model
_NEAR = 0.8  # share of the words to keep; those nearest to a class may mean the same

# Everyday things; `mini` was trained on each of these words.
_WORDS = """
    face dog cat horse cow sheep pig elephant bear lion monkey rabbit mouse bird chicken duck owl fish shark whale
    turtle snake frog lizard spider butterfly bee crab snail tree flower mushroom mountain beach lake volcano car bus
    truck train bicycle motorcycle airplane helicopter boat ship tractor rocket house castle church bridge tower fence
    door fountain lighthouse chair table sofa bed lamp clock mirror bookcase bathtub toilet sink refrigerator oven
    candle vase pillow computer keyboard laptop television telephone camera radio printer speaker screen bottle cup
    plate bowl spoon knife teapot pan bucket basket box bag umbrella scissors hammer screwdriver shirt dress shoe hat
    sunglasses watch necklace sock tie mask apple banana orange strawberry lemon pizza hamburger bread soup coffee wine
    broccoli corn ball guitar piano violin drum trumpet kite balloon toy book sign wall
"""
BACKGROUND = tuple(_WORDS.split())

_features: WeakKeyDictionary[nn.Module, dict[Any, Tensor]] = WeakKeyDictionary()


def max_cosine(features_BVD: Tensor, task: Task) -> Tensor:
    """The largest cosine of view 0 with a class, `(B,)`."""
    return (features_BVD[:, 0] @ task.text_features.T).amax(1)


def mcm(features_BVD: Tensor, task: Task, temperature: float = 1.0) -> Tensor:
    """Maximum concept matching (Ming et al., NeurIPS 2022): the largest softmax of cosine / temperature, `(B,)`."""
    return (features_BVD[:, 0] @ task.text_features.T / temperature).softmax(1).amax(1)


def in_list(features_BVD: Tensor, task: Task) -> Tensor:
    """The probability that none of K unrelated words would match view 0 as well as the best class, `(B,)` in [0, 1].

        in_list = Phi((max_k cos_k - m) / s)^max(K, 5)

    with m and s the mean and standard deviation of the photo's cosines with the background words, and K classes. It is
    a score, not the probability that the photo belongs. In float64, because photos that belong are close to 1.
    """
    best_B = _standardised(features_BVD, task).amax(1)
    return torch.special.ndtr(best_B) ** max(FEWEST, len(task.classes))


def presence_scores(features_BVD: Tensor, task: Task) -> Tensor:
    """A score for each class that view 0 shows it, regardless of the other classes, `(B, K)` in float64.

        score_k = (cos_k - m) / s, as in `in_list`; for a model with a logit bias, such as SigLIP: scale * cos_k + bias

    Its level says nothing without labels (`cots.presence`). The sigmoid of SigLIP's score has the level of the pairs
    that the model was trained on, which is far too low for a short list.
    """
    bias = task.backbone.logit_bias
    if bias is None:
        return _standardised(features_BVD, task)
    return task.backbone.logit_scale * (features_BVD[:, 0].double() @ task.text_features.double().T) + bias


def _standardised(features_BVD: Tensor, task: Task) -> Tensor:
    """(cos_k - m) / s, `(B, K)`, with m and s of the cosines with the background words."""
    view_BD = features_BVD[:, 0].double()
    words_BM = view_BD @ background(task).double().T
    cosines_BK = view_BD @ task.text_features.double().T
    return (cosines_BK - words_BM.mean(1, keepdim=True)) / words_BM.std(1, keepdim=True)


def background(task: Task) -> Tensor:
    """Features (M,D) of the background words under the task's prompt, without words that may name a class."""
    return task.constant("background", lambda: _unrelated(task, _background(task)))


def threshold(scores: Any, keep: float = 0.95) -> float:
    """The `in_list` below which a photo counts as none of these, from the scores of photos that belong; no labels.

    On average over sets of photos, at most the share 1 - keep of further photos that belong is below it. With fewer
    than keep / (1 - keep) photos (19 for 0.95), it is the smallest score, and the share is 1 / (n + 1).
    """
    check_share("keep", keep)
    values = _finite_scores(scores)
    rank = math.floor((1 - keep) * (len(values) + 1) + 1e-9)
    return float(values[max(1, rank) - 1])


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A threshold of `in_list` for photos of none of the classes, and what it does to photos that belong.

    With probability `certainty` over the draw of the n photos, at most `share` of further photos that belong are
    flagged. below: the threshold; None if n is too small for any. flagged, by_default: how many of the n photos are
    below it, and below NONE_BELOW. needed: the smallest n that has a threshold.
    """

    share: float
    certainty: float
    below: float | None
    flagged: int
    by_default: int
    n: int
    needed: int

    def line(self) -> str:
        """What `cots check` prints."""
        count = self.by_default if self.below is None else self.flagged
        low, high = binomial_interval(count, self.n)
        here = f"{count} of these {self.n} ({count / self.n:.1%}, 95% interval {low:.1%} to {high:.1%})"
        if self.below is None:
            return (
                f"None of these: {self.n} photos are too few to flag at most {100 * self.share:.3g}% of the photos of "
                f"these classes; {self.needed:,} could. The default threshold, {NONE_BELOW:g}, flags {here}."
            )
        return (
            f"None of these: at most {100 * self.share:.3g}% of the photos of these classes are flagged, with "
            f"{self.certainty:.0%} certainty; {here}. Threshold {self.below:.6f}; the default, {NONE_BELOW:g}, would "
            f"flag {self.by_default}."
        )


def flag_members(scores: Any, share: float = 0.05, certainty: float = 0.95) -> Flag:
    """The highest threshold of `in_list` that flags at most `share` of the photos that belong, from scores of such.

    The r-th smallest of n scores has a share of further ones below it that is Beta(r, n - r + 1) distributed, or less
    with ties. r is the largest rank for which that exceeds `share` with a probability of at most 1 - certainty. It
    holds for photos from the same distribution; it says nothing of how many photos that do not belong are flagged.
    """
    for name, value in (("share", share), ("certainty", certainty)):
        if not 0 < value < 1:
            raise InputError(f"{name} must lie between 0 and 1, such as 0.05 or 0.95, not {value!r}.")
    values, n = _finite_scores(scores), np.size(scores)
    rank = 0
    while rank < n and upper_bound(rank, n, 1 - certainty) <= share:
        rank += 1
    below = None if rank == 0 else float(values[rank - 1])
    return Flag(
        share=share, certainty=certainty, below=below, n=n, by_default=int((values < NONE_BELOW).sum()),
        flagged=0 if below is None else int((values < below).sum()),
        needed=math.ceil(math.log(1 - certainty) / math.log(1 - share)),
    )  # fmt: skip


def _finite_scores(scores: Any) -> np.ndarray:
    """The scores in ascending order."""
    values = np.sort(np.asarray(scores, dtype=np.float64))
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise InputError("A threshold needs finite in_list scores of one or more photos that belong to the list.")
    return values


def _unrelated(task: Task, words_MD: Tensor) -> Tensor:
    named = {word for name in task.classes for word in name.lower().split()}
    other = torch.tensor([word not in named for word in BACKGROUND], device=words_MD.device)
    nearest_M = (words_MD @ task.text_features.T).amax(1)
    return words_MD[other & (nearest_M <= nearest_M.quantile(_NEAR))]


def _background(task: Task) -> Tensor:
    """Features of all background words, which do not depend on the classes and are cached per model."""
    kept = _features.setdefault(task.backbone.model, {})
    context = task.initial_context
    key = (task.template, context.cpu().numpy().tobytes())
    if key not in kept:
        if len(kept) >= _KEPT:
            kept.pop(next(iter(kept)))
        learned = context if isinstance(task.template, str) and len(context) else None
        kept[key] = Task(task.backbone, BACKGROUND, task.template, learned).text_features
    return kept[key]
