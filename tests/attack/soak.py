"""A soak of the explorer: a steady rate of requests with fits and uploads; no server error, and memory that stays.

python tests/attack/soak.py --seconds 600 --rate 50
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import psutil

from loopscale.fitting.data.public import simulate_sweep

JSON = "application/json"
PLAN = {"flops": "5e21", "memory": "3GB", "bits": "int4", "extrapolate": True, "top": 10}
PREDICT = {"rung": "1.0B", "experts": 8, "recurrence": 2, "tokens": "500B", "extrapolate": True}


def request(draw: random.Random, csv: bytes, jobs: list[str]) -> tuple[str, str, bytes, str]:
    """Draw a request: mostly plans and predictions, some uploads, rarely a fit; some are wrong."""
    kind = draw.choices(["predict", "plan", "read", "preview", "job", "fit", "wrong"], [40, 15, 25, 8, 8, 0.2, 4])[0]
    if kind == "predict":
        return (
            "POST",
            "/api/predict",
            json.dumps(PREDICT | {"recurrence": draw.randint(1, 8)}).encode(),
            "application/json",
        )
    if kind == "plan":
        return (
            "POST",
            "/api/plan",
            json.dumps(PLAN | {"flops": f"{draw.uniform(1, 9):.2f}e21"}).encode(),
            "application/json",
        )
    if kind == "preview":
        return "POST", "/api/preview", csv, "text/csv"
    if kind == "fit":
        return "POST", "/api/fit?resamples=10", csv, "text/csv"
    if kind == "job" and jobs:
        identity = draw.choice(jobs)
        return draw.choices(["GET", "DELETE"], [20, 1])[0], f"/api/jobs/{identity}", b"", JSON
    if kind == "wrong":
        return "POST", draw.choice(["/api/plan", "/api/fit", "/api/laws"]), draw.randbytes(300), JSON
    return "GET", draw.choice(["/", "/api/choices", "/api/laws", "/api/template.csv"]), b"", JSON


async def send(address: str, method: str, path: str, body: bytes, kind: str) -> tuple[int, bytes]:
    """Send one request over a connection of its own; return status and content."""
    split = urlsplit(address)
    reader, writer = await asyncio.open_connection(split.hostname, split.port)
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: {split.netloc}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    )
    try:
        writer.write((head + "connection: close\r\n\r\n").encode() + body)
        await writer.drain()
        reply = await reader.read()
    finally:
        writer.close()
    first, _, rest = reply.partition(b"\r\n")
    return int(first.split()[1]), rest.partition(b"\r\n\r\n")[2]


def memory(process: psutil.Process) -> int:
    """Return the bytes of the server itself; jobs are processes that end."""
    return int(process.memory_info().rss)


async def load(address: str, process: psutil.Process, seconds: float, rate: float, first: float) -> dict[str, Any]:
    """Send requests at a steady rate; measure memory after ``first`` seconds and at its highest later on."""
    draw, statuses, jobs = random.Random(0), Counter[int](), list[str]()
    csv = simulate_sweep(recurrences=(1, 2, 4), tokens=[1e11, 2e11, 3e11, 4e11, 5e11]).csv().encode()
    start, pending, sent = time.monotonic(), set[asyncio.Task[None]](), 0
    early = highest = 0

    async def one() -> None:
        method, path, body, kind = request(draw, csv, jobs)
        try:
            status, content = await send(address, method, path, body, kind)
        except (OSError, IndexError, ValueError):
            statuses[0] += 1
            return
        statuses[status] += 1
        if path.startswith("/api/fit") and status == 202:
            jobs[:] = [*jobs[-20:], json.loads(content[content.index(b"{") : content.rindex(b"}") + 1])["id"]]

    while (elapsed := time.monotonic() - start) < seconds:
        if elapsed >= first:
            early = early or memory(process)
            highest = max(highest, memory(process))
        while sent < elapsed * rate and len(pending) < 200:
            task = asyncio.create_task(one())
            pending.add(task)
            task.add_done_callback(pending.discard)
            sent += 1
        await asyncio.sleep(0.02)
    await asyncio.gather(*pending)
    return {
        "requests": sum(statuses.values()), "rate": sum(statuses.values()) / (time.monotonic() - start),
        "statuses": dict(sorted(statuses.items())), "early": early, "highest": highest,
        "server_errors": sum(count for status, count in statuses.items() if status >= 500 or status == 0),
    }  # fmt: skip


def soak(seconds: float, rate: float, first: float = 60.0) -> dict[str, Any]:
    """Start an explorer, soak it, stop it; return what was measured."""
    command = [sys.executable, "-m", "loopscale", "app", "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address is not None
        try:
            result = asyncio.run(load(address[0], psutil.Process(server.pid), seconds, rate, first))
        finally:
            server.terminate()
            server.wait(timeout=60)
    result["growth"] = result["highest"] / result["early"]
    result["exit"] = server.returncode
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--first", type=float, default=60.0, help="seconds after which memory is measured first")
    given = parser.parse_args()
    print(json.dumps(soak(given.seconds, given.rate, given.first), indent=1))
