"""The Prometheus metrics of a server."""

import math
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..conformal import ErrorRate
from ..watch import WINDOW, Watch

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32)


class Metrics:
    """The Prometheus metrics of one application."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ("method", "route", "code")
        self.requests = Counter("cots_requests", "Responses by method, route and status.", labels, registry=registry)
        meaning = "Seconds from the first byte of a request to its response, by route."
        self.seconds = Histogram("cots_request_seconds", meaning, ("route",), buckets=SECONDS, registry=registry)
        self.batches = Histogram("cots_batch_size", "Requests per batch.", buckets=SIZES, registry=registry)
        self.in_flight = Gauge("cots_requests_in_flight", "Requests without a response yet.", registry=registry)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(name, text, registry=self.registry).set_function(value)

    def watch(self, watch: Watch) -> None:
        """Signals of the last predictions: they show when to look at the photos, not whether predictions are right."""
        recent = f"the last {WINDOW} predictions"
        for name, signal, text in (
            ("confidence_mean", "confidence", "Mean confidence"),
            ("view_agreement_mean", "agreement", "Share of the views that agree with the answer"),
            ("none_of_these_share", "none_of_these", "Share of photos that seem to show none of the classes"),
        ):
            mean = f"{text} over {recent}."
            self.gauge(f"cots_{name}", mean, lambda signal=signal: watch.seen().means.get(signal, math.nan))
        for name, field, text in (
            ("predictions", "n", "Predictions watched so far."),
            ("drift_alarms", "alarmed", "Changes noticed so far; a false one ever has probability 1% at most."),
            ("drift_evidence", "evidence", "Evidence of a change; 1 raises an alarm."),
            ("drift_reference", "reference", "Predictions in the reference; 0 while the first ones are collected."),
        ):
            self.gauge(f"cots_{name}", text, lambda field=field: getattr(watch.seen(), field))

    def error_rate(self, rate: Callable[[], ErrorRate | None]) -> None:
        """The interval of the error rate of the predictions acted on; NaN without a monitor."""
        for name, text in (
            ("acted", "Predictions acted on under the policy."),
            ("checked", "Predictions acted on that have a label."),
            ("low", "Lower end of the error rate of the predictions acted on."),
            ("high", "Upper end of the error rate of the predictions acted on."),
        ):
            self.gauge(f"cots_error_{name}", text, lambda name=name: getattr(rate(), name, math.nan))

    def text(self) -> bytes:
        return generate_latest(self.registry)
