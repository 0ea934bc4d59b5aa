"""TDA: training-free dynamic adapter, an online method with caches (Karmanov et al., CVPR 2024)."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from .._arrays import entropy, take
from .._checked import read_tensors, write_tensors
from .._checks import no_effect, one_of
from .._errors import CotsError, InputError
from ..prompts import Task
from ._api import ADAPTERS, Adapted, adapter, call
from ._start import Start
from ._tuning import check_tuning, confident_views, marginal_entropy

POSITIVE_SHOTS, NEGATIVE_SHOTS = 3, 2
GATE = (0.2, 0.5)  # of H / log2 K, H in nats: the published unit, mixed as it is
MASK = (0.03, 1.0)


@dataclass(frozen=True, kw_only=True)
class TDAState:
    """The two caches: for each class the features of lowest entropy seen so far; an empty slot has entropy inf.

    Immutable: `cots.adapt("tda", ...)` returns the state after its stream as `.state`.
    """

    positive_features: Tensor  # (K, 3, D)
    positive_entropy: Tensor  # (K, 3)
    negative_features: Tensor  # (K, 2, D)
    negative_entropy: Tensor  # (K, 2)
    negative_mask: Tensor  # (K, 2, K): the classes that a negative entry speaks against

    @classmethod
    def empty(cls, task: Task) -> Self:
        """Caches before the first sample of a stream."""
        K, D = task.text_features.shape
        new = task.text_features.new_zeros
        return cls(
            positive_features=new(K, POSITIVE_SHOTS, D),
            positive_entropy=new(K, POSITIVE_SHOTS) + math.inf,
            negative_features=new(K, NEGATIVE_SHOTS, D),
            negative_entropy=new(K, NEGATIVE_SHOTS) + math.inf,
            negative_mask=torch.zeros(K, NEGATIVE_SHOTS, K, dtype=torch.bool, device=task.device),
        )

    def save(self, file: str | Path) -> None:
        """Write the caches as safetensors, with a checksum."""
        write_tensors(Path(file), {f.name: getattr(self, f.name).contiguous() for f in fields(self)})

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """Read caches written by `save`."""
        try:
            return cls(**read_tensors(Path(file), framework="pt")[0])
        except (OSError, CotsError, TypeError) as error:
            raise InputError(f"{file} holds no TDA state written by TDAState.save: {error}") from None

    def copy_to(self, task: Task) -> Self:
        """A private copy on the task's device, checked against its shape."""
        K, D = task.text_features.shape
        if self.positive_features.shape != (K, POSITIVE_SHOTS, D):
            raise InputError(
                f"The TDA state is for {self.positive_features.shape[0]} classes of width "
                f"{self.positive_features.shape[2]}; this task has {K} of width {D}. Start with state=None."
            )
        copies = {f.name: getattr(self, f.name).to(task.device, copy=True) for f in fields(self)}
        return type(self)(**{k: v if v.dtype == torch.bool else v.to(task.dtype) for k, v in copies.items()})


@adapter("tda", title="TDA", cite="Karmanov et al., CVPR 2024", place=110)
def tda(
    start: Start,
    *,
    state: TDAState | None = None,
    positive: tuple[float, float] = (2.0, 5.0),
    negative: tuple[float, float] = (0.117, 1.0),
    cache_from: str = "weak",
    rho: float = 0.1,
) -> Adapted:
    """Caches of confident features correct the zero-shot logits; the samples are a stream whose order matters.

    z' = z + a exp(-b (1 - cos)) @ positive values - a' exp(-b' (1 - cos)) @ negative values, with (a, b) = `positive`
    and (a', b') = `negative`; caches are updated before predicting. They store the weak view (`cache_from="weak"`), or
    the mean of the rho*V most confident views ("confident").
    """
    zero_shot = Adapted(zero_shot_logits=start.zero_shot, logits=start.zero_shot)
    return corrected(zero_shot, start, state, positive, negative, cache_from, rho)


def register_under_tda(tuner: str) -> None:
    """Register `tda(tuner)`: the caches are filled from the tuned prompt's logits and correct them."""
    info = ADAPTERS.info(tuner)

    def under_tda(
        start: Start,
        *,
        weight: float = info.settings["weight"],
        state: TDAState | None = None,
        positive: tuple[float, float] = (2.0, 5.0),
        negative: tuple[float, float] = (0.117, 1.0),
        cache_from: str = "weak",
        rho: float = 0.1,
    ) -> Adapted:
        tuned = call(tuner, start, {"weight": weight})
        return corrected(tuned, start, state, positive, negative, cache_from, rho)

    under_tda.__doc__ = f"""TDA's caches over the prompt that {info.title} tunes for each sample, in one step.

    z of tda's formula, and what enters the caches, comes from the tuned prompt. weight: that of {tuner}.
    """
    adapter(
        f"tda({tuner})", title=f"TDA ({info.title})", cite="Karmanov et al., CVPR 2024", place=110 + info.place,
        weights=info.weights,
    )(under_tda)  # fmt: skip


def corrected(
    prompt: Adapted,
    start: Start,
    state: TDAState | None,
    positive: tuple[float, float],
    negative: tuple[float, float],
    cache_from: str,
    rho: float,
) -> Adapted:
    """The logits of `prompt` fill the caches and are corrected by them, sample by sample."""
    one_of("cache_from", cache_from, ("weak", "confident"))
    check_tuning(0, 0.0, rho)
    if cache_from == "weak":
        no_effect("rho", rho, 0.1, "cache_from='weak'")
    caches = TDAState.empty(start.task) if state is None else state.copy_to(start.task)
    after = torch.empty_like(prompt.logits)
    for i, (features_VD, logits_VK) in enumerate(zip(start.inputs, prompt.logits, strict=True)):
        _update(caches, features_VD, logits_VK, cache_from, rho)
        after[i] = logits_VK + _correction(caches, features_VD, positive, negative)
    return Adapted(zero_shot_logits=prompt.zero_shot_logits, logits=after, state=caches)


def _update(caches: TDAState, features_VD: Tensor, logits_VK: Tensor, cache_from: str, rho: float) -> None:
    if cache_from == "weak":
        feature, logits, H = features_VD[0], logits_VK[0], entropy(logits_VK[0])
        p = logits.softmax(dim=-1)
    else:
        chosen = confident_views(logits_VK[None], rho)
        selected = take(logits_VK[None], chosen)
        feature, logits = features_VD[chosen[0]].mean(dim=0), selected[0].mean(dim=0)
        H, p = marginal_entropy(selected)[0], selected[0].softmax(dim=-1).mean(dim=0)
    k, K = int(logits.argmax()), logits.numel()
    _insert(caches.positive_features[k], caches.positive_entropy[k], feature, H)
    if K > 1 and GATE[0] < float(H) / math.log2(K) < GATE[1]:
        slot = _insert(caches.negative_features[k], caches.negative_entropy[k], feature, H)
        if slot is not None:
            caches.negative_mask[k, slot] = (p > MASK[0]) & (p < MASK[1])


def _insert(features: Tensor, entropies: Tensor, feature: Tensor, H: Tensor) -> int | None:
    """Replace the entry of highest entropy (an empty slot first) if the new one is lower; the slot, or None."""
    slot = int(entropies.argmax())
    if not entropies[slot] > H:
        return None
    features[slot], entropies[slot] = feature, H
    return slot


def _correction(
    caches: TDAState, features_VD: Tensor, positive: tuple[float, float], negative: tuple[float, float]
) -> Tensor:
    def affinity(cached: Tensor, entropies: Tensor, strength: float, sharpness: float) -> Tensor:
        cosine = torch.einsum("vd,ksd->vks", features_VD, cached)
        return strength * (-sharpness * (1 - cosine)).exp() * entropies.isfinite()

    plus = affinity(caches.positive_features, caches.positive_entropy, *positive).sum(dim=-1)
    minus = affinity(caches.negative_features, caches.negative_entropy, *negative).flatten(1)
    return plus - minus @ caches.negative_mask.flatten(0, 1).to(minus.dtype)
