"""Generated requests to the explorer's API, in this process: no reply may be a server error or an exception."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from artefacts import CONFIG
from mutants import ODD, ODD_VALUES, mutate_bytes, mutate_table, mutated

from loopscale.app.security import Limits
from loopscale.app.server import create_app

JSON, CSV = {"content-type": "application/json"}, {"content-type": "text/csv"}
PLAN: dict[str, Any] = {
    "flops": "5e21", "memory": "3GB", "bits": "int4", "context": 8192, "batch": 2, "serve_tokens": "1T",
    "rungs": ["0.3B", "1.0B"], "experts": [1, 8], "recurrences": [1, 2, 4], "eps": 0.001, "rule": "loss",
    "extrapolate": True, "top": 5, "charts": ["recurrence", "designs"], "law": "looped-moe-2026",
    "max_tokens": "10T", "inference_flops": "4e9", "kv_bits": 8, "kept_passes": 2, "draft": True, "where": "phone",
    "centre": "5e21", "config": json.loads(CONFIG),
}  # fmt: skip
PREDICT = {"rung": "1.0B", "experts": 8, "recurrence": 2, "tokens": "500B", "extrapolate": True}


class Client:
    """Sends requests to an application in this process, without a network."""

    def __init__(self, sweep: Path | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.app = create_app(limits=Limits(job_seconds=30, workers=1), sweep=sweep)

    def send(self, method: str, path: str, query: str = "", body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Return the status and the content of the reply."""
        return self.loop.run_until_complete(self._send(method, path, query, body, headers))

    async def _send(
        self, method: str, path: str, query: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": quote(path).encode(), "root_path": "", "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1", "replace"))
                        for name, value in {"host": "localhost", **headers}.items()],
            "client": ("127.0.0.1", 1), "server": ("localhost", 80), "state": {},
        }  # fmt: skip
        messages: list[dict[str, Any]] = []
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await asyncio.Event().wait()  # the client stays until it has its reply
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            messages.append(message)

        await self.app(scope, receive, send)
        content = b"".join(message.get("body", b"") for message in messages[1:])
        return int(messages[0]["status"]), content

    def close(self) -> None:
        """Stop the jobs."""

        async def stop() -> None:
            async with self.app.router.lifespan_context(self.app):
                pass

        self.loop.run_until_complete(stop())
        self.loop.close()


class Requests:
    """Draws requests; about half have one thing changed."""

    def __init__(self, draw: random.Random, law: dict[str, Any], table: str, jobs: list[str]) -> None:
        self.draw, self.law, self.table, self.jobs = draw, law, table, jobs

    def body(self, data: Any) -> bytes:
        """Return JSON, often with one thing changed and rarely broken."""
        kind = self.draw.random()
        try:
            text = json.dumps(mutated(data, self.draw) if kind < 0.4 else data)
        except (ValueError, RecursionError):
            text = "{}"
        content = text.encode("utf-8", "surrogatepass")
        return mutate_bytes(content, self.draw) if kind > 0.97 else content

    def some(self, data: dict[str, Any], always: tuple[str, ...]) -> dict[str, Any]:
        """Return the fields in ``always`` and some of the others."""
        return {name: value for name, value in data.items() if name in always or self.draw.random() < 0.25}

    def any_law(self) -> Any:
        """Return a law as requests name it."""
        return self.draw.choice(
            ["looped-moe-2026", "chinchilla-2022", "chinchilla-epoch-2024", self.law, "own-0", "x" * 500]
        )

    def plan(self) -> tuple[str, str, str, bytes]:
        """POST /api/plan and its forms."""
        data = self.some(PLAN, ("flops", "extrapolate"))
        if self.draw.random() < 0.3:
            data["law"] = self.any_law()
        if self.draw.random() < 0.1:
            data["design"] = self.draw.choice(["0.3B:8:2", "1.0B:1:1", "x:y:z", "0.3B:8", "config"])
        path = self.draw.choices(["/api/plan", "/api/plan.csv", "/api/plan.html"], [30, 10, 1])[0]
        return "POST", path, "", self.body(data)

    def predict(self) -> tuple[str, str, str, bytes]:
        """POST /api/predict."""
        data = dict(PREDICT) | ({"law": self.any_law()} if self.draw.random() < 0.4 else {})
        return "POST", "/api/predict", "", self.body(data)

    def add_law(self) -> tuple[str, str, str, bytes]:
        """POST /api/laws."""
        return "POST", "/api/laws", "", self.body(self.law)

    def read(self) -> tuple[str, str, str, bytes]:
        """GET everything that can be read, and things that are not there."""
        fixed = ["/api/choices", "/api/laws", "/api/template.csv", "/api/example.csv", "/api/micro.csv", "/api/sweep",
                 "/api/sweep.csv", "/api/openapi.json", "/"]  # fmt: skip
        name = self.draw.choice(["looped-moe-2026", "chinchilla-epoch-2024", "own-0", *ODD]).replace("/", "%2F")
        job = self.draw.choice([*self.jobs, "x", *ODD])
        paths = [*fixed, f"/api/laws/{name}", f"/api/jobs/{job}", f"/{name}", "/../etc/passwd", "//x", "/static/../x"]
        method = self.draw.choices(["GET", "HEAD", "DELETE", "POST", "OPTIONS", "PUT"], [80, 3, 3, 2, 2, 2])[0]
        return method, self.draw.choice(paths), "", b""

    def compute(self) -> tuple[str, str, str, bytes]:
        """GET /api/compute."""
        data = self.draw.choice([
            {"device": "h100", "gpus": "8", "days": "14"}, {"device": "a100", "dollars": "5000", "price": "2.5"},
        ])  # fmt: skip
        if self.draw.random() < 0.3:
            data = {
                **data,
                self.draw.choice([*data, "utilisation", "x"]): str(self.draw.choice([*ODD, *ODD_VALUES[:9]])),
            }
        return "GET", "/api/compute", urlencode(data, errors="replace"), b""

    def upload(self) -> tuple[str, str, str, bytes]:
        """POST /api/preview, and rarely a fit."""
        text = mutate_table(self.table, self.draw) if self.draw.random() < 0.5 else self.table
        content = text.encode("utf-8", "surrogatepass")
        content = mutate_bytes(content, self.draw) if self.draw.random() < 0.1 else content
        columns = self.draw.choice(["{}", '{"loss": "loss"}', '{"loss": "x"}', "[", "[]", '{"loss": 1}', "[" * 900])
        query = urlencode({"columns": columns}) if self.draw.random() < 0.3 else ""
        if self.draw.random() < 0.02:
            return "POST", "/api/fit", "resamples=10", content
        return "POST", "/api/preview", query, content

    def job(self) -> tuple[str, str, str, bytes]:
        """POST to a fit that may not be there."""
        identity = self.draw.choice([*self.jobs, "x"])
        data = {"budget": "1e20", "plan": {"flops": "5e21"}, "goal": "choice", "most": 2}
        return "POST", f"/api/fits/{identity}/{self.draw.choice(['next', 'compare', 'backtest'])}", "", self.body(data)


WEIGHTS = {"plan": 30, "predict": 20, "add_law": 10, "read": 15, "compute": 10, "upload": 12, "job": 3}


def trial(client: Client, requests: Requests) -> tuple[str, tuple[str, str, str, bytes], str]:
    """Send one request; return its kind, the request, and works, refused or what is wrong."""
    kind = requests.draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    make: Callable[[], tuple[str, str, str, bytes]] = getattr(requests, kind)
    method, path, query, body = make()
    headers = CSV if kind == "upload" else JSON
    try:
        status, content = client.send(method, path, query, body, **headers)
    except Exception as error:
        return kind, (method, path, query, body), f"TRACEBACK {type(error).__name__}: {str(error)[:120]}"
    if path == "/api/fit" and status == 202:
        requests.jobs[:] = [*requests.jobs[-3:], json.loads(content)["id"]]
    if status >= 500:
        return kind, (method, path, query, body), f"HTTP {status} {content[:120]!r}"
    return kind, (method, path, query, body), "works" if status < 400 else "refused"


def attack(folder: Path, trials: int, seed: int = 0) -> tuple[Counter[tuple[str, str]], list[tuple[list[str], str]]]:
    """Send generated requests; return the counts by kind and verdict, and the bad ones."""
    draw = random.Random(seed)
    law = json.loads((folder / "law.json").read_text())
    law.pop("checksum", None)
    sweep = folder / "sweepdir" / "tiny"
    client = Client(sweep if sweep.is_dir() else None)
    requests = Requests(draw, law, (folder / "runs.csv").read_text(), [])
    verdicts, bad = Counter[tuple[str, str]](), []
    for _ in range(trials):
        kind, request, verdict = trial(client, requests)
        good = verdict in ("works", "refused")
        verdicts[f"api {kind}", verdict if good else "BAD"] += 1
        if not good:
            bad.append(([str(part) for part in request], verdict))
    client.close()
    return verdicts, bad


def schemathesis_attack(examples: int, seed: int = 0) -> tuple[Counter[tuple[str, str]], list[tuple[list[str], str]]]:
    """Send what schemathesis makes of the API's own description, valid and invalid."""
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from hypothesis import seed as seeded
    from hypothesis.errors import Unsatisfiable

    schema = schemathesis.openapi.from_dict(create_app().openapi())
    client = Client()
    verdicts, bad = Counter[tuple[str, str]](), []

    def send(case: Any) -> None:
        request = case.as_transport_kwargs(base_url="http://localhost")
        body = request.get("data") or (json.dumps(request["json"]).encode() if "json" in request else b"")
        content = body if isinstance(body, bytes) else str(body).encode("utf-8", "replace")
        headers = {str(name): str(value) for name, value in (request.get("headers") or {}).items()}
        query = urlencode(request.get("params") or {}, doseq=True, errors="replace")
        path = unquote(case.formatted_path)
        try:
            status, _ = client.send(case.method.upper(), path, query, content, **headers)
            verdict = f"HTTP {status}" if status >= 500 else "works" if status < 400 else "refused"
        except Exception as error:
            verdict = f"TRACEBACK {type(error).__name__}: {str(error)[:120]}"
        good = verdict in ("works", "refused")
        verdicts["api schemathesis", verdict if good else "BAD"] += 1
        if not good:
            bad.append(([case.method, path, query, str(content[:300])], verdict))

    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in schemathesis.GenerationMode:
            strategy = operation.as_strategy(generation_mode=mode)
            options = settings(
                max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
            )
            with contextlib.suppress(Unsatisfiable):  # nothing to be wrong about
                seeded(seed)(options(given(strategy)(send)))()
    client.close()
    return verdicts, bad
