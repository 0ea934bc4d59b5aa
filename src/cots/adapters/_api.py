"""`cots.adapt`: view features in, zero-shot and adapted logits out; the state and the loop of online methods."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from .._arrays import like, own_modes, refuse_changes
from .._checked import read_tensors, write_tensors
from .._errors import CotsError, InputError, check_one_of
from .._registry import Info, Registry
from ..fast.graphs import Recorded, plain
from ..fast.memory import scale_to_memory
from ..prompts import Task
from ._start import NORM_TOLERANCE, Start

RECORDED_TOKENS = 2**17  # text tokens per batch; a larger batch keeps the GPU busy while its kernels are launched


@dataclass(frozen=True, kw_only=True)
class AdapterInfo(Info):
    """takes: "features" or "pixels". tunes_text: it returns `Adapted.tuned_text`. one_template: it tunes the words of
    the template, so there can be only one. under_tda: also register `tda(name)`, TDA's caches on top of its tuned
    prompt."""

    takes: str = "features"
    tunes_text: bool = False
    one_template: bool = False
    under_tda: bool = False

    @property
    def online(self) -> bool:
        """Whether it carries a state from sample to sample, so that the order of samples matters."""
        return "state" in self.settings

    @property
    def kind(self) -> str:
        """As tables print it."""
        return "online" if self.online else "episodic"


ADAPTERS = Registry("adapter", "cots.adapters", AdapterInfo)


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """Logits of all views before and after adaptation, `(V,K)` or `(B,V,K)`, including the logit scale.

    `state` is what an online method carries to the next call; None for episodic methods. `tuned_text` computes the text
    features `(B,K,D)` behind `logits`, if the method tunes them.
    """

    zero_shot_logits: Any
    logits: Any
    state: Any = None
    tuned_text: Callable[[], Tensor] | None = field(default=None, repr=False)


def adapter(name: str, *, takes: str = "features", under_tda: bool = False, **described: Any):
    """Register an adaptation method: `function(inputs, task, *, settings...) -> Adapted`.

    inputs are view features `(B,V,D)`, or pixels `(B,V,3,H,W)` with `takes="pixels"`, with the task's device and dtype.
    A function whose first parameter is named `start` gets a `Start` instead of inputs and task, with the work that
    adapters share. Keyword-only parameters are the method's settings. One named `state` makes the method online: it is
    None at first, then the `Adapted.state` of the previous call (a dataclass of tensors is saved with a run). Results
    of episodic methods must not depend on other samples. described: title, cite, place, headline, tunes_text,
    one_template.

    >>> import cots
    >>> @cots.adapter("halved", title="Halved")
    ... def halved(features, task, *, factor=0.5):
    ...     logits = task.logit_scale * features @ task.text_features.T
    ...     return cots.Adapted(zero_shot_logits=logits, logits=factor * logits)
    >>> from cots.adapters import ADAPTERS; ADAPTERS.unregister("halved")
    """
    check_one_of("takes", takes, ("features", "pixels"))

    def add(function: Callable[..., Adapted]) -> Callable[..., Adapted]:
        ADAPTERS.register(name, takes=takes, under_tda=under_tda, **described)(function)
        if under_tda:
            from .tda import register_under_tda

            register_under_tda(name)
        return function

    return add


@own_modes()
def adapt(name: str, inputs: Any, task: Task, **settings: Any) -> Adapted:
    """Adapt to each sample with the named method; samples are independent and batched.

    inputs: L2-normalised view features `(V,D)` or `(B,V,D)`, view 0 being the weak one (`ttl` takes pixels), or a
    `Start` made from them, which several calls can share. Results are torch or numpy, like the inputs. Settings are
    those of the method, such as `steps`, `lr`, `rho` and `weight`.

    >>> import cots, torch
    >>> task = cots.Task(cots.load("mini"), ["cat", "dog", "car"])
    >>> views = torch.nn.functional.normalize(torch.randn(16, 256), dim=-1)
    >>> adapted = cots.adapt("tpt", views, task, steps=1)
    >>> adapted.zero_shot_logits.shape, adapted.logits.shape
    (torch.Size([16, 3]), torch.Size([16, 3]))
    """
    takes = ADAPTERS.info(name).takes
    ADAPTERS.check_settings(name, settings)
    if (replayed := replay(name, inputs, task, settings)) is not None and bool(replayed[1]):
        return replayed[0]
    check_templates(name, task)
    start = inputs if isinstance(inputs, Start) else Start(inputs, task, takes)
    if start.task is not task or start.takes != takes:
        raise InputError(f"adapter {name!r} needs a Start made from {takes} for the same task; make a new one.")
    unchanged = refuse_changes(f"adapter {name!r}", {takes: start.inputs})
    result = call(name, start, settings)
    unchanged()
    if not isinstance(result, Adapted):
        raise InputError(f"adapter {name!r} must return cots.Adapted, not {type(result).__name__}.")
    zero_shot, logits = result.zero_shot_logits, result.logits
    expected = (*start.inputs.shape[:2], task.text_features.shape[0])
    for which, value in (("zero_shot_logits", zero_shot), ("logits", logits)):
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if got != expected:
            raise InputError(
                f"adapter {name!r} must return {which} of shape {expected}, (samples, views, classes), as a torch "
                f"tensor, not {got}."
            )
    if start.single:
        zero_shot, logits = zero_shot[0], logits[0]
    return replace(result, zero_shot_logits=like(zero_shot, start.given), logits=like(logits, start.given))


def check_templates(name: str, task: Task) -> None:
    """Refuse a method that tunes the words of one template on a task with several."""
    if ADAPTERS.info(name).one_template and not isinstance(task.template, str):
        others = ", ".join(info.name for info in ADAPTERS.infos() if not info.one_template)
        raise InputError(
            f"{name} tunes the words of one template, but the task has {len(task.template)}. Use one template, or a "
            f"method that takes several: {others}."
        )


def replay(name: str, features: Any, task: Task, settings: Mapping[str, Any]) -> tuple[Adapted, Tensor] | None:
    """The result for a small batch on a GPU from a recorded graph, and whether the inputs are valid, without waiting.

    None if the batch cannot be replayed.
    """
    info = ADAPTERS.info(name)
    own = ADAPTERS.built_in(name) and info.takes == "features" and not info.online
    if not own or not plain(settings) or not getattr(task.tower, "recordable", False):
        return None
    if not isinstance(features, Tensor) or features.ndim not in (2, 3):
        return None
    batch = (features[None] if features.ndim == 2 else features).detach()
    like_text = (batch.device, batch.dtype, batch.shape[2]) == (task.device, task.dtype, task.text_features.shape[1])
    small = len(batch) * task.tower.tokens_per_sample <= scale_to_memory(RECORDED_TOKENS, task.device)
    if not like_text or not small or not batch.numel():
        return None

    def run(features_BVD: Tensor) -> tuple[Tensor, ...]:
        found = call(name, Start(features_BVD, task, checked=True), settings)
        off = (features_BVD.norm(dim=-1) - 1).abs().amax()
        return found.zero_shot_logits, found.logits, off <= NORM_TOLERANCE  # False if a value is not finite

    recorded = task.constant(
        ("recorded", name, getattr(task.tower, "linear", False), *sorted(settings.items())), lambda: Recorded(run)
    )
    if (replayed := recorded(batch)) is None:
        return None
    zero_shot, logits = (part[0] if features.ndim == 2 else part for part in replayed[:2])

    def again() -> Tensor:
        text = call(name, Start(batch, task, checked=True), settings).tuned_text
        assert text is not None
        return text()

    tuned = again if info.tunes_text else None
    return Adapted(zero_shot_logits=zero_shot, logits=logits, tuned_text=tuned), replayed[2]


def call(name: str, start: Start, settings: Mapping[str, Any]) -> Adapted:
    """Call the registered function on a batch."""
    function = ADAPTERS.get(name)
    takes_start = next(iter(inspect.signature(function).parameters)) == "start"
    return function(*([start] if takes_start else [start.inputs, start.task]), **settings)


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


AnyState = TypeVar("AnyState", bound=State)


def each_sample(
    task: Task, key: tuple[Hashable, ...], step: Callable[..., tuple[Tensor, ...]], state: AnyState, *samples: Tensor
) -> tuple[list[tuple[Tensor, ...]], AnyState]:
    """What `step` returns for each sample in turn, and the state after the last.

    step: a sample's own part of each of `samples` and the tensors of the state (which may change in place) -> outputs,
    then the tensors of the next state. It depends on its arguments, the task and `key` alone, so that a GPU replays it
    as a recorded graph. It copies no value to the host and has no shape that depends on a value, so a GPU never waits
    for the loop.
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
