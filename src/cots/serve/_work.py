"""The routes whose requests wait in the queue: predictions and calibration."""

import asyncio
import time
from functools import partial
from typing import Any

import torch
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from . import _schemas as schemas
from ._calibrate import CalibrateRequest, calibrate_body
from ._engine import Closed, Engine, Full, Late
from ._json import read_body
from ._predict import PhotoAnswer, write_batch
from ._requests import PredictFields, PredictRequest, RefusedPhoto, content_type, read_batch, read_predict
from ._schemas import ApiError
from ._settings import ServeSettings

FOR_ALL_PHOTOS = ("queue_full", "stopping")  # errors that fail a whole batch of photos
QUEUED = (408, 413, 415, 422, 429, 503, 504)  # error statuses of these routes


def add_work(router: APIRouter, engine: Engine, settings: ServeSettings) -> None:
    """Add the routes to the router of the API."""
    photo_errors = schemas.errors(400, *QUEUED)
    one, several = (schemas.photo_body(PredictFields, name, settings.max_images) for name in ("image", "images"))

    @router.post(
        "/predict", tags=["predict"], responses=photo_errors, openapi_extra=one, response_model=schemas.PredictAnswer
    )
    async def predict(request: Request) -> Response:
        """Classify one photo with each of the methods, which share one set of views."""
        photo = await read_predict(request, settings)
        answer: PhotoAnswer = await _result(engine, photo, request)
        content = answer.to_json() if answer.quick else await run_in_threadpool(answer.to_json)
        return Response(content, media_type="application/json")

    @router.post(
        "/predict/batch", tags=["predict"], responses=photo_errors, openapi_extra=several,
        response_model=schemas.BatchAnswer,
    )  # fmt: skip
    async def predict_batch(request: Request) -> Response:
        """Classify several photos; one that fails does not fail the others."""
        photos = await read_batch(request, settings)

        async def outcome(photo: PredictRequest | RefusedPhoto) -> PhotoAnswer | RefusedPhoto:
            if isinstance(photo, RefusedPhoto):
                return photo
            try:
                return await _result(engine, photo, request)
            except ApiError as error:
                if error.code in FOR_ALL_PHOTOS:
                    raise
                return RefusedPhoto(name=photo.name, error=error)

        try:
            async with asyncio.TaskGroup() as group:  # cancels the others when the queue is full
                tasks = [group.create_task(outcome(photo)) for photo in photos]
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        pieces = write_batch([task.result() for task in tasks])
        return StreamingResponse(pieces, media_type="application/json")

    @router.post(
        "/calibrate", tags=["calibrate"], responses=schemas.errors(*QUEUED),
        openapi_extra=schemas.json_body(CalibrateRequest), response_model=schemas.CalibrateAnswer,
    )  # fmt: skip
    async def calibrate(request: Request) -> Response:
        """Calibrate the logits of your own model or method."""
        if content_type(request) != "application/json":
            raise ApiError(415, "not_json", "Send the logits as application/json.")
        body = await read_body(request)
        work = partial(calibrate_body, body, request.scope["cots.deadline"])
        return StreamingResponse(await _result(engine, work, request), media_type="application/json")


async def _result(engine: Engine, item: Any, request: Request) -> Any:
    """The engine's result for an item, or the ApiError that explains why there is none."""
    left = max(0.0, request.scope["cots.deadline"] - time.perf_counter())
    future = None
    try:
        future = engine.submit(item, left)
        return await asyncio.wait_for(asyncio.wrap_future(future), left)
    except Full as full:
        problem = f"The queue is full; retry in {full.args[0]} s."
        raise ApiError(429, "queue_full", problem, headers={"Retry-After": str(full.args[0])}) from None
    except Late as late:
        raise _busy(late.args[0]) from None
    except Closed:
        raise ApiError(503, "stopping", "The server is stopping; send the request to another one.") from None
    except TimeoutError:
        if future is not None and future.cancelled():  # it never started
            raise _busy(engine.retry_s()) from None
        raise ApiError(504, "timeout", "Request timed out; retry later, or send fewer classes.") from None
    except (MemoryError, torch.OutOfMemoryError):
        raise ApiError(503, "no_memory", "Out of memory for this request; send fewer classes.") from None


def _busy(seconds: int) -> ApiError:
    problem = f"The server has more requests than it can answer in time; retry in {seconds} s."
    return ApiError(503, "busy", problem, headers={"Retry-After": str(seconds)})
