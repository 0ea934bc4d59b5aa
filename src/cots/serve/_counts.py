"""Counters, gauges and histograms in Prometheus' text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Counts below each of `bounds`, by label values."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.rows: dict[tuple[str, ...], list[float]] = {}

    def add(self, value: float, *labels: str) -> None:
        row = self.rows.setdefault(labels, [0.0] * (len(self.bounds) + 2))
        row[bisect_left(self.bounds, value)] += 1
        row[-1] += value

    def lines(self, name: str, names: tuple[str, ...]) -> Iterable[str]:
        for labels, row in sorted(self.rows.items()):
            pairs, running = list(zip(names, labels, strict=True)), 0
            for bound, count in zip((*self.bounds, None), row[:-1], strict=True):
                running += int(count)
                shown = "+Inf" if bound is None else f"{bound:g}"
                yield f"{name}_bucket{_labels([*pairs, ('le', shown)])} {running}"
            yield f"{name}_sum{_labels(pairs)} {row[-1]:.9g}"
            yield f"{name}_count{_labels(pairs)} {running}"


class Counts:
    """What a server has done so far; `text()` is what /metrics answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str, str], int] = {}
        self._latency = Histogram(SECONDS)
        self._batches = Histogram(SIZES)
        self._gauges: list[tuple[str, str, Callable[[], float]]] = []
        self._in_flight = 0
        self.gauge("cots_requests_in_flight", "Requests that have arrived and have no answer yet.", self.in_flight)

    def gauge(self, name: str, explained: str, value: Callable[[], float]) -> None:
        """Show a number that is looked up when it is asked for."""
        self._gauges.append((name, explained, value))

    def in_flight(self) -> int:
        return self._in_flight

    def arrived(self) -> None:
        with self._lock:
            self._in_flight += 1

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self._in_flight -= 1
            key = method, route, str(status)
            self._requests[key] = self._requests.get(key, 0) + 1
            self._latency.add(seconds, route)

    def batch(self, size: int) -> None:
        with self._lock:
            self._batches.add(size)

    def text(self) -> str:
        lines: list[str] = []

        def head(name: str, kind: str, explained: str) -> None:
            lines.extend((f"# HELP {name} {explained}", f"# TYPE {name} {kind}"))

        with self._lock:
            head("cots_requests_total", "counter", "Requests answered, by method, route and status.")
            for key, count in sorted(self._requests.items()):
                pairs = list(zip(("method", "route", "code"), key, strict=True))
                lines.append(f"cots_requests_total{_labels(pairs)} {count}")
            head("cots_request_seconds", "histogram", "Seconds from a request's first byte to its answer, by route.")
            lines.extend(self._latency.lines("cots_request_seconds", ("route",)))
            head("cots_batch_size", "histogram", "Requests that ran together on a device.")
            lines.extend(self._batches.lines("cots_batch_size", ()))
        for name, explained, value in self._gauges:
            head(name, "gauge", explained)
            lines.append(f"{name} {value():.15g}")
        return "\n".join(lines) + "\n"


def _labels(pairs: Sequence[tuple[str, str]]) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in pairs) + "}" if pairs else ""
