"""TDA: training-free dynamic adapter, an online method with caches (Karmanov et al., CVPR 2024).

BoostAdapter, DMN and DPE keep caches of confident samples too, with the functions below. Shape letters: B samples,
V views, K classes, S slots per class, D embedding width; `k_1` is one class as a tensor (1,).
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from .._arrays import entropy, take
from .._errors import check_one_of, check_share, check_unused
from ..prompts import Task
from ._api import ADAPTERS, Adapted, adapt_batch, adapter, watch_tuners
from ._batch import Batch, confident_views, marginal_entropy
from ._stream import State, run_stream, stack_logits

POSITIVE_SHOTS, NEGATIVE_SHOTS = 3, 2
GATE = (0.2, 0.5)  # of H / log2 K
MASK = (0.03, 1.0)


@dataclass(frozen=True, kw_only=True)
class TDAState(State):
    """The two caches: per class, the features with the lowest entropy so far; empty slots have entropy inf."""

    positive_features: Tensor  # (K, 3, D)
    positive_entropy: Tensor  # (K, 3)
    negative_features: Tensor  # (K, 2, D)
    negative_entropy: Tensor  # (K, 2)
    negative_mask: Tensor  # (K, 2, K): the classes that a negative entry counts against

    @classmethod
    def empty(cls, task: Task) -> Self:
        """Caches before the first sample of a stream."""
        empty = task.text_features.new_full((len(task.classes), NEGATIVE_SHOTS), math.inf)
        return cls(**empty_caches(task), negative_entropy=empty)


def empty_caches(task: Task) -> dict[str, Tensor]:
    """Features and entropies of the positive cache, features and masks of the negative one."""
    K, D = task.text_features.shape
    new = task.text_features.new_zeros
    return {
        "positive_features": new(K, POSITIVE_SHOTS, D),
        "positive_entropy": new(K, POSITIVE_SHOTS) + math.inf,
        "negative_features": new(K, NEGATIVE_SHOTS, D),
        "negative_mask": torch.zeros(K, NEGATIVE_SHOTS, K, dtype=torch.bool, device=task.device),
    }


@adapter("tda", title="TDA", cite="Karmanov et al., CVPR 2024", place=110, one_view={"cache_from": "weak"})
def tda(
    batch: Batch,
    *,
    state: TDAState | None = None,
    positive: tuple[float, float] = (2.0, 5.0),
    negative: tuple[float, float] = (0.117, 1.0),
    cache_from: str = "weak",
    rho: float = 0.1,
) -> Adapted:
    """Caches of confident features correct the zero-shot logits.

    z' = z + a exp(-b (1 - cos)) @ positive values - a' exp(-b' (1 - cos)) @ negative values for every view, (a, b) =
    `positive`, (a', b') = `negative`; caches are updated before predicting. They keep the 3 and 2 entries per class
    with the lowest entropy, from the weak view (`cache_from="weak"`) or from the mean of the rho*V most confident views
    ("confident", a choice of cots). Negative entries need 0.2 < H / log2 K < 0.5 (H in nats, as published) and count
    against classes with 0.03 < p < 1. `positive` by dataset: data/settings.toml.

    The samples of a call are a stream; pass `.state` as `state=` to continue it (`TDAState.save`, `.load`).
    """
    zero_shot = Adapted(zero_shot_logits=batch.zero_shot, logits=batch.zero_shot)
    return correct(batch, zero_shot, state, positive, negative, cache_from, rho)


def correct(
    batch: Batch,
    prompt: Adapted,
    state: TDAState | None,
    positive: tuple[float, float],
    negative: tuple[float, float],
    cache_from: str,
    rho: float,
) -> Adapted:
    """The logits of a prompt, corrected by caches that they fill."""
    shown = entries(batch.features, prompt.logits, cache_from, rho)
    caches = TDAState.resumed(state, batch.task) or TDAState.empty(batch.task)

    def step(
        x_VD: Tensor, z_VK: Tensor, feature: Tensor, k_1: Tensor, H: Tensor, gate: Tensor, mask_K: Tensor,
        cached_KSD: Tensor, cached_KS: Tensor, against_KSD: Tensor, against_KS: Tensor, mask_KSK: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        keep_lowest(cached_KS, k_1, H, (cached_KSD, feature))
        keep_lowest(against_KS, k_1, H, (against_KSD, feature), (mask_KSK, mask_K), gate=gate)
        plus = affinity(x_VD, cached_KSD, *positive) * cached_KS.isfinite()
        minus = affinity(x_VD, against_KSD, *negative) * against_KS.isfinite()
        logits_VK = z_VK + (plus.sum(-1) - minus.flatten(1) @ mask_KSK.flatten(0, 1).to(minus.dtype))
        return logits_VK, cached_KSD, cached_KS, against_KSD, against_KS, mask_KSK

    outputs, after = run_stream(batch.task, step, caches, batch.features, prompt.logits, *shown)
    return replace(prompt, logits=stack_logits(outputs, prompt.logits), state=after)


def entries(features_BVD: Tensor, logits_BVK: Tensor, cache_from: str, rho: float) -> tuple[Tensor, ...]:
    """What the caches see of each sample: feature (B,D), class (B,1), entropy H (B,), whether it enters the negative
    cache (B,), and the classes that it counts against there (B,K)."""
    check_query(cache_from, rho)
    feature_BD, class_B, H_B, p_BK = query(features_BVD, logits_BVK, cache_from, rho)
    uncertainty_B = mixed_entropy(H_B, p_BK.shape[1])
    gate_B = (GATE[0] < uncertainty_B) & (uncertainty_B < GATE[1])
    return feature_BD, class_B[:, None], H_B, gate_B, (p_BK > MASK[0]) & (p_BK < MASK[1])


def query(features_BVD: Tensor, logits_BVK: Tensor, cache_from: str, rho: float) -> tuple[Tensor, ...]:
    """Feature (B,D, not renormalised), class (B,), entropy (B,) and probabilities (B,K) of the weak view, or of the
    mean of the rho*V most confident views."""
    if cache_from == "weak":
        logits_BK = logits_BVK[:, 0]
        return features_BVD[:, 0], logits_BK.argmax(-1), entropy(logits_BK), logits_BK.softmax(-1)
    chosen = confident_views(logits_BVK, rho)
    selected = take(logits_BVK, chosen)
    feature_BD = take(features_BVD, chosen).mean(1)
    return feature_BD, selected.mean(1).argmax(-1), marginal_entropy(selected), selected.softmax(-1).mean(1)


def check_query(cache_from: str, rho: float) -> None:
    """Check the settings of `query`."""
    check_one_of("cache_from", cache_from, ("weak", "confident"))
    check_share("rho", rho)
    if cache_from == "weak":
        check_unused("rho", rho, 0.1, "cache_from='weak'")


def mixed_entropy(entropy: Tensor, classes: int) -> Tensor:
    """H / log2 K with H in nats, as published: at most ln 2."""
    return entropy / math.log2(max(2, classes))


def keep_lowest(
    entropy_KS: Tensor, k_1: Tensor, H: Tensor, *entries: tuple[Tensor, Tensor], gate: Tensor | None = None
):
    """Replace the entry of class k with the highest entropy (inf in empty slots) if H is lower and `gate` is true.

    entries: pairs of a table (K, S, ...) and the new value of its slot. Works in place.
    """
    row_1S = entropy_KS.index_select(0, k_1)
    slot_1 = row_1S.argmax(1)
    better_1 = row_1S.amax(1) > H
    if gate is not None:
        better_1 = better_1 & gate
    place_1 = k_1 * entropy_KS.shape[1] + slot_1
    for table, new in ((entropy_KS, H), *entries):
        flat = table.flatten(0, 1)
        old = flat.index_select(0, place_1)
        flat.index_copy_(0, place_1, torch.where(better_1, new, old))


def affinity(features_VD: Tensor, cached_KSD: Tensor, strength: float, sharpness: float) -> Tensor:
    """a exp(-b (1 - x . f)) for every view and cached feature, `(V,K,S)`."""
    cosine = torch.einsum("vd,ksd->vks", features_VD, cached_KSD)
    return strength * (-sharpness * (1 - cosine)).exp()


def register_under_tda(tuner: str) -> None:
    """Register `tda(tuner)`: the caches are filled from the tuned prompt's logits and correct them."""
    info = ADAPTERS.info(tuner)
    defaults = info.settings
    of_prompt = ("weight", "steps", "lr")

    def under_tda(
        batch: Batch,
        *,
        weight: float = defaults["weight"],
        steps: int = defaults["steps"],
        lr: float = defaults["lr"],
        state: TDAState | None = None,
        positive: tuple[float, float] = (2.0, 5.0),
        negative: tuple[float, float] = (0.117, 1.0),
        cache_from: str = "weak",
        rho: float = 0.1,
    ) -> Adapted:
        tuned = adapt_batch(tuner, batch, {"weight": weight, "steps": steps, "lr": lr})
        return correct(batch, tuned, state, positive, negative, cache_from, rho)

    under_tda.__doc__ = f"""TDA's caches on top of the prompt that {info.title} tunes for each sample.

    In the formula of `tda`, z and the cached values come from the tuned prompt. weight, steps, lr: those of {tuner}.
    The CoTS paper has such rows but does not say how it combines the two.
    """
    adapter(
        f"tda({tuner})", title=f"TDA ({info.title})", cite="Karmanov et al., CVPR 2024", place=110 + info.place,
        tunes_text=info.tunes_text, one_template=info.one_template, of_prompt=of_prompt,
    )(under_tda)  # fmt: skip


watch_tuners(register_under_tda)
