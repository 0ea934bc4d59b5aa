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
from .adapters import ADAPTERS, Adapted, Batch, adapt_batch, check_templates
from .calibrators import CALIBRATORS, Calibrated, calibrate_batch, check_call
from .methods import Method, parse_method
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

    - adapter_settings, calibrator_settings: settings by name
    - ranges: compute each `Outcome.confidence_range`
    - states: the state of each online adapter; set it to resume a stream

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
        self._adapter_settings, self._calibrator_settings = adapter_settings or {}, calibrator_settings or {}
        for method in self.methods:
            method.check_settings(
                self._adapter_settings.get(method.adapter, {}), self._calibrator_settings.get(method.calibrator, {})
            )
            check_templates(method.adapter, task)

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
        - advance: online adapters whose state advances even if none of their methods runs
        """
        methods = self.methods if methods is None else methods
        adapters = list(dict.fromkeys([*(method.adapter for method in methods), *advance]))
        shared = len(set(adapters) - {"zeroshot"}) > 1
        parts: dict[str, list[Adapted]] = {name: [] for name in adapters}
        for piece in [inputs] if isinstance(inputs, Tensor) else inputs:
            batches: dict[str, Batch] = {}
            for name in adapters:
                takes = ADAPTERS.info(name).takes
                if takes not in batches:
                    batches[takes] = self.batch(piece, self.task, takes, shared=shared)
                parts[name].append(self.adapt(name, batches[takes]))
        adapted = {name: _joined(pieces) for name, pieces in parts.items() if pieces}
        return {method: self._outcome(method, adapted[method.adapter]) for method in methods if adapted}

    def adapt(self, name: str, batch: Batch) -> Adapted:
        """The result of one adapter; the state of an online one advances."""
        settings = self._adapter_settings.get(name, {})
        if not ADAPTERS.info(name).online:
            return adapt_batch(name, batch, settings)
        adapted = adapt_batch(name, batch, {**settings, "state": self.states.get(name)})
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
        if calibrated.views.shape[1]:
            again = functools.partial(calibrate_batch, method.calibrator, call=self._call(method, adapted))
            return confidence_range(adapted, calibrated.confidence, again)
        if method.adapter == "zeroshot":  # nothing in it is random
            return torch.stack([calibrated.confidence, calibrated.confidence], 1)
        return None

    def _call(self, method: Method, adapted: Adapted) -> dict[str, Any]:
        """The settings of the method's calibrator, with those that depend on the task or on the batch."""
        given = {"alpha": self.task.alpha, **self._calibrator_settings.get(method.calibrator, {})}
        if adapted.tuned_text and "tuned_features" in CALIBRATORS.settings(method.calibrator):
            given |= {"text_features": self.task.text_features, "tuned_features": adapted.tuned_text()}
        return check_call(method.calibrator, given)


def _joined(parts: Sequence[Adapted]) -> Adapted:
    if len(parts) == 1:
        return parts[0]
    texts = [part.tuned_text for part in parts if part.tuned_text]
    return Adapted(
        zero_shot_logits=torch.cat([part.zero_shot_logits for part in parts]),
        logits=torch.cat([part.logits for part in parts]),
        tuned_text=(lambda: torch.cat([text() for text in texts])) if texts else None,
    )
