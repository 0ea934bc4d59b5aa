"""Adaptation and calibration: features + task + methods -> results, each adapter once per batch.

Classifier, benchmark, server and demo are loops around it; nothing else adapts and then calibrates.
"""

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._arrays import default_modes
from .adapters import ADAPTERS, Adapted, Batch, adapt_batch, check_task
from .calibrators import CALIBRATORS, Calibrated, calibrate_batch, check_call
from .methods import Method, Settings, parse_method
from .prompts import Task
from .ranges import confidence_range


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A method's result for a batch.

    - agreement: (B,), share of the views whose own best class is the prediction; NaN if a view has no finite logits
    - confidence_range: (B,2), the 90% range of the confidence under other random views; None if not requested, or if
      the calibrator uses only the weak view
    """

    calibrated: Calibrated
    agreement: Tensor
    confidence_range: Tensor | None = None


class Pipeline:
    """Methods on one task. Each adapter runs once per batch, and its methods share its logits.

        pipeline = Pipeline(task, ["zeroshot", "tpt", "tpt+cots"])
        pipeline.run(features)[parse_method("tpt+cots")].calibrated.probabilities

    - adapter_settings, calibrator_settings: settings by name; those in a method's own name take precedence
    - ranges: compute each `Outcome.confidence_range`
    - states: the state of each online adapter, as written; set it to resume a stream

    Inputs are not checked: they come from an encoder or from files that were.
    """

    def __init__(
        self,
        task: Task,
        methods: Iterable[str | Method],
        *,
        adapter_settings: Mapping[str, Mapping[str, Any]] | None = None,
        calibrator_settings: Mapping[str, Mapping[str, Any]] | None = None,
        ranges: bool = False,
    ) -> None:
        self.task, self.ranges = task, ranges
        self.methods = tuple(parse_method(method) if isinstance(method, str) else method for method in methods)
        self.states: dict[str, Any] = {}
        self._adapters: dict[str, str] = {}  # registered names, by the adapter as written
        self._adapter_settings: dict[str, dict[str, Any]] = {}  # by adapter as written
        self._calibrator_settings: dict[str, dict[str, Any]] = {}  # by calibrator as written
        for method in self.methods:
            adapter = _settings_of(method.adapter, method.base, method.adapter_settings, adapter_settings or {})
            calibrator = _settings_of(
                method.calibrator, method.correction, method.calibrator_settings, calibrator_settings or {}
            )
            method.check_settings(adapter, calibrator)
            check_task(method.adapter, task)
            self._adapters[method.base] = method.adapter
            self._adapter_settings[method.base] = adapter
            self._calibrator_settings[method.correction] = calibrator

    batch = Batch

    @default_modes()
    def run(
        self,
        inputs: Tensor | Iterable[Tensor],
        methods: Collection[Method] | None = None,
        advance: Collection[str] = (),
    ) -> dict[Method, Outcome]:
        """The outcome of each method on a batch.

        - inputs: features `(B,V,D)` or pixels `(B,V,3,H,W)`, whichever the adapters take, as one tensor or an iterable
          of pieces; an empty iterable gives no outcomes
        - methods: a subset to run
        - advance: online adapters, as written, whose state advances even if none of their methods runs
        """
        methods = self.methods if methods is None else methods
        adapters = list(dict.fromkeys([*(method.base for method in methods), *advance]))
        shared = len(set(adapters) - {"zeroshot"}) > 1
        parts: dict[str, list[Adapted]] = {name: [] for name in adapters}
        for piece in [inputs] if isinstance(inputs, Tensor) else inputs:
            batches: dict[str, Batch] = {}
            for name in adapters:
                takes = ADAPTERS.info(self._adapters[name]).takes
                if takes not in batches:
                    batches[takes] = self.batch(piece, self.task, takes, shared=shared)
                parts[name].append(self.adapt(name, batches[takes]))
        adapted = {name: _joined(pieces) for name, pieces in parts.items() if pieces}
        return {method: self._outcome(method, adapted[method.base]) for method in methods if adapted}

    def adapt(self, name: str, batch: Batch) -> Adapted:
        """The result of one adapter, as written; the state of an online one advances."""
        adapter, settings = self._adapters[name], self._adapter_settings[name]
        if not ADAPTERS.info(adapter).online:
            return adapt_batch(adapter, batch, settings)
        adapted = adapt_batch(adapter, batch, {**settings, "state": self.states.get(name)})
        self.states[name] = adapted.state
        return adapted

    def calibrate(self, method: Method, adapted: Adapted) -> Calibrated:
        """The result of one calibrator, from the result of its adapter."""
        call = self._call(method, adapted)
        return calibrate_batch(method.calibrator, adapted.logits, adapted.zero_shot_logits, call)

    def _outcome(self, method: Method, adapted: Adapted) -> Outcome:
        calibrated = self.calibrate(method, adapted)
        agrees = (adapted.logits.argmax(-1) == calibrated.prediction[:, None]).float()
        agreement = torch.where(adapted.logits.isfinite().all(-1), agrees, torch.nan).mean(1)
        ends = self._range(method, adapted, calibrated) if self.ranges else None
        return Outcome(calibrated=calibrated, agreement=agreement, confidence_range=ends)

    def _range(self, method: Method, adapted: Adapted, calibrated: Calibrated) -> Tensor | None:
        if not calibrated.views.shape[1]:
            return None
        again = functools.partial(calibrate_batch, method.calibrator, call=self._call(method, adapted))
        return confidence_range(adapted, calibrated.confidence, again)

    def uses_one_view(self, method: Method) -> bool:
        """Whether the method needs only the weak view of a photo, under its settings here."""
        return method.uses_one_view(self._adapter_settings[method.base])

    def _call(self, method: Method, adapted: Adapted) -> dict[str, Any]:
        """The settings of the method's calibrator, with those that depend on the task or on the batch."""
        given = {"alpha": self.task.alpha, **self._calibrator_settings[method.correction]}
        if adapted.tuned_text and "tuned_features" in CALIBRATORS.settings(method.calibrator):
            given |= {"text_features": self.task.text_features, "tuned_features": adapted.tuned_text()}
        return check_call(method.calibrator, given)


def _settings_of(name: str, written: str, own: Settings, given: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of a part: those given for its name, then those for what is written, then those within it."""
    return {**given.get(name, {}), **given.get(written, {}), **dict(own)}


def _joined(parts: Sequence[Adapted]) -> Adapted:
    if len(parts) == 1:
        return parts[0]
    texts = [part.tuned_text for part in parts if part.tuned_text]
    return Adapted(
        zero_shot_logits=torch.cat([part.zero_shot_logits for part in parts]),
        logits=torch.cat([part.logits for part in parts]),
        tuned_text=(lambda: torch.cat([text() for text in texts])) if texts else None,
    )
