"""The routes: thin functions between HTTP and the engine."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from .._registry import describe
from ..adapters import ADAPTERS
from ..backbones import Backbone
from ..calibrators import CALIBRATORS
from . import _schemas as schemas
from ._calibrate import answer as calibrated
from ._calibrate import read_body
from ._counts import CONTENT_TYPE, Counts
from ._engine import Closed, Engine, Full
from ._errors import ApiError
from ._forms import BODY, read_form
from ._gate import Gate
from ._predict import CallItem, Predictor, offered
from ._runs import RunShelf
from ._settings import ServeSettings

STATIC = Path(__file__).parent / "static"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".json": "application/json",
}
SUGGESTED = ["zeroshot", "tpt", "tpt+cots", "tpt+ecots"]
DESCRIPTION = "A class for an image and a confidence that can be trusted; calibration of anyone's logits; runs."


def make_app(backbones: list[Backbone], settings: ServeSettings) -> FastAPI:
    """See `cots.serve.create_app`."""
    counts = Counts()
    share = settings.task_cache_bytes // len(backbones)
    predictors = [Predictor(backbone, settings, share) for backbone in backbones]
    engine = Engine(
        predictors,
        capacity=settings.queue,
        batch_size=settings.batch_size,
        batch_s=settings.batch_s,
        observe=counts.batch,
    )
    counts.gauge("cots_queue_length", "Requests that wait for a device.", lambda: len(engine))
    counts.gauge("cots_queue_capacity", "Requests that can wait.", lambda: settings.queue)
    counts.gauge("cots_task_cache_bytes", "Bytes kept for class lists.", lambda: sum(p.tasks.bytes for p in predictors))
    counts.gauge("cots_task_cache_tasks", "Class lists kept.", lambda: sum(len(p.tasks) for p in predictors))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(engine.close)

    app = FastAPI(
        title="cots",
        version=version("cots"),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.engine, app.state.settings, app.state.counts = engine, settings, counts
    app.include_router(_api(engine, predictors, settings))
    app.include_router(_open(engine, predictors[0], counts))
    app.add_exception_handler(ApiError, _on_api_error)  # pyright: ignore[reportArgumentType]
    app.add_exception_handler(HTTPException, _on_http_error)  # pyright: ignore[reportArgumentType]
    app.add_exception_handler(RequestValidationError, _on_invalid)  # pyright: ignore[reportArgumentType]
    app.add_middleware(Gate, settings=settings, counts=counts)
    return app


async def _on_api_error(request: Request, error: ApiError) -> Response:
    return JSONResponse(error.body(), error.status, error.headers)


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    message = {
        404: "There is nothing at this address; /docs lists what there is.",
        405: "This address does not take this method; /docs says which it takes.",
    }.get(error.status_code, str(error.detail))
    return JSONResponse(ApiError(error.status_code, code, message).body(), error.status_code, error.headers)


async def _on_invalid(request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    field = next((str(part) for part in reversed(first["loc"]) if isinstance(part, str)), None)
    return JSONResponse(ApiError(422, "invalid", f"{field}: {first['msg']}.", field).body(), 422)


async def _done(engine: Engine, item: Any, request: Request) -> Any:
    """What the engine makes of an item, or the error that says why not."""
    left = max(0.0, request.scope["cots.deadline"] - time.perf_counter())
    try:
        future = asyncio.wrap_future(engine.submit(item))
        return await asyncio.wait_for(future, left)
    except Full as full:
        raise ApiError(
            429,
            "queue_full",
            f"The server has as many requests as it can queue; try again in {full.retry_s} s.",
            headers={"Retry-After": str(full.retry_s)},
        ) from None
    except Closed:
        raise ApiError(503, "stopping", "The server is stopping; send the request to another one.") from None
    except TimeoutError:
        raise ApiError(
            504,
            "timeout",
            "No answer in the time that the server allows: it is busy, or the request is too large for it.",
        ) from None
    except (MemoryError, torch.OutOfMemoryError):
        raise ApiError(503, "no_memory", "The server has no memory for this request; give fewer classes.") from None


def _api(engine: Engine, predictors: list[Predictor], settings: ServeSettings) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Security(HTTPBearer(auto_error=False))])
    shelf = RunShelf(settings.runs)

    @router.post(
        "/predict",
        tags=["predict"],
        response_model=schemas.PredictAnswer,
        responses=schemas.errors(400, 401, 408, 413, 415, 422, 429, 503, 504),
        openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": BODY}}}},
    )
    async def predict(request: Request) -> Any:
        """Classify one image by each of the methods; one set of views serves them all."""
        item = await read_form(request, settings)
        return await _done(engine, item, request)

    @router.post(
        "/calibrate",
        tags=["calibrate"],
        response_model=schemas.CalibrateAnswer,
        responses=schemas.errors(401, 408, 413, 415, 422, 429, 503, 504),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": schemas.CalibrateBody.model_json_schema()}},
            }
        },
    )
    async def calibrate(request: Request) -> Any:
        """Calibrate logits of a method of your own."""
        body = await read_body(request)
        return await _done(engine, CallItem(function=lambda: calibrated(body)), request)

    @router.get("/models", tags=["about"], response_model=schemas.Models, responses=schemas.errors(401))
    async def models() -> Any:
        """The model that predictions are made with, once for each device."""
        return {
            "models": [
                {
                    "name": predictor.backbone.name,
                    "weights_hash": predictor.weights_hash,
                    "device": str(predictor.backbone.device),
                    "image_size": list(predictor.backbone.image_size),
                    "default": place == 0,
                }
                for place, predictor in enumerate(predictors)
            ]
        }

    @router.get("/methods", tags=["about"], response_model=schemas.Methods, responses=schemas.errors(401))
    async def methods() -> Any:
        """The adapters and calibrators that a method can be made of."""
        adapters = [name for name in ADAPTERS if offered(name) is None]
        return {
            "adapters": [{"name": name, "description": describe(ADAPTERS.get(name))} for name in adapters],
            "calibrators": [{"name": n, "description": describe(CALIBRATORS.get(n))} for n in CALIBRATORS],
            "suggested": SUGGESTED,
        }

    @router.get("/runs", tags=["runs"], response_model=schemas.Runs, responses=schemas.errors(401))
    async def runs() -> Any:
        """The runs that can be looked at, the newest first."""
        return {"runs": await run_in_threadpool(shelf.list)}

    @router.get("/runs/{id}", tags=["runs"], response_model=schemas.RunDetail, responses=schemas.errors(401, 404, 422))
    async def run(id: str) -> Any:
        """The table, reliability bins and risk-coverage curves of one run."""
        return await run_in_threadpool(shelf.detail, id)

    return router


def _open(engine: Engine, predictor: Predictor, counts: Counts) -> APIRouter:
    """Health, metrics, and the page: a fixed list of files, so that no path is ever looked up."""
    router = APIRouter()
    files = {
        file.name: file
        for file in (STATIC.iterdir() if STATIC.is_dir() else ())
        if file.suffix in KINDS and re.fullmatch(r"[a-z0-9_-]+\.[a-z]+", file.name)
    }

    def send(name: str) -> Response:
        if name not in files:
            raise ApiError(404, "not_found", "There is nothing at this address; /docs lists what there is.")
        headers = {"Cache-Control": "no-cache"}
        return Response(files[name].read_bytes(), media_type=KINDS[files[name].suffix], headers=headers)

    @router.get("/healthz", tags=["about"], response_model=schemas.Health)
    async def healthz() -> Any:
        """Whether the server is up, and how many requests wait."""
        return {"status": "ok", "model": predictor.backbone.name, "queue": len(engine), "version": version("cots")}

    @router.get(
        "/metrics",
        tags=["about"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **schemas.errors(401)},
    )
    async def metrics() -> Response:
        """Counters in Prometheus' text format."""
        return Response(counts.text(), media_type=CONTENT_TYPE)

    @router.get("/", include_in_schema=False)
    async def index() -> Response:
        return send("index.html")

    @router.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return send("docs.html")

    @router.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return send(name)

    return router
