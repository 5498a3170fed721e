"""Jobs in their own processes, a few at a time, with progress and a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loopscale.app.problems import RefusalError
from loopscale.app.security import Limits

LINE = 64_000_000
"""The longest line that a worker may write: the result of a fit with all its resamples."""
OPEN = ("waiting", "running")


@dataclass
class Job:
    """One piece of work and its state."""

    kind: str
    task: dict[str, Any] = field(repr=False)
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    state: str = "waiting"
    stage: str = "Waiting for a free worker"
    done: int = 0
    total: int = 0
    error: str | None = None
    result: bytes | None = field(default=None, repr=False)
    """As JSON, packed: the server keeps many, and as objects they take ten times the memory."""
    running: asyncio.Task[None] | None = field(default=None, repr=False)
    client: str = ""
    asked_at: float = field(default_factory=time.monotonic)
    """When a client last asked for its state; a job without a client is stopped."""

    def json(self) -> bytes:
        """Return what clients see; a result is not read to be written again."""
        names = ("id", "kind", "state", "stage", "done", "total", "error")
        head = json.dumps({name: getattr(self, name) for name in names})
        result = b"null" if self.result is None else zlib.decompress(self.result)
        return head[:-1].encode() + b', "result": ' + result + b"}"

    def end(self, state: str, error: str | None = None) -> None:
        """Record how it ended, unless it has ended already."""
        if self.state in OPEN:
            self.state, self.error = state, error
            if state != "done":
                self.task = {}  # the data of a finished fit are used by comparisons; others are of no more use


class Jobs:
    """The jobs of one server."""

    def __init__(self, limits: Limits, finished: Callable[[str, dict[str, Any]], None]) -> None:
        self._limits = limits
        self._finished = finished
        """Called with the kind and the result of every job that is done, before clients can see it."""
        self._jobs: dict[str, Job] = {}
        self._slots = asyncio.Semaphore(limits.workers)

    def start(self, kind: str, task: dict[str, Any], client: str = "") -> Job:
        """Start a job of a client, or refuse it if too many are waiting."""
        self._stop_abandoned()
        unfinished = [job for job in self._jobs.values() if job.state in OPEN]
        own = sum(job.client == client for job in unfinished)
        if own >= self._limits.client_jobs:
            raise RefusalError(429, f"{own} of your jobs are under way or waiting; wait for some, or cancel them")
        if len(unfinished) >= self._limits.workers + self._limits.waiting:
            raise RefusalError(429, f"{len(unfinished)} jobs are under way or waiting; try again when some are done")
        job = Job(kind, {"kind": kind, **task}, client=client)
        self._jobs[job.id] = job
        self._forget()
        job.running = asyncio.create_task(self._run(job))
        return job

    def find(self, identity: str) -> Job:
        """Return a job by its id."""
        if identity not in self._jobs:
            raise RefusalError(
                404, "there is no such job; the server keeps the latest ones only, so send the data again"
            )
        self._jobs[identity].asked_at = time.monotonic()
        return self._jobs[identity]

    def _stop_abandoned(self) -> None:
        """Stop jobs that no client has asked for in a while: the page was closed."""
        oldest = time.monotonic() - self._limits.abandoned_seconds
        for job in self._jobs.values():
            if job.state in OPEN and job.asked_at < oldest:
                job.end("cancelled", "stopped: no client asked for its result")
                if job.running is not None:
                    job.running.cancel()

    def cancel(self, identity: str) -> Job:
        """Stop a job; one that has ended stays as it is."""
        job = self.find(identity)
        job.end("cancelled")
        if job.running is not None:
            job.running.cancel()
        return job

    async def close(self) -> None:
        """Stop all jobs."""
        running = [job.running for job in self._jobs.values() if job.running is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, job: Job) -> None:
        async with self._slots:
            job.state, job.stage = "running", "Starting"
            try:
                async with asyncio.timeout(self._limits.job_seconds):
                    await self._work(job)
            except TimeoutError:
                job.end("failed", f"it took longer than {self._limits.job_seconds:g} seconds and was stopped")
            except Exception:
                logging.getLogger("uvicorn.error").exception("job %s failed", job.id)
                job.end("failed", "the job stopped unexpectedly; see the server's log")

    async def _work(self, job: Job) -> None:
        process = await _worker()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job.task).encode())
            process.stdin.close()
            async for line in process.stdout:
                self._take(job, json.loads(line))
            await process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        job.end("failed", "the worker process stopped without a result; see the server's log")

    def _take(self, job: Job, message: dict[str, Any]) -> None:
        if "stage" in message:
            job.stage, job.done, job.total = message["stage"], message["done"], message["total"]
        elif "error" in message:
            job.end("failed", message["error"])
        else:
            self._finished(job.kind, message["result"])
            job.result = zlib.compress(json.dumps(message["result"]).encode(), 1)
            job.end("done")

    def _forget(self) -> None:
        ended = [name for name, job in self._jobs.items() if job.state not in OPEN]
        for name in ended[: max(len(self._jobs) - self._limits.jobs, 0)]:
            del self._jobs[name]
        kept = 0
        for job in reversed(self._jobs.values()):
            kept += len(job.task.get("csv", ""))
            if job.state not in OPEN and kept > self._limits.kept_bytes:
                job.task = {}


async def _worker() -> asyncio.subprocess.Process:
    # -P: files in the current folder must not shadow modules.
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "loopscale.app.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
