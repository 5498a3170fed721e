"""Refusals of the API: one sentence each, in one format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import compile_path

from loopscale.core.errors import InputError, LoopscaleError, shown
from loopscale.planning import WithheldError


class RefusalReply(BaseModel):
    """Why a request was refused."""

    error: str = Field(description="One sentence: what was found, and what to do.")
    field: str | None = Field(default=None, description="The field of the request that caused it, if one did.")
    problem: str = Field(default="", description="What is wrong, without the name of the field.")
    remedy: str = Field(default="", description="What to do; fields of the request stand in backquotes.")
    overrides: list[str] = Field(default=[], description="Fields that allow a withheld answer when they are true.")


class RefusalError(Exception):
    """A refusal with its own status, and the field of the request that it is about."""

    def __init__(self, status: int, sentence: str, field: str | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.field = field


def refused(status: int, sentence: str, field: str | None = None, **parts: Any) -> JSONResponse:
    """Return the reply that refuses a request; ``parts`` are further fields of ``RefusalReply``."""
    error = " ".join(sentence.split())
    body = {"error": error, "field": field, "problem": error, "remedy": "", "overrides": [], **parts}
    return JSONResponse(body, status)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the description of the refusals that an endpoint may answer with."""
    return {status: {"model": RefusalReply} for status in (400, 403, 408, 413, *statuses)}


def handle_problems(app: FastAPI) -> None:
    """Make the application answer every bad request in one sentence."""
    app.add_exception_handler(LoopscaleError, _input_error)
    app.add_exception_handler(RefusalError, _refusal)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)


async def _input_error(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, InputError):
        return refused(422, str(error))
    overrides = list(error.overrides) if isinstance(error, WithheldError) else []
    problem = f"{error.where}: {error.problem}" if error.where else error.problem
    return refused(422, str(error), error.field or None, problem=problem, remedy=error.remedy, overrides=overrides)


async def _refusal(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusalError)
    return refused(error.status, str(error), error.field)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    allowed = _methods(request)
    if error.status_code in (404, 405) and allowed:
        reply = refused(405, f"{request.method} is not offered here; use {' or '.join(allowed)}")
        reply.headers["allow"] = ", ".join(allowed)
        return reply
    if error.status_code == 404:
        return refused(404, f"there is nothing at {shown(request.url.path)}")
    return refused(error.status_code, str(error.detail))


def _methods(request: Request) -> list[str]:
    """Return the methods that the API offers at this path; the page's files are mounted over all paths."""
    described = request.app.openapi()["paths"]
    matching = [path for path in described if compile_path(path)[0].fullmatch(request.url.path)]
    return sorted(method.upper() for path in matching for method in described[path])


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = _where(first["loc"])
    if first["type"] == "json_invalid":
        return refused(422, "the request is not JSON: " + str(first.get("ctx", {}).get("error", "it does not parse")))
    found = "" if first["type"] in ("missing", "value_error") else f" (found {shown(first.get('input'))})"
    message = str(first["msg"]).removeprefix("Value error, ")
    what = message[:1].lower() + message[1:]
    problem = f"{what}{found}"
    return refused(422, f"{where}: {problem}" if where else what, where.split(".")[0] or None, problem=problem)


def _where(location: Sequence[Any]) -> str:
    """Return a field's name as the client wrote it, without the names that pydantic adds for branches of a type."""
    named = [str(part) for part in location[1:] if isinstance(part, int) or str(part).isidentifier()]
    return ".".join(named)
