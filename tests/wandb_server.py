"""A server on this machine that answers what the client of W&B asks to list the runs of a project."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

USER = {"id": "VXNlcjox", "entity": "me", "username": "me", "email": "me@localhost", "flags": "{}",
        "teams": {"edges": []}}  # fmt: skip


def run(
    name: str, number: int, state: str, config: str | None, summary: str | None, history: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a run as the server lists it; settings, last values and the steps of its history are JSON texts."""
    keys = {key: {} for line in history for key in json.loads(line)}
    return {
        "projectId": 1, "id": f"UnVu{number}", "name": f"id{number:03}", "displayName": name, "state": state,
        "config": config, "summaryMetrics": summary, "systemMetrics": "{}", "tags": [], "sweepName": None,
        "group": None, "jobType": None, "commit": None, "readOnly": False, "createdAt": "2026-01-01T00:00:00",
        "heartbeatAt": "2026-01-01T00:00:00", "description": None, "notes": None,
        "user": {"name": "me", "username": "me"}, "historyLineCount": len(history),
        "historyKeys": {"lastStep": len(history) - 1, "keys": keys}, "history": history,
        "parquetHistory": {"parquetUrls": [], "liveData": [json.loads(line) for line in history]},
    }  # fmt: skip


class Server(ThreadingHTTPServer):
    """Projects by path, and the queries that came."""

    daemon_threads = True

    def __init__(self, projects: Mapping[str, list[dict[str, Any]]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.projects = projects
        self.queries: list[str] = []

    def answer(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        self.queries.append(query)
        if query in ("Viewer", "GetDefaultEntity"):
            return {"viewer": USER}
        path = f"{variables.get('entity')}/{variables.get('project')}"
        if path not in self.projects:
            return {"project": None}
        runs = self.projects[path]
        if query != "Runs":
            return {"project": {"run": next(run for run in runs if run["name"] in variables.values())}}
        first = int(variables.get("cursor") or 0)
        page = runs[first : first + variables["perPage"]]
        edges = [{"node": node, "cursor": str(first + k + 1)} for k, node in enumerate(page)]
        more = {"endCursor": str(first + len(page)), "hasNextPage": first + len(page) < len(runs)}
        listed = {"edges": edges, "pageInfo": more}
        return {"project": {"internalId": "1", "runCount": len(runs), "readOnly": False, "runs": listed}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["content-length"]))
        if self.path != "/graphql":  # what the client reports of itself
            self.send_error(404)
            return
        asked = json.loads(sent)
        name = re.search(r"query (\w+)", asked["query"])
        reply = {"data": self.server.answer(name[1] if name else "", asked.get("variables") or {})}
        content = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving(projects: Mapping[str, list[dict[str, Any]]]):
    """Serve projects while the block runs; ``base`` is the address that the client is given."""
    with Server(projects) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
