"""What online methods share: the state of a stream, the loop over samples, caches of confident samples.

A step copies no value to the host and has no shape that depends on a value, so a GPU never waits for the loop.
Shape letters: B samples, V views, K classes, S slots per class, D embedding width; `k_1` is one class as a tensor (1,).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from .._arrays import entropy, take
from .._checked import read_tensors, write_tensors
from .._errors import CotsError, InputError, no_effect, one_of, share
from .._kernels import Recorded
from ..prompts import Task
from ._start import confident_views, marginal_entropy

AnyState = TypeVar("AnyState", bound="State")


@dataclass(frozen=True, kw_only=True)
class State(ABC):
    """Tensors that an online method carries from sample to sample; the first has shape (K, ..., D).

    `cots.adapt` works on a copy and returns the state after the last sample as `.state`.
    """

    @classmethod
    @abstractmethod
    def empty(cls, task: Task) -> Self:
        """The state before the first sample of a stream."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of classes and width of the features."""
        first = getattr(self, fields(self)[0].name)
        return first.shape[0], first.shape[-1]

    def save(self, file: str | Path) -> None:
        """Write the state as safetensors, with a checksum."""
        write_tensors(Path(file), {f.name: getattr(self, f.name).contiguous() for f in fields(self)})

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """Read a state written by `save`."""
        try:
            return cls(**read_tensors(Path(file), framework="pt")[0])
        except (OSError, CotsError, TypeError) as error:
            raise InputError(f"{file} is not a state written by {cls.__name__}.save: {error}") from None

    def copy_to(self, task: Task) -> Self:
        """A copy on the task's device, checked against the task's shape."""
        if self.sizes != (expected := tuple(task.text_features.shape)):
            raise InputError(
                f"The {type(self).__name__.removesuffix('State')} state is for {self.sizes[0]} classes of width "
                f"{self.sizes[1]}; this task has {expected[0]} of width {expected[1]}. Start with state=None."
            )
        copies = {f.name: getattr(self, f.name).to(task.device, copy=True).contiguous() for f in fields(self)}
        return type(self)(**{k: v.to(task.dtype) if v.is_floating_point() else v for k, v in copies.items()})


def each_sample(
    task: Task, key: tuple[Hashable, ...], step: Callable[..., tuple[Tensor, ...]], state: AnyState, *samples: Tensor
) -> tuple[list[tuple[Tensor, ...]], AnyState]:
    """What `step` returns for each sample in turn, and the state after the last.

    step: a sample's own part of each of `samples` and the tensors of the state (which may change in place) -> outputs,
    then the tensors of the next state. It depends on its arguments, the task and `key` alone, so that a GPU replays it
    as a recorded graph.
    """
    recorded = task.constant(("recorded", *key), lambda: Recorded(step))
    names = [field.name for field in fields(state)]
    carried, found = tuple(getattr(state, name) for name in names), []
    for sample in zip(*samples, strict=True):
        after = recorded(*sample, *carried) or step(*sample, *carried)
        found.append(after[: -len(names)])
        carried = after[-len(names) :]
    return found, type(state)(**dict(zip(names, carried, strict=True)))


def logits_of(found: Sequence[tuple[Tensor, ...]], like_BVK: Tensor) -> Tensor:
    """The first output of each sample, (B,V,K)."""
    return torch.stack([one[0] for one in found]) if found else torch.empty_like(like_BVK)


class Query(NamedTuple):
    """What a cache sees of each sample."""

    feature_BD: Tensor
    class_B: Tensor
    entropy_B: Tensor
    p_BK: Tensor


def query(features_BVD: Tensor, logits_BVK: Tensor, cache_from: str, rho: float) -> Query:
    """Feature (not renormalised), class, entropy and probabilities of the weak view, or of the mean of the rho*V most
    confident views."""
    if cache_from == "weak":
        logits_BK = logits_BVK[:, 0]
        return Query(features_BVD[:, 0], logits_BK.argmax(-1), entropy(logits_BK), logits_BK.softmax(-1))
    chosen = confident_views(logits_BVK, rho)
    selected = take(logits_BVK, chosen)
    feature_BD = take(features_BVD, chosen).mean(1)
    return Query(feature_BD, selected.mean(1).argmax(-1), marginal_entropy(selected), selected.softmax(-1).mean(1))


def check_query(cache_from: str, rho: float) -> None:
    """Check the settings of `query`."""
    one_of("cache_from", cache_from, ("weak", "confident"))
    share("rho", rho)
    if cache_from == "weak":
        no_effect("rho", rho, 0.1, "cache_from='weak'")


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
