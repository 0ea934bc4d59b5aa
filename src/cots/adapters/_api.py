"""`cots.adapt`: view features in, zero-shot and adapted logits out."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, overload

import numpy as np
from torch import Tensor

from .._arrays import Arrays, default_modes, like, unchanged
from .._errors import InputError, check_one_of
from .._registry import Info, Registry
from ..prompts import Task
from ._batch import Batch, checked_batch


@dataclass(frozen=True, kw_only=True)
class AdapterInfo(Info):
    """An adapter and its description.

    - takes: "features" or "pixels"
    - tunes_text: it returns `Adapted.tuned_text`
    - one_template: it tunes the words of the template, so there can be only one
    - one_view: settings under which view 0 of the result depends only on view 0, so that a photo needs no other view;
      {} for any settings, None for methods that use the other views
    - takes_attributes: it needs words for each class (`Task(attributes=...)`)
    - under_tda: also register `tda(name)`, TDA's caches on top of its tuned prompt
    - of_prompt: the settings that it passes to the adapter inside its name
    """

    takes: str = "features"
    tunes_text: bool = False
    one_template: bool = False
    takes_attributes: bool = False
    one_view: Mapping[str, Any] | None = None
    under_tda: bool = False
    of_prompt: tuple[str, ...] = ()

    @property
    def online(self) -> bool:
        """Whether it carries a state from sample to sample, so that the order of samples matters."""
        return "state" in self.settings

    def uses_one_view(self, given: Mapping[str, Any]) -> bool:
        """Whether a photo needs only its weak view under the given settings."""
        if self.one_view is None:
            return False
        settings = {**self.settings, **given}
        return all(settings[name] == value for name, value in self.one_view.items())

    @property
    def kind(self) -> str:
        """As tables print it."""
        return "online" if self.online else "episodic"


ADAPTERS = Registry("adapter", "cots.adapters", AdapterInfo)


@dataclass(frozen=True, kw_only=True, repr=False)
class Adapted(Generic[Arrays]):
    """Logits of all views before and after adaptation, `(V,K)` or `(B,V,K)`, including the logit scale.

    - state: what an online method carries to the next call; None for episodic methods
    - tuned_text: computes the text features `(B,K,D)` behind `logits`, if the method tunes them
    """

    zero_shot_logits: Arrays
    logits: Arrays
    state: Any = None
    tuned_text: Callable[[], Tensor] | None = None

    def __repr__(self) -> str:
        state = "" if self.state is None else f", state={type(self.state).__name__}"
        return f"Adapted(zero_shot_logits and logits of shape {tuple(self.logits.shape)}{state})"


_tuner_watchers: list[Callable[[str], None]] = []


def adapter(name: str, *, takes: str = "features", under_tda: bool = False, **described: Any):
    """Register an adaptation method: `function(batch, *, settings...) -> Adapted`.

    `batch.features` are view features `(B,V,D)`, or `batch.pixels` `(B,V,3,H,W)` with `takes="pixels"`, with the device
    and dtype of `batch.task`; `batch.zero_shot` and the other members of `cots.adapters.Batch` are work that adapters
    share. Keyword-only parameters are the method's settings. One named `state` makes the method online: it is None at
    first, then the `Adapted.state` of the previous call (a dataclass of tensors is saved with a run). Results of
    episodic methods must not depend on other samples. described: title, cite, place, headline, tunes_text,
    one_template, takes_attributes, one_view.

    >>> import cots
    >>> @cots.adapter("halved", title="Halved")
    ... def halved(batch, *, factor=0.5):
    ...     return cots.Adapted(zero_shot_logits=batch.zero_shot, logits=factor * batch.zero_shot)
    >>> from cots.adapters import ADAPTERS; ADAPTERS.unregister("halved")
    """
    check_one_of("takes", takes, ("features", "pixels"))

    def add(function: Callable[..., Adapted]) -> Callable[..., Adapted]:
        _check_signature(name, function)
        ADAPTERS.register(name, takes=takes, under_tda=under_tda, **described)(function)
        if under_tda:
            for watcher in _tuner_watchers:
                watcher(name)
        return function

    return add


def watch_tuners(watcher: Callable[[str], None]) -> None:
    """Call `watcher` with the name of every adapter that is registered with `under_tda`, now and later."""
    for name in ADAPTERS.registered():
        if ADAPTERS.info(name).under_tda:
            watcher(name)
    _tuner_watchers.append(watcher)


@overload
def adapt(  # pyright: ignore[reportOverlappingOverload]
    name: str, inputs: Tensor, task: Task, **settings: Any
) -> Adapted[Tensor]: ...


@overload
def adapt(name: str, inputs: Any, task: Task, **settings: Any) -> Adapted[np.ndarray]: ...


@default_modes()
def adapt(name: str, inputs: Any, task: Task, **settings: Any) -> Adapted:
    """Adapt to each sample with the named method; samples are independent and batched.

    inputs: L2-normalised view features `(V,D)` or `(B,V,D)`, view 0 being the weak one (`ttl` takes pixels). Results
    are torch or numpy, like the inputs. Settings are those of the method, such as `steps`, `lr`, `rho` and `weight`.

    >>> import cots, torch
    >>> task = cots.Task(cots.load("mini"), ["cat", "dog", "car"])
    >>> views = torch.nn.functional.normalize(torch.randn(16, 256), dim=-1)
    >>> adapted = cots.adapt("tpt", views, task, steps=1)
    >>> adapted.zero_shot_logits.shape, adapted.logits.shape
    (torch.Size([16, 3]), torch.Size([16, 3]))
    """
    info = ADAPTERS.info(name)
    ADAPTERS.check_settings(name, settings)
    check_task(name, task)
    adapted = adapt_batch(name, checked_batch(inputs, task, info.takes), settings)
    zero_shot, logits = adapted.zero_shot_logits, adapted.logits
    if np.ndim(inputs) < (3 if info.takes == "features" else 5):
        zero_shot, logits = zero_shot[0], logits[0]
    return replace(adapted, zero_shot_logits=like(zero_shot, inputs), logits=like(logits, inputs))


def adapt_batch(name: str, batch: Batch, settings: Mapping[str, Any]) -> Adapted:
    """Like `adapt`, for inputs and settings that were checked."""
    function = ADAPTERS.get(name)
    _check_signature(name, function)
    if not ADAPTERS.built_in(name):
        with unchanged(f"adapter {name!r}", {batch.takes: batch.inputs}):
            adapted = function(batch, **settings)
        _check_result(name, adapted, batch)
        return adapted
    info, tower = ADAPTERS.info(name), batch.task.tower
    if batch.shared or info.takes == "pixels" or info.online or not tower.compiles:
        return function(batch, **settings)
    return _adapt_compiled(functools.partial(function, **settings), batch, info.tunes_text)


def _adapt_compiled(function: Callable[[Batch], Adapted], batch: Batch, tunes_text: bool) -> Adapted:
    """The result of an episodic method, compiled."""
    task = batch.task

    def run(features_BVD: Tensor) -> tuple[Tensor, ...]:
        adapted = function(Batch(features_BVD, task))
        return adapted.zero_shot_logits, adapted.logits

    def tuned_text() -> Tensor:
        text = function(batch).tuned_text
        assert text is not None
        return text()

    zero_shot, logits = task.tower.compiled(run)(batch.features)
    return Adapted(zero_shot_logits=zero_shot, logits=logits, tuned_text=tuned_text if tunes_text else None)


def check_task(name: str, task: Task) -> None:
    """Refuse a method that tunes the words of one template on a task with several, or without attributes it needs."""
    if ADAPTERS.info(name).one_template and task.averaged:
        others = ", ".join(info.name for info in ADAPTERS.infos() if not info.one_template)
        raise InputError(
            f"{name} tunes the words of one template, but the task has {task.texts}. Use one template, or a "
            f"method that takes several: {others}."
        )
    if ADAPTERS.info(name).takes_attributes and task.attributes is None:
        raise InputError(f"{name} needs words for each class. Pass attributes (--attributes FILE).")


@functools.lru_cache(maxsize=256)
def _check_signature(name: str, function: Callable[..., Any]) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) != 1:
        raise InputError(
            f"adapter {name!r} must take the batch and keyword-only settings, not ({', '.join(positional)}): write "
            f"def {name}(batch, *, ...), and batch.features and batch.task for features and task."
        )


def _check_result(name: str, adapted: Any, batch: Batch) -> None:
    if not isinstance(adapted, Adapted):
        raise InputError(f"adapter {name!r} must return cots.Adapted, not {type(adapted).__name__}.")
    expected = (*batch.inputs.shape[:2], len(batch.task.classes))
    for which in ("zero_shot_logits", "logits"):
        value = getattr(adapted, which)
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if got != expected:
            raise InputError(
                f"adapter {name!r} must return {which} of shape {expected}, (samples, views, classes), as a torch "
                f"tensor, not {got}."
            )
