"""A real server in its own process, as `loopscale app` starts it, and a browser."""

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from loopscale.fitting.data.public import simulate_sweep


@dataclass
class Answer:
    """A reply."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """A client of one server."""

    address: str

    def send(self, path: str, body: Any = None, method: str | None = None, **headers: str) -> Answer:
        """Send bytes as they are, anything else as JSON."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        kind = {"content-type": "text/csv" if isinstance(body, bytes) else "application/json"}
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.address + path, content, kind | names, method=method)
        try:
            with urllib.request.urlopen(request, timeout=600) as reply:
                return Answer(reply.status, reply.read(), dict(reply.headers))
        except urllib.error.HTTPError as refusal:
            return Answer(refusal.code, refusal.read(), dict(refusal.headers))

    def job(self, started: Answer) -> dict[str, Any]:
        """Wait for a job's end."""
        assert started.status == 202, started.body
        job = started.json
        while job["state"] in ("waiting", "running"):
            time.sleep(0.1)
            job = self.send(f"/api/jobs/{job['id']}").json
        return job


class Server:
    """A running explorer."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "loopscale", "app", "--no-open", "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = re.search(r"http://\S+", self.process.stdout.readline())[0]

    def stop(self) -> None:
        """End it and wait until it is gone."""
        self.process.terminate()
        self.process.wait(timeout=600)


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of a running explorer."""
    server = Server()
    yield server.address
    server.stop()


@pytest.fixture
def own_server() -> Iterator[Callable[..., Server]]:
    """A function that starts further explorers, which end with the test."""
    started: list[Server] = []

    def start(*options: str) -> Server:
        started.append(Server(*options))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser; it runs an event loop, which other modules must not find running."""
    from browser import chromium

    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def client(address: str) -> Client:
    return Client(address)


@pytest.fixture(scope="session")
def sweep_csv() -> bytes:
    """A simulated sweep, small enough to be fitted in a moment."""
    tokens = np.linspace(1e11, 5e11, 4).tolist()
    return simulate_sweep(experts=(1, 4, 16), recurrences=(1, 2, 4, 8), tokens=tokens).csv().encode()
