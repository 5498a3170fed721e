"""Routes of the API that start jobs: fits, comparisons of mappings, and choices of the next runs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from loopscale.app import schemas
from loopscale.app.jobs import Job, Jobs
from loopscale.app.problems import RefusalError, documented
from loopscale.app.schemas import (
    BacktestRequest,
    CompareRequest,
    FitOptions,
    NextRequest,
    PreviewOptions,
    chosen_columns,
)
from loopscale.app.security import Limits
from loopscale.core.errors import InputError
from loopscale.core.text import capital

ARCHIVES = {
    b"\x1f\x8b": "a gzip archive",
    b"PK\x03\x04": "a zip archive or a spreadsheet",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"PAR1": "a Parquet file",
    b"%PDF": "a PDF",
}


def csv_text(content: bytes, name: str, content_type: str) -> str:
    """Return the text of an uploaded CSV file; name the kind of any other file."""
    if content_type.startswith("multipart/"):
        raise RefusalError(415, "send the CSV itself as the body of the request, not as a form")
    for start, kind in ARCHIVES.items():
        if content.startswith(start):
            raise RefusalError(415, f"{name}: this is {kind}; send it unpacked, as CSV text")
    if not content.strip():
        raise InputError("the file is empty", where=name, remedy="its first line should name the columns")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte {error.start + 1} is not UTF-8 text", where=name, remedy="save the file as UTF-8"
        ) from None
    if "\0" in text:
        raise InputError("it holds NUL bytes", where=name, remedy="it should be CSV text")
    return text


JobId = Annotated[str, PathParameter(max_length=40)]
CSV_BODY = {
    "requestBody": {
        "required": True,
        "description": "A sweep: CSV text in UTF-8, a row for each (run, D), columns by their common names.",
        "content": {"text/csv": {"schema": {"type": "string"}}},
    }
}


def fit_routes(jobs: Jobs, limits: Limits) -> APIRouter:
    """Return the routes that start jobs, report on them and stop them."""
    api = APIRouter(prefix="/api", tags=["fit"])

    @api.post(
        "/fit",
        status_code=202,
        response_model=schemas.JobReply,
        responses=documented(415, 422, 429),
        openapi_extra=CSV_BODY,
    )
    async def start_fit(request: Request, options: Annotated[FitOptions, Query()]) -> Response:
        """Fit a law to a sweep. Returns a job; its result has the law, its intervals and diagnostics."""
        content = await request.body()
        text = csv_text(content, options.name, request.headers.get("content-type", ""))
        await run_in_threadpool(_check, text, options, limits)
        task = {"csv": text, "options": options.model_dump()}
        return _started(jobs.start("fit", task, _client(request)))

    @api.post("/preview", response_model=schemas.Preview, responses=documented(415, 422), openapi_extra=CSV_BODY)
    async def preview_csv(request: Request, options: Annotated[PreviewOptions, Query()]) -> JSONResponse:
        """Return the first rows of a sweep, and which column is taken for which field."""
        text = csv_text(await request.body(), options.name, request.headers.get("content-type", ""))
        return JSONResponse(await run_in_threadpool(preview, text, options, limits))

    @api.get("/template.csv", response_class=Response, responses={**documented(), 200: {"content": {"text/csv": {}}}})
    def template_csv() -> Response:
        """Return a CSV file with the columns of a sweep and three rows to replace."""
        return Response(TEMPLATE, media_type="text/csv")

    @api.post(
        "/fits/{id}/compare", status_code=202, response_model=schemas.JobReply, responses=documented(404, 422, 429)
    )
    async def start_comparison(request: Request, id: JobId, body: CompareRequest) -> Response:  # noqa: A002
        """Compare recurrence mappings on held-out rows of a fitted sweep."""
        return _started(jobs.start("comparison", {**_sweep(jobs, id), "request": body.model_dump()}, _client(request)))

    @api.post(
        "/fits/{id}/backtest", status_code=202, response_model=schemas.JobReply, responses=documented(404, 422, 429)
    )
    async def start_backtest(request: Request, id: JobId, body: BacktestRequest) -> Response:  # noqa: A002
        """Hide the largest runs of a fitted sweep, fit the rest, and predict what was hidden."""
        return _started(jobs.start("backtest", {**_sweep(jobs, id), "request": body.model_dump()}, _client(request)))

    @api.post("/fits/{id}/next", status_code=202, response_model=schemas.JobReply, responses=documented(404, 422, 429))
    async def start_next(request: Request, id: JobId, body: NextRequest) -> Response:  # noqa: A002
        """Choose the runs that would reduce the uncertainty of a plan most when added to a fitted sweep."""
        return _started(jobs.start("design", {**_sweep(jobs, id), "request": body.model_dump()}, _client(request)))

    @api.get("/jobs/{id}", response_model=schemas.JobReply, responses=documented(404, 422))
    async def get_job(id: JobId) -> Response:  # noqa: A002
        """Return the state of a job, and its result once it is done."""
        return _reply(jobs.find(id))

    @api.delete("/jobs/{id}", response_model=schemas.JobReply, responses=documented(404, 422))
    async def cancel_job(id: JobId) -> Response:  # noqa: A002
        """Stop a job."""
        return _reply(jobs.cancel(id))

    @api.get("/example.csv", response_class=Response, responses={**documented(), 200: {"content": {"text/csv": {}}}})
    def example_csv() -> Response:
        """Return a simulated sweep to try a fit on."""
        from loopscale.fitting.data.public import simulate_sweep

        sweep = simulate_sweep(tokens=[1e11, 2e11, 3e11, 4e11, 5e11])
        return Response(sweep.csv(), media_type="text/csv")

    @api.get("/micro.csv", response_class=Response, responses={**documented(), 200: {"content": {"text/csv": {}}}})
    def micro_csv() -> Response:
        """Return the measured micro-sweep that ships with loopscale."""
        from loopscale.fitting.data.public import load_micro

        return Response(load_micro().csv(), media_type="text/csv")

    return api


def _check(text: str, options: FitOptions, limits: Limits) -> None:
    """Refuse a file that cannot be fitted in the reply to the upload."""
    from loopscale.app.worker import read_sweep  # imports the fitting code, which the first page does not need

    _check_shape(text, options.name, limits)
    try:
        read_sweep(text, options)
    except InputError as error:
        raise _of_the_page(error, error.where) from None


def _check_shape(text: str, name: str, limits: Limits) -> None:
    """Refuse more rows or columns than are read; any line ending counts."""
    lines = text.splitlines()
    if len(lines) > limits.rows + 1:
        raise RefusalError(413, f"{name}: more than {limits.rows:,} rows; send fewer")
    if any(max(map(line.count, ",;\t")) >= limits.columns for line in lines):
        raise RefusalError(413, f"{name}: more than {limits.columns:,} columns; send fewer")


TEMPLATE = """run,N_act,N_loop,N_total,E,R,tokens,loss
small-dense,85000000,60000000,85000000,1,1,2000000000,3.21
small-looped,85000000,60000000,85000000,1,2,2000000000,3.17
small-moe,85000000,60000000,500000000,8,1,2000000000,3.05
"""
FIELDS = {
    "loss": ("validation loss (nats per token)", True),
    "active": ("active parameters", True),
    "tokens": ("training tokens", True),
    "flops": ("training FLOPs, instead of tokens", False),
    "experts": ("experts per active one", False),
    "recurrence": ("passes through the loop", False),
    "loop": ("parameters of the loop block", False),
    "total": ("stored parameters", False),
    "run": ("name of the run", False),
}
"""Fields of a sweep that the page lets one map: what they are, and whether each is needed."""
PREVIEWED = 5


def preview(text: str, options: PreviewOptions, limits: Limits) -> dict[str, Any]:
    """Return how a sweep is read. A problem that prevents a fit is a sentence in the reply, not an error."""
    _check_shape(text, options.name, limits)
    from loopscale.fitting.data.columns import SYMBOLS, find_columns
    from loopscale.fitting.data.readers import csv_table
    from loopscale.fitting.data.rows import read_rows
    from loopscale.fitting.data.units import UNIT_NAMES

    chosen = chosen_columns(options.columns)
    raw = csv_table(text, options.name)
    table = raw.columns
    if not len(raw):
        raise InputError("there are no rows below the header", where=options.name)
    problem: str | None = None
    try:
        matched = find_columns(table, chosen, options.name)
        notes = read_rows(raw, chosen, {}).notes
    except InputError as error:
        matched, notes = find_columns(table, {}, options.name), ()
        problem = str(_of_the_page(error))
    fields = []
    for name, (label, required) in FIELDS.items():
        column = matched.get(name)
        unit = None if column is None or column.unit is None else f"in {UNIT_NAMES[column.unit]}"
        read = {"symbol": SYMBOLS[name], "column": None if column is None else column.name, "unit": unit}
        fields.append({"name": name, "label": label, "required": required, **read})
    cells = list(zip(*table.values(), strict=True))
    passes = {str(cell).strip() for cell in table[matched["recurrence"].name]} - {""} if "recurrence" in matched else ()
    return {
        "columns": list(table),
        "rows": [[str(cell) for cell in row] for row in cells[:PREVIEWED]],
        "fields": fields,
        "used": {column.name: SYMBOLS[name] for name, column in matched.items()},
        "count": len(cells),
        "notes": [capital(note) for note in notes],
        "needs_loop_share": "loop" not in matched and len(passes) > 1,
        "problem": problem,
    }


def _of_the_page(error: InputError, where: str = "") -> RefusalError:
    """Return a refusal in the terms of the page, where a drop-down names the columns, not an argument."""
    from loopscale.app.worker import PAGE_TERMS
    from loopscale.fitting.data.columns import MissingColumnError

    field, remedy = error.field, error.remedy
    if isinstance(error, MissingColumnError):
        field, remedy = error.needed, "choose the column below"
    sentence = InputError(error.problem, where=where, field=error.field, remedy=remedy).told(PAGE_TERMS.get)
    return RefusalError(422, sentence, field or None)


def _sweep(jobs: Jobs, identity: str) -> dict[str, Any]:
    """Return the data and options of a fit."""
    job = jobs.find(identity)
    if job.kind != "fit":
        raise InputError(f"job {identity!r} is a {job.kind}", remedy="give the id of a fit")
    if "csv" not in job.task:
        raise RefusalError(404, "the data of this fit are no longer kept; send them again")
    return {name: job.task[name] for name in ("csv", "options")}


def _client(request: Request) -> str:
    """Return the address that a request comes from."""
    return request.client.host if request.client is not None else ""


def _started(job: Job) -> Response:
    return _reply(job, 202, {"location": f"/api/jobs/{job.id}"})


def _reply(job: Job, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(job.json(), status, headers, "application/json")
