"""The routes: thin functions between HTTP and the engine."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from ..adapters import ADAPTERS
from ..backbones import Backbone
from ..calibrators import CALIBRATORS
from ..data import sample_photos
from ..fast.memory import card_bytes
from ..prompts import class_list, class_lists
from ..watch import Watch
from . import _schemas as schemas
from ._calibrate import CalibrateRequest, calibrate_body
from ._engine import Closed, Engine, Full, Late
from ._gate import Gate
from ._json import read_body
from ._metrics import Metrics
from ._predict import PhotoAnswer, Predictor, write_batch
from ._requests import (
    PredictFields,
    PredictRequest,
    RefusedPhoto,
    content_type,
    offered,
    read_batch,
    read_predict,
)
from ._runs import RunDetail, RunFolders, Runs
from ._schemas import ApiError
from ._settings import ServeSettings

TASK_CACHE = 512 * 2**20  # bytes for cached tasks in the memory of the host
STATIC = Path(__file__).parent / "static"
CONTENT_TYPES = {
    ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
    ".json": "application/json", ".jpg": "image/jpeg",
}  # fmt: skip
FOR_ALL_PHOTOS = ("queue_full", "stopping")  # errors that fail a whole batch of photos
QUEUED = (408, 413, 415, 422, 429, 503, 504)  # error statuses of requests with a body, which wait in the queue
SUGGESTED = ["zeroshot", "tpt", "tpt+cots", "tpt+ecots"]
DESCRIPTION = "Image classification with calibrated confidence, calibration of any model's logits, and benchmark runs."


def make_app(backbones: list[Backbone], settings: ServeSettings) -> FastAPI:
    """See `cots.serve.create_app`."""
    metrics = Metrics()
    workers, watch = len(backbones), Watch(settings.policy and settings.policy.reference)
    predictors = [
        Predictor(backbone, settings, _cache_bytes(backbone, settings, workers), watch) for backbone in backbones
    ]
    # Two batches per GPU: the host reads the photos of one while the other is on the device.
    handlers = [p for p in predictors for _ in range(2 if p.backbone.device.type == "cuda" else 1)]
    engine = Engine(
        handlers, capacity=settings.queue, batch_size=settings.batch_size, batch_s=settings.batch_s,
        observe=metrics.batches.observe,
    )  # fmt: skip
    metrics.gauge("cots_queue_length", "Requests waiting for a device.", lambda: len(engine))
    metrics.gauge("cots_queue_capacity", "Requests that can wait.", lambda: settings.queue)
    metrics.gauge("cots_task_cache_bytes", "Size of the cached tasks.", lambda: sum(p.tasks.bytes for p in predictors))
    metrics.gauge("cots_task_cache_tasks", "Number of cached tasks.", lambda: sum(len(p.tasks) for p in predictors))
    metrics.watch(watch)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(engine.close)

    app = FastAPI(
        title="cots", version=version("cots"), description=DESCRIPTION, lifespan=lifespan,
        docs_url=None, redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.state.engine = engine
    app.include_router(_api(engine, predictors, settings))
    app.include_router(_open(engine, predictors[0], metrics, settings))
    schemas.add_examples(app)
    app.add_exception_handler(HTTPException, _on_error)  # pyright: ignore[reportArgumentType]
    app.add_middleware(Gate, settings=settings, metrics=metrics)
    if settings.origins:  # outermost, because a browser's preflight request has no token
        app.add_middleware(
            CORSMiddleware, allow_origins=sorted(settings.origins), allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )  # fmt: skip
    return app


def _cache_bytes(backbone: Backbone, settings: ServeSettings, workers: int) -> int:
    if settings.task_cache_bytes is None and backbone.device.type == "cuda":
        return card_bytes(backbone.device) // 5
    return (settings.task_cache_bytes or TASK_CACHE) // workers


async def _on_error(request: Request, error: HTTPException) -> Response:
    if not isinstance(error, ApiError):
        code, message = {
            404: ("not_found", "No such address; /docs lists all addresses."),
            405: ("method_not_allowed", "This address does not support this method; /docs lists the methods."),
        }.get(error.status_code, ("http_error", str(error.detail)))
        error = ApiError(error.status_code, code, message, headers=dict(error.headers or {}))
    return error.response()


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


def _api(engine: Engine, predictors: list[Predictor], settings: ServeSettings) -> APIRouter:
    router = APIRouter(prefix="/v1")
    if settings.token:
        router.dependencies, router.responses = [Security(HTTPBearer(auto_error=False))], schemas.errors(401)
    run_folders = RunFolders(settings.runs)

    photo_errors = schemas.errors(400, *QUEUED)
    one, several = (schemas.photo_body(PredictFields, name, settings.max_images) for name in ("image", "images"))

    @router.post(
        "/predict", tags=["predict"], responses=photo_errors, openapi_extra=one, response_model=schemas.PredictAnswer
    )
    async def predict(request: Request) -> Response:
        """Classify one photo with each of the methods, which share one set of views."""
        photo = await read_predict(request, settings)
        answer: PhotoAnswer = await _result(engine, photo, request)
        return Response(await run_in_threadpool(answer.to_json), media_type="application/json")

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

    @router.get("/models", tags=["about"], response_model=schemas.Models)
    async def models() -> Any:
        """The model behind the predictions, once per device."""
        devices = [{"device": str(p.backbone.device), "image_size": list(p.backbone.image_size)} for p in predictors]
        return {"models": [{**predictors[0].model, **one, "default": i == 0} for i, one in enumerate(devices)]}

    @router.get("/methods", tags=["about"], response_model=schemas.Methods)
    async def methods() -> Any:
        """The adapters and calibrators that methods consist of."""
        adapters = [name for name in ADAPTERS if offered(name) is None]
        return {
            "adapters": [{"name": name, "description": ADAPTERS.info(name).summary} for name in adapters],
            "calibrators": [{"name": n, "description": CALIBRATORS.info(n).summary} for n in CALIBRATORS],
            "suggested": SUGGESTED,
        }

    @router.get("/runs", tags=["runs"], response_model=Runs)
    async def runs() -> Any:
        """The available runs, newest first."""
        return {"runs": await run_in_threadpool(run_folders.list)}

    @router.get("/runs/{id}", tags=["runs"], response_model=RunDetail, responses=schemas.errors(404, 422))
    async def run(id: str) -> Any:
        """The table, reliability bins and risk-coverage curves of one run."""
        return await run_in_threadpool(run_folders.detail, id)

    return router


def _open(engine: Engine, predictor: Predictor, metrics: Metrics, settings: ServeSettings) -> APIRouter:
    """Health, metrics, and the page: a fixed list of files, so no path from a request reaches the file system."""
    router = APIRouter()
    files = {f"/static/{file.name}": file for file in STATIC.iterdir() if file.suffix in CONTENT_TYPES}
    samples = {photo.stem: photo for photo in sorted(sample_photos().glob("*.jpg"))}
    files |= {f"/static/sample-{name}.jpg": photo for name, photo in samples.items()}
    files["/static/classes.json"] = STATIC.parents[1] / "embedded" / "classes.json"
    files |= {"/": STATIC / "index.html", "/docs": STATIC / "docs.html"}
    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
    if settings.token:
        text |= schemas.errors(401)

    @router.get("/healthz", tags=["about"], response_model=schemas.Health)
    async def healthz() -> Any:
        """Whether the server is up, and how many requests are waiting."""
        return {"status": "ok", "model": predictor.backbone.name, "queue": len(engine), "version": version("cots")}

    @router.get("/readyz", tags=["about"], response_model=schemas.Ready, responses=schemas.errors(503))
    async def readyz() -> Any:
        """Whether requests are answered: the model is loaded, and the server is not stopping."""
        if engine.closed:
            raise ApiError(503, "stopping", "The server is stopping; send requests to another one.")
        return {"status": "ready", "model": predictor.backbone.name}

    @router.get("/metrics", tags=["about"], response_class=Response, responses=text)
    async def prometheus() -> Response:
        """Metrics in Prometheus text format."""
        return Response(metrics.text(), media_type=Metrics.content_type)

    @router.get("/", include_in_schema=False)
    @router.get("/docs", include_in_schema=False)
    @router.get("/static/{name}", include_in_schema=False)
    async def page(request: Request) -> Response:
        if request.url.path == "/static/samples.json":
            return JSONResponse(list(samples))
        if request.url.path == "/static/lists.json":  # their sizes
            return JSONResponse({name: len(class_list(name)) for name in class_lists()})
        file = files.get(request.scope["route"].path.format(**request.path_params))
        if file is None:
            raise HTTPException(404)
        return Response(file.read_bytes(), media_type=CONTENT_TYPES[file.suffix], headers={"Cache-Control": "no-cache"})

    return router
