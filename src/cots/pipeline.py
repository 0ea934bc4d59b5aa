"""The pipeline: features + task + methods -> results, each adapter once per batch.

Classifier, benchmark, server and demo are loops around it; nothing else combines `adapt` and `calibrate`.
"""

import functools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .adapters import ADAPTERS, Adapted, Start, adapt, clock, replay
from .calibrators import CALIBRATORS, Calibrated, calibrate
from .calibrators._api import begin_calibration
from .methods import Method, parse_method
from .prompts import Task

RESAMPLES = 40  # of the strong views, for the confidence range
RESAMPLED_AT_ONCE = 2**24  # logits in memory while resampling
# Whether recorded graphs had valid inputs, and a call without a graph, which raises the error. Reading a flag waits for
# the GPU, so flags are read once all work of a batch is under way.
Unchecked = list[tuple[Tensor, Callable[[], object]]]
WIDEN = 3.0  # chosen to cover 90% of photos with a confidence below 95%; see docs/acting.md


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A method's result for a batch, and its milliseconds per sample (NaN if untimed).

    agreement: (B,), share of the views whose own best class is the prediction. confidence_range: (B,2), the 90% range
    of the confidence under other random views; None if not requested, or if the calibrator uses only the weak view.
    """

    calibrated: Calibrated
    milliseconds: float
    agreement: Tensor
    confidence_range: Tensor | None = None


class Pipeline:
    """Methods on one task. Each adapter runs once per batch, and its methods share its logits.

        pipeline = Pipeline(task, ["zeroshot", "tpt", "tpt+cots"])
        pipeline.run(features)[parse_method("tpt+cots")].calibrated.probabilities

    adapter_settings, calibrator_settings: settings by name. `states` has the state of each online adapter and can be
    set to resume a stream. timed: measure milliseconds, which synchronises a GPU. A method's milliseconds are its own
    time plus that of the shared work it uses (see `Start`), so they depend neither on the other methods nor on their
    order. ranges: compute each `Outcome.confidence_range`, which is not timed.
    """

    def __init__(
        self,
        task: Task,
        methods: Iterable[str | Method],
        *,
        adapter_settings: Mapping[str, Mapping[str, Any]] | None = None,
        calibrator_settings: Mapping[str, Mapping[str, Any]] | None = None,
        timed: bool = False,
        ranges: bool = False,
    ) -> None:
        self.task, self.timed, self.ranges = task, timed, ranges
        self._clock = clock(task, timed)
        self.methods = tuple(parse_method(m) if isinstance(m, str) else m for m in methods)
        self._adapter_settings, self._calibrator_settings = adapter_settings or {}, calibrator_settings or {}
        for method in self.methods:
            method.check_settings(
                self._adapter_settings.get(method.adapter, {}), self._calibrator_settings.get(method.calibrator, {})
            )
        self.states: dict[str, Any] = {}

    def run(
        self,
        inputs: Tensor | Iterable[Tensor],
        methods: Collection[Method] | None = None,
        advance: Collection[str] = (),
    ) -> dict[Method, Outcome]:
        """The outcome of each method on a batch.

        inputs: features `(B,V,D)` or pixels `(B,V,3,H,W)`, whichever the adapters take, as one tensor or an iterable of
        pieces; an empty iterable gives no outcomes. methods: a subset to run. advance: online adapters whose state
        advances even if none of their methods runs.
        """
        wanted = self.methods if methods is None else methods
        unchecked: Unchecked = []
        adapters = dict.fromkeys([*(method.adapter for method in wanted), *advance])
        parts: dict[str, list[Adapted]] = {name: [] for name in adapters}
        seconds = dict.fromkeys(adapters, 0.0)
        alone = len(adapters.keys() - {"zeroshot"}) <= 1  # nothing to share
        for piece in [inputs] if isinstance(inputs, Tensor) else inputs:
            starts: dict[str, Start | Tensor] = {}
            for name in adapters:
                takes = ADAPTERS.info(name).takes
                if takes not in starts:
                    starts[takes] = piece if alone else Start(piece, self.task, takes, timed=self.timed)
                adapted, spent = self._adapt(name, starts[takes], unchecked)
                parts[name].append(adapted)
                seconds[name] += spent
        if not all(parts.values()):
            return {}
        joined = {name: _joined(parts[name]) for name in dict.fromkeys(method.adapter for method in wanted)}
        try:
            return {one: self._calibrate(one, joined[one.adapter], seconds[one.adapter], unchecked) for one in wanted}
        finally:
            if unchecked and not bool(functools.reduce(operator.and_, (valid for valid, _ in unchecked))):
                for valid, again in unchecked:
                    if not bool(valid):
                        again()

    def _adapt(self, name: str, start: Start | Tensor, unchecked: Unchecked) -> tuple[Adapted, float]:
        """An adapter's result and seconds."""
        settings = dict(self._adapter_settings.get(name, {}))
        online = ADAPTERS.info(name).online
        if online:
            settings["state"] = self.states.get(name)
        began = self._clock()
        if isinstance(start, Tensor) and (replayed := replay(name, start, self.task, settings)) is not None:
            adapted, valid = replayed
            seconds = self._clock() - began
            unchecked.append((valid, functools.partial(adapt, name, start, self.task, **settings)))
        else:
            if isinstance(start, Tensor):
                start = Start(start, self.task, ADAPTERS.info(name).takes, timed=self.timed)
            start.used.clear()
            began, aside = start.clock(), start.aside
            adapted = adapt(name, start, self.task, **settings)
            own = start.clock() - began - (start.aside - aside)
            seconds = own + sum(start.shared[part] for part in start.used)
        if online:
            self.states[name] = adapted.state
        return adapted, seconds

    def _calibrate(self, method: Method, adapted: Adapted, adapting: float, unchecked: Unchecked) -> Outcome:
        settings = {"alpha": self.task.alpha, **self._calibrator_settings.get(method.calibrator, {})}
        began = self._clock()
        if adapted.tuned_text and "tuned_features" in CALIBRATORS.settings(method.calibrator):
            settings |= {"text_features": self.task.text_features, "tuned_features": adapted.tuned_text()}
        logits = adapted.logits, adapted.zero_shot_logits
        calibrated, valid = begin_calibration(*logits, method.calibrator, **settings)
        if valid is not None:
            unchecked.append((valid, functools.partial(calibrate, *logits, method.calibrator, **settings)))
        seconds = adapting + self._clock() - began
        per_sample = seconds / max(1, len(adapted.logits))
        milliseconds = 1000 * per_sample if self.timed else math.nan
        ends = self._range(method, adapted, calibrated, settings) if self.ranges else None
        agreement = (adapted.logits.argmax(-1) == calibrated.prediction[:, None]).float().mean(1)
        return Outcome(calibrated=calibrated, milliseconds=milliseconds, agreement=agreement, confidence_range=ends)

    def _range(
        self, method: Method, adapted: Adapted, calibrated: Calibrated, settings: Mapping[str, Any]
    ) -> Tensor | None:
        """The 90% range (B,2): logit(confidence) -+ WIDEN * 1.645 standard deviations under resampled strong views.

        Selection and calibration are repeated, adaptation is not. Another draw of views also has another centre and
        tunes another prompt; WIDEN accounts for both, and docs/acting.md has the measured coverage.
        """
        confidence_B = calibrated.confidence
        fixed = torch.stack([confidence_B, confidence_B], 1)
        if calibrated.views.shape[1] == 0:
            return fixed if method.adapter == "zeroshot" else None
        views, classes = adapted.logits.shape[1:]
        if views == 1:
            return fixed
        draws = torch.Generator().manual_seed(0)
        index_RV = torch.randint(1, views, (RESAMPLES, views), generator=draws)
        index_RV[:, 0] = 0  # the weak view is not random
        index_RV = index_RV.to(adapted.logits.device)
        found = []
        for place in torch.arange(len(confidence_B)).split(max(1, RESAMPLED_AT_ONCE // (RESAMPLES * views * classes))):
            logits = (each[place][:, index_RV].flatten(0, 1) for each in (adapted.logits, adapted.zero_shot_logits))
            again = calibrate(*logits, method=method.calibrator, **settings).confidence
            found.append(_logit(again).unflatten(0, (len(place), RESAMPLES)).std(1))
        spread_B = WIDEN * 1.645 * torch.cat(found)
        return torch.stack([(_logit(confidence_B) + side * spread_B).sigmoid() for side in (-1, 1)], 1)


def _logit(confidence: Tensor) -> Tensor:
    return confidence.double().logit(eps=1e-6)


def _joined(parts: Sequence[Adapted]) -> Adapted:
    if len(parts) == 1:
        return parts[0]
    texts = [part.tuned_text for part in parts if part.tuned_text]
    return Adapted(
        zero_shot_logits=torch.cat([part.zero_shot_logits for part in parts]),
        logits=torch.cat([part.logits for part in parts]),
        tuned_text=(lambda: torch.cat([text() for text in texts])) if texts else None,
    )
