"""A real server in a process of its own, as `loopscale app` starts it."""

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from loopscale.fit.data.public import simulate_sweep


@dataclass
class Answer:
    """What a server said."""

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


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of a running explorer."""
    command = [sys.executable, "-m", "loopscale", "app", "--no-open", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    yield re.search(r"http://\S+", line)[0]
    process.terminate()
    process.wait(timeout=600)


@pytest.fixture(scope="session")
def client(address: str) -> Client:
    return Client(address)


@pytest.fixture(scope="session")
def sweep_csv() -> bytes:
    """A simulated sweep, small enough to be fitted in a moment."""
    tokens = np.linspace(1e11, 5e11, 4).tolist()
    return simulate_sweep(experts=(1, 4, 16), recurrences=(1, 2, 4, 8), tokens=tokens).csv().encode()
