"""TDA over prompts that another method has tuned for each sample: `tda(ctpt)` and its like in the paper's tables."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..prompts import Task
from ._api import ADAPTERS, Adapted, adapter
from .tda import TDAState, corrected

TUNERS = ("ctpt", "otpt", "atpt", "soc", "penalty")


def over(tuner: str) -> Callable[..., Adapted]:
    """TDA whose caches are filled from the tuned prompt's logits and correct them."""
    tune = ADAPTERS.get(tuner)

    @adapter(f"tda({tuner})")
    def tda_tuned(
        features_BVD: Tensor,
        task: Task,
        *,
        weight: float = ADAPTERS.settings(tuner)["weight"],
        state: TDAState | None = None,
        positive: tuple[float, float] = (2.0, 5.0),
        negative: tuple[float, float] = (0.117, 1.0),
        cache_from: str = "weak",
        rho: float = 0.1,
    ) -> Adapted:
        start = tune(features_BVD, task, weight=weight)
        return corrected(
            start, features_BVD, task, state=state, positive=positive, negative=negative, cache_from=cache_from, rho=rho
        )

    tda_tuned.__doc__ = f"""TDA's caches over the prompt that {tuner} has tuned for each sample, in one step.

    z of tda's formula, and what enters the caches, comes from the tuned prompt. weight: that of {tuner}.
    """
    return tda_tuned


for name in TUNERS:
    over(name)
