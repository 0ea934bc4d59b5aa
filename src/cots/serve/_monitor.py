"""What a server knows about its predictions: changes without labels, and the error rate of those acted on from labels.

Routes: POST /v1/labels and GET /v1/monitor.
"""

import hashlib
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field, ValidationError
from starlette.concurrency import run_in_threadpool

from .._errors import unknown_name
from ..conformal import ErrorMonitor, ErrorRate, Policy
from ..methods import Prediction
from ..watch import SIGNALS, Watch
from . import _schemas as schemas
from ._json import read_body, read_members, read_value
from ._ledger import MOST, Acted, Ledger
from ._requests import content_type
from ._schemas import ApiError, Fraction, Strict, invalid
from ._settings import ServeSettings

log = logging.getLogger("cots.serve")

MAX_LABELS = 1000  # per request
SHOWN = 100  # ids of predictions that wait for a label
SAVE_S = 5.0  # a killed server forgets at most this much of the signals


class Label(Strict):
    """Whether a prediction was right, or the photo's true class."""

    id: str = Field(max_length=64, description="`id` of a result with `ask`.")
    right: bool | None = Field(default=None, description="Whether the prediction was right.")
    label: str | None = Field(default=None, max_length=200, description="Or the true class, one of the policy's.")


class LabelsRequest(Strict):
    """The fields of POST /v1/labels."""

    labels: list[Label] = Field(min_length=1, max_length=MAX_LABELS)


class ErrorAnswer(Strict):
    acted: int = Field(description="Predictions acted on: not abstained, under the server's policy.")
    asked: int = Field(description="Of these, drawn for a label.")
    checked: int = Field(description="Of these, labelled.")
    errors: int
    low: Fraction
    high: Fraction
    level: Fraction = Field(description="Probability that all intervals so far contain the error rate.")
    promise: Fraction | None = Field(description="The policy's error rate; null without a threshold.")
    verdict: str = Field(description="open, kept or broken.")
    text: str
    waiting: list[str] = Field(description=f"The oldest {SHOWN} ids that were asked for and have no label.")
    full: bool = Field(description="Whether the file takes no more predictions.")


class ChangeAnswer(Strict):
    signal: str
    higher: bool
    since: int = Field(description="About the first changed prediction, counted from 1; an estimate.")
    at: int = Field(description="The prediction that raised the alarm.")
    photos: list[str] = Field(description="The most extreme ones: their ids or names.")
    text: str


class ChangesAnswer(Strict):
    predictions: int
    reference: int = Field(description="Predictions compared with at the start; 0 while they are collected.")
    false_alarms: Fraction = Field(description="A false alarm ever has at most this probability.")
    evidence: float = Field(description="1 raises an alarm.")
    alarms: int
    last: list[ChangeAnswer] = Field(description="The last alarms, oldest first.")


class MonitorAnswer(Strict):
    errors: ErrorAnswer | None = Field(description="Null without --monitor.")
    changes: ChangesAnswer


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """The id of a prediction that was acted on, and whether its label is asked for."""

    id: str
    ask: bool


class Monitor:
    """The watch over all predictions, and the ledger of those under the policy, if the server has one."""

    def __init__(self, settings: ServeSettings) -> None:
        self.policy, self._ask = settings.policy, settings.ask
        reference = self.policy.signals if self.policy else None
        self.watch = Watch(tuple(reference or SIGNALS), reference)
        self.ledger: Ledger | None = None
        self._lock, self._saved = threading.Lock(), time.monotonic()
        if settings.monitor is not None and self.policy is not None:
            self.ledger = Ledger(Path(settings.monitor), _digest(self.policy))
            if state := self.ledger.state:
                self.watch = Watch.from_dict(json.loads(state))

    def add(self, prediction: Prediction, name: str) -> Ticket | None:
        """Watch a prediction and, if it is acted on, record it. A file that cannot be written fails no prediction."""
        acted = None
        try:
            if self.ledger is not None and not prediction.abstained:
                answer = prediction.label or prediction.node or ""
                acted = self.ledger.act(answer, prediction.confidence, self._ask)
        except sqlite3.Error:
            log.exception("The prediction could not be recorded in %s", self.ledger and self.ledger.file)
        if self.ledger is not None:  # whose file has no names of photos
            name = acted.id if acted else ""
        alarm = self.watch.add(prediction, name)
        if alarm is not None:
            log.warning("Changed: %s", alarm.text)
        if alarm is not None or time.monotonic() - self._saved > SAVE_S:
            self.save()
        return Ticket(id=acted.id, ask=acted.asked) if acted else None

    def save(self) -> None:
        """Keep the state of the watch in the ledger."""
        if self.ledger is None:
            return
        with self._lock:
            self._saved = time.monotonic()
            try:
                self.ledger.save_state(json.dumps(self.watch.to_dict()))
            except sqlite3.Error:
                log.exception("The state could not be saved in %s", self.ledger.file)

    def close(self) -> None:
        if self.ledger is not None:
            self.save()
            self.ledger.close()

    def error_rate(self) -> ErrorRate | None:
        if self.ledger is None:
            return None
        counts = self.ledger.counts
        monitor = ErrorMonitor(self._promise(), acted=counts.acted, checked=counts.checked, errors=counts.errors)
        return monitor.seen()

    def _promise(self) -> float | None:
        if self.policy is None:
            return None
        if self.policy.ranks is not None:
            return self.policy.ranks.risk
        return self.policy.error.risk if self.policy.error and self.policy.threshold is not None else None

    def answer(self) -> MonitorAnswer:
        seen, rate, errors = self.watch.seen(), self.error_rate(), None
        if self.ledger is not None and rate is not None:
            errors = ErrorAnswer(
                acted=rate.acted, asked=self.ledger.counts.asked, checked=rate.checked, errors=rate.errors,
                low=rate.low, high=rate.high, level=rate.level, promise=rate.risk, verdict=rate.verdict, text=rate.text,
                waiting=self.ledger.waiting(SHOWN), full=rate.acted >= MOST,
            )  # fmt: skip
        last = []
        for alarm in seen.alarms:
            photos = [one.name or f"photo {one.photo}" for one in alarm.extremes]
            last.append(
                ChangeAnswer(
                    signal=alarm.signal, higher=alarm.higher, since=alarm.since, at=alarm.at, photos=photos,
                    text=alarm.text,
                )
            )  # fmt: skip
        changes = ChangesAnswer(
            predictions=seen.n, reference=seen.reference, false_alarms=seen.false_alarms, evidence=seen.evidence,
            alarms=seen.alarmed, last=last,
        )  # fmt: skip
        return MonitorAnswer(errors=errors, changes=changes)

    def label(self, labels: Sequence[Label]) -> None:
        """Record labels, all or none; one that is recorded already is accepted again."""
        if self.ledger is None or self.policy is None:
            raise ApiError(404, "no_monitor", "This server records no predictions; start it with --monitor FILE.")
        known, verdicts = self.ledger.find({one.id for one in labels}), {}
        for one in labels:
            if one.id not in known:
                problem = f"No prediction has the id {one.id!r}; send the id of a result with ask: true."
                raise ApiError(404, "unknown_prediction", problem, "labels")
            acted, wrong = known[one.id], _is_wrong(one, known[one.id], self.policy)
            if not acted.asked:
                problem = (
                    f"The label of {one.id} was not asked for. Only the predictions that were drawn at random, with "
                    "ask: true, give a valid error rate."
                )
                raise ApiError(409, "not_asked", problem, "labels")
            if wrong is not verdicts.get(one.id, (acted, wrong))[1] or acted.wrong not in (None, wrong):
                problem = f"{one.id} has the opposite label already, and the first one counts."
                raise ApiError(409, "contradiction", problem, "labels")
            if acted.wrong is None:
                verdicts[one.id] = (acted, wrong)
        try:
            self.ledger.label(list(verdicts.values()))
        except sqlite3.IntegrityError:  # the same labels in another request at the same time
            raise ApiError(409, "contradiction", "A label was recorded meanwhile; send the request again.") from None
        except sqlite3.Error:
            log.exception("Labels could not be recorded in %s", self.ledger.file)
            raise ApiError(503, "not_stored", "The labels could not be stored; retry later.") from None


def _is_wrong(given: Label, acted: Acted, policy: Policy) -> bool:
    if (given.right is None) == (given.label is None):
        raise invalid("labels", "bad_labels", f"The label of {given.id!r} needs either right or label.")
    if given.right is not None:
        return not given.right
    if acted.answer not in policy.classes:
        problem = f"The answer {acted.answer!r} is a group of classes; send right instead of label."
        raise invalid("labels", "bad_labels", problem)
    if given.label not in policy.classes:
        raise invalid("labels", "unknown_class", str(unknown_name("class", given.label, policy.classes)))
    return given.label != acted.answer


def _digest(policy: Policy) -> str:
    return hashlib.sha256(json.dumps(asdict(policy), default=str).encode()).hexdigest()


def read_labels(body: bytes | bytearray) -> list[Label]:
    """The labels of a JSON body, or an ApiError that names what is wrong."""
    members = read_members(body, LabelsRequest.model_fields)
    given: dict[str, Any] = {name: read_value(name, raw) for name, raw in members.items()}
    try:
        return LabelsRequest.model_validate(given).labels
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))[:100]
        raise invalid("labels", "bad_labels", f"{where}: {first['msg']}.") from None


def add_monitor(router: APIRouter, monitor: Monitor) -> None:
    """Add the routes to the router of the API."""

    @router.get("/monitor", tags=["monitor"])
    async def read_monitor() -> MonitorAnswer:
        """Whether the photos have changed, and how often the predictions acted on are wrong."""
        return await run_in_threadpool(monitor.answer)

    @router.post(
        "/labels", tags=["monitor"], responses=schemas.errors(404, 408, 409, 413, 415, 422, 503),
        openapi_extra=schemas.json_body(LabelsRequest),
    )  # fmt: skip
    async def send_labels(request: Request) -> MonitorAnswer:
        """Say whether predictions that were acted on are right; all labels of a request are recorded, or none."""
        if content_type(request) != "application/json":
            raise ApiError(415, "not_json", "Send the labels as application/json.")
        body = await read_body(request)
        await run_in_threadpool(lambda: monitor.label(read_labels(body)))
        return await run_in_threadpool(monitor.answer)
