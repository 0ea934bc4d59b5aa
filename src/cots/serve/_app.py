"""The application: its parts, and the routes about the server itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import torch
from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from ..adapters import ADAPTERS
from ..backbones import Backbone
from ..calibrators import CALIBRATORS
from ..conformal import Policy
from . import _schemas as schemas
from ._engine import Engine
from ._gate import Gate
from ._metrics import Metrics
from ._monitor import Monitor, add_monitor
from ._pages import add_pages
from ._predict import Predictor
from ._requests import offered
from ._runs import RunFolders, Runs
from ._schemas import ApiError
from ._settings import ServeSettings
from ._work import add_work

TASK_CACHE = 512 * 2**20  # bytes for cached tasks in the memory of the host
LARGE_GPU = 15 * 2**30  # bytes from which a GPU has the memory for three batches
SUGGESTED = ["zeroshot", "tpt", "tpt+cots", "tpt+ecots"]
DESCRIPTION = "Image classification with calibrated confidence, calibration of any model's logits, and benchmark runs."


def make_app(backbones: list[Backbone], settings: ServeSettings) -> FastAPI:
    """See `cots.serve.create_app`."""
    metrics = Metrics()
    workers, monitor = len(backbones), Monitor(settings)
    predictors = [
        Predictor(backbone, settings, _cache_bytes(backbone, settings, workers), monitor) for backbone in backbones
    ]
    handlers = [p for p in predictors for _ in range(_batches(p.backbone.device))]
    engine = Engine(
        handlers, capacity=settings.queue, batch_size=settings.batch_size, batch_s=settings.batch_s,
        observe=metrics.batches.observe,
    )  # fmt: skip
    metrics.gauge("cots_queue_length", "Requests waiting for a device.", lambda: len(engine))
    metrics.gauge("cots_queue_capacity", "Requests that can wait.", lambda: settings.queue)
    metrics.gauge("cots_task_cache_bytes", "Size of the cached tasks.", lambda: sum(p.tasks.bytes for p in predictors))
    metrics.gauge("cots_task_cache_tasks", "Number of cached tasks.", lambda: sum(len(p.tasks) for p in predictors))
    metrics.watch(monitor.watch)
    metrics.error_rate(monitor.error_rate)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(engine.close)
        await run_in_threadpool(monitor.close)

    app = FastAPI(
        title="cots", version=version("cots"), description=DESCRIPTION, lifespan=lifespan,
        docs_url=None, redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.state.engine, app.state.monitor = engine, monitor
    api, rest, runs = APIRouter(prefix="/v1"), APIRouter(), RunFolders(settings.runs, settings.token)
    if settings.token:
        api.dependencies, api.responses = [Security(HTTPBearer(auto_error=False))], schemas.errors(401)
    add_work(api, engine, settings)
    add_monitor(api, monitor)
    _add_about(api, backbones, runs, settings.policy)
    _add_health(rest, engine, backbones[0].name, metrics, settings)
    add_pages(rest, runs)
    for router in (api, rest):
        app.include_router(router)
    schemas.add_examples(app)
    app.add_exception_handler(HTTPException, _on_error)  # pyright: ignore[reportArgumentType]
    app.add_middleware(Gate, settings=settings, metrics=metrics)
    if settings.origins:  # outermost, because a browser's preflight request has no token
        app.add_middleware(
            CORSMiddleware, allow_origins=sorted(settings.origins), allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )  # fmt: skip
    return app


def _batches(device: torch.device) -> int:
    """At a time: on a GPU, one is on the device, one is read and, if memory allows it, one waits for the device."""
    if device.type != "cuda":
        return 1
    return 3 if torch.cuda.get_device_properties(device).total_memory >= LARGE_GPU else 2


def _cache_bytes(backbone: Backbone, settings: ServeSettings, workers: int) -> int:
    if settings.task_cache_bytes is None and backbone.device.type == "cuda":
        return torch.cuda.get_device_properties(backbone.device).total_memory // 5
    return (settings.task_cache_bytes or TASK_CACHE) // workers


async def _on_error(request: Request, error: HTTPException) -> Response:
    if not isinstance(error, ApiError):
        code, message = {
            404: ("not_found", "No such address; /docs lists all addresses."),
            405: ("method_not_allowed", "This address does not support this method; /docs lists the methods."),
        }.get(error.status_code, ("http_error", str(error.detail)))
        error = ApiError(error.status_code, code, message, headers=dict(error.headers or {}))
    return error.response()


def _add_about(router: APIRouter, backbones: list[Backbone], runs: RunFolders, policy: Policy | None) -> None:
    suggested = list(SUGGESTED)
    if policy is not None and policy.method not in suggested:
        suggested.append(policy.method)

    @router.get("/models", tags=["about"])
    async def models() -> schemas.Models:
        """The model behind the predictions, once per device."""
        found = []
        for i, backbone in enumerate(backbones):
            found.append(
                schemas.Model(
                    name=backbone.name, weights_hash=backbone.weights_hash, device=str(backbone.device),
                    image_size=list(backbone.image_size), default=i == 0,
                )
            )  # fmt: skip
        return schemas.Models(models=found)

    @router.get("/methods", tags=["about"])
    async def methods() -> schemas.Methods:
        """The adapters and calibrators that methods consist of."""
        adapters = [info for info in ADAPTERS.infos() if offered(info.name) is None]
        return schemas.Methods(
            adapters=[schemas.Described(name=info.name, description=info.summary) for info in adapters],
            calibrators=[schemas.Described(name=info.name, description=info.summary) for info in CALIBRATORS.infos()],
            suggested=suggested,
        )

    @router.get("/runs", tags=["runs"])
    async def list_runs() -> Runs:
        """The runs in the server's folder, newest first, with the addresses of their reports."""
        return await run_in_threadpool(runs.list)


def _add_health(router: APIRouter, engine: Engine, model: str, metrics: Metrics, settings: ServeSettings) -> None:
    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
    if settings.token:
        text |= schemas.errors(401)

    @router.get("/healthz", tags=["about"])
    async def healthz() -> schemas.Health:
        """Whether the server is up, and how many requests are waiting."""
        return schemas.Health(status="ok", model=model, queue=len(engine), version=version("cots"))

    @router.get("/readyz", tags=["about"], responses=schemas.errors(503))
    async def readyz() -> schemas.Ready:
        """Whether requests are answered: the model is loaded, and the server is not stopping."""
        if engine.closed:
            raise ApiError(503, "stopping", "The server is stopping; send requests to another one.")
        return schemas.Ready(status="ready", model=model)

    @router.get("/metrics", tags=["about"], response_class=Response, responses=text)
    async def prometheus() -> Response:
        """Metrics in Prometheus text format."""
        return Response(metrics.text(), media_type=Metrics.content_type)
