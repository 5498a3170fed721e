"""The explorer's server: the API and the page, behind the checks of every request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from anyio import to_thread
from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response

from loopscale import __version__
from loopscale.app.api_fit import fit_routes
from loopscale.app.api_plan import plan_routes
from loopscale.app.jobs import Jobs
from loopscale.app.law_store import LawStore
from loopscale.app.page import page_files
from loopscale.app.problems import handle_problems
from loopscale.app.run import LiveRun, run_routes
from loopscale.app.security import LOOPBACK, Guard, Limits
from loopscale.app.sweep import LiveSweep, sweep_routes
from loopscale.scaling import ScalingLaw


def create_app(
    hosts: Iterable[str] = LOOPBACK,
    limits: Limits | None = None,
    sweep: str | Path | None = None,
    token: str | None = None,
    run: str | Path | None = None,
) -> FastAPI:
    """Return the application; it answers requests for ``hosts`` only, and shows a sweep and a run, if given.

    With a ``token``, it answers only those who know it.
    """
    limits = limits or Limits()
    laws = LawStore(limits)

    def keep_law(kind: str, result: dict[str, Any]) -> None:
        if kind == "fit":
            result["law_id"] = laws.add(ScalingLaw.from_dict(result["law"]))

    jobs = Jobs(limits, keep_law)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        to_thread.current_default_thread_limiter().total_tokens = limits.threads
        yield
        await jobs.close()

    app = FastAPI(
        title="loopscale",
        version=__version__,
        summary="Plan, predict and fit looped Mixture-of-Experts language models.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # its page would fetch scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    handle_problems(app)
    live = None if sweep is None else LiveSweep(Path(sweep))
    trained = None if run is None else LiveRun(Path(run))
    app.include_router(
        plan_routes(laws, limits, None if live is None else live.name, None if trained is None else trained.name)
    )
    app.include_router(fit_routes(jobs, limits))
    app.include_router(sweep_routes(live, laws))
    app.include_router(run_routes(trained))

    files = page_files(server=True)  # now: tracing the formulas is not for several threads at once

    def get_file(request: Request) -> Response:
        """Return a file of the page."""
        path = request.url.path.lstrip("/") or "index.html"
        kind = guess_type(path)[0] or "application/octet-stream"
        return Response(files[path], media_type=kind, headers={"cache-control": "no-cache"})

    # A route for each file: one for all paths would answer wrong methods of the API too.
    for path in ("", *files):
        app.add_route(f"/{path}", get_file, methods=["GET"], include_in_schema=False)

    # A low level: on loopback the time to compress a plan counts more than its size.
    app.add_middleware(GZipMiddleware, minimum_size=500, compresslevel=2)
    app.add_middleware(Guard, hosts=hosts, limits=limits, token=token)
    return app
