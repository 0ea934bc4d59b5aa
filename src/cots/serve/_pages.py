"""The page, and the reports of runs: a fixed list of files, so no path from a request reaches the file system."""

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from ..classes import class_list, class_lists
from ..data import sample_photos
from ._runs import REPORT_POLICY, RunFolders

STATIC = Path(__file__).parent / "static"
CONTENT_TYPES = {
    ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
    ".json": "application/json", ".jpg": "image/jpeg",
}  # fmt: skip


def add_pages(router: APIRouter, runs: RunFolders) -> None:
    """Add the page, its files and the reports."""
    files = {f"/static/{file.name}": file for file in STATIC.iterdir() if file.suffix in CONTENT_TYPES}
    files |= {f"/static/sample-{photo.stem}.jpg": photo for photo in sample_photos().glob("*.jpg")}
    files["/static/classes.json"] = STATIC.parents[1] / "embedded" / "classes.json"
    files |= {"/": STATIC / "index.html", "/docs": STATIC / "docs.html"}

    @router.get("/", include_in_schema=False)
    @router.get("/docs", include_in_schema=False)
    @router.get("/static/{name}", include_in_schema=False)
    async def page(request: Request) -> Response:
        if request.url.path == "/static/lists.json":  # their sizes
            return JSONResponse({name: len(class_list(name)) for name in class_lists()})
        file = files.get(request.scope["route"].path.format(**request.path_params))
        if file is None:
            raise HTTPException(404)
        return Response(file.read_bytes(), media_type=CONTENT_TYPES[file.suffix], headers={"Cache-Control": "no-cache"})

    @router.get("/reports/{id}", include_in_schema=False)
    async def report(id: str, key: str = "") -> Response:
        page = await run_in_threadpool(runs.report, id, key)
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})
