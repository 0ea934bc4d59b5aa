"""Online methods: the state that they carry from sample to sample, and the loop over a stream."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self, TypeVar

import torch
from torch import Tensor

from .._checked import read_tensors, write_tensors
from .._errors import CotsError, InputError
from ..accelerate import accelerator
from ..prompts import Task


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

    @classmethod
    def resumed(cls, state: Self | None, task: Task) -> Self | None:
        """A copy of `state`, which must be of this method and of the task's shape; None for None."""
        if state is None:
            return None
        if not isinstance(state, cls):
            raise InputError(
                f"state must be the .state of an earlier call of the same method ({cls.__name__}), not "
                f"{type(state).__name__}. Start with state=None."
            )
        return state.copy_to(task)

    def copy_to(self, task: Task) -> Self:
        """A copy on the task's device, checked against the task's shape."""
        if self.sizes != (expected := tuple(task.text_features.shape)):
            raise InputError(
                f"The {type(self).__name__.removesuffix('State')} state is for {self.sizes[0]} classes of width "
                f"{self.sizes[1]}; this task has {expected[0]} of width {expected[1]}. Start with state=None."
            )
        copies = {f.name: getattr(self, f.name).to(task.device, copy=True).contiguous() for f in fields(self)}
        return type(self)(**{k: v.to(task.dtype) if v.is_floating_point() else v for k, v in copies.items()})


AnyState = TypeVar("AnyState", bound=State)


def run_stream(
    task: Task, step: Callable[..., tuple[Tensor, ...]], state: AnyState, *samples: Tensor
) -> tuple[list[tuple[Tensor, ...]], AnyState]:
    """What `step` returns for each sample in turn, and the state after the last.

    step: a sample's own part of each of `samples` and the tensors of the state (which may change in place) -> outputs,
    then the tensors of the next state. It depends only on its arguments and on what it closes over, copies no value to
    the host and has no shape that depends on a value, so that it can be compiled.
    """
    compiled = accelerator().compiled(step, task)
    names = [field.name for field in fields(state)]
    carried, outputs = tuple(getattr(state, name) for name in names), []
    for sample in zip(*samples, strict=True):
        after = compiled(*sample, *carried)
        outputs.append(after[: -len(names)])
        carried = after[-len(names) :]
    return outputs, type(state)(**dict(zip(names, carried, strict=True)))


def stack_logits(outputs: Sequence[tuple[Tensor, ...]], like_BVK: Tensor) -> Tensor:
    """The first output of each sample, (B,V,K)."""
    return torch.stack([first for first, *_ in outputs]) if outputs else torch.empty_like(like_BVK)
